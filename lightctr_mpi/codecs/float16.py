"""IEEE 754 half precision: 2 bytes a value."""

from __future__ import annotations

import numpy as np

from ..kernels import packing
from ..kernels.jit import own
from .base import Codec


class Float16(Codec):
    """Each value rounded to the nearest half, ties to even.

    Error: at most 2^-11 of the value between 2^-14 = 6.1e-5 and 65504. Below, halves are multiples of 2^-24
    and the error is at most 2^-25 = 3e-8, so that a lone gradient of 1e-8 becomes 0; error feedback adds it
    up until it counts. Finite values beyond 65504 become 65504 of their sign and are counted in `saturated`.
    Infinity and NaN arrive as such.
    """

    name = "float16"

    def nbytes(self, n: int, width: int) -> int:
        return 2 * n * width

    def _encode(self, rows: np.ndarray, out: np.ndarray) -> None:
        self.saturated += int(packing.encode_half(rows.reshape(-1), out.view(np.uint16)))

    def _decode(self, data: np.ndarray, out: np.ndarray) -> None:
        packing.decode_half(own(data.view(np.uint16), np.uint16), out.reshape(-1))
