"""Row stores, models and runs for tests of the ring: small, made by all ranks together, equal on each."""

from __future__ import annotations

import functools
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from lightctr_mpi import models, optim
from lightctr_mpi.bound import BoundRows
from lightctr_mpi.config import DataOptions, ModelOptions, OptimizerOptions, RingOptions, Run, TrainOptions
from lightctr_mpi.mpi import once_per_node, world
from lightctr_mpi.readers.libffm import LibffmReader
from lightctr_mpi.readers.source import Source
from lightctr_mpi.ring.store import Ring
from lightctr_mpi.rowstore import RowStore, convert
from lightctr_mpi.shard import Shard
from lightctr_mpi.stores import Replica, Store
from lightctr_mpi.warm import warm_reading, warm_training

SEED = 3
K = 3
FIELDS = 5
# lr and penalties are large, so that a mistake in either shows after a few steps
OPTIMIZERS = {
    "sgd": OptimizerOptions(name="sgd", lr=0.5, l2=1e-2, l1=1e-3),
    "adagrad": OptimizerOptions(name="adagrad", lr=0.2, l2=1e-2, l1=1e-3),
    "ftrl": OptimizerOptions(name="ftrl", lr=0.3, l2=1e-2, l1=1e-2),
}


def mixed_rows(n: int, seed: int = 0) -> str:
    """libffm rows: several values in some fields, fields left out, 64-bit ids, some keys in most rows."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        entries = []
        for field in range(FIELDS):
            for _ in range(int(rng.integers(0, 4)) if field == 0 else int(rng.random() < 0.9)):
                key = int(rng.integers(0, 3 if field == 1 else 40)) + (field << 33)
                entries.append(f"{field}:{key}:{rng.integers(1, 9) / 4}")
        lines.append(" ".join([str(int(rng.random() < 0.4)), *entries]))
    return "".join(line + "\n" for line in lines)


def put(comm, path: Path, text: str | bytes) -> Path:
    """A file of this content that all ranks see."""
    if comm.rank == 0:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    comm.Barrier()
    return path


class Weighted(LibffmReader):
    """A libffm reader that gives every row a sample weight and a group, made from its label and length."""

    name = "weighted"

    def parse(self, data, where):
        block = super().parse(data, where)
        lengths = np.diff(block.indptr)
        block.weights = (0.5 + lengths % 3 + block.labels).astype(np.float32)
        block.groups = (lengths % 4).astype(np.int64)
        return block


_made: dict[Path, RowStore] = {}


def store_of(comm, folder: Path, text: str, weighted: bool = False) -> RowStore:
    """The row store of `text`; called by all ranks, and made once for equal texts."""
    name = folder / f"{zlib.crc32(text.encode())}{'w' * weighted}"
    if name not in _made:
        plain = LibffmReader(DataOptions(), "logistic")
        reader = Weighted(DataOptions(), "logistic") if weighted else plain
        once_per_node(world(), lambda: warm_reading(plain))
        put(comm, name, text)
        convert(comm, Source([str(name)], unit_bytes=100), reader, name.with_suffix(".h5"))
        _made[name] = RowStore.open(name.with_suffix(".h5"))
    return _made[name]


@functools.cache
def model_of(name: str, optimizer: str):
    """(model, optimizer), with the kernels compiled by one rank of the node."""
    options = ModelOptions(name=name, k=0 if name == "lr" else K, init_scale=0.3)
    built = models.build(options, FIELDS, "logistic")
    moves = optim.build(OPTIMIZERS[optimizer], name)
    once_per_node(world(), lambda: warm_training(built, moves, Run(train=TrainOptions(sync="exact"))))
    return built, moves


def ring_of(
    comm, name: str, optimizer: str, keys: np.ndarray, batch: int, dense_above: float = 0.25, **options: Any
) -> Ring:
    chosen = RingOptions(dense_above=dense_above, **options)
    return Ring(comm, *model_of(name, optimizer), keys, SEED, batch, chosen)


def replica_of(name: str, optimizer: str, keys: np.ndarray, batch: int) -> Replica:
    """One process that holds everything: what a ring has to equal."""
    return Replica(Shard(*model_of(name, optimizer), keys, SEED), batch)


def bind(rows: RowStore, name: str) -> BoundRows:
    return BoundRows(rows, rows.keys, rows.fields if name == "ffm" else None, norm=True)


def learn(store: Store, data: BoundRows, steps: int, batch: int, after=lambda: None) -> list:
    """Steps over the rows as they stand, again from the start at the end; returns (loss, weight, rows) of
    each."""
    done, at = [], 0
    for _ in range(steps):
        rows = np.arange(at, min(at + batch, data.n_rows), dtype=np.int64)
        sums = store.learn(data, rows, False)
        done.append((sums.loss, sums.weight, sums.rows))
        at = 0 if rows[-1] + 1 == data.n_rows else at + batch
        after()
    return done


def state_of(store: Store) -> np.ndarray:
    """float32[n_keys, slots * width]: the optimizer's state, put together from the owners."""
    shard = store.shard
    own = np.ascontiguousarray(shard.rows_of_state(0, shard.end - shard.first))
    return own if store.comm is None else np.concatenate(store.comm.allgather(own))


def weights_of(store: Store) -> np.ndarray:
    return store.shard.weights(0, len(store.shard.keys))


def all_equal(comm, *arrays: np.ndarray) -> bool:
    """Whether every rank has the same bits."""
    mine = np.array([zlib.crc32(np.ascontiguousarray(array)) for array in arrays], np.uint32)
    everyone = np.empty((comm.size, len(mine)), np.uint32)
    comm.Allgather(mine, everyone)
    return bool((everyone == mine).all())
