"""FFM pair by pair on a compact table: one sum of squares for each block, weights of 16 or 32 bits.

Row-wise Adagrad, as libraries of embedding tables have it: a block W of k factors keeps one number,
s += |g|^2 / k, W -= rate g / sqrt(s). With 16-bit weights a row of data touches 12 bytes a block at k = 4 in
place of 32.

A row of the table, in float32 columns: [s of each field's block (F, rounded up to whole vectors of 8: A),
F k weights of `kind` (blocks.py), the linear weight and its own sum of squares from column `line` on].
Pairs move one after another, as in libffm, for any entries. Rows that have one entry in each field, in order
of the fields, move several pairs at once. The regulariser pulls on a block once for each pair.

Arrays of work space, int64 or float32 of the longest row: bw, ba: where the weights (in numbers of their
kind) and the sums (in floats) of each entry begin; fs: its field; x: its value, normalised.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from . import blocks, simd
from .ahead import fetch_entries
from .blocks import FLOAT32, both2, gather8, load8, put_both2, scatter8, spread_values, store8
from .ffm import longest_row
from .jit import inline, jit
from .losses import point_loss, point_slope
from .steps import ADAGRAD, sign, step_bias

ONE, ZERO = np.float32(1), np.float32(0)
AHEAD = 2  # rows of data by which memory is asked for in advance


@inline
def _list_row(a, b, r, csr, stride, sums, kind, work):
    """Fill the work space. Returns the number of entries, and whether entry t is the one of field t for
    all."""
    _, ids, fields, values, _ = csr
    bw, ba, fs, x, _, _ = work
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
def _dot(kind, k, table, at, other, pair):
    """<block at `at`, block at `other`>."""
    if k < 8:
        pair[0], pair[1] = at, other
        return blocks.dot_short(kind, k, table, pair)
    sum8 = simd.splat8(ZERO)
    for d in range(0, k, 8):
        sum8 = simd.fma(load8(kind, table, at + d), load8(kind, table, other + d), sum8)
    return simd.total8(sum8)


@inline
def _logit(kind, k, n, ordered, table, work, linear, line):
    """Pairs and linear part of a listed row."""
    bw, ba, fs, x, pair, _ = work
    z = ZERO
    for t in range(n):
        u, sum8 = t + 1, simd.splat8(ZERO)
        if ordered and k < 8:
            while u + 8 // k <= n:
                mine = load8(kind, table, bw[t] + k * u)
                others = gather8(kind, k, table, bw, u, k * t)
                sum8 = simd.fma(simd.mul(spread_values(k, x, u), mine), others, sum8)
                u += 8 // k
        dots = simd.total8(sum8)
        while u < n:
            dots += x[u] * _dot(kind, k, table, bw[t] + k * fs[u], bw[u] + k * fs[t], pair)
            u += 1
        z += x[t] * dots
        if linear:
            z += x[t] * table[ba[t] + line]
    return z


@inline
def _pull8(l28, l18, use_l1, w8):
    """Gradient of the regulariser."""
    pull = simd.mul(l28, w8)
    return simd.fma(l18, simd.sign(w8), pull) if use_l1 else pull


@inline
def _learn_blocks(kind, k, use_l1, t, u, kf, table, work, rate, l28, l18, dither):
    """The pairs of entry t with the entries of the fields u to u + 8 / k - 1; k = 2, 4."""
    bw, ba, _, x, _, _ = work
    mine, others = load8(kind, table, bw[t] + k * u), gather8(kind, k, table, bw, u, k * t)
    kx8 = simd.mul(simd.splat8(kf), spread_values(k, x, u))
    g = simd.fma(kx8, others, _pull8(l28, l18, use_l1, mine))
    h = simd.fma(kx8, mine, _pull8(l28, l18, use_l1, others))
    g2, h2 = simd.mul(g, g), simd.mul(h, h)
    twos = simd.add(blocks.even8(g2, h2), blocks.odd8(g2, h2))
    if k == 2:
        s = simd.join(simd.load4(table, ba[t] + u), blocks.floats4(table, ba, u, t))
        s = simd.fma(twos, simd.splat8(np.float32(0.5)), s)
        simd.store4(table, ba[t] + u, simd.low(s))
        blocks.put_floats4(table, ba, u, t, simd.high(s), simd.high(s))
        step = simd.div(simd.splat8(rate), simd.sqrt(s))
        step_g = blocks.spread2(simd.low(step), simd.low(step))
        step_h = blocks.spread2(simd.high(step), simd.high(step))
    else:
        fours = simd.add(blocks.even4(twos, twos), blocks.odd4(twos, twos))
        s4 = blocks.join2(blocks.load2(table, ba[t] + u), blocks.floats2(table, ba, u, t))
        s4 = simd.fma(fours, simd.splat4(np.float32(0.25)), s4)
        first, second = blocks.low2(s4, s4), blocks.high2(s4, s4)
        blocks.store2(table, ba[t] + u, first, first)
        blocks.put_floats2(table, ba, u, t, second, second)
        step4 = simd.div(simd.splat4(rate), simd.sqrt(s4))
        first, second = blocks.low2(step4, step4), blocks.high2(step4, step4)
        step_g, step_h = blocks.spread4(first, first), blocks.spread4(second, second)
    dither = blocks.next_dither(dither)
    store8(kind, table, bw[t] + k * u, simd.sub(mine, simd.mul(step_g, g)), dither)
    dither = blocks.next_dither(dither)
    scatter8(kind, k, table, bw, u, k * t, simd.sub(others, simd.mul(step_h, h)), dither)
    return dither


@inline
def _learn_both(kind, k, use_l1, kx, table, pair, sums, rate, l28, l18, dither):
    """The pair whose blocks begin at pair[0], pair[1] and whose sums are at sums[0], sums[1]; k = 2, 4."""
    s2 = blocks.floats2(table, sums, 0, 0)
    dither = blocks.next_dither(dither)
    if k == 4:
        w = gather8(kind, 4, table, pair, 0, 0)
        g = simd.fma(simd.splat8(kx), blocks.swap8(w, w), _pull8(l28, l18, use_l1, w))
        g2 = simd.mul(g, g)
        twos = simd.add(blocks.even4(g2, g2), blocks.odd4(g2, g2))
        fours = simd.add(blocks.even2(twos, twos), blocks.odd2(twos, twos))
        s2 = simd.fma(fours, blocks.low2(simd.splat4(np.float32(0.25)), simd.splat4(ZERO)), s2)
        step = simd.div(blocks.low2(simd.splat4(rate), simd.splat4(ZERO)), simd.sqrt(s2))
        moved = simd.sub(w, simd.mul(blocks.spread4(step, step), g))
        scatter8(kind, 4, table, pair, 0, 0, moved, dither)
    else:
        w4 = both2(kind, table, pair)
        pull = _pull8(simd.low(l28), simd.low(l18), use_l1, w4)
        g4 = simd.fma(simd.splat4(kx), blocks.swap4(w4, w4), pull)
        g2 = simd.mul(g4, g4)
        twos = simd.add(blocks.even2(g2, g2), blocks.odd2(g2, g2))
        s2 = simd.fma(twos, blocks.low2(simd.splat4(np.float32(0.5)), simd.splat4(ZERO)), s2)
        step = simd.div(blocks.low2(simd.splat4(rate), simd.splat4(ZERO)), simd.sqrt(s2))
        moved4 = simd.sub(w4, simd.mul(blocks.double2(step, step), g4))
        put_both2(kind, table, pair, moved4, simd.low(dither))
    blocks.put_floats2(table, sums, 0, 0, s2, s2)
    return dither


@inline
def _slopes(kind, use_l1, kx8, table, at, other, l28, l18):
    """8 factors of both blocks of a pair, and the gradients of both."""
    a, b = load8(kind, table, at), load8(kind, table, other)
    g = simd.fma(kx8, b, _pull8(l28, l18, use_l1, a))
    h = simd.fma(kx8, a, _pull8(l28, l18, use_l1, b))
    return a, b, g, h


@inline
def _move_both(kind, table, at, other, a, b, g, h, step_g, step_h, dither):
    """Store 8 moved factors of both blocks of a pair."""
    dither = blocks.next_dither(dither)
    store8(kind, table, at, simd.sub(a, simd.mul(step_g, g)), dither)
    dither = blocks.next_dither(dither)
    store8(kind, table, other, simd.sub(b, simd.mul(step_h, h)), dither)
    return dither


@inline
def _learn_long(kind, k, use_l1, kx, table, at, other, sum_a, sum_b, rate, l28, l18, dither):
    """The pair whose blocks begin at `at`, `other`, their sums at sum_a, sum_b; k a multiple of 8."""
    kx8, g2, h2 = simd.splat8(kx), simd.splat8(ZERO), simd.splat8(ZERO)
    for d in range(0, k, 8):
        a, b, g, h = _slopes(kind, use_l1, kx8, table, at + d, other + d, l28, l18)
        g2, h2 = simd.fma(g, g, g2), simd.fma(h, h, h2)
    share = np.float32(1 / k)
    s = table[sum_a] + share * simd.total8(g2)
    q = table[sum_b] + share * simd.total8(h2)
    step_g, step_h = (
        simd.splat8(rate / np.float32(math.sqrt(s))),
        simd.splat8(rate / np.float32(math.sqrt(q))),
    )
    for d in range(0, k, 8):
        a, b, g, h = _slopes(kind, use_l1, kx8, table, at + d, other + d, l28, l18)
        dither = _move_both(kind, table, at + d, other + d, a, b, g, h, step_g, step_h, dither)
    table[sum_a] = s
    table[sum_b] = q
    return dither


@inline
def _learn_two(kind, k, use_l1, t, u, kf, table, work, rate, l28, l18, dither):
    """The pairs of entry t with u and u + 1, of the fields of the same numbers; k a multiple of 8."""
    bw, ba, _, x, _, _ = work
    at, first, second = bw[t] + k * u, bw[u] + k * t, bw[u + 1] + k * t
    x0, x1 = simd.splat8(kf * x[u]), simd.splat8(kf * x[u + 1])
    zero = simd.splat8(ZERO)
    g2, h2, p2, q2 = zero, zero, zero, zero
    for d in range(0, k, 8):
        a, b, g, h = _slopes(kind, use_l1, x0, table, at + d, first + d, l28, l18)
        c, e, p, q = _slopes(kind, use_l1, x1, table, at + k + d, second + d, l28, l18)
        g2, h2, p2, q2 = simd.fma(g, g, g2), simd.fma(h, h, h2), simd.fma(p, p, p2), simd.fma(q, q, q2)
    mine = simd.add(blocks.even8(g2, p2), blocks.odd8(g2, p2))
    others = simd.add(blocks.even8(h2, q2), blocks.odd8(h2, q2))
    twos = simd.add(blocks.even8(mine, others), blocks.odd8(mine, others))
    fours = simd.add(blocks.even4(twos, twos), blocks.odd4(twos, twos))  # of g, p, h, q
    s4 = blocks.join2(blocks.load2(table, ba[t] + u), blocks.floats2(table, ba, u, t))
    s4 = simd.fma(fours, simd.splat4(np.float32(1 / k)), s4)
    blocks.store2(table, ba[t] + u, blocks.low2(s4, s4), blocks.low2(s4, s4))
    blocks.put_floats2(table, ba, u, t, blocks.high2(s4, s4), blocks.high2(s4, s4))
    step = simd.div(simd.splat4(rate), simd.sqrt(s4))
    step_g, step_p = blocks.lane0(step, step), blocks.lane1(step, step)
    step_h, step_q = blocks.lane2(step, step), blocks.lane3(step, step)
    if k == 8:
        dither = _move_both(kind, table, at, first, a, b, g, h, step_g, step_h, dither)
        dither = _move_both(kind, table, at + k, second, c, e, p, q, step_p, step_q, dither)
    else:
        for d in range(0, k, 8):
            a, b, g, h = _slopes(kind, use_l1, x0, table, at + d, first + d, l28, l18)
            dither = _move_both(kind, table, at + d, first + d, a, b, g, h, step_g, step_h, dither)
        for d in range(0, k, 8):
            a, b, g, h = _slopes(kind, use_l1, x1, table, at + k + d, second + d, l28, l18)
            dither = _move_both(kind, table, at + k + d, second + d, a, b, g, h, step_p, step_q, dither)
    return dither


@inline
def _learn(kind, k, use_l1, n, ordered, kappa, table, work, rate, penalty, dither):
    """One step on the blocks of all pairs of a listed row."""
    bw, ba, fs, x, pair, sums = work
    l28, l18 = simd.splat8(penalty[0]), simd.splat8(penalty[1])
    for t in range(n):
        kf, u = kappa * x[t], t + 1
        if ordered and k < 8:
            while u + 8 // k <= n:
                dither = _learn_blocks(kind, k, use_l1, t, u, kf, table, work, rate, l28, l18, dither)
                u += 8 // k
        elif ordered:
            while u + 2 <= n:
                dither = _learn_two(kind, k, use_l1, t, u, kf, table, work, rate, l28, l18, dither)
                u += 2
        while u < n:
            at, other = bw[t] + k * fs[u], bw[u] + k * fs[t]
            sum_a, sum_b, kx = ba[t] + fs[u], ba[u] + fs[t], kf * x[u]
            if k < 8:
                pair[0], pair[1], sums[0], sums[1] = at, other, sum_a, sum_b
                dither = _learn_both(kind, k, use_l1, kx, table, pair, sums, rate, l28, l18, dither)
            else:
                dither = _learn_long(
                    kind, k, use_l1, kx, table, at, other, sum_a, sum_b, rate, l28, l18, dither
                )
            u += 1


@inline
def _learn_linear(use_l1, n, kappa, table, work, line, rate, penalty):
    """One step of Adagrad on the linear weight of every entry."""
    _, ba, _, x, _, _ = work
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
def _work_space(longest):
    """bw, ba, fs, x, and two places for a pair of offsets."""
    return (
        np.empty(longest, np.int64),
        np.empty(longest, np.int64),
        np.empty(longest, np.int64),
        np.empty(longest + 8, np.float32),
        np.empty(2, np.int64),
        np.empty(2, np.int64),
    )


@cache
def make_sweep(loss: int, use_l1: int, use_bias: int, kind: int, k: int):
    """Kernel that learns from one row after the other; closes over ints, as the disk cache demands."""

    @jit
    def sweep(csr, target, order, rows, shape, bias, hyper, penalty, sums):
        (indptr, ids, _, _, norms), (labels, weights) = csr, target
        linear, square_columns, line = shape
        stride, table = rows.shape[1], rows.reshape(rows.size)
        work = _work_space(longest_row(indptr, order))
        loss_sum, weight_sum = 0.0, 0.0
        for p in range(len(order)):
            i = order[p]
            if p + AHEAD < len(order):
                later = order[p + AHEAD]
                fetch_entries(rows, ids, indptr[later], indptr[later + 1], stride)
            n, ordered = _list_row(
                indptr[i], indptr[i + 1], norms[i], csr, stride, square_columns, kind, work
            )
            z = _logit(kind, k, n, ordered, table, work, linear, line)
            if use_bias:
                z += bias[0]
            weight = np.float64(weights[i]) if weights.size > 0 else 1.0
            loss_sum += weight * point_loss(loss, z, labels[i])
            weight_sum += weight
            kappa = np.float32(weight * point_slope(loss, z, labels[i]))
            dither = blocks.start_dither(np.uint32(i))
            _learn(kind, k, use_l1, n, ordered, kappa, table, work, hyper[0], penalty, dither)
            if linear:
                _learn_linear(use_l1, n, kappa, table, work, line, hyper[0], penalty)
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
        linear, square_columns, line = shape
        stride, table = rows.shape[1], rows.reshape(rows.size)
        work = _work_space(longest_row(indptr, np.arange(len(indptr) - 1)))
        for i in range(len(logit)):
            if i + AHEAD < len(logit):
                fetch_entries(rows, ids, indptr[i + AHEAD], indptr[i + AHEAD + 1], stride)
            n, ordered = _list_row(
                indptr[i], indptr[i + 1], norms[i], csr, stride, square_columns, kind, work
            )
            logit[i] = b0 + _logit(kind, k, n, ordered, table, work, linear, line)

    return forward
