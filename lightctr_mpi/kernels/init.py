"""Initial values from a counter-based generator: a function of seed, key and column, and of nothing else.

So the value of a parameter depends neither on the order of rows nor on the number of ranks. The generator is
SplitMix64 (Steele, Lea, Flood 2014): a stream per (seed, key), whose position is the column.
"""

from __future__ import annotations

import math

import numpy as np

from .jit import inline_exact, jit_exact

NORMAL, UNIFORM = 0, 1
CODES = {"normal": NORMAL, "uniform": UNIFORM}

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@inline_exact
def mix(x):
    """SplitMix64's finaliser: a bijection of 64-bit words."""
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    return x ^ (x >> _S31)


@jit_exact
def normal_quantile(p):
    """Inverse of the standard normal distribution function for 0 < p < 1, to a relative error of 1.2e-9.

    P. J. Acklam's rational approximations (2003): one for the middle, one in sqrt(-2 log p) for the tails.
    """
    tail = min(p, 1.0 - p)
    if tail < 0.02425:
        q = math.sqrt(-2.0 * math.log(tail))
        top = ((-7.784894002430293e-03 * q - 3.223964580411365e-01) * q - 2.400758277161838e00) * q
        top = ((top - 2.549732539343734e00) * q + 4.374664141464968e00) * q + 2.938163982698783e00
        low = ((7.784695709041462e-03 * q + 3.224671290700398e-01) * q + 2.445134137142996e00) * q
        value = top / ((low + 3.754408661907416e00) * q + 1.0)
        return value if p < 0.5 else -value
    q = p - 0.5
    r = q * q
    top = ((-3.969683028665376e01 * r + 2.209460984245205e02) * r - 2.759285104469687e02) * r
    top = ((top + 1.383577518672690e02) * r - 3.066479806614716e01) * r + 2.506628277459239e00
    low = ((-5.447609879822406e01 * r + 1.615858368580409e02) * r - 1.556989798598866e02) * r
    low = ((low + 6.680131188771972e01) * r - 1.328068155288572e01) * r + 1.0
    return top * q / low


@jit_exact
def fill(rows, keys, columns, seed, distribution, scale):
    """rows[i, c] for c < columns: drawn for (seed, keys[i], c).

    rows: float32[n, stride]; keys: uint64[n]; seed: uint64; scale: float64, standard deviation of the normal
    distribution around 0, or upper end of the uniform one from 0.
    """
    for i in range(len(keys)):
        stream = mix(mix(seed + _GOLDEN) ^ keys[i])
        for c in range(columns):
            stream += _GOLDEN
            p = (float(mix(stream) >> _S11) + 0.5) * 2.0**-53
            rows[i, c] = scale * (normal_quantile(p) if distribution == NORMAL else p)
