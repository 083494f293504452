"""Text to row store and back: content, cache, memory, and what is wrong with a file."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from lightctr_mpi import readers
from lightctr_mpi.config import DataOptions
from lightctr_mpi.errors import DataError, UserError
from lightctr_mpi.readers.source import Source
from lightctr_mpi.rowstore import (
    Meta,
    Remap,
    RowStore,
    cache,
    choose_folder,
    convert,
    files,
    is_rowstore,
    open_or_convert,
    read,
)

TEXT = """\
1 3:4294967301:0.5 1:5:1
0 1:5:1 7:18446744073709551615:2
1
-1 1:0:1
"""


def rows_of(store, block=None):
    """What the text said: per row its label and its (field, key, value) triples."""
    block = store.slice(0, store.n_rows) if block is None else block
    keys, fields = store.keys, store.fields
    result = []
    for i in range(block.n_rows):
        entries = range(block.indptr[i], block.indptr[i + 1])
        result.append(
            (
                float(block.labels[i]),
                [
                    (
                        None if fields is None else int(fields[block.fields[e]]),
                        int(keys[block.ids[e]]),
                        1.0 if block.values is None else float(block.values[e]),
                    )
                    for e in entries
                ],
            )
        )
    return result


def reader(name="libffm", **options):
    return readers.build(name, DataOptions(**options))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def store_of(tmp_path, text, name="libffm", unit_bytes=1 << 20, memory="map", **options):
    text_file = write(tmp_path / "rows.txt", text)
    convert(None, Source([str(text_file)], unit_bytes), reader(name), tmp_path / "rows.h5", **options)
    return RowStore.open(tmp_path / "rows.h5", memory, check=True)


def random_text(n: int, seed: int = 1, fields: int = 5) -> str:
    """libffm rows of 0 to `fields` features, with values."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        count = rng.integers(0, fields + 1)
        entries = [f"{f}:{rng.integers(0, 40) * 10**15}:{rng.integers(1, 9) / 8}" for f in range(count)]
        lines.append(" ".join([str(rng.integers(0, 2)), *entries]))
    return "\n".join(lines) + "\n"


def parse(text: str):
    """The rows of `random_text` in plain Python."""
    result = []
    for line in text.splitlines():
        label, *entries = line.split()
        triples = [(int(f), int(k), float(v)) for f, k, v in (entry.split(":") for entry in entries)]
        result.append((float(label), triples))
    return result


# --- content ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["map", "stream"])
def test_rows_are_those_of_the_text(tmp_path, memory):
    store = store_of(tmp_path, TEXT, memory=memory)
    assert rows_of(store) == [
        (1.0, [(3, 2**32 + 5, 0.5), (1, 5, 1.0)]),
        (0.0, [(1, 5, 1.0), (7, 2**64 - 1, 2.0)]),
        (1.0, []),
        (0.0, [(1, 0, 1.0)]),
    ]
    assert store.keys.tolist() == [0, 5, 2**32 + 5, 2**64 - 1]
    assert store.fields.tolist() == [1, 3, 7]
    assert (store.n_rows, store.nnz, store.n_keys, store.n_fields) == (4, 5, 4, 3)
    assert store.mapped == (memory == "map")
    assert is_rowstore(store.path) and not is_rowstore(tmp_path / "rows.txt") and not is_rowstore(tmp_path)


def test_values_of_one_are_not_stored(tmp_path):
    store = store_of(tmp_path, "1 1:2:1 2:3:1.0\n0 1:2:1\n")
    assert store.meta.one_hot and store.slice(0, 2).values is None
    assert "values" not in h5py.File(store.path)


def test_a_unit_with_values_among_units_without(tmp_path):
    """Units of 8 bytes: one line each."""
    store = store_of(tmp_path, "1 1:2:1\n0 1:3:4\n1 1:4:1\n", unit_bytes=8)
    assert store.slice(0, 3).values.tolist() == [1, 4, 1]


def test_formats_without_fields_and_with_groups(tmp_path):
    store = store_of(tmp_path, "1 qid:4 7:1\n0 9:2\n", "libsvm", unit_bytes=12)
    assert store.fields is None and store.n_fields == 0 and store.slice(0, 2).fields is None
    assert rows_of(store) == [(1.0, [(None, 7, 1.0)]), (0.0, [(None, 9, 2.0)])]
    assert store.slice(0, 2).groups.tolist() == [4, -1]


def test_empty_file(tmp_path):
    store = store_of(tmp_path, "")
    assert (store.n_rows, store.nnz, store.n_keys, store.n_fields) == (0, 0, 0, 0)
    assert store.keys.tolist() == [] and store.fields.tolist() == []
    assert store.slice(0, 0).n_rows == store.block(np.zeros(0, np.int64)).n_rows == 0


@pytest.mark.parametrize("memory_bytes", [0, 3000, 1 << 20])
@pytest.mark.parametrize("unit_bytes", [7, 100, 1 << 20])
def test_neither_units_nor_spool_change_the_store(tmp_path, unit_bytes, memory_bytes):
    text = random_text(60)
    store = store_of(tmp_path, text, unit_bytes=unit_bytes, memory_bytes=memory_bytes)
    assert rows_of(store) == parse(text)
    assert [
        path.name for path in tmp_path.iterdir() if "rows" not in path.name or "partial" in path.name
    ] == []


def test_compressed_and_several_files(tmp_path):
    texts = [random_text(30, seed) for seed in range(3)]
    write(tmp_path / "a0.ffm", texts[0])
    (tmp_path / "a1.ffm").write_bytes(gzip.compress(texts[1].encode()))
    write(tmp_path / "a2.ffm", texts[2])
    convert(None, Source([str(tmp_path / "a*.ffm")], 200), reader(), tmp_path / "all.h5")
    assert rows_of(RowStore.open(tmp_path / "all.h5")) == parse("".join(texts))


def test_memory_follows_the_number_of_ids_not_their_size(tmp_path):
    store = store_of(tmp_path, f"1 1:{2**40}:1\n0 1:{2**63}:1\n")
    assert store.n_keys == 2
    assert os.path.getsize(store.path) < 50_000


def test_sizes_are_told_before_the_file_is_laid_out(tmp_path):
    told: list[tuple[Meta, int]] = []

    def estimate(meta):
        partial = next(tmp_path.glob(".*.partial"))
        told.append((meta, partial.stat().st_size))

    text, calls = random_text(50), []
    store_of(tmp_path, text, on_estimate=estimate, progress=lambda *done: calls.append(done), unit_bytes=500)
    (meta, size_then), entries = told[0], sum(len(row) for _, row in parse(text))
    assert size_then == 0
    # indptr 8, ids, fields and values 4 each, labels 4, keys 8, fields 4
    assert meta.nbytes() == 51 * 8 + entries * 12 + 50 * 4 + meta.n_keys * 8 + meta.n_fields * 4
    assert calls == sorted(calls) and calls[-1] == (50, len(text)) and len(calls) > 2


def test_hdf5_tools_can_read_it(tmp_path):
    store = store_of(tmp_path, TEXT)
    with h5py.File(store.path) as file:
        assert file.attrs["format"] == "lightctr_mpi rows" and file.attrs["n_rows"] == 4
        assert file["indptr"][:].tolist() == [0, 2, 4, 4, 5]
        assert file["ids"][:].tolist() == [2, 1, 1, 3, 0]
        assert file["source/paths"][0].decode() == str(tmp_path / "rows.txt")


# --- errors -------------------------------------------------------------------------------------------------


def test_a_malformed_row_leaves_nothing_behind(tmp_path):
    write(tmp_path / "bad.ffm", "1 1:2:1\n0 1:x:1\n")
    with pytest.raises(DataError) as caught:
        convert(None, Source([str(tmp_path / "bad.ffm")], 4), reader(), tmp_path / "sub" / "rows.h5")
    assert caught.value.line == 2
    assert list((tmp_path / "sub").iterdir()) == []


def test_skipped_rows_are_counted(tmp_path):
    write(tmp_path / "bad.ffm", "1 1:2:1\n0 1:x:1\n0 1:3:1\nx\n")
    source = Source([str(tmp_path / "bad.ffm")], 4)
    meta = convert(None, source, reader(on_bad_row="skip"), tmp_path / "rows.h5")
    assert (meta.skipped, meta.n_rows) == (2, 2)


def test_a_file_that_changes_meanwhile(tmp_path):
    path = write(tmp_path / "rows.ffm", "1 1:2:1\n" * 3)
    source = Source([str(path)], 8)
    with pytest.raises(UserError, match="changed while it was being read"):
        convert(None, source, reader(), tmp_path / "rows.h5", progress=lambda *_: os.utime(path, ns=(1, 1)))
    assert not (tmp_path / "rows.h5").exists()


def test_a_folder_that_cannot_be_written(tmp_path):
    write(tmp_path / "file", "")
    with pytest.raises(UserError, match="cannot write .*rows.h5: (Not a directory|File exists)"):
        convert(None, Source([str(tmp_path / "file")]), reader(), tmp_path / "file" / "rows.h5")


def test_too_many_keys_name_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("lightctr_mpi.kernels.table.MOST_KEYS", 1000)
    text = "".join(f"1 1:{2**40 + i}:1\n" for i in range(1001))
    with pytest.raises(UserError, match=r"rows\.txt: more than 1000 distinct keys"):
        store_of(tmp_path, text)


def damage(path: Path, kind: str) -> None:
    if kind == "truncated":
        os.truncate(path, os.path.getsize(path) - 100)
    elif kind == "empty":
        os.truncate(path, 0)
    elif kind == "foreign text":
        path.write_text("hello\n" * 1000)
    elif kind == "foreign hdf5":
        with h5py.File(path, "w") as file:
            file["ids"] = np.zeros(5)
    else:
        with h5py.File(path, "r+") as file:
            if kind == "newer version":
                file.attrs["schema_version"] = 99
            elif kind == "column missing":
                del file["labels"]
            elif kind == "other length":
                del file["labels"]
                file["labels"] = np.zeros(3, np.float32)
            elif kind == "row boundaries":
                file["indptr"][-1] = 4


DAMAGES = {
    "truncated": "not a complete row store",
    "empty": "not a complete row store",
    "foreign text": "not a complete row store",
    "foreign hdf5": "not a row store",
    "newer version": "schema version 99",
    "column missing": "not a complete row store",
    "other length": r"/labels is float32\[3\], expected float32\[4\]",
    "row boundaries": "/indptr runs from 0 to 4, expected 0 to 5",
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_opening_names_what_is_wrong(tmp_path, kind):
    path = store_of(tmp_path, TEXT).path
    damage(path, kind)
    with pytest.raises(UserError, match=DAMAGES[kind]):
        RowStore.open(path)


def test_opening_what_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"no\.h5: no such file"):
        RowStore.open(tmp_path / "no.h5")


@pytest.mark.parametrize(
    ("column", "row", "value", "problem"),
    [
        ("ids", 1, 4, "ids out of range"),
        ("ids", 1, -1, "ids out of range"),
        ("fields", 0, 3, "fields out of range"),
        ("values", 2, np.nan, "values that are not finite"),
        ("labels", 2, np.inf, "labels that are not finite"),
        ("indptr", 2, 1, "row boundaries"),
        ("dictionary/keys", 1, 0, "not sorted"),
    ],
)
def test_the_check_finds_what_kernels_must_not_see(tmp_path, column, row, value, problem):
    path = store_of(tmp_path, TEXT).path
    with h5py.File(path, "r+") as file:
        file[column][row] = value
    RowStore.open(path).close()
    with pytest.raises(UserError, match=problem):
        RowStore.open(path, check=True)


# --- picking rows -------------------------------------------------------------------------------------------


@pytest.fixture(params=["map", "stream", "stream, little room"])
def many(tmp_path, request, monkeypatch):
    """A store of 200 rows in stretches of 16, and its rows."""
    monkeypatch.setattr(read, "BLOCK_ROWS", 16)
    text = random_text(200)
    path = store_of(tmp_path, text).path
    room = 1 if "little" in request.param else 1 << 20
    return RowStore.open(path, request.param.split(",")[0], keep_bytes=room), parse(text)


def test_picked_rows(many):
    store, expected = many
    rng = np.random.default_rng(0)
    for rows in (rng.permutation(200), rng.integers(0, 200, 50), np.array([199]), np.arange(30, 90)):
        block = store.block(rows)
        assert rows_of(store, block) == [expected[row] for row in rows]
        assert block.ids.dtype == block.fields.dtype == np.int32 and block.indptr.dtype == np.int64


def test_slices(many):
    store, expected = many
    for a, b in ((0, 200), (7, 9), (16, 48), (200, 200)):
        block = store.slice(a, b)
        assert rows_of(store, block) == expected[a:b]
        assert block.indptr[0] == 0


@pytest.mark.parametrize("row", [-1, 200])
def test_rows_that_do_not_exist(many, row):
    with pytest.raises(IndexError):
        many[0].block(np.array([3, row]))


def test_blocks_serve_kernels_that_want_writable_arrays(many):
    block = many[0].slice(3, 9)
    before = block.labels.tolist()
    block.labels[:] = 7  # a private copy of the page: the file stays as it is
    fresh = RowStore.open(many[0].path)
    assert fresh.slice(3, 9).labels.tolist() == before


def test_weights_and_groups_travel_along(tmp_path):
    store = store_of(tmp_path, "1 qid:4 7:1\n0 qid:5 9:2\n1 qid:6 9:2\n", "libsvm")
    assert store.block(np.array([2, 0])).groups.tolist() == [6, 4]


def test_streaming_keeps_little(tmp_path):
    """The stretches of this store take about 300 kB each: with room for 64 kB only the latest one is kept."""
    text = random_text(9000, fields=8)
    path = store_of(tmp_path, text).path
    store = RowStore.open(path, "stream", keep_bytes=64 << 10)
    for _ in range(3):
        store.block(np.random.default_rng(0).integers(0, 9000, 1000))
        assert len(store._kept) == 1


def test_auto_maps_what_fits(tmp_path, monkeypatch):
    path = store_of(tmp_path, TEXT).path
    size = RowStore.open(path).meta.nbytes()
    for limit, mapped in ((2 * size, True), (2 * size - 2, False)):
        monkeypatch.setattr(read, "memory_limit", lambda limit=limit: limit)
        assert RowStore.open(path, "auto").mapped == mapped


# --- cache --------------------------------------------------------------------------------------------------


class Cached:
    """A text file that is opened through the cache; counts the conversions."""

    def __init__(self, folder: Path):
        self.text, self.folder, self.notes, self.conversions = folder / "t.ffm", folder / "cache", [], 0

    def open(self, **options):
        def count(meta):
            self.conversions += 1

        source, note = Source([str(self.text)]), self.notes.append
        return open_or_convert(None, source, reader(**options), self.folder, on_estimate=count, on_note=note)

    def age(self, seconds: float = 100.0) -> None:
        """Let the text be old: a file that has just been written is compared by its content."""
        at = time.time_ns() - int(seconds * 1e9)
        os.utime(self.text, ns=(at, at))


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_SETTLED_NS", 0)  # ctime cannot be set back
    monkeypatch.setattr(cache, "_program", lambda: "1")
    made = Cached(tmp_path)
    write(made.text, TEXT)
    made.age()
    return made


def test_the_second_run_converts_nothing(cached, monkeypatch):
    first = rows_of(cached.open())
    monkeypatch.setattr(cache, "content_hash", None)  # nor does it read the text
    assert rows_of(cached.open()) == first
    assert (cached.conversions, cached.notes) == (1, [])


def test_an_edit_that_keeps_name_size_and_time(cached):
    cached.open()
    before = os.stat(cached.text)
    write(cached.text, TEXT.replace("0.5", "0.6"))
    os.utime(cached.text, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(cached.text).st_size == before.st_size
    assert rows_of(cached.open())[0][1][0][2] == pytest.approx(0.6)
    assert cached.conversions == 2
    assert len(cached.notes) == 1 and "the data has changed; converting again" in cached.notes[0]


def test_another_size_is_noticed_without_reading(cached, monkeypatch):
    cached.open()
    monkeypatch.setattr(cache, "content_hash", None)
    write(cached.text, TEXT + "1\n")
    assert cached.open().n_rows == 5


def test_a_touched_file_is_compared_once(cached, monkeypatch):
    hashed = []
    monkeypatch.setattr(cache, "content_hash", lambda *a, f=cache.content_hash: hashed.append(1) or f(*a))
    cached.open()
    cached.age(50)
    for _ in range(3):
        cached.open()
    assert (cached.conversions, len(hashed), cached.notes) == (1, 1, [])


def test_a_young_file_is_compared_by_content(tmp_path, monkeypatch):
    """Two edits within the resolution of the time stamps look alike: a stamp of just now proves nothing."""
    made = Cached(tmp_path)
    write(made.text, TEXT)
    assert made.open().origin.stat[0, 1] == 0
    hashed = []
    monkeypatch.setattr(cache, "content_hash", lambda *a, f=cache.content_hash: hashed.append(1) or f(*a))
    made.open()
    assert (made.conversions, len(hashed)) == (1, 1)


def test_other_options_and_versions_have_their_own_cache(cached, monkeypatch):
    cached.open()
    cached.open(on_bad_row="skip")
    assert cached.conversions == 2
    monkeypatch.setattr(cache, "_program", lambda: "2")
    cached.open()
    assert cached.conversions == 3 and len(list(cached.folder.iterdir())) == 3


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_cache_is_made_again(cached, kind):
    first = cached.open()
    expected = rows_of(first)
    damage(first.path, kind)
    assert rows_of(cached.open()) == expected
    assert cached.conversions == 2 and len(cached.notes) == 1 and "\n" not in cached.notes[0]


def test_a_running_reader_keeps_the_file_that_is_replaced(cached):
    first = cached.open()
    expected = rows_of(first)
    write(cached.text, "1 1:1:1\n")
    assert rows_of(cached.open()) != expected
    assert rows_of(first) == expected


def test_leftovers_of_killed_runs_go_after_a_day(cached):
    cached.folder.mkdir()
    name = cache.cache_name(Source([str(cached.text)]), reader())
    old, young = (cached.folder / f".{name}.{age}.partial" for age in ("old", "young"))
    for path in (old, young):
        path.touch()
    os.utime(old, (1, 1))
    cached.open()
    assert not old.exists() and young.exists()


def test_standard_input_leaves_no_cache(tmp_path):
    spool = write(tmp_path / "spool", TEXT)
    source = Source(["-"], stdin_spool=str(spool))
    store = open_or_convert(None, source, reader(), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    assert store.n_rows == 4 and rows_of(store)[3] == (0.0, [(1, 0, 1.0)])


def test_program_identity_follows_the_sources():
    assert len(cache._program()) == 24
    cache._program.cache_clear()


def test_the_folder_of_the_cache(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    source = Source([str(write(tmp_path / "data" / "t.ffm", TEXT))])
    run = tmp_path / "run"
    assert choose_folder(None, "auto", source, run) == tmp_path / "data" / ".lightctr_cache"
    assert choose_folder(None, str(tmp_path / "there"), source, run) == tmp_path / "there"
    stdin = Source(["-"], stdin_spool=str(tmp_path / "data" / "t.ffm"))
    assert choose_folder(None, "auto", stdin, run) == run / "cache"
    monkeypatch.setattr(cache.os, "access", lambda path, mode: False)
    assert choose_folder(None, "auto", source, run) == run / "cache"


# --- rows for a model ---------------------------------------------------------------------------------------


def test_unseen_features_are_marked_counted_and_kept():
    text = b"1 1:5:1 3:6:2\n0 1:7:4\n1\n0 9:5:1 1:8:1\n"
    from lightctr_mpi.readers.base import Where

    raw = reader().parse(text, Where.whole("t", text))
    remap = Remap(np.array([5, 6, 2**63], np.uint64), np.array([1, 3], np.int32))
    block = remap(raw)
    assert block.ids.tolist() == [0, 1, -1, 0, -1] and block.ids.dtype == np.int32
    assert block.fields.tolist() == [0, 1, 0, -1, 0] and block.fields.dtype == np.int32
    assert block.values.tolist() == [1, 2, 4, 1, 1]  # all of them: a row's norm counts what is unseen too
    assert (remap.rows, remap.features, remap.unseen_fields, remap.rows_affected) == (4, 2, 1, 2)
    remap(raw)
    assert (remap.rows, remap.features, remap.unseen_fields, remap.rows_affected) == (8, 4, 2, 4)


def test_a_model_without_fields_drops_them():
    from lightctr_mpi.readers.base import Where

    raw = reader().parse(b"1 1:5:1 3:6:2\n", Where.whole("t", b""))
    remap = Remap(np.array([6], np.uint64), None)
    assert remap(raw).fields is None
    assert (remap.features, remap.unseen_fields, remap.rows_affected) == (1, 0, 1)
