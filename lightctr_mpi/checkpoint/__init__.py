"""Model files: HDF5, complete or not there at all, checked by checksums (docs/checkpoint.md)."""

from .folder import newest, prune, publish
from .join import write_sharded
from .merge import merge
from .opening import open_checkpoint as open
from .read import Checkpoint
from .schema import Layout, ModelMeta, history_columns, history_records
from .shards import new_token, shard_path
from .write import write

__all__ = [
    "Checkpoint",
    "Layout",
    "ModelMeta",
    "history_columns",
    "history_records",
    "merge",
    "new_token",
    "newest",
    "open",
    "prune",
    "publish",
    "shard_path",
    "write",
    "write_sharded",
]
