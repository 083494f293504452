"""Write a model file so that a reader never sees half of one.

The file is built under a temporary name in the same folder, flushed to the device, opened again and checked,
and only then renamed over the old one: whatever happens meanwhile, the old file stays whole.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping

import h5py
import numpy as np

from .. import __version__
from ..errors import UserError
from . import schema
from .attributes import crc32, put_attributes
from .device import Device
from .read import open_checkpoint
from .schema import Layout, ModelMeta, Part

PARTIAL = ".partial"
PIECE_BYTES = 16 << 20

Chunk = tuple[int, int, Mapping[str, np.ndarray]]


def write(
    path: str,
    meta: ModelMeta,
    layout: Layout,
    keys: np.ndarray,
    field_keys: np.ndarray | None,
    chunks: Iterable[Chunk],
    dense: Mapping[str, np.ndarray] | None = None,
    *,
    verify: bool = False,
) -> None:
    """Write a model file, replacing `path` in one step.

    Args:
        path: target; missing folders are made.
        meta: everything but the arrays.
        layout: sizes and names of the arrays.
        keys: uint64[n_keys], ascending.
        field_keys: int32[n_fields], ascending, or None if layout.n_fields is None.
        chunks: yields (a, b, arrays) for rows [a, b) of every per-key array, named as in the file
            ("parameters/linear", "optimizer/<slot>/linear"), float32[b - a, ...]; ranges ascending, without
            gaps, covering [0, n_keys). It is read to its end even if writing fails, so ranks that
            send their rows into it never wait for a writer that gave up.
        dense: the other arrays by their names in the file ("parameters/bias").
        verify: read the whole file back and compare the checksums before it takes its name.

    Raises:
        UserError: the file cannot be written (folder, permission, space).
        ValueError: the arrays do not fit the layout (a fault of the caller).
    """
    path = os.path.abspath(path)
    chunks = iter(chunks)
    partial = partial_name(path)
    try:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _check_space(path, layout)
            _fill(partial, meta, layout, keys, field_keys, chunks, dense or {})
            open_checkpoint(partial, verify=verify).close()
            replace(partial, path)
        except OSError as error:
            for _ in chunks:
                pass
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error
        except UserError:
            for _ in chunks:
                pass
            raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)


def partial_name(path: str) -> str:
    """Temporary name beside `path`; hidden and without .h5, so no search for models finds it."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid()}{PARTIAL}")


def replace(partial: str, path: str) -> None:
    """Rename and make the rename itself durable."""
    os.replace(partial, path)
    sync(os.path.dirname(path))


def sync(path: str) -> None:
    """Bring a file or folder to the device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        # some network file systems cannot sync a folder; their rename is durable by itself
        if not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def _check_space(path: str, layout: Layout) -> None:
    need = sum(part.nbytes for part in layout.parts().values())
    free = shutil.disk_usage(os.path.dirname(path)).free
    if need > free:
        raise UserError(
            f"cannot write {path}: needs {need / 1e6:,.0f} MB, the disk has {free / 1e6:,.0f} MB free"
        )


def _fill(
    partial: str,
    meta: ModelMeta,
    layout: Layout,
    keys: np.ndarray,
    field_keys: np.ndarray | None,
    chunks: Iterator[Chunk],
    dense: Mapping[str, np.ndarray],
) -> None:
    parts = layout.parts()
    whole = {"features/keys": keys, **dense}
    if field_keys is not None:
        whole["fields/keys"] = field_keys
    expected = {name for name, part in parts.items() if not part.per_key}
    if set(whole) != expected:
        raise ValueError(f"arrays {sorted(whole)} given, {sorted(expected)} expected")
    # Since version 1.10 of the format HDF5 checksums its own structures.
    with Device(partial) as device, h5py.File(device, "w", libver=("v110", "v110")) as file:
        _put_meta(file, meta, layout)
        datasets = {name: _Dataset(file, name, part) for name, part in parts.items()}
        for name, array in whole.items():
            datasets[name].append_all(np.asarray(array))
        _put_chunks(datasets, chunks, device)
        for dataset in datasets.values():
            dataset.finish()


def _put_chunks(datasets: dict[str, _Dataset], chunks: Iterator[Chunk], device: Device) -> None:
    rows = {name: dataset for name, dataset in datasets.items() if dataset.part.per_key}
    for a, b, arrays in chunks:
        if set(arrays) != set(rows):
            raise ValueError(f"chunk has {sorted(arrays)}, {sorted(rows)} expected")
        for name, array in arrays.items():
            if len(array) != b - a or rows[name].done != a:
                raise ValueError(f"{name}: {len(array)} rows for [{a}, {b}) after {rows[name].done}")
            rows[name].append(array)
        device.check()


def _put_meta(file: h5py.File, meta: ModelMeta, layout: Layout) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    file.attrs["format"] = schema.FORMAT
    file.attrs["schema_version"] = schema.SCHEMA_VERSION
    head = {"program_version": __version__, "created": now, **layout.to_attributes()}
    head |= {"format": schema.FORMAT, "schema_version": schema.SCHEMA_VERSION}
    put_attributes(file, head, "a model trained by lightctr_mpi")
    values = {"model": meta.model, "optimizer": meta.optimizer, "progress": meta.progress}
    values["data"] = meta.reader
    values["features"] = {"hashing_seed": meta.hashing_seed}
    values["history"] = {"columns": list(meta.history)}
    for name, description in schema.GROUPS.items():
        if name != "fields" or layout.n_fields is not None:
            put_attributes(file.create_group(name), values.get(name, {}), description)
    for slot in layout.slots:
        group = file.create_group(f"optimizer/{slot}")
        put_attributes(group, {}, f"state '{slot}' of the optimizer, shaped like /parameters")
    _put_text(file, "config", meta.config_toml, "the resolved configuration in TOML, usable as a file")
    _put_history(file["history"], meta.history)


def _put_text(file: h5py.File, name: str, text: str, description: str) -> None:
    dataset = file.create_dataset(name, data=text, dtype=h5py.string_dtype())
    dataset.attrs["description"] = description
    dataset.attrs["crc32"] = np.uint32(crc32(text.encode()))


def _put_history(group: h5py.Group, history: Mapping[str, list]) -> None:
    if len({len(column) for column in history.values()}) > 1:
        raise ValueError(f"history columns of unequal length: { {k: len(v) for k, v in history.items()} }")
    for name, values in history.items():
        column = schema.history_column(values)
        about = schema.HISTORY.get(name, f"{name.replace('_', ' ')} of each epoch")
        part = Part(column.shape, column.dtype, ("epoch",), about)
        dataset = _Dataset(group, name, part)
        dataset.append_all(column)
        dataset.finish()


class _Dataset:
    """One contiguous dataset that grows from its first row to its last, with its running checksum."""

    def __init__(self, parent: h5py.Group, name: str, part: Part):
        self.name, self.part, self.done, self.crc = name, part, 0, 0
        self.target = parent.create_dataset(name, part.shape, part.dtype, fill_time="never")
        self.target.attrs["description"] = part.description
        for axis, label in enumerate(part.dims):
            if label:
                self.target.dims[axis].label = label

    def append(self, array: np.ndarray) -> None:
        if array.shape[1:] != self.part.shape[1:] or array.dtype != self.part.dtype:
            raise ValueError(
                f"{self.name}: {array.dtype}{array.shape} given, {self.part.dtype}{self.part.shape} expected"
            )
        array = np.ascontiguousarray(array, self.part.dtype)
        self.crc = crc32(array, self.crc)
        if len(array):
            self.target[self.done : self.done + len(array)] = array
        self.done += len(array)

    def append_all(self, array: np.ndarray) -> None:
        """Append in pieces, so that a memory-mapped array is not copied as a whole."""
        step = max(1, PIECE_BYTES // max(1, array.nbytes // max(1, len(array))))
        for a in range(0, len(array), step):
            self.append(array[a : a + step])

    def finish(self) -> None:
        if self.done != self.part.shape[0]:
            raise ValueError(f"{self.name}: {self.done} of {self.part.shape[0]} rows written")
        self.target.attrs["crc32"] = np.uint32(self.crc)
