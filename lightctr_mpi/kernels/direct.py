"""Numbering of small keys: a key below `SMALL` is its own number, and one bit says whether it has come up.

So no key is looked for, and the bits of a million keys stay in the processor's nearer caches. A bit is read
before it is set, since most keys have come up before: nothing is written then.
"""

from __future__ import annotations

import numpy as np

from .jit import jit_exact

SMALL = 1 << 23  # the bits and the 4 bytes each of a later translation are 33 MB at most
_6, _63, _1 = np.uint64(6), np.uint64(63), np.uint64(1)


@jit_exact
def _note(seen, key):
    """Sets the bit of a key in uint64[c]."""
    word = seen[key >> _6]
    bit = _1 << (key & _63)
    if word & bit == 0:
        seen[key >> _6] = word | bit


@jit_exact
def mark(keys, start, seen, numbers):
    """numbers[i] = keys[i], each noted in `seen`, until a key has no bit there.

    Args:
        keys: uint64[m].
        start: first key to look at.
        seen: uint64[c], the bits of the keys below 64 c.
        numbers: int32[m], filled from `start`.

    Returns the first key not done, m when all are.
    """
    end = np.uint64(64 * len(seen))
    for i in range(start, len(keys)):
        key = keys[i]
        if key >= end:
            return i
        numbers[i] = key
        _note(seen, key)
    return len(keys)


@jit_exact
def mark_small(keys, start, seen, numbers, large, places):
    """`mark` that passes over keys without a bit in `seen` and puts them aside.

    Args:
        large, places: uint64[m], int64[m]: the keys passed over, and where in `keys` they stand.

    Returns how many these are.
    """
    end = np.uint64(64 * len(seen))
    n = 0
    for i in range(start, len(keys)):
        key = keys[i]
        if key < end:
            numbers[i] = key
            _note(seen, key)
        else:
            large[n] = key
            places[n] = i
            n += 1
    return n


@jit_exact
def mark_fields(fields, seen):
    """`mark` for int32[m], from 0 to below 64 len(seen)."""
    for i in range(len(fields)):
        _note(seen, np.uint64(fields[i]))


@jit_exact
def translate(numbers, table, out):
    """out[i] = table[numbers[i]]; all int32, numbers from 0 to below len(table)."""
    for i in range(len(numbers)):
        out[i] = table[np.uint64(numbers[i])]
