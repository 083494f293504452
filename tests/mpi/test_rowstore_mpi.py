"""Conversion by several ranks: the same store as by one, the same error on all, nothing left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from lightctr_mpi import readers
from lightctr_mpi.config import DataOptions
from lightctr_mpi.errors import DataError, UserError
from lightctr_mpi.readers.source import Source
from lightctr_mpi.rowstore import RowStore, cache, convert, files, merge, open_or_convert, write

pytestmark = pytest.mark.mpi


def put(comm, path: Path, text: str) -> Path:
    comm.Barrier()
    if comm.rank == 0:
        path.write_text(text)
    comm.Barrier()
    return path


def text_of(n: int, seed: int = 0, values: bool = True) -> str:
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(n):
        entries = [f"{f}:{rng.integers(0, 60) << 40}:{rng.integers(1, 5)}" for f in range(i % 5)]
        lines.append(
            " ".join([str(i % 2), *(entries if values else [e[: e.rindex(":")] + ":1" for e in entries])])
        )
    return "".join(line + "\n" for line in lines)


def columns(path: Path) -> dict[str, bytes]:
    with h5py.File(path) as file:
        found: dict[str, bytes] = {}
        file.visititems(
            lambda name, item: found.update({name: item[...].tobytes()}) if hasattr(item, "dtype") else None
        )
        return {name: data for name, data in found.items() if not name.startswith("source")} | {
            name: str(value).encode() for name, value in file.attrs.items()
        }


def libffm(**options):
    return readers.build("libffm", DataOptions(**options))


def raised_everywhere(comm, call) -> str:
    """The message of the UserError that `call` must raise on all ranks."""
    with pytest.raises(UserError) as caught:
        call()
    messages = comm.allgather((type(caught.value).__name__, str(caught.value)))
    assert len(set(messages)) == 1
    return messages[0][1]


@pytest.mark.parametrize(("memory_bytes", "chunk_keys"), [(1 << 20, 1 << 22), (0, 7)])
@pytest.mark.parametrize(
    ("rows", "values", "unit_bytes"),
    [(200, True, 200), (200, False, 200), (9, True, 1 << 20), (9, True, 4), (0, True, 64)],
)
def test_as_by_one_rank(comm, folder, monkeypatch, rows, values, unit_bytes, memory_bytes, chunk_keys):
    monkeypatch.setattr(merge, "CHUNK_KEYS", chunk_keys)
    text = put(comm, folder / "t.ffm", text_of(rows, values=values))
    convert(comm, Source([str(text)], unit_bytes), libffm(), folder / "many.h5", memory_bytes=memory_bytes)
    if comm.rank == 0:
        convert(None, Source([str(text)], unit_bytes), libffm(), folder / "one.h5")
        assert columns(folder / "many.h5") == columns(folder / "one.h5")
        assert sorted(path.name for path in folder.iterdir()) == ["many.h5", "one.h5", "t.ffm"]


def test_the_estimate_and_the_progress_are_the_same_on_all_ranks(comm, folder):
    text, told = put(comm, folder / "t.ffm", text_of(50)), []
    convert(
        comm,
        Source([str(text)], 100),
        libffm(),
        folder / "rows.h5",
        on_estimate=told.append,
        progress=lambda *done: told.append(done),
    )
    assert len(set(map(str, comm.allgather(told)))) == 1
    assert told[-2] == (50, os.path.getsize(text)) and told[-1].n_rows == 50


@pytest.mark.parametrize("unit_bytes", [30, 1 << 20])
def test_the_first_of_several_bad_rows_is_named_everywhere(comm, folder, unit_bytes):
    lines = text_of(60).splitlines()
    for bad in (50, 51, 58):
        lines[bad] = "1 1:word:1"
    text = put(comm, folder / "t.ffm", "\n".join(lines))
    source = Source([str(text)], unit_bytes)
    with pytest.raises(DataError) as caught:
        convert(comm, source, libffm(), folder / "rows.h5")
    assert comm.allgather(caught.value.line) == [51] * comm.size
    comm.Barrier()
    assert [path.name for path in folder.iterdir()] == ["t.ffm"]


def test_skipped_rows_are_summed(comm, folder):
    text = put(comm, folder / "t.ffm", "1 1:2:1\nbad\n" * 20)
    meta = convert(comm, Source([str(text)], 8), libffm(on_bad_row="skip"), folder / "rows.h5")
    assert comm.allgather((meta.n_rows, meta.skipped)) == [(20, 20)] * comm.size


@pytest.mark.parametrize("who", ["first", "last"])
@pytest.mark.parametrize("what", ["create", "write_all"])
def test_a_full_disk_on_one_rank(comm, folder, monkeypatch, who, what):
    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    failing = 0 if who == "first" or what == "create" else comm.size - 1
    text = put(comm, folder / "t.ffm", text_of(200))
    if comm.rank == failing:
        monkeypatch.setattr(write, what, fail)
    source = Source([str(text)], 50)
    message = raised_everywhere(comm, lambda: convert(comm, source, libffm(), folder / "rows.h5"))
    assert "rows.h5" in message and message.endswith("No space left on device")
    comm.Barrier()
    assert [path.name for path in folder.iterdir()] == ["t.ffm"]


def test_a_rank_without_the_folder(comm, folder, monkeypatch):
    """What happens on a host with a disk of its own: the file that rank 0 makes does not show up."""
    text = put(comm, folder / "t.ffm", text_of(20))
    source = Source([str(text)])
    monkeypatch.setattr(files, "_VISIBLE_SECONDS", 0.2)
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(files.socket, "gethostname", lambda: "faraway")
        monkeypatch.setattr(Path, "exists", lambda path: False)
    message = raised_everywhere(comm, lambda: convert(comm, source, libffm(), folder / "rows.h5"))
    assert message.startswith(f"faraway does not see what rank 0 writes to {folder}")


def test_a_rank_that_sees_another_file(comm, folder):
    if comm.size == 1:
        return  # nobody to disagree with
    text = put(comm, folder / "t.ffm", text_of(20))
    source = Source([str(text)])
    if comm.rank == comm.size - 1:
        here = source.identity()
        source.identity = lambda: [(here[0][0], here[0][1] + 1, *here[0][2:])]
    message = raised_everywhere(comm, lambda: convert(comm, source, libffm(), folder / "rows.h5"))
    assert message.startswith(f"{text}: not the same file on ")


def test_the_cache_is_checked_by_all_ranks_together(comm, folder):
    text = put(comm, folder / "t.ffm", text_of(80))
    conversions = []

    def opened() -> RowStore:
        return open_or_convert(
            comm, Source([str(text)], 100), libffm(), folder / "cache", on_estimate=conversions.append
        )

    first = opened()
    assert opened().n_rows == 80 and len(conversions) == 1  # the file is young: all ranks have compared it
    assert first.meta.content_hash == cache.content_hash(None, Source([str(text)], 100))
    put(comm, text, text_of(80).replace(":1 ", ":2 "))  # of the same size
    again = opened()
    assert len(conversions) == 2
    values = again.slice(0, 80).values
    assert comm.allgather(values.tobytes()) == [values.tobytes()] * comm.size
    assert not np.array_equal(values, first.slice(0, 80).values)
