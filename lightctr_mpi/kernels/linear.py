"""Logistic (or linear) regression on sparse rows: logit = b + r sum_e v_e w_{j_e}.

Letters: i row, e entry of a row, j row of the table, v value, r factor that normalises the row.
A row of the table is [w, optimizer state]. An entry whose id is unseen or whose value is 0 is not there.
csr: (indptr int64[n+1], ids int32[nnz], values float32[nnz] or empty for ones, norms float32[n]);
target: (labels float32[n], weights float32[n] or empty for ones); penalty: float32 (l2, l1) in the gradient;
table: float32[keys, stride]; bias: float32[1 + slots]; hyper: float32 (rate, beta, l1, l2) of the optimizer.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from . import simd
from .ahead import fetch_entries
from .jit import inline, jit
from .losses import add_loss, point_loss, point_slope
from .steps import sign, step, step_bias

AHEAD = 8  # rows by which memory is asked for in advance


@jit
def _row_logit(a, b, r, ids, values, table):
    """Sum of v w over the entries a to b."""
    z = np.float32(0)
    for e in range(a, b):
        j = ids[e]
        if j >= 0:
            z += r * (values[e] if values.size > 0 else np.float32(1)) * table[j, 0]
    return z


@jit
def forward(csr, table, b0, logit):
    """logit[i] of every row; b0: float32, the bias or 0."""
    indptr, ids, values, norms = csr
    for i in range(len(logit)):
        if i + AHEAD < len(logit):
            fetch_entries(table, ids, indptr[i + AHEAD], indptr[i + AHEAD + 1], 1)
        logit[i] = b0 + _row_logit(indptr[i], indptr[i + 1], norms[i], ids, values, table)


@inline
def _add_row(a, b, r, kappa, ids, local, values, table, l2, l1, grad):
    """Gradient of one row."""
    for e in range(a, b):
        v = r * (values[e] if values.size > 0 else np.float32(1))
        if ids[e] >= 0 and v != 0:
            w = table[ids[e], 0]
            grad[local[e], 0] += kappa * v + l2 * w + l1 * sign(w)


@jit
def backward(csr, table, local, dlogit, penalty, grad):
    """grad[local[e], 0] += dlogit[i] v + l2 w + l1 sign(w). dlogit: float32[n]; grad: float32[u, 1]."""
    (indptr, ids, values, norms), (l2, l1) = csr, penalty
    for i in range(len(dlogit)):
        a, b = indptr[i], indptr[i + 1]
        _add_row(a, b, norms[i], dlogit[i], ids, local, values, table, l2, l1, grad)


@jit
def gradient(csr, target, loss, table, local, b0, penalty, grad, sums):
    """`forward`, the loss and `backward` in one pass; sums float64[3] += loss, weight, slope of the bias."""
    (indptr, ids, values, norms), (labels, weights), (l2, l1) = csr, target, penalty
    for i in range(len(labels)):
        if i + AHEAD < len(labels):
            fetch_entries(table, ids, indptr[i + AHEAD], indptr[i + AHEAD + 1], 1)
            fetch_entries(grad, local, indptr[i + AHEAD], indptr[i + AHEAD + 1], 1)
        a, b = indptr[i], indptr[i + 1]
        z = b0 + _row_logit(a, b, norms[i], ids, values, table)
        kappa = add_loss(loss, z, labels, weights, i, sums)
        _add_row(a, b, norms[i], kappa, ids, local, values, table, l2, l1, grad)


@cache
def make_sweep(opt: int, loss: int, use_l1: int, use_bias: int):
    """Kernel that learns from one row after the other; closes over ints, as the disk cache demands."""

    @jit
    def sweep(csr, target, order, table, slot, bias, hyper, penalty, sums):
        (indptr, ids, values, norms), (labels, weights), (l2, l1) = csr, target, penalty
        stride, one = table.shape[1], np.float32(1)
        loss_sum, weight_sum = 0.0, 0.0
        for p in range(len(order)):
            if p + AHEAD < len(order):
                later = order[p + AHEAD]
                for e in range(indptr[later], indptr[later + 1]):
                    simd.prefetch(table, np.int64(ids[e]) * stride)
            i = order[p]
            a, b = indptr[i], indptr[i + 1]
            z = _row_logit(a, b, norms[i], ids, values, table)
            if use_bias:
                z += bias[0]
            weight = np.float64(weights[i]) if weights.size > 0 else 1.0
            loss_sum += weight * point_loss(loss, z, labels[i])
            weight_sum += weight
            kappa = np.float32(weight * point_slope(loss, z, labels[i]))
            for e in range(a, b):
                j = ids[e]
                v = norms[i] * (values[e] if values.size > 0 else one)
                if j >= 0 and v != 0:
                    g = kappa * v + l2 * table[j, 0]
                    if use_l1:
                        g += l1 * sign(table[j, 0])
                    step(opt, table, j, 0, table, j, slot, 1, g, hyper)
            if use_bias:
                step_bias(opt, bias, kappa, hyper)
        sums[0] += loss_sum
        sums[1] += weight_sum

    return sweep
