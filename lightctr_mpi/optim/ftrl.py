"""FTRL-proximal (McMahan et al. 2013): sparse weights by L1, with a rate of its own for each coordinate."""

from __future__ import annotations

import numpy as np

from ..config import OptimizerOptions
from ..kernels import steps
from .base import Optimizer, floats

_CHUNK = 1 << 16  # rows whose temporary arrays exist at the same time


class FTRL(Optimizer):
    """State z and n. The state starts so that the closed form gives the initial weights (z = 0 for w = 0)."""

    name = "ftrl"
    code = steps.FTRL
    slots = 2
    slot_names = ("z", "n")
    regularises = True
    _rows_kernel = staticmethod(steps.ftrl_rows)
    _dense_kernel = staticmethod(steps.ftrl_dense)

    def __init__(self, options: OptimizerOptions):
        super().__init__(options)
        alpha = self.options.lr if options.alpha is None else options.alpha
        self.hyper = floats(alpha, options.beta, options.l1, options.l2)

    def init_state(self, state: np.ndarray, weights: np.ndarray | None = None) -> None:
        state[...] = 0
        if weights is None:
            return
        alpha, beta, l1, l2 = (float(value) for value in self.hyper)
        width = weights.shape[1]
        for a in range(0, len(weights), _CHUNK):
            w = weights[a : a + _CHUNK]
            state[a : a + _CHUNK, :width] = -(w * np.float32(beta / alpha + l2) + np.sign(w) * np.float32(l1))
