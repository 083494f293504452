"""Logistic regression (with the squared loss: linear regression). Kernels in kernels/linear.py."""

from __future__ import annotations

from ..kernels import linear
from .base import Model


class LogisticRegression(Model):
    """A row is [w]. The linear part is the model itself and cannot be switched off."""

    name = "lr"
    width = 1

    def parts(self):
        return [("linear", slice(0, 1), ())]

    def _forward(self, csr, rows, b0, logit):
        linear.forward(csr, rows, b0, logit)

    def _backward(self, csr, rows, local, dlogit, penalty, grad):
        linear.backward(csr, rows, local, dlogit, penalty, grad)

    def _gradient(self, csr, target, rows, local, b0, penalty, grad, sums):
        linear.gradient(csr, target, self.loss, rows, local, b0, penalty, grad, sums)

    def _sweep(self, csr, target, order, rows, bias, optimizer, penalty, sums):
        kernel = linear.make_sweep(*self._sweep_codes(optimizer))
        return kernel, (csr, target, order, rows, self.width, bias, optimizer.hyper, penalty, sums)
