"""One model out of shards: a small file whose arrays by key are virtual datasets of HDF5 over the shards."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import h5py
import numpy as np

from ..errors import UserError
from .contents import Dataset, describe_dataset, put_meta
from .device import Device
from .opening import open_checkpoint
from .read import Checkpoint
from .schema import Layout, ModelMeta, Part
from .sharded import joined_checksum, same_tables, source_name
from .shards import ShardEntry, remove_shards, shard_path
from .write import new_file

KEYS = "keys of the features, ascending within each shard; row i of a table is key i"


def write_sharded(
    path: str,
    meta: ModelMeta,
    layout: Layout,
    shard_paths: Sequence[str],
    field_keys: np.ndarray | None,
    dense: Mapping[str, np.ndarray] | None,
    token: str,
    *,
    verify: bool = False,
) -> None:
    """Make one model of shards that are written, replacing `path` in one step; then remove older shards.

    The model's rows are those of the shards, one shard after the other. Until this returns, a model that was
    at `path` before stays whole.

    Args:
        path: target.
        meta: everything but the arrays.
        layout: sizes and names of the arrays of the whole; n_keys is the sum over the shards.
        shard_paths: the shards by their numbers, each at `shard_path(path, token, number, count)`.
        field_keys: int32[n_fields], ascending, or None if layout.n_fields is None.
        dense: the arrays without keys by their names in the file ("parameters/bias").
        token: that of the shards.
        verify: also read all shards and compare their checksums before the model takes its name.

    Raises:
        UserError: a shard is missing, damaged, or of another checkpoint; the file cannot be written.
        ValueError: the arguments do not fit each other or the shards (a fault of the caller).
    """
    paths = [os.path.abspath(shard) for shard in shard_paths]
    if not paths or paths != [shard_path(path, token, i, len(paths)) for i in range(len(paths))]:
        raise ValueError(f"{paths} are not the shards of {path} with token {token}")
    shards: list[Checkpoint] = []
    try:
        for i, name in enumerate(paths):
            shards.append(open_checkpoint(name, verify=False, as_shard=True))
            if shards[-1].shard != (token, i, len(paths)):
                raise ValueError(f"{name} is shard {shards[-1].shard}")
        put_model(path, meta, layout, shards, field_keys, dense or {}, token, verify=verify)
    except UserError as error:
        if str(error).startswith("cannot write"):
            raise
        raise UserError(f"cannot write {path}: {error}") from error
    finally:
        for shard in shards:
            shard.close()
    remove_shards(path, paths)


def put_model(
    path: str,
    meta: ModelMeta,
    layout: Layout,
    shards: Sequence[Checkpoint],
    field_keys: np.ndarray | None,
    dense: Mapping[str, np.ndarray],
    token: str,
    *,
    created: str | None = None,
    verify: bool = False,
) -> None:
    """Write the file that makes one model of open shards, which lie where its name tells (`shard_path`)."""
    parts = layout.parts()
    arrays = dict(dense) if field_keys is None else dict(dense) | {"fields/keys": field_keys}
    expected = {name for name, part in parts.items() if not part.by_key}
    if set(arrays) != expected:
        raise ValueError(f"arrays {sorted(arrays)} given, {sorted(expected)} expected")
    if layout.n_keys != sum(shard.n_keys for shard in shards):
        raise ValueError(f"{[shard.n_keys for shard in shards]} keys in the shards of {layout.n_keys}")
    if not all(same_tables(shard.layout, layout) for shard in shards):
        raise ValueError(f"a shard of {path} has other arrays than the model")
    with (
        new_file(path, sum(parts[name].nbytes for name in expected), verify) as partial,
        Device(partial) as device,
        h5py.File(device, "w", libver=("v110", "v110")) as file,
    ):
        entries = _entries(path, shards, token)
        sharding = {"token": token, "shards": [list(entry) for entry in entries]}
        put_meta(file, meta, layout, created=created, sharding=sharding)
        for name, part in parts.items():
            if part.by_key and part.nbytes:
                _put_virtual(file, name, part, entries, joined_checksum(shards, name))
            else:
                dataset = Dataset(file, name, part)
                dataset.append_all(np.asarray(arrays.get(name, np.empty(part.shape, part.dtype))))
                dataset.finish()


def _entries(path: str, shards: Sequence[Checkpoint], token: str) -> list[ShardEntry]:
    folder = os.path.dirname(os.path.abspath(path))
    entries = []
    for i, shard in enumerate(shards):
        name = os.path.relpath(shard_path(path, token, i, len(shards)), folder)
        entries.append(ShardEntry(name, shard.n_keys, os.path.getsize(shard.path)))
    return entries


def _put_virtual(file: h5py.File, name: str, part: Part, entries: Sequence[ShardEntry], crc: int) -> None:
    layout, first = h5py.VirtualLayout(part.shape, part.dtype), 0
    for entry in entries:
        if entry.keys:
            shape = (entry.keys, *part.shape[1:])
            source = h5py.VirtualSource(source_name(entry), name, shape, part.dtype)
            layout[first : first + entry.keys] = source
        first += entry.keys
    # What HDF5 shows for a shard that it does not find must not pass for a model.
    lost = np.nan if part.dtype.kind == "f" else np.iinfo(part.dtype).max
    target = file.create_virtual_dataset(name, layout, fillvalue=np.array(lost, part.dtype)[()])
    describe_dataset(target, KEYS if name == "features/keys" else part.description, part)
    target.attrs["crc32"] = np.uint32(crc)
