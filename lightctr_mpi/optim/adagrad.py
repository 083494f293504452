"""Adagrad (Duchi, Hazan, Singer 2011): s += g^2, w -= lr g / sqrt(s), s from `init` (1 in libffm)."""

from __future__ import annotations

import numpy as np

from ..kernels import steps
from .base import Optimizer


class Adagrad(Optimizer):
    name = "adagrad"
    code = steps.ADAGRAD
    slots = 1
    slot_names = ("sum_of_squares",)
    _rows_kernel = staticmethod(steps.adagrad_rows)
    _dense_kernel = staticmethod(steps.adagrad_dense)

    def init_state(self, state: np.ndarray, weights: np.ndarray | None = None) -> None:
        state[...] = self.options.init
