"""libffm, libsvm and dense text: what is read, what is refused and how that is said."""

import gzip
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi import readers
from lightctr_mpi.config import DataOptions
from lightctr_mpi.errors import DataError, UserError
from lightctr_mpi.kernels.parse import parse_sparse
from lightctr_mpi.kernels.parse_dense import parse_dense
from lightctr_mpi.kernels.parse_merge import grows, merge_rows
from lightctr_mpi.kernels.parse_number import read_float, read_label
from lightctr_mpi.readers.base import Where
from lightctr_mpi.readers.source import Source

LABEL = "a label -1, 0 or 1 (data.labels soft takes probabilities, data.label_map translates others)"
ID = "a feature number from 0 to 18446744073709551615"
FIELD = "a field number from 0 to 2147483647"
HEADER = " (is this line a header? then give data.header yes)"


def read(name, text, task="logistic", **options):
    data = text if isinstance(text, bytes) else text.encode()
    return readers.build(name, DataOptions(**options), task=task).parse(data, Where.whole("rows", data))


def rows(block):
    """[(label, [(field, id, value), ...]), ...]"""
    fields = np.zeros(block.nnz, int) if block.fields is None else block.fields
    values = np.ones(block.nnz, np.float32) if block.values is None else block.values
    entries = list(zip(fields.tolist(), block.ids.tolist(), values.tolist(), strict=True))
    return [
        (label, entries[a:b])
        for label, a, b in zip(block.labels.tolist(), block.indptr[:-1], block.indptr[1:], strict=True)
    ]


def error_of(name, text, **options):
    with pytest.raises(DataError) as error:
        read(name, text, **options)
    return str(error.value)


def test_libffm_row_by_row():
    block = read("libffm", "1 0:7:1 3:18446744073709551615:0.5\n0 2147483647:0:-2e1\n")
    assert rows(block) == [(1, [(0, 7, 1), (3, 2**64 - 1, 0.5)]), (0, [(2147483647, 0, -20)])]
    dtypes = (block.indptr.dtype, block.ids.dtype, block.fields.dtype, block.values.dtype, block.labels.dtype)
    assert dtypes == (np.int64, np.uint64, np.int32, np.float32, np.float32)
    assert block.has_labels and block.groups is None and block.weights is None and block.skipped == 0


@pytest.mark.parametrize(
    "text",
    [
        "1 0:6:1 1:15:1\n0 0:7:1\n",
        "1 0:6:1 1:15:1\r\n0 0:7:1\r\n",
        "1 0:6:1 1:15:1\r\n0 0:7:1\r",
        "  1\t0:6:1  1:15:1 \t\n0   0:7:1",
        "\n1 0:6:1 1:15:1\n \t\r\n0 0:7:1\n\n\n",
        "+1 0:6:1 1:15:1\n-1 0:7:1\n",
        "1.0 0:06:1.0 01:15:+1\n-0 0:7:10e-1\n",
        "# made by hand\n1 0:6:1 1:15:1 # clicked\n0 0:7:1# not\n#",
    ],
)
def test_ways_to_write_the_same_rows(text):
    block = read("libffm", text)
    assert rows(block) == [(1, [(0, 6, 1), (1, 15, 1)]), (0, [(0, 7, 1)])]
    assert block.values is None


@pytest.mark.parametrize("text", ["", "\n", " \r\n\n", "# nothing\n"])
@pytest.mark.parametrize("name", ["libffm", "libsvm"])
def test_no_rows(name, text):
    block = read(name, text)
    assert block.n_rows == 0 and block.nnz == 0 and block.indptr.tolist() == [0]


def test_rows_of_a_label_alone_are_kept_in_place():
    block = read("libffm", "1\n0 0:7:1\n0 \n1 0:3:1\n1")
    assert rows(block) == [(1, []), (0, [(0, 7, 1)]), (0, []), (1, [(0, 3, 1)]), (1, [])]


def test_ids_beyond_32_bits_stay_apart():
    assert read("libffm", "1 0:4294967301:1 0:5:1").ids.tolist() == [2**32 + 5, 5]


def test_libsvm_row_by_row():
    block = read("libsvm", "# made by a tool\n1 1:0.5 3:1 # positive\n-1 2\n+1 9 4:-1e-2\n")
    expected = [(1, [(0, 1, 0.5), (0, 3, 1)]), (0, [(0, 2, 1)]), (1, [(0, 9, 1), (0, 4, -0.01)])]
    assert rows(block) == [(label, [(f, i, np.float32(v)) for f, i, v in r]) for label, r in expected]
    assert block.fields is None and block.groups is None


def test_libsvm_counts_from_where_the_file_does():
    assert read("libsvm", "1 0:1 5:1").ids.tolist() == [0, 5]
    assert read("libsvm", "1 1:1 6:1").ids.tolist() == [1, 6]


def test_libsvm_groups():
    block = read("libsvm", "1 qid:3 1:1\n0 qid:9223372036854775807 2:1\n1 qid:0\n")
    assert block.groups.tolist() == [3, 2**63 - 1, 0] and block.groups.dtype == np.int64
    assert block.ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("1 qid:3 1:1\n0 1:1\n", 2, "'0 1:1'"),
        ("1 1:1\n0 qid:3 1:1\n", 2, "'0 qid:3'"),
        ("1 qid:x 1:1\n", 1, "'1 qid:x'"),
        ("1 qid:9223372036854775808 1:1\n", 1, "'1 qid:9223372036854775808'"),
        ("1 qid:1:1\n", 1, "'1 qid:1:1'"),
    ],
)
def test_libsvm_groups_in_all_rows_or_none(text, line, found):
    expected = "the label followed by qid:N in all rows or in none, N below 2^63"
    assert error_of("libsvm", text) == f"rows:{line}: found {found}, expected {expected}"


def test_dense_row_by_row():
    block = read("dense", "1,0,2.5,1\n0, 0 ,0.0,-0\n-1,1e-3,0,0\n")
    assert rows(block) == [(1, [(0, 1, 2.5), (0, 2, 1)]), (0, []), (0, [(0, 0, np.float32(1e-3))])]
    assert block.fields is None


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("1,0,3\r\n0,2,0\r\n", {}),
        ("1\t0\t3\n0\t 2 \t0", {}),
        ("1;0;3\n\n0;2;0\n \n", {}),
        ("0,3,1\n2,0,0\n", {"label_column": "last"}),
        ("y,a,b\n1,0,3\n0,2,0\n", {}),
        ("y,a,b\n1,0,3\n0,2,0\n", {"header": "yes"}),
        ("\n9,8,7\r\n1,0,3\n0,2,0\n", {"header": "yes"}),
        ("yes,0,3\nno,2,0\n", {"label_map": "yes:1,no:0"}),
    ],
)
def test_ways_to_write_the_same_columns(text, options):
    assert rows(read("dense", text, **options)) == [(1, [(0, 1, 3)]), (0, [(0, 0, 2)])]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("1,2,3\n0,1\n", {}, "rows:2: found 2 columns, expected 3, as in the first line of the file"),
        ("1,2\n0,1,4\n", {}, "rows:2: found 3 columns, expected 2, as in the first line of the file"),
        ("1,2\n\n0,x y\n", {}, "rows:3: found 'x y', expected a finite number"),
        ("1,2,3\n0,,1\n", {}, "rows:2: found nothing, expected a finite number"),
        ("1,2\n0,1 2\n", {}, "rows:2: found '1 2', expected a finite number"),
        ("1,2\n2,1\n", {}, f"rows:2: found '2', expected {LABEL}"),
        ("1,2\n,1\n", {}, f"rows:2: found nothing, expected {LABEL}"),
        ("y,1\n1,2\n", {}, f"rows:1: found 'y', expected {LABEL}{HEADER}"),
        ("1,a\n1,2\n", {}, f"rows:1: found 'a', expected a finite number{HEADER}"),
        ("y,a\n1,2\n", {"header": "no"}, f"rows:1: found 'y', expected {LABEL}{HEADER}"),
        ("7,1\n", {}, f"rows:1: found '7', expected {LABEL}"),
        ('1,"2"\n0,1\n', {"header": "yes"}, ""),
    ],
)
def test_malformed_columns(text, options, message):
    if message:
        assert error_of("dense", text, **options) == message
    else:
        assert rows(read("dense", text, **options)) == [(0, [(0, 0, 1)])]


MALFORMED = [
    ("libffm", "1 0:1:nan", "'nan'", "a finite number"),
    ("libffm", "1 0:1:inf", "'inf'", "a finite number"),
    ("libffm", "1 0:1:-Infinity", "'-Infinity'", "a finite number"),
    ("libffm", "1 0:1:0x10", "'0x10'", "a finite number"),
    ("libffm", "1 0:1:1_0", "'1_0'", "a finite number"),
    ("libffm", "1 0:1:", "nothing", "a finite number"),
    ("libffm", "1 0:1:1e", "'1e'", "a finite number"),
    ("libffm", "1 0:1:1e+", "'1e+'", "a finite number"),
    ("libffm", "1 0:1:.", "'.'", "a finite number"),
    ("libffm", "1 0:1:+", "'+'", "a finite number"),
    ("libffm", "1 0:1:--1", "'--1'", "a finite number"),
    ("libffm", "1 0:1:1.2.3", "'1.2.3'", "a finite number"),
    ("libffm", "1 0:1:1,5", "'1,5'", "a finite number"),
    ("libffm", "1 0:1:1e39", "'1e39'", "a number that float32 can hold, below 3.4e38"),
    ("libffm", "1 0:1:3.5e38", "'3.5e38'", "a number that float32 can hold, below 3.4e38"),
    ("libffm", "1 0:1:1e99999999999999999999", "'1e99999999999999999999'", "a number that float32"),
    ("libffm", "1 0:1:" + "9" * 60, "'" + "9" * 40 + "...'", "a number that float32"),
    ("libffm", "1 0:-1:1", "'-1'", ID),
    ("libffm", "1 0:+1:1", "'+1'", ID),
    ("libffm", "1 0:abc:1", "'abc'", ID),
    ("libffm", "1 0:1_000:1", "'1_000'", ID),
    ("libffm", "1 0:\u0663:1", "'\u0663'", ID),
    ("libffm", "1 0::1", "nothing", ID),
    ("libffm", "1 0:1.5:1", "'1.5'", ID),
    ("libffm", "1 0:18446744073709551616:1", "'18446744073709551616'", ID),
    ("libffm", "1 0:99999999999999999999:1", "'99999999999999999999'", ID),
    ("libffm", "1 0:100000000000000000000:1", "'100000000000000000000'", ID),
    ("libffm", "1 -1:3:1", "'-1'", FIELD),
    ("libffm", "1 2147483648:3:1", "'2147483648'", FIELD),
    ("libffm", "1 18446744073709551616:3:1", "'18446744073709551616'", FIELD),
    ("libffm", "1 f0:3:1", "'f0'", FIELD),
    ("libffm", "1 :3:1", "nothing", FIELD),
    ("libffm", "1 3:1", "'3:1'", "field:feature:value"),
    ("libffm", "1 3", "'3'", "field:feature:value"),
    ("libffm", "1 0:3:1:2", "'0:3:1:2'", "field:feature:value"),
    ("libffm", "1 0:3:1\x000:4:1", "'\\x000'", FIELD),
    ("libffm", "1 0:3:1\r0 0:4:1", "a carriage return within the line", "field:feature:value"),
    ("libffm", "0:3:1 1:2:1", "'0:3:1'", LABEL),
    ("libffm", "label f0:id:v f1:id:v", "'label'", LABEL),
    ("libffm", "2 0:3:1", "'2'", LABEL),
    ("libffm", "0.7 0:3:1", "'0.7'", LABEL),
    ("libffm", "nan 0:3:1", "'nan'", LABEL),
    ("libffm", "1e 0:3:1", "'1e'", LABEL),
    ("libsvm", "1 0:6:1", "'0:6:1'", "feature:value"),
    ("libsvm", "1 a:1", "'a'", ID),
    ("libsvm", "1 abc", "'abc'", ID),
    ("libsvm", "1 -1:1", "'-1'", ID),
    ("libsvm", "1 1:nan", "'nan'", "a finite number"),
    ("libsvm", "1 1:1 qid:3", "'qid'", ID),
    ("libsvm", "1,2 1:1", "'1,2'", LABEL),
]


@pytest.mark.parametrize(("name", "row", "found", "expected"), MALFORMED)
def test_malformed_rows(name, row, found, expected):
    good = {"libffm": "0 0:5:1", "libsvm": "0 5:1"}[name]
    message = error_of(name, f"{good}\r\n\n#\n{row}\n{good}\nx\n")
    assert message.startswith(f"rows:4: found {found}, expected {expected}")
    block = read(name, f"{good}\n{row}\n\n{good}\n{row}", on_bad_row="skip")
    assert block.skipped == 2
    assert rows(block) == [(0, [(0, 5, 1)])] * 2 and block.values is None


def test_the_policy_of_a_call_goes_before_the_option():
    reader = readers.build("libffm", DataOptions())
    data = b"0 0:1:1\nbad\n"
    assert reader.parse(data, Where.whole("rows", data), "skip").skipped == 1
    with pytest.raises(DataError):
        reader.parse(data, Where.whole("rows", data))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("name", "good", "bad"), [("libffm", "1 0:1:1", "1 0:x:1"), ("dense", "1,2", "1,x")])
def test_the_line_of_a_bad_row_in_a_unit_amid_a_file(tmp_path, compressed, name, good, bad):
    text = (f"{good}\n\n" * 90 + f"{bad}\n" + f"{good}\n" * 50).encode()
    path = tmp_path / "late"
    path.write_bytes(gzip.compress(text) if compressed else text)
    source = Source([str(path)], 64)
    reader = readers.build(name, DataOptions())
    read_rows, problems = 0, []
    for _, unit, data in source.iterate():
        try:
            read_rows += reader.parse(data, source.where(unit)).n_rows
        except DataError as error:
            problems.append(str(error).split(",")[0])
    assert problems == [f"{path}:181: found 'x'"]
    skipping = readers.build(name, DataOptions(on_bad_row="skip"))
    blocks = [skipping.parse(data, source.where(unit)) for _, unit, data in source.iterate()]
    assert (sum(b.n_rows for b in blocks), sum(b.skipped for b in blocks)) == (140, 1)


def test_dense_header_and_width_hold_for_all_units_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"y,a,b\n" + b"1,2,3\n" * 9)
    (tmp_path / "b").write_bytes(b"1,2\n" + b"0,4\n" * 9)
    source = Source([str(tmp_path / "a"), str(tmp_path / "b")], 8)
    reader = readers.build("dense", DataOptions())
    blocks = [reader.parse(data, source.where(unit)) for _, unit, data in source.iterate()]
    assert sum(block.n_rows for block in blocks) == 19


@pytest.mark.parametrize(
    ("task", "options", "label", "number"),
    [
        ("logistic", {}, "-1.0", 0),
        ("logistic", {}, "1e0", 1),
        ("logistic", {}, "1." + "0" * 30, 1),
        ("logistic", {"labels": "soft"}, "0.7", np.float32(0.7)),
        ("logistic", {"labels": "soft"}, "1", 1),
        ("squared", {}, "-3.5e2", -350),
        ("squared", {}, "0.1234567890123456789", np.float32(0.1234567890123456789)),
        ("logistic", {"label_map": "1:0,2:1"}, "2", 1),
        ("logistic", {"label_map": "1:0,2:1"}, "1.0", 0),
        ("logistic", {"label_map": " <=50K : 0 , >50K:1"}, ">50K", 1),
        ("logistic", {"label_map": "a:b:1,a:0"}, "a:b", 1),
        ("logistic", {"label_map": "no:0.25,yes:1", "labels": "soft"}, "no", 0.25),
        ("squared", {"label_map": "bad:-1,good:4.5"}, "good", 4.5),
    ],
)
def test_labels(task, options, label, number):
    assert read("libffm", f"{label} 0:1:1", task, **options).labels.tolist() == [number]


@pytest.mark.parametrize(
    ("task", "options", "label", "expected"),
    [
        ("logistic", {}, "-2", LABEL),
        ("logistic", {"labels": "soft"}, "1.5", "a label from 0 to 1 (data.labels is soft)"),
        ("logistic", {"labels": "soft"}, "-1", "a label from 0 to 1 (data.labels is soft)"),
        ("logistic", {"label_map": "1:0,2:1"}, "0", "one of the labels 1, 2 of data.label_map"),
        ("logistic", {"label_map": "1:0,2:1"}, "12", "one of the labels 1, 2 of data.label_map"),
        ("squared", {}, "inf", "a finite number as label"),
        ("squared", {}, "1e39", "a finite number as label"),
    ],
)
def test_labels_that_are_refused(task, options, label, expected):
    message = f"rows:1: found '{label}', expected {expected}"
    assert error_of("libffm", f"{label} 0:1:1", task=task, **options) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1", "data.label_map: found '1', expected label:value as in 1:0,2:1"),
        ("1:0,", "data.label_map: found '', expected"),
        (":1", "data.label_map: found ':1', expected"),
        ("1:x", "data.label_map: found '1:x', expected"),
        ("1:nan", "data.label_map: found '1:nan', expected"),
        ("1:0,1:1", "data.label_map: the label '1' is given twice"),
        ("1:0,2:2", "data.label_map: '2' stands for 2, expected 0 or 1"),
    ],
)
def test_malformed_label_maps(text, message):
    with pytest.raises(UserError) as error:
        readers.build("libffm", DataOptions(label_map=text))
    assert str(error.value).startswith(message)


def test_duplicates_add_up_in_place_of_the_first():
    block = read("libffm", "1 0:1:1 1:1:5 0:1:0.5 0:2:1 1:1:-5\n0 0:2:1 0:1:1\n1 3:3:1 3:3:1 3:3:1\n")
    assert rows(block) == [
        (1, [(0, 1, 1.5), (1, 1, 0), (0, 2, 1)]),
        (0, [(0, 2, 1), (0, 1, 1)]),
        (1, [(3, 3, 3)]),
    ]
    ones = read("libffm", "1 0:1:1 0:1:1 1:12:1\n0 0:2:1 1:12:1\n")
    assert rows(ones) == [(1, [(0, 1, 2), (1, 12, 1)]), (0, [(0, 2, 1), (1, 12, 1)])]
    assert rows(ones) == rows(read("libffm", "1 0:1:2 1:12:1\n0 0:2:1 1:12:1\n"))
    assert rows(read("libsvm", "1 5 2 5:3")) == [(1, [(0, 5, 4), (0, 2, 1)])]


def test_duplicates_that_overflow_are_a_bad_row():
    text = "1 0:3:1\n\n0 0:1:3e38 0:1:3e38\n1 0:4:1\n"
    expected = "rows:3: found values of one feature that add up to infinity, expected a finite sum"
    assert error_of("libffm", text) == expected
    block = read("libffm", text, on_bad_row="skip")
    assert rows(block) == [(1, [(0, 3, 1)]), (1, [(0, 4, 1)])] and block.skipped == 1


ENTRY = st.tuples(st.integers(0, 3), st.integers(0, 9) | st.integers(0, 2**64 - 1), st.integers(-99, 99))
BLANK = st.sampled_from([" ", "\t", "  ", " \t"])


@settings(max_examples=150, deadline=None)
@given(
    table=st.lists(st.tuples(st.integers(0, 1), st.lists(ENTRY, max_size=12)), max_size=8),
    draw=st.data(),
    name=st.sampled_from(["libffm", "libsvm"]),
)
def test_any_rows_in_any_spacing(table, draw, name):
    text, expected = "", []
    for label, entries in table:
        text += draw.draw(st.sampled_from(["", " ", "\n", "\r\n", "# x:y\n"])) + str(label)
        merged = {}
        for field, key, value in entries:
            field = field if name == "libffm" else 0
            text += draw.draw(BLANK) + (f"{field}:" if name == "libffm" else "") + f"{key}:{value / 4}"
            merged[field, key] = merged.get((field, key), 0) + value / 4
        text += draw.draw(st.sampled_from(["\n", "\r\n", " \n", "#\n"]))
        expected.append((label, [(*key, value) for key, value in merged.items()]))
    assert rows(read(name, text)) == expected


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400)), max_size=320), min_size=1, max_size=4
    )
)
def test_long_rows_merge_like_a_dictionary(table):
    text = "".join("1 " + " ".join(f"{f}:{i}:1" for f, i in row) + "\n" for row in table)
    counts = [{key: row.count(key) for key in row} for row in table]
    expected = [(1, [(*key, n) for key, n in row.items()]) for row in counts]
    assert rows(read("libffm", text)) == expected


DIGITS = st.text("0123456789", max_size=25)
WRITTEN = st.builds(
    lambda sign, whole, point, part, exponent: f"{sign}{whole}{point}{part if point else ''}{exponent}",
    st.sampled_from(["", "+", "-"]),
    DIGITS | st.just("1"),
    st.sampled_from(["", "."]),
    DIGITS,
    st.just("")
    | st.integers(-60, 45).map(lambda e: f"e{e}")
    | st.integers(-400, 400).map(lambda e: f"E{e:+d}"),
)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def halfway(x):
    """The number halfway to the float32 next to x on the side of 0, or a little beside it, in all digits."""
    middle = (np.float64(x) + np.float64(np.nextafter(np.float32(x), np.float32(0)))) / 2
    return st.sampled_from([repr(float(middle)), f"{middle:.60f}", f"{middle:.25e}", f"{middle:.60f}1"])


NUMBER = (
    WRITTEN
    | FLOAT32.map(repr)
    | FLOAT32.flatmap(halfway)
    | st.floats(-1e38, 1e38).map(repr)
    | st.floats(-2, 2).map(lambda x: f"{x:.17g}")
    | st.sampled_from(["16777217", "16777219.0", "9007199254740993", "3.4028235e38", "3.4028236e38", "1e-46"])
)


def python_float32(token):
    """What the reader must give: the float32 nearest to Python's float, or None for a token to be refused."""
    try:
        with np.errstate(over="ignore"):
            number = np.float32(float(token))
    except ValueError:
        return None
    return None if "n" in token.lower() or not math.isfinite(number) else number


@settings(max_examples=300, deadline=None)
@given(st.lists(NUMBER, min_size=1, max_size=60))
def test_numbers_are_those_of_python_rounded_to_float32(tokens):
    expected = [number for number in map(python_float32, tokens) if number is not None]
    block = read("libsvm", "".join(f"0 7:{token}\n" for token in tokens), on_bad_row="skip")
    got = np.ones(block.nnz, np.float32) if block.values is None else block.values
    assert block.skipped == len(tokens) - len(expected)
    np.testing.assert_array_equal(got.view(np.uint32), np.array(expected, np.float32).view(np.uint32))
    block = read("dense", "".join(f"0,{token},1\n" for token in tokens), on_bad_row="skip")
    got = np.ones(block.nnz, np.float32) if block.values is None else block.values
    kept = np.array([number for number in expected if number != 0], np.float32)
    assert block.skipped == len(tokens) - len(expected)
    np.testing.assert_array_equal(got[block.ids == 0], kept)
    labels = read("libsvm", "".join(f"{token}\n" for token in tokens), "squared", on_bad_row="skip").labels
    np.testing.assert_array_equal(labels, np.array(expected, np.float32))


def test_many_numbers_between_two_float32():
    """More than fit into the first list of numbers to be read again, with a bad row amid them."""
    middle = 1 + 3 * 2**-24  # halfway between two float32, and its neighbours among float64
    tokens = [f"{np.nextafter(middle, towards):.30f}" for towards in (0, middle, 2)] * 100
    text = "".join(f"1 0:1:{token}\n" for token in tokens[:150])
    text += f"0 0:5:{tokens[0]} 0:x:1\n" + "".join(f"1 0:1:{token}\n" for token in tokens[150:])
    block = read("libffm", text, on_bad_row="skip")
    assert block.skipped == 1
    assert block.values.tolist() == [np.float32(float(token)) for token in tokens]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80) | st.text("01:.e-+ \t\n\r#,x", max_size=80).map(str.encode))
def test_arbitrary_bytes_never_break_a_reader(data):
    for name in ("libffm", "libsvm", "dense"):
        where = Where.whole("rows", data)
        block = readers.build(name, DataOptions(on_bad_row="skip")).parse(data, where)
        assert block.indptr[0] == 0 and (np.diff(block.indptr) >= 0).all() and block.indptr[-1] == block.nnz
        assert np.isin(block.labels, (0, 1)).all()
        assert block.values is None or np.isfinite(block.values).all()
        strict = readers.build(name, DataOptions())
        if block.skipped:
            with pytest.raises(DataError):
                strict.parse(data, where)
        else:
            assert rows(strict.parse(data, where)) == rows(block)


def test_settings_say_all_that_decides_the_meaning_of_a_text():
    base = readers.build("libffm", DataOptions()).settings()
    assert base == {
        "format": "libffm",
        "task": "logistic",
        "labels": "binary",
        "label_map": "",
        "on_bad_row": "error",
    }
    dense = readers.build("dense", DataOptions(label_column="last", header="yes"), task="squared").settings()
    assert dense["label_column"] == "last" and dense["header"] == "yes" and dense["task"] == "squared"


@pytest.mark.parametrize("name", ["libffm", "libsvm", "dense"])
def test_warm_needs_no_data(name):
    for column in ("first", "last"):
        reader = readers.build(name, DataOptions(label_column=column))
        readers.warm(reader)
        assert reader.parse(reader.sample, Where.whole("sample", reader.sample)).n_rows == 2


def test_each_kernel_is_compiled_once_for_all_formats_and_options():
    for options in ({}, {"label_map": "1:1,0:0"}, {"labels": "soft", "on_bad_row": "skip"}):
        for task in ("logistic", "squared"):
            read("libffm", "1 0:1:1 0:1:2\n", task, **options)
            read("libsvm", "1 1:1 1", task, **options)
            read("dense", "1,0,2\n", task, **options)
    for kernel in (parse_sparse, parse_dense, grows, merge_rows):
        assert len(kernel.signatures) == 1
    for callee in (read_label, read_float):  # none when the callers come from the disk cache
        assert len(callee.signatures) <= 1


def test_unknown_formats_are_named():
    with pytest.raises(UserError, match="did you mean libffm"):
        readers.build("libfm", DataOptions())
