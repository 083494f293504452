"""Numbers as text: the fast formatter against Python's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lightctr_mpi.kernels.format import format_one_hot, format_probabilities


def by_python(numbers):
    return "".join(f"{float(number):z.8f}\n" for number in numbers).encode()


@settings(deadline=None)
@given(arrays(np.float32, st.integers(0, 20), elements=st.floats(0, 1, width=32)))
def test_probabilities_are_rounded_as_python_rounds_them(p):
    text = format_probabilities(p)
    assert text == by_python(p)
    assert np.allclose(np.array(text.split(), np.float64), p, rtol=0, atol=5.1e-9)


@settings(deadline=None)
@given(arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32)))
def test_any_number_is_written(numbers):
    assert format_probabilities(numbers) == by_python(numbers)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.00000000"),
        (1.0, "1.00000000"),
        (0.5, "0.50000000"),
        (1e-7, "0.00000010"),
        (4e-9, "0.00000000"),
        (-4e-9, "0.00000000"),
        (-0.0, "0.00000000"),
        (2.0**-9, "0.00195312"),  # 0.001953125: a tie, to the even digit
        (3 * 2.0**-9, "0.00585938"),  # 0.005859375
        (-12.25, "-12.25000000"),
        (9e10, "89999998976.00000000"),  # the nearest float32, the last of the fast path
        (90000007168.0, "90000007168.00000000"),  # the first beyond it
        (2.0**36, "68719476736.00000000"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (-(2.0**100), "-1267650600228229401496703205376.00000000"),
    ],
)
def test_single_numbers(number, text):
    assert format_probabilities(np.array([number], np.float32)) == text.encode() + b"\n"


def test_strided_and_read_only_input():
    p = np.linspace(0, 1, 11, dtype=np.float32)[::2]
    p.flags.writeable = False
    assert format_probabilities(p) == by_python(p)


@pytest.mark.parametrize("first", [0, 1, 999_999_990, 2**40])
def test_one_hot_rows(first):
    labels = np.array([0, 1], np.uint8)
    keys = np.array([[0, 9, 10], [7, 99, 2**31 - 1]], np.int32)
    as_libffm = "".join(
        f"{y} " + " ".join(f"{f}:{first + key}:1" for f, key in enumerate(row)) + "\n"
        for y, row in zip(labels.tolist(), keys.tolist(), strict=True)
    )
    as_libsvm = "".join(
        f"{y} " + " ".join(f"{first + key}:1" for key in row) + "\n"
        for y, row in zip(labels.tolist(), keys.tolist(), strict=True)
    )
    assert bytes(format_one_hot(labels, keys, first, True)).decode() == as_libffm
    assert bytes(format_one_hot(labels, keys, first, False)).decode() == as_libsvm


def test_no_rows():
    assert format_probabilities(np.empty(0, np.float32)) == b""
    assert bytes(format_one_hot(np.empty(0, np.uint8), np.empty((0, 3), np.int32), 1, True)) == b""
