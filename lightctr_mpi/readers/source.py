"""Source: input files cut into units of whole lines, so that every rank reads its own share and nothing else.

A file is a stream of bytes (decompressed where it is gzip); unit k of it owns the lines that START in bytes
k*unit_bytes to (k+1)*unit_bytes. So what a unit holds depends on the file, not on the number of ranks.
"""

from __future__ import annotations

import glob
import gzip
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from ..errors import DataError, UserError
from ..kernels.hashing import digest
from .base import Where

UNIT_BYTES = 1 << 20  # text and what becomes of it stay in a core's second cache
MAX_LINE = 256 << 20  # a longer line means that the file is not text
_CHUNK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """The lines of one file that start in one stretch of `unit_bytes` bytes.

    Attributes:
        file: position of the file in `Source.files`.
        index: position of the stretch in the file, from 0.
    """

    file: int
    index: int


@dataclass(frozen=True, slots=True)
class File:
    """One input file: its name as the user gave it, its path, its size on disk and whether it is gzip."""

    name: str
    path: str
    size: int
    compressed: bool


class Source:
    """Files to be read in order.

    Args:
        paths: file names, globs (sorted within each glob) and "-" for standard input.
        unit_bytes: length of a unit's stretch in bytes.
        stdin_spool: file that holds what came in on standard input (`spool_stdin`); needed for "-".

    Raises UserError naming what does not exist, cannot be read or is not a regular file.
    """

    def __init__(self, paths: Sequence[str], unit_bytes: int = UNIT_BYTES, stdin_spool: str | None = None):
        self.unit_bytes = unit_bytes
        self.files = tuple(_look_at(name, path) for name, path in _expand(paths, stdin_spool))
        self._first_lines: dict[int, bytes] = {}

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)

    def iterate(self, rank: int = 0, size: int = 1) -> Iterator[tuple[int, Unit, bytes]]:
        """Yields (number, unit, data) of the units numbered rank, rank + size, rank + 2*size ...

        Units are numbered from 0 through all files: the k-th ones of all ranks lie before their k+1-th ones.
        How many a compressed file has shows only in reading it: every rank decompresses it and keeps its
        own. Raises UserError for a file that cannot be read or is damaged.
        """
        number = 0
        for file in range(len(self.files)):
            for unit, data in self._units_of(file):
                if number % size == rank:
                    yield number, unit, self.read(unit) if data is None else data
                number += 1

    def read(self, unit: Unit) -> bytes:
        """The whole lines of one unit, maybe none. A byte order mark at the start of a file is left out."""
        file = self.files[unit.file]
        if file.compressed:
            return next((data for found, data in self._decompress(unit.file) if found == unit), b"")
        start, stop = self._stretch(unit)
        with self._open(unit.file) as stream:
            if start:
                stream.seek(start - 1)
                start += len(stream.readline(stop - start + 1)) - 1
            return self._plain_lines(stream, unit, start, stop)

    def where(self, unit: Unit) -> Where:
        """The place of a unit, as readers want it for messages and headers."""
        return Where(
            self.files[unit.file].name,
            lambda offset: self.line_of(unit, offset),
            lambda: self.first_line(unit.file),
            unit.index == 0,
        )

    def line_of(self, unit: Unit, offset: int) -> int:
        """Line number, from 1, of a byte of a unit's data. Reads the file from its start: for errors only."""
        start, _ = self._stretch(unit)
        with self._open(unit.file) as stream:
            lines = 1
            if start:
                lines += _count_lines(stream, start - 1)
                lines += bool(stream.readline())
            else:
                _skip_mark(stream)
            return lines + _count_lines(stream, offset)

    def first_line(self, file: int) -> bytes:
        """The first line of a file that is not blank, without its end; empty when there is none."""
        if file not in self._first_lines:
            with self._open(file) as stream:
                _skip_mark(stream)
                line = stream.readline(MAX_LINE)
                while line and not line.strip():
                    line = stream.readline(MAX_LINE)
            self._first_lines[file] = line.rstrip(b"\r\n")
        return self._first_lines[file]

    def head(self, nbytes: int = 1 << 16) -> tuple[str, bytes]:
        """Name and first bytes of the first file that is not empty (else of the first), for `guess`."""
        for number, file in enumerate(self.files):
            with self._open(number) as stream:
                _skip_mark(stream)
                if data := stream.read(nbytes):
                    return file.name, data
        return self.files[0].name if self.files else "", b""

    def identity(self) -> list[tuple[str, int, int, int, int]]:
        """(absolute path, size, mtime_ns, ctime_ns, inode) of each file as it is now."""
        try:
            stats = [(os.path.abspath(file.path), os.stat(file.path)) for file in self.files]
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}") from None
        return [(path, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for path, s in stats]

    @staticmethod
    def digest(data: bytes) -> bytes:
        """Hash of a unit's data (16 bytes); a hash of all units' digests in order tells the content.

        It tells accidents, not attacks: MurmurHash3 is seven times as fast as blake2b.
        """
        return digest(data)

    def _units_of(self, file: int) -> Iterator[tuple[Unit, bytes | None]]:
        """The units of a file, with their data where they are found by reading it."""
        if self.files[file].compressed:
            yield from self._decompress(file)
        else:
            for index in range(-(-self.files[file].size // self.unit_bytes)):
                yield Unit(file, index), None

    def _stretch(self, unit: Unit) -> tuple[int, int]:
        return unit.index * self.unit_bytes, (unit.index + 1) * self.unit_bytes

    def _open(self, file: int) -> _Opened:
        return _Opened(self.files[file])

    def _plain_lines(self, stream: BinaryIO, unit: Unit, start: int, stop: int) -> bytes:
        """`_lines` of a file that can be looked into ahead: what is read has its final length at once."""
        if start >= stop:
            return b""
        stream.seek(stop - 1)
        tail = len(stream.readline(MAX_LINE + 1)) - 1
        if tail == MAX_LINE:
            raise self._too_long(unit, stop - start)
        stream.seek(start)
        return self._without_mark(unit, stream.read(stop - start + max(tail, 0)))

    def _lines(self, stream: BinaryIO, unit: Unit, position: int, stop: int) -> bytes:
        """Reads from `position`, a line start, to the end of the last line that starts before `stop`."""
        if position >= stop:
            return b""
        data = stream.read(stop - position)
        if data and not data.endswith(b"\n"):
            tail = stream.readline(MAX_LINE)
            if len(tail) == MAX_LINE:
                raise self._too_long(unit, len(data))
            data += tail
        return self._without_mark(unit, data)

    def _too_long(self, unit: Unit, offset: int) -> DataError:
        name, line = self.files[unit.file].name, self.line_of(unit, offset)
        return DataError(name, line, f"a line of more than {MAX_LINE} bytes", "lines of text")

    @staticmethod
    def _without_mark(unit: Unit, data: bytes) -> bytes:
        return data[len(_BOM) :] if unit.index == 0 and data.startswith(_BOM) else data

    def _decompress(self, file: int) -> Iterator[tuple[Unit, bytes]]:
        with self._open(file) as stream:
            unit = Unit(file, 0)
            while True:
                data = self._lines(stream, unit, stream.tell(), self._stretch(unit)[1])
                if not data and stream.tell() < self._stretch(unit)[1]:
                    return
                yield unit, data
                unit = Unit(file, unit.index + 1)


def spool_stdin(path: str) -> None:
    """Copies standard input into a file, so that it can be cut into units like any other."""
    with open(path, "wb") as out:
        shutil.copyfileobj(sys.stdin.buffer, out, _CHUNK)


class _Opened:
    """Context of an open file that turns what can go wrong while reading into a UserError."""

    def __init__(self, file: File):
        self.file = file

    def __enter__(self) -> BinaryIO:
        try:
            opener: Callable = gzip.open if self.file.compressed else open
            self.stream: BinaryIO = opener(self.file.path, "rb")
        except OSError as error:
            raise UserError(f"{self.file.name}: {error.strerror}") from None
        return self.stream

    def __exit__(self, kind, error, trace) -> None:
        self.stream.close()
        if isinstance(error, _DAMAGED):
            raise UserError(f"{self.file.name}: damaged or incomplete gzip file ({error})") from None
        if isinstance(error, OSError):
            raise UserError(f"{self.file.name}: {error.strerror or error}") from None


def _expand(paths: Sequence[str], stdin_spool: str | None) -> Iterator[tuple[str, str]]:
    """Pairs of (name for messages, path on disk)."""
    for path in paths:
        if path == "-":
            if stdin_spool is None:
                raise UserError("standard input (-) can be read by this command only once, give a file")
            yield "<stdin>", stdin_spool
            continue
        name = os.path.expanduser(path)
        if os.path.exists(name) or not glob.has_magic(name):
            yield name, name
            continue
        matches = sorted(match for match in glob.glob(name, recursive=True) if not os.path.isdir(match))
        if not matches:
            raise UserError(f"{path}: no file matches this pattern")
        yield from ((match, match) for match in matches)


def _look_at(name: str, path: str) -> File:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise UserError(
                f"{name}: is a folder, expected a file (all files in it: {os.path.join(name, '*')})"
            )
        if not stat.S_ISREG(mode):
            raise UserError(f"{name}: not a regular file; pipe the data in and give - as the file name")
        with open(path, "rb") as stream:
            magic = stream.read(len(_GZIP))
            return File(name, path, os.fstat(stream.fileno()).st_size, magic == _GZIP)
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}") from None


def _count_lines(stream: BinaryIO, nbytes: int) -> int:
    """Newlines in the next `nbytes` bytes, which are consumed."""
    lines = 0
    while nbytes > 0 and (chunk := stream.read(min(nbytes, _CHUNK))):
        lines += chunk.count(b"\n")
        nbytes -= len(chunk)
    return lines


def _skip_mark(stream: BinaryIO) -> None:
    if stream.read(len(_BOM)) != _BOM:
        stream.seek(0)
