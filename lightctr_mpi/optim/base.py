"""Optimizer: what moves parameters along their gradients, row by row."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..config import OptimizerOptions


def floats(*values: float | None) -> tuple[np.float32, ...]:
    """The numbers as kernels take them. Raises ValueError for one that is unset."""
    if None in values:
        raise ValueError("an option is unset: pass the options through defaults.optimizer")
    return tuple(np.float32(value) for value in values if value is not None)


class Optimizer:
    """A row kernel with `slots` arrays of state for each parameter.

    Attributes:
        name, code: for people and for kernels (kernels/steps.py).
        slots: state arrays per parameter; slot_names names them for the checkpoint.
        reduction: how the sum of the gradients over a batch becomes a step. "mean": it is divided by the
        samples
            of the batch. "sum": it is taken as it is, because the optimizer divides by its own history, and
            a key seen once in a batch then moves as it would in a sequential run.
        regularises: True if l1 and l2 are part of the step itself; backward is then given `penalty` (0, 0).
        hyper: float32 (rate, beta, l1, l2) as the kernels take them.
        l1, l2: the penalties asked for.
        penalty: (l2, l1) that belong into the gradient of each sample.
    """

    name: ClassVar[str]
    code: ClassVar[int]
    slots: ClassVar[int]
    slot_names: ClassVar[tuple[str, ...]] = ()
    reduction: ClassVar[str] = "sum"
    regularises: ClassVar[bool] = False
    _rows_kernel: ClassVar[Any]
    _dense_kernel: ClassVar[Any]

    def __init__(self, options: OptimizerOptions):
        self.hyper = floats(options.lr, 0.0, options.l1, options.l2)
        self.options, self.l1, self.l2 = options, options.l1, float(options.l2 or 0)

    @property
    def penalty(self) -> tuple[float, float]:
        return (0.0, 0.0) if self.regularises else (self.l2, self.l1)

    def scale(self, samples: float) -> float:
        """Factor on the gradient sum of a batch of `samples` rows."""
        return 1.0 / max(samples, 1.0) if self.reduction == "mean" else 1.0

    def init_state(self, state: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Fill the start of the state.

        Args:
            state: float32[n, slots * width], any strides (a view of the columns beside the weights will do).
            weights: float32[n, width] the weights it belongs to; None if they are all 0.
        """

    def apply_rows(
        self,
        rows: np.ndarray,
        row_ids: np.ndarray,
        state: np.ndarray,
        state_ids: np.ndarray,
        state_col: int,
        width: int,
        grads: np.ndarray,
        scale: float,
    ) -> None:
        """Move rows[row_ids[i], :width] along scale * grads[i].

        Args:
            rows: float32[n, stride].
            row_ids, state_ids: int32[u], distinct; an entry of -1 is passed over.
            state: float32[m, stride'] with the slots from column state_col on; may be `rows` itself. An
            optimizer
                without state takes `rows`.
            grads: float32[u, width].
        All arrays writable and C-contiguous.
        """
        hyper, factor = self.hyper, np.float32(scale)
        self._rows_kernel(rows, row_ids, state, state_ids, int(state_col), int(width), grads, factor, hyper)

    def apply_dense(self, param: np.ndarray, state: np.ndarray, grad: np.ndarray, scale: float) -> None:
        """Move param along scale * grad; no regulariser but what the gradient holds.

        Args:
            param, grad: float32[n]; state: float32[slots * n].
        """
        self._dense_kernel(param, state, grad, np.float32(scale), self.hyper)
