"""Rows between a server and workers that lag behind: gathered for a pull, and the gradients that come back
corrected for what happened to the rows meanwhile.

The correction is DC-ASGD (Zheng et al. 2017, "Asynchronous stochastic gradient descent with delay
compensation"). A worker took gradient g at weights b; by now the weights are w. A Taylor step, with
lambda g g in place of the Hessian's diagonal, gives the gradient at w (formula 10): g + lambda g g (w - b).
In the adaptive form (formula 14) each coordinate has a lambda of its own, lambda0 / sqrt(m + 1e-7), where
m = decay m + (1 - decay) g g is moved on first.
"""

from __future__ import annotations

import math

import numpy as np

from .jit import jit_exact
from .simd import prefetch

_AHEAD = 8  # rows that the memory is asked for ahead of time
_LINE = 16  # float32 in a cache line
EPSILON = np.float32(1e-7)
_ONE = np.float32(1)


@jit_exact
def gather_ahead(rows, numbers, out):
    """out[i] = first columns of rows[numbers[i]]; zeros for a number of -1.

    rows: float32[n, stride]; numbers: int32[u]; out: float32[u, width], width <= stride. For tables that are
    larger than the cache.
    """
    stride, width = rows.shape[1], out.shape[1]
    for i in range(len(numbers)):
        if i + _AHEAD < len(numbers):
            start = np.int64(numbers[i + _AHEAD]) * stride
            for c in range(0, width, _LINE):
                prefetch(rows, start + c)
        j = numbers[i]
        if j >= 0:
            for c in range(width):
                out[i, c] = rows[j, c]
        else:
            for c in range(width):
                out[i, c] = 0


@jit_exact
def fetch(rows, numbers, width):
    """Ask for the first `width` columns of rows[numbers], float32[n, stride] and int32[u], ahead of use."""
    stride = rows.shape[1]
    for i in range(len(numbers)):
        for c in range(0, width, _LINE):
            prefetch(rows, np.int64(numbers[i]) * stride + c)


@jit_exact
def compensate(grads, rows, numbers, backup, lam):
    """Correct gradients in place: g += lam g g (w - b). Where w = b, g stays what it is.

    Args:
        grads: float32[u, width], gradients as they will move the weights (a mean over the batch if the
            optimizer takes the mean).
        rows: float32[n, stride], weights w of row i in the first columns of rows[numbers[i]].
        numbers: int32[u]; a gradient with -1 is passed over.
        backup: float32[u, width], weights b at which the gradients were taken.
        lam: float32.
    """
    for i in range(len(numbers)):
        j = numbers[i]
        if j >= 0:
            for c in range(grads.shape[1]):
                g = grads[i, c]
                grads[i, c] = g + g * (lam * g * (rows[j, c] - backup[i, c]))


@jit_exact
def compensate_adaptive(grads, rows, numbers, backup, ms_col, lam0, decay):
    """Correct gradients in place as `compensate` does, each coordinate with a lambda of its own.

    Args:
        ms_col: first column in `rows` of m, the mean square of the gradients, which is moved on first.
        lam0, decay: float32; the paper has a decay of 0.95. Others as in `compensate`.
    """
    if ms_col < 0:
        return  # never: tells the compiler that no index counts from the end
    for i in range(len(numbers)):
        j = numbers[i]
        if j >= 0:
            for c in range(grads.shape[1]):
                g = grads[i, c]
                m = decay * rows[j, ms_col + c] + (_ONE - decay) * (g * g)
                rows[j, ms_col + c] = m
                lam = lam0 / np.float32(math.sqrt(m + EPSILON))
                grads[i, c] = g + g * (lam * g * (rows[j, c] - backup[i, c]))
