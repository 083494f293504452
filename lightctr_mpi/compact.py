"""A shard of FFM that takes less memory: one sum of squares per block, weights of 16 bits if asked for.

It learns row by row only. To everyone else its rows look like those of a Shard: files hold float32 weights,
and a block's sum of squares once for each of its factors, so that any other run can continue from them.
"""

from __future__ import annotations

import numpy as np

from . import defaults, models
from .config import ModelOptions, OptimizerOptions
from .errors import UserError
from .hot import slots_of
from .kernels import ffmcompact
from .kernels.blocks import BFLOAT16, FLOAT16, KINDS
from .kernels.memory import alloc_rows
from .kernels.simd import round_up
from .models.base import Model
from .models.ffm import FieldAwareFactorizationMachine
from .optim.base import Optimizer
from .shard import Shard, stride_of

CHUNK_BYTES = 8 << 20


class CompactFFM(FieldAwareFactorizationMachine):
    """FFM whose `forward` and `sweep` work on the rows of a CompactShard; batches it does not know.

    Raises UserError for a k that is neither 2, 4 nor a multiple of 8.
    """

    def __init__(self, options, n_fields, loss):
        super().__init__(options, n_fields, loss)
        if self.k not in (2, 4) and self.k % 8:
            raise UserError(f"optimizer.sums = block needs model.k = 2, 4 or a multiple of 8, not {self.k}")
        self.kind = KINDS[options.storage]
        self.sum_columns = round_up(n_fields)
        numbers = self.sum_columns * self.k  # two of them to a column if they have 16 bits
        self.line = self.sum_columns + (numbers // 2 if self.kind in (FLOAT16, BFLOAT16) else numbers)
        share = np.float32(options.share)
        self._places = (n_fields, self.k, int(self.linear), share, self.sum_columns, self.line)

    def row_columns(self, slots: int) -> int:
        return self.line + 2 * int(self.linear)

    def _forward(self, csr, rows, b0, logit):
        ffmcompact.make_forward(self.kind, self.k)(csr, rows, self._places, b0, logit)

    def _sweep(self, csr, target, order, rows, bias, optimizer, penalty, sums):
        _, loss, use_l1, use_bias = self._sweep_codes(optimizer)
        kernel = ffmcompact.make_sweep(loss, use_l1, use_bias, int(self.options.share > 0), self.kind, self.k)
        return kernel, (csr, target, order, rows, self._places, bias, optimizer.hyper, penalty, sums)


class CompactShard(Shard):
    """See the head of the file; `rows` are laid out as kernels/ffmcompact.py wants them.

    Arguments as for Shard. `weights` and `rows_of_state` give copies, `put` takes values in.
    """

    model: CompactFFM

    def __init__(
        self,
        model: CompactFFM,
        optimizer: Optimizer,
        keys: np.ndarray,
        seed: int | None,
        arrays: tuple[np.ndarray, np.ndarray] | None = None,
    ):
        self.model, self.optimizer, self.keys = model, optimizer, keys
        self.first, self.end = 0, len(keys)
        self.rows = alloc_rows(len(keys), stride_of(model, optimizer)) if arrays is None else arrays[0]
        self.table, self.state, self.state_col = self.rows, self.rows, 0
        self.bias = np.zeros(1 + optimizer.slots, np.float32) if arrays is None else arrays[1]
        if seed is not None or arrays is None:
            self.rows[:, model.n_fields : model.sum_columns] = 1.0  # of no field; roots are taken of them
        if seed is None:
            return
        optimizer.init_state(self.bias[None, 1:], self.bias[None, :1])
        step = max(1, CHUNK_BYTES // (4 * model.width))
        for a in range(0, len(keys), step):
            b = min(a + step, len(keys))
            start = np.zeros((b - a, model.width), np.float32)
            model.init_rows(start, keys[a:b], seed)
            for _, columns, _ in model.parts():
                self.put(np.arange(a, b), columns, start[:, columns])
        optimizer.init_state(self.rows[:, : model.n_fields])
        if model.linear:
            optimizer.init_state(self.rows[:, model.line + 1 : model.line + 2])

    def _numbers(self) -> np.ndarray:
        """[n, n_fields * k] view of the stored factors."""
        model = self.model
        first, count = model.sum_columns, model.n_fields * model.k
        if model.kind not in (FLOAT16, BFLOAT16):
            return self.rows[:, first : first + count]
        halves = self.rows.view(np.float16 if model.kind == FLOAT16 else np.uint16)
        return halves[:, 2 * first : 2 * first + count]

    def weights(self, a: int, b: int) -> np.ndarray:
        """float32[b - a, width] copy of the weights of rows a to b."""
        model, found = self.model, np.zeros((b - a, self.model.width), np.float32)
        numbers = self._numbers()[a:b]
        if model.kind == BFLOAT16:
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        found[:, : numbers.shape[1]] = numbers
        if model.linear:
            found[:, model.width - 1] = self.rows[a:b, model.line]
        return found

    def rows_of_state(self, a: int, b: int) -> np.ndarray:
        """float32[b - a, width] copy of the sums of squares, those of a block once for each of its
        factors."""
        model = self.model
        found = np.full((b - a, model.width), self.optimizer.options.init, np.float32)
        found[:, : model.n_fields * model.k] = np.repeat(self.rows[a:b, : model.n_fields], model.k, axis=1)
        if model.linear:
            found[:, model.width - 1] = self.rows[a:b, model.line + 1]
        return found

    def put(self, rows: np.ndarray, columns: slice, values: np.ndarray, slot: int | None = None) -> None:
        """As in Shard: weights are rounded to the nearest, the sums of a block to their mean."""
        model = self.model
        if columns.start:  # the linear weight
            self.rows[rows, model.line + (slot is not None)] = values[:, 0]
        elif slot is not None:
            by_block = values.reshape(len(values), model.n_fields, model.k)
            self.rows[rows, : model.n_fields] = by_block.mean(axis=2, dtype=np.float64)
        elif model.kind == BFLOAT16:
            self._numbers()[rows] = _to_bfloat16(values)
        else:
            with np.errstate(over="ignore"):  # beyond float16: infinite, which all_finite finds
                self._numbers()[rows] = values

    def all_finite(self, a: int = 0, b: int | None = None) -> bool:
        end = len(self.keys) if b is None else b
        step = max(1, CHUNK_BYTES // (4 * self.model.width))
        good = all(np.isfinite(self.weights(c, min(c + step, end))).all() for c in range(a, end, step))
        return bool(np.isfinite(self.bias).all()) and good


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """uint16 of float32, rounded to the nearest, ties to even; NaN and infinity stay what they are."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isfinite(values), near, (bits >> 16) | np.isnan(values) * 0x40).astype(np.uint16)


def build_model(model: ModelOptions, optimizer: OptimizerOptions, n_fields: int, loss: str) -> Model:
    """The model of a run: `models.build`, or one with a compact table."""
    if optimizer.sums == "block":
        return CompactFFM(defaults.model(model), n_fields, loss)
    return models.build(model, n_fields, loss)


def build_shard(
    model: Model,
    optimizer: Optimizer,
    keys: np.ndarray,
    seed: int | None,
    arrays: tuple[np.ndarray, np.ndarray] | None = None,
    threads: int = 1,
) -> Shard:
    """A shard that owns all keys; arguments as for Shard.

    threads: that will learn on it, several of them with copies of popular rows (hot.py); not on a
    CompactShard, whose 16-bit weights cannot take small differences.
    """
    if isinstance(model, CompactFFM):
        return CompactShard(model, optimizer, keys, seed, arrays)
    spare = threads * slots_of(stride_of(model, optimizer)) if threads > 1 and arrays is None else 0
    return Shard(model, optimizer, keys, seed, arrays=arrays, spare=spare)
