"""FFM on rows with exactly one entry in each field: pair by pair, as the definition has it (kernels/ffm.py).

Each pair f < g of fields owns two blocks of k floats, W[j_f, g] and W[j_g, f], that no other pair touches, so
that a gradient can be applied as soon as it is known and nothing has to be summed by field first. With k = 2
or 4 the pairs (f, g), (f, g + 1) .. that fill a vector of 8 go together: W[j_f, g] and W[j_f, g + 1] are
neighbours. Other k are multiples of 8.

Where one id stands in two fields of a row, its two moves follow one another, as in libffm.

base: int64[F] offset of the table row of each field's entry; x: float32[F] its value, normalised.
"""

from __future__ import annotations

import numpy as np

from . import blocks, simd
from .ahead import fetch_entries
from .blocks import FLOAT32, gather8, repeat_block, scatter8, spread_values
from .jit import inline
from .steps import step8

ZERO = np.float32(0)


@inline
def logit(n, k, base, x, table):
    """Sum over the pairs of x_f x_g <W[j_f, g], W[j_g, f]> of n fields."""
    z, pair, several = ZERO, np.empty(2, np.int64), max(8 // k, 1)
    for f in range(n - 1):
        row, g, sum8 = base[f], f + 1, simd.splat8(ZERO)
        if k < 8:
            while g + several <= n:
                others = gather8(FLOAT32, k, table, base, g, k * f)
                mine = simd.load8(table, row + k * g)
                sum8 = simd.fma(simd.mul(spread_values(k, x, g), mine), others, sum8)
                g += several
            dots = simd.total8(sum8)
            while g < n:
                pair[0], pair[1] = row + k * g, base[g] + k * f
                dots += x[g] * blocks.dot_short(FLOAT32, k, table, pair)
                g += 1
            z += x[f] * dots
        else:
            for h in range(g, n):
                x8, other = simd.splat8(x[h]), base[h] + k * f
                for d in range(0, k, 8):
                    part = simd.mul(x8, simd.load8(table, row + k * h + d))
                    sum8 = simd.fma(part, simd.load8(table, other + d), sum8)
            z += x[f] * simd.total8(sum8)
    return z


@inline
def pull_of(l28, l18, use_l1, w8):
    """Gradient of the regulariser."""
    pull = simd.mul(l28, w8)
    return simd.fma(l18, simd.sign(w8), pull) if use_l1 else pull


@inline
def _along(use_share, k, shared, f, pull):
    """`pull`, and what all blocks of field f's entry move along; k = 2 or 4."""
    return simd.add(pull, repeat_block(k, shared, k * f)) if use_share else pull


@inline
def _along_own(use_share, shared, at, pull):
    """`pull`, and what the blocks of the entries move along whose shares begin at `at`."""
    return simd.add(pull, simd.load8(shared, at)) if use_share else pull


@inline
def _learn_several(opt, use_l1, use_share, k, f, g, kf, base, x, shared, table, slot, rate8, l28, l18):
    """The pairs of f with g to g + 8 / k - 1; k = 2 or 4."""
    kx8 = simd.mul(simd.splat8(kf), spread_values(k, x, g))
    at = base[f] + k * g
    mine, others = simd.load8(table, at), gather8(FLOAT32, k, table, base, g, k * f)
    slope = simd.fma(kx8, mine, _along_own(use_share, shared, k * g, pull_of(l28, l18, use_l1, others)))
    along = _along(use_share, k, shared, f, pull_of(l28, l18, use_l1, mine))
    step8(opt, table, at, at + slot, simd.fma(kx8, others, along), rate8)
    if opt == 1:
        s = gather8(FLOAT32, k, table, base, g, k * f + slot)
        s = simd.fma(slope, slope, s)
        scatter8(FLOAT32, k, table, base, g, k * f + slot, s, s)
        slope = simd.mul(slope, simd.rsqrt(s))
    moved = simd.sub(others, simd.mul(rate8, slope))
    scatter8(FLOAT32, k, table, base, g, k * f, moved, moved)


@inline
def _learn_blocks(opt, use_l1, use_share, f, g, k, kx, base, shared, table, slot, rate8, l28, l18):
    """The pair (f, g); k a multiple of 8."""
    at, other, kx8 = base[f] + k * g, base[g] + k * f, simd.splat8(kx)
    for d in range(0, k, 8):
        a, b = simd.load8(table, at + d), simd.load8(table, other + d)
        along_a = _along_own(use_share, shared, k * f + d, pull_of(l28, l18, use_l1, a))
        along_b = _along_own(use_share, shared, k * g + d, pull_of(l28, l18, use_l1, b))
        step8(opt, table, at + d, at + d + slot, simd.fma(kx8, b, along_a), rate8)
        step8(opt, table, other + d, other + d + slot, simd.fma(kx8, a, along_b), rate8)


@inline
def _slope_of_both(use_l1, f, g, k, kx, pair, shared, table, l2, l1):
    """Gradient of the blocks at pair[0], pair[1] of fields f and g, behind one another, and the blocks; k =
    4."""
    w = blocks.gather4_f32(table, pair, 0, 0)
    along = simd.join(simd.load4(shared, 4 * f), simd.load4(shared, 4 * g))
    along = simd.add(along, pull_of(simd.splat8(l2), simd.splat8(l1), use_l1, w))
    return simd.fma(simd.splat8(kx), blocks.swap8(w, w), along), w


@inline
def _slope_of_both2(use_l1, f, g, k, kx, pair, shared, table, l2, l1):
    """The same for k = 2."""
    w = blocks.both2_f32(table, pair, 0, 0)
    along = blocks.join2(blocks.load2(shared, 2 * f), blocks.load2(shared, 2 * g))
    along = simd.add(along, pull_of(simd.splat4(l2), simd.splat4(l1), use_l1, w))
    return simd.fma(simd.splat4(kx), blocks.swap4(w, w), along), w


@inline
def _learn_last(opt, use_l1, f, g, k, kx, pair, states, shared, table, rate, l2, l1):
    """The pair (f, g), k = 2 or 4: its blocks at pair[0], pair[1], their state at states[0], states[1]."""
    if k == 4:
        slope, w = _slope_of_both(use_l1, f, g, k, kx, pair, shared, table, l2, l1)
        if opt == 1:
            s = simd.fma(slope, slope, blocks.gather4_f32(table, states, 0, 0))
            blocks.scatter4_f32(table, states, 0, 0, s, s)
            slope = simd.mul(slope, simd.rsqrt(s))
        moved = simd.sub(w, simd.mul(simd.splat8(rate), slope))
        blocks.scatter4_f32(table, pair, 0, 0, moved, moved)
    else:
        slope4, w4 = _slope_of_both2(use_l1, f, g, k, kx, pair, shared, table, l2, l1)
        if opt == 1:
            s4 = simd.fma(slope4, slope4, blocks.both2_f32(table, states, 0, 0))
            blocks.put2_f32(table, states, 0, 0, s4, s4)
            slope4 = simd.mul(slope4, simd.rsqrt(s4))
        moved4 = simd.sub(w4, simd.mul(simd.splat4(rate), slope4))
        blocks.put2_f32(table, pair, 0, 0, moved4, moved4)


@inline
def learn(opt, use_l1, use_share, n, k, kappa, base, x, shared, table, slot, rate, penalty, ids, ahead):
    """One step of SGD or Adagrad on the blocks of all pairs; the state begins `slot` columns further.

    Asks on the way for the table rows of the n entries from `ahead` on, which come next.
    shared: see ffmshare.py; zeros without `use_share`.
    """
    l2, l1 = penalty
    rate8, l28, l18 = simd.splat8(rate), simd.splat8(l2), simd.splat8(l1)
    pair, states, several = np.empty(2, np.int64), np.empty(2, np.int64), max(8 // k, 1)
    for f in range(n - 1):
        kf, g = kappa * x[f], f + 1
        fetch_entries(table, ids, min(ahead + f, len(ids)), min(ahead + f + 1, len(ids)), table.shape[1])
        if k < 8:
            while g + several <= n:
                _learn_several(
                    opt, use_l1, use_share, k, f, g, kf, base, x, shared, table, slot, rate8, l28, l18
                )
                g += several
            while g < n:
                pair[0], pair[1] = base[f] + k * g, base[g] + k * f
                states[0], states[1] = pair[0] + slot, pair[1] + slot
                _learn_last(opt, use_l1, f, g, k, kf * x[g], pair, states, shared, table, rate, l2, l1)
                g += 1
        else:
            for h in range(g, n):
                kx = kf * x[h]
                _learn_blocks(opt, use_l1, use_share, f, h, k, kx, base, shared, table, slot, rate8, l28, l18)


@inline
def _add_several(use_l1, k, f, g, kf, base, grads, x, shared, table, grad, l28, l18):
    """Gradient of the pairs of f with g to g + 8 / k - 1; k = 2 or 4."""
    kx8 = simd.mul(simd.splat8(kf), spread_values(k, x, g))
    mine = simd.load8(table, base[f] + k * g)
    others = gather8(FLOAT32, k, table, base, g, k * f)
    at = grads[f] + k * g
    along = _along(True, k, shared, f, pull_of(l28, l18, use_l1, mine))
    simd.store8(grad, at, simd.add(simd.load8(grad, at), simd.fma(kx8, others, along)))
    slope = simd.fma(kx8, mine, _along_own(True, shared, k * g, pull_of(l28, l18, use_l1, others)))
    total = simd.add(gather8(FLOAT32, k, grad, grads, g, k * f), slope)
    scatter8(FLOAT32, k, grad, grads, g, k * f, total, total)


@inline
def add(use_l1, n, k, kappa, base, grads, x, shared, table, grad, penalty):
    """Add the gradient of all pairs and of the regulariser.

    grads: int64[n] offset in `grad` of the row of each field's entry; shared: see ffmshare.py, or zeros.
    """
    l2, l1 = penalty
    l28, l18 = simd.splat8(l2), simd.splat8(l1)
    pair, targets, several = np.empty(2, np.int64), np.empty(2, np.int64), max(8 // k, 1)
    for f in range(n - 1):
        kf, g = kappa * x[f], f + 1
        if k < 8:
            while g + several <= n:
                _add_several(use_l1, k, f, g, kf, base, grads, x, shared, table, grad, l28, l18)
                g += several
            while g < n:
                pair[0], pair[1] = base[f] + k * g, base[g] + k * f
                targets[0], targets[1] = grads[f] + k * g, grads[g] + k * f
                if k == 4:
                    slope, _ = _slope_of_both(use_l1, f, g, k, kf * x[g], pair, shared, table, l2, l1)
                    slope = simd.add(slope, blocks.gather4_f32(grad, targets, 0, 0))
                    blocks.scatter4_f32(grad, targets, 0, 0, slope, slope)
                else:
                    slope4, _ = _slope_of_both2(use_l1, f, g, k, kf * x[g], pair, shared, table, l2, l1)
                    slope4 = simd.add(slope4, blocks.both2_f32(grad, targets, 0, 0))
                    blocks.put2_f32(grad, targets, 0, 0, slope4, slope4)
                g += 1
        else:
            for h in range(g, n):
                kx8 = simd.splat8(kf * x[h])
                for d in range(0, k, 8):
                    a = simd.load8(table, base[f] + k * h + d)
                    b = simd.load8(table, base[h] + k * f + d)
                    at, other = grads[f] + k * h + d, grads[h] + k * f + d
                    along = _along_own(True, shared, k * f + d, pull_of(l28, l18, use_l1, a))
                    simd.store8(grad, at, simd.add(simd.load8(grad, at), simd.fma(kx8, b, along)))
                    along = _along_own(True, shared, k * h + d, pull_of(l28, l18, use_l1, b))
                    simd.store8(grad, other, simd.add(simd.load8(grad, other), simd.fma(kx8, a, along)))
