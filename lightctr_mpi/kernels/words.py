"""Eight bytes of text at a time."""

from __future__ import annotations

import numpy as np

from .jit import Intrinsic, inline_exact

_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_1, _3, _8 = np.uint64(1), np.uint64(3), np.uint64(8)
_NEWLINE = np.uint64(10)
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)


word_at, trailing_zeros = (Intrinsic(name) for name in ("word_at", "trailing_zeros"))  # intrinsics.py


@inline_exact
def _zero_bytes(word):
    """A number whose lowest one is the top bit of the lowest byte of `word` that is 0; 0 if there is none.

    Mycroft's test: subtracting 1 from each byte sets its top bit where it was 0 (or, behind such a byte, 1).
    """
    return (word - _ONES) & ~word & _TOPS


@inline_exact
def find_end(data, at, byte):
    """Position of the first `byte` or newline from `at` on, in data that end with a newline. All uint64."""
    size = np.uint64(len(data))
    pattern = byte * _ONES
    while at + _8 <= size:
        word = word_at(data, at)
        found = _zero_bytes(word ^ pattern) | _zero_bytes(word ^ _NEWLINES)
        if found:
            return at + (trailing_zeros(found) >> _3)
        at += _8
    while np.uint64(data[at]) != byte and np.uint64(data[at]) != _NEWLINE:
        at += _1
    return at
