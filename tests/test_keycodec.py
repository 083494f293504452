"""Keys as varints against a reader and a writer in plain Python, which follow the definition of LEB128."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi.codecs.keys import decode_keys, encode_keys, most_bytes

TOP = 2**64 - 1


def write(keys: list[int]) -> bytes:
    out, before = [], 0
    for key in keys:
        rest, before = key - before, key
        while rest > 127:
            out.append(128 | rest % 128)
            rest //= 128
        out.append(rest)
    return bytes(out)


def read(data: bytes, n: int) -> list[int] | None:
    """The keys, None for data that is not what `write` makes of n keys."""
    keys, at = [], 0
    for _ in range(n):
        number, shift = 0, 0
        while True:
            if at == len(data):
                return None
            byte, at = data[at], at + 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        keys.append((keys[-1] if keys else 0) + number)
    ascend = keys == sorted(set(keys)) and max(keys, default=0) <= TOP
    return keys if at == len(data) and ascend and write(keys) == data else None


def encoded(keys: list[int]) -> bytes:
    out = np.full(most_bytes(len(keys)), 0xAB, np.uint8)
    return out[: encode_keys(np.array(keys, np.uint64), out)].tobytes()


def decoded(data: bytes, n: int) -> list[int] | None:
    try:
        keys = decode_keys(np.frombuffer(data, np.uint8), n)
    except ValueError:
        return None
    assert keys.dtype == np.uint64
    return keys.tolist()


# Differences of any number of bytes, so that runs of short ones and mixtures of all lengths come up.
deltas = st.one_of(st.integers(1, 3), st.integers(0, 63).flatmap(lambda bits: st.integers(1, 2 << bits)))


@st.composite
def key_sets(draw) -> list[int]:
    keys = set(draw(st.lists(st.integers(0, TOP) | st.integers(0, 300), max_size=30)))
    key = draw(st.integers(0, TOP))
    for delta in draw(st.lists(deltas, max_size=60)):
        key += delta
        keys.add(min(key, TOP))
    return sorted(keys)


@settings(deadline=None, max_examples=300)
@given(key_sets())
def test_round_trip(keys: list[int]) -> None:
    data = encoded(keys)
    assert data == write(keys)
    assert decoded(data, len(keys)) == keys


def test_by_hand() -> None:
    # 300 = 0b10_0101100: the 7 lower bits 0x2C with the mark that more follow, then 2
    assert encoded([0, 1, 301]) == bytes([0, 1, 0xAC, 2])
    assert encoded([TOP]) == b"\xff" * 9 + b"\1"
    assert encoded([]) == b"" and decoded(b"", 0) == []


@pytest.mark.parametrize("n", [1, 7, 8, 9, 16, 17, 1000])
@pytest.mark.parametrize("step", [1, 127, 128, 2**14 - 1, 2**14, 2**54])
def test_runs_of_equal_differences(n: int, step: int) -> None:
    keys = [(step * i) % 2**64 for i in range(min(n, 2**64 // step))]
    assert decoded(encoded(keys), len(keys)) == keys


def test_most_bytes_is_enough_and_not_more_than_needed() -> None:
    assert len(encoded([TOP])) == most_bytes(1) == 10
    assert most_bytes(0) == 0
    with pytest.raises(ValueError, match="2 keys may need 20 bytes, there are 19"):
        encode_keys(np.array([1, 2], np.uint64), np.empty(19, np.uint8))


@settings(deadline=None)
@given(key_sets().filter(bool))
def test_torn_at_every_byte(keys: list[int]) -> None:
    data = encoded(keys)
    for end in range(len(data)):
        with pytest.raises(ValueError):
            decode_keys(np.frombuffer(data[:end], np.uint8), len(keys))


@settings(deadline=None)
@given(key_sets(), st.integers(0, 255))
def test_what_is_left_over_is_refused(keys: list[int], byte: int) -> None:
    with pytest.raises(ValueError, match="1 bytes are left over"):
        decode_keys(np.frombuffer(encoded(keys) + bytes([byte]), np.uint8), len(keys))


@settings(deadline=None, max_examples=500)
@given(
    st.lists(st.integers(0, 255) | st.sampled_from([0, 1, 127, 128, 255]), max_size=40).map(bytes),
    st.integers(-1, 41),
)
def test_any_bytes_are_read_as_the_definition_says(data: bytes, n: int) -> None:
    assert decoded(data, n) == (read(data, n) if n >= 0 else None)


@settings(deadline=None, max_examples=200)
@given(key_sets().filter(bool), st.data())
def test_a_changed_byte_is_read_as_the_definition_says(keys: list[int], choice) -> None:
    data = bytearray(encoded(keys))
    data[choice.draw(st.integers(0, len(data) - 1))] = choice.draw(st.integers(0, 255))
    assert decoded(bytes(data), len(keys)) == read(bytes(data), len(keys))


@pytest.mark.parametrize(
    "data, n, message",
    [
        (b"\x80", 1, "middle of a number"),
        (b"\x80" * 8, 1, "middle of a number"),
        (b"\x80\0", 1, "more bytes"),
        (b"\1\x81\0" + b"\1" * 8, 10, "more bytes"),
        (b"\xff" * 9 + b"\2", 1, "more bytes"),
        (b"\xff" * 10 + b"\1", 1, "more bytes"),
        (b"\5\0", 2, "do not ascend"),
        (b"\5" + b"\1" * 7 + b"\0" + b"\1" * 8, 17, "do not ascend"),
        (b"\xff" * 9 + b"\1\1", 2, "do not ascend"),
        (b"\xff" * 9 + b"\1" + b"\1" * 16, 17, "do not ascend"),
        (b"\1\1", 3, "2 bytes cannot hold 3 keys"),
        (b"", -1, "cannot hold -1 keys"),
        (b"\1", 2**40, "cannot hold"),
    ],
)
def test_messages(data: bytes, n: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_keys(np.frombuffer(data, np.uint8), n)


@pytest.mark.parametrize("keys", [[1, 1], [5, 4], [0, 0], [TOP, 0], [1, 2, 2**40, 2**40 - 1]])
def test_keys_out_of_order_are_refused(keys: list[int]) -> None:
    with pytest.raises(ValueError, match="do not ascend"):
        encoded(keys)


def test_no_byte_behind_the_data_is_read() -> None:
    """The data end where a page ends behind which nothing may be read; a touch of it ends the process."""
    script = """
        import ctypes, mmap
        import numpy as np
        from lightctr_mpi.codecs.keys import decode_keys

        page = mmap.PAGESIZE
        memory = np.frombuffer(mmap.mmap(-1, 2 * page), np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(memory.ctypes.data + page)
        assert libc.mprotect(address, ctypes.c_size_t(page), 0) == 0
        rng, wrong = np.random.default_rng(1), 0
        for _ in range(20_000):
            size = int(rng.integers(1, 40))
            data = memory[page - size : page]
            data[:] = rng.choice([0, 1, 127, 128, 129, 255], size, p=[0.02, 0.4, 0.08, 0.2, 0.2, 0.1])
            try:
                decode_keys(data, int(rng.integers(1, size + 1)))
            except ValueError:
                wrong += 1
        print(wrong)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 20_000
