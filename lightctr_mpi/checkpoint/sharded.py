"""A model in several files, read as one.

HDF5 shows the shards as one array, too, but puts fill values where a shard is missing and compares no
checksum. So this program opens the shards itself; of the virtual datasets it only checks that they show them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from functools import cached_property

import h5py
import numpy as np

from ..errors import UserError
from .attributes import crc32_joined
from .hdf5 import explained, open_file
from .read import PIECE_BYTES, Checkpoint
from .schema import Layout
from .shards import ShardEntry


def joined_checksum(shards: Iterable[Checkpoint], name: str) -> int:
    """CRC-32 of an array of all shards in a row, from what each of them states."""
    crc = 0
    for shard in shards:
        crc = crc32_joined(crc, shard.checksum(name), shard.parts[name].nbytes)
    return crc


class Sharded(Checkpoint):
    """An open model whose arrays by key lie in shards; every shard is open, too.

    Attributes:
        token: what its shards have in common.
        entries: name, keys and size of each shard.
        shards: the shards; rows bounds[i] to bounds[i + 1] of the whole are those of shard i.
        bounds: int64[shards + 1].
    """

    def __init__(self, path: str, file: h5py.File):
        super().__init__(path, file)
        with explained(path):
            self.token: str = self._head["token"]
            self.entries = [ShardEntry(*entry) for entry in self._head["shards"]]
            self.bounds = np.cumsum([0, *(entry.keys for entry in self.entries)], dtype=np.int64)
            if self.bounds[-1] != self.n_keys:
                raise UserError(f"{path} is damaged: its shards have {self.bounds[-1]} keys of {self.n_keys}")
        self.shards: list[Checkpoint] = []
        try:
            for i, entry in enumerate(self.entries):
                self.shards.append(self._open_shard(i, entry))
            for name in self._by_key():
                self._check_mapping(name)
                if joined_checksum(self.shards, name) != self.checksum(name):
                    raise UserError(f"{path} does not belong to its shards: they have another /{name}")
        except BaseException:
            self._close_shards()
            raise
        self.files = [path, *(shard.path for shard in self.shards)]

    @cached_property
    def order(self) -> np.ndarray | None:
        """int64[n_keys]: the rows in ascending order of their keys.

        Raises UserError when the keys of a shard are not ascending, or a key is in two shards.
        """
        keys = self.keys
        for shard, run in zip(self.shards, np.split(keys, self.bounds[1:-1]), strict=True):
            if not (run[1:] > run[:-1]).all():
                raise UserError(f"{self.path}: the keys of its shard {shard.path} are not ascending")
        order = np.argsort(keys, kind="stable")  # the runs of the shards are merged, not sorted anew
        ordered = keys[order]
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(twice):
            raise UserError(f"{self.path}: key {ordered[twice[0]]} is in two of its shards")
        return order

    def read(self, name: str) -> np.ndarray:
        part = self.parts[name]
        if not part.by_key:
            return super().read(name)
        array = np.empty(part.shape, part.dtype)
        for a, b, piece in self.pieces(name):
            array[a:b] = piece
        return array

    def rows(self, name: str, a: int, b: int) -> np.ndarray:
        part = self.parts[name]
        if not part.by_key:
            return super().rows(name, a, b)
        found = [np.empty((0, *part.shape[1:]), part.dtype)]
        with self._blamed():
            for shard, first, end in zip(self.shards, self.bounds[:-1], self.bounds[1:], strict=True):
                if max(a, first) < min(b, end):
                    found.append(shard.rows(name, max(a, first) - first, min(b, end) - first))
        return found[1] if len(found) == 2 else np.concatenate(found)

    def place(self, name: str) -> tuple[int, int] | None:
        return None if self.parts[name].by_key else super().place(name)

    def pieces(self, name: str, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[int, int, np.ndarray]]:
        if not self.parts[name].by_key:
            yield from super().pieces(name, piece_bytes)
            return
        for shard, first in zip(self.shards, self.bounds[:-1].tolist(), strict=True):
            with self._blamed():
                for a, b, piece in shard.pieces(name, piece_bytes):
                    yield first + a, first + b, piece

    def verify(self) -> None:
        for shard in self.shards:
            with self._blamed():
                shard.verify()
        for name, part in self.parts.items():
            if not part.by_key:
                super().read(name)

    def close(self) -> None:
        self._close_shards()
        super().close()

    def _close_shards(self) -> None:
        for shard in self.shards:
            shard.close()

    def _by_key(self) -> list[str]:
        return [name for name, part in self.parts.items() if part.by_key]

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        """What is wrong with a shard is wrong with the model that was asked for."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{self.path}: {error}") from error

    def _open_shard(self, number: int, entry: ShardEntry) -> Checkpoint:
        path = self._find(entry.name)
        with self._blamed(), contextlib.ExitStack() as on_error:
            shard = Checkpoint(path, on_error.enter_context(open_file(path)))
            problem = self._mismatch(shard, number, entry)
            if problem:
                raise UserError(f"its shard {path} {problem}")
            on_error.pop_all()
        return shard

    def _find(self, name: str) -> str:
        """Path of a shard: beside the file, or beside the file that a symbolic link leads to."""
        places = [os.path.dirname(path) for path in (self.path, os.path.realpath(self.path))]
        for folder in places:
            if os.path.exists(os.path.join(folder, name)):
                return os.path.join(folder, name)
        raise UserError(f"{self.path} is not complete: its shard {os.path.join(places[0], name)} is missing")

    def _mismatch(self, shard: Checkpoint, number: int, entry: ShardEntry) -> str:
        """Why a file is not the shard that was written; empty if it is."""
        if shard.shard is None:
            return "is not a shard but a whole model"
        if shard.shard != (self.token, number, len(self.entries)):
            return "belongs to another checkpoint"
        with explained(shard.path):
            size = os.path.getsize(shard.path)
        if size != entry.bytes:
            return f"has {size:,} bytes, {entry.bytes:,} were written"
        if shard.n_keys != entry.keys:
            return f"has {shard.n_keys:,} keys, {entry.keys:,} were written"
        if not same_tables(shard.layout, self.layout):
            return "has other arrays than the model"
        if self.layout.n_fields and not np.array_equal(shard.read("fields/keys"), self.read("fields/keys")):
            return "has other fields than the model"
        return ""

    def _check_mapping(self, name: str) -> None:
        """Whether HDF5's view of an array has the same files in the same places."""
        expected, found, part = [], [], self.parts[name]
        if part.nbytes:
            for entry, a, b in zip(self.entries, self.bounds[:-1], self.bounds[1:], strict=True):
                if entry.keys:
                    expected.append((source_name(entry), "/" + name, int(a), int(b)))
        with explained(self.path):
            dataset = self._dataset(name)
            for source in dataset.virtual_sources() if dataset.is_virtual else ():
                low, high = source.vspace.get_select_bounds()
                found.append((source.file_name, "/" + source.dset_name.lstrip("/"), low[0], high[0] + 1))
        if found != expected:
            raise UserError(f"{self.path} is damaged: dataset /{name} does not show its shards")


def same_tables(of_shard: Layout, of_model: Layout) -> bool:
    """Whether a shard has the arrays by key of the model; its dense parameters do not matter."""
    return all(getattr(of_shard, a) == getattr(of_model, a) for a in ("tables", "slots", "n_fields"))


def source_name(entry: ShardEntry) -> str:
    """Name of a shard as HDF5 takes it in a virtual dataset, where a percent sign begins a pattern."""
    return entry.name.replace("%", "%%")
