"""Field-aware factorization machine (Juan, Zhuang, Chin, Lin 2016). Kernels in kernels/ffm.py and
kernels/ffmscore.py."""

from __future__ import annotations

import numpy as np

from ..config import ModelOptions
from ..errors import UserError
from ..kernels import ffm, ffmscore
from ..kernels.simd import round_up
from ..kernels.steps import FTRL
from .base import Model


class FieldAwareFactorizationMachine(Model):
    """A row is [W (n_fields blocks of k, together rounded up to a multiple of 8), w if the linear part is
    on].

    Entries whose field is unseen (-1) are not there, whatever their id. With options.share above 0 the
    gradients of `backward`, `gradient` and `sweep` are directions: to that of each block, `share` times the
    sum over the blocks of the same feature is added (kernels/ffmshare.py). Raises UserError without any
    field.
    """

    name = "ffm"
    uses_fields = True

    def __init__(self, options: ModelOptions, n_fields: int, loss: str):
        super().__init__(options, n_fields, loss)
        if n_fields < 1:
            raise UserError("model ffm needs data with fields (libffm, csv, tsv, criteo or avazu files)")
        self._shape = (n_fields, self.k, int(self.linear), np.float32(options.share))
        self._columns = round_up(n_fields * self.k)
        self.width = self._columns + int(self.linear)

    def parts(self):
        factors = [("factors", slice(0, self.n_fields * self.k), (self.n_fields, self.k))]
        linear = [("linear", slice(self._columns, self._columns + 1), ())]
        return (linear if self.linear else []) + factors

    def _forward(self, csr, rows, b0, logit):
        ffmscore.forward(csr, rows, self._shape, b0, logit)

    def _backward(self, csr, rows, local, dlogit, penalty, grad):
        ffm.backward(csr, rows, self._shape, local, dlogit, penalty, grad)

    def _gradient(self, csr, target, rows, local, b0, penalty, grad, sums):
        ffm.gradient(csr, target, self.loss, rows, self._shape, local, b0, penalty, grad, sums)

    def _sweep(self, csr, target, order, rows, bias, optimizer, penalty, sums):
        # FTRL takes no pairs, which alone are compiled for k.
        fixed = (self.k, int(self.options.share > 0)) if optimizer.code != FTRL else (4, 0)
        kernel = ffm.make_sweep(*self._sweep_codes(optimizer), *fixed)
        hyper = optimizer.hyper
        return kernel, (csr, target, order, rows, self._shape, self.width, bias, hyper, penalty, sums)
