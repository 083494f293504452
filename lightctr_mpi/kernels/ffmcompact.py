"""FFM pair by pair on a compact table: one sum of squares for each block, weights of 16 or 32 bits.

Row-wise Adagrad, as libraries of embedding tables have it: a block W of k factors keeps one number,
s += |g|^2 / k, W -= rate g / sqrt(s). With 16-bit weights a row of data touches 12 bytes a block at k = 4 in
place of 32.

A row of the table, in float32 columns: [s of each field's block (F, rounded up to whole vectors of 8: A),
A k weights of `kind` (blocks.py), the linear weight and its own sum of squares from column `line` on].
Pairs move one after another, as in libffm, for any entries; rows that have one entry in each field, in order
of the fields, go through ffmfull.py. The regulariser pulls on a block once for each pair.

Arrays of work space, int64 or float32 of the longest row: bw, ba: where the weights (in numbers of their
kind) and the sums (in floats) of each entry begin; fs: its field; x: its value, normalised; shared: what all
blocks of the entry move along (ffmshare.py), k floats each; counts: entries of each field. A block that is
moved by several pairs of a row takes its part of `shared` with each.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from . import blocks, ffmfull, ffmshare, simd
from .ahead import fetch_entries, fetch_row
from .blocks import (
    FLOAT32,
    both2,
    gather8,
    load8,
    noise_of,
    put_both2,
    scatter8,
    store8,
)
from .ffmfull import turning_space
from .ffmpairs import pull_of
from .jit import inline, jit
from .losses import point_both
from .rows import longest_row
from .steps import ADAGRAD, sign, step_bias

HALF, ONE, ZERO = np.float32(0.5), np.float32(1), np.float32(0)
AHEAD = 2  # rows of data by which memory is asked for in advance


@inline
def _list_row(a, b, r, csr, stride, sums, kind, work):
    """Fill the work space. Returns the number of entries, and whether entry t is the one of field t for all
    t."""
    _, ids, fields, values, _ = csr
    bw, ba, fs, x = work[0], work[1], work[2], work[3]
    n, ordered = 0, True
    for e in range(a, b):
        value, f = r * values[e] if values.size > 0 else r, fields[e]
        if ids[e] >= 0 and f >= 0 and value != 0:
            start = np.int64(ids[e]) * stride
            ba[n], bw[n] = start, start + sums if kind == FLOAT32 else 2 * (start + sums)
            fs[n], x[n] = f, value
            ordered = ordered and f == n
            n += 1
    return n, ordered


@inline
def _count(n, fs, counts):
    """Set counts[f] for the fields of the n entries."""
    for t in range(n):
        counts[fs[t]] = 0
    for t in range(n):
        counts[fs[t]] += 1


@inline
def _dot(kind, k, use_share, table, t, u, work):
    """<W[j_t, f_u], W[j_u, f_t]>; adds x_u W[j_u, f_t] to shared[t] and x_t W[j_t, f_u] to shared[u]."""
    bw, _, fs, x, pair, _, shared, _ = work
    at, other = bw[t] + k * fs[u], bw[u] + k * fs[t]
    if k == 2:
        pair[0], pair[1] = at, other
        w4 = both2(kind, table, pair)
        if use_share:
            xt, xu = simd.splat4(x[t]), simd.splat4(x[u])
            moved = simd.mul(blocks.low2(xt, xt), blocks.low2(w4, w4))
            moved = simd.add(moved, blocks.load2(shared, 2 * u))
            blocks.store2(shared, 2 * u, moved, moved)
            moved = simd.mul(blocks.low2(xu, xu), blocks.high2(w4, w4))
            moved = simd.add(moved, blocks.load2(shared, 2 * t))
            blocks.store2(shared, 2 * t, moved, moved)
        return HALF * simd.total4(simd.mul(w4, blocks.swap4(w4, w4)))
    if k == 4:
        pair[0], pair[1] = at, other
        w8 = gather8(kind, 4, table, pair, 0, 0)
        if use_share:
            of_u = simd.fma(simd.splat4(x[t]), simd.low(w8), simd.load4(shared, 4 * u))
            of_t = simd.fma(simd.splat4(x[u]), simd.high(w8), simd.load4(shared, 4 * t))
            simd.store4(shared, 4 * u, of_u)
            simd.store4(shared, 4 * t, of_t)
        return HALF * simd.total8(simd.mul(w8, blocks.swap8(w8, w8)))
    sum8 = simd.splat8(ZERO)
    for d in range(0, k, 8):
        a, b = load8(kind, table, at + d), load8(kind, table, other + d)
        sum8 = simd.fma(a, b, sum8)
        if use_share:
            of_u = simd.fma(simd.splat8(x[t]), a, simd.load8(shared, k * u + d))
            of_t = simd.fma(simd.splat8(x[u]), b, simd.load8(shared, k * t + d))
            simd.store8(shared, k * u + d, of_u)
            simd.store8(shared, k * t + d, of_t)
    return simd.total8(sum8)


@inline
def _logit(kind, k, use_share, n, table, work):
    """The pairs of a listed row; fills `shared`, not yet times the slope of the loss."""
    x, shared, z = work[3], work[6], ZERO
    if use_share:
        for c in range(n * k):
            shared[c] = ZERO
    for t in range(n):
        dots = ZERO
        for u in range(t + 1, n):
            dots += x[u] * _dot(kind, k, use_share, table, t, u, work)
        z += x[t] * dots
    return z


@inline
def _linear_logit(n, table, work, line):
    ba, x, z = work[1], work[3], ZERO
    for t in range(n):
        z += x[t] * table[ba[t] + line]
    return z


@inline
def _parts(t, u, fs, counts):
    """The parts of shared[t] and shared[u] that the pair of t and u takes: others share it among them."""
    same = fs[t] == fs[u]
    return ONE / np.float32(counts[fs[u]] - same), ONE / np.float32(counts[fs[t]] - same)


@inline
def _learn_both(kind, k, use_l1, use_share, t, u, parts, kx, table, work, rate, l28, l18, dither):
    """The pair of t and u; its blocks begin at pair[0], pair[1], its sums at sums[0], sums[1]; k = 2, 4."""
    pair, sums, shared = work[4], work[5], work[6]
    s2 = blocks.floats2(table, sums, 0, 0)
    dither = blocks.next_dither(dither)
    noise = noise_of(kind, dither)
    if k == 4:
        w = gather8(kind, 4, table, pair, 0, 0)
        g = simd.fma(simd.splat8(kx), blocks.swap8(w, w), pull_of(l28, l18, use_l1, w))
        if use_share:
            both = simd.join(simd.load4(shared, 4 * t), simd.load4(shared, 4 * u))
            g = simd.fma(simd.join(simd.splat4(parts[0]), simd.splat4(parts[1])), both, g)
        g2 = simd.mul(g, g)
        twos = simd.add(blocks.even4(g2, g2), blocks.odd4(g2, g2))
        fours = simd.add(blocks.even2(twos, twos), blocks.odd2(twos, twos))
        s2 = simd.fma(fours, blocks.low2(simd.splat4(np.float32(0.25)), simd.splat4(ZERO)), s2)
        step = simd.div(blocks.low2(simd.splat4(rate), simd.splat4(ZERO)), simd.sqrt(s2))
        moved = simd.sub(w, simd.mul(blocks.spread4(step, step), g))
        scatter8(kind, 4, table, pair, 0, 0, moved, noise)
    else:
        w4 = both2(kind, table, pair)
        pull = pull_of(simd.low(l28), simd.low(l18), use_l1, w4)
        g4 = simd.fma(simd.splat4(kx), blocks.swap4(w4, w4), pull)
        if use_share:
            both4 = blocks.join2(blocks.load2(shared, 2 * t), blocks.load2(shared, 2 * u))
            first, second = simd.splat4(parts[0]), simd.splat4(parts[1])
            part4 = blocks.join2(blocks.low2(first, first), blocks.low2(second, second))
            g4 = simd.fma(part4, both4, g4)
        g2 = simd.mul(g4, g4)
        twos = simd.add(blocks.even2(g2, g2), blocks.odd2(g2, g2))
        s2 = simd.fma(twos, blocks.low2(simd.splat4(np.float32(0.5)), simd.splat4(ZERO)), s2)
        step = simd.div(blocks.low2(simd.splat4(rate), simd.splat4(ZERO)), simd.sqrt(s2))
        moved4 = simd.sub(w4, simd.mul(blocks.double2(step, step), g4))
        put_both2(kind, table, pair, moved4, simd.low(noise))
    blocks.put_floats2(table, sums, 0, 0, s2, s2)
    return dither


@inline
def _slopes(kind, use_l1, use_share, kx8, table, at, other, shared, of_a, of_b, parts, l28, l18):
    """8 factors of both blocks of a pair, and the gradients of both; of_a, of_b: their places in `shared`."""
    a, b = load8(kind, table, at), load8(kind, table, other)
    g = simd.fma(kx8, b, pull_of(l28, l18, use_l1, a))
    h = simd.fma(kx8, a, pull_of(l28, l18, use_l1, b))
    if use_share:
        g = simd.fma(simd.splat8(parts[0]), simd.load8(shared, of_a), g)
        h = simd.fma(simd.splat8(parts[1]), simd.load8(shared, of_b), h)
    return a, b, g, h


@inline
def _move_both(kind, table, at, other, a, b, g, h, step_g, step_h, dither):
    """Store 8 moved factors of both blocks of a pair."""
    dither = blocks.next_dither(dither)
    store8(kind, table, at, simd.sub(a, simd.mul(step_g, g)), noise_of(kind, dither))
    dither = blocks.next_dither(dither)
    store8(kind, table, other, simd.sub(b, simd.mul(step_h, h)), noise_of(kind, dither))
    return dither


@inline
def _learn_long(kind, k, use_l1, use_share, t, u, parts, kx, table, work, rate, l28, l18, dither):
    """The pair of t and u; k a multiple of 8."""
    bw, ba, fs, _, _, _, shared, _ = work
    at, other = bw[t] + k * fs[u], bw[u] + k * fs[t]
    sum_a, sum_b, to, up = ba[t] + fs[u], ba[u] + fs[t], k * t, k * u
    kx8, g2, h2 = simd.splat8(kx), simd.splat8(ZERO), simd.splat8(ZERO)
    for d in range(0, k, 8):
        a, b, g, h = _slopes(
            kind, use_l1, use_share, kx8, table, at + d, other + d, shared, to + d, up + d, parts, l28, l18
        )
        g2, h2 = simd.fma(g, g, g2), simd.fma(h, h, h2)
    share = np.float32(1 / k)
    s = table[sum_a] + share * simd.total8(g2)
    q = table[sum_b] + share * simd.total8(h2)
    step_g, step_h = (
        simd.splat8(rate / np.float32(math.sqrt(s))),
        simd.splat8(rate / np.float32(math.sqrt(q))),
    )
    for d in range(0, k, 8):
        a, b, g, h = _slopes(
            kind, use_l1, use_share, kx8, table, at + d, other + d, shared, to + d, up + d, parts, l28, l18
        )
        dither = _move_both(kind, table, at + d, other + d, a, b, g, h, step_g, step_h, dither)
    table[sum_a] = s
    table[sum_b] = q
    return dither


@inline
def _learn(kind, k, use_l1, use_share, n, kappa, table, work, rate, penalty, dither):
    """One step on the blocks of all pairs of a listed row."""
    bw, ba, fs, x, pair, sums, _, counts = work
    l28, l18 = simd.splat8(penalty[0]), simd.splat8(penalty[1])
    _count(n, fs, counts)
    for t in range(n):
        for u in range(t + 1, n):
            parts, kx = _parts(t, u, fs, counts), kappa * x[t] * x[u]
            if k < 8:
                pair[0], pair[1] = bw[t] + k * fs[u], bw[u] + k * fs[t]
                sums[0], sums[1] = ba[t] + fs[u], ba[u] + fs[t]
                dither = _learn_both(
                    kind, k, use_l1, use_share, t, u, parts, kx, table, work, rate, l28, l18, dither
                )
            else:
                dither = _learn_long(
                    kind, k, use_l1, use_share, t, u, parts, kx, table, work, rate, l28, l18, dither
                )


@inline
def _learn_linear(use_l1, n, kappa, table, work, line, rate, penalty):
    """One step of Adagrad on the linear weight of every entry."""
    ba, x = work[1], work[3]
    for t in range(n):
        at = ba[t] + line
        w = table[at]
        g = kappa * x[t] + penalty[0] * w
        if use_l1:
            g += penalty[1] * sign(w)
        s = table[at + 1] + g * g
        table[at + 1] = s
        table[at] = w - rate * g / np.float32(math.sqrt(s))


@jit
def _work_space(longest, n_fields, k):
    """bw, ba, fs, x, two places for a pair of offsets, shared, counts."""
    return (
        np.empty(longest, np.int64),
        np.empty(longest, np.int64),
        np.empty(longest, np.int64),
        np.empty(longest + 8, np.float32),
        np.empty(2, np.int64),
        np.empty(2, np.int64),
        np.zeros(longest * k + 8, np.float32),
        np.zeros(n_fields, np.int64),
    )


@cache
def make_sweep(loss: int, use_l1: int, use_bias: int, use_share: int, kind: int, k: int):
    """Kernel that learns from one row after the other; closes over ints, as the disk cache demands."""

    @jit
    def sweep(csr, target, order, rows, shape, bias, hyper, penalty, sums):
        (indptr, ids, _, _, norms), (labels, weights) = csr, target
        n_fields, width, linear, share, a, line = shape
        stride, table, rate = rows.shape[1], rows.reshape(rows.size), hyper[0]
        work, turned = _work_space(longest_row(indptr, order), n_fields, width), turning_space(a, k)
        places = work[0], work[1], work[3]
        loss_sum, weight_sum = 0.0, 0.0
        for p in range(len(order)):
            i, later = order[p], order[min(p + AHEAD, len(order) - 1)]
            simd.prefetch(indptr, order[min(p + 3 * AHEAD, len(order) - 1)])
            fetch_row(csr, target, order[min(p + 2 * AHEAD, len(order) - 1)])
            n, ordered = _list_row(indptr[i], indptr[i + 1], norms[i], csr, stride, a, kind, work)
            full = ordered and n == n_fields and len(turned[0]) > 0
            if full:
                z = ffmfull.fill(kind, k, n, a, work[0], work[3], table, turned)
            else:
                fetch_entries(rows, ids, indptr[later], indptr[later + 1], stride)
                z = _logit(kind, k, use_share, n, table, work)
            if linear:
                z += _linear_logit(n, table, work, line)
            if use_bias:
                z += bias[0]
            weight = np.float64(weights[i]) if weights.size > 0 else 1.0
            point, slope = point_both(loss, z, labels[i])
            loss_sum += weight * point
            weight_sum += weight
            kappa = np.float32(weight * slope)
            last = table[work[1][0] + work[2][n - 1]] if n > 0 else ONE  # a sum that this row lets grow
            dither = blocks.start_dither(np.uint32(i), last)
            if full:
                how, coming = (rate, penalty[0], penalty[1]), (ids, indptr[later])
                ffmfull.learn(
                    kind, k, use_l1, use_share, n, kappa, share, places, rows, turned, how, dither, coming
                )
            else:
                if use_share:
                    ffmshare.scale(n, k, share * kappa, work[3], work[6])
                _learn(kind, k, use_l1, use_share, n, kappa, table, work, rate, penalty, dither)
            if linear:
                _learn_linear(use_l1, n, kappa, table, work, line, rate, penalty)
            if use_bias:
                step_bias(ADAGRAD, bias, kappa, hyper)
        sums[0] += loss_sum
        sums[1] += weight_sum

    return sweep


@cache
def make_forward(kind: int, k: int):
    """Kernel for the logits of rows; see models.Model.forward."""

    @jit
    def forward(csr, rows, shape, b0, logit):
        indptr, ids, _, _, norms = csr
        n_fields, width, linear, _, a, line = shape
        stride, table = rows.shape[1], rows.reshape(rows.size)
        longest = longest_row(indptr, np.arange(len(indptr) - 1))
        work, turned = _work_space(longest, n_fields, width), turning_space(a, k)
        for i in range(len(logit)):
            if i + AHEAD < len(logit):
                fetch_entries(rows, ids, indptr[i + AHEAD], indptr[i + AHEAD + 1], stride)
            n, ordered = _list_row(indptr[i], indptr[i + 1], norms[i], csr, stride, a, kind, work)
            if ordered and n == n_fields and len(turned[0]) > 0:
                z = ffmfull.fill(kind, k, n, a, work[0], work[3], table, turned)
            else:
                z = _logit(kind, k, False, n, table, work)
            if linear:
                z += _linear_logit(n, table, work, line)
            logit[i] = b0 + z

    return forward
