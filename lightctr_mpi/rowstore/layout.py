"""The file format of a row store: HDF5 with contiguous columns that are laid out before they are written.

    /indptr              int64[n + 1]   row i owns the entries indptr[i] to indptr[i + 1]
    /ids                 int32[nnz]     positions in /dictionary/keys
    /fields              int32[nnz]     positions in /dictionary/fields     (absent: the format has no fields)
    /values              float32[nnz]                                       (absent: every value is 1)
    /labels              float32[n]     NaN throughout where the input had no labels
    /weights             float32[n]                                         (absent: every weight is 1)
    /groups              int64[n]       -1: row without a group             (absent: no groups)
    /dictionary/keys     uint64[k]      sorted
    /dictionary/fields   int32[f]       sorted                              (absent like /fields)
    /source/paths        text[files]    absolute
    /source/stat         uint64[files, 4]   size, mtime_ns, ctime_ns, inode; 0: too young to be trusted

Root attributes: see `Meta`. Contiguous columns have a place in the file, so that many ranks can write their
slices side by side, and a reader can map the file into memory. HDF5 itself is only needed to lay out and to
look up.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import h5py
import numpy as np

from .. import __version__
from ..errors import UserError
from .files import read_into

FORMAT = "lightctr_mpi rows"
SCHEMA_VERSION = 1
_ALIGNMENT = 64  # of every column in the file: a cache line, and a multiple of the size of any element


@dataclass(frozen=True)
class Meta:
    """What is known of a store besides its columns; each entry is an attribute of the HDF5 file's root.

    reader is the JSON text of the options with which the text was read, content_hash the hash of the text
    (hex), skipped the number of malformed rows that were left out.
    """

    n_rows: int
    nnz: int
    n_keys: int
    n_fields: int
    one_hot: bool
    has_fields: bool
    has_labels: bool
    has_weights: bool
    has_groups: bool
    skipped: int = 0
    reader: str = "{}"
    content_hash: str = ""

    def columns(self) -> dict[str, tuple[np.dtype, int]]:
        """Type and length of every column, in file order."""
        wanted = {
            "indptr": ("<i8", self.n_rows + 1, True),
            "ids": ("<i4", self.nnz, True),
            "fields": ("<i4", self.nnz, self.has_fields),
            "values": ("<f4", self.nnz, not self.one_hot),
            "labels": ("<f4", self.n_rows, True),
            "weights": ("<f4", self.n_rows, self.has_weights),
            "groups": ("<i8", self.n_rows, self.has_groups),
            "dictionary/keys": ("<u8", self.n_keys, True),
            "dictionary/fields": ("<i4", self.n_fields, self.has_fields),
        }
        return {
            name: (np.dtype(kind), length) for name, (kind, length, is_there) in wanted.items() if is_there
        }

    def nbytes(self) -> int:
        """Bytes of all columns together."""
        return sum(dtype.itemsize * length for dtype, length in self.columns().values())


@dataclass(frozen=True)
class Origin:
    """The files a store was made of: absolute paths and, per file, size, mtime_ns, ctime_ns and inode."""

    paths: list[str] = field(default_factory=list)
    stat: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.uint64))


@dataclass(frozen=True)
class Layout:
    """A store's meta data and the places of its columns in the file, in bytes."""

    meta: Meta
    offsets: dict[str, int]
    origin: Origin


def create(path: Path, meta: Meta, origin: Origin) -> dict[str, int]:
    """Lay out a store in `path`, its columns still to be written; returns their places in the file."""
    attributes = asdict(meta) | {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "program_version": __version__,
    }
    with h5py.File(path, "w", locking=False, alignment_threshold=1, alignment_interval=_ALIGNMENT) as file:
        for name, value in attributes.items():
            file.attrs[name] = value
        for name, (dtype, length) in meta.columns().items():
            _lay_out(file, name, dtype, (length,))
        file.create_dataset(
            "source/paths",
            data=np.array([os.fsencode(path) for path in origin.paths], object),
            dtype=h5py.string_dtype(),
        )
        _lay_out(file, "source/stat", np.dtype("<u8"), origin.stat.shape)
        if origin.stat.size:
            file["source/stat"][...] = origin.stat
        return {name: _offset(file[name]) for name in meta.columns()}


def _lay_out(file: h5py.File, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """A contiguous dataset that has its place in the file at once and is not filled."""
    group, _, leaf = name.rpartition("/")
    parent = file.require_group(group) if group else file
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)
    space = h5py.h5s.create_simple(shape)
    h5py.h5d.create(parent.id, leaf.encode(), h5py.h5t.py_create(dtype), space, creation)


def _offset(dataset: h5py.Dataset) -> int:
    """Place of a dataset in the file; an empty one has none."""
    return dataset.id.get_offset() or 0


def load(path: Path) -> Layout:
    """Look up a store.

    Raises:
        UserError: not there, not HDF5, truncated, not a row store, of another version, or inconsistent.
    """
    try:
        with h5py.File(path, "r", locking=False) as file:
            layout = _look_up(path, file)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise UserError(f"{path}: not a complete row store ({error})") from None
    _check(path, layout)
    return layout


def _look_up(path: Path, file: h5py.File) -> Layout:
    found = dict(file.attrs)
    if found.get("format") != FORMAT:
        raise UserError(f"{path}: an HDF5 file, but not a row store (attribute format is not {FORMAT!r})")
    if found.get("schema_version") != SCHEMA_VERSION:
        version = found.get("schema_version")
        raise UserError(f"{path}: row store of schema version {version}, this program reads {SCHEMA_VERSION}")
    kinds = {"int": int, "bool": bool, "str": str}
    meta = Meta(**{entry.name: kinds[str(entry.type)](found[entry.name]) for entry in fields(Meta)})
    offsets = {}
    for name, (dtype, length) in meta.columns().items():
        dataset = file[name]
        if dataset.shape != (length,) or dataset.dtype != dtype or dataset.chunks is not None:
            raise UserError(
                f"{path}: /{name} is {dataset.dtype}{list(dataset.shape)}, expected {dtype}[{length}]"
            )
        offsets[name] = _offset(dataset)
    origin = Origin([os.fsdecode(path) for path in file["source/paths"][...]], file["source/stat"][...])
    return Layout(meta, offsets | {"source/stat": _offset(file["source/stat"])}, origin)


def _check(path: Path, layout: Layout) -> None:
    """Places inside the file, and row boundaries that fit the number of entries."""
    size = os.path.getsize(path)
    for name, (dtype, length) in layout.meta.columns().items():
        place = layout.offsets[name]
        if length and (place <= 0 or place % dtype.itemsize or place + length * dtype.itemsize > size):
            raise UserError(f"{path}: /{name} does not lie inside the file")
    ends = np.empty(2, np.int64)
    with open(path, "rb") as file:
        read_into(file.fileno(), ends[:1], layout.offsets["indptr"])
        read_into(file.fileno(), ends[1:], layout.offsets["indptr"] + 8 * layout.meta.n_rows)
    if ends[0] != 0 or ends[1] != layout.meta.nnz:
        raise UserError(f"{path}: /indptr runs from {ends[0]} to {ends[1]}, expected 0 to {layout.meta.nnz}")
