"""Input of a command: from file names and data options to a reader and to rows."""

from __future__ import annotations

import dataclasses
import glob
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import readers
from .comm import agreed, allgather_sizes, bcast_object, raise_first, rank_of, size_of
from .config import DataOptions
from .errors import UserError
from .inorder import Ahead
from .readers.source import Source, Unit, spool_stdin
from .report import size_text

if TYPE_CHECKING:
    from .rowstore import RowStore

Note = Callable[[str], None]
T = TypeVar("T")
_HDF5 = b"\x89HDF\r\n\x1a\n"  # with which every such file begins
LAST = 2**63 - 1  # number of the unit of a rank that has none left


def rowstore_path(paths: Sequence[str]) -> str | None:
    """The one row store among the inputs, or None for text. Raises UserError when the two are mixed."""
    stores = [path for path in paths if _is_hdf5(os.path.expanduser(path))]
    if not stores:
        return None
    if len(paths) > 1:
        raise UserError(f"{stores[0]} is a row store: it can only be given alone")
    return os.path.expanduser(stores[0])


def _is_hdf5(path: str) -> bool:
    """Whether a file is no text, hence a row store (or its opening will say what is wrong with it)."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_HDF5)) == _HDF5
    except OSError:
        return False


def spare_inputs(out: str, inputs: Sequence[str]) -> None:
    """Raises UserError when writing the file `out` would destroy one of the inputs (globs allowed)."""
    for name in inputs:
        for path in glob.glob(os.path.expanduser(name)) or [os.path.expanduser(name)]:
            if os.path.exists(out) and os.path.exists(path) and os.path.samefile(out, path):
                raise UserError(f"cannot write {out}: it is also an input")


def _check_stdin(environ: Mapping[str, str]) -> None:
    """Raises UserError below the mpirun of Open MPI 5.0, which passes data on, but not that they have ended.

    Some of its versions also repeat parts of what is longer than a pipe's buffer (openpmix/prrte issues 2373,
    2579).
    """
    version = environ.get("OMPI_VERSION", "")
    if "PRTE_LAUNCHED" in environ and version.startswith("5.0"):
        raise UserError(
            f"standard input (-) does not come through the mpirun of Open MPI {version} whole: "
            "give a file, or start without mpirun"
        )


class Text:
    """Text files that all ranks of `comm` read together. Standard input is spooled by rank 0 first.

    Args:
        paths: files, globs, "-".
        spool_folder: where standard input goes, in a folder that all ranks see.
    """

    def __init__(self, comm: Any, paths: Sequence[str], spool_folder: str | Path | None = None):
        self._spool: str | None = None
        if "-" in paths:
            self._spool = self._read_stdin(comm, spool_folder)
        with agreed(comm):
            self.source = Source(paths, stdin_spool=self._spool)
        self._owner = rank_of(comm) == 0

    @staticmethod
    def _read_stdin(comm: Any, folder: str | Path | None) -> str:
        path = ""
        with agreed(comm):
            _check_stdin(os.environ)
            if rank_of(comm) == 0:
                handle, path = tempfile.mkstemp(prefix="stdin-", suffix=".rows", dir=folder)
                os.close(handle)
                try:
                    spool_stdin(path)
                except BaseException as error:
                    Path(path).unlink(missing_ok=True)
                    if isinstance(error, OSError):
                        raise UserError(f"cannot keep standard input in {path}: {error.strerror}") from None
                    raise
        return bcast_object(comm, path)

    def close(self) -> None:
        if self._spool is not None and self._owner:
            Path(self._spool).unlink(missing_ok=True)


def choose_reader(comm: Any, source: Source, data: DataOptions, task: str, note: Note) -> Any:
    """The reader of `source`; a format left to the program is guessed by rank 0 from the first lines."""
    name = data.format
    if name == "auto":
        with agreed(comm):
            if rank_of(comm) == 0:
                first, head = source.head()
                name = readers.guess(head, first, data.schema)
                place = f", label in the {data.label_column} column" if name == "dense" else ""
                otherwise = "--data.format and --data.label_column say" if place else "--data.format says"
                note(f"format of {first}: {name}{place} (guessed; {otherwise} otherwise)")
        name = bcast_object(comm, name)
    with agreed(comm):
        reader = readers.build(name, dataclasses.replace(data, format=name), task=task)
        prepare(reader, source)
    return reader


def prepare(reader: Any, source: Source) -> None:
    """Show the reader the first line of the input, which may name the columns."""
    for number, file in enumerate(source.files):
        if line := source.first_line(number):
            reader.prepare(line, file.name)
            return


def reader_of(settings: dict[str, Any], data: DataOptions, given: set[str], task: str) -> Any:
    """The reader that a model or a row store has noted; data options given now take precedence.

    Whether malformed rows are skipped says nothing about the text: predictions without lines for some rows
    have to be asked for.

    Args:
        settings: what `Reader.settings` gave then.
        data: data options now; given: the keys ("data.format") of those that are not defaults.
        task: "logistic" or "squared".
    """
    names = {f.name for f in dataclasses.fields(DataOptions)} - {"on_bad_row"}
    if data.format == "auto":  # given or not, it leaves the choice to the program
        given = given - {"data.format"}
    noted = {k: v for k, v in settings.items() if k in names and f"data.{k}" not in given}
    merged = dataclasses.replace(data, **noted)
    reader = readers.build(merged.format, merged, task=task)
    if merged.format == settings["format"]:
        reader.recall(settings)
    return reader


def open_rows(
    comm: Any, text: Text, reader: Any, data: DataOptions, run_folder: Path, note: Note
) -> RowStore:
    """The rows of text files, from the cache where it is fresh."""
    from .rowstore import choose_folder, open_or_convert

    folder = choose_folder(comm, data.cache, text.source, run_folder)
    shown = ", ".join(file.name for file in text.source.files)

    def estimate(meta: Any) -> None:
        note(
            f"read {shown}: {meta.n_rows:,} rows, {meta.n_keys:,} features; "
            f"row store of {size_text(meta.nbytes())} in {folder}"
        )

    return open_or_convert(
        comm, text.source, reader, folder, memory=data.memory, on_estimate=estimate, on_note=note
    )


def worked_rounds(
    comm: Any, source: Source, work: Callable[[Unit, bytes], T], threads: int = 1
) -> Iterator[tuple[int, T | None]]:
    """Work on the units of `source` in rounds; each yields (number of this rank's, result) or (LAST, None).

    All ranks take part in every round and see the same number of rounds. The caller's thread reads and
    communicates; others work ahead, on the units of the next rounds.

    Args:
        work: given a unit and its data; with several `threads` it runs on as many units at once.

    Raises:
        What `work` raised, on every rank, for the first unit of the round.
    """
    with Ahead(threads) as ahead:
        results = ahead.in_order(work, source.iterate(rank_of(comm), size_of(comm)))
        while True:
            number, result, problem = next(results, (LAST, None, None))
            more = number != LAST
            states = allgather_sizes(comm, int(more), int(problem is not None))
            if states[:, 1].any():
                raise_first(comm, problem, (number,))
            if not states[:, 0].any():
                return
            yield number, result
