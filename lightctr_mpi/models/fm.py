"""Factorization machine (Rendle 2010). Kernels in kernels/fm.py."""

from __future__ import annotations

from ..config import ModelOptions
from ..kernels import fm
from ..kernels.simd import round_up
from .base import Model


class FactorizationMachine(Model):
    """A row is [V (k, rounded up to a multiple of 8), w if the linear part is on]."""

    name = "fm"

    def __init__(self, options: ModelOptions, n_fields: int, loss: str):
        super().__init__(options, n_fields, loss)
        self._columns = round_up(self.k)
        self.width = self._columns + int(self.linear)

    def parts(self):
        factors = [("factors", slice(0, self.k), (self.k,))]
        linear = [("linear", slice(self._columns, self._columns + 1), ())]
        return (linear if self.linear else []) + factors

    def _forward(self, csr, rows, b0, logit):
        fm.forward(csr, rows, (self._columns, int(self.linear)), b0, logit)

    def _backward(self, csr, rows, local, dlogit, penalty, grad):
        fm.backward(csr, rows, (self._columns, int(self.linear)), local, dlogit, penalty, grad)

    def _gradient(self, csr, target, rows, local, b0, penalty, grad, sums):
        shape = (self._columns, int(self.linear))
        fm.gradient(csr, target, self.loss, rows, shape, local, b0, penalty, grad, sums)

    def _sweep(self, csr, target, order, rows, bias, optimizer, penalty, sums):
        shape, hyper = (self._columns, int(self.linear)), optimizer.hyper
        kernel = fm.make_sweep(*self._sweep_codes(optimizer))
        return kernel, (csr, target, order, rows, shape, self.width, bias, hyper, penalty, sums)
