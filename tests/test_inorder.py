"""Work in several threads: results in order, few parts at once, row stores as one thread makes them."""

from __future__ import annotations

import importlib
import threading

import numpy as np
import pytest

from lightctr_mpi import readers
from lightctr_mpi.config import DataOptions
from lightctr_mpi.errors import DataError
from lightctr_mpi.inorder import Ahead
from lightctr_mpi.readers.source import Source

convert = importlib.import_module("lightctr_mpi.rowstore.convert")  # the package has a function of this name


def rows_of(n: int) -> list[str]:
    """libffm rows with large and small keys, some of them with values."""
    random = np.random.default_rng(5)
    keys = random.integers(0, 2**40, (n, 4)) >> random.integers(0, 40, (n, 4))
    values = np.where(random.random((n, 4)) < 0.1, "0.25", "1")
    entries = [
        " ".join(f"{f}:{keys[i, f]}:{values[i, f] if i % 50 > 30 else 1}" for f in range(4)) for i in range(n)
    ]
    return [f"{i % 2} {entries[i]}" for i in range(n)]


@pytest.fixture
def threads(monkeypatch):
    """Sets how many threads convert rows; a unit is parsed the later, the earlier it comes."""

    def use(count: int) -> None:
        monkeypatch.setattr(convert, "threads_of", lambda wanted: count)

    return use


@pytest.mark.parametrize("memory_bytes", [0, 1 << 30])
def test_threads_give_the_same_row_store_byte_for_byte(tmp_path, threads, memory_bytes):
    (tmp_path / "t.ffm").write_text("\n".join(rows_of(500)) + "\n")
    reader = readers.build("libffm", DataOptions(format="libffm"))
    source, stores = Source([str(tmp_path / "t.ffm")], 700), []
    for count in (1, 2, 4):
        threads(count)
        path = tmp_path / f"{count}.h5"
        convert.convert(None, source, reader, path, memory_bytes=memory_bytes)
        stores.append(path.read_bytes())
    assert stores[0] == stores[1] == stores[2]


@pytest.mark.parametrize("count", [1, 3])
def test_the_first_of_several_malformed_rows_is_named(tmp_path, threads, count):
    rows = rows_of(300)
    rows[120], rows[180] = "1 0:x:1", "1 0:y:1"
    (tmp_path / "t.ffm").write_text("\n".join(rows) + "\n")
    threads(count)
    reader = readers.build("libffm", DataOptions(format="libffm"))
    with pytest.raises(DataError, match=r"t\.ffm:121: "):
        convert.convert(None, Source([str(tmp_path / "t.ffm")], 300), reader, tmp_path / "rows.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["t.ffm"]


def test_no_more_parts_are_read_than_are_worked_on():
    read, most = [], 0

    def parts():
        for number in range(50):
            read.append(number)
            yield number, number

    with Ahead(3) as ahead:
        for number, square, _ in ahead.in_order(lambda part: part**2, parts()):
            assert square == number**2
            most = max(most, len(read) - number)
    assert read == list(range(50)) and 6 <= most <= 8


def test_threads_end_with_the_block():
    before = threading.active_count()
    with Ahead(4) as ahead:
        assert next(ahead.in_order(lambda part: part, iter([(0, "a"), (1, "b")]))) == (0, "a", None)
    assert threading.active_count() == before
