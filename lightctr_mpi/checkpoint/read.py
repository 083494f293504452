"""Read a model file, and say what is wrong with one that cannot be used (sharded.py reads several as one)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import h5py
import numpy as np

from ..errors import UserError
from . import schema
from .attributes import crc32, get_attributes, plain
from .hdf5 import explained, first_line
from .schema import Layout, ModelMeta, Part
from .shards import ShardId

PIECE_BYTES = 16 << 20


class Checkpoint:
    """An open model file; use it in a `with` statement or call `close`. `open_checkpoint` makes it.

    Attributes:
        path: as given.
        files: paths of all files that the model is made of.
        meta: configuration, model, optimizer, reader, progress, history.
        layout: sizes and names of the arrays.
        parts: every array by its name in the file ("parameters/linear") with shape, dtype and description.
        schema_version, program_version, created: who wrote the file and when (ISO 8601, UTC).
        shard: (token, number, count) of a shard; None for a whole model.
    """

    def __init__(self, path: str, file: h5py.File):
        self.path, self._file = path, file
        self.files = [path]
        with explained(path):
            self._head = self._check_head()
            self.schema_version: int = self._head["schema_version"]
            self.program_version: str = self._head["program_version"]
            self.created: str = self._head["created"]
            self.shard: ShardId | None = None
            if "shard_number" in self._head:
                self.shard = (self._head["token"], self._head["shard_number"], self._head["shard_count"])
            self.layout = Layout.from_attributes(self._head)
            self.parts = self.layout.parts()
            self.meta = self._read_meta()
            for name, part in self.parts.items():
                self._check_part(name, part)

    @property
    def n_keys(self) -> int:
        return self.layout.n_keys

    @cached_property
    def keys(self) -> np.ndarray:
        """uint64[n_keys] in the order of the file: ascending, of a sharded model within each shard."""
        return self.read("features/keys")

    @property
    def order(self) -> np.ndarray | None:
        """int64[n_keys]: the rows in ascending order of their keys; None where the file has that order."""
        return None

    @cached_property
    def field_keys(self) -> np.ndarray | None:
        """int32[n_fields], ascending; None where the format has no fields."""
        return self.read("fields/keys") if self.layout.n_fields is not None else None

    def read(self, name: str) -> np.ndarray:
        """A whole array, its checksum compared. Raises UserError when it does not match."""
        with explained(self.path):
            array = self._dataset(name)[()]
            self.compare(name, crc32(array))
        return array

    def rows(self, name: str, a: int, b: int) -> np.ndarray:
        """Rows [a, b) of an array, as `verify` has checked it."""
        with explained(self.path):
            return self._dataset(name)[a:b]

    def pieces(self, name: str, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[int, int, np.ndarray]]:
        """(a, b, rows [a, b)) over a whole array in bounded memory; compares the checksum after the last."""
        part, crc = self.parts[name], 0
        row_bytes = part.nbytes // max(1, part.shape[0])
        step = max(1, piece_bytes // max(1, row_bytes))
        for a in range(0, part.shape[0], step):
            b = min(a + step, part.shape[0])
            array = self.rows(name, a, b)
            crc = crc32(array, crc)
            yield a, b, array
        self.compare(name, crc)

    def place(self, name: str) -> tuple[int, int] | None:
        """(descriptor of the open file, offset in it) of an array in one stretch, None if it is not."""
        with explained(self.path):
            offset = self._dataset(name).id.get_offset()
            return None if offset is None else (int(self._file.id.get_vfd_handle()), int(offset))

    def verify(self) -> None:
        """Read every array and compare its checksum; raises UserError at the first that does not match."""
        for name in self.parts:
            for _ in self.pieces(name):
                pass

    def checksum(self, name: str) -> int:
        """CRC-32 of an array as the file states it."""
        with explained(self.path):
            return int(self._dataset(name).attrs["crc32"])

    def spare(self, path: str) -> None:
        """Raises UserError when writing the file `path` would destroy a part of this model."""
        if os.path.exists(path) and any(os.path.samefile(path, file) for file in self.files):
            raise UserError(f"cannot write {path}: it is a part of the model {self.path}")

    def close(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _item(self, name: str, kind: type, called: str) -> Any:
        try:
            item = self._file[name]
        except KeyError as error:
            if "doesn't exist" not in str(error):
                raise UserError(f"{self.path} is damaged at /{name}: {first_line(error)}") from error
            item = None
        if not isinstance(item, kind):
            raise UserError(f"{self.path} is not a complete model: {called} /{name} is missing")
        return item

    def _dataset(self, name: str) -> h5py.Dataset:
        return self._item(name, h5py.Dataset, "dataset")

    def _group(self, name: str) -> h5py.Group:
        return self._item(name, h5py.Group, "group")

    def _check_head(self) -> dict[str, Any]:
        found = plain(self._file.attrs.get("format"))
        if found != schema.FORMAT:
            what = f"it holds {found}" if isinstance(found, str) else "it was not written by this program"
            raise UserError(f"{self.path} is HDF5 but not a model: {what}")
        version = plain(self._file.attrs["schema_version"])
        if type(version) is not int or version > schema.SHARDED_VERSION:
            by = plain(self._file.attrs.get("program_version", "?"))
            raise UserError(
                f"{self.path} has schema version {version} (written by lightctr_mpi {by}), "
                f"this program reads up to {schema.SHARDED_VERSION}: update it"
            )
        return get_attributes(self._file)

    def _read_meta(self) -> ModelMeta:
        model, optimizer, data, progress = (
            get_attributes(self._group(name)) for name in ("model", "optimizer", "data", "progress")
        )
        config = self._dataset("config")[()]
        self.compare("config", crc32(config))
        seed = get_attributes(self._group("features"))["hashing_seed"]
        columns = get_attributes(self._group("history"))["columns"]
        history = {name: self._history_column(f"history/{name}") for name in columns}
        return ModelMeta(config.decode(), model, optimizer, data, seed, progress, history)

    def _history_column(self, name: str) -> list[Any]:
        values = self._dataset(name)[()]
        self.compare(name, crc32(values))
        return [None if value != value else value for value in values.tolist()]

    def _check_part(self, name: str, part: Part) -> None:
        dataset = self._dataset(name)
        if dataset.shape != part.shape or dataset.dtype != part.dtype:
            raise UserError(
                f"{self.path}: dataset /{name} is {dataset.dtype}{list(dataset.shape)}, "
                f"the model needs {part.dtype}{list(part.shape)}"
            )
        if "crc32" not in dataset.attrs:
            raise UserError(f"{self.path}: dataset /{name} has no checksum")

    def compare(self, name: str, crc: int) -> None:
        """Raises UserError unless this is the CRC-32 of the array that the file states."""
        if crc != self.checksum(name):
            raise UserError(f"{self.path} is damaged: checksum mismatch in dataset /{name}")
