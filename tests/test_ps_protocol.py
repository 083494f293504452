"""Messages of the parameter server: what is composed is read back, and nothing else is read at all."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi import codecs
from lightctr_mpi.config import CODECS
from lightctr_mpi.errors import Fault
from lightctr_mpi.ps import protocol
from lightctr_mpi.ps.protocol import (
    HEADER_BYTES,
    Kind,
    Message,
    ProtocolError,
    compose,
    compose_bytes,
    compose_json,
    compose_keyed,
)

TOP = 2**64 - 1
SOURCE = 5
LAYOUT = "<IIqqqiiqqiiiiddqdq"  # the header as struct has it, without its last 16 bytes
READERS = ("text", "json", "row_numbers", "keys", "dense", "row_bytes")
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)

key_sets = st.sets(st.integers(0, TOP) | st.integers(0, 300) | st.sampled_from([0, 1, TOP]), max_size=40)
fields = st.fixed_dictionaries(
    {
        "lease": INT64,
        "clock": INT64,
        "share": INT32,
        "shares": INT32,
        "width": INT32,
        "codec": INT32,
        "flags": INT32,
        "samples": st.floats(),
        "loss": st.floats(),
        "rows": INT64,
        "seconds": st.floats(),
        "spare": INT64,
    }
)
values = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def keys_of(chosen: set[int]) -> np.ndarray:
    return np.array(sorted(chosen), np.uint64)


def arrived(data: np.ndarray) -> Message:
    """As the receiver sees it: in memory of its own."""
    return Message(data.copy(), SOURCE)


def same(message: Message, wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        got = getattr(message, name)
        assert type(got) is type(value)
        assert got == value or (value != value and got != got)


def inside(part: np.ndarray, message: Message) -> bool:
    """Whether an array lies in the message's body, or in no message at all."""
    if not np.may_share_memory(part, message.data):
        return part.base is None
    start = part.ctypes.data - message.data.ctypes.data
    return start >= HEADER_BYTES and start + part.nbytes <= len(message.data)


def read_all(data: np.ndarray) -> list[str]:
    """Call all readers; the names of those that refuse. Anything but a ProtocolError is passed on."""
    refused = []
    try:
        message = Message(data, SOURCE)
    except ProtocolError as error:
        assert f"rank {SOURCE} " in str(error)
        return ["Message"]
    for name in READERS:
        try:
            part = getattr(message, name)()
        except ProtocolError as error:
            assert str(error).startswith(f"a {message.kind.name} from rank {SOURCE} is torn: ")
            refused.append(name)
        else:
            assert not isinstance(part, np.ndarray) or not part.size or inside(part, message)
    return refused


# --- the header ---


def test_header_by_hand() -> None:
    """Little-endian, in the order of the fields, without gaps."""
    numbers = {"lease": 2**40, "clock": -2, "share": 3, "shares": 4, "n": 0, "key_bytes": 0, "n_dense": 0}
    numbers |= {"width": -6, "codec": 7, "flags": 8, "samples": 0.5, "loss": -1.25, "rows": 9}
    numbers |= {"seconds": 1e300, "spare": -(2**62)}
    data = compose(Kind.COMMIT, **numbers)
    assert data.dtype == np.uint8 and len(data) == HEADER_BYTES == 128
    wanted = struct.pack(LAYOUT, 0x5043544C, 6, 128, *numbers.values())
    assert len(wanted) == 112 and wanted[:4] == b"LTCP"
    assert data.tobytes() == wanted + bytes(16)
    same(Message(data, SOURCE), {"magic": 0x5043544C, "nbytes": 128, **numbers})


def test_a_message_made_by_hand_is_read() -> None:
    """Keys 3 and 303 are the varints 3 and 300 = 0b10_0101100; parts begin at multiples of 64."""
    body = bytes([3, 0xAC, 2]) + bytes(61) + struct.pack("<2f", 1.5, -2) + bytes(56) + b"rows"
    head = struct.pack(LAYOUT, 0x5043544C, 3, 128 + len(body), 11, 0, 0, 0, 2, 3, 2, 4, *[0] * 7)
    message = Message(np.frombuffer(head + bytes(16) + body, np.uint8), SOURCE)
    assert message.kind is Kind.PUSH and message.source == SOURCE
    assert (message.lease, message.n, message.width) == (11, 2, 4)
    assert message.keys().tolist() == [3, 303] and message.keys().dtype == np.uint64
    assert message.dense().tolist() == [1.5, -2]
    assert message.row_bytes().tobytes() == b"rows"


def test_kinds_keep_their_numbers() -> None:
    """Ranks of one run share a program, but a dump of messages outlives it."""
    words = (
        "PULL ROWS PUSH NEXT LEASE COMMIT GRANT REFUSE EVALUATE RESULT FLUSH DONE SETTLE SETTLED SAVE LOAD"
    )
    wanted = [*words.split(), "EVICT", "ALIVE", "FAILED", "END", "LONG"]
    assert [kind.name for kind in sorted(Kind)] == wanted
    assert [kind.value for kind in sorted(Kind)] == list(range(1, 22))


@given(st.sampled_from(Kind), fields)
@settings(deadline=None)
def test_headers_of_every_kind_round_trip(kind: Kind, numbers: dict[str, Any]) -> None:
    message = arrived(compose(kind, **numbers))
    assert message.kind is kind
    same(message, {**numbers, "n": 0, "key_bytes": 0, "n_dense": 0, "nbytes": HEADER_BYTES})
    assert not len(message.keys()) and not len(message.dense()) and not len(message.row_bytes())


def test_names_that_no_header_has() -> None:
    with pytest.raises(AttributeError):
        _ = arrived(compose(Kind.NEXT)).lost
    with pytest.raises(ValueError):
        compose(Kind.NEXT, lost=1)


# --- bodies ---


@given(st.sampled_from(Kind), st.text(), fields)
@settings(deadline=None)
def test_texts_round_trip(kind: Kind, text: str, numbers: dict[str, Any]) -> None:
    message = arrived(compose_bytes(kind, text.encode(errors="replace"), **numbers))
    assert message.text() == text.encode(errors="replace").decode()
    same(message, numbers)


@given(st.sampled_from(Kind), values)
@settings(deadline=None)
def test_json_round_trips(kind: Kind, value: Any) -> None:
    message = arrived(compose_json(kind, value, clock=3))
    assert message.json() == value and message.clock == 3


@given(st.lists(INT64, max_size=50))
@settings(deadline=None)
def test_row_numbers_round_trip(rows: list[int]) -> None:
    body = np.array(rows, np.int64).tobytes()
    message = arrived(compose_bytes(Kind.LEASE, body, n=len(rows), share=1, shares=2))
    numbers = message.row_numbers()
    assert numbers.dtype == np.int64 and numbers.flags.aligned and numbers.tolist() == rows


@given(
    st.sampled_from([Kind.PULL, Kind.PUSH, Kind.ROWS]),
    key_sets,
    st.lists(st.floats(width=32), max_size=40),
    st.binary(max_size=200),
    fields,
)
@settings(deadline=None)
def test_keys_dense_and_rows_round_trip(
    kind: Kind, chosen: set[int], dense: list[float], rows: bytes, numbers: dict[str, Any]
) -> None:
    keys = keys_of(chosen)
    data, room = compose_keyed(kind, keys, np.array(dense, np.float32), len(rows), **numbers)
    assert len(room) == len(rows)
    room[:] = np.frombuffer(rows, np.uint8)
    message = arrived(data)
    assert message.kind is kind
    same(message, {**numbers, "n": len(keys), "n_dense": len(dense), "nbytes": len(data)})
    np.testing.assert_array_equal(message.keys(), keys)
    assert message.keys().dtype == np.uint64
    np.testing.assert_array_equal(message.dense(), np.array(dense, np.float32))  # NaN equals NaN here
    assert message.row_bytes().tobytes() == rows


def test_a_count_of_rows_that_is_no_count_of_keys() -> None:
    """ROWS has the rows of keys which it does not repeat."""
    data, _ = compose_keyed(Kind.ROWS, protocol.NO_KEYS, np.ones(1, np.float32), 24, n=3, width=2)
    message = arrived(data)
    assert message.n == 3 and len(message.row_bytes()) == 24
    with pytest.raises(ProtocolError, match="a ROWS from rank 5 is torn: 0 bytes cannot hold 3 keys"):
        message.keys()


@pytest.mark.parametrize("name", CODECS)
@given(key_sets, st.integers(0, 9), st.integers(0, 2**32))
@settings(deadline=None, max_examples=30)
def test_rows_of_each_codec(name: str, chosen: set[int], width: int, seed: int) -> None:
    keys, codec = keys_of(chosen), codecs.build(name)
    rows = np.random.default_rng(seed).normal(size=(len(keys), width)).astype(np.float32)
    size = codec.nbytes(len(keys), width)
    alone = np.empty(size, np.uint8)
    codec.encode(rows, alone)
    data, room = compose_keyed(Kind.PUSH, keys, np.ones(3, np.float32), size, width=width)
    codec.encode(rows, room)
    message = arrived(data)
    assert message.row_bytes().tobytes() == alone.tobytes()
    decoded, wanted = np.empty_like(rows), np.empty_like(rows)
    codec.decode(message.row_bytes(), decoded)
    codec.decode(alone, wanted)
    np.testing.assert_array_equal(decoded, wanted)
    np.testing.assert_array_equal(message.keys(), keys)
    if name == "float32":  # rows are used in place
        np.testing.assert_array_equal(message.row_bytes().view(np.float32).reshape(rows.shape), rows)


@given(st.integers(0, 70), st.integers(0, 40), st.integers(0, 300))
@settings(deadline=None)
def test_parts_begin_at_multiples_of_64(n: int, n_dense: int, rows_bytes: int) -> None:
    """n keys from 0 on take a byte each."""
    keys, dense = np.arange(n, dtype=np.uint64), np.full(n_dense, 7, np.float32)
    data, room = compose_keyed(Kind.PUSH, keys, dense, rows_bytes)
    dense_at = 128 + -(-n // 64) * 64
    rows_at = dense_at + -(-4 * n_dense // 64) * 64
    assert len(data) == rows_at + rows_bytes
    assert room.ctypes.data - data.ctypes.data == rows_at or not rows_bytes
    message = arrived(data)
    for part, at in ((message.dense(), dense_at), (message.row_bytes(), rows_at)):
        assert not part.size or part.ctypes.data - message.data.ctypes.data == at
    assert (
        message.dense().flags.aligned and message.row_bytes()[: rows_bytes // 4 * 4].view("f4").flags.aligned
    )
    assert message.dense().flags.writeable


@pytest.mark.parametrize("keys", [[2, 1], [1, 1]])
def test_keys_that_do_not_ascend_are_not_composed(keys: list[int]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        compose_keyed(Kind.PULL, np.array(keys, np.uint64))


# --- what no rank can have sent ---


def examples() -> dict[str, np.ndarray]:
    """A message of every kind, with the body that it has or one of another kind."""
    keys, dense = np.array([0, 7, 2**40, TOP], np.uint64), np.arange(3, dtype=np.float32)
    made = {kind: compose(kind, lease=4) for kind in Kind}
    made |= {kind: compose_json(kind, {"path": "x"}) for kind in (Kind.SAVE, Kind.LOAD, Kind.SETTLED)}
    made |= {kind: compose_bytes(kind, b"reading") for kind in (Kind.ALIVE, Kind.FAILED)}
    made[Kind.LEASE] = compose_bytes(Kind.LEASE, np.arange(5).tobytes(), n=5)
    for kind in (Kind.PULL, Kind.PUSH, Kind.ROWS):
        made[kind], room = compose_keyed(kind, keys, dense, 32, width=2)
        room[:] = 1
    return {kind.name: data for kind, data in made.items()}


@pytest.mark.parametrize("kind", [kind.name for kind in Kind])
def test_torn_at_every_length(kind: str) -> None:
    data = examples()[kind]
    assert Message(data, SOURCE).kind.name == kind
    for end in range(len(data)):
        with pytest.raises(ProtocolError) as caught:
            Message(data[:end].copy(), SOURCE)
        wanted = f"a {kind} from rank 5 is torn: {end} bytes of {len(data)}"
        assert str(caught.value) == (f"{end} bytes from rank 5 are no message" if end < 128 else wanted)
    with pytest.raises(ProtocolError, match=f"is torn: {len(data) + 1} bytes of {len(data)}"):
        Message(np.append(data, np.uint8(0)), SOURCE)


@pytest.mark.parametrize("kind", [kind.name for kind in Kind])
def test_bodies_that_end_early_though_the_header_agrees(kind: str) -> None:
    """Readers refuse a part that is not there in whole; a part that is there is what it was."""
    data = examples()[kind]
    whole = Message(data, SOURCE)
    for end in range(HEADER_BYTES, len(data)):
        cut = data[:end].copy()
        cut[8:16] = np.frombuffer(struct.pack("<q", end), np.uint8)
        refused = read_all(cut)
        message = Message(cut, SOURCE)
        for name in {"keys", "dense"} - set(refused):
            np.testing.assert_array_equal(getattr(message, name)(), getattr(whole, name)())
        if kind == "LEASE":
            assert "row_numbers" in refused
        if kind in ("PULL", "PUSH", "ROWS"):  # 1 + 1 + 6 + 10 bytes of keys, then 12 of dense values
            assert {"dense", "row_bytes"} <= set(refused) or end >= 128 + 64 + 64
            assert "keys" in refused or end >= 128 + 18
        if kind in ("SAVE", "LOAD", "SETTLED"):
            assert "json" in refused


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_wrong_magic(magic: int) -> None:
    data = compose(Kind.NEXT)
    data[:4] = np.frombuffer(struct.pack("<I", magic), np.uint8)
    if magic != protocol.MAGIC:
        with pytest.raises(
            ProtocolError, match="a message from rank 5 does not begin as one of this program"
        ):
            Message(data, SOURCE)


@pytest.mark.parametrize("kind", [0, 22, 2**31, 2**32 - 1])
def test_unknown_kind(kind: int) -> None:
    data = compose(Kind.NEXT)
    data[4:8] = np.frombuffer(struct.pack("<I", kind), np.uint8)
    with pytest.raises(ProtocolError, match=f"a message from rank 5 is of unknown kind {kind}$"):
        Message(data, SOURCE)


@pytest.mark.parametrize(
    "wrong, readers",
    [
        ({"n": 5}, "keys"),
        ({"n": 3}, "keys"),
        ({"n": 0}, "keys"),
        ({"n": -1}, "keys"),
        ({"n": 2**62}, "keys"),
        ({"key_bytes": 17}, "keys"),
        ({"key_bytes": 19}, "keys"),
        ({"key_bytes": 0}, "keys"),
        ({"key_bytes": -1}, "keys dense row_bytes"),
        ({"key_bytes": -128}, "keys dense row_bytes"),
        ({"key_bytes": -(2**63)}, "keys dense row_bytes"),
        ({"key_bytes": 2**63 - 1}, "keys dense row_bytes"),
        ({"n_dense": -1}, "dense row_bytes"),
        ({"n_dense": -32}, "dense row_bytes"),
        ({"n_dense": -(2**31)}, "dense row_bytes"),
        ({"n_dense": 2**31 - 1}, "dense row_bytes"),
        ({"n_dense": 25}, "dense row_bytes"),
        ({"key_bytes": -64, "n_dense": 16}, "keys dense row_bytes"),
        ({"n": 0, "key_bytes": -64}, "keys"),
        ({"n": -5}, "row_numbers"),
    ],
)
def test_wrong_counts(wrong: dict[str, int], readers: str) -> None:
    """The message has 4 keys in 18 bytes, 3 dense values and 32 bytes of rows."""
    data = examples()["PUSH"]
    head = data[: protocol.HEADER.itemsize].view(protocol.HEADER)[0]
    assert (head["n"], head["key_bytes"], head["n_dense"], len(data)) == (4, 18, 3, 128 + 64 + 64 + 32)
    for name, value in wrong.items():
        head[name] = value
    assert set(readers.split()) <= set(read_all(data))


@pytest.mark.parametrize("key_bytes", [2, 64, 2**40])
def test_keys_that_would_lie_beyond_the_end(key_bytes: int) -> None:
    """What there is of them would do for the one key that is announced."""
    message = arrived(compose_bytes(Kind.PULL, b"\7", n=1, key_bytes=key_bytes))
    with pytest.raises(ProtocolError, match=f"{key_bytes} bytes of keys and 0 dense values in 129 bytes"):
        message.keys()


@given(INT64 | st.integers(-200, 400), INT64 | st.integers(-200, 400), INT32 | st.integers(-200, 200))
@settings(deadline=None, max_examples=200)
def test_any_counts(n: int, key_bytes: int, n_dense: int) -> None:
    data = examples()["PUSH"]
    head = data[: protocol.HEADER.itemsize].view(protocol.HEADER)[0]
    head["n"], head["key_bytes"], head["n_dense"] = n, key_bytes, n_dense
    refused = read_all(data)
    assert ("keys" in refused) == ((n, key_bytes) not in ((4, 18), (0, 0))) or n_dense != 3
    assert min(key_bytes, n_dense) >= 0 or {"dense", "row_bytes"} <= set(refused)


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_random_bytes(data: bytes) -> None:
    assert read_all(np.frombuffer(data, np.uint8)) == ["Message"]


@given(
    st.sampled_from(Kind), fields, INT64 | st.integers(0, 99), st.integers(-9, 99), st.binary(max_size=300)
)
@settings(deadline=None, max_examples=200)
def test_random_bodies(kind: Kind, numbers: dict[str, Any], n: int, key_bytes: int, body: bytes) -> None:
    data = compose_bytes(kind, body, **numbers, n=n, key_bytes=key_bytes, n_dense=key_bytes // 8)
    read_all(data)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"a": 1', b"nul", b"\xff\xfe", b'"\xff"', b'"\xed\xa0\x80"', b"[" * 100_000, b"1 2"]
)
def test_bodies_that_are_no_json(body: bytes) -> None:
    message = arrived(compose_bytes(Kind.SETTLED, body))
    with pytest.raises(ProtocolError, match="a SETTLED from rank 5 is torn: its body is no JSON"):
        message.json()


def test_json_is_written_as_json() -> None:
    data = compose_json(Kind.SAVE, {"path": "a/b", "n": [1, None]})
    assert json.loads(data[HEADER_BYTES:].tobytes()) == {"path": "a/b", "n": [1, None]}


def test_texts_are_shown_whatever_they_hold() -> None:
    assert arrived(compose_bytes(Kind.FAILED, b"row \xff")).text() == "row \ufffd"


def test_a_protocol_error_is_a_fault() -> None:
    """It ends the run with one line and no traceback."""
    assert issubclass(ProtocolError, Fault)
