"""Floats to fewer bits and back, for messages. The codecs that use these kernels are in codecs/.

Arithmetic is float32 and exact in its order, so that sender and receiver compute the same bits. Selections
are written without branches where that lets LLVM vectorise them: a value takes 0.1 to 2 ns.
"""

from __future__ import annotations

import numpy as np

from .jit import jit, jit_exact

ZERO = 127  # code of the value 0 in every table of 256 values
CELLS = 512  # cells of equal width in an interval of length 1, for `encode_cells`
STEPS = 8  # levels of `encode_log` in each octave

_SIZE = np.uint32(0x7FFFFFFF)  # a float32 without its sign; such words stand in the order of the numbers
_INFINITY = np.uint32(0x7F800000)
_FRACTION, _UNIT = np.uint32(0x7FFFFF), np.uint32(0x3F800000)  # bits behind the point; exponent of [1, 2)
_HALF_MOST, _HALF_LEAST = np.uint32(0x477FE000), np.uint32(0x38800000)  # 65504 and 2^-14 as float32
_REBIAS = np.uint32(112 << 23)  # between the exponents of float32 and float16
_PLACES = np.uint32(13)  # between their fractions
_HALF_INFINITY, _HALF_NAN = np.uint32(0x7C00), np.uint32(0x7E00)
_TINY, _GRAIN = np.float32(2.0**-126), np.float32(2.0**-149)  # least normal and least float32 of all
_WIDEST = np.nextafter(np.finfo(np.float32).max / np.float32(127), np.float32(0))  # 127 times it is finite


@jit_exact
def largest(values):
    """float32 largest magnitude of float32[n], 0 for none; NaN if a value is NaN or infinite."""
    top = np.uint32(0)
    for i in range(len(values)):
        top = max(top, np.uint32(np.float32(values[i]).view(np.uint32) & _SIZE))
    return np.uint32(top).view(np.float32) if top < _INFINITY else np.float32(np.nan)


@jit_exact
def encode_half(values, out):
    """IEEE 754 half precision, round to nearest even. float32[n] -> uint16[n]; returns how many were clipped.

    Finite values beyond 65504 become 65504 of their sign. Infinity and NaN stay.
    """
    clipped = np.int64(0)
    for i in range(len(values)):
        bits = np.float32(values[i]).view(np.uint32)
        size = np.uint32(bits & _SIZE)
        clipped += (size > _HALF_MOST) & (size < _INFINITY)
        fits = min(size, _HALF_MOST)
        # Adding just below half a unit, and 1 more for odd numbers, makes cutting off round to even.
        odd = np.uint32(np.uint32(fits >> _PLACES) & np.uint32(1))
        half = np.uint32(np.uint32(np.uint32(fits - _REBIAS) + np.uint32(np.uint32(0xFFF) + odd)) >> _PLACES)
        if fits < _HALF_LEAST:  # subnormal: a whole number of times 2^-24
            half = np.uint32(np.int32(np.rint(np.uint32(fits).view(np.float32) * np.float32(2.0**24))))
        if size >= _INFINITY:
            half = _HALF_INFINITY if size == _INFINITY else _HALF_NAN
        out[i] = np.uint16(half | np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000)))
    return clipped


@jit_exact
def decode_half(data, out):
    """Half precision to float32, exactly. uint16[n] -> float32[n]."""
    for i in range(len(data)):
        bits = np.uint32(data[i])
        size = np.uint32(np.uint32(bits & np.uint32(0x7FFF)) << _PLACES)
        scaled = np.uint32(size).view(np.float32) * np.float32(2.0**112)  # subnormals come out right as well
        full = np.float32(scaled).view(np.uint32)
        if size >= np.uint32(_HALF_INFINITY << _PLACES):
            full = np.uint32(size | _INFINITY)
        sign = np.uint32(np.uint32(bits & np.uint32(0x8000)) << np.uint32(16))
        out[i] = np.uint32(full | sign).view(np.float32)


@jit_exact
def encode_int8(rows, scales, out):
    """scales[i] = largest magnitude of row i / 127; out[i] = rows[i] / scales[i] rounded to nearest.

    rows: float32[n, width]; scales: float32[n]; out: int8[n, width]. A row with a NaN or an infinity gets a
    scale of NaN.
    """
    most = np.float32(127)
    for i in range(len(rows)):
        top = largest(rows[i])
        scale = np.float32(top / most)
        if scale < _TINY and scale * most < top:  # few bits are left: rather too large, for all must fit
            scale += _GRAIN
        elif scale > _WIDEST:
            scale = _WIDEST
        scales[i] = scale
        if scale > 0:
            for c in range(rows.shape[1]):
                out[i, c] = np.int8(np.int32(np.rint(rows[i, c] / scale)))
        else:
            for c in range(rows.shape[1]):
                out[i, c] = 0


@jit_exact
def decode_int8(scales, data, out):
    """out[i] = scales[i] * data[i], shapes as in `encode_int8`; False if no encoder has written this."""
    wrong = False
    for i in range(len(out)):
        scale = scales[i]
        unused = not scale > 0
        wrong |= scale < 0 or scale == np.inf
        for c in range(out.shape[1]):
            wrong |= (data[i, c] == -128) | (unused & (data[i, c] != 0))
            out[i, c] = scale * np.float32(data[i, c])
    return not wrong


@jit_exact
def encode_uniform(values, top, out):
    """out[i] = number of the value nearest to values[i] / top in steps of 1 / ZERO below 0, 1 / (255 - ZERO)
    above.

    values: float32[n] of magnitudes up to `top`, float32 above 0; out: uint8[n].
    """
    below, above = np.float32(ZERO), np.float32(255 - ZERO)
    for i in range(len(values)):
        y = values[i] / top
        step = np.int32(np.rint(y * (below if y < 0 else above)))
        out[i] = np.uint8(np.int32(step + np.int32(ZERO)))


@jit_exact
def encode_cells(values, top, starts, middles, out):
    """out[i] = number of the table value nearest to values[i] / top, found by its cell.

    Args:
        values: float32[n] of magnitudes up to `top`, float32 above 0.
        starts: uint8[2 CELLS + 1]: how many of the middles lie below each cell of [-1, 1].
        middles: float32[256]: middles between neighbours of the table, at most one in a cell; infinity.
        out: uint8[n].
    """
    one, cells = np.float32(1), np.float32(CELLS)
    for i in range(len(values)):
        y = values[i] / top
        code = starts[np.int32((y + one) * cells)]
        out[i] = code + np.uint8(y > middles[code])


# Middles between the levels 2^(j / STEPS) of the octave [1, 2).
_LEVELS = 2.0 ** (np.arange(STEPS + 1) / STEPS)
_M0, _M1, _M2, _M3, _M4, _M5, _M6, _M7 = ((_LEVELS[1:] + _LEVELS[:-1]) / 2).astype(np.float32)


_LEAST_BELOW, _LEAST_ABOVE = (np.float32(2.0 ** (-j / STEPS)) for j in (ZERO - 1, ZERO))


@jit_exact
def encode_log(values, top, out):
    """out[i] = number of the value nearest to values[i] / top in the table of log8 (codecs/quantile.py).

    Level j below 1 is 2^(-j / 8): code j for its negative, 255 - j for its positive, ZERO for 0.
    values: float32[n] of magnitudes up to `top`, float32 above 0; out: uint8[n].
    """
    for i in range(len(values)):
        bits = np.float32(values[i] / top).view(np.uint32)
        size = np.uint32(bits & _SIZE)
        m = np.uint32(np.uint32(size & _FRACTION) | _UNIT).view(np.float32)
        octaves = np.int32(np.int32(127) - np.int32(size >> np.uint32(23)))  # below [1, 2)
        j = np.int32(octaves * np.int32(STEPS))
        # Sums of two would be 64 bits wide.
        j = np.int32(j - np.int32(m > _M0))
        j = np.int32(j - np.int32(m > _M1))
        j = np.int32(j - np.int32(m > _M2))
        j = np.int32(j - np.int32(m > _M3))
        j = np.int32(j - np.int32(m > _M4))
        j = np.int32(j - np.int32(m > _M5))
        j = np.int32(j - np.int32(m > _M6))
        j = np.int32(j - np.int32(m > _M7))
        negative = np.int32(bits >> np.uint32(31))
        level = min(j, np.int32(np.int32(ZERO) - negative))
        code = level if negative else np.int32(np.int32(255) - level)
        least = _LEAST_BELOW if negative else _LEAST_ABOVE
        vanishes = np.uint32(size).view(np.float32) <= np.float32(0.5) * least
        out[i] = np.uint8(np.int32(ZERO) if vanishes else code)


@jit_exact
def decode_table(data, table, out):
    """out[i] = table[data[i]]. uint8[n], float32[256] -> float32[n]."""
    for i in range(len(data)):
        out[i] = table[data[i]]


@jit
def row_squares(rows, out):
    """out[i] = sum of squares of row i, infinity where that is no number. float32[n, width] -> float64[n]."""
    for i in range(len(rows)):
        total = 0.0
        for c in range(rows.shape[1]):
            total += np.float64(rows[i, c]) * np.float64(rows[i, c])
        out[i] = total if total < np.inf else np.inf


@jit_exact
def add_gathered(rows, table, numbers):
    """rows[i] += table[numbers[i]]. rows: float32[n, width]; table: float32[m, width]; numbers: int32[n]."""
    for i in range(len(numbers)):
        for c in range(rows.shape[1]):
            rows[i, c] += table[numbers[i], c]
