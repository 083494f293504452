"""Write a model file so that a reader never sees half of one.

The file is built under a temporary name in the same folder, flushed to the device, opened again and checked,
and only then renamed over the old one: whatever happens meanwhile, the old file stays whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping

import h5py
import numpy as np

from ..errors import UserError, refuse_special
from ..report import size_text
from .contents import Dataset, put_meta
from .device import Device
from .opening import open_checkpoint
from .schema import Layout, ModelMeta
from .shards import PARTIAL, ShardId

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
    shard: ShardId | None = None,
    created: str | None = None,
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
        shard: (token, number, count) makes the file a shard of a model: it has a part of the model's keys.
            Dense parameters may be left out of the layout (`write_sharded` takes those that count).
        created: the time that the file tells (ISO 8601, UTC); the default is now.

    Raises:
        UserError: the file cannot be written (folder, permission, space).
        ValueError: the arrays do not fit the layout (a fault of the caller).
    """
    chunks = iter(chunks)
    sharding = None if shard is None else _sharding(*shard)
    arrays = dict(dense or {}) | {"features/keys": keys}
    if field_keys is not None:
        arrays["fields/keys"] = field_keys
    try:
        with new_file(path, sum(part.nbytes for part in layout.parts().values()), verify) as partial:
            _check_names(arrays, layout)
            # Since version 1.10 of the format HDF5 checksums its own structures.
            with Device(partial) as device, h5py.File(device, "w", libver=("v110", "v110")) as file:
                put_meta(file, meta, layout, created=created, sharding=sharding)
                _put_arrays(file, layout, arrays, chunks, device)
    except UserError:
        for _ in chunks:
            pass
        raise


def _sharding(token: str, number: int, count: int) -> dict[str, str | int]:
    return {"token": token, "shard_number": number, "shard_count": count}


@contextlib.contextmanager
def new_file(path: str, nbytes: int, verify: bool = False) -> Iterator[str]:
    """Temporary name to build a model file under, which is checked and takes its name when the block ends.

    Args:
        nbytes: size of the file, at least.
        verify: read the whole file back before it takes its name.

    Raises UserError for an OSError in the block or here; nothing is left under the temporary name.
    """
    path = os.path.abspath(path)
    refuse_special(path)
    partial = partial_name(path)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _check_space(path, nbytes)
        yield partial
        open_checkpoint(partial, verify=verify, as_shard=True).close()
        replace(partial, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
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


def _check_space(path: str, need: int) -> None:
    free = shutil.disk_usage(os.path.dirname(path)).free
    if need > free:
        raise UserError(f"cannot write {path}: needs {size_text(need)}, the disk has {size_text(free)} free")


def _check_names(arrays: Mapping[str, np.ndarray], layout: Layout) -> None:
    expected = {name for name, part in layout.parts().items() if not part.per_key}
    if set(arrays) != expected:
        raise ValueError(f"arrays {sorted(arrays)} given, {sorted(expected)} expected")


def _put_arrays(
    file: h5py.File,
    layout: Layout,
    arrays: Mapping[str, np.ndarray],
    chunks: Iterator[Chunk],
    device: Device,
) -> None:
    datasets = {name: Dataset(file, name, part) for name, part in layout.parts().items()}
    for name, array in arrays.items():
        datasets[name].append_all(np.asarray(array))
    _put_chunks(datasets, chunks, device)
    for dataset in datasets.values():
        dataset.finish()


def _put_chunks(datasets: dict[str, Dataset], chunks: Iterator[Chunk], device: Device) -> None:
    rows = {name: dataset for name, dataset in datasets.items() if dataset.part.per_key}
    for a, b, arrays in chunks:
        if set(arrays) != set(rows):
            raise ValueError(f"chunk has {sorted(arrays)}, {sorted(rows)} expected")
        for name, array in arrays.items():
            if len(array) != b - a or rows[name].done != a:
                raise ValueError(f"{name}: {len(array)} rows for [{a}, {b}) after {rows[name].done}")
            rows[name].append(array)
        device.check()
