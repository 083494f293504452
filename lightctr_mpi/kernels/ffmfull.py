"""Compact FFM (ffmcompact.py) on full rows: exactly one entry in each of the F fields, in their order.

The table row of field t's entry holds its blocks W[t, 0] .. W[t, F - 1] side by side. What they meet,
W[u, t], lies in F different rows. `fill` copies each row once, turned about, so that T[t, u] = W[u, t]; from
then on everything is read and written in the order of memory: eight numbers, or the sums of squares of eight
blocks, at a time.

A: number of fields, rounded up to 8. Table rows have room for A sums (at least one in those of no field) and
A blocks (zeros in those of no field), so that whole vectors can be moved; neither changes. Block (t, t)
belongs to no pair. It goes through the same motions and is put back.

Other letters as in ffmcompact.py. `turned` is work space, float32, zeros at first:
    T[A A k]
    xs[A min(k, 8)]: the value of each entry, in all lanes that meet it
    along[max(k, 8)]: what all blocks of the table row at hand move along (ffmshare.py), in each block of a
        vector
    slopes[A k], steps[A]: gradient of the table row at hand, the rate over the root of each of its sums
    own[k]: what is put back
    noise[64]: random bits for rounding (blocks.py), new for each table row, used by all its blocks
`scales` is (kappa x_t, rate, l2, l1), each in all lanes.
"""

from __future__ import annotations

import numpy as np

from . import blocks, simd
from .ahead import fetch_entries
from .blocks import FLOAT32, load8, noise_of, store8
from .ffmpairs import pull_of
from .jit import inline, jit

ZERO = np.float32(0)
LARGEST = 1 << 24  # floats that T may have; longer rows go pair by pair


@jit
def turning_space(a, k):
    """T, xs, along, slopes, steps, own, noise; without room in T if there are too many fields."""
    size = a * a * k
    return (
        np.zeros(size if size <= LARGEST else 0, np.float32),
        np.zeros(a * min(k, 8), np.float32),
        np.zeros(max(k, 8), np.float32),
        np.zeros(a * k, np.float32),
        np.zeros(a, np.float32),
        np.zeros(k, np.float32),
        np.zeros(64, np.float32),
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
    return simd.load8(xs, min(k, 8) * u)


@inline
def _set_value(k, xs, t, value):
    for d in range(min(k, 8) * t, min(k, 8) * (t + 1)):
        xs[d] = value


@inline
def fill(kind, k, n, a, bw, x, table, turned):
    """Fill T and xs. Returns the sum over the pairs of x_t x_u <W[t, u], W[u, t]>."""
    T, xs = turned[0], turned[1]
    z8, several, further = simd.splat8(ZERO), max(8 // k, 1), max(8, k)
    for t in range(n):
        _set_value(k, xs, t, ZERO)
    for t in range(n):
        even8, odd8, row, met, u = simd.splat8(ZERO), simd.splat8(ZERO), bw[t], t * a * k, 0
        while u < t:  # T has the blocks of the rows above; the values of those below are still 0
            x8, next_x8 = _values(k, xs, u), _values(k, xs, u + several)
            for d in range(0, k, 8):
                at = k * u + d
                w8, next_w8 = load8(kind, table, row + at), load8(kind, table, row + at + further)
                _turn(k, a, t, u, d, w8, T)
                _turn(k, a, t, u + several, d, next_w8, T)
                # Two sums: an addition would wait for the one before.
                even8 = simd.fma(simd.mul(w8, x8), simd.load8(T, met + at), even8)
                odd8 = simd.fma(simd.mul(next_w8, next_x8), simd.load8(T, met + at + further), odd8)
            u += 2 * several
        while u < n:
            for d in range(0, k, 8):
                _turn(k, a, t, u, d, load8(kind, table, row + k * u + d), T)
            u += several
        sum8 = simd.add(even8, odd8)
        z8 = simd.fma(simd.splat8(x[t]), sum8, z8)
        _set_value(k, xs, t, x[t])
        for d in range(met + k * t, met + k * t + k):
            T[d] = ZERO
    return simd.total8(z8)


@inline
def _find_along(k, n, met, factor, turned):
    """Set `along` for the table row whose part of T begins at `met`; factor: share times kappa x_t."""
    T, xs, along = turned[0], turned[1], turned[2]
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
                sum8 = simd.fma(_values(k, xs, u), simd.load8(T, met + k * u + d), sum8)
            simd.store8(along, d, simd.mul(factor8, sum8))


@inline
def _find_slopes(kind, k, use_l1, use_share, n, row, met, scales, table, turned):
    """The gradient of all numbers of a table row."""
    T, xs, along, slopes = turned[0], turned[1], turned[2], turned[3]
    several = max(8 // k, 1)
    for u in range(0, n, several):
        kx8 = simd.mul(scales[0], _values(k, xs, u))
        for d in range(0, k, 8):
            v = k * u + d
            pull = pull_of(scales[2], scales[3], use_l1, load8(kind, table, row + v))
            if use_share:
                pull = simd.add(pull, simd.load8(along, d))
            simd.store8(slopes, v, simd.fma(kx8, simd.load8(T, met + v), pull))


@inline
def _half_sums(a8, b8):
    """In each half of the vector: two sums of neighbours of a, two of b."""
    return simd.add(blocks.pairs_even(a8, b8), blocks.pairs_odd(a8, b8))


@inline
def _square(k, slopes, v):
    """Squares of k slopes from v on (a multiple of 8), added up to one vector."""
    sum8 = simd.splat8(ZERO)
    for d in range(v, v + k, 8):
        g = simd.load8(slopes, d)
        sum8 = simd.fma(g, g, sum8)
    return sum8


@inline
def _four_squares(k, slopes, v):
    """Those of four times k slopes: a half of each in either half of the vector."""
    first = _half_sums(_square(k, slopes, v), _square(k, slopes, v + k))
    return _half_sums(first, _half_sums(_square(k, slopes, v + 2 * k), _square(k, slopes, v + 3 * k)))


@inline
def _find_steps(k, n, sums, rate8, table, turned):
    """Let the sum of each block grow; `steps`: the rate over its root.

    Steps lie in the order in which the squares come about: of every eight 0 1 4 5 2 3 6 7 for k = 2,
    0 2 4 6 1 3 5 7 for k = 4.
    """
    slopes, steps, part = turned[3], turned[4], simd.splat8(np.float32(1 / k))
    for u in range(0, n, 8):
        s = simd.load8(table, sums + u)
        if k == 2:
            squares = _half_sums(_square(8, slopes, 2 * u), _square(8, slopes, 2 * u + 8))
            s = simd.fma(squares, part, blocks.cross(s, s))
            simd.store8(table, sums + u, blocks.cross(s, s))
        elif k == 4:
            s = simd.fma(_four_squares(8, slopes, 4 * u), part, blocks.apart(s, s))
            simd.store8(table, sums + u, blocks.together(s, s))
        else:
            first, second = _four_squares(k, slopes, k * u), _four_squares(k, slopes, k * u + 4 * k)
            squares = simd.add(blocks.low_halves(first, second), blocks.high_halves(first, second))
            s = simd.fma(squares, part, s)
            simd.store8(table, sums + u, s)
        simd.store8(steps, u, simd.mul(rate8, simd.rsqrt(s)))


@inline
def _move(kind, at, v, step8, table, turned, i):
    """Move the 8 numbers whose slopes begin at v; i: which of the 8 vectors of noise rounds them."""
    moved = simd.sub(load8(kind, table, at), simd.mul(step8, simd.load8(turned[3], v)))
    store8(kind, table, at, moved, simd.load8(turned[6], 8 * i))


@inline
def _move_all(kind, k, n, row, table, turned):
    steps = turned[4]
    for u in range(0, n, 8):
        v, step = k * u, simd.load8(steps, u)
        if k == 2:
            _move(kind, row + v, v, blocks.low_twice(step, step), table, turned, 0)
            _move(kind, row + v + 8, v + 8, blocks.high_twice(step, step), table, turned, 1)
        elif k == 4:
            _move(kind, row + v, v, blocks.each0(step, step), table, turned, 0)
            _move(kind, row + v + 8, v + 8, blocks.each1(step, step), table, turned, 1)
            _move(kind, row + v + 16, v + 16, blocks.each2(step, step), table, turned, 2)
            _move(kind, row + v + 24, v + 24, blocks.each3(step, step), table, turned, 3)
        else:
            for i in range(8):
                step = simd.splat8(steps[u + i])
                for d in range(0, k, 8):
                    at = k * (u + i) + d
                    _move(kind, row + at, at, step, table, turned, (i + d // 8) % 8)


@inline
def _make_noise(kind, dither, noise):
    for i in range(0, 64, 8):
        dither = blocks.next_dither(dither)
        simd.store8(noise, i, noise_of(kind, dither))
    return dither


@inline
def learn(kind, k, use_l1, use_share, n, kappa, share, places, rows, turned, hyper, dither, coming):
    """One step on the blocks of all pairs of a full row that `fill` was given.

    places: bw, ba, x; hyper: rate, l2, l1; coming: ids, and the first of n entries whose table rows are asked
    for.
    """
    (bw, ba, x), (rate, l2, l1), (ids, ahead) = places, hyper, coming
    own, noise, a, table = turned[5], turned[6], len(turned[4]), rows.reshape(rows.size)
    columns = k if kind == FLOAT32 else k // 2
    for t in range(n):
        fetch_entries(rows, ids, min(ahead + t, len(ids)), min(ahead + t + 1, len(ids)), rows.shape[1])
        kx, met, place = kappa * x[t], t * a * k, ba[t] + a + columns * t
        scales = simd.splat8(kx), simd.splat8(rate), simd.splat8(l2), simd.splat8(l1)
        own_sum = table[ba[t] + t]
        for c in range(columns):
            own[c] = table[place + c]
        if use_share:
            _find_along(k, n, met, share * kx, turned)
        dither = _make_noise(kind, dither, noise)
        # One after the other: a move right behind its slopes would wait for the root of its sum.
        _find_slopes(kind, k, use_l1, use_share, n, bw[t], met, scales, table, turned)
        _find_steps(k, n, ba[t], scales[1], table, turned)
        _move_all(kind, k, n, bw[t], table, turned)
        table[ba[t] + t] = own_sum
        for c in range(columns):
            table[place + c] = own[c]
