"""Eight bytes of text at a time."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .jit import inline_exact

_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_1, _3, _8 = np.uint64(1), np.uint64(3), np.uint64(8)
_NEWLINE = np.uint64(10)
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)


@intrinsic
def _word_at(typingctx, data, at):
    """The 8 bytes of data (uint8[]) from position `at` on as a little-endian number: a single load."""

    def codegen(context, builder, signature, args):
        start = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        place = builder.gep(start, [args[1]])
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)
        return word if sys.byteorder == "little" else builder.bswap(word)

    return types.uint64(data, types.uint64), codegen


word_at: Any = _word_at  # a type checker does not know that Numba fills in the first argument


@intrinsic
def _trailing_zeros(typingctx, word):
    """Zero bits of a uint64, not 0, below its lowest one."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


trailing_zeros: Any = _trailing_zeros


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
