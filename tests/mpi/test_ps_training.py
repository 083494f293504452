"""A parameter server on any number of ranks against the same training by one process."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import psdata
import pytest
import ringdata
from psdata import BATCH, arrays_in, arrays_of, fits, instead, learn, one_process, run_of, same, steps_of
from ringdata import OPTIMIZERS

from lightctr_mpi import checkpoint
from lightctr_mpi.config import CODECS
from lightctr_mpi.ps import worker
from lightctr_mpi.report import NullReport
from lightctr_mpi.stores import StepSums
from lightctr_mpi.train import Fit

pytestmark = pytest.mark.mpi

STEPS = 7  # 50 rows: three whole batches and one of two rows, then from the start again

folder = pytest.fixture(scope="module")(psdata.shared_folder)


def check(b, run, steps):
    """Train with servers and in one process: equal sums, weights, states. Returns the arrays, at rank 0."""
    found, path = b.run(run, lambda store: (learn(store, b.data, steps), b.save(store)))
    if b.comm.rank:
        return {}
    replica, expected = one_process(b, run, steps)
    assert found == pytest.approx(expected, rel=1e-6)
    arrays = arrays_of(path)
    same(arrays, arrays_in(replica, b.fields))
    return arrays


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize(("name", "optimizer"), list(itertools.product(["lr", "fm", "ffm"], OPTIMIZERS)))
def test_bsp_is_one_process(world, folder, servers, name, optimizer):
    if not fits(world.comm, servers):
        return
    b = psdata.bench(world, folder, ringdata.mixed_rows(50), name, weighted=True)
    run = run_of(name, optimizer, BATCH, servers=servers)
    arrays = check(b, run, list(steps_of(50, BATCH, STEPS)))
    if world.rank == 0:
        start = arrays_in(ringdata.replica_of(name, optimizer, b.keys, BATCH))
        assert np.abs(arrays["parameters/linear"] - start["parameters/linear"]).max() > 0.1  # it has learned


@pytest.mark.parametrize("servers", [1, 2])
def test_two_bsp_runs_give_the_same_bits(world, folder, servers):
    if not fits(world.comm, servers):
        return
    b = psdata.bench(world, folder, ringdata.mixed_rows(50), "ffm", weighted=True)
    run, steps = run_of("ffm", "adagrad", BATCH, servers=servers), list(steps_of(50, BATCH, STEPS))
    found = [
        b.run(run, lambda store, i=i: (learn(store, b.data, steps), b.save(store, f"{i}.h5"))) for i in "ab"
    ]
    if world.rank == 0:
        (sums, one), (again, two) = ((sums, arrays_of(path)) for sums, path in found)
        assert sums == pytest.approx(again, rel=1e-12)  # added up as they come
        assert all(one[name].tobytes() == two[name].tobytes() for name in one)


AWKWARD = {
    "ten rows in batches of three": (ringdata.mixed_rows(10, 1), 3),
    "fewer rows than workers": (ringdata.mixed_rows(3, 2), 4096),
    "one row": ("1 0:5:1 1:6:2\n", 2),
    "one key": ("1 0:5:1\n0 0:5:2\n0 0:5:1\n", 2),
    "no key": ("1\n0\n0\n0\n1\n", 4),
    "one class for each worker": (
        "".join(sorted(ringdata.mixed_rows(48, 3).splitlines(keepends=True))),
        24,  # the first batch has negatives only; workers of the second one class each, but for one worker
    ),
}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("case", AWKWARD)
def test_uneven_and_empty_shares(world, folder, case, servers):
    if not fits(world.comm, servers):
        return
    text, batch = AWKWARD[case]
    b = psdata.bench(world, folder, text, "fm")
    run = run_of("fm", "ftrl", batch, servers=servers)
    arrays = check(b, run, list(steps_of(b.data.n_rows, batch, 5)))
    assert world.rank or arrays["parameters/bias"][0] != 0


@pytest.mark.parametrize("consistency", ["bsp", "ssp", "asp"])
def test_a_model_without_a_bias(world, folder, consistency):
    """Servers with no part of anything; with one worker that pulls nothing ahead all modes are one."""
    servers = max(1, world.size - 2) if consistency != "bsp" else 1
    if not fits(world.comm, servers):
        return
    b = psdata.bench(world, folder, "1 0:5:1 1:6:1\n0 0:5:1 1:7:2\n" * 3, "fm")
    run = run_of("fm", "adagrad", 2, servers=servers, consistency=consistency, prefetch=False)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, bias=False))
    check(b, run, list(steps_of(6, 2, 5)))


# --- evaluation ---


@pytest.mark.parametrize(("servers", "n_rows"), [(1, 50), (2, 50), (1, 3), (1, 0)])
def test_metrics_are_those_of_one_process(world, folder, servers, n_rows):
    """All of them, with sample weights and groups, also where workers have no row or only one class."""
    if not fits(world.comm, servers):
        return
    b = psdata.bench(
        world, folder, ringdata.mixed_rows(50), "fm", weighted=True, valid=ringdata.mixed_rows(n_rows, 7)
    )
    run, steps = run_of("fm", "adagrad", BATCH, servers=servers), list(steps_of(50, BATCH, STEPS))
    valid = b.more["valid"]

    def work(store):
        learn(store, b.data, steps)
        return store.evaluate(valid, "logistic"), store.evaluate(b.data, "logistic")

    results = b.run(run, work)
    if world.rank:
        return
    replica, _ = one_process(b, run, steps)
    for found, rows in zip(results, (valid, b.data), strict=True):
        expected = replica.evaluate(rows, "logistic")
        assert found.keys() == expected.keys()
        assert found["rows"] == rows.n_rows and found["reasons"] == expected["reasons"]
        for metric, value in expected.items():
            if isinstance(value, float):
                assert found[metric] == pytest.approx(value, abs=1e-6, rel=1e-6), metric
            else:
                assert found[metric] == value, metric


@pytest.mark.parametrize("servers", [1, 2])
def test_keys_that_were_never_learned_count_nothing_and_get_no_row(world, folder, servers):
    if not fits(world.comm, servers):
        return
    b = psdata.bench(world, folder, ringdata.mixed_rows(50), "fm")
    run, steps = run_of("fm", "adagrad", BATCH, servers=servers), [np.arange(10)]

    def work(store):
        learn(store, b.data, steps)
        result = store.evaluate(b.data, "logistic")
        return result, store.end_epoch(1)["ps_keys"]

    result, n_keys = b.run(run, work)
    if world.rank:
        return
    replica, _ = one_process(b, run, steps)
    learned = np.unique(b.data.block(steps[0]).ids)
    assert n_keys == len(learned) < len(b.keys)
    unseen = np.setdiff1d(np.arange(len(b.keys)), learned)
    replica.shard.rows[unseen] = 0
    expected = replica.evaluate(b.data, "logistic")
    for metric in ("logloss", "auc", "rmse"):
        assert result[metric] == pytest.approx(expected[metric], abs=1e-6)


# --- the training loop ---


@pytest.mark.parametrize("servers", [1, 3])
def test_the_training_loop_makes_the_records_of_one_process(world, folder, servers):
    if not fits(world.comm, servers):
        return
    b = psdata.bench(world, folder, ringdata.mixed_rows(50), "fm", valid=ringdata.mixed_rows(31, 9))
    run = run_of("fm", "ftrl", BATCH, epochs=3, servers=servers)

    def fit(store, save):
        return Fit(run, store, b.data, b.more["valid"], NullReport(), save, lambda: False)()

    saved = []

    def work(store):
        return fit(store, lambda progress, history, best: saved.append(b.save(store))), saved[-1]

    history, path = b.run(run, work)
    if world.rank:
        return
    replica = ringdata.replica_of("fm", "ftrl", b.keys, BATCH)
    expected = fit(replica, lambda *_: None)
    assert len(history) == len(expected) == len(saved) == 3
    for record, wanted in zip(history, expected, strict=True):
        assert (record["epoch"], record["step"]) == (wanted["epoch"], wanted["step"])
        for name in ("train_logloss", "valid_logloss", "valid_auc"):
            assert record[name] == pytest.approx(wanted[name], abs=1e-6)
        assert record["ps_keys"] == len(b.keys)
        for name in ("refused", "passed_on", "homeless", "evicted", "saturated", "uncorrected"):
            assert record[f"ps_{name}"] == 0
        assert record["ps_received"] > 0 and record["ps_sent"] > 0
    same(arrays_of(path), arrays_in(replica))


# --- keys that come and go ---


def rows_of(*keys: int) -> str:
    """A row for each key, which is in field 0; key 0 is in all rows."""
    return "".join(f"{i % 2} 0:{key}:1 1:0:1\n" for i, key in enumerate(keys))


@pytest.mark.parametrize("servers", [1, 2])
def test_a_key_gets_a_row_when_it_was_seen_often_enough(world, folder, servers):
    """Each row is a step of its own: keys 0, 2 and 3 are seen twice and more."""
    if not fits(world.comm, servers):
        return
    b = psdata.bench(world, folder, rows_of(1, 2, 2, 3, 4, 3, 3), "fm")
    run = run_of("fm", "adagrad", 1, servers=servers, admit_after=2)
    steps = list(steps_of(7, 1, 7))

    def work(store):
        learn(store, b.data, steps)
        return store.end_epoch(1), b.save(store)

    figures, path = b.run(run, work)
    assert figures["ps_keys"] == 3
    # Key 0 waited in the first row, keys 1 to 4 when they were first seen; none of them could be moved.
    assert figures["ps_unadmitted"] == 5 and figures["ps_homeless"] == 5
    if world.rank == 0:
        assert arrays_of(path)["features/keys"].tolist() == [0, 2, 3]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(("age", "hits", "left"), [(1, 0, [0, 2]), (2, 0, [0, 1, 2]), (1, 3, [0, 1, 2])])
def test_keys_go_when_they_were_not_seen_for_so_many_epochs(world, folder, servers, age, hits, left):
    """Epoch 1 has all keys, epoch 2 no key 1, epoch 3 neither 1 nor 3."""
    if not fits(world.comm, servers):
        return
    b = psdata.bench(world, folder, rows_of(1, 1, 1, 2, 3), "fm")
    run = run_of("fm", "adagrad", 1, servers=servers, evict_age=age, evict_hits=hits)

    def work(store):
        figures = []
        for epoch, rows in enumerate([[0, 1, 2, 3, 4], [3, 4], [3]], start=1):
            learn(store, b.data, [np.array([row]) for row in rows])
            figures.append(store.end_epoch(epoch))
        return figures, b.save(store)

    figures, path = b.run(run, work)
    gone = {(1, 0): [0, 1, 1], (2, 0): [0, 0, 1], (1, 3): [0, 0, 1]}[age, hits]
    if age == 2:
        left = [0, 2, 3]  # key 1 was away in epochs 2 and 3
    elif hits:
        left = [0, 1, 2]  # key 1 was seen three times
    assert [record["ps_evicted"] for record in figures] == gone
    assert [record["ps_keys"] for record in figures] == (4 - np.cumsum(gone)).tolist()
    if world.rank == 0:
        assert arrays_of(path)["features/keys"].tolist() == left


# --- model files ---


def test_a_model_moves_between_servers_rings_and_one_process(world, folder):
    """Saved by up to three servers, loaded by fewer and more, in a ring, in one process, and back."""
    comm, most = world.comm, min(3, world.size - 2)
    if not fits(comm, max(most, 1)):
        return
    b = psdata.bench(world, folder, ringdata.mixed_rows(50), "ffm", valid=ringdata.mixed_rows(31, 9))
    steps, further = list(steps_of(50, BATCH, 6)), list(steps_of(50, BATCH, 4))

    def run(servers):
        return run_of("ffm", "ftrl", BATCH, servers=servers)

    def goes_on(path, name):
        """Load, evaluate, save again, learn, save."""

        def work(store):
            with checkpoint.open(path) as source:
                store.load(source)
            result = store.evaluate(b.more["valid"], "logistic")
            paths = [b.save(store, f"{name}.h5")]
            learn(store, b.data, further)
            return result, [*paths, b.save(store, f"{name}-further.h5")]

        return work

    def first(store):
        learn(store, b.data, steps)
        return store.evaluate(b.more["valid"], "logistic"), b.save(store, "first.h5")

    result, path = b.run(run(most), first)
    numbers = [n for n in (1, 2, 3, 5) if n + 2 <= comm.size]
    found = {f"servers{n}": b.run(run(n), goes_on(path, f"servers{n}")) for n in numbers}
    ring = ringdata.ring_of(comm, "ffm", "ftrl", b.keys, BATCH)
    found["ring"] = goes_on(path, "ring")(ring)
    if comm.size > 3:  # a smaller world, the rest of the ranks rest
        small = comm.Split(int(comm.rank > 2), comm.rank)
        if comm.rank < 3:
            b.comm = small
            found["small"] = b.run(run(1), goes_on(path, "small"))
            b.comm = comm
        small.Free()
    found["back"] = b.run(run(most), goes_on(found["ring"][1][0], "back"))
    if comm.rank:
        return
    found["single"] = goes_on(path, "single")(ringdata.replica_of("ffm", "ftrl", b.keys, BATCH))
    replica, _ = one_process(b, run(1), [*steps, *further])
    arrays = arrays_of(path)
    assert np.array_equal(arrays["features/keys"], b.keys)
    for name, (metrics, (loaded, learned)) in found.items():
        for metric in ("logloss", "auc", "rmse"):
            assert metrics[metric] == pytest.approx(result[metric], rel=1e-12), name
        copied = arrays_of(loaded)
        assert copied.keys() == arrays.keys()
        assert all(copied[part].tobytes() == arrays[part].tobytes() for part in arrays), name
        same(arrays_of(learned), arrays_in(replica, b.fields))


@pytest.mark.parametrize("servers", [1, 2])
def test_the_best_weights_come_back_without_what_was_learned_later(world, folder, servers):
    """Keys that had no row when the model was saved count nothing again, and those that went come back."""
    if not fits(world.comm, servers):
        return
    b = psdata.bench(world, folder, ringdata.mixed_rows(50), "fm", valid=ringdata.mixed_rows(31, 9))
    run = run_of("fm", "adagrad", BATCH, servers=servers, evict_age=1)

    def work(store):
        learn(store, b.data, [np.arange(10)])
        before = store.evaluate(b.more["valid"], "logistic"), store.end_epoch(1)["ps_keys"]
        path = b.save(store, "best.h5")
        learn(store, b.data, [np.arange(30, 50)])
        worse = store.evaluate(b.more["valid"], "logistic"), store.end_epoch(2)["ps_keys"]
        with checkpoint.open(path) as source:
            store.load(source, with_state=False)
        after = store.evaluate(b.more["valid"], "logistic"), store.end_epoch(1)["ps_keys"]
        return before, worse, after

    before, worse, after = b.run(run, work)
    assert before[1] != worse[1] and before[1] == after[1]
    assert after[0] == before[0] != worse[0]


# --- less on the wire ---

WAYS = [
    *({"push_codec": name} for name in CODECS[1:]),
    *({"pull_codec": name} for name in CODECS[1:]),
    {"top_k": 0.3},
    {"top_k": 0.3, "push_codec": "int8", "pull_codec": "float16", "consistency": "ssp", "staleness": 1},
]


def learned(world, folder, servers, **options):
    """Logloss of other rows, and bytes that the servers received and sent."""
    b = psdata.bench(world, folder, psdata.telling_rows(600, 1), "fm", valid=psdata.telling_rows(400, 2))
    run = run_of("fm", "adagrad", 50, servers=servers, **options)

    def work(store):
        learn(store, b.data, list(steps_of(600, 50, 36)))
        figures = store.end_epoch(1)
        loss = store.evaluate(b.more["valid"], "logistic")["logloss"]
        return loss, figures["ps_received"], figures["ps_sent"]

    return b.run(run, work)


@pytest.fixture(scope="module")
def plainly_learned(world, folder):
    return functools.cache(lambda servers: learned(world, folder, servers))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_codecs_learn_as_well(world, folder, way, plainly_learned):
    """Constant predictions have a loss of 0.68. Differences of 1e-4 (codecs) and 6e-3 (top-k) were seen."""
    servers = 2 if world.size > 4 else 1
    if not fits(world.comm, servers):
        return
    loss, received, sent = learned(world, folder, servers, **way)
    plain, plainly_received, plainly_sent = plainly_learned(servers)
    assert plain < 0.6
    assert loss == pytest.approx(plain, abs=0.015 if "top_k" in way else 4e-4)
    assert ("pull_codec" in way) == (sent < 0.8 * plainly_sent)
    assert ("pull_codec" not in way or len(way) > 1) == (received < 0.8 * plainly_received)


KEPT = [
    ({"push_codec": "int8"}, 1),
    ({"push_codec": "float16"}, 1e6),  # beyond what it can hold
    ({"top_k": 0.3}, 1),
    ({"push_codec": "log8", "top_k": 0.1}, 1),
]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(("way", "size"), KEPT, ids=str)
@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_nothing_is_kept_back_in_the_end(world, folder, servers, way, size, consistency):
    """With mean gradients that depend on the key alone, SGD's weights tell how often each has arrived.

    In asp every share is a step, in bsp it is one of the parts of a mean.
    """
    if not fits(world.comm, servers):
        return
    workers = world.size - 1 - servers
    batch = 4 * workers
    b = psdata.bench(world, folder, ringdata.mixed_rows(3 * batch, 11), "fm")
    run = run_of("fm", "sgd", batch, servers=servers, consistency=consistency, **way)
    steps = list(steps_of(3 * batch, batch, 7))
    gradients = np.random.default_rng(5).normal(scale=size, size=(len(b.keys), 64)).astype(np.float32)

    def fixed(model, penalty, block, rows, ids, local, bias, grad):
        grad[local] = block.n_rows * gradients[block.ids, : grad.shape[1]]
        return 0.0, StepSums(0.0, float(block.n_rows), block.n_rows)

    with instead(worker, "add_gradient", lambda _: fixed):
        figures, path = b.run(
            run, lambda store: (learn(store, b.data, steps), (store.end_epoch(1), b.save(store)))[1]
        )
    assert (figures["ps_saturated"] > 0) == (size > 1)
    if world.rank:
        return
    count = np.zeros(len(b.keys))
    for rows in steps:
        for share in np.split(rows, workers):
            count[np.unique(b.data.block(share).ids)] += 1
    replica = ringdata.replica_of("fm", "sgd", b.keys, batch)
    weights = replica.shard.weights(0, len(b.keys))
    weights -= (
        0.5 * count[:, None] / (workers if consistency == "bsp" else 1) * gradients[:, : weights.shape[1]]
    )
    same(arrays_of(path), arrays_in(replica), rtol=1e-5, atol=1e-5 * size)
