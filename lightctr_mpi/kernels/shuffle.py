"""Random permutations that depend on a seed alone: not on NumPy's version, nor on the number of ranks."""

from __future__ import annotations

import numpy as np

from .hashing import fmix64
from .jit import jit_exact

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_32 = np.uint64(32)


@jit_exact
def shuffle(items, state):
    """Permute int64[n], n < 2^32, in place; every permutation equally likely but for a bias below n / 2^32.

    Fisher and Yates's shuffle (Knuth, TAOCP vol. 2, 3.4.2, algorithm P) driven by SplitMix64's scheme
    (Steele, Lea and Flood 2014): a counter in steps of the golden ratio, mixed.

    Args:
        items: int64[n].
        state: uint64, where the counter starts.
    """
    for i in range(len(items) - 1, 0, -1):
        state += _GOLDEN
        j = np.int64(((fmix64(state) >> _32) * np.uint64(i + 1)) >> _32)
        items[i], items[j] = items[j], items[i]


@jit_exact
def stream(seed, epoch, part):
    """uint64 start of the counter for one shuffle: a mix of three uint64 numbers."""
    mixed = fmix64(seed + _GOLDEN)
    mixed = fmix64((mixed ^ epoch) + _GOLDEN)
    return fmix64((mixed ^ part) + _GOLDEN)
