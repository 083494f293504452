"""Whole numbers from -127 to 127 and a scale for each row: 1 byte a value and 4 a row."""

from __future__ import annotations

import numpy as np

from ..kernels import packing
from ..kernels.jit import own
from .base import Codec


class Int8(Codec):
    """value = scale of its row * number; the scale is the row's largest magnitude / 127.

    Error: at most largest / 254. Zeros are exact; nothing is clipped. A row with a NaN or an infinity arrives
    as NaN in all columns. A message is float32[n] scales, then int8[n, width] numbers; sums are taken of
    decoded rows, never of the numbers.
    """

    name = "int8"

    def nbytes(self, n: int, width: int) -> int:
        return n * (4 + width) if width else 0

    def _encode(self, rows: np.ndarray, out: np.ndarray) -> None:
        scales, numbers = self._parts(out, rows.shape)
        packing.encode_int8(rows, scales, numbers)

    def _decode(self, data: np.ndarray, out: np.ndarray) -> None:
        scales, numbers = self._parts(data, out.shape)
        if not packing.decode_int8(own(scales, np.float32), own(numbers, np.int8), out):
            raise ValueError("int8 message with a scale or a number that none can have")

    @staticmethod
    def _parts(data: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        return data[: 4 * shape[0]].view(np.float32), data[4 * shape[0] :].view(np.int8).reshape(shape)
