"""Factorization machine (Rendle 2010), pairs in linear time:

    logit = b + sum_e x_e w_j + (|S|^2 - sum_e |x_e V_j|^2) / 2,   S = sum_e x_e V_j,   x_e = r v_e
    d logit / d V_j = sum over the entries of j of x_e (S - x_e V_j)

Letters as in linear.py; h is k rounded up to whole vectors of 8, the columns from k to h are 0 and stay 0.
A row of the table is [V_j (h), w_j if the linear part is on, ..., optimizer state from column `slot` on].
"""

from __future__ import annotations

from functools import cache

import numpy as np

from . import simd
from .ahead import fetch_entries, fetch_row
from .jit import inline, jit
from .losses import add_loss, point_both
from .steps import FTRL, sign, step, step8, step_bias

AHEAD = 4  # rows by which memory is asked for in advance
HALF, ONE, ZERO = np.float32(0.5), np.float32(1), np.float32(0)


@inline
def _entry(e, r, values):
    """x_e."""
    return r * values[e] if values.size > 0 else r


@jit
def _row_logit(a, b, r, ids, values, table, h, linear, total):
    """Logit of the entries a to b without the bias; fills total float32[h] with S."""
    z, squares, stride = ZERO, simd.splat8(ZERO), table.shape[1]
    for c in range(0, h, 8):
        sum8 = simd.splat8(ZERO)  # in a register: through `total` each entry would wait for the one before
        for e in range(a, b):
            j = ids[e]
            if j >= 0:
                x8 = simd.splat8(_entry(e, r, values))
                part = simd.mul(x8, simd.load8(table, np.int64(j) * stride + c))
                sum8 = simd.add(sum8, part)
                squares = simd.fma(part, part, squares)
        simd.store8(total, c, sum8)
    if linear:
        for e in range(a, b):
            if ids[e] >= 0:
                z += _entry(e, r, values) * table[ids[e], h]
    pairs = simd.splat8(ZERO)
    for c in range(0, h, 8):
        part = simd.load8(total, c)
        pairs = simd.fma(part, part, pairs)
    return z + HALF * simd.total8(simd.sub(pairs, squares))


@jit
def forward(csr, table, shape, b0, logit):
    """logit[i] of every row; b0: float32, the bias or 0; shape: (h, whether there is a linear part)."""
    (indptr, ids, values, norms), (h, linear) = csr, shape
    total = np.empty(h, np.float32)
    for i in range(len(logit)):
        if i + AHEAD < len(logit):
            fetch_entries(table, ids, indptr[i + AHEAD], indptr[i + AHEAD + 1], h + linear)
        z = _row_logit(indptr[i], indptr[i + 1], norms[i], ids, values, table, h, linear, total)
        logit[i] = b0 + z


@inline
def _add_entry(j, x, kx, total, table, h, l2, l1, grad, u):
    """Gradient of the factors of one entry."""
    row, to = np.int64(j) * table.shape[1], np.int64(u) * grad.shape[1]
    x8, kx8, l28, l18 = simd.splat8(x), simd.splat8(kx), simd.splat8(l2), simd.splat8(l1)
    for c in range(0, h, 8):
        w = simd.load8(table, row + c)
        pull = simd.fma(l18, simd.sign(w), simd.mul(l28, w))
        slope = simd.mul(kx8, simd.sub(simd.load8(total, c), simd.mul(x8, w)))
        simd.store8(grad, to + c, simd.add(simd.load8(grad, to + c), simd.add(slope, pull)))


@inline
def _add_row(a, b, r, kappa, ids, local, values, table, h, linear, l2, l1, total, grad):
    """Gradient of one row whose S is in `total`."""
    for e in range(a, b):
        j, u, x = ids[e], local[e], _entry(e, r, values)
        if j < 0 or x == 0:
            continue
        _add_entry(j, x, kappa * x, total, table, h, l2, l1, grad, u)
        if linear:
            w = table[j, h]
            grad[u, h] += kappa * x + l2 * w + l1 * sign(w)


@inline
def _fetch(i, n, indptr, ids, local, table, grad, width):
    """Ask for what row i + AHEAD of n will touch."""
    if i + AHEAD < n:
        fetch_entries(table, ids, indptr[i + AHEAD], indptr[i + AHEAD + 1], width)
        fetch_entries(grad, local, indptr[i + AHEAD], indptr[i + AHEAD + 1], width)


@jit
def backward(csr, table, shape, local, dlogit, penalty, grad):
    """Add to grad float32[u, h + linear] the gradient of sum_i dlogit[i] logit[i] and of the regulariser."""
    (indptr, ids, values, norms), (h, linear), (l2, l1) = csr, shape, penalty
    total = np.empty(h, np.float32)
    for i in range(len(dlogit)):
        _fetch(i, len(dlogit), indptr, ids, local, table, grad, h + linear)
        a, b, r = indptr[i], indptr[i + 1], norms[i]
        _row_logit(a, b, r, ids, values, table, h, linear, total)
        _add_row(a, b, r, dlogit[i], ids, local, values, table, h, linear, l2, l1, total, grad)


@jit
def gradient(csr, target, loss, table, shape, local, b0, penalty, grad, sums):
    """`forward`, the loss and `backward` in one pass; sums float64[3] += loss, weight, slope of the bias."""
    (indptr, ids, values, norms), (labels, weights) = csr, target
    (h, linear), (l2, l1) = shape, penalty
    total = np.empty(h, np.float32)
    for i in range(len(labels)):
        _fetch(i, len(labels), indptr, ids, local, table, grad, h + linear)
        a, b, r = indptr[i], indptr[i + 1], norms[i]
        z = b0 + _row_logit(a, b, r, ids, values, table, h, linear, total)
        kappa = add_loss(loss, z, labels, weights, i, sums)
        _add_row(a, b, r, kappa, ids, local, values, table, h, linear, l2, l1, total, grad)


@inline
def _learn_entry(opt, use_l1, linear, j, x, kappa, total, table, h, slot, hyper, penalty):
    """One step on the row of one entry. Vectors for SGD and Adagrad, single floats for FTRL."""
    l2, l1 = penalty
    width = h + linear
    if opt == FTRL:
        for c in range(h):
            g = kappa * x * (total[c] - x * table[j, c])
            step(opt, table, j, c, table, j, slot + c, width, g, hyper)
    else:
        offset = np.int64(j) * table.shape[1]
        x8, kx8, l28, l18 = simd.splat8(x), simd.splat8(kappa * x), simd.splat8(l2), simd.splat8(l1)
        rate8 = simd.splat8(hyper[0])
        for c in range(0, h, 8):
            w = simd.load8(table, offset + c)
            g = simd.mul(kx8, simd.sub(simd.load8(total, c), simd.mul(x8, w)))
            g = simd.fma(l28, w, g)
            if use_l1:
                g = simd.fma(l18, simd.sign(w), g)
            step8(opt, table, offset + c, offset + slot + c, g, rate8)
    if linear:
        w = table[j, h]
        g = kappa * x + l2 * w
        if use_l1:
            g += l1 * sign(w)
        step(opt, table, j, h, table, j, slot + h, width, g, hyper)


@cache
def make_sweep(opt: int, loss: int, use_l1: int, use_bias: int):
    """Kernel that learns from one row after the other; closes over ints, as the disk cache demands."""

    @jit
    def sweep(csr, target, order, table, shape, slot, bias, hyper, penalty, sums):
        (indptr, ids, values, norms), (labels, weights), (h, linear) = csr, target, shape
        stride, total = table.shape[1], np.empty(h, np.float32)
        lines = slot + (h + linear) * opt  # SGD, Adagrad and FTRL are 0, 1, 2: as many slots of state
        loss_sum, weight_sum = 0.0, 0.0
        for p in range(len(order)):
            if p + 3 * AHEAD < len(order):
                simd.prefetch(indptr, order[p + 3 * AHEAD])
                fetch_row((indptr, ids, ids[:0], values, norms), target, order[p + 2 * AHEAD])
            if p + AHEAD < len(order):
                later = order[p + AHEAD]
                for e in range(indptr[later], indptr[later + 1]):
                    for c in range(0, lines, 16):
                        simd.prefetch(table, np.int64(ids[e]) * stride + c)
            i = order[p]
            a, b, r = indptr[i], indptr[i + 1], norms[i]
            z = _row_logit(a, b, r, ids, values, table, h, linear, total)
            if use_bias:
                z += bias[0]
            weight = np.float64(weights[i]) if weights.size > 0 else 1.0
            point, slope = point_both(loss, z, labels[i])
            loss_sum += weight * point
            weight_sum += weight
            kappa = np.float32(weight * slope)
            for e in range(a, b):
                x = _entry(e, r, values)
                if ids[e] >= 0 and x != 0:
                    _learn_entry(opt, use_l1, linear, ids[e], x, kappa, total, table, h, slot, hyper, penalty)
            if use_bias:
                step_bias(opt, bias, kappa, hyper)
        sums[0] += loss_sum
        sums[1] += weight_sum

    return sweep
