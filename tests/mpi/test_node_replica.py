"""Ranks that share one copy of the model: what they compute, that they share it, and whole runs on it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import ringdata
from ringdata import all_equal, bind, store_of
from test_hogwild import FIELDS, Rows

from lightctr_mpi import checkpoint, job, models, optim, options
from lightctr_mpi.checkpoint import ModelMeta
from lightctr_mpi.config import ModelOptions, OptimizerOptions, Run, TrainOptions
from lightctr_mpi.errors import Diverged, Stopped, UserError
from lightctr_mpi.mpi import once_per_node, world
from lightctr_mpi.ring import window
from lightctr_mpi.ring.node import NodeReplica
from lightctr_mpi.shard import Shard
from lightctr_mpi.stores import Sequential
from lightctr_mpi.warm import warm_training

pytestmark = pytest.mark.mpi

N_ROWS = 200  # of whole runs

OPTIMIZERS = {
    "adagrad": OptimizerOptions(name="adagrad", lr=0.2, l2=1e-4),
    "ftrl": OptimizerOptions(name="ftrl", lr=0.2, l2=1e-4, l1=1e-4),
    "sgd": OptimizerOptions(name="sgd", lr=0.1, l2=1e-4),
}


def parts(name: str, optimizer: str, bias: bool = False, fields: int = FIELDS):
    """(model, optimizer), compiled by one rank."""
    chosen = ModelOptions(name=name, k=0 if name == "lr" else 4, init_scale=0.2, bias=bias)
    model = models.build(chosen, fields, "logistic")
    moves = optim.build(OPTIMIZERS[optimizer], name)
    once_per_node(world(), lambda: warm_training(model, moves, Run(train=TrainOptions(sync="none"))))
    return model, moves


def keys_of(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.uint64)


def node_of(comm, made, keys: np.ndarray, threads: int = 1) -> NodeReplica:
    return NodeReplica(comm, world().windows, *made, keys, 1, threads)


def whole_state(store) -> np.ndarray:
    """Weights and state of all keys; the columns behind them are nobody's."""
    shard = store.shard
    return shard.rows[:, : shard.model.width * (1 + shard.optimizer.slots)].copy()


# --- learning ---


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["lr", "fm", "ffm"])
def test_ranks_that_share_no_key_compute_what_one_process_does(comm, name, optimizer):
    rng, n, keys = np.random.default_rng(0), 301, 10
    ids = rng.integers(0, keys, (n, FIELDS)) + keys * np.arange(FIELDS)
    part = np.repeat(np.arange(comm.size), np.diff([i * n // comm.size for i in range(comm.size + 1)]))
    ids += part[:, None] * keys * FIELDS  # each rank's rows have keys of their own, and there is no bias
    data, order = Rows(ids, rng.integers(0, 2, n)), np.arange(n)
    made, table = parts(name, optimizer), keys_of(comm.size * keys * FIELDS)
    alone, node = Sequential(Shard(*made, table, 1)), node_of(comm, made, table)
    start = whole_state(node)
    assert np.array_equal(start, whole_state(alone))
    comm.Barrier()
    loss = 0.0
    for _ in range(3):
        loss += alone.learn(data, order, False).loss
    told = [node.learn(data, order, False) for _ in range(3)] + [node.finish()]
    assert [(s.rows, s.weight) for s in told] == [(0, 0), (n, n), (n, n), (n, n)]  # each one step later
    assert sum(s.loss for s in told) == pytest.approx(loss, rel=1e-12)
    assert node.finish().rows == 0
    comm.Barrier()
    assert whole_state(node).tobytes() == whole_state(alone).tobytes() != start.tobytes()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["lr", "fm", "ffm"])
def test_ranks_that_meet_learn_as_well(comm, name, threads):
    """Every row counts once, and the planted weights are found although updates can be lost."""
    rng, n, keys = np.random.default_rng(1), 6000, 60
    ids = rng.integers(0, keys, (n, FIELDS)) + keys * np.arange(FIELDS)
    planted = rng.normal(size=keys * FIELDS)
    data = Rows(ids, rng.random(n) < 1 / (1 + np.exp(-planted[ids].sum(axis=1))))
    made, table = parts(name, "adagrad", bias=True), keys_of(keys * FIELDS)
    losses = []
    for store in (Sequential(Shard(*made, table, 1)), node_of(comm, made, table, threads)):
        for _ in range(4):
            sums = store.learn(data, np.arange(n), False)
            sums.add(store.finish())
            assert sums.rows == n and sums.weight == n
        losses.append(sums.loss / n)
    comm.Barrier()
    assert comm.allgather(losses[1]) == [losses[1]] * comm.size
    assert losses[1] < 0.6 < np.log(2)
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
    assert node_bias_moved(store)


def node_bias_moved(store: NodeReplica) -> bool:
    return bool(store.shard.bias[0] != 0 and store.shard.bias[1] > 1)  # Adagrad's sum starts at 1


def test_fewer_rows_than_ranks_and_the_stop_of_one(comm):
    made = parts("fm", "adagrad")
    data = Rows(np.arange(FIELDS)[None], np.ones(1))
    node = node_of(comm, made, keys_of(FIELDS))
    node.learn(data, np.zeros(1, np.int64), comm.rank == comm.size - 1)
    sums = node.finish()
    assert (sums.rows, sums.stop) == (1, True)
    node.learn(data, np.zeros(1, np.int64), False)
    assert not node.finish().stop


# --- memory ---


def test_all_ranks_see_the_same_memory(comm):
    node = node_of(comm, parts("ffm", "adagrad"), keys_of(7 * comm.size))
    shard = node.shard
    assert shard.rows.ctypes.data % 64 == shard.bias.ctypes.data % 64 == 0
    rows, bias = shard.rows, shard.bias
    assert bias.ctypes.data - rows.ctypes.data >= rows.nbytes
    assert all_equal(comm, rows, bias)
    comm.Barrier()
    rows[7 * comm.rank : 7 * (comm.rank + 1)] = comm.rank
    comm.Barrier()
    assert np.array_equal(rows[:, 0], np.repeat(np.arange(comm.size), 7))
    comm.Barrier()
    if comm.rank == comm.size - 1:
        bias[0] = 5
    comm.Barrier()
    assert bias[0] == 5


@pytest.mark.parametrize("n", [1, 1000, 3 << 18])
@pytest.mark.parametrize("again", [True, False])
def test_shared_floats(comm, monkeypatch, n, again):
    """Also where the segment cannot be mapped a second time on one of the ranks."""
    if not again and comm.rank == comm.size - 1:
        monkeypatch.setattr(window, "_map_again", lambda *_: None)
    floats = window.shared_floats(comm, world().windows, n)
    assert floats.shape == (n,) and floats.dtype == np.float32 and not floats.any()
    address = floats.ctypes.data
    assert address % 64 == 0
    if again and comm.size > 1:
        place = window._place_in_segment(address, floats.nbytes)
        assert (address - place) % window.HUGE == 0
    comm.Barrier()
    if comm.rank == comm.size - 1:
        floats[:] = np.arange(n)
    comm.Barrier()
    assert np.array_equal(floats, np.arange(n, dtype=np.float32))
    comm.Barrier()


def test_private_memory_is_not_mapped_again():
    private = np.zeros(1 << 20, np.uint8)
    assert window._map_again(private.ctypes.data, len(private)) is None


def test_too_little_shared_memory_is_an_error_on_all_ranks(comm, monkeypatch):
    free = os.statvfs("/")
    monkeypatch.setattr(window.os, "statvfs", lambda _: free)
    with pytest.raises(UserError, match=r"takes \d[\d,]+ MB of shared memory in .* MB are free; enlarge it"):
        window.shared_floats(comm, world().windows, free.f_bavail * free.f_frsize // 4)


def test_one_bad_weight_is_found_by_all(comm):
    node = node_of(comm, parts("fm", "adagrad"), keys_of(100))
    assert node.all_finite()
    comm.Barrier()
    if comm.rank == 0:
        node.shard.rows[99, 0] = np.nan
    comm.Barrier()
    assert not node.all_finite()


# --- evaluation and checkpoints ---


def test_metrics_are_those_of_one_process(comm, folder):
    rows = store_of(comm, folder, ringdata.mixed_rows(301))
    data, made = bind(rows, "ffm"), parts("ffm", "adagrad", fields=ringdata.FIELDS)
    alone = Sequential(Shard(*made, np.array(rows.keys), 1))
    expected, found = (s.evaluate(data, "logistic") for s in (alone, node_of(comm, made, rows.keys)))
    assert found["rows"] == expected["rows"] == 301
    assert found["logloss"] == pytest.approx(expected["logloss"], rel=1e-12)
    assert found["auc"] == expected["auc"]


def test_a_checkpoint_moves_between_worlds(comm, folder):
    """Saved by all ranks; loaded by one process, by as many ranks, and by two groups of ranks at a time."""
    rows = store_of(comm, folder, ringdata.mixed_rows(50))
    data, path = bind(rows, "ffm"), str(folder / "model.h5")
    made = parts("ffm", "ftrl", bias=True, fields=ringdata.FIELDS)
    node, order = node_of(comm, made, rows.keys), np.arange(50)
    node.learn(data, order, False)
    node.finish()
    node.save(path, ModelMeta(), rows.fields)
    half = comm.Split(int(comm.rank >= (comm.size + 1) // 2), comm.rank)
    stores = [
        Sequential(Shard(*made, np.array(rows.keys), 2)),
        node_of(comm, made, rows.keys),
        node_of(half, made, rows.keys),
    ]
    saved, bias = whole_state(node), node.shard.bias.copy()
    with checkpoint.open(path) as source:
        for store in stores:
            store.load(source)
    for store in stores:
        assert np.array_equal(whole_state(store), saved) and np.array_equal(store.shard.bias, bias)
    comm.Barrier()
    half.Free()


# --- whole runs ---


@pytest.fixture
def run(world, comm, folder):
    """Function that trains in a folder of the given name, as the command does."""
    train = ringdata.put(comm, folder / "train.ffm", ringdata.mixed_rows(N_ROWS))
    valid = ringdata.put(comm, folder / "valid.ffm", ringdata.mixed_rows(100, 9))

    def call(out: str, epochs: int, *more: object) -> Path:
        flags = {"data.train": train, "data.valid": valid, "data.format": "libffm", "ring.replica": "node"}
        flags |= {"model.name": "ffm", "model.k": 3, "train.epochs": epochs, "train.patience": 0}
        flags |= {"seed": 7, "out": folder / out}
        words = [str(word) for flag, value in flags.items() for word in (f"--{flag}", value)]
        job.train(options.resolve([*words, *map(str, more), "--quiet"], {}), world)
        comm.Barrier()  # for the files of the first rank
        return folder / out

    return call


def losses(out: Path) -> list[float]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["valid_logloss"] for line in lines]


def test_two_epochs_and_three_more_are_five(comm, run):
    """To what lost updates make of it: the ranks share all keys, and there are few rows."""
    straight = losses(run("straight", 5))
    run("resumed", 2)
    comm.Barrier()
    resumed = losses(run("resumed", 5, "--train.resume", "auto"))
    assert len(straight) == len(resumed) == 5
    assert resumed == pytest.approx(straight, abs=0.02 if comm.size > 1 else 1e-12)
    comm.Barrier()


@pytest.mark.parametrize(("step", "position"), [(1, (0, 3)), (3, (1, 0)), (4, (1, 2))])
def test_stopped_by_a_signal_and_resumed(comm, run, folder, monkeypatch, step, position):
    """Signalled in one step, told of in the next and heeded after another; an epoch is four steps."""
    share, calls = -(-N_ROWS // 4 // comm.size), []
    monkeypatch.setattr("lightctr_mpi.stores.SWEEP_ROWS", share)
    with monkeypatch.context() as patch:
        learn_step = Sequential.learn

        def learn_and_signal(self, *arguments):
            calls.append(1)
            if len(calls) == step and comm.rank == comm.size - 1:
                os.kill(os.getpid(), signal.SIGUSR1)
            return learn_step(self, *arguments)

        patch.setattr(Sequential, "learn", learn_and_signal)
        with pytest.raises(Stopped):
            run("stopped", 3)
    epoch, steps = position
    if comm.size == 1 and steps:  # one process heeds it at once
        steps -= 1
    assert comm.allgather(len(calls)) == [4 * epoch + steps] * comm.size
    with checkpoint.open(checkpoint.newest(folder / "stopped")) as source:
        progress = source.meta.progress
    assert (progress["epoch"], progress["rows_done"]) == (epoch, steps * share * comm.size)
    comm.Barrier()
    assert len(losses(run("stopped", 3, "--train.resume", "auto"))) == 3
    comm.Barrier()


def test_a_loss_that_is_no_number_ends_the_run_on_all_ranks(comm, run):
    with pytest.raises(Diverged, match="became non-finite"):
        run("run", 30, "--optimizer.name", "sgd", "--optimizer.lr", 100, "--no-model.norm")
    comm.Barrier()
