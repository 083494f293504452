"""Codec: rows of floats as the bytes of a message."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..kernels.jit import own


class Codec:
    """How rows of float32 travel between ranks; one instance for each sender or receiver.

    The receiver knows the shape of what arrives (it counts keys), so a message holds nothing but the rows.
    Encoding and decoding are functions of their arguments alone.

    Attributes:
        name: what the user calls it.
        lossy: whether decoded rows may differ from what was encoded.
        saturated: values encoded so far that did not fit and were clipped.

    A NaN or an infinity never arrives as an ordinary number, so that a diverged run stays noticeable: it
    arrives as it is, or all values that share a scale with it arrive as NaN.
    """

    name: ClassVar[str]
    lossy: ClassVar[bool] = True

    def __init__(self) -> None:
        self.saturated = 0

    def nbytes(self, n: int, width: int) -> int:
        """Exact size of the message of n rows of `width` values; 0 where there is no value."""
        raise NotImplementedError

    def encode(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the message of `rows`.

        Args:
            rows: float32[n, width].
            out: uint8[nbytes(n, width)], contiguous, from an address that 4 divides: a slice of a larger
                buffer will do.

        Raises ValueError for an `out` that is not such a place.
        """
        if rows.ndim != 2 or rows.dtype != np.float32:
            raise ValueError(f"cannot encode {rows.dtype} of shape {rows.shape}, only float32[n, width]")
        size = self.nbytes(*rows.shape)
        if out.dtype != np.uint8 or out.shape != (size,) or not _is_writable(out) or out.ctypes.data % 4:
            raise ValueError(f"{self.name}: the message needs uint8[{size}] from a multiple of 4 bytes")
        if size:
            self._encode(own(rows, np.float32), out)

    def decode(self, data: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the rows of a message.

        Args:
            data: uint8[m], contiguous.
            out: float32[n, width], C-contiguous.

        Raises ValueError when m is not the size of so many rows, or when no encoder can have written this.
        """
        if out.ndim != 2 or out.dtype != np.float32 or not _is_writable(out):
            raise ValueError(f"cannot decode into {out.dtype} of shape {out.shape}, only float32[n, width]")
        size = self.nbytes(*out.shape)
        if data.dtype != np.uint8 or data.shape != (size,):
            n, width = out.shape
            raise ValueError(
                f"a {self.name} message of {n} rows of {width} values has {size} bytes, this one has "
                f"{data.nbytes}"
            )
        if size:
            self._decode(np.ascontiguousarray(data), out)

    def _encode(self, rows: np.ndarray, out: np.ndarray) -> None:
        """`encode` of checked arguments that are not empty."""
        raise NotImplementedError

    def _decode(self, data: np.ndarray, out: np.ndarray) -> None:
        """`decode` of arguments that fit and are not empty; data may be read-only and unaligned."""
        raise NotImplementedError


def _is_writable(array: np.ndarray) -> bool:
    return array.flags.c_contiguous and array.flags.writeable
