"""Parameter servers for tests: runs of any world, what they leave in files, one process to compare with."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ringdata import OPTIMIZERS, SEED, K, bind, model_of, replica_of, store_of

from lightctr_mpi import checkpoint, modelfile
from lightctr_mpi.bound import BoundRows
from lightctr_mpi.checkpoint import ModelMeta
from lightctr_mpi.config import ModelOptions, PsOptions, Run, TrainOptions
from lightctr_mpi.errors import UserError
from lightctr_mpi.mpi import World, once_per_node
from lightctr_mpi.ps.roles import split
from lightctr_mpi.ps.store import ParameterServer
from lightctr_mpi.ps.trace import EVENT, PULLED, PUSHED
from lightctr_mpi.stores import Replica, Store
from lightctr_mpi.warm import warm_training

BATCH = 16


def shared_folder(comm: Any) -> Iterator[Path]:
    """For a fixture of wider scope: a folder that all ranks know."""
    path = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    yield Path(path)
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(path)


_compiled: set[tuple] = set()  # what the kernels were compiled for


def gather(comm: Any) -> None:
    """Wait for all without using the core, which rank 0 may need for comparing."""
    barrier = comm.Ibarrier()
    while not barrier.Test():
        time.sleep(1e-3)


def run_of(name: str, optimizer: str, batch: int, epochs: int | None = None, **ps: Any) -> Run:
    model = ModelOptions(name=name, k=0 if name == "lr" else K, init_scale=0.3)
    train = TrainOptions(
        sync="exact",
        batch_size=batch,
        epochs=epochs,
        shuffle=False,
        patience=2,
        monitor="valid_logloss",
    )
    return Run("ps", SEED, model=model, optimizer=OPTIMIZERS[optimizer], train=train, ps=PsOptions(**ps))


def fits(comm: Any, servers: int) -> bool:
    """Whether the world has a Master, so many servers and a worker; if not, that is refused in one line."""
    if comm.size >= servers + 2:
        return True
    with pytest.raises(UserError, match=rf"^mode ps with ps.servers = {servers} needs {servers + 2} ranks"):
        split(comm, "here", servers)
    return False


def telling_rows(n: int, seed: int) -> str:
    """libffm rows of four fields of 25 keys each; the keys of two fields tell much about the label."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 25, (n, 4))
    labels = rng.random(n) < 1 / (1 + np.exp(1.5 * (1 - 2 * (keys[:, 0] < 9)) + (1 - 2 * (keys[:, 1] < 12))))
    return "".join(
        f"{int(label)} " + " ".join(f"{f}:{100 * f + key}:1" for f, key in enumerate(row)) + "\n"
        for label, row in zip(labels, keys, strict=True)
    )


@dataclass
class Bench:
    """A place for runs on the same rows.

    Attributes:
        data: the training rows, bound to all keys of the model.
        more: other rows by role.
        fields: of the model, if it knows any.
        comm: who takes part; all ranks, unless set to another communicator.
        stop: as of ParameterServer.
        notes: what a person would have been told, at the Master; `heard` is called with each.
    """

    world: World
    folder: Path
    data: BoundRows
    more: dict[str, BoundRows]
    fields: np.ndarray | None = None
    comm: Any = None
    stop: Callable[[], bool] = lambda: False
    heard: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self.comm = self.world.comm if self.comm is None else self.comm
        self.notes: list[str] = []

    @property
    def keys(self) -> np.ndarray:
        return self.data.store.keys

    def run(self, run: Run, work: Callable[[Store], Any]) -> Any:
        """What `work`, called by the Master, returned, on all ranks."""
        gather(self.comm)
        parts = model_of(run.model.name, run.optimizer.name)
        how = (run.model.name, run.optimizer.name, run.ps)
        if self.comm is self.world.comm and how not in _compiled:
            once_per_node(self.world, lambda: warm_training(*parts, run))
            _compiled.add(how)
        place = ParameterServer(
            self.comm,
            self.world.host,
            self.world.status,
            *parts,
            self.keys,
            run,
            self.note,
            self.stop,
            self.folder,
        )
        results: list[Any] = []
        place.run(lambda store: results.append(work(store)), {"train": self.data, **self.more})
        return self.comm.bcast(results[0] if results else None)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.heard(text)

    def save(self, store: Store, name: str = "model.h5") -> str:
        path = str(self.folder / name)
        store.save(path, ModelMeta(), self.fields)
        return path

    def traces(self, servers: int) -> list[np.ndarray]:
        """EVENT[n] of each server, as written at the last `save`."""
        found = [np.load(self.folder / f"ps-trace-{number}.npy") for number in range(servers)]
        assert all(trace.dtype == EVENT and len(trace) for trace in found)
        return found


def bench(world: World, folder: Path, text: str, name: str, weighted: bool = False, **more: str) -> Bench:
    """Rows of `text` and of other roles, bound to the keys of `text`."""
    gather(world.comm)
    rows = store_of(world.comm, folder, text, weighted)
    data = bind(rows, name)
    fields = rows.fields if name == "ffm" else None
    others = {
        role: BoundRows(store_of(world.comm, folder, other, weighted), rows.keys, fields, norm=True)
        for role, other in more.items()
    }
    return Bench(world, folder, data, others, fields)


def steps_of(n_rows: int, batch: int, steps: int) -> Iterator[np.ndarray]:
    """Rows of each step: batches as they stand, from the start again at the end."""
    at = 0
    for _ in range(steps):
        yield np.arange(at, min(at + batch, n_rows), dtype=np.int64)
        at = 0 if at + batch >= n_rows else at + batch


def learn(store: Store, data: BoundRows, steps: list[np.ndarray]) -> tuple[float, float, int]:
    """Take steps and finish; loss, weight and rows of all of them."""
    total = store.learn(data, steps[0], False)
    for rows in steps[1:]:
        total.add(store.learn(data, rows, False))
    total.add(store.finish())
    return total.loss, total.weight, total.rows


def arrays_of(path: str) -> dict[str, np.ndarray]:
    """Keys, parameters and state in a model file, in ascending order of the keys."""
    with checkpoint.open(path) as source:
        order = slice(None) if source.order is None else source.order
        return {
            name: source.read(name)[order] if part.by_key else source.read(name)
            for name, part in source.parts.items()
        }


def leftovers(folder: Path) -> list[str]:
    """Files under temporary names."""
    return [path.name for path in folder.rglob("*.partial")]


def arrays_in(replica: Replica, fields: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The same of one process."""
    shard = replica.shard
    n = len(shard.keys)
    found = {"features/keys": shard.keys}
    found |= modelfile.named(shard.model, shard.optimizer, shard.weights(0, n), shard.rows_of_state(0, n))
    if shard.model.bias:
        found["parameters/bias"] = shard.bias[:1]
        for i, slot in enumerate(shard.optimizer.slot_names):
            found[f"optimizer/{slot}/bias"] = shard.bias[1 + i : 2 + i]
    return found | ({} if fields is None else {"fields/keys": fields})


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], rtol=1e-5, atol=1e-6) -> None:
    """Equal keys, all else within the tolerance."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol, atol, err_msg=name)
        assert name not in ("features/keys", "fields/keys") or np.array_equal(found[name], array)


def one_process(b: Bench, run: Run, steps: list[np.ndarray]) -> tuple[Replica, tuple]:
    """A Replica after these steps, and their sums."""
    assert run.train.batch_size is not None
    replica = replica_of(run.model.name, run.optimizer.name, b.keys, run.train.batch_size)
    return replica, learn(replica, b.data, steps)


# --- traces ---


def lags(trace: np.ndarray, shares: list[int]) -> list[int]:
    """Of each pull of a server, in order: its clock minus the number of clocks all of whose shares the server
    had taken in before, counted from the order of events alone.

    Args:
        trace: EVENT[n]; shares: how many shares each clock has.
    """
    left = [set(range(n)) for n in shares]
    complete, found = 0, []
    for event in trace:
        if event["kind"] == PUSHED:
            left[event["clock"]].remove(int(event["share"]))  # KeyError: pushed twice
            while complete < len(left) and not left[complete]:
                complete += 1
        else:
            assert event["kind"] == PULLED
            found.append(int(event["clock"]) - complete)
    assert complete == len(shares), "a share was never pushed"
    return found


# --- trouble ---


@contextlib.contextmanager
def instead(owner: Any, name: str, wrap: Callable[[Any], Any], here: bool = True) -> Iterator[None]:
    """Put `wrap(original)` in the place of an attribute, on this rank if it is `here`."""
    with pytest.MonkeyPatch.context() as patch:
        if here:
            patch.setattr(owner, name, wrap(getattr(owner, name)))
        yield


def at_calls(actions: dict[int, Callable[[], None]], always: Callable[[], None] = lambda: None):
    """For `instead`: after the original call `always`, and at calls of these numbers (from 1) the actions."""

    def wrap(original):
        count = 0

        def call(*arguments, **options):
            nonlocal count
            result = original(*arguments, **options)
            count += 1
            always()
            actions.get(count, lambda: None)()
            return result

        return call

    return wrap


def wait_for(come: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Look until it has come, or for so long; whether it has."""
    end = time.monotonic() + seconds
    while not come():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine was stopped by SIGSTOP."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wake(pid: int, pause: Callable[[], Any]) -> threading.Thread:
    """Started: when a process of this machine has been stopped, waits and lets it go on."""

    def work() -> None:
        wait_for(lambda: is_stopped(pid))
        pause()
        os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
