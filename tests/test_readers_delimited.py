"""Delimited text: cells against Python's csv module, keys against a plain Python hash, rules by hand."""

from __future__ import annotations

import csv
import io
import json
import math
import struct
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_hashing import reference

from lightctr_mpi import readers
from lightctr_mpi.config import DataOptions
from lightctr_mpi.errors import DataError, UserError
from lightctr_mpi.readers import schema as schemas
from lightctr_mpi.readers.base import Where
from lightctr_mpi.readers.source import Source


def build(format="csv", task="logistic", options=None, **schema):
    text = json.dumps(schemas.from_dict(schema, "test").to_dict()) if schema else ""
    return readers.build(format, DataOptions(format=format, schema=text, **(options or {})), task=task)


def parse(data, *args, policy="", reader=None, **kwargs):
    data = data.encode() if isinstance(data, str) else data
    reader = reader or build(*args, **kwargs)
    return reader.parse(data, Where.whole("f", data), policy)


def column_seed(column, seed=0):
    return reference(column.encode(), seed)[0]


def category(column, text, seed=0):
    """Key of a cell of a categorical column, as docs/data.md defines it."""
    return reference(text if isinstance(text, bytes) else text.encode(), column_seed(column, seed))[0]


def in_bin(column, number):
    """Key of a bin of a numeric column."""
    return reference(struct.pack("<q", number), column_seed(column))[0]


def rows(block):
    """Rows as lists of (field, key, value)."""
    values = np.ones(block.nnz, np.float32) if block.values is None else block.values
    entries = list(zip(block.fields.tolist(), block.ids.tolist(), values.tolist(), strict=True))
    return [entries[a:b] for a, b in zip(block.indptr[:-1], block.indptr[1:], strict=True)]


def fails(data, message, *args, error=DataError, **kwargs):
    with pytest.raises(error) as info:
        parse(data, *args, **kwargs)
    assert message in str(info.value)


# --- cells ---

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=20)
AWKWARD = st.text(st.sampled_from('", ;\t?xü'), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(TEXT | AWKWARD, min_size=3, max_size=3), max_size=5),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(",;\t|"),
)
def test_cells_are_those_of_pythons_csv_module(table, quoting, end, separator):
    if quoting == csv.QUOTE_MINIMAL:
        table = [[cell.strip(" \t") for cell in row] for row in table]
    text = io.StringIO()
    csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=end).writerows(
        [str(i % 2), *row] for i, row in enumerate(table)
    )
    schema = {"columns": list("yabc"), "label": "y", "categorical": list("abc"), "header": False}
    block = parse(text.getvalue(), **schema, separator=separator, quote='"', missing=["?"])
    expected = [
        [
            (field, category("abc"[field], cell), 1.0)
            for field, cell in enumerate(row)
            if cell not in ("", "?")
        ]
        for row in table
    ]
    assert rows(block) == expected
    assert block.labels.tolist() == [i % 2 for i in range(len(table))]


ABC = {"columns": ["y", "a", "b"], "label": "y", "categorical": ["a", "b"], "header": False}


@pytest.mark.parametrize(
    ("line", "a", "b"),
    [
        ("1,x,y", "x", "y"),
        ("1, x y ,\ty ", "x y", "y"),
        (' 1 , "x" , "y"', "x", "y"),
        ('1," x ","a,b"', " x ", "a,b"),
        ('1,"he said ""no""",""""', 'he said "no"', '"'),
        ('1,in"ner,y"', 'in"ner', 'y"'),
        ('1,"",y', None, "y"),
        ("1,,", None, None),
    ],
)
def test_cells_by_hand(line, a, b):
    expected = [(f, category(c, t), 1.0) for f, c, t in ((0, "a", a), (1, "b", b)) if t is not None]
    for end in ("", "\n", "\r\n"):
        block = parse(line + end, **ABC)
        assert rows(block) == [expected]
        assert block.values is None


def test_blank_lines_do_not_count():
    block = parse("\n1,x,y\n  \t\n\r\n0,x,y\n\n", **ABC)
    assert block.labels.tolist() == [1, 0]
    assert block.indptr.tolist() == [0, 2, 4]


def test_quotes_are_ordinary_in_tab_separated_text():
    block = parse('1\t"x\ta""b\n', "tsv", **ABC)
    assert rows(block) == [[(0, category("a", '"x'), 1.0), (1, category("b", 'a""b'), 1.0)]]


def test_a_line_of_tabs_is_a_row():
    block = parse("\t\n\tx\n", "tsv", columns=["a", "b"], categorical=["a", "b"], header=False)
    assert rows(block) == [[], [(1, category("b", "x"), 1.0)]]
    assert not block.has_labels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,x,y\n1,x\n", "f:2: found 2 columns, expected 3 columns"),
        ("1,x,y\n\n1,x,y,z\n", "f:3: found 4 columns, expected 3 columns"),
        ("1,x,y\n1,abc,y,z\n5,a,b", "f:2: found 4 columns"),
        ('1,x,y\n1,"x,y\n1,x,y\n', "f:2: found a quote that is not closed on its line, expected"),
        ('1,x,y\n1,"x"z,y\n', "f:2: found text behind a closing quote, expected a separator"),
        ("1,x,y\n2,x,y\n", "f:2: found '2' in column 'y', expected a label -1, 0 or 1"),
        ("1,x,y\n,x,y\n", "f:2: found nothing in column 'y', expected a label"),
        ("1,x,y\nnan,x,y\n", "f:2: found 'nan' in column 'y', expected a label"),
        ("1,x,y\n1x,x,y\n", "f:2: found '1x' in column 'y', expected a label"),
    ],
)
def test_malformed_rows(text, message):
    fails(text, message, **ABC)
    block = parse(text + "0,x,y\n" if text.endswith("\n") else text + "\n0,x,y\n", **ABC, policy="skip")
    assert block.labels[0] == 1 and block.labels[-1] == 0
    assert block.skipped + block.n_rows == sum(bool(line) for line in text.split("\n")) + 1
    assert block.skipped >= 1
    assert rows(block)[0] == rows(block)[-1]


def test_rows_of_bad_quotes_leave_nothing_behind():
    block = parse('1,x,y\n1,x,"y\n0,y,x\n', **ABC, policy="skip")
    assert rows(block) == rows(parse("1,x,y\n0,y,x\n", **ABC))
    assert block.skipped == 1


# --- numbers ---

ONE = {"columns": ["y", "n"], "label": "y", "header": False}


def expected_bin(text):
    number = float(text)
    return math.floor(number) if number <= 2 else 3 + int(math.log(number) ** 2)


@settings(max_examples=300, deadline=None)
@given(st.integers(-1000, 10**15).map(str) | st.decimals(-100, 100, places=3).map(str))
@example("3")
@example("2.0001")
@example("-0.5")
@example("-0")
def test_log_bins(text):
    assert rows(parse(f"1,{text}\n", **ONE, numeric={"n": "log"})) == [
        [(0, in_bin("n", expected_bin(text)), 1.0)]
    ]


def test_log_bins_by_hand():
    """Small numbers stand alone and apart from the bins of ln(v)^2: 3 has 1.2, 7 has 3.8, 8 has 4.3."""
    table = {"-2": -2, "-1": -1, "0": 0, "1": 1, "2": 2, "3": 4, "7": 6, "8": 7, "-1.5": -2, "": None}
    block = parse("".join(f"1,{text}\n" for text in table), **ONE, numeric={"n": "log"})
    expected = [[] if number is None else [(0, in_bin("n", number), 1.0)] for number in table.values()]
    assert rows(block) == expected


@settings(max_examples=300, deadline=None)
@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from(["{!r}", "{:.12g}", "{:.30f}"]),
)
def test_values_are_those_of_pythons_float(number, form):
    text = form.format(number)
    expected = np.float32(float(text))
    block = parse(f"1,{text}\n", **ONE, numeric={"n": "value"})
    assert rows(block) == ([[(0, column_seed("n"), float(expected))]] if expected else [[]])


def test_many_numbers_next_to_the_middle_of_two_float32():
    """1 + 2^-24 is the middle of 1 and the next float32: it goes to 1, a little more goes up."""
    middle = Decimal(1) + Decimal(2) ** -24
    texts = [f"{middle}", f"{middle + Decimal(2) ** -50}"] * 100
    block = parse(
        "".join(f'{text},{text},"{text}"\n' for text in texts),
        task="squared",
        columns=["y", "n", "w"],
        label="y",
        weight="w",
        numeric={"n": "value"},
        header=False,
    )
    expected = np.array([1, 1 + 2**-23] * 100, np.float32)
    for found in (block.values, block.labels, block.weights):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", ["log", "value"])
@pytest.mark.parametrize(
    "text", ["abc", "1e", "nan", "inf", "-", "1_0", "1 2", "0x10", "1e39", "٣", '"1""2"']
)
def test_what_is_no_number(kind, text):
    message = "in column 'n', expected a finite number or a missing cell"
    fails(f"1,1\n1,{text}\n", message, **ONE, numeric={"n": kind})
    assert parse(f"1,1\n1,{text}\n0,1\n", **ONE, numeric={"n": kind}, policy="skip").skipped == 1


# --- other columns ---


def test_weights_and_groups():
    text = "1,0.5,7,x\n0,2,-8,x\n1,0,q1,x\n0,1,9223372036854775808,x\n"
    schema = {
        "columns": ["y", "w", "g", "a"],
        "label": "y",
        "weight": "w",
        "group": "g",
        "categorical": ["a"],
    }
    block = parse(text, **schema, header=False)
    assert block.weights.tolist() == [0.5, 2, 0, 1]
    texts = [np.uint64(category("g", text)).astype(np.int64) for text in ("q1", "9223372036854775808")]
    assert block.groups.tolist() == [7, -8, *texts]
    assert set(block.fields.tolist()) == {0}
    for bad in ("-1", "", "x", "inf"):
        fails(text + f"1,{bad},7,x\n", "f:5: found", **schema, header=False)
    fails(text + "1,1,,x\n", "f:5: found nothing in column 'g', expected a group", **schema, header=False)
    other = parse("1,x\n", columns=["y", "a"], label="y", categorical=["a"], header=False)
    assert other.weights is None and other.groups is None


def test_labels_by_name_with_variants():
    """As in the Adult data: texts as labels, the test file's with a point, cells behind comma and blank."""
    schema = {"columns": ["job", "age", "income"], "label": "income", "categorical": ["job"]}
    schema |= {"numeric": {"age": "value"}, "header": False, "missing": ["?"]}
    schema |= {"labels": {"<=50K": 0, ">50K": 1, "<=50K.": 0, ">50K.": 1}}
    block = parse("State-gov, 39, <=50K\n?, 28, >50K.\n", **schema)
    assert block.labels.tolist() == [0, 1]
    assert rows(block) == [
        [(0, category("job", "State-gov"), 1.0), (1, column_seed("age"), 39.0)],
        [(1, column_seed("age"), 28.0)],
    ]
    fails(
        "a, 1, 50K\n", "f:1: found '50K' in column 'income', expected one of the labels <=50K, >50K", **schema
    )
    swapped = parse("a, 1, >50K\n", options={"label_map": ">50K:0"}, **schema)
    assert swapped.labels.tolist() == [0]
    with pytest.raises(UserError, match="labels of the schema: 'a' stands for 2, expected 0 or 1"):
        build(label="y", labels={"a": 2})


def test_suffix_takes_the_last_bytes():
    block = parse(
        "1,14102101\n0,1\n", columns=["y", "h"], label="y", categorical=["h"], suffix={"h": 2}, header=False
    )
    assert block.ids.tolist() == [category("h", "01"), category("h", "1")]


def test_seed_and_bits_of_keys():
    seeded = parse("1,x,y\n", **ABC, hash_seed=5)
    assert seeded.ids.tolist() == [category("a", "x", 5), category("b", "y", 5)]
    short = parse("1,x,y\n", **ABC, hash_bits=10)
    assert short.ids.tolist() == [category("a", "x") >> 54, category("b", "y") >> 54]


# --- headers ---

HEADED = {"label": "click", "categorical": ["site", "ad"], "ignored": ["id"]}


def test_columns_are_found_by_name_in_every_file():
    reader = build(**HEADED)
    first = parse("id,click,site,ad\n7,1,s,a\n", reader=reader)
    other = parse("ad,site,extra,click\r\na,s,e,1\r\n", reader=reader)
    assert rows(first) == [[(0, category("site", "s"), 1.0), (1, category("ad", "a"), 1.0)]]
    assert rows(other) == [list(reversed(rows(first)[0]))]
    assert other.labels.tolist() == [1]


def test_a_file_without_label_column():
    reader = build(**HEADED, weight="w")
    assert parse("id,click,site,ad,w\n7,1,s,a,2\n", reader=reader).has_labels
    block = parse("site,ad\ns,a\n", reader=reader)
    assert not block.has_labels and np.isnan(block.labels).all() and block.weights is None
    fails("click,site,ad\n1,s,a\n", "f: the first line does not name 'w'", reader=reader, error=UserError)
    fails("click,site\n1,s\n", "f: the first line does not name 'ad', 'w'", reader=reader, error=UserError)
    assert not parse("y,a,b\n1,x,y\n", **ABC | {"header": True}).skipped
    short = build(**ABC)
    parse("1,x,y\n", reader=short)
    unlabelled = parse("x,y\n", reader=short)
    assert not unlabelled.has_labels
    assert rows(unlabelled) == rows(parse("1,x,y\n", **ABC))
    fails("x,y\n1,x,y\n", "f:2: found 3 columns, expected 3 columns (or 2 without the label)", reader=short)


def test_columns_named_nowhere():
    text = "click,site,age\n1,s,4\n"
    schema = {"label": "click", "categorical": ["site"]}
    fails(text, "f: the schema gives no part to 'age'", **schema, error=UserError)
    assert parse(text, **schema, rest="ignore").nnz == 1
    block = parse(text, **schema, rest="categorical")
    assert rows(block) == [[(0, category("site", "s"), 1.0), (1, category("age", "4"), 1.0)]]
    fails(text, "there is no column 'sight', which the schema names; did you mean 'site'", error=UserError,
          label="click", categorical=["sight"])  # fmt: skip
    fails("a,a\n1,2\n", "two columns are called 'a'", label="a", rest="ignore", error=UserError)


def test_columns_by_number():
    block = parse("1,x,3\n0,x,3\n", label=1, categorical=[2], numeric={"3": "log"}, header=False)
    assert block.labels.tolist() == [1, 0]
    assert rows(block)[0] == [(0, category("2", "x"), 1.0), (1, in_bin("3", 4), 1.0)]
    named = parse("y,a,n\n1,x,3\n", label=1, categorical=[2], numeric={"3": "log"}, header=True)
    assert rows(named)[0] == [(0, category("a", "x"), 1.0), (1, in_bin("n", 4), 1.0)]


@pytest.mark.parametrize("text", ["y,a,b\n1,x,y\n", "1,x,y\n"])
def test_a_header_is_noticed(text):
    block = parse(text, **ABC | {"header": "auto"})
    assert rows(block) == rows(parse("1,x,y\n", **ABC))


def test_header_option_takes_precedence():
    assert parse("q,r,s\n1,x,y\n", **ABC | {"header": "auto"}, policy="skip").skipped == 1
    fails("q,r,s\n1,x,y\n", "does not name 'a', 'b'", options={"header": "yes"}, error=UserError, **ABC)


@pytest.mark.parametrize("unit_bytes", [8, 19, 1000])
def test_units_of_files_give_the_rows_of_the_whole(tmp_path, unit_bytes):
    texts = [
        "\ufeff\nid,click,site,ad\n" + "".join(f'{i},{i % 2},s{i},"a{i}"\n' for i in range(9)) for _ in "ab"
    ]
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    source = Source([str(tmp_path / name) for name in "ab"], unit_bytes=unit_bytes)
    reader = build(**HEADED)
    found = [
        row for _, unit, data in source.iterate() for row in rows(reader.parse(data, source.where(unit)))
    ]
    expected = [[(0, category("site", f"s{i}"), 1.0), (1, category("ad", f"a{i}"), 1.0)] for i in range(9)]
    assert found == 2 * expected


@pytest.mark.parametrize("text", ["", "\n\n", "id,click,site,ad\n", "id,click,site,ad"])
def test_files_without_rows(text):
    block = parse(text, **HEADED)
    assert (block.n_rows, block.nnz, block.skipped) == (0, 0, 0)


# --- formats with a schema of their own ---

COUNTS = ["5", "", "0", "-2", "120", *[""] * 8]
CATEGORIES = ["68fd1e64", "", "fb936136", *[""] * 23]


def test_criteo():
    line = "\t".join(["1", *COUNTS, *CATEGORIES]) + "\n"
    expected = [(0, in_bin("I1", 3 + 2), 1.0), (2, in_bin("I3", 0), 1.0), (3, in_bin("I4", -2), 1.0)]
    expected += [(4, in_bin("I5", 3 + 22), 1.0)]  # ln(5)^2 = 2.59, ln(120)^2 = 22.9
    expected += [(13, category("C1", "68fd1e64"), 1.0), (15, category("C3", "fb936136"), 1.0)]
    block = parse(line, "criteo")
    assert rows(block) == [expected] and block.labels.tolist() == [1] and block.values is None
    unlabelled = parse(line[2:], "criteo")
    assert rows(unlabelled) == [expected]
    assert not unlabelled.has_labels and np.isnan(unlabelled.labels).all()
    for bad in (line[2:], line[:-1] + "\tx\n", "1\n"):
        cells = bad.count("\t") + 1
        fails(line + bad, f"f:2: found {cells} column", "criteo")
    fails(line[2:] + line, "f:2: found 40 columns, expected 40 columns (or 39 without the label)", "criteo")
    fails(line.replace("120", "12x"), "f:1: found '12x' in column 'I5', expected a finite number", "criteo")


def test_avazu():
    text = "id,click,hour,C1,site_id\n1000,0,14102113,1005,1fbe01fe\n"
    block = parse(text, "avazu")
    expected = [(0, category("hour", "13"), 1.0), (1, category("C1", "1005"), 1.0)]
    expected += [(2, category("site_id", "1fbe01fe"), 1.0)]
    assert rows(block) == [expected] and block.labels.tolist() == [0]
    reader = build("avazu")
    parse(text, reader=reader)
    unlabelled = parse("id,hour,C1,site_id\n1000,14102113,1005,1fbe01fe\n", reader=reader)
    assert rows(unlabelled) == [expected] and not unlabelled.has_labels


@pytest.mark.parametrize("name", ["csv", "tsv", "criteo", "avazu"])
def test_formats_and_schemas_that_do_not_go_together(name, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text('label = "y"\n')
    needs_schema = name in ("csv", "tsv")
    with pytest.raises(UserError, match="needs data.schema" if needs_schema else "has a schema of its own"):
        readers.build(name, DataOptions(format=name, schema="" if needs_schema else str(path)))


# --- schemas ---


def test_a_reader_is_rebuilt_from_its_settings():
    """A model keeps the settings; they number fields as in training, whatever comes first in prediction."""
    reader = build(label="click", rest="categorical", numeric={"n": "log"}, missing=["?"], hash_seed=3)
    trained = parse("click,a,n,b\n1,x,9,?\n", reader=reader)
    kept = json.loads(json.dumps(reader.settings()))
    assert kept["hashing_seed"] == 3
    again = readers.build(kept["format"], DataOptions(format=kept["format"], schema=kept["schema"]))
    assert again.settings() == reader.settings()
    other = parse("b,n,a\n?,9,x\n", reader=again)
    assert (
        sorted(rows(other)[0])
        == sorted(rows(trained)[0])
        == sorted(
            [
                (0, category("a", "x", 3), 1.0),
                (1, reference(struct.pack("<q", 7), column_seed("n", 3))[0], 1.0),
            ]
        )
    )


@pytest.mark.parametrize("name", ["criteo", "avazu"])
def test_presets_are_rebuilt_from_their_settings(name):
    reader = build(name)
    reader.prepare(b"id,click,hour,C1" if name == "avazu" else b"\t" * 39, "f")
    again = readers.build(name, DataOptions(format=name, schema=reader.settings()["schema"]))
    assert again.schema == reader.schema


def test_schema_file(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        'label = "y"\ncategorical = ["a", 3]\nignored = []\nheader = false\nmissing = ["?", "NA"]\n'
        'separator = ";"\ncolumns = ["y", "a", "b", "n"]\nhash_bits = 40\n'
        '[numeric]\nn = "log"\n[labels]\nno = 0\nyes = 1\n'
    )
    schema = schemas.from_file(str(path))
    assert schema == schemas.Schema(
        label="y", categorical=("a", "3"), numeric={"n": "log"}, header="no", missing=("?", "NA"),
        separator=";", columns=("y", "a", "b", "n"), hash_bits=40, labels={"no": 0, "yes": 1},
    )  # fmt: skip
    assert schemas.from_dict(json.loads(json.dumps(schema.to_dict())), "copy") == schema
    reader = readers.build("csv", DataOptions(format="csv", schema=str(path)))
    assert rows(parse("yes;x;NA;2\n", reader=reader)) == [
        [(0, category("a", "x") >> 24, 1.0), (2, in_bin("n", 2) >> 24, 1.0)]
    ]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({"labell": "y"}, "unknown key 'labell'; did you mean label"),
        ({"categorical": "a"}, "categorical = 'a': expected a list"),
        ({"label": ["y"]}, "label = ['y']: expected a text"),
        ({"numeric": {"a": "bins"}}, 'expected "log" or "value" for each column'),
        ({"rest": "drop"}, "rest = 'drop': expected one of error, categorical, ignore"),
        ({"header": "maybe"}, "header = 'maybe': expected one of auto, yes, no"),
        ({"separator": "::"}, "expected one ASCII character"),
        ({"separator": "."}, "expected one ASCII character"),
        ({"quote": ",", "separator": ","}, "quote = ',': expected"),
        ({"hash_bits": 65}, "hash_bits = 65: expected 1 to 64"),
        ({"hash_bits": True}, "hash_bits = True: expected an integer"),
        ({"hash_seed": -1}, "hash_seed = -1: expected 0 to 2^64 - 1"),
        ({"labels": {"a": "x"}}, "labels"),
        ({"columns": ["a", "a"]}, "expected each name once"),
        ({"label": "a", "categorical": ["a"]}, "column 'a' is given two parts"),
        ({"label": 1, "categorical": ["a"], "columns": ["a", "b"]}, "column 'a' is given two parts"),
        ({"columns": ["a"], "label": "b"}, "there is no column 'b'"),
        ({"label": "a", "suffix": {"b": 2}}, "suffix names 'b'"),
        ({"categorical": ["b"], "suffix": {"b": 0}}, "suffix"),
    ],
)
def test_schemas_that_are_refused(items, message):
    with pytest.raises(UserError) as info:
        schemas.from_dict(items, "s.toml")
    assert str(info.value).startswith("s.toml: ") and message in str(info.value)


def test_schema_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        schemas.from_file(str(tmp_path / "none.toml"))
    path = tmp_path / "s.toml"
    path.write_text("label = y\n")
    with pytest.raises(UserError, match=r"s\.toml: "):
        schemas.from_file(str(path))


@pytest.mark.parametrize(
    ("name", "first"),
    [("criteo", b"\t" * 38), ("avazu", b"id,click,hour"), ("csv", b'"q""x",y'), ("tsv", b'q"x\ty')],
)
def test_warming_leaves_the_schema_alone(name, first):
    options = {"label": "y", "rest": "categorical"} if name in ("csv", "tsv") else {}
    reader = build(name, **options)
    readers.warm(reader)
    reader.prepare(first, "f")
    before = reader.settings()
    readers.warm(reader)
    assert reader.settings() == before
    assert parse(reader.sample, reader=reader).n_rows == 1
