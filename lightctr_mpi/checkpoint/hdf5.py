"""Open an HDF5 file, and turn whatever goes wrong with a damaged one into one line that names it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import h5py

from ..errors import UserError

# What h5py is known to raise on damaged files.
_DAMAGE = (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError, OverflowError)


def open_file(path: str) -> h5py.File:
    """Open a file for reading. Raises UserError: missing, a folder, empty, not HDF5, truncated, damaged."""
    try:
        size = os.stat(path).st_size
        if os.path.isdir(path):
            inside = os.path.join(path, "model.h5")
            hint = f"; did you mean {inside}?" if os.path.exists(inside) else ""
            raise UserError(f"cannot read model {path}: it is a folder{hint}")
        with open(path, "rb"):
            pass
    except OSError as error:
        raise UserError(f"cannot read model {path}: {error.strerror}") from None
    if size == 0:
        raise UserError(f"cannot read model {path}: the file is empty")
    try:
        if not h5py.is_hdf5(path):
            raise UserError(f"{path} is not a model: it is not an HDF5 file")
        # A finished file never changes in place, so no lock is needed (some network file systems have none).
        return h5py.File(path, "r", locking=False)
    except (OSError, RuntimeError) as error:
        if "truncated" in str(error):
            raise UserError(f"{path} is truncated: it ends after {size:,} bytes, {_missing(error)}") from None
        raise UserError(f"{path} is damaged: {first_line(error)}") from None


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Whatever h5py raises on a damaged file becomes a UserError."""
    try:
        yield
    except _DAMAGE as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    return str(error).strip().strip("\"'").partition("\n")[0] or type(error).__name__


def _missing(error: Exception) -> str:
    """The size that a truncated file should have, taken from HDF5's message."""
    stored = str(error).rpartition("stored_eof = ")[2].partition(")")[0].strip()
    return f"{int(stored):,} were written" if stored.isdigit() else "more were written"
