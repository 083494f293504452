"""The fast way through libffm and libsvm text: what it reads is what a plain reading in Python gives."""

import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightctr_mpi import readers
from lightctr_mpi.config import DataOptions
from lightctr_mpi.errors import DataError
from lightctr_mpi.kernels.parse_plain import REACH
from lightctr_mpi.readers.base import Where

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
LABELS = {"0": 0.0, "1": 1.0, "-1": 0.0, "+1": 1.0, "01": 1.0, "1.0": 1.0, "0e5": 0.0}

# The fast way ends within REACH bytes of the end of the data: rows of interest stand before this one.
TAIL = {"libffm": "1 " + "8:77:1 " * REACH, "libsvm": "1 " + "77:1 " * REACH}

digits = (
    st.integers(0, 10**6).map(str) | st.integers(0, 2**64 + 10**6).map(str) | st.text("0189", max_size=25)
)
edges = st.sampled_from(
    [
        "18446744073709551615",
        "18446744073709551616",
        "9999999999999999",
        "10000000000000000",
        "99999999",
        "100000000",
    ]
    + ["00000000000000000000007", "1844674407370955162", "20000000000000000000", "18446744073709549999"]
    + ["2147483647", "2147483648", "9999999", "10000000", "+1", "-1", "1.0", "", "x", "1_0"]
)
numbers = digits | edges
values = st.sampled_from(
    [
        "1",
        "1",
        "1",
        "1.0",
        "+1",
        "01",
        "1e0",
        "10e-1",
        "0.5",
        "-2.25",
        "1e-3",
        ".5",
        "5.",
        "",
        "1x",
        "nan",
        "1e999",
    ]
    + [
        "0",
        "-0",
        "100000000000000000000000",
        "0.333333333333333333333333",
        "1.00000017881393432617187499",
        "11",
    ]
) | st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr)
blanks = st.sampled_from([" "] * 8 + ["  ", "\t", " \t"])
ends = st.sampled_from(["\n"] * 6 + ["\r\n", " \n", "\n\n", " # comment 1:1:1\n", "#\n", "\t\r\n", "\r \n"])
labels = st.sampled_from(["0", "1"] * 4 + list(LABELS) + ["2", "", "x", "0x1"])


def entries_of(name):
    parts = st.tuples(numbers, numbers, values) if name == "libffm" else st.tuples(numbers, values)
    entry = parts.map(":".join)
    if name == "libsvm":
        entry |= numbers
    return st.tuples(blanks, entry | st.sampled_from(["1:2:3:4", "1:2:", ":", "1:1:1,", "5"])).map("".join)


def lines_of(name):
    common = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10**7)), max_size=70).map(
        lambda pairs: "1" + "".join(f" {f}:{i}:1" if name == "libffm" else f" {i}:1" for f, i in pairs) + "\n"
    )
    odd = st.tuples(labels, st.lists(entries_of(name), max_size=4).map("".join), ends).map("".join)
    return st.lists(common | odd, max_size=8).map("".join)


def read_entry(name, token):
    """((field, id), value), or None for a malformed entry."""
    parts = token.split(":")
    if name == "libsvm":
        parts = ["0", *parts, "1"][: max(3, len(parts) + 1)]
    if len(parts) != 3 or not all(re.fullmatch("[0-9]+", part) for part in parts[:2]):
        return None
    field, key = int(parts[0]), int(parts[1])
    if field >= 2**31 or key >= 2**64 or not NUMBER.fullmatch(parts[2]):
        return None
    with np.errstate(over="ignore"):
        value = np.float32(float(parts[2]))
    return ((field, key), value) if np.isfinite(value) else None


def read_row(name, line):
    """(label, {(field, id): value}), None for a malformed row."""
    label, *tokens = re.split("[ \t]+", line)
    entries = [read_entry(name, token) for token in tokens]
    if label not in LABELS or None in entries:
        return None
    row = {}
    with np.errstate(over="ignore"):
        for key, value in entries:
            row[key] = row[key] + value if key in row else value
    return (LABELS[label], row) if np.isfinite(list(row.values())).all() else None


def read_text(name, text):
    """The good rows of a text, and the lines, from 1, of the bad ones."""
    good, bad = [], []
    for number, line in enumerate(text.split("\n"), 1):
        line = (
            line.split("#")[0].strip(" \t") if "#" in line else re.sub(r"[ \t]*\r?$", "", line).strip(" \t")
        )
        if line:
            row = read_row(name, line)
            bad.append(number) if row is None else good.append(row)
    return good, bad


def rows(block):
    fields = np.zeros(block.nnz, int) if block.fields is None else block.fields
    numbers = np.ones(block.nnz, np.float32) if block.values is None else block.values
    keys = list(zip(fields.tolist(), block.ids.tolist(), strict=True))
    pieces = zip(block.labels.tolist(), block.indptr[:-1], block.indptr[1:], strict=True)
    return [(label, dict(zip(keys[a:b], numbers[a:b], strict=True))) for label, a, b in pieces]


@pytest.mark.parametrize("name", ["libffm", "libsvm"])
@settings(max_examples=400, deadline=None)
@given(data=st.data(), tail=st.booleans())
def test_any_rows_are_those_of_a_plain_reading(name, data, tail):
    text = data.draw(lines_of(name)) + (TAIL[name] if tail else "")
    good, bad = read_text(name, text)
    reader = readers.build(name, DataOptions())
    where = Where.whole("rows", text.encode())
    block = reader.parse(text.encode(), where, "skip")
    assert rows(block) == good
    assert block.skipped == len(bad)
    if block.values is None:
        assert all(value == 1 for _, row in good for value in row.values())
    if bad:
        with pytest.raises(DataError, match=rf"^rows:{bad[0]}: "):
            reader.parse(text.encode(), where, "error")


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**64 + 10**5), st.integers(0, 22))
@example(2**64 - 1, 0)
@example(2**64, 0)
@example(10**19, 0)
def test_ids_of_any_length(number, width):
    text = f"1 1:{number:0{width}}:1 2:3:1\n" + TAIL["libffm"]
    reader = readers.build("libffm", DataOptions())
    if number < 2**64:
        assert reader.parse(text.encode(), Where.whole("rows", text.encode())).ids[:2].tolist() == [number, 3]
    else:
        with pytest.raises(DataError, match=f"rows:1: found '0*{number}'"):
            reader.parse(text.encode(), Where.whole("rows", text.encode()))


def test_values_that_turn_up_late_do_not_change_earlier_ones():
    text = "1 1:1:1 2:2:1\n" * 50 + "0 1:1:1 2:2:0.5 3:3:1\n" + TAIL["libffm"]
    block = readers.build("libffm", DataOptions()).parse(text.encode(), Where.whole("rows", text.encode()))
    assert block.values[:103].tolist() == [1.0] * 101 + [0.5, 1.0]


def test_a_bad_row_leaves_no_values_behind():
    text = "1 1:1:1\n0 1:1:7 2:2:x\n1 1:3:1\n" + "1 8:77:1\n" * REACH
    reader = readers.build("libffm", DataOptions())
    block = reader.parse(text.encode(), Where.whole("rows", text.encode()), "skip")
    assert block.values is None and block.skipped == 1 and block.ids[:2].tolist() == [1, 3]


def test_fields_that_change_from_row_to_row():
    """The field of the last row at the same place is a guess only: one that begins alike is another."""
    fields = [[1, 2, 3], [1, 22, 3], [11, 2, 33], [1, 2, 3], [0, 2, 1234567], [0, 2, 12345678]] + [
        list(range(200))
    ] * 2
    text = "".join("1" + "".join(f" {f}:5:1" for f in row) + "\n" for row in fields)
    text += "1 8:77:1\n" * REACH
    block = readers.build("libffm", DataOptions()).parse(text.encode(), Where.whole("rows", text.encode()))
    found = [block.fields[a:b].tolist() for a, b in zip(block.indptr, block.indptr[1:], strict=False)]
    assert found[: len(fields)] == fields
