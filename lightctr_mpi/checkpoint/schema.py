"""What a model file contains: names, shapes, descriptions and checksums (docs/checkpoint.md shows the whole).

Writer and reader both take the list of datasets from `Layout.parts`, so they cannot disagree about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .attributes import plain

FORMAT = "lightctr_mpi model"
SCHEMA_VERSION = 1
# A shard, or the file that makes one model of shards. A program that does not know shards must refuse both:
# it would take the one for a whole model, and HDF5 would let it read fill values in place of lost shards.
SHARDED_VERSION = 2

GROUPS = {
    "model": "the model: its name and everything that decides how a prediction is computed",
    "data": "how text becomes rows: format, options and schema of the reader",
    "features": "features that were seen in training, and the seed of the hash that made keys of texts",
    "fields": "fields that were seen in training",
    "parameters": "what was learned",
    "optimizer": "the optimizer: its settings, and one group for each of its state arrays",
    "progress": "where training stands, enough to go on exactly from here",
    "history": "metrics, one value per finished epoch; NaN where a metric was undefined",
}

PARAMETERS = {
    "linear": "linear weight of each feature",
    "factors": "latent factors of each feature",
    "bias": "the global bias",
}

HISTORY = {
    "epoch": "number of the epoch, from 1",
    "train_logloss": "mean logloss of the training rows, each before the update it caused (natural log)",
    "valid_logloss": "mean logloss of the validation rows after the epoch (natural log)",
    "valid_auc": "area under the ROC curve on the validation rows after the epoch",
    "valid_rmse": "root of the mean squared error on the validation rows after the epoch",
    "rows_per_second": "training rows per second of the epoch, all ranks together",
    "seconds": "duration of the epoch in seconds",
}


@dataclass
class ModelMeta:
    """All of a model but its arrays.

    The dictionaries hold str, int, float, bool, None, and lists or dictionaries of these.

    Attributes:
        config_toml: the resolved configuration, reusable as a file.
        model: name, k, linear, bias, norm, loss, ...: what prediction needs.
        optimizer: name and hyper-parameters.
        reader: format, its options and schema: reading new rows needs nothing else.
        hashing_seed: seed of the hash that turns categories into keys.
        progress: epoch, step, rows_done, seed, partial sums, best_epoch, best_value, bad_epochs, ...
        history: column -> one number (or None: undefined) per finished epoch, all columns of one length.
    """

    config_toml: str = ""
    model: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    reader: dict[str, Any] = field(default_factory=dict)
    hashing_seed: int = 0
    progress: dict[str, Any] = field(default_factory=dict)
    history: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One dataset of the file; `per_key` says that it is a table of the keys, which is written in chunks."""

    shape: tuple[int, ...]
    dtype: np.dtype
    dims: tuple[str, ...]
    description: str
    per_key: bool = False

    @property
    def by_key(self) -> bool:
        """Whether row i belongs to the i-th key; of a sharded model these arrays lie in the shards."""
        return self.dims[:1] == ("key",)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """Sizes and names of the arrays of a model.

    Attributes:
        n_keys: features.
        n_fields: fields, or None where the format has none.
        tables: (name, shape of one row) of parameters with a row per key, as ("factors", (39, 4)).
        dense: (name, shape) of parameters that all rows of data share, as ("bias", (1,)).
        slots: names of the optimizer's state arrays; each has the shapes of all tables and dense parameters.
    """

    n_keys: int
    n_fields: int | None
    tables: tuple[tuple[str, tuple[int, ...]], ...]
    dense: tuple[tuple[str, tuple[int, ...]], ...] = ()
    slots: tuple[str, ...] = ()

    def parts(self) -> dict[str, Part]:
        """Every array by its name in the file ("parameters/linear"), in the order of writing."""
        f32, u64, i32 = np.dtype("<f4"), np.dtype("<u8"), np.dtype("<i4")
        parts = {
            "features/keys": Part(
                (self.n_keys,), u64, ("key",), "keys of the features, ascending; row i of a table is key i"
            )
        }
        if self.n_fields is not None:
            about = "numbers of the fields as in the data, ascending; field i of a table is number i"
            parts["fields/keys"] = Part((self.n_fields,), i32, ("field",), about)
        for prefix, slot in [("parameters", ""), *((f"optimizer/{s}", s) for s in self.slots)]:
            for name, tail in self.tables:
                about = _about(name, slot)
                parts[f"{prefix}/{name}"] = Part(
                    (self.n_keys, *tail), f32, ("key", *_tail_dims(tail)), about, True
                )
            for name, shape in self.dense:
                parts[f"{prefix}/{name}"] = Part(tuple(shape), f32, ("",) * len(shape), _about(name, slot))
        return parts

    def to_attributes(self) -> dict[str, Any]:
        return {
            "n_keys": self.n_keys,
            "n_fields": self.n_fields,
            "tables": [[name, list(tail)] for name, tail in self.tables],
            "dense": [[name, list(shape)] for name, shape in self.dense],
            "slots": list(self.slots),
        }

    @classmethod
    def from_attributes(cls, values: Mapping[str, Any]) -> Layout:
        def named(entries: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
            return tuple((str(name), tuple(int(n) for n in shape)) for name, shape in entries)

        return cls(
            values["n_keys"],
            values["n_fields"],
            named(values["tables"]),
            named(values["dense"]),
            tuple(values["slots"]),
        )


def _tail_dims(tail: tuple[int, ...]) -> tuple[str, ...]:
    return {0: (), 1: ("factor",), 2: ("field", "factor")}.get(len(tail), ("",) * len(tail))


def _about(name: str, slot: str) -> str:
    about = PARAMETERS.get(name, f"parameters '{name}'")
    return f"optimizer state '{slot}' of {about}" if slot else about


def history_column(values: Any) -> np.ndarray:
    """A metrics column as int64 (all whole numbers) or float64 (None as NaN)."""
    values = [plain(v) for v in values]
    if values and all(type(v) is int for v in values):
        return np.array(values, "<i8")
    return np.array([np.nan if v is None else v for v in values], "<f8")


def history_columns(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """One record per epoch -> one column per metric; a metric that a record lacks is None there."""
    names = list(dict.fromkeys(name for record in records for name in record))
    return {name: [record.get(name) for record in records] for name in names}


def history_records(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """The inverse of `history_columns`."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
