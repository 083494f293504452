"""FFM whose blocks of a feature move together (kernels/ffm.py).

Think of a block as W[j, g] = V_j + D[j, g]: a part that all blocks of the feature have in common and one of
its own. Small steps along the gradients of D, and of V at `share` times the rate, move the block itself along

    d W[j, g] + share * sum over the blocks h of j that the row touches of d W[j, h]

so that neither V nor D has to be kept. With share = 0 blocks learn apart, as in libffm; the larger it is, the
closer the model keeps to a factorization machine. A block alone sees one pair of a row, all blocks of a
feature together see every pair. Only what the data say is shared, not the regulariser.

Letters as in kernels/ffm.py and kernels/ffmpairs.py.
"""

from __future__ import annotations

import numpy as np

from . import blocks, simd
from .blocks import FLOAT32, gather8, spread_values
from .jit import inline, jit

ZERO = np.float32(0)


@jit
def mix(m, k, at, T, touched, share, out):
    """out[:h] = the row of T that starts at `at` plus, on touched blocks, share times the sum of its blocks.

    out: float32[h + k] or longer, h = m k rounded up to 8.
    """
    h = (m * k + 7) // 8 * 8
    if k == 4:
        sum4, share4 = simd.splat4(ZERO), simd.splat4(share)
        for q in range(m):
            sum4 = simd.add(sum4, simd.load4(T, at + 4 * q))
        sum4 = simd.mul(share4, sum4)
        for q in range(m):
            part = simd.fma(simd.load4(touched, 4 * q), sum4, simd.load4(T, at + 4 * q))
            simd.store4(out, 4 * q, part)
    elif k % 8 == 0:
        for d in range(0, k, 8):
            sum8 = simd.splat8(ZERO)
            for q in range(m):
                sum8 = simd.add(sum8, simd.load8(T, at + q * k + d))
            sum8 = simd.mul(simd.splat8(share), sum8)
            for q in range(m):
                c = q * k + d
                simd.store8(out, c, simd.fma(simd.load8(touched, c), sum8, simd.load8(T, at + c)))
    elif k == 2:
        share4 = simd.splat4(share)
        sum2 = blocks.low2(simd.splat4(ZERO), share4)
        for q in range(m):
            sum2 = simd.add(sum2, blocks.load2(T, at + 2 * q))
        sum2 = simd.mul(blocks.low2(share4, share4), sum2)
        for q in range(m):
            part2 = simd.fma(blocks.load2(touched, 2 * q), sum2, blocks.load2(T, at + 2 * q))
            blocks.store2(out, 2 * q, part2, part2)
    else:
        for d in range(k):
            out[h + d] = ZERO
        for q in range(m):
            for d in range(k):
                out[h + d] += share * T[at + q * k + d]
        for q in range(m):
            for d in range(k):
                out[q * k + d] = T[at + q * k + d] + touched[q * k + d] * out[h + d]
    for c in range(m * k, h):
        out[c] = ZERO


@inline
def _add_rest(k, f, g, x, row, other, table, shared):
    """The pair (f, g) in shared[f] and shared[g]; k = 2 or 4."""
    if k == 4:
        mine4, other4 = simd.load4(table, row + 4 * g), simd.load4(table, other)
        simd.store4(shared, 4 * f, simd.fma(simd.splat4(x[g]), other4, simd.load4(shared, 4 * f)))
        simd.store4(shared, 4 * g, simd.fma(simd.splat4(x[f]), mine4, simd.load4(shared, 4 * g)))
    else:
        for d in range(2):
            shared[2 * f + d] += x[g] * table[other // table.shape[1], other % table.shape[1] + d]
            shared[2 * g + d] += x[f] * table[row // table.shape[1], row % table.shape[1] + 2 * g + d]


@inline
def fold(k, sum8, shared, f):
    """Add the blocks of k = 2 or 4 of a vector to shared[f]."""
    four = simd.add(simd.low(sum8), simd.high(sum8))
    if k == 4:
        simd.store4(shared, 4 * f, simd.add(four, simd.load4(shared, 4 * f)))
    else:
        two = simd.add(blocks.low2(four, four), blocks.high2(four, four))
        two = simd.add(two, blocks.load2(shared, 2 * f))
        blocks.store2(shared, 2 * f, two, two)


@inline
def logit(n, k, base, x, table, shared):
    """`ffmpairs.logit`, and shared[f] = sum over the fields g of x_g W[j_g, f]: float32[n k]."""
    z, pair, several = ZERO, np.empty(2, np.int64), max(8 // k, 1)
    for c in range(n * k):
        shared[c] = ZERO
    for f in range(n - 1):
        row, sum8, x8 = base[f], simd.splat8(ZERO), simd.splat8(x[f])
        g = f + 1
        if k < 8:
            of_f = simd.splat8(ZERO)
            while g + several <= n:
                mine = simd.load8(table, row + k * g)
                others = simd.mul(spread_values(k, x, g), gather8(FLOAT32, k, table, base, g, k * f))
                sum8, of_f = simd.fma(mine, others, sum8), simd.add(of_f, others)
                simd.store8(shared, k * g, simd.fma(x8, mine, simd.load8(shared, k * g)))
                g += several
            dots = simd.total8(sum8)
            fold(k, of_f, shared, f)
            while g < n:
                pair[0], pair[1] = row + k * g, base[g] + k * f
                dots += x[g] * blocks.dot_short(FLOAT32, k, table, pair)
                _add_rest(k, f, g, x, row, base[g] + k * f, table, shared)
                g += 1
            z += x[f] * dots
        else:
            while g < n:
                other8 = simd.splat8(x[g])
                for d in range(0, k, 8):
                    mine8 = simd.load8(table, row + k * g + d)
                    of_g = simd.mul(other8, simd.load8(table, base[g] + k * f + d))
                    sum8 = simd.fma(mine8, of_g, sum8)
                    simd.store8(shared, k * f + d, simd.add(of_g, simd.load8(shared, k * f + d)))
                    simd.store8(shared, k * g + d, simd.fma(x8, mine8, simd.load8(shared, k * g + d)))
                g += 1
            z += x[f] * simd.total8(sum8)
    return z


@inline
def scale(n, k, factor, x, shared):
    """Turn what `logit` left in `shared` into what all blocks of a field's entry move along.

    factor: share times the slope of the loss.
    """
    for f in range(n):
        for d in range(k * f, k * f + k):
            shared[d] *= factor * x[f]
