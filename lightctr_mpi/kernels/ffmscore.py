"""Logits of FFM rows whose fields have one entry at most, as most rows of most data are.

    pairs = sum_{f < g} x_f x_g <W[j_f, g], W[j_g, f]>

A field without an entry that counts (none, or an unseen id) has x = 0 and the first row of the table, which
stays in the cache. With k = 4 the pairs of fields f to f + 3 with g and g + 1 go together: they take 64
neighbouring bytes of two rows and 32 of four, so that each stretch of a row is read about once and not once
for each f. Rows with several entries in a field, or of few of many fields, go by ffm.py.

x: float32[F] value of each field's entry, normalised; base: int64[F] offset of its table row.
"""

from __future__ import annotations

import numpy as np

from . import blocks, ffmpairs, simd
from .ahead import fetch_entries
from .ffm import enter_row, row_logit, scratch, sum_fields
from .jit import inline, jit
from .rows import longest_row

ZERO = np.float32(0)
TILE = 4


@inline
def _find_fields(a, b, r, ids, fields, values, stride, x, base):
    """Fill x and base; whether no field has two entries that count, and most fields have one."""
    n_fields, n = len(x), 0
    for f in range(n_fields):
        x[f], base[f] = ZERO, 0
    for e in range(a, b):
        value = r * values[e] if values.size > 0 else r
        f = fields[e]
        if ids[e] >= 0 and f >= 0 and value != 0:
            if x[f] != 0:
                return False
            x[f], base[f] = value, np.int64(ids[e]) * stride
            n += 1
    return 4 * n >= 3 * n_fields


@inline
def _pair4(x, base, table, f, g):
    """x_f x_g W[j_f, g] W[j_g, f], k = 4 lanes."""
    product = simd.mul(simd.load4(table, base[f] + 4 * g), simd.load4(table, base[g] + 4 * f))
    return simd.mul(simd.splat4(x[f] * x[g]), product)


@inline
def _within_tile(x, base, table, f):
    """4 lanes: the pairs among fields f to f + 3."""
    first = simd.add(_pair4(x, base, table, f, f + 1), _pair4(x, base, table, f + 2, f + 3))
    second = simd.add(_pair4(x, base, table, f, f + 2), _pair4(x, base, table, f + 1, f + 3))
    third = simd.add(_pair4(x, base, table, f, f + 3), _pair4(x, base, table, f + 1, f + 2))
    return simd.add(first, simd.add(second, third))


@inline
def _two_blocks(table, p, q):
    return simd.join(simd.load4(table, p), simd.load4(table, q))


@inline
def _tile_sum(x, base, table, f):
    """8 lanes: the pairs of fields f to f + 3 with one another and with all fields behind them."""
    n, at = len(x), TILE * f
    a, b, c, d = base[f], base[f + 1], base[f + 2], base[f + 3]
    sum_a, sum_b = simd.splat8(ZERO), simd.splat8(ZERO)
    sum_c, sum_d = simd.splat8(ZERO), simd.splat8(ZERO)
    rest, g = _within_tile(x, base, table, f), f + TILE
    while g + 2 <= n:
        x8, p, q, to = blocks.spread_values(4, x, g), base[g] + at, base[g + 1] + at, 4 * g
        sum_a = simd.fma(simd.mul(x8, simd.load8(table, a + to)), _two_blocks(table, p, q), sum_a)
        sum_b = simd.fma(simd.mul(x8, simd.load8(table, b + to)), _two_blocks(table, p + 4, q + 4), sum_b)
        sum_c = simd.fma(simd.mul(x8, simd.load8(table, c + to)), _two_blocks(table, p + 8, q + 8), sum_c)
        sum_d = simd.fma(simd.mul(x8, simd.load8(table, d + to)), _two_blocks(table, p + 12, q + 12), sum_d)
        g += 2
    if g < n:
        for h in range(f, f + TILE):
            rest = simd.add(rest, _pair4(x, base, table, h, g))
    total = simd.join(rest, simd.splat4(ZERO))
    total = simd.fma(simd.splat8(x[f]), sum_a, total)
    total = simd.fma(simd.splat8(x[f + 1]), sum_b, total)
    total = simd.fma(simd.splat8(x[f + 2]), sum_c, total)
    return simd.fma(simd.splat8(x[f + 3]), sum_d, total)


@inline
def _pairs_by_tiles(x, base, table, ids, ahead, columns):
    """Sum over all pairs, k = 4; asks on the way for the table rows of the entries from `ahead` on."""
    n, f, total8, total4 = len(x), 0, simd.splat8(ZERO), simd.splat4(ZERO)
    while f + TILE <= n:
        fetch_entries(table, ids, min(ahead + f, len(ids)), min(ahead + f + TILE, len(ids)), columns)
        total8 = simd.add(total8, _tile_sum(x, base, table, f))
        f += TILE
    fetch_entries(table, ids, min(ahead + f, len(ids)), min(ahead + n, len(ids)), columns)
    for g in range(f, n):
        for h in range(g + 1, n):
            total4 = simd.add(total4, _pair4(x, base, table, g, h))
    return simd.total8(total8) + simd.total4(total4)


@jit
def forward(csr, table, shape, b0, logit):
    """logit[i] of every row; b0: float32, the bias or 0; shape: (fields, k, whether there is a linear part,
    float32 share of ffmshare)."""
    (indptr, ids, fields, values, norms), (n_fields, k, linear, _) = csr, shape
    T, _, _, by_entry, index, _ = scratch(longest_row(indptr, np.arange(len(indptr) - 1)), n_fields, k)
    base, x = np.empty(n_fields, np.int64), np.empty(n_fields, np.float32)
    column, stride = (n_fields * k + 7) // 8 * 8, table.shape[1]
    for i in range(len(logit)):
        a, b = indptr[i], indptr[i + 1]
        usual = _find_fields(a, b, norms[i], ids, fields, values, stride, x, base)
        usual = usual and (k == 2 or k == 4 or k % 8 == 0)
        if usual and k == 4:
            z = _pairs_by_tiles(x, base, table, ids, b, column + linear)
        elif i + 1 < len(logit):
            fetch_entries(table, ids, b, indptr[i + 2], column + linear)
        if not usual:
            n, m = enter_row(a, b, norms[i], ids, fields, values, n_fields, by_entry, index)
            sum_fields(n, m, k, by_entry, index, table, T)
            z = row_logit(n, m, k, m == n_fields, by_entry, index, table, linear, column, T)
        else:
            if k != 4:
                z = ffmpairs.logit(n_fields, k, base, x, table)
            if linear:
                for e in range(a, b):
                    if ids[e] >= 0 and fields[e] >= 0:
                        value = norms[i] * values[e] if values.size > 0 else norms[i]
                        z += value * table[ids[e], column]
        logit[i] = b0 + z
