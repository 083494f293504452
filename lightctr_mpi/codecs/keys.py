"""Keys on the way between ranks: sorted, as varints of their differences.

A key of a dense range of ids takes about one byte, each of a hundred thousand hashed keys about seven.
"""

from __future__ import annotations

import numpy as np

from ..kernels import varint
from ..kernels.jit import own

_WRONG = {
    varint.TORN: "keys end in the middle of a number",
    varint.OVERLONG: "a number among the keys has more bytes than it may have",
    varint.NOT_ASCENDING: "keys do not ascend",
}


def most_bytes(n: int) -> int:
    """Bytes that n keys take at most."""
    return varint.MOST_BYTES * n


def encode_keys(keys: np.ndarray, out: np.ndarray) -> int:
    """Write keys into the start of `out`; returns the number of bytes used.

    Args:
        keys: uint64[n], ascending, each once.
        out: uint8[>= most_bytes(n)], contiguous and writable; what stands behind the bytes used is undefined.

    Raises:
        ValueError: keys that do not ascend, or too little room.
    """
    if len(out) < most_bytes(len(keys)):
        raise ValueError(f"{len(keys)} keys may need {most_bytes(len(keys))} bytes, there are {len(out)}")
    used = int(varint.encode(own(keys, np.uint64), out))
    if used < 0:
        raise ValueError(_WRONG[used])
    return used


def decode_keys(data: np.ndarray, n: int) -> np.ndarray:
    """The n keys, uint64[n], that all of `data` (uint8[m]) stands for.

    Raises:
        ValueError: data that `encode_keys` did not write for n keys: torn, too long, or not ascending.
    """
    if not 0 <= n <= len(data):  # before memory is asked for: each key takes a byte at least
        raise ValueError(f"{len(data)} bytes cannot hold {n} keys")
    keys = np.empty(n, np.uint64)
    used = int(varint.decode(own(data, np.uint8), keys))
    if used < 0:
        raise ValueError(_WRONG[used])
    if used < len(data):
        raise ValueError(f"{len(data) - used} bytes are left over behind {n} keys")
    return keys
