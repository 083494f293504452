"""Shard: the rows of parameters this rank keeps, with the optimizer state of those it owns.

Weights of all keys are here (`rows`); the state belongs to the owner of a key. On one rank both lie side by
side in one array, so that a sweep touches one stretch of memory per feature; in a ring the state is an array
of its own, for the owned range of keys only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .kernels import rows as rows_kernels
from .kernels.memory import alloc_rows, row_stride
from .models.base import Model
from .optim.base import Optimizer


def memory_of(model: Model, optimizer: Optimizer, n_keys: int, owners: int = 1) -> int:
    """Bytes that a Shard takes, to be told before they are taken; of several owners, the largest."""
    width, slots = model.width, optimizer.slots
    if owners == 1:
        return 4 * n_keys * stride_of(model, optimizer)
    return 4 * width * (n_keys + slots * -(-n_keys // owners))


def stride_of(model: Model, optimizer: Optimizer) -> int:
    """Floats from one row to the next where weights and state lie side by side."""
    return row_stride(model.row_columns(optimizer.slots))


class Shard:
    """Parameters of one model on one rank.

    Args:
        model, optimizer: what is learned and how it moves.
        keys: uint64[n] sorted original keys; row i of the table belongs to keys[i].
        seed: seed of the initial values; None leaves what stands in `arrays`.
        owned: (first, end) range of rows whose state is kept here; the default owns all, side by side.
        arrays: rows and bias to use in place of new ones, by a shard that owns all (of zeros).
        spare: rows of no key that a shard that owns all has at its end, for copies of others (hot.py).

    Attributes:
        rows: float32[n, stride]; columns [0, model.width) are weights.
        table: float32[n + spare, stride]: `rows` and the spare ones.
        state: float32[owned, ...]; columns [state_col, state_col + slots * width) are the optimizer's.
        bias: float32[1 + slots]: the global bias and its optimizer state, the same on every rank.
    """

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer,
        keys: np.ndarray,
        seed: int | None,
        owned: tuple[int, int] | None = None,
        arrays: tuple[np.ndarray, np.ndarray] | None = None,
        spare: int = 0,
    ):
        self.model, self.optimizer, self.keys = model, optimizer, keys
        width, slots = model.width, optimizer.slots
        self.first, self.end = owned if owned is not None else (0, len(keys))
        if owned is None:
            stride = stride_of(model, optimizer)
            self.table = alloc_rows(len(keys) + spare, stride) if arrays is None else arrays[0]
            self.rows = self.table[: len(keys)]
            self.state, self.state_col = self.rows, width
        else:
            self.table = self.rows = alloc_rows(len(keys), width)
            self.state, self.state_col = alloc_rows(self.end - self.first, slots * width), 0
        self.bias = np.zeros(1 + slots, np.float32) if arrays is None else arrays[1]
        if seed is None:
            return
        model.init_rows(self.rows, keys, seed)
        optimizer.init_state(self.rows_of_state(0, self.end - self.first), self.weights(self.first, self.end))
        optimizer.init_state(self.bias[None, 1:], self.bias[None, :1])

    def starter(self, seed: int | None) -> Callable[[np.ndarray], np.ndarray]:
        """A function from any keys (uint64[m]) to their starting weights, laid out as `rows`."""
        return lambda keys: type(self)(self.model, self.optimizer, keys, seed).rows

    def weights(self, a: int, b: int) -> np.ndarray:
        """float32[b - a, width] view of the weights of rows a to b."""
        return self.rows[a:b, : self.model.width]

    def rows_of_state(self, a: int, b: int) -> np.ndarray:
        """float32[b - a, slots * width] view of the state; a and b count from the first owned row."""
        return self.state[a:b, self.state_col : self.state_col + self.optimizer.slots * self.model.width]

    def put(self, rows: np.ndarray, columns: slice, values: np.ndarray, slot: int | None = None) -> None:
        """Set columns of the weights of rows (int64[m]), or of slot `slot` of the state of the owned ones.

        values: float32[m, columns].
        """
        if slot is None:
            self.rows[rows, columns] = values
            return
        owned = (rows >= self.first) & (rows < self.end)
        first = self.state_col + slot * self.model.width
        place = slice(first + columns.start, first + columns.stop)
        self.state[rows[owned] - self.first, place] = values[owned]

    def apply(self, ids: np.ndarray, grads: np.ndarray, dbias: float, samples: float) -> None:
        """Move owned rows `ids` (int32[u]) and the bias by their summed gradients (float32[u, width])."""
        scale = self.optimizer.scale(samples)  # the one place where a batch is averaged
        state_ids = ids if self.first == 0 else ids - np.int32(self.first)
        state = self.state if self.optimizer.slots else self.rows
        self.optimizer.apply_rows(
            self.rows, ids, state, state_ids, self.state_col, self.model.width, grads, scale
        )
        if self.model.bias:
            self.optimizer.apply_dense(self.bias[:1], self.bias[1:], np.array([dbias], np.float32), scale)

    def all_finite(self, a: int = 0, b: int | None = None) -> bool:
        """Whether the bias and every weight, or those of rows a to b, are finite numbers."""
        finite = rows_kernels.all_finite(self.rows[a:b], self.model.width)
        return bool(np.isfinite(self.bias).all()) and finite
