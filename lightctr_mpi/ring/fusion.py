"""Fusion: named arrays in one buffer, so that a step costs one message instead of many small ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .segments import Scratch

ALIGN_BYTES = 64


class Fused:
    """Named parts laid out one after the other in one 1-D buffer.

    Parts start at multiples of 64 bytes from the start of the buffer; the gaps are zeros, and sums of zeros
    over ranks. A part is a view: writing to it writes to the buffer. Counts up to 2^24 survive in float32;
    sums of losses want float64 (`comm.allreduce`).
    """

    def __init__(self, dtype: Any = np.float32):
        self.dtype = np.dtype(dtype)
        self._scratch = Scratch()
        self._parts: dict[str, np.ndarray] = {}
        self.offsets: dict[str, int] = {}
        self.buffer = np.zeros(0, self.dtype)

    def layout(self, shapes: Mapping[str, tuple[int, ...]]) -> Fused:
        """Lay the buffer out anew, zeroed, for parts of these shapes; memory is reused and only grows."""
        step = ALIGN_BYTES // self.dtype.itemsize
        self.offsets, end = {}, 0
        for name, shape in shapes.items():
            self.offsets[name] = end
            end += -(-math.prod(shape) // step) * step
        self.buffer = self._scratch.array("buffer", end, self.dtype)
        self.buffer.fill(0)
        self._parts = {
            name: self.buffer[self.offsets[name] : self.offsets[name] + math.prod(shape)].reshape(shape)
            for name, shape in shapes.items()
        }
        return self

    def __getitem__(self, name: str) -> np.ndarray:
        return self._parts[name]

    def __setitem__(self, name: str, values: Any) -> None:
        self._parts[name][...] = values
