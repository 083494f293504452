"""Blocks of k factors at scattered places as vectors of 8 lanes, stored as float32, float16 or bfloat16.

A table is a float32 array in every case; 16-bit numbers lie in it two to a float, and `at` counts numbers of
the kind that is stored. 8 lanes hold 8 / k blocks for k = 2 and k = 4.

16-bit weights are rounded stochastically: a step far below the distance of two neighbours then moves the
weight as far as it should on average (Gupta, Agrawal, Gopalakrishnan, Narayanan 2015). The random bits are an
additive sequence in each lane (`dither`), which a row of data starts anew: two additions and a shift for 8
weights, and equal runs give equal bits.
"""

from __future__ import annotations

import numpy as np

from . import simd
from .jit import Intrinsic, inline

FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
KINDS = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16}
HALF = np.float32(0.5)


def _in_llvm(name: str) -> Intrinsic:
    return Intrinsic(name, "blockintrinsics")


apart = _in_llvm("apart")
both2_bf16 = _in_llvm("both2_bf16")
both2_f16 = _in_llvm("both2_f16")
both2_f32 = _in_llvm("both2_f32")
cross = _in_llvm("cross")
double2 = _in_llvm("double2")
each0 = _in_llvm("each0")
each1 = _in_llvm("each1")
each2 = _in_llvm("each2")
each3 = _in_llvm("each3")
even2 = _in_llvm("even2")
even4 = _in_llvm("even4")
even8 = _in_llvm("even8")
floats2 = _in_llvm("floats2")
gather2_bf16 = _in_llvm("gather2_bf16")
gather2_f16 = _in_llvm("gather2_f16")
gather2_f32 = _in_llvm("gather2_f32")
gather4_bf16 = _in_llvm("gather4_bf16")
gather4_f16 = _in_llvm("gather4_f16")
gather4_f32 = _in_llvm("gather4_f32")
high2 = _in_llvm("high2")
high_halves = _in_llvm("high_halves")
high_twice = _in_llvm("high_twice")
join2 = _in_llvm("join2")
load2 = _in_llvm("load2")
load8_bf16 = _in_llvm("load8_bf16")
load8_f16 = _in_llvm("load8_f16")
low2 = _in_llvm("low2")
low_halves = _in_llvm("low_halves")
low_twice = _in_llvm("low_twice")
next_dither = _in_llvm("next_dither")
noise_bf16 = _in_llvm("noise_bf16")
noise_f16 = _in_llvm("noise_f16")
odd2 = _in_llvm("odd2")
odd4 = _in_llvm("odd4")
odd8 = _in_llvm("odd8")
pairs_even = _in_llvm("pairs_even")
pairs_odd = _in_llvm("pairs_odd")
put2_bf16 = _in_llvm("put2_bf16")
put2_f16 = _in_llvm("put2_f16")
put2_f32 = _in_llvm("put2_f32")
put_floats2 = _in_llvm("put_floats2")
repeat2 = _in_llvm("repeat2")
scatter2_bf16 = _in_llvm("scatter2_bf16")
scatter2_f16 = _in_llvm("scatter2_f16")
scatter2_f32 = _in_llvm("scatter2_f32")
scatter4_bf16 = _in_llvm("scatter4_bf16")
scatter4_f16 = _in_llvm("scatter4_f16")
scatter4_f32 = _in_llvm("scatter4_f32")
spread2 = _in_llvm("spread2")
spread4 = _in_llvm("spread4")
start_dither = _in_llvm("start_dither")
store2 = _in_llvm("store2")
store8_bf16 = _in_llvm("store8_bf16")
store8_f16 = _in_llvm("store8_f16")
swap2 = _in_llvm("swap2")
swap4 = _in_llvm("swap4")
swap8 = _in_llvm("swap8")
together = _in_llvm("together")


# By kind of storage; callers hand in a constant, so that one branch is left.


@inline
def noise_of(kind, dither):
    """What `store8` and `scatter8` are to round by: 8 lanes of random bits."""
    if kind == FLOAT16:
        return noise_f16(dither)
    if kind == BFLOAT16:
        return noise_bf16(dither)
    return dither


@inline
def load8(kind, table, at):
    """8 neighbours from number `at` on."""
    if kind == FLOAT16:
        return load8_f16(table, at)
    if kind == BFLOAT16:
        return load8_bf16(table, at)
    return simd.load8(table, at)


@inline
def store8(kind, table, at, value, noise):
    """The inverse of `load8`."""
    if kind == FLOAT16:
        store8_f16(table, at, value, noise)
    elif kind == BFLOAT16:
        store8_bf16(table, at, value, noise)
    else:
        simd.store8(table, at, value)


@inline
def gather8(kind, k, table, base, g, add):
    """The blocks of k = 2 or 4 from base[g + i] + add on, 8 / k of them."""
    if k == 2:
        if kind == FLOAT16:
            return gather2_f16(table, base, g, add)
        if kind == BFLOAT16:
            return gather2_bf16(table, base, g, add)
        return gather2_f32(table, base, g, add)
    if kind == FLOAT16:
        return gather4_f16(table, base, g, add)
    if kind == BFLOAT16:
        return gather4_bf16(table, base, g, add)
    return gather4_f32(table, base, g, add)


@inline
def scatter8(kind, k, table, base, g, add, value, noise):
    """The inverse of `gather8`."""
    if k == 2:
        if kind == FLOAT16:
            scatter2_f16(table, base, g, add, value, noise)
        elif kind == BFLOAT16:
            scatter2_bf16(table, base, g, add, value, noise)
        else:
            scatter2_f32(table, base, g, add, value, noise)
    elif kind == FLOAT16:
        scatter4_f16(table, base, g, add, value, noise)
    elif kind == BFLOAT16:
        scatter4_bf16(table, base, g, add, value, noise)
    else:
        scatter4_f32(table, base, g, add, value, noise)


@inline
def both2(kind, table, pair):
    """Two blocks of 2 at pair[0] and pair[1], behind one another."""
    if kind == FLOAT16:
        return both2_f16(table, pair, 0, 0)
    if kind == BFLOAT16:
        return both2_bf16(table, pair, 0, 0)
    return both2_f32(table, pair, 0, 0)


@inline
def put_both2(kind, table, pair, value, noise):
    """The inverse of `both2`."""
    if kind == FLOAT16:
        put2_f16(table, pair, 0, 0, value, noise)
    elif kind == BFLOAT16:
        put2_bf16(table, pair, 0, 0, value, noise)
    else:
        put2_f32(table, pair, 0, 0, value, noise)


@inline
def dot_short(kind, k, table, pair):
    """Scalar product of the blocks at pair[0] and pair[1]; k = 2 or 4."""
    if k == 2:
        w4 = both2(kind, table, pair)
        return HALF * simd.total4(simd.mul(w4, swap4(w4, w4)))
    w8 = gather8(kind, 4, table, pair, 0, 0)
    return HALF * simd.total8(simd.mul(w8, swap8(w8, w8)))


@inline
def spread_values(k, x, g):
    """x[g], x[g + 1] .., each in the lanes of a block of k = 2 or 4."""
    if k == 2:
        v4 = simd.load4(x, g)
        return spread2(v4, v4)
    v2 = load2(x, g)
    return spread4(v2, v2)


@inline
def repeat_block(k, source, at):
    """The k = 2 or 4 floats from `at` on, once for each block of a vector."""
    if k == 2:
        v2 = load2(source, at)
        return repeat2(v2, v2)
    v4 = simd.load4(source, at)
    return simd.join(v4, v4)
