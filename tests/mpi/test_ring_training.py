"""A step of the ring on any number of ranks against the same step of one process, taken by every rank."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import ringdata
from ringdata import OPTIMIZERS, all_equal, bind, learn, replica_of, ring_of, state_of, store_of, weights_of

from lightctr_mpi.ring.store import Ring

pytestmark = pytest.mark.mpi

BATCH = 16
STEPS = 7  # 50 rows: three whole batches and one of two rows, then from the start again

# How gradients travel: (method that is to be used, share above which tables are dense, limits in bytes).
WAYS = {
    "fused": ("_push_fused", 0.25, {}),
    "pairs": ("_push_pairs", 0.25, {"store.FUSED_BYTES": -1}),
    "owners": ("_push_sparse", np.inf, {"store.FUSED_BYTES": -1, "store.PAIRS_BYTES": -1}),
    "dense": ("_push_dense", -1.0, {"store.FUSED_BYTES": -1, "store.PAIRS_BYTES": -1}),
}
ROUND_THE_RING = {"allgather.SMALL_BYTES": -1, "reduce_scatter.SMALL_BYTES": -1}


@pytest.fixture(scope="module")
def folder(comm):
    """A folder that all ranks know."""
    path = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    yield Path(path)
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(path)


@pytest.fixture(params=[*WAYS, "owners, in pieces", "dense, in pieces"])
def way(request, monkeypatch):
    """Makes the ring take one of its ways, also with every message cut up and no help by the library;
    returns dense_above."""
    name, _, pieces = request.param.partition(", ")
    method, dense_above, limits = WAYS[name]
    for limit, value in {**limits, **(ROUND_THE_RING if pieces else {})}.items():
        monkeypatch.setattr(f"lightctr_mpi.ring.{limit}", value)
    if pieces:
        monkeypatch.setattr("lightctr_mpi.comm.CHUNK_BYTES", 900)
    for other, _, _ in WAYS.values():
        if other != method:
            monkeypatch.setattr(Ring, other, lambda *_: pytest.fail("the ring takes another way"))
    return dense_above


def same(ring, replica):
    """Weights, bias and the optimizer's state of a ring against one process."""
    np.testing.assert_allclose(weights_of(ring), weights_of(replica), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ring.shard.bias, replica.shard.bias, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state_of(ring), state_of(replica), rtol=1e-5, atol=1e-6)


def check(comm, data, name, optimizer, batch, steps, dense_above):
    """Learn with a ring and with one process; weights are the same bits on all ranks after every step."""
    ring = ring_of(comm, name, optimizer, data.store.keys, batch, dense_above)
    start = weights_of(ring).copy()
    sums = learn(ring, data, steps, batch, lambda: every_rank_agrees(comm, ring))
    replica = replica_of(name, optimizer, data.store.keys, batch)
    expected = learn(replica, data, steps, batch)
    np.testing.assert_allclose(sums, expected, rtol=1e-6)
    same(ring, replica)
    assert comm.allgather(sums) == [sums] * comm.size
    return ring, start


def every_rank_agrees(comm, ring):
    assert all_equal(comm, ring.shard.rows, ring.shard.bias)


@pytest.mark.parametrize(
    ("way", "name", "optimizer"),
    [
        *itertools.product(WAYS, ["lr", "fm", "ffm"], OPTIMIZERS),
        ("owners, in pieces", "ffm", "ftrl"),
        ("dense, in pieces", "ffm", "ftrl"),
    ],
    indirect=["way"],
)
def test_a_step_is_that_of_one_process(comm, folder, way, name, optimizer):
    data = bind(store_of(comm, folder, ringdata.mixed_rows(50), weighted=True), name)
    ring, start = check(comm, data, name, optimizer, BATCH, STEPS, way)
    assert np.abs(weights_of(ring) - start).max() > 0.1  # it has learned something


def test_two_runs_give_the_same_bits(comm, folder, way):
    data = bind(store_of(comm, folder, ringdata.mixed_rows(50), weighted=True), "ffm")
    results = []
    for _ in range(2):
        ring = ring_of(comm, "ffm", "adagrad", data.store.keys, BATCH, way)
        sums = learn(ring, data, STEPS, BATCH)
        arrays = weights_of(ring), ring.shard.bias, state_of(ring)
        results.append((sums, *(array.tobytes() for array in arrays)))
    assert results[0] == results[1]


AWKWARD = {
    "ten rows in batches of three": (ringdata.mixed_rows(10, 1), 3),
    "fewer rows than ranks": (ringdata.mixed_rows(3, 2), 4096),
    "one row": ("1 0:5:1 1:6:2\n", 2),
    "one key": ("1 0:5:1\n0 0:5:2\n0 0:5:1\n", 2),
    "one class on each rank": (
        "".join(sorted(ringdata.mixed_rows(48, 3).splitlines(keepends=True))),
        24,  # the first batch has negatives only; ranks of the second one class each, but for one rank
    ),
}


@pytest.mark.parametrize("case", AWKWARD)
def test_uneven_and_empty_shares(comm, folder, way, case):
    text, batch = AWKWARD[case]
    data = bind(store_of(comm, folder, text), "fm")
    check(comm, data, "fm", "ftrl", batch, 5, way)


@pytest.mark.parametrize("limit", [-1, 1 << 18])
def test_rows_without_any_key_teach_the_bias(comm, folder, monkeypatch, limit):
    monkeypatch.setattr("lightctr_mpi.ring.store.FUSED_BYTES", limit)
    data = bind(store_of(comm, folder, "1\n0\n0\n0\n1\n"), "fm")
    ring, _ = check(comm, data, "fm", "adagrad", 4, 5, 0.25)
    assert ring.shard.bias[0] != 0


def test_a_stop_that_one_rank_asks_for_reaches_all(comm, folder, way):
    data = bind(store_of(comm, folder, ringdata.mixed_rows(50), weighted=True), "lr")
    ring = ring_of(comm, "lr", "sgd", data.store.keys, BATCH, way)
    rows = np.arange(BATCH)
    asked = [ring.learn(data, rows, stop=step == 1 and comm.rank == comm.size - 1).stop for step in range(3)]
    assert comm.allgather(asked) == [[False, True, False]] * comm.size


@pytest.mark.parametrize("n_rows", [50, 3, 0])
def test_metrics_are_those_of_one_process(comm, folder, n_rows):
    """All of them, with sample weights and groups, also where some ranks have no row or only one class."""
    rows = store_of(comm, folder, ringdata.mixed_rows(50), weighted=True)
    data = bind(rows, "fm")
    ring = ring_of(comm, "fm", "adagrad", rows.keys, BATCH)
    replica = replica_of("fm", "adagrad", rows.keys, BATCH)
    learn(ring, data, STEPS, BATCH)
    replica.shard.weights(0, len(rows.keys))[:] = weights_of(ring)
    replica.shard.bias[:] = ring.shard.bias
    other = store_of(comm, folder, ringdata.mixed_rows(n_rows, 7), weighted=True)
    valid = ringdata.BoundRows(other, rows.keys, None, norm=True)
    found, expected = ring.evaluate(valid, "logistic"), replica.evaluate(valid, "logistic")
    assert comm.allgather(found) == [found] * comm.size
    assert found["rows"] == n_rows and found["reasons"] == expected["reasons"]
    assert (found["auc"] is None) == (n_rows < 50) and "gauc" in found or not n_rows
    for metric, value in expected.items():
        if isinstance(value, float):
            assert found[metric] == pytest.approx(value, rel=1e-12), metric
        else:
            assert found[metric] == value, metric
