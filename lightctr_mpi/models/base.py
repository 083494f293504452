"""Model: maps rows of data and the parameters of their keys to logits, gradients and updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ..block import Block
from ..config import ModelOptions
from ..kernels import init, losses
from ..kernels.jit import own
from ..optim.base import Optimizer, floats

_NO_FLOATS = np.empty(0, np.float32)


class Model:
    """A model over a table with one row per key, and a bias.

    Arrays, everywhere in this class (all C-contiguous and writable, so that every kernel is compiled once):
        rows: float32[n_keys, stride], weights in columns [0, width); ids: int32[nnz] row numbers, -1 for
        unseen;
        bias: float32[1 + slots], the bias and its optimizer state, not read when the bias is off;
        logit, dlogit: float32[n]. Arrays of a Block that are read-only are copied on every call.

    Entries with an unseen id or of value 0 are not there: they add nothing, and what they name is not
    regularised.

    Attributes:
        width: columns of weights in a row, among them zeros that round factors up to whole vectors.
        k: factors, 0 without; n_fields; linear, bias: whether there is such a part; uses_fields.
    """

    name: ClassVar[str]
    uses_fields: ClassVar[bool] = False
    width: int

    def __init__(self, options: ModelOptions, n_fields: int, loss: str):
        if options.k is None or options.init_scale is None:
            raise ValueError("k and init_scale are unset: pass the options through defaults.model")
        self.options, self.n_fields, self.k = options, n_fields, options.k
        self.linear, self.bias = options.linear, options.bias
        self.loss_name, self.loss = loss, losses.CODES[loss]

    # What a model adds to this class.

    def row_columns(self, slots: int) -> int:
        """Columns of a row that holds the optimizer's `slots` beside the weights."""
        return self.width * (1 + slots)

    def parts(self) -> list[tuple[str, slice, tuple[int, ...]]]:
        """(name, columns of a row, shape of one key's values) of what a checkpoint keeps."""
        raise NotImplementedError

    def _forward(self, csr, rows, b0, logit) -> None:
        raise NotImplementedError

    def _backward(self, csr, rows, local, dlogit, penalty, grad) -> None:
        raise NotImplementedError

    def _gradient(self, csr, target, rows, local, b0, penalty, grad, sums) -> None:
        raise NotImplementedError

    def _sweep(self, csr, target, order, rows, bias, optimizer, penalty, sums) -> tuple[Any, tuple]:
        """The kernel and its arguments."""
        raise NotImplementedError

    # What callers use.

    def init_rows(self, rows: np.ndarray, keys: np.ndarray, seed: int) -> None:
        """Fill columns [0, width) with the initial values of `keys` (uint64[n], one per row)."""
        rows[:, : self.width] = 0
        for name, columns, tail in self.parts():
            if name == "factors":
                count = int(np.prod(tail))
                assert columns.start == 0 and columns.stop == count
                distribution = init.CODES[self.options.init]
                scale = float(self.options.init_scale or 0)
                init.fill(rows, own(keys, np.uint64), count, np.uint64(seed), distribution, scale)

    def forward(
        self, block: Block, rows: np.ndarray, ids: np.ndarray, bias: np.ndarray, logit: np.ndarray
    ) -> None:
        """Write the logit of every row of the block."""
        b0 = np.float32(bias[0]) if self.bias else np.float32(0)
        self._forward(self._csr(block, ids), rows, b0, logit)

    def backward(
        self,
        block: Block,
        rows: np.ndarray,
        ids: np.ndarray,
        local: np.ndarray,
        dlogit: np.ndarray,
        l2: float,
        l1: float,
        grad: np.ndarray,
        dbias: np.ndarray,
    ) -> None:
        """Add the gradient of the sum over the rows of (dlogit times logit, plus the regulariser).

        Args:
            local: int32[nnz] row of `grad` of each entry, -1 with an unseen id.
            dlogit: float32[n] slope of the loss, already times the sample weight.
            l2, l1: penalties, added as l2 w + l1 sign(w) once per entry to every parameter that it touches.
            grad: float32[u, width], added to; dbias: float64[1], added to (also when the bias is off).
        """
        self._backward(self._csr(block, ids), rows, own(local, np.int32), dlogit, floats(l2, l1), grad)
        dbias[0] += dlogit.sum(dtype=np.float64)

    def gradient(
        self,
        block: Block,
        rows: np.ndarray,
        ids: np.ndarray,
        local: np.ndarray,
        bias: np.ndarray,
        l2: float,
        l1: float,
        grad: np.ndarray,
    ) -> tuple[float, float, float]:
        """`forward`, the loss and `backward` in one pass over the rows.

        Returns:
            Over the block, the sums of the weighted losses, of the sample weights, and of the slopes: the
            gradient of the bias (also when the bias is off).
        """
        b0 = np.float32(bias[0]) if self.bias else np.float32(0)
        sums = np.zeros(3, np.float64)
        csr, local = self._csr(block, ids), own(local, np.int32)
        self._gradient(csr, _target(block), rows, local, b0, floats(l2, l1), grad, sums)
        loss, weight, slope = sums.tolist()
        return loss, weight, slope

    def sweep(
        self,
        block: Block,
        order: np.ndarray,
        rows: np.ndarray,
        ids: np.ndarray,
        bias: np.ndarray,
        optimizer: Optimizer,
        sums: np.ndarray,
    ) -> None:
        """Learn from one row after the other, as libffm does.

        Args:
            order: int64[m] numbers of rows of the block.
            rows: weights as everywhere, the optimizer's state beside them from column `width` on.
            sums: float64[2]; adds the weighted losses before each update, and the sample weights.
        """
        kernel, args = self._sweep_call(block, order, rows, ids, bias, optimizer, sums)
        kernel(*args)

    def sweeper(self, *args: Any) -> Callable[[], None]:
        """A call of `sweep` with these arguments, to be made many times while the content of arrays changes.

        Arrays must be as the class wants them: of one that has to be copied, the copy would be used for ever.
        """
        kernel, prepared = self._sweep_call(*args)
        return kernel.fixed(*prepared)

    def _sweep_call(self, block, order, rows, ids, bias, optimizer, sums) -> tuple[Any, tuple]:
        penalty, order = floats(*optimizer.penalty), own(order, np.int64)
        return self._sweep(self._csr(block, ids), _target(block), order, rows, bias, optimizer, penalty, sums)

    def _csr(self, block: Block, ids: np.ndarray) -> tuple[Any, ...]:
        """indptr, ids, (fields,) values, norms as the kernels take them."""
        values = _NO_FLOATS if block.values is None else own(block.values, np.float32)
        norms = np.ones(block.n_rows, np.float32) if block.norms is None else own(block.norms, np.float32)
        head = (own(block.indptr, np.int64), own(ids, np.int32))
        if not self.uses_fields:
            return (*head, values, norms)
        if block.fields is None:
            raise ValueError(f"model {self.name} needs rows with fields")
        return (*head, own(block.fields, np.int32), values, norms)

    def _sweep_codes(self, optimizer: Optimizer) -> tuple[int, int, int, int]:
        """Ints that specialise a sweep: optimizer, loss, whether L1 enters the gradient, whether there is a
        bias."""
        return optimizer.code, self.loss, int(optimizer.penalty[1] != 0), int(self.bias)


def _target(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """labels and weights as the kernels take them."""
    weights = _NO_FLOATS if block.weights is None else own(block.weights, np.float32)
    return own(block.labels, np.float32), weights
