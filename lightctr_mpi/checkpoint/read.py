"""Read a model file, and say what is wrong with one that cannot be used."""

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
from .schema import Layout, ModelMeta, Part

PIECE_BYTES = 16 << 20


def open_checkpoint(path: str | os.PathLike, *, verify: bool = True) -> Checkpoint:
    """Open a model file.

    Structure, sizes and metadata are always checked. `verify` also reads every array once and compares its
    checksum; a rank that shares the file with one that does so may leave it out.

    Raises:
        UserError: names the file and what is wrong: missing, not HDF5, truncated, not a model, written by a
            newer schema, a dataset missing, of wrong shape or damaged.
    """
    checkpoint = Checkpoint(os.fspath(path))
    if verify:
        try:
            checkpoint.verify()
        except BaseException:
            checkpoint.close()
            raise
    return checkpoint


class Checkpoint:
    """An open model file; use it in a `with` statement or call `close`.

    Attributes:
        path: as given.
        meta: configuration, model, optimizer, reader, progress, history.
        layout: sizes and names of the arrays.
        parts: every array by its name in the file ("parameters/linear") with shape, dtype and description.
        schema_version, program_version, created: who wrote the file and when (ISO 8601, UTC).
    """

    def __init__(self, path: str):
        self.path = path
        self._file = _open_file(path)
        try:
            with self._explained():
                head = self._check_head()
                self.schema_version: int = head["schema_version"]
                self.program_version: str = head["program_version"]
                self.created: str = head["created"]
                self.layout = Layout.from_attributes(head)
                self.parts = self.layout.parts()
                self.meta = self._read_meta()
                for name, part in self.parts.items():
                    self._check_part(name, part)
        except BaseException:
            self.close()
            raise

    @property
    def n_keys(self) -> int:
        return self.layout.n_keys

    @cached_property
    def keys(self) -> np.ndarray:
        """uint64[n_keys], ascending."""
        return self.read("features/keys")

    @cached_property
    def field_keys(self) -> np.ndarray | None:
        """int32[n_fields], ascending; None where the format has no fields."""
        return self.read("fields/keys") if self.layout.n_fields is not None else None

    def read(self, name: str) -> np.ndarray:
        """A whole array, its checksum compared. Raises UserError when it does not match."""
        with self._explained():
            array = self._dataset(name)[()]
            self._compare(name, crc32(array))
        return array

    def rows(self, name: str, a: int, b: int) -> np.ndarray:
        """Rows [a, b) of an array, as `verify` has checked it."""
        with self._explained():
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
        self._compare(name, crc)

    def verify(self) -> None:
        """Read every array and compare its checksum; raises UserError at the first that does not match."""
        for name in self.parts:
            for _ in self.pieces(name):
                pass

    def close(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Whatever h5py raises on a damaged file becomes one line that names the file."""
        try:
            yield
        except (
            OSError,
            KeyError,
            ValueError,
            TypeError,
            RuntimeError,
            AttributeError,
            OverflowError,
        ) as error:
            raise UserError(f"{self.path} is damaged: {_first_line(error)}") from error

    def _item(self, name: str, kind: type, called: str) -> Any:
        try:
            item = self._file[name]
        except KeyError as error:
            if "doesn't exist" not in str(error):
                raise UserError(f"{self.path} is damaged at /{name}: {_first_line(error)}") from error
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
        if type(version) is not int or version > schema.SCHEMA_VERSION:
            by = plain(self._file.attrs.get("program_version", "?"))
            raise UserError(
                f"{self.path} has schema version {version} (written by lightctr_mpi {by}), "
                f"this program reads up to {schema.SCHEMA_VERSION}: update it"
            )
        return get_attributes(self._file)

    def _read_meta(self) -> ModelMeta:
        model, optimizer, data, progress = (
            get_attributes(self._group(name)) for name in ("model", "optimizer", "data", "progress")
        )
        config = self._dataset("config")[()]
        self._compare("config", crc32(config))
        seed = get_attributes(self._group("features"))["hashing_seed"]
        columns = get_attributes(self._group("history"))["columns"]
        history = {name: self._history_column(f"history/{name}") for name in columns}
        return ModelMeta(config.decode(), model, optimizer, data, seed, progress, history)

    def _history_column(self, name: str) -> list[Any]:
        values = self._dataset(name)[()]
        self._compare(name, crc32(values))
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

    def _compare(self, name: str, crc: int) -> None:
        if crc != self._dataset(name).attrs["crc32"]:
            raise UserError(f"{self.path} is damaged: checksum mismatch in dataset /{name}")


def _open_file(path: str) -> h5py.File:
    try:
        size = os.stat(path).st_size
        if os.path.isdir(path):
            inside = os.path.join(path, "model.h5")
            hint = f"; did you mean {inside}?" if os.path.exists(inside) else ""
            raise UserError(f"cannot read model {path}: it is a folder{hint}")
        with open(path, "rb"):
            pass
    except OSError as error:
        raise UserError(f"cannot read model {path}: {error.strerror}") from None
    if size == 0:
        raise UserError(f"cannot read model {path}: the file is empty")
    try:
        if not h5py.is_hdf5(path):
            raise UserError(f"{path} is not a model: it is not an HDF5 file")
        # A finished file never changes in place, so no lock is needed (some network file systems have none).
        return h5py.File(path, "r", locking=False)
    except (OSError, RuntimeError) as error:
        if "truncated" in str(error):
            raise UserError(f"{path} is truncated: it ends after {size:,} bytes, {_missing(error)}") from None
        raise UserError(f"{path} is damaged: {_first_line(error)}") from None


def _missing(error: Exception) -> str:
    """The size that a truncated file should have, taken from HDF5's message."""
    stored = str(error).rpartition("stored_eof = ")[2].partition(")")[0].strip()
    return f"{int(stored):,} were written" if stored.isdigit() else "more were written"


def _first_line(error: BaseException) -> str:
    return str(error).strip().strip("\"'").partition("\n")[0] or type(error).__name__
