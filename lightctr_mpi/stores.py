"""Stores: where parameters live and how a step moves them. The training loop knows nothing else of the mode.

`Sequential` walks its rows one by one on one rank (libffm's way, `sync = none`); `Replica` takes mini-batches
on one rank; `ring.store.Ring` takes the same mini-batches on many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .bound import BoundRows
from .kernels import losses, sparse
from .shard import Shard

SWEEP_ROWS = 16384  # rows between two looks at the clock, the signals and the divergence guard


@dataclass
class StepSums:
    """Sums over a step, all ranks together: weighted losses before the update, sample weights, rows."""

    loss: float = 0.0
    weight: float = 0.0
    rows: int = 0
    stop: bool = False


class Store(Protocol):
    """What the training loop asks of the place where parameters live.

    `step_rows` is the number of rows of one step over all ranks. `learn` moves the parameters by the given
    global rows and returns sums over all ranks; every rank must call it for every step. `part` is this rank's
    share of the rows of an evaluation.
    """

    shard: Shard
    comm: Any
    step_rows: int
    bounds: np.ndarray  # int64[owners + 1]: rows of the table whose state each rank owns

    def part(self, n_rows: int) -> tuple[int, int]: ...

    def learn(self, data: BoundRows, rows: np.ndarray, stop: bool) -> StepSums: ...


class Sequential:
    """One rank, one row after the other, weights and state moved in place by the model's fused sweep."""

    comm = None
    rank, size = 0, 1

    def __init__(self, shard: Shard):
        self.shard, self.step_rows = shard, SWEEP_ROWS
        self.bounds = np.array([0, len(shard.keys)], np.int64)
        self._sums = np.zeros(2, np.float64)

    def part(self, n_rows: int) -> tuple[int, int]:
        return 0, n_rows

    def learn(self, data: BoundRows, rows: np.ndarray, stop: bool) -> StepSums:
        shard = self.shard
        block, order = data.window(rows)
        self._sums[:] = 0.0
        shard.model.sweep(block, order, shard.rows, block.ids, shard.bias, shard.optimizer, self._sums)
        return StepSums(float(self._sums[0]), float(self._sums[1]), len(rows), stop)


@dataclass
class Gradient:
    """A rank's gradient of a step: sums over its rows, by unique key."""

    ids: np.ndarray  # int32[u] ascending rows of the table
    rows: np.ndarray  # float32[u, width]
    dbias: float
    sums: StepSums


class Replica:
    """Mini-batches on one rank that holds the whole model."""

    comm: Any = None
    rank, size = 0, 1

    def __init__(self, shard: Shard, loss: str, batch_size: int):
        self.shard, self.loss, self.step_rows = shard, loss, batch_size
        self.bounds = np.array([0, len(shard.keys)], np.int64)
        self._scratch = np.full(len(shard.keys), -1, np.int32)
        self._grad = np.zeros((0, shard.model.width), np.float32)
        self._l2, self._l1 = shard.optimizer.penalty

    def part(self, n_rows: int) -> tuple[int, int]:
        return self.rank * n_rows // self.size, (self.rank + 1) * n_rows // self.size

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
        logit = np.empty(block.n_rows, np.float32)
        dlogit = np.empty(block.n_rows, np.float32)
        dbias = np.zeros(1, np.float64)
        model.forward(block, shard.rows, block.ids, shard.bias, logit)
        loss, weight = losses.evaluate(self.loss, logit, block.labels, block.weights, dlogit)
        model.backward(block, shard.rows, block.ids, local, dlogit, self._l2, self._l1, grad, dbias)
        return Gradient(ids, grad, float(dbias[0]), StepSums(loss, weight, block.n_rows))

    def push(self, gradient: Gradient) -> StepSums:
        self.shard.apply(gradient.ids, gradient.rows, gradient.dbias, gradient.sums.weight)
        return gradient.sums

    def _buffer(self, n: int) -> np.ndarray:
        if n > len(self._grad):
            self._grad = np.empty((n + n // 4, self.shard.model.width), np.float32)
        grad = self._grad[:n]
        grad.fill(0.0)
        return grad
