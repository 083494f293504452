"""Row store: parsed rows with compact ids in an HDF5 file that is mapped, streamed and kept as a cache."""

from .cache import choose_folder, open_or_convert
from .check import check_labels
from .convert import convert
from .layout import Meta
from .order import RowOrder
from .read import RowStore, is_rowstore
from .remap import Remap

__all__ = [
    "Meta",
    "Remap",
    "RowOrder",
    "RowStore",
    "check_labels",
    "choose_folder",
    "convert",
    "is_rowstore",
    "open_or_convert",
]
