"""Numbering of small keys: a key below `SMALL` is its own number, and one byte says whether it has come up.

So no key is looked for, and nothing has to be read back from memory before the next key.
"""

from __future__ import annotations

import numpy as np

from .jit import jit_exact

SMALL = 1 << 23  # the byte and the 4 bytes of a later translation are 40 MB at most


@jit_exact
def highest(keys):
    """The largest of uint64[n], 0 of none."""
    top = np.uint64(0)
    for i in range(len(keys)):
        top = max(top, keys[i])
    return top


@jit_exact
def mark(keys, seen, numbers):
    """numbers[i] = keys[i], each noted in `seen`.

    Args:
        keys: uint64[m], below len(seen).
        seen: uint8[c]; becomes 1 at each key.
        numbers: int32[m].
    """
    for i in range(len(keys)):
        key = keys[i]
        numbers[i] = key
        seen[key] = 1


@jit_exact
def mark_small(keys, seen, numbers, large, places):
    """`mark` for keys below len(seen); the others are put aside.

    Args:
        large, places: uint64[m], int64[m]: the other keys, and where in `keys` they stand.

    Returns how many these are.
    """
    n = 0
    for i in range(len(keys)):
        key = keys[i]
        if key < np.uint64(len(seen)):
            numbers[i] = key
            seen[key] = 1
        else:
            large[n] = key
            places[n] = i
            n += 1
    return n


@jit_exact
def mark_fields(fields, seen):
    """seen[field] = 1 for each of int32[m], from 0 to below len(seen)."""
    for i in range(len(fields)):
        seen[np.uint64(fields[i])] = 1


@jit_exact
def translate(numbers, table, out):
    """out[i] = table[numbers[i]]; all int32, numbers from 0 to below len(table)."""
    for i in range(len(numbers)):
        out[i] = table[np.uint64(numbers[i])]
