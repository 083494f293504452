"""Compact FFM (ffmcompact.py) on full rows: exactly one entry in each of the F fields, in their order.

The table row of field t's entry holds its blocks W[t, 0] .. W[t, F - 1] side by side. What they meet, W[u, t],
lies in F different rows. `fill` copies each row once, turned about, so that T[t, u] = W[u, t]; from then on
everything is read and written in the order of memory, eight blocks at a time: eight gradients, eight sums of
squares in one vector, one reciprocal root for all of them.

A: number of fields, rounded up to 8. Table rows have room for A sums (at least one in those of no field) and
A blocks (zeros in those of no field), so that whole vectors can be moved; neither changes.
Block (t, t) belongs to no pair. It goes through the same motions and is put back.

Letters as in ffmcompact.py. `turned` is (T, xs, along, moves, own), float32, zeros at first: T[A A k]; xs[A k],
the value of each entry, k times if k < 8 (else A of them); along[k or 8], what all blocks of the table row at hand
move along (ffmshare.py), in each block of a vector; moves[8 k + 8], gradients of eight blocks and their steps;
own[k], what is put back. `scales` is (kappa x_t, rate, l2, l1), each in all lanes.
"""

from __future__ import annotations

import numpy as np

from . import blocks, simd
from .ahead import fetch_entries
from .blocks import FLOAT32, load8, store8
from .ffmpairs import pull_of
from .jit import inline, jit

ZERO = np.float32(0)
LARGEST = 1 << 24  # floats that T may have; longer rows go pair by pair


@jit
def turning_space(a, k):
    """T, xs, along, moves, own; without room in T if there are too many fields."""
    size = a * a * k
    return (
        np.zeros(size if size <= LARGEST else 0, np.float32),
        np.zeros(a * k, np.float32),
        np.zeros(max(k, 8), np.float32),
        np.zeros(8 * k + 8, np.float32),
        np.zeros(k, np.float32),
    )


@inline
def _turn(k, a, t, u, d, w8, T):
    """Put 8 numbers of table row t, from number d of block u on, where T has them."""
    if k == 2:
        low, high = simd.low(w8), simd.high(w8)
        first, second = blocks.low2(low, low), blocks.high2(low, low)
        blocks.store2(T, 2 * (u * a + t), first, first)
        blocks.store2(T, 2 * ((u + 1) * a + t), second, second)
        first, second = blocks.low2(high, high), blocks.high2(high, high)
        blocks.store2(T, 2 * ((u + 2) * a + t), first, first)
        blocks.store2(T, 2 * ((u + 3) * a + t), second, second)
    elif k == 4:
        simd.store4(T, 4 * (u * a + t), simd.low(w8))
        simd.store4(T, 4 * ((u + 1) * a + t), simd.high(w8))
    else:
        simd.store8(T, k * (u * a + t) + d, w8)


@inline
def _values(k, xs, u):
    """The values of the entries that the blocks of a vector meet, u the first."""
    return simd.load8(xs, k * u) if k < 8 else simd.splat8(xs[u])


@inline
def _set_value(k, xs, t, value):
    if k < 8:
        for d in range(k * t, k * t + k):
            xs[d] = value
    else:
        xs[t] = value


@inline
def fill(kind, k, n, a, bw, x, table, turned):
    """Fill T and xs. Returns the sum over the pairs of x_t x_u <W[t, u], W[u, t]>."""
    T, xs, _, _, _ = turned
    z8, several = simd.splat8(ZERO), max(8 // k, 1)
    for t in range(n):
        _set_value(k, xs, t, ZERO)
    for t in range(n):
        sum8, row, met, u = simd.splat8(ZERO), bw[t], t * a * k, 0
        while u < t:  # T has the blocks of the rows above; the values of those below are still 0
            x8 = _values(k, xs, u)
            for d in range(0, k, 8):
                w8 = load8(kind, table, row + k * u + d)
                _turn(k, a, t, u, d, w8, T)
                sum8 = simd.fma(simd.mul(w8, x8), simd.load8(T, met + k * u + d), sum8)
            u += several
        while u < n:
            for d in range(0, k, 8):
                _turn(k, a, t, u, d, load8(kind, table, row + k * u + d), T)
            u += several
        z8 = simd.fma(simd.splat8(x[t]), sum8, z8)
        _set_value(k, xs, t, x[t])
        for d in range(met + k * t, met + k * t + k):
            T[d] = ZERO
    return simd.total8(z8)


@inline
def _find_along(k, n, met, factor, turned):
    """Set `along` for the table row whose part of T begins at `met`; factor: share times kappa x_t."""
    T, xs, along, _, _ = turned
    factor8 = simd.splat8(factor)
    if k < 8:
        sum8 = simd.splat8(ZERO)
        for v in range(0, k * n, 8):
            sum8 = simd.fma(simd.load8(xs, v), simd.load8(T, met + v), sum8)
        sum8 = simd.add(sum8, blocks.swap8(sum8, sum8))
        if k == 2:
            sum8 = simd.add(sum8, blocks.swap2(sum8, sum8))
        simd.store8(along, 0, simd.mul(factor8, sum8))
    else:
        for d in range(0, k, 8):
            sum8 = simd.splat8(ZERO)
            for u in range(n):
                sum8 = simd.fma(simd.splat8(xs[u]), simd.load8(T, met + k * u + d), sum8)
            simd.store8(along, d, simd.mul(factor8, sum8))


@inline
def _gradient(kind, k, use_l1, use_share, u, d, row, met, scales, table, turned):
    """8 numbers of a table row, from number d of block u on, and their gradient."""
    T, xs, along, _, _ = turned
    v = k * u + d
    w8 = load8(kind, table, row + v)
    kx8 = simd.mul(scales[0], _values(k, xs, u))
    g8 = simd.fma(kx8, simd.load8(T, met + v), pull_of(scales[2], scales[3], use_l1, w8))
    return w8, simd.add(g8, simd.load8(along, d)) if use_share else g8


@inline
def _half_sums(a8, b8):
    """In each half of the vector: two sums of neighbours of a, two of b."""
    return simd.add(blocks.pairs_even(a8, b8), blocks.pairs_odd(a8, b8))


@inline
def _step(rate8, s8):
    return simd.div(rate8, simd.sqrt(s8))


@inline
def _move(kind, table, at, w8, step8, g8, dither):
    dither = blocks.next_dither(dither)
    store8(kind, table, at, simd.sub(w8, simd.mul(step8, g8)), dither)
    return dither


@inline
def _learn_eight2(kind, use_l1, use_share, u, row, sums, met, scales, table, turned, dither):
    """Blocks u to u + 7 of a table row, k = 2; their sums in the order 0 1 4 5 2 3 6 7 within."""
    v = 2 * u
    w, g = _gradient(kind, 2, use_l1, use_share, u, 0, row, met, scales, table, turned)
    q, h = _gradient(kind, 2, use_l1, use_share, u + 4, 0, row, met, scales, table, turned)
    s = simd.load8(table, sums + u)
    squares = _half_sums(simd.mul(g, g), simd.mul(h, h))
    s = simd.fma(squares, simd.splat8(np.float32(0.5)), blocks.cross(s, s))
    simd.store8(table, sums + u, blocks.cross(s, s))
    step = _step(scales[1], s)
    dither = _move(kind, table, row + v, w, blocks.low_twice(step, step), g, dither)
    return _move(kind, table, row + v + 8, q, blocks.high_twice(step, step), h, dither)


@inline
def _learn_eight4(kind, use_l1, use_share, u, row, sums, met, scales, table, turned, dither):
    """Blocks u to u + 7 of a table row, k = 4; their sums in the order 0 2 4 6 1 3 5 7 within."""
    v = 4 * u
    w0, g0 = _gradient(kind, 4, use_l1, use_share, u, 0, row, met, scales, table, turned)
    w1, g1 = _gradient(kind, 4, use_l1, use_share, u + 2, 0, row, met, scales, table, turned)
    w2, g2 = _gradient(kind, 4, use_l1, use_share, u + 4, 0, row, met, scales, table, turned)
    w3, g3 = _gradient(kind, 4, use_l1, use_share, u + 6, 0, row, met, scales, table, turned)
    s = simd.load8(table, sums + u)
    first = _half_sums(simd.mul(g0, g0), simd.mul(g1, g1))
    second = _half_sums(simd.mul(g2, g2), simd.mul(g3, g3))
    s = simd.fma(_half_sums(first, second), simd.splat8(np.float32(0.25)), blocks.apart(s, s))
    simd.store8(table, sums + u, blocks.together(s, s))
    step = _step(scales[1], s)
    dither = _move(kind, table, row + v, w0, blocks.each0(step, step), g0, dither)
    dither = _move(kind, table, row + v + 8, w1, blocks.each1(step, step), g1, dither)
    dither = _move(kind, table, row + v + 16, w2, blocks.each2(step, step), g2, dither)
    return _move(kind, table, row + v + 24, w3, blocks.each3(step, step), g3, dither)


@inline
def _square(kind, k, use_l1, use_share, u, i, row, met, scales, table, turned):
    """Squared gradient of block u + i, added up to one vector; the gradient goes to `moves`."""
    moves, sum8 = turned[3], simd.splat8(ZERO)
    for d in range(0, k, 8):
        _, g = _gradient(kind, k, use_l1, use_share, u + i, d, row, met, scales, table, turned)
        simd.store8(moves, k * i + d, g)
        sum8 = simd.fma(g, g, sum8)
    return sum8


@inline
def _four_squares(kind, k, use_l1, use_share, u, i, row, met, scales, table, turned):
    """Of blocks u + i to u + i + 3: a half of each in either half of the vector."""
    a = _square(kind, k, use_l1, use_share, u, i, row, met, scales, table, turned)
    b = _square(kind, k, use_l1, use_share, u, i + 1, row, met, scales, table, turned)
    c = _square(kind, k, use_l1, use_share, u, i + 2, row, met, scales, table, turned)
    d = _square(kind, k, use_l1, use_share, u, i + 3, row, met, scales, table, turned)
    return _half_sums(_half_sums(a, b), _half_sums(c, d))


@inline
def _learn_eight(kind, k, use_l1, use_share, u, row, sums, met, scales, table, turned, dither):
    """Blocks u to u + 7 of a table row, k a multiple of 8."""
    moves = turned[3]
    first = _four_squares(kind, k, use_l1, use_share, u, 0, row, met, scales, table, turned)
    second = _four_squares(kind, k, use_l1, use_share, u, 4, row, met, scales, table, turned)
    squares = simd.add(blocks.low_halves(first, second), blocks.high_halves(first, second))
    s = simd.fma(squares, simd.splat8(np.float32(1 / k)), simd.load8(table, sums + u))
    simd.store8(table, sums + u, s)
    simd.store8(moves, 8 * k, _step(scales[1], s))
    for i in range(8):
        step = simd.splat8(moves[8 * k + i])
        for d in range(0, k, 8):
            at, g = row + k * (u + i) + d, simd.load8(moves, k * i + d)
            dither = _move(kind, table, at, load8(kind, table, at), step, g, dither)
    return dither


@inline
def _learn_row(kind, k, use_l1, use_share, n, row, sums, met, scales, table, turned, dither):
    """All blocks of a table row."""
    for u in range(0, n, 8):
        if k == 2:
            dither = _learn_eight2(
                kind, use_l1, use_share, u, row, sums, met, scales, table, turned, dither
            )
        elif k == 4:
            dither = _learn_eight4(
                kind, use_l1, use_share, u, row, sums, met, scales, table, turned, dither
            )
        else:
            dither = _learn_eight(
                kind, k, use_l1, use_share, u, row, sums, met, scales, table, turned, dither
            )
    return dither


@inline
def learn(
    kind, k, use_l1, use_share, n, a, kappa, share, places, rows, table, turned, rate, penalty, dither, ids, ahead
):
    """One step on the blocks of all pairs of a full row that `fill` was given.

    places: bw, ba, x. Asks on the way for the table rows of the n entries from `ahead` on.
    """
    (bw, ba, x), own = places, turned[4]
    columns = k if kind == FLOAT32 else k // 2
    for t in range(n):
        fetch_entries(rows, ids, min(ahead + t, len(ids)), min(ahead + t + 1, len(ids)), rows.shape[1])
        kx, met, place = kappa * x[t], t * a * k, ba[t] + a + columns * t
        scales = simd.splat8(kx), simd.splat8(rate), simd.splat8(penalty[0]), simd.splat8(penalty[1])
        own_sum = table[ba[t] + t]
        for c in range(columns):
            own[c] = table[place + c]
        if use_share:
            _find_along(k, n, met, share * kx, turned)
        dither = _learn_row(kind, k, use_l1, use_share, n, bw[t], ba[t], met, scales, table, turned, dither)
        table[ba[t] + t] = own_sum
        for c in range(columns):
            table[place + c] = own[c]
