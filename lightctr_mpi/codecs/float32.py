"""Rows as they are: 4 bytes a value."""

from __future__ import annotations

import numpy as np

from .base import Codec


class Float32(Codec):
    """A copy."""

    name, lossy = "float32", False

    def nbytes(self, n: int, width: int) -> int:
        return 4 * n * width

    def _encode(self, rows: np.ndarray, out: np.ndarray) -> None:
        out[:] = rows.reshape(-1).view(np.uint8)

    def _decode(self, data: np.ndarray, out: np.ndarray) -> None:
        out.reshape(-1).view(np.uint8)[:] = data
