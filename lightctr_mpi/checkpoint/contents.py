"""What goes into a new model file: metadata, history, arrays with their checksums."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from .. import __version__
from . import schema
from .attributes import crc32, put_attributes
from .schema import Layout, ModelMeta, Part

PIECE_BYTES = 16 << 20


def put_meta(
    file: h5py.File,
    meta: ModelMeta,
    layout: Layout,
    *,
    created: str | None = None,
    sharding: Mapping[str, Any] | None = None,
) -> None:
    """Everything of a model file but its arrays.

    Args:
        created: the time that the file tells; the default is now.
        sharding: attributes of a shard, or of the file that makes one model of shards.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    version = schema.SCHEMA_VERSION if sharding is None else schema.SHARDED_VERSION
    file.attrs["format"] = schema.FORMAT
    file.attrs["schema_version"] = version
    head = {"program_version": __version__, "created": created or now, **layout.to_attributes()}
    head |= {"format": schema.FORMAT, "schema_version": version, **(sharding or {})}
    about = "one shard of a model" if sharding and "shard_number" in sharding else "a model"
    put_attributes(file, head, f"{about} trained by lightctr_mpi")
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
        dataset = Dataset(group, name, part)
        dataset.append_all(column)
        dataset.finish()


def describe_dataset(target: h5py.Dataset, description: str, part: Part) -> None:
    target.attrs["description"] = description
    for axis, label in enumerate(part.dims):
        if label:
            target.dims[axis].label = label


class Dataset:
    """One contiguous dataset that grows from its first row to its last, with its running checksum."""

    def __init__(self, parent: h5py.Group, name: str, part: Part):
        self.name, self.part, self.done, self.crc = name, part, 0, 0
        self.target = parent.create_dataset(name, part.shape, part.dtype, fill_time="never")
        describe_dataset(self.target, part.description, part)

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
