"""Numbers of values in a table of 256: 1 byte a value and 4 a message.

A message is the largest magnitude m of its values (float32) and the number of the table value nearest to each
(uint8). Both sides know the table: m times 256 ascending numbers from -1 to 1, the 128th of which is 0, so
that zeros are exact and nothing is clipped. A message with a NaN or an infinity has m = NaN and arrives as
NaN everywhere.
"""

from __future__ import annotations

import statistics
from typing import ClassVar

import numpy as np

from ..kernels import packing
from ..kernels.jit import own
from ..kernels.packing import CELLS, STEPS, ZERO
from .base import Codec

_BELOW, _ABOVE = ZERO, 255 - ZERO  # values on either side of 0


def _two_sided(below: np.ndarray, above: np.ndarray) -> np.ndarray:
    """float32[256] of ascending magnitudes that end in 1 on both sides of 0."""
    return np.concatenate([-below[::-1], [0.0], above]).astype(np.float32)


class Table(Codec):
    """Numbers of the nearest values in m times `unit`, float32[256]."""

    unit: ClassVar[np.ndarray]

    def nbytes(self, n: int, width: int) -> int:
        return 4 + n * width if n and width else 0

    def _encode(self, rows: np.ndarray, out: np.ndarray) -> None:
        values, codes = rows.reshape(-1), out[4:]
        top = np.float32(packing.largest(values))  # Numba hands floats out as Python's
        out[:4].view(np.float32)[0] = top
        if top > 0:
            self._number(values, top, codes)
        else:
            codes[:] = ZERO

    def _number(self, values: np.ndarray, top: np.float32, codes: np.ndarray) -> None:
        """Fill codes uint8[n] for values float32[n] of magnitudes up to `top`."""
        raise NotImplementedError

    def _decode(self, data: np.ndarray, out: np.ndarray) -> None:
        top, codes = own(data[:4].view(np.float32), np.float32)[0], data[4:]
        if top < 0 or top == np.inf or not (top > 0 or np.all(codes == ZERO)):
            raise ValueError(f"{self.name} message with an impossible magnitude of {top}")
        if top == 0:
            out.fill(0)  # 0 times a negative number would be -0
        else:
            packing.decode_table(own(codes, np.uint8), top * self.unit, out.reshape(-1))


class Uniform8(Table):
    """Equal steps: m / 127 below 0 and m / 128 above. Error: at most half a step."""

    name = "uniform8"
    unit = _two_sided(np.arange(1, _BELOW + 1) / _BELOW, np.arange(1, _ABOVE + 1) / _ABOVE)

    def _number(self, values: np.ndarray, top: np.float32, codes: np.ndarray) -> None:
        packing.encode_uniform(values, top, codes)


def _normal(n: int) -> np.ndarray:
    """float64[n]: quantiles of the normal distribution above its mean, the last one scaled to 1."""
    last = 1 - (1 / 512 + 1 / 510) / 2
    quantile = statistics.NormalDist().inv_cdf
    z = np.array([quantile(float(p)) for p in np.linspace(0.5, last, n + 1)[1:]])
    return z / z[-1]


class Normal8(Table):
    """Quantiles of a normal distribution around 0, fine near 0 and coarse at the ends.

    The NormalFloat of Dettmers, Pagnoni, Holtzman and Zettlemoyer (2023), "QLoRA: efficient finetuning of
    quantized LLMs", with 8 bits: values of equal probability on each side of an exact 0, scaled so that the
    outermost, 2.9 deviations, are -m and m. Error: at most half the distance of the neighbours, from 0.0017 m
    near 0 to 0.03 m at the ends.
    """

    name = "normal8"
    unit = _two_sided(_normal(_BELOW), _normal(_ABOVE))
    _middles = np.append((unit[1:] + unit[:-1]) / 2, np.float32(np.inf))
    # Cells begin a little early, because the kernel rounds when it adds 1.
    _starts = np.searchsorted(_middles[:-1], np.arange(2 * CELLS + 1) / CELLS - 1 - 1e-6).astype(np.uint8)

    def _number(self, values: np.ndarray, top: np.float32, codes: np.ndarray) -> None:
        packing.encode_cells(values, top, self._starts, self._middles, codes)


class Log8(Table):
    """Eight steps an octave: m 2^(-j / 8), j up to 126 below 0 and up to 127 above.

    Error: at most (2^(1/8) - 1) / (2^(1/8) + 1) = 4.4 % of the value down to the least one, 2^-15.75 m (below
    0) or 2^-15.875 m (above), and half of that least one for smaller values.
    """

    name = "log8"
    unit = _two_sided(2.0 ** (-np.arange(_BELOW)[::-1] / STEPS), 2.0 ** (-np.arange(_ABOVE)[::-1] / STEPS))

    def _number(self, values: np.ndarray, top: np.float32, codes: np.ndarray) -> None:
        packing.encode_log(values, top, codes)
