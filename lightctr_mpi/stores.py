"""Stores: where parameters live and how a step moves them. The training loop knows nothing else of the mode.

`Sequential` walks its rows one by one on one rank (libffm's way, `sync = none`), `ring.node.NodeReplica` on
all ranks of a node; `Replica` takes mini-batches on one rank; `ring.store.Ring` takes the same on many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from . import modelfile, unseen
from .block import Block
from .bound import BoundRows
from .checkpoint import Checkpoint, ModelMeta
from .hot import HotRows
from .kernels import sparse
from .metrics import Tally
from .models.base import Model
from .shard import Shard

SWEEP_ROWS = 16384  # rows between two looks at the clock, the signals and the divergence guard
EVALUATION_ROWS = 8192


@dataclass
class StepSums:
    """Sums over a step, all ranks together: weighted losses before the update, sample weights, rows."""

    loss: float = 0.0
    weight: float = 0.0
    rows: int = 0
    stop: bool = False

    def add(self, other: StepSums) -> None:
        self.loss += other.loss
        self.weight += other.weight
        self.rows += other.rows
        self.stop = self.stop or other.stop


class Place(Protocol):
    """Where parameters live, before the training begins."""

    def run(self, work: Callable[[Store], None], rows: Mapping[str, BoundRows]) -> None:
        """Call `work` on the ranks that conduct the training; the others serve them until it returns.

        Called by all ranks; raises on all of them what `work` raises.

        Args:
            work: is given the store to train with.
            rows: those of the roles train, valid and test.
        """


class Store(Protocol):
    """What a training asks of the parameters. The methods are called by all ranks of `comm`.

    Attributes:
        comm: communicator of the ranks that conduct the training, None for one.
        step_rows: rows of one step, all ranks together.
    """

    comm: Any
    step_rows: int

    def learn(self, data: BoundRows, rows: np.ndarray, stop: bool) -> StepSums:
        """Move the parameters by these rows (int64[m], global numbers).

        Returns sums over all ranks of what was learned since the last call: of this very step, but for stores
        that let steps overlap.
        """

    def finish(self) -> StepSums:
        """Complete all steps that were begun; returns their sums. Before evaluating and saving."""

    def evaluate(self, data: BoundRows, loss: str) -> dict[str, Any]:
        """Metrics of all rows (`metrics.Tally.result`)."""

    def all_finite(self) -> bool:
        """Whether every weight is a finite number."""

    def end_epoch(self, epoch: int) -> dict[str, Any]:
        """An epoch (from 1) has been learned and finished; returns what to add to its record of metrics."""

    def save(self, path: str, meta: ModelMeta, field_keys: np.ndarray | None) -> None:
        """Write the model with the optimizer's state. Raises UserError when it cannot be written."""

    def load(self, source: Checkpoint, *, with_state: bool = True) -> None:
        """Take over a model; keys that the file lacks keep their initial values."""


class Local:
    """What stores have in common where every rank holds all weights.

    Attributes:
        shard: the weights of all keys and the optimizer's state of the owned ones.
        bounds: int64[owners + 1]: rows of the table whose state each rank owns.
    """

    comm: Any = None
    rank, size = 0, 1
    shard: Shard
    bounds: np.ndarray

    def run(self, work: Callable[[Store], None], rows: Mapping[str, BoundRows]) -> None:
        work(self)  # type: ignore[arg-type]  # the methods that are missing here are the subclasses'

    def finish(self) -> StepSums:
        return StepSums()

    def all_finite(self) -> bool:
        return self.shard.all_finite()

    def end_epoch(self, epoch: int) -> dict[str, Any]:
        return {}

    def part(self, n_rows: int) -> tuple[int, int]:
        """This rank's share of n rows: (first, end)."""
        return self.rank * n_rows // self.size, (self.rank + 1) * n_rows // self.size

    def evaluate(self, data: BoundRows, loss: str) -> dict[str, Any]:
        shard, tally = self.shard, Tally(loss)
        start = shard.starter(data.start)
        a, b = self.part(data.n_rows)
        for first in range(a, b, EVALUATION_ROWS):
            block = data.slice(first, min(first + EVALUATION_ROWS, b))
            logit = np.empty(block.n_rows, np.float32)
            unseen.forward(shard.model, block, shard.rows, block.ids, shard.bias, logit, start)
            tally.add(logit, block.labels, block.weights, block.groups)
        tally.merge(self.comm)
        return tally.result()

    def save(self, path: str, meta: ModelMeta, field_keys: np.ndarray | None) -> None:
        modelfile.save(self, path, meta, field_keys)

    def load(self, source: Checkpoint, *, with_state: bool = True) -> None:
        modelfile.load(self.shard, source, with_state=with_state)


class Sequential(Local):
    """One rank, one row after the other, weights and state moved in place by the model's fused sweep.

    With several threads each walks a part of the rows and all move the one copy of the model, without locks
    (Hogwild: Niu, Recht, Re, Wright 2011): rows share few features, so that a lost update is rare. Of the
    features that many rows share each thread has a copy, if the shard has spare rows for them (hot.py). The
    result then depends on the course of time; with one thread equal runs give equal bits.
    """

    def __init__(self, shard: Shard, threads: int = 1):
        self.shard, self.step_rows = shard, SWEEP_ROWS * threads
        self.bounds = np.array([0, len(shard.keys)], np.int64)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._sums = np.zeros((threads, 8), np.float64)  # a cache line for each thread
        self._with_copies = threads > 1 and len(shard.table) > len(shard.keys)
        self._hot: HotRows | None = None

    def learn(self, data: BoundRows, rows: np.ndarray, stop: bool) -> StepSums:
        block, order = data.window(rows)
        parts = np.array_split(order, self._threads)
        self._sums[:] = 0.0
        if self._with_copies and self._hot is None:
            self._hot = HotRows(self.shard, self._threads, block, order)

        def sweep(i: int) -> None:
            shard, sums = self.shard, self._sums[i, :2]
            if self._hot is not None:
                self._hot.learn(i, block, parts[i], sums)
                return
            shard.model.sweep(block, parts[i], shard.rows, block.ids, shard.bias, shard.optimizer, sums)

        if self._pool is None:
            sweep(0)
        else:
            list(self._pool.map(sweep, range(self._threads)))
        loss, weight = self._sums[:, :2].sum(axis=0).tolist()
        return StepSums(loss, weight, len(rows), stop)

    def load(self, source: Checkpoint, *, with_state: bool = True) -> None:
        super().load(source, with_state=with_state)
        self._hot = None  # copies of what was there before


def add_gradient(
    model: Model,
    penalty: tuple[float, float],
    block: Block,
    rows: np.ndarray,
    ids: np.ndarray,
    local: np.ndarray,
    bias: np.ndarray,
    grad: np.ndarray,
) -> tuple[float, StepSums]:
    """Gradient of the sum of the regularised losses of a block, and the losses themselves.

    Args:
        penalty: (l2, l1); rows, ids, local, bias, grad as in Model.backward: grad is added to.

    Returns:
        The gradient of the bias, and the sums over the block.
    """
    total, weight, dbias = model.gradient(block, rows, ids, local, bias, *penalty, grad)
    return dbias, StepSums(total, weight, block.n_rows)


@dataclass
class Gradient:
    """A rank's gradient of a step: sums over its rows, by unique key."""

    ids: np.ndarray  # int32[u] ascending rows of the table
    rows: np.ndarray  # float32[u, width]
    dbias: float
    sums: StepSums


class Replica(Local):
    """Mini-batches on one rank that holds the whole model."""

    def __init__(self, shard: Shard, batch_size: int):
        self.shard, self.step_rows = shard, batch_size
        self.bounds = np.array([0, len(shard.keys)], np.int64)
        self._scratch = np.full(len(shard.keys), -1, np.int32)
        self._grad = np.zeros((0, shard.model.width), np.float32)

    def learn(self, data: BoundRows, rows: np.ndarray, stop: bool) -> StepSums:
        a, b = self.part(len(rows))
        gradient = self.gradient(data, rows[a:b])
        gradient.sums.stop = stop
        return self.push(gradient)

    def gradient(self, data: BoundRows, rows: np.ndarray) -> Gradient:
        """Gradient of the sum of the regularised losses of `rows`, with the losses themselves."""
        shard, model = self.shard, self.shard.model
        block = data.block(rows)
        ids, local = sparse.localize(block.ids, self._scratch)
        grad = self._buffer(len(ids))
        penalty = shard.optimizer.penalty
        dbias, sums = add_gradient(model, penalty, block, shard.rows, block.ids, local, shard.bias, grad)
        return Gradient(ids, grad, dbias, sums)

    def push(self, gradient: Gradient) -> StepSums:
        self.shard.apply(gradient.ids, gradient.rows, gradient.dbias, gradient.sums.weight)
        return gradient.sums

    def _buffer(self, n: int) -> np.ndarray:
        if n > len(self._grad):
            self._grad = np.empty((n + n // 4, self.shard.model.width), np.float32)
        grad = self._grad[:n]
        grad.fill(0.0)
        return grad
