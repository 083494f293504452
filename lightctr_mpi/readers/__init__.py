"""Readers: text files to Blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .guess import guess

if TYPE_CHECKING:
    from ..config import DataOptions
    from .base import Reader


__all__ = ["build", "guess", "warm"]


def build(name: str, options: DataOptions, *, task: str = "logistic") -> Reader:
    """The reader of a format.

    Args:
        name: a name of the registry; "auto" is to be resolved by `guess` first.
        options: how the files are to be read.
        task: "logistic" or "squared", which decides what labels may be.

    Raises UserError for an unknown format or options that do not fit it.
    """
    from ..registry import lookup

    if task not in ("logistic", "squared"):
        raise ValueError(f"task {task!r}, expected logistic or squared")
    reader: Reader = lookup("reader", name)(options, task)
    return reader


def warm(reader: Reader) -> None:
    """Compiles the kernels of a reader, or loads them from the disk cache, by parsing a few rows."""
    from .base import Where

    reader.parse(reader.sample, Where.whole("sample", reader.sample), "skip")
