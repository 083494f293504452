"""The format of a file is told from its first lines, or it is said what they look like."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi import readers
from lightctr_mpi.errors import UserError

COUNTS = "\t".join(["5", "1", "", "-2", "120", "0", "1", "", "3", "4", "5", "6", "7"])
CATEGORIES = "\t".join(["0f3ebdd3", "", "99809225"] + ["70c6a5b8"] * 23)
CRITEO = f"1\t{COUNTS}\t{CATEGORIES}\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1 0:6:1 1:15:1\n0 0:7:1 1:15:1\n", "libffm"),
        ("1\t0:6:1 0:7:0.5\n" * 30, "libffm"),
        ("  1  0:6:1\t1:15:1 \r\n", "libffm"),
        ("1\n0\n1 0:6:1\n", "libffm"),
        ("1 0:6:1", "libffm"),
        ("label f0:id:v f1:id:v\n1 0:6:1\n0 0:7:1\n", "libffm"),  # the reader is to name line 1
        ("1 0:6:1 1:15:nan\n1 0:6:1\n1 0:6:1\n", "libffm"),
        ("# made by a tool\n1 1:0.5 3:1 # positive\n-1 2:1\n", "libsvm"),
        ("1 qid:1 1:0.5 3:1\n", "libsvm"),
        ("+1 3:1 11:1\n\n-1 5:1 \n", "libsvm"),
        ("1 3:1 5:1\n0 2:1 5:1\n", "libsvm"),
        ("1,0,0.5\n0,3,-1e3\n", "dense"),
        ("1;0;0.5\n0;3;-1e3\n", "dense"),
        ("9,0,0,0\r\n3,0,0,1\r\n", "dense"),
        ("1,0,0.5\n0,3,oops\n1,2,3\n1,1,1\n", "dense"),
        ("1\t2\t3\n0\t2\t4\n", "dense"),
        (CRITEO * 3, "criteo"),
        (CRITEO[2:] * 3, "criteo"),
        ("id,click,hour,C1\n1,0,14102100,1005\n", "avazu"),
        ("id,hour,C1,banner_pos\n1,14102100,1005,0\n", "avazu"),
    ],
)
def test_formats_that_are_told(text, name):
    assert readers.guess(text.encode(), "rows.txt") == name


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("clicked,age,city\n1,30,Bonn\n", "looks like csv of 3 columns with a header (clicked, age, city)"),
        ("y,a,b,c,d\n1,2,3,4,5\n0,2,3,4,5\n", "csv of 5 columns with a header (y, a, b, c, ...)"),
        ("39, State-gov, 77516\n38, Private, 215646\n", "with text in its columns (39, State-gov, 77516)"),
        ("user\tclicked\nanne\t1\n", "looks like tsv of 2 columns with a header (user, clicked)"),
        ("12:30:00,web,1\n12:31:00,app,0\n", "looks like csv of 3 columns"),
    ],
)
def test_columns_of_text_need_a_schema(text, seen):
    with pytest.raises(UserError) as error:
        readers.guess(text.encode(), "my.txt")
    assert str(error.value).startswith("my.txt: looks like") and seen in str(error.value)
    assert "--data.schema" in str(error.value) and "--data.format dense" in str(error.value)


def test_a_schema_makes_columns_csv_or_tsv():
    assert readers.guess(b"39, State-gov, 1\n38, Private, 0\n", "a", "schema.toml") == "csv"
    assert readers.guess(b"1,2,3\n0,2,3\n", "a", "schema.toml") == "csv"
    assert readers.guess(b"user\tclicked\nanne\t1\n", "a", "schema.toml") == "tsv"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", "(has no rows)"),
        ("\n \n# x\n", "(has no rows)"),
        ("1 2 3\n4 5 6\n", "(starts with '1 2 3')"),
        ("once upon a time\n", "(starts with 'once upon a time')"),
        ("1\n0\n", "(starts with '1')"),
        ("\x89PNG\r\n\x1a\n\x00\x00", "(starts with '\\x89PNG')"),
    ],
)
def test_what_cannot_be_told_is_shown(text, seen):
    with pytest.raises(UserError) as error:
        readers.guess(text.encode("latin-1").replace(b"\x89", "\x89".encode()), "my.dat")
    assert str(error.value).startswith(f"my.dat: cannot tell its format {seen}, give --data.format libffm")


@pytest.mark.parametrize(
    ("filename", "name"),
    [("a.ffm", "libffm"), ("a.FFM.gz", "libffm"), ("a.svm", "libsvm"), ("b/a.libsvm", "libsvm")],
)
@pytest.mark.parametrize("text", ["", "1\n0\n"])
def test_the_ending_decides_when_there_are_no_entries(filename, name, text):
    assert readers.guess(text.encode(), filename) == name


def test_a_line_that_is_cut_off_does_not_count():
    whole = b"1,2,3\n0,2,3\n"
    for stop in range(6, len(whole)):
        assert readers.guess(whole[:stop], "a") == "dense"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text("01:,;\tab \n", max_size=60).map(str.encode))
def test_anything_gives_a_name_or_a_message_of_one_line(data):
    try:
        assert readers.guess(data, "a") in ("libffm", "libsvm", "dense", "criteo", "avazu")
    except UserError as error:
        assert "\n" not in str(error)
