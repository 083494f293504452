"""FFM on rows with exactly one entry in each field: pair by pair, as the definition has it (kernels/ffm.py).

Each pair f < g of fields owns two blocks of k floats, W[j_f, g] and W[j_g, f], that no other pair touches, so
that a gradient can be applied as soon as it is known and nothing has to be summed by field first. With k = 4
two pairs (f, g) and (f, g + 1) share a vector of 8: W[j_f, g] and W[j_f, g + 1] are neighbours.

Where one id stands in two fields of a row, its two moves follow one another, as in libffm.

base: int64[F] offset of the table row of each field's entry; x: float32[F] its value, normalised;
shared: float32[F k] what all blocks of an entry move along besides their own gradient (kernels/ffmshare.py),
or zeros.
"""

from __future__ import annotations

import numpy as np

from . import simd
from .ahead import fetch_entries
from .jit import inline, jit
from .steps import step8

ZERO = np.float32(0)


@inline
def _blocks4(table, at, first, second, f):
    """W[j_g, f] and W[j_h, f], for the entries whose rows begin at `first` and `second`."""
    return simd.join(simd.load4(table, first + at + 4 * f), simd.load4(table, second + at + 4 * f))


@jit
def logit(n, k, base, x, table):
    """Sum over the pairs of x_f x_g <W[j_f, g], W[j_g, f]>; n fields, k is 4 or a multiple of 8."""
    z = ZERO
    for f in range(n - 1):
        row, sum8 = base[f], simd.splat8(ZERO)
        if k == 4:
            g = f + 1
            while g + 1 < n:
                x8 = simd.join(simd.splat4(x[g]), simd.splat4(x[g + 1]))
                others = _blocks4(table, 0, base[g], base[g + 1], f)
                sum8 = simd.fma(simd.mul(x8, simd.load8(table, row + 4 * g)), others, sum8)
                g += 2
            z += x[f] * simd.total8(sum8)
            if g < n:
                part = simd.mul(simd.load4(table, row + 4 * g), simd.load4(table, base[g] + 4 * f))
                z += x[f] * x[g] * simd.total4(part)
        else:
            for g in range(f + 1, n):
                x8, other = simd.splat8(x[g]), base[g] + k * f
                for d in range(0, k, 8):
                    part = simd.mul(x8, simd.load8(table, row + k * g + d))
                    sum8 = simd.fma(part, simd.load8(table, other + d), sum8)
            z += x[f] * simd.total8(sum8)
    return z


@inline
def _move8(opt, table, at, g8, slot, rate8):
    """One step on 8 neighbouring coordinates."""
    step8(opt, table, at, at + slot, g8, rate8)


@inline
def _pull(l28, l18, use_l1, w8):
    """Gradient of the regulariser."""
    pull = simd.mul(l28, w8)
    return simd.fma(l18, simd.sign(w8), pull) if use_l1 else pull


@inline
def _learn_two(opt, use_l1, f, g, kf, base, x, shared, table, slot, rate8, l28, l18):
    """The pairs (f, g) and (f, g + 1), k = 4."""
    kx8 = simd.join(simd.splat4(kf * x[g]), simd.splat4(kf * x[g + 1]))
    at, first, second = base[f] + 4 * g, base[g] + 4 * f, base[g + 1] + 4 * f
    mine = simd.load8(table, at)
    others = simd.join(simd.load4(table, first), simd.load4(table, second))
    slope = simd.fma(kx8, mine, simd.add(_pull(l28, l18, use_l1, others), simd.load8(shared, 4 * g)))
    along4 = simd.load4(shared, 4 * f)
    along = simd.add(_pull(l28, l18, use_l1, mine), simd.join(along4, along4))
    _move8(opt, table, at, simd.fma(kx8, others, along), slot, rate8)
    if opt == 1:
        s = simd.join(simd.load4(table, first + slot), simd.load4(table, second + slot))
        s = simd.fma(slope, slope, s)
        simd.store4(table, first + slot, simd.low(s))
        simd.store4(table, second + slot, simd.high(s))
        slope = simd.div(slope, simd.sqrt(s))
    moved = simd.sub(others, simd.mul(rate8, slope))
    simd.store4(table, first, simd.low(moved))
    simd.store4(table, second, simd.high(moved))


@inline
def _learn_blocks(opt, use_l1, f, g, k, kx, base, shared, table, slot, rate8, l28, l18):
    """The pair (f, g); k a multiple of 8."""
    at, other = base[f] + k * g, base[g] + k * f
    kx8 = simd.splat8(kx)
    for d in range(0, k, 8):
        a, b = simd.load8(table, at + d), simd.load8(table, other + d)
        along_a = simd.add(_pull(l28, l18, use_l1, a), simd.load8(shared, k * f + d))
        along_b = simd.add(_pull(l28, l18, use_l1, b), simd.load8(shared, k * g + d))
        _move8(opt, table, at + d, simd.fma(kx8, b, along_a), slot, rate8)
        _move8(opt, table, other + d, simd.fma(kx8, a, along_b), slot, rate8)


@inline
def _learn_last(opt, use_l1, f, g, kx, base, shared, table, slot, rate, l2, l1):
    """One pair, k = 4: both of its blocks in a vector."""
    at, other = base[f] + 4 * g, base[g] + 4 * f
    a, b = simd.load4(table, at), simd.load4(table, other)
    w = simd.join(a, b)
    along = simd.join(simd.load4(shared, 4 * f), simd.load4(shared, 4 * g))
    along = simd.add(along, _pull(simd.splat8(l2), simd.splat8(l1), use_l1, w))
    slope = simd.fma(simd.splat8(kx), simd.join(b, a), along)
    if opt == 1:
        s = simd.join(simd.load4(table, at + slot), simd.load4(table, other + slot))
        s = simd.fma(slope, slope, s)
        simd.store4(table, at + slot, simd.low(s))
        simd.store4(table, other + slot, simd.high(s))
        slope = simd.div(slope, simd.sqrt(s))
    moved = simd.sub(w, simd.mul(simd.splat8(rate), slope))
    simd.store4(table, at, simd.low(moved))
    simd.store4(table, other, simd.high(moved))


@inline
def learn(opt, use_l1, n, k, kappa, base, x, shared, table, slot, rate, penalty, ids, ahead):
    """One step of SGD or Adagrad on the blocks of all pairs; the state begins `slot` columns further.

    Asks on the way for the table rows of the n entries from `ahead` on, which come next.
    """
    l2, l1 = penalty
    rate8, l28, l18 = simd.splat8(rate), simd.splat8(l2), simd.splat8(l1)
    for f in range(n - 1):
        kf, g = kappa * x[f], f + 1
        fetch_entries(table, ids, min(ahead + f, len(ids)), min(ahead + f + 1, len(ids)), table.shape[1])
        if k == 4:
            while g + 1 < n:
                _learn_two(opt, use_l1, f, g, kf, base, x, shared, table, slot, rate8, l28, l18)
                g += 2
            if g < n:
                _learn_last(opt, use_l1, f, g, kf * x[g], base, shared, table, slot, rate, l2, l1)
        else:
            for h in range(f + 1, n):
                kx = kf * x[h]
                _learn_blocks(opt, use_l1, f, h, k, kx, base, shared, table, slot, rate8, l28, l18)


@inline
def _add_two(use_l1, f, g, kf, base, grads, x, shared, table, grad, l28, l18):
    """Gradient of the pairs (f, g) and (f, g + 1), k = 4."""
    kx8 = simd.join(simd.splat4(kf * x[g]), simd.splat4(kf * x[g + 1]))
    mine = simd.load8(table, base[f] + 4 * g)
    others = _blocks4(table, 0, base[g], base[g + 1], f)
    at, first, second = grads[f] + 4 * g, grads[g] + 4 * f, grads[g + 1] + 4 * f
    along4 = simd.load4(shared, 4 * f)
    along = simd.add(_pull(l28, l18, use_l1, mine), simd.join(along4, along4))
    simd.store8(grad, at, simd.add(simd.load8(grad, at), simd.fma(kx8, others, along)))
    slope = simd.fma(kx8, mine, simd.add(_pull(l28, l18, use_l1, others), simd.load8(shared, 4 * g)))
    simd.store4(grad, first, simd.add(simd.load4(grad, first), simd.low(slope)))
    simd.store4(grad, second, simd.add(simd.load4(grad, second), simd.high(slope)))


@inline
def _add_last(use_l1, f, g, kx, base, grads, shared, table, grad, l28, l18):
    """Gradient of one pair, k = 4."""
    a, b = simd.load4(table, base[f] + 4 * g), simd.load4(table, base[g] + 4 * f)
    at, other = grads[f] + 4 * g, grads[g] + 4 * f
    along = simd.join(simd.load4(shared, 4 * f), simd.load4(shared, 4 * g))
    along = simd.add(along, _pull(l28, l18, use_l1, simd.join(a, b)))
    slope = simd.fma(simd.splat8(kx), simd.join(b, a), along)
    simd.store4(grad, at, simd.add(simd.load4(grad, at), simd.low(slope)))
    simd.store4(grad, other, simd.add(simd.load4(grad, other), simd.high(slope)))


@inline
def add(use_l1, n, k, kappa, base, grads, x, shared, table, grad, penalty):
    """Add the gradient of all pairs and of the regulariser.

    grads: int64[n] offset in `grad` of the row of each field's entry.
    """
    l28, l18 = simd.splat8(penalty[0]), simd.splat8(penalty[1])
    for f in range(n - 1):
        kf, g = kappa * x[f], f + 1
        if k == 4:
            while g + 1 < n:
                _add_two(use_l1, f, g, kf, base, grads, x, shared, table, grad, l28, l18)
                g += 2
            if g < n:
                _add_last(use_l1, f, g, kf * x[g], base, grads, shared, table, grad, l28, l18)
        else:
            for h in range(f + 1, n):
                kx8 = simd.splat8(kf * x[h])
                for d in range(0, k, 8):
                    a = simd.load8(table, base[f] + k * h + d)
                    b = simd.load8(table, base[h] + k * f + d)
                    at, other = grads[f] + k * h + d, grads[h] + k * f + d
                    along = simd.add(_pull(l28, l18, use_l1, a), simd.load8(shared, k * f + d))
                    simd.store8(grad, at, simd.add(simd.load8(grad, at), simd.fma(kx8, b, along)))
                    along = simd.add(_pull(l28, l18, use_l1, b), simd.load8(shared, k * h + d))
                    simd.store8(grad, other, simd.add(simd.load8(grad, other), simd.fma(kx8, a, along)))
