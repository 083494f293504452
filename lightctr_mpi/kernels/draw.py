"""Rows drawn from a planted factorization machine. Every number is a hash of (seed, stream, row, column).

So a row depends neither on the rows before it nor on how they are cut into blocks. Sums are taken in written
order, without fastmath, to give the same bits everywhere.
"""

from __future__ import annotations

import numpy as np

from .hashing import fmix64
from .jit import inline_exact, jit_exact

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, the step of splitmix64
_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_11 = np.uint64(11)
_UNIT = 2.0**-53


@inline_exact
def _row_seed(seed, stream, row):
    return fmix64(fmix64(seed + _GOLDEN * np.uint64(stream)) + _GOLDEN * np.uint64(row))


@inline_exact
def _draw(row_seed, column):
    """uint64, uniform: number `column` of the row's splitmix64 sequence (Steele, Lea and Flood 2014)."""
    return fmix64(row_seed + _GOLDEN * np.uint64(column + 1))


@inline_exact
def _uniform(word):
    return np.float64(word >> _11) * _UNIT


@jit_exact
def fill_weights(seed, stream, weights):
    """Fill float64[n_keys, width] with about normal numbers of mean 0 and variance 1.

    The sum of four uniform numbers (Irwin-Hall) is close enough to normal here and, unlike a logarithm or a
    cosine, has the same bits on every machine.
    """
    for j in range(weights.shape[0]):
        row = _row_seed(seed, stream, j)
        for d in range(weights.shape[1]):
            total = 0.0
            for i in range(4):
                total += _uniform(_draw(row, 4 * d + i))
            weights[j, d] = (total - 2.0) * np.sqrt(3.0)


@jit_exact
def build_alias(shares, keep, other, stack):
    """Alias table of a discrete distribution (Walker 1977, in the form of Vose 1991).

    Args:
        shares: float64[c] probabilities times c; overwritten.
        keep: uint64[c], out: slot i stands for i if a uniform 32-bit number is below keep[i] ...
        other: int32[c], out: ... and for other[i] if not.
        stack: int64[c] scratch: small slots grow from the left, large ones from the right.
    """
    small, large = 0, len(shares)
    for i in range(len(shares)):
        keep[i], other[i] = np.uint64(1) << _32, i
        if shares[i] < 1.0:
            stack[small] = i
            small += 1
        else:
            large -= 1
            stack[large] = i
    while small > 0 and large < len(shares):
        small -= 1
        poor, rich = stack[small], stack[large]
        keep[poor], other[poor] = np.uint64(shares[poor] * 2.0**32), rich
        shares[rich] -= 1.0 - shares[poor]
        if shares[rich] < 1.0:
            large += 1
            stack[small] = rich
            small += 1


@jit_exact
def draw_rows(seed, stream, start, offsets, keep, other, weights, sums, keys, parts, uniform):
    """Draw rows start, start + 1, ... of a stream.

    Args:
        offsets: int64[fields + 1]; field f owns the keys offsets[f] to offsets[f + 1].
        keep, other: alias tables of the fields, one behind the other.
        weights: float64[n_keys, 1 + k]: linear weight and factors.
        sums: float64[2, k] scratch.
        keys: int32[n, fields], out.
        parts: float64[n, 2], out: sum of the linear weights; sum over pairs of the dot products of their
            factors, as half of (square of the sum minus sum of the squares) (Rendle 2010, lemma 3.1).
        uniform: float64[n], out: a number in [0, 1) that decides the label.
    """
    n, fields = keys.shape
    k = weights.shape[1] - 1
    for i in range(n):
        row = _row_seed(seed, stream, start + i)
        linear = 0.0
        sums[:] = 0.0
        for f in range(fields):
            word = _draw(row, f)
            count = np.uint64(offsets[f + 1] - offsets[f])
            j = offsets[f] + np.int64(((word >> _32) * count) >> _32)
            if (word & _LOW) >= keep[j]:
                j = offsets[f] + other[j]
            keys[i, f] = j
            linear += weights[j, 0]
            for d in range(k):
                v = weights[j, 1 + d]
                sums[0, d] += v
                sums[1, d] += v * v
        pairs = 0.0
        for d in range(k):
            pairs += 0.5 * (sums[0, d] * sums[0, d] - sums[1, d])
        parts[i, 0], parts[i, 1] = linear, pairs
        uniform[i] = _uniform(_draw(row, fields))
