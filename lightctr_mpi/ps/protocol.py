"""What the ranks of a parameter server say to each other: one flat uint8 buffer a message, no pickle.

A message is a header of 128 bytes (HEADER, little-endian) and a body. The body of PULL, PUSH and ROWS has up
to three parts, each begun at a multiple of 64 bytes:

    keys    `n` unique ascending uint64 keys as varint deltas (codecs/keys.py), `key_bytes` long
    dense   `n_dense` float32: the sender's or receiver's segment of the dense parameters
    rows    `n` rows of `width` floats in the codec of the message (codecs/)

PULL     worker to server   keys of a lease's batch; ROWS answers as soon as the lease's clock allows it
ROWS     server to worker   the rows of a PULL in its order; `clock`: clocks complete when they were read
PUSH     worker to server   keys, gradients and the dense gradient of a lease, summed over `samples` rows;
                            every server gets one for each lease, with no keys if need be, to count clocks;
                            `spare`: values that the codec clipped
NEXT     worker to Master   wants a lease
LEASE    Master to worker   row numbers (int64) of share `share` of `shares` of clock `clock`
COMMIT   worker to Master   has the gradient of a lease, with its sums; pushes it if it gets
GRANT    Master to worker   ... this, and drops it on
REFUSE   Master to worker   ... that: the lease ran out and another worker has it
EVALUATE Master to workers  score the rows of role `n`; the first worker answers RESULT (metrics as JSON)
FLUSH    Master to workers  push what error feedback holds back; DONE answers
SETTLE   Master to servers  answer SETTLED once all shares of clocks below `clock`, and `n` flushes, are in
SAVE, LOAD, EVICT           Master to servers (arguments as JSON); SETTLED answers
ALIVE    anyone to Master   every second without other words: what the rank is doing
FAILED   anyone to Master   why the rank cannot go on (text)
END      Master to all      leave
"""

from __future__ import annotations

import enum
import json
from typing import Any

import numpy as np

from ..codecs.keys import decode_keys, encode_keys, most_bytes
from ..errors import Fault

MAGIC = 0x5043544C  # "LTCP"
HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("kind", "<u4"),
        ("nbytes", "<i8"),  # of the whole message
        ("lease", "<i8"),
        ("clock", "<i8"),
        ("share", "<i4"),
        ("shares", "<i4"),
        ("n", "<i8"),
        ("key_bytes", "<i8"),
        ("n_dense", "<i4"),
        ("width", "<i4"),
        ("codec", "<i4"),
        ("flags", "<i4"),
        ("samples", "<f8"),
        ("loss", "<f8"),
        ("rows", "<i8"),
        ("seconds", "<f8"),
        ("spare", "<i8"),
    ]
)
assert HEADER.itemsize == 112
HEADER_BYTES = 128
ALIGN = 64
NO_KEYS, NO_FLOATS = np.empty(0, np.uint64), np.empty(0, np.float32)

# Flags.
SCORING = 1  # PULL: creates no keys and waits for no clock
FLUSHING = 2  # PUSH: belongs to no lease
URGENT = 4  # LEASE: take it before what you hold
STOP = 8  # anyone: this rank was asked to stop


class Kind(enum.IntEnum):
    PULL = 1
    ROWS = 2
    PUSH = 3
    NEXT = 4
    LEASE = 5
    COMMIT = 6
    GRANT = 7
    REFUSE = 8
    EVALUATE = 9
    RESULT = 10
    FLUSH = 11
    DONE = 12
    SETTLE = 13
    SETTLED = 14
    SAVE = 15
    LOAD = 16
    EVICT = 17
    ALIVE = 18
    FAILED = 19
    END = 20
    LONG = 21  # mail only: a message follows in pieces (mail.py)


_FIELDS = frozenset(HEADER.names or ())
_KNOWN = frozenset(int(kind) for kind in Kind)


class ProtocolError(Fault):
    """A message that no rank of this program can have sent."""


def padded(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def compose(kind: Kind, body_bytes: int = 0, **fields: Any) -> np.ndarray:
    """A message with room for a body: uint8[HEADER_BYTES + body_bytes]."""
    data = np.empty(HEADER_BYTES + body_bytes, np.uint8)
    data[:HEADER_BYTES] = 0
    tell(data, magic=MAGIC, kind=kind, nbytes=len(data), **fields)
    return data


def tell(data: np.ndarray, **fields: Any) -> None:
    """Set fields in the header of a message."""
    head = data[: HEADER.itemsize].view(HEADER)[0]
    for name, value in fields.items():
        head[name] = value


def compose_bytes(kind: Kind, body: bytes, **fields: Any) -> np.ndarray:
    data = compose(kind, len(body), **fields)
    data[HEADER_BYTES:] = np.frombuffer(body, np.uint8)
    return data


def compose_json(kind: Kind, value: Any, **fields: Any) -> np.ndarray:
    return compose_bytes(kind, json.dumps(value).encode(), **fields)


def compose_keyed(
    kind: Kind, keys: np.ndarray, dense: np.ndarray = NO_FLOATS, rows_bytes: int = 0, **fields: Any
) -> tuple[np.ndarray, np.ndarray]:
    """A message with keys and dense values in it, and its still empty part for rows (a view).

    Args:
        keys: uint64[n] ascending and unique; dense: float32[d].
    """
    coded = np.empty(most_bytes(len(keys)), np.uint8)
    coded = coded[: encode_keys(keys, coded) if len(keys) else 0]
    dense_at = HEADER_BYTES + padded(len(coded))
    rows_at = dense_at + padded(4 * len(dense))
    body = rows_at - HEADER_BYTES + rows_bytes
    data = compose(kind, body, key_bytes=len(coded), n_dense=len(dense), **({"n": len(keys)} | fields))
    data[HEADER_BYTES : HEADER_BYTES + len(coded)] = coded
    data[dense_at : dense_at + 4 * len(dense)] = np.ascontiguousarray(dense, np.float32).view(np.uint8)
    return data, data[rows_at:]


class Message:
    """A received message.

    Args:
        data: uint8[n] as it came.
        source: rank that sent it.

    Attributes:
        kind; the fields of HEADER, as Python's numbers.

    Raises:
        ProtocolError: it is torn or of no known kind. The methods raise it for a part that is not there in
            whole, or does not follow its form.
    """

    def __init__(self, data: np.ndarray, source: int):
        self.data, self.source = data, source
        if len(data) < HEADER_BYTES:
            raise ProtocolError(f"{len(data)} bytes from rank {source} are no message")
        self.head = data[: HEADER.itemsize].view(HEADER)[0]
        if self.head["magic"] != MAGIC:
            raise ProtocolError(f"a message from rank {source} does not begin as one of this program")
        if int(self.head["kind"]) not in _KNOWN:
            raise ProtocolError(f"a message from rank {source} is of unknown kind {self.head['kind']}")
        self.kind = Kind(int(self.head["kind"]))
        if self.head["nbytes"] != len(data):
            raise self.torn(f"{len(data)} bytes of {self.head['nbytes']}")

    def __getattr__(self, name: str) -> Any:
        if name in _FIELDS:
            return self.head[name].item()
        raise AttributeError(name)

    def torn(self, what: str) -> ProtocolError:
        return ProtocolError(f"a {self.kind.name} from rank {self.source} is torn: {what}")

    def text(self) -> str:
        return self.data[HEADER_BYTES:].tobytes().decode(errors="replace")

    def json(self) -> Any:
        try:
            return json.loads(self.data[HEADER_BYTES:].tobytes().decode())
        except (ValueError, RecursionError):
            raise self.torn("its body is no JSON") from None

    def row_numbers(self) -> np.ndarray:
        """int64[m] of a LEASE."""
        body = self.data[HEADER_BYTES:]
        if len(body) != 8 * self.n:
            raise self.torn(f"{len(body)} bytes for {self.n} rows")
        return body.view(np.int64)

    def _parts(self) -> tuple[int, int]:
        """Where the dense values and the rows begin, of which nothing that lies before may be missing."""
        key_bytes, n_dense = self.key_bytes, self.n_dense
        dense_at = HEADER_BYTES + padded(key_bytes)
        rows_at = dense_at + padded(4 * n_dense)
        if key_bytes < 0 or n_dense < 0 or rows_at > len(self.data):
            raise self.torn(f"{key_bytes} bytes of keys and {n_dense} dense values in {len(self.data)} bytes")
        return dense_at, rows_at

    def keys(self) -> np.ndarray:
        """uint64[n] ascending."""
        self._parts()
        n, end = self.n, HEADER_BYTES + self.key_bytes
        if n == 0 and end == HEADER_BYTES:
            return NO_KEYS
        try:
            return decode_keys(self.data[HEADER_BYTES:end], n)
        except ValueError as error:
            raise self.torn(str(error)) from None

    def dense(self) -> np.ndarray:
        """float32[n_dense] (a view)."""
        start, _ = self._parts()
        return self.data[start : start + 4 * self.n_dense].view(np.float32)

    def row_bytes(self) -> np.ndarray:
        """uint8[m]: the coded rows (a view)."""
        return self.data[self._parts()[1] :]
