"""Files are cut into units of whole lines, each line into one unit, whatever the number of ranks."""

import gzip
import io
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi.errors import DataError, UserError
from lightctr_mpi.readers import source as source_module
from lightctr_mpi.readers.source import Source, spool_stdin

LINES = st.lists(st.text("ab", max_size=9).map(str.encode), max_size=30)


def write(path, data, compressed=False):
    path.write_bytes(gzip.compress(data) if compressed else data)
    return str(path)


@settings(max_examples=60, deadline=None)
@given(
    lines=LINES,
    last=st.sampled_from([b"", b"\n", b"\n\n"]),
    unit_bytes=st.integers(1, 40),
    size=st.integers(1, 4),
    compressed=st.booleans(),
)
def test_units_are_the_file_cut_at_lines(tmp_path_factory, lines, last, unit_bytes, size, compressed):
    text = b"\n".join(lines) + last
    path = write(tmp_path_factory.mktemp("units") / "rows", text, compressed)
    source = Source([path], unit_bytes)
    found = sorted(item for rank in range(size) for item in source.iterate(rank, size))
    assert [number for number, _, _ in found] == list(range(len(found)))
    assert b"".join(data for _, _, data in found) == text
    start = 0
    for number, unit, data in found:
        assert unit.index == number
        if data:
            assert start == 0 or text[start - 1 : start] == b"\n"
            assert unit_bytes * number <= start < unit_bytes * (number + 1)
        assert source.read(unit) == data
        for offset in range(len(data)):
            assert source.line_of(unit, offset) == text.count(b"\n", 0, start + offset) + 1
        start += len(data)


def test_rounds_of_ranks_follow_the_input_through_several_files(tmp_path):
    """The k-th units of all ranks lie before the next ones of any, and each rank reads about as many."""
    texts = [b"a\n" * 7, b"bb\n" * 5, b"", b"c\n" * 4]
    paths = [write(tmp_path / f"{i}.txt", text, i == 1) for i, text in enumerate(texts)]
    source = Source(paths, 4)
    shares = [list(source.iterate(rank, 3)) for rank in range(3)]
    for rank, share in enumerate(shares):
        assert [number for number, _, _ in share] == [rank + 3 * turn for turn in range(len(share))]
    in_order = sorted(item for share in shares for item in share)
    assert b"".join(data for _, _, data in in_order) == b"".join(texts)


def test_one_long_line_falls_into_one_unit(tmp_path):
    source = Source([write(tmp_path / "rows", b"ab\n" + b"x" * 100 + b"\ncd\n")], 10)
    pieces = [data for _, _, data in source.iterate()]
    assert pieces[0] == b"ab\n" + b"x" * 100 + b"\n"
    assert pieces[10] == b"cd\n" and not any(pieces[1:10])


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_without_line_ends_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch, compressed):
    monkeypatch.setattr(source_module, "MAX_LINE", 50)
    path = write(tmp_path / "image.bin", b"ab\n" + b"x" * 100, compressed)
    with pytest.raises(DataError) as error:
        list(Source([path], 10).iterate())
    assert str(error.value) == f"{path}:2: found a line of more than 50 bytes, expected lines of text"


def test_byte_order_mark_is_left_out(tmp_path):
    source = Source([write(tmp_path / "rows", b"\xef\xbb\xbf1 2\n3\n")])
    ((_, unit, data),) = source.iterate()
    assert data == b"1 2\n3\n"
    assert [source.line_of(unit, offset) for offset in (0, 3, 4)] == [1, 1, 2]
    assert source.first_line(0) == b"1 2"
    assert source.head()[1] == data


def test_first_line_and_place(tmp_path):
    source = Source([write(tmp_path / "rows", b"\r\n  \nlabel,x\r\n1,2\n3,4\n")], 8)
    units = [unit for _, unit, data in source.iterate() if data]
    places = [source.where(unit) for unit in units]
    assert [place.at_start for place in places] == [True, False, False]
    assert [place.first_line() for place in places] == [b"label,x"] * 3
    assert [place.line_of(0) for place in places] == [1, 4, 5]
    assert places[0].file == source.files[0].name


def test_head_is_that_of_the_first_file_with_data(tmp_path):
    paths = [write(tmp_path / "a", b""), write(tmp_path / "b", b"1 2\n" * 10, True)]
    assert Source(paths).head(7) == (paths[1], b"1 2\n1 2")
    assert Source(paths[:1]).head() == (paths[0], b"")
    assert list(Source(paths[:1]).iterate()) == []


def test_globs_are_sorted_and_keep_their_place(tmp_path):
    for name in ("b.ffm", "a.ffm", "z.svm", "[1].ffm"):
        write(tmp_path / name, b"1\n")
    (tmp_path / "folder.ffm").mkdir()
    names = [os.path.basename(f.name) for f in Source([f"{tmp_path}/z*", f"{tmp_path}/*.ffm"]).files]
    assert names == ["z.svm", "[1].ffm", "a.ffm", "b.ffm"]
    assert Source([f"{tmp_path}/[1].ffm"]).files[0].size == 2  # a file of that very name is no pattern


def test_standard_input_is_spooled(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(b"1 2\n"))))
    spool_stdin(str(tmp_path / "spool"))
    source = Source(["-"], stdin_spool=str(tmp_path / "spool"))
    ((_, unit, data),) = source.iterate()
    assert data == b"1 2\n"
    assert source.where(unit).file == "<stdin>"
    with pytest.raises(UserError, match="standard input"):
        Source(["-"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.ffm", "absent.ffm: No such file or directory"),
        ("*.none", "*.none: no file matches this pattern"),
        ("folder", "folder: is a folder, expected a file"),
        ("pipe", "pipe: not a regular file; pipe the data in and give - as the file name"),
    ],
)
def test_what_is_no_file_is_named(tmp_path, name, message):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError) as error:
        Source([str(tmp_path / name)])
    assert str(error.value).startswith(f"{tmp_path}/{message}")


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damaged_gzip_is_named(tmp_path, damage):
    whole = bytearray(gzip.compress(b"".join(b"%d 0:%d:1\n" % (i % 2, i) for i in range(9999))))
    if damage == "cut":
        del whole[len(whole) // 2 :]
    else:
        whole[-6] ^= 255  # the checksum
    path = tmp_path / "rows.gz"
    path.write_bytes(whole)
    with pytest.raises(UserError, match="rows.gz: damaged or incomplete gzip file"):
        list(Source([str(path)], 1000).iterate())


def test_a_file_that_vanishes_is_named(tmp_path):
    path = write(tmp_path / "rows", b"1\n")
    source = Source([path])
    os.unlink(path)
    with pytest.raises(UserError, match="rows: No such file"):
        list(source.iterate())
    with pytest.raises(UserError, match="rows: No such file"):
        source.identity()


def test_identity_tells_an_edit_in_place(tmp_path):
    path = write(tmp_path / "rows", b"1 2\n")
    source = Source([path])
    before = source.identity()
    assert before == source.identity()
    assert before[0][:2] == (path, 4)
    os.utime(path, ns=(0, before[0][2] + 1))
    assert source.identity() != before
    assert len(Source.digest(b"1 2\n")) == 16 and Source.digest(b"1 2\n") != Source.digest(b"1 3\n")
