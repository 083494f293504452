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
from .ahead import fetch_entries, fetch_row
from .couples import (
    are_apart,
    are_apart_end,
    are_known,
    are_known_end,
    clear_end,
    load_couples,
    load_couples_end,
    load_end,
    store_couples,
    store_couples_end,
)
from .jit import inline, jit
from .losses import add_loss, point_both
from .simd import prefetch
from .steps import ADAGRAD, sign, step, step_bias

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


@inline
def _row_logit8(a, b, r, ids, values, table):
    """`_row_logit`, 8 entries at a time, on a table of couples."""
    z, sum8, e, last = np.float32(0), simd.splat8(np.float32(0)), a, b - 1
    while e + 8 <= b:
        if are_known(ids, e, last):
            w8, _ = load_couples(table, ids, e, last)
            sum8 = simd.fma(simd.load8(values, e), w8, sum8) if values.size > 0 else simd.add(w8, sum8)
        else:
            z += _row_logit(e, e + 8, r, ids, values, table)
        e += 8
    if e < b:
        if are_known_end(ids, e, last):
            w8, _ = load_couples_end(table, ids, e, last)
            if values.size > 0:
                w8 = simd.mul(w8, load_end(values, e, last))
            sum8 = simd.add(clear_end(w8, e, last), sum8)
        else:
            z += _row_logit(e, b, r, ids, values, table)
    return z + r * simd.total8(sum8)


@inline
def _learn(opt, use_l1, a, b, r, kappa, ids, values, table, slot, hyper, penalty):
    """One step on the entries a to b, one after the other."""
    l2, l1 = penalty
    for e in range(a, b):
        j = ids[e]
        v = r * (values[e] if values.size > 0 else np.float32(1))
        if j >= 0 and v != 0:
            g = kappa * v + l2 * table[j, 0]
            if use_l1:
                g += l1 * sign(table[j, 0])
            step(opt, table, j, 0, table, j, slot, 1, g, hyper)


@inline
def _move8(use_l1, kx8, w8, s8, rate8, penalty):
    """Adagrad on 8 couples of a weight and its sum of squares."""
    g8 = simd.fma(simd.splat8(penalty[0]), w8, kx8)
    if use_l1:
        g8 = simd.fma(simd.splat8(penalty[1]), simd.sign(w8), g8)
    s8 = simd.fma(g8, g8, s8)
    return simd.sub(w8, simd.mul(simd.mul(rate8, g8), simd.rsqrt(s8))), s8


@inline
def _learn8(use_l1, a, b, r, kappa, ids, values, table, hyper, penalty):
    """`_learn` for Adagrad on a table of couples, 8 entries at a time where their order does not matter."""
    e, last, rate8, r8, kappa8 = a, b - 1, simd.splat8(hyper[0]), simd.splat8(r), simd.splat8(kappa)
    while e < b:
        whole = e + 8 <= b
        if whole:
            x8 = simd.mul(r8, simd.load8(values, e)) if values.size > 0 else r8
            apart = are_apart(ids, e, last, x8)
        else:
            x8 = simd.mul(r8, load_end(values, e, last)) if values.size > 0 else r8
            apart = are_apart_end(ids, e, last, x8)
        if not apart:
            _learn(ADAGRAD, use_l1, e, min(e + 8, b), r, kappa, ids, values, table, 1, hyper, penalty)
        elif whole:
            w8, s8 = load_couples(table, ids, e, last)
            w8, s8 = _move8(use_l1, simd.mul(kappa8, x8), w8, s8, rate8, penalty)
            store_couples(table, ids, e, last, w8, s8)
        else:
            w8, s8 = load_couples_end(table, ids, e, last)
            w8, s8 = _move8(use_l1, simd.mul(kappa8, x8), w8, s8, rate8, penalty)
            store_couples_end(table, ids, e, last, w8, s8)
        e += 8


@cache
def make_sweep(opt: int, loss: int, use_l1: int, use_bias: int):
    """Kernel that learns from one row after the other; closes over ints, as the disk cache demands."""

    @jit
    def sweep(csr, target, order, table, slot, bias, hyper, penalty, sums):
        (indptr, ids, values, norms), (labels, weights) = csr, target
        stride = table.shape[1]
        couples = opt == ADAGRAD and stride == 2 and slot == 1
        rate = (hyper[0], hyper[1], hyper[2], hyper[3])
        loss_sum, weight_sum = 0.0, 0.0
        for p in range(len(order)):
            if p + 3 * AHEAD < len(order):
                prefetch(indptr, order[p + 3 * AHEAD])
                fetch_row((indptr, ids, ids[:0], values, norms), target, order[p + 2 * AHEAD])
            if p + AHEAD < len(order):
                later = order[p + AHEAD]
                fetch_entries(table, ids, indptr[later], indptr[later + 1], 1)
            i = order[p]
            a, b, r = indptr[i], indptr[i + 1], norms[i]
            if couples:
                z = _row_logit8(a, b, r, ids, values, table)
            else:
                z = _row_logit(a, b, r, ids, values, table)
            if use_bias:
                z += bias[0]
            weight = np.float64(weights[i]) if weights.size > 0 else 1.0
            point, slope = point_both(loss, z, labels[i])
            loss_sum += weight * point
            weight_sum += weight
            kappa = np.float32(weight * slope)
            if couples:
                _learn8(use_l1, a, b, r, kappa, ids, values, table, rate, penalty)
            else:
                _learn(opt, use_l1, a, b, r, kappa, ids, values, table, slot, rate, penalty)
            if use_bias:
                step_bias(opt, bias, kappa, rate)
        sums[0] += loss_sum
        sums[1] += weight_sum

    return sweep
