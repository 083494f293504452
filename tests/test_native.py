"""Machine code that is called without Numba: every way of passing arguments, and what is in its way."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lightctr_mpi.kernels import jit, native

ROOT = Path(__file__).parent.parent
SCALARS = [int, float, bool, np.bool_, np.float32, np.float64]
SCALARS += [getattr(np, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]


@jit.jit_exact
def echo(x):
    return x


@jit.jit_exact
def weigh(data, pair, table, factor, out):
    (text, count), flag = data, pair
    out[0] = text[0] * 1000.0 + count + (0.5 if flag else 0.0)
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            out[i + 1] += factor * table[i, j]
    return np.int32(table.shape[1]), out[0], text.size > 1


@jit.jit_exact
def total(array):
    work = np.empty(len(array))
    for i in range(len(array)):
        work[i] = array[i]
    return work.sum()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A cache folder of its own; kernels forget what they have loaded."""
    monkeypatch.setattr(jit, "CACHE_DIR", tmp_path)
    for kernel in (echo, weigh, total):
        monkeypatch.setattr(kernel, "_calls", {})
    return tmp_path


def loaded(kernel, *args):
    """Result of a second call, for which the kernel was loaded from the file that the first has left."""
    first = kernel(*args)
    key = native.describe(args)
    call = native.load(kernel._path(key), key)
    assert call is not None
    assert repr(call(args)) == repr(first)
    return call(args)


@pytest.mark.parametrize("kind", SCALARS, ids=lambda kind: kind.__module__ + "." + kind.__name__)
def test_scalars_come_back_as_numba_gives_them(cache, kind):
    values = [0, 1] if kind in (bool, np.bool_) else [0, 1, 100] + [-3] * (kind not in SCALARS[-4:])
    for value in map(kind, values):
        back = loaded(echo, value)
        assert back == value and type(back) in (int, float, bool)


def test_extreme_numbers_are_whole(cache):
    for value in (2**63 - 1, -(2**63), np.uint64(2**64 - 1), np.int8(-128), np.float64(1e300), float("inf")):
        assert loaded(echo, value) == value


def test_arrays_tuples_and_several_results(cache):
    text = np.frombuffer(b"ab", np.uint8)  # read-only
    table, out = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(3)
    assert weigh((text, 7), True, table, np.float32(2), out) == (3, 97007.5, True)
    np.testing.assert_array_equal(out, [97007.5, 6, 24])
    key = native.describe(((text, 7), True, table, np.float32(2), out))
    again = np.zeros(3)
    call = native.load(weigh._path(key), key)
    assert call(((text[1:], 7), False, table[:1], np.float32(2), again)) == (3, 98007.0, False)
    np.testing.assert_array_equal(again, [98007, 6, 0])


def test_empty_arrays(cache):
    assert loaded(total, np.empty(0)) == 0


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0)[::2], np.arange(6.0).reshape(2, 3).T[0], np.arange(3, dtype=np.complex128).real],
    ids=["strided", "column", "real part"],
)
def test_what_is_not_contiguous_goes_to_numba(cache, array):
    assert total(array) == array.sum()
    assert not list(cache.glob("native-*"))


def test_integers_beyond_64_bits_with_sign_go_to_numba(cache):
    with pytest.raises(OverflowError):
        echo(2**63)
    assert not list(cache.glob("native-*"))


def test_results_that_are_arrays_are_left_to_numba(cache):
    array = np.arange(3.0)
    for _ in range(2):
        np.testing.assert_array_equal(echo(array), array)
    assert not list(cache.glob("native-*"))


@pytest.mark.parametrize("damage", [b"", b"{}", b"no json\n", b'{"symbol": "x", "needs": ["no_such"]}\nabc'])
def test_a_damaged_file_is_compiled_anew(cache, monkeypatch, damage):
    assert echo(5) == 5
    (path,) = cache.glob("native-*")
    good = path.read_bytes()
    path.write_bytes(damage)
    monkeypatch.setattr(echo, "_calls", {})
    assert echo(6) == 6
    assert path.read_bytes().partition(b"\n")[0] == good.partition(b"\n")[0]


def test_another_calling_convention_is_noticed(cache, monkeypatch):
    monkeypatch.setattr(native, "_ARRAY", native._ARRAY[::-1])
    assert total(np.ones(3)) == 3
    assert not list(cache.glob("native-*"))


def test_closures_differ_by_what_they_close_over(cache):
    def make(addend):
        @jit.jit_exact
        def add(x):
            return x + addend

        return add

    assert [loaded(make(addend), 1) for addend in (1, 2, 0.5)] == [2, 3, 1.5]
    assert len(list(cache.glob("native-*"))) == 3


PROGRAM = """
import sys
import numpy as np
import test_native
print(test_native.total(np.arange(4.0)))
print("numba" in sys.modules)
import numba  # shares the allocator that was loaded without it
print(numba.njit(lambda n: np.ones(n).sum())(5), test_native.total(np.arange(5.0)))
"""


def test_memory_is_there_without_numba_and_numba_can_follow(tmp_path):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = os.environ | {"LIGHTCTR_CACHE_DIR": str(tmp_path), "PYTHONPATH": paths}
    command = [sys.executable, "-c", PROGRAM]
    for with_numba in ("True", "False"):
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.stdout.split() == ["6.0", with_numba, "5.0", "10.0"], done.stderr
