"""Model files: HDF5, complete or not there at all, checked by checksums (docs/checkpoint.md)."""

from .folder import newest, prune, publish
from .read import Checkpoint
from .read import open_checkpoint as open
from .schema import Layout, ModelMeta, history_columns, history_records
from .write import write

__all__ = [
    "Checkpoint",
    "Layout",
    "ModelMeta",
    "history_columns",
    "history_records",
    "newest",
    "open",
    "prune",
    "publish",
    "write",
]
