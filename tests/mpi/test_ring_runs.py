"""Whole runs on any number of ranks: resuming, stopping, checkpoints that move between worlds."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
import ringdata
from ringdata import all_equal, bind, learn, replica_of, ring_of, state_of, store_of, weights_of

from lightctr_mpi import checkpoint, job, options
from lightctr_mpi.checkpoint import ModelMeta
from lightctr_mpi.errors import Stopped, UserError
from lightctr_mpi.modelfile import load, save
from lightctr_mpi.predict import predict
from lightctr_mpi.stores import Replica

pytestmark = pytest.mark.mpi

N_ROWS, BATCH = 50, 16  # an epoch is four steps


@pytest.fixture
def run(world, comm, folder):
    """Function that trains in a folder of the given name, as the command does."""
    train = ringdata.put(comm, folder / "train.ffm", ringdata.mixed_rows(N_ROWS))
    valid = ringdata.put(comm, folder / "valid.ffm", ringdata.mixed_rows(31, 9))

    def call(out: str, epochs: int, *more: object, name: str = "ffm", optimizer: str = "ftrl") -> Path:
        flags = {"data.train": train, "data.valid": valid, "data.format": "libffm", "mode": "ring"}
        flags |= {"model.name": name, "model.k": 3, "optimizer.name": optimizer, "optimizer.lr": 0.3}
        flags |= {"train.epochs": epochs, "train.batch_size": BATCH, "train.patience": 0, "seed": 7}
        flags |= {"out": folder / out}
        words = [str(word) for flag, value in flags.items() for word in (f"--{flag}", value)]
        job.train(options.resolve([*words, *map(str, more), "--quiet"], {}), world)
        return folder / out

    return call


def last_state(out: Path) -> dict:
    """All that the newest checkpoint of a run holds, but the times."""
    path = checkpoint.newest(out)
    found: dict = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and name != "config" and "second" not in name:
            found[name] = np.asarray(item[()]).tobytes()

    with h5py.File(path) as file:
        file.visititems(visit)
        found |= {f"progress {key}": str(value) for key, value in file["progress"].attrs.items()}
    return {"name": Path(path).name} | found


def metrics(out: Path) -> list[dict]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if "second" not in k} for line in lines]


def test_two_epochs_and_three_more_are_five(comm, run):
    straight = run("straight", 5)
    run("resumed", 2)
    resumed = run("resumed", 5, "--train.resume", "auto")
    comm.Barrier()
    assert last_state(straight) == last_state(resumed)
    assert metrics(straight) == metrics(resumed)
    assert [record["epoch"] for record in metrics(resumed)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("step", "batch", "position"),
    [
        (2, BATCH, (0, 3 * BATCH)),  # asked for during the second step, heeded by all in the third
        (3, BATCH, (1, 0)),  # the last step of the epoch, which is closed first
        (5, BATCH, (1, 2 * BATCH)),
        (1, 4096, (2, 0)),  # every epoch is one step
    ],
)
def test_stopped_by_a_signal_and_resumed(comm, run, monkeypatch, step, batch, position):
    more = ("--train.batch_size", batch)
    straight = run("straight", 3, *more, name="fm", optimizer="adagrad")
    calls = []
    with monkeypatch.context() as patch:
        learn_step = Replica.learn

        def learn_and_signal(self, *arguments):
            calls.append(1)
            if len(calls) == step and comm.rank == comm.size - 1:
                os.kill(os.getpid(), signal.SIGUSR1)
            return learn_step(self, *arguments)

        patch.setattr(Replica, "learn", learn_and_signal)
        with pytest.raises(Stopped):
            run("stopped", 3, *more, name="fm", optimizer="adagrad")
    assert comm.allgather(len(calls)) == [step + 1] * comm.size
    with checkpoint.open(checkpoint.newest(straight.parent / "stopped")) as source:
        progress = source.meta.progress
    assert (progress["epoch"], progress["rows_done"]) == position
    comm.Barrier()
    resumed = run("stopped", 3, *more, "--train.resume", "auto", name="fm", optimizer="adagrad")
    comm.Barrier()
    assert last_state(straight) == last_state(resumed)
    assert metrics(straight) == metrics(resumed)


def test_a_run_that_died_before_naming_its_best_model_does_it_on_resuming(comm, run):
    monitor = ("--train.monitor", "train_logloss")  # which falls, so that the last epoch is the best
    out = run("run", 2, *monitor, name="fm", optimizer="adagrad")
    if comm.rank == 0:
        (out / "model.h5").unlink()
    comm.Barrier()
    run("run", 2, *monitor, "--train.resume", "auto", name="fm", optimizer="adagrad")
    comm.Barrier()
    with checkpoint.open(out / "model.h5") as source:
        assert source.meta.progress["epoch"] == 2
    with pytest.raises(UserError, match="has 2 epochs behind it.*--train.epochs more than 2"):
        run("elsewhere", 2, *monitor, "--train.resume", out / "model.h5", name="fm", optimizer="adagrad")


def test_a_checkpoint_moves_between_worlds(comm, folder):
    """Saved by all ranks; loaded by one process, by as many ranks, and by two smaller rings at a time."""
    rows = store_of(comm, folder, ringdata.mixed_rows(N_ROWS))
    data, path = bind(rows, "ffm"), str(folder / "model.h5")
    ring = ring_of(comm, "ffm", "ftrl", rows.keys, BATCH)
    learn(ring, data, 6, BATCH)
    save(ring, path, ModelMeta(), rows.fields)
    half = comm.Split(int(comm.rank >= (comm.size + 1) // 2), comm.rank)
    stores = {
        "one process": replica_of("ffm", "ftrl", rows.keys, BATCH),
        "as many": ring_of(comm, "ffm", "ftrl", rows.keys, BATCH),
        "fewer": ring_of(half, "ffm", "ftrl", rows.keys, BATCH),
    }
    with checkpoint.open(path) as source:
        assert np.array_equal(source.keys, rows.keys)
        for store in stores.values():
            load(store.shard, source)
    state = state_of(ring)
    for store in stores.values():
        assert np.array_equal(weights_of(store), weights_of(ring)) and np.array_equal(state_of(store), state)
        assert np.array_equal(store.shard.bias, ring.shard.bias)
    for store in (ring, *stores.values()):
        learn(store, data, 4, BATCH)
    assert np.array_equal(weights_of(stores["as many"]), weights_of(ring))
    assert all_equal(half, stores["fewer"].shard.rows)
    for name in ("one process", "fewer"):
        np.testing.assert_allclose(weights_of(stores[name]), weights_of(ring), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state_of(stores[name]), state_of(ring), rtol=1e-5, atol=1e-6)
    half.Free()


def test_predicting_the_validation_rows_gives_the_best_loss_again(comm, world, run):
    out = run("run", 6, "--optimizer.lr", 3, name="fm", optimizer="adagrad")  # soon it overfits
    losses = [record["valid_logloss"] for record in metrics(out)]
    assert min(losses) < losses[-1]
    valid, written = out.parent / "valid.ffm", out / "p.txt"
    predict(world, str(out / "model.h5"), [str(valid)], str(written), [], raw=False)
    comm.Barrier()
    p = np.loadtxt(written, np.float64)
    y = np.array([int(line[0]) for line in valid.read_text().splitlines()])
    assert -np.log(np.where(y, p, 1 - p)).mean() == pytest.approx(min(losses), abs=1e-6)
