"""Stochastic gradient descent with a constant rate: w -= lr g."""

from __future__ import annotations

from ..kernels import steps
from .base import Optimizer


class SGD(Optimizer):
    name = "sgd"
    code = steps.SGD
    slots = 0
    reduction = "mean"
    _rows_kernel = staticmethod(steps.sgd_rows)
    _dense_kernel = staticmethod(steps.sgd_dense)
