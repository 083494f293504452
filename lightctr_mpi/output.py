"""Where predictions go: lines of all ranks in the order of their units."""

from __future__ import annotations

import contextlib
import heapq
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .comm import agree, agreed, allgather_sizes, gather_arrays, rank_of
from .errors import UserError, is_special
from .input import LAST


class Output:
    """Lines of all ranks in the order of their units, written by rank 0; a file appears when it is whole."""

    def __init__(self, comm: Any, path: str):
        self.comm, self.path = comm, path
        self._waiting: list[tuple[int, bytes]] = []
        self._stream: BinaryIO | None = None
        self._partial = ""

    def __enter__(self) -> Output:
        with agreed(self.comm):
            if rank_of(self.comm) == 0:
                self._open()
        return self

    def _open(self) -> None:
        if self.path == "-":
            self._stream = sys.stdout.buffer
            return
        folder = os.path.dirname(os.path.abspath(self.path))
        try:
            if os.path.isdir(self.path):
                raise UserError(f"cannot write {self.path}: it is a folder")
            if is_special(self.path):
                self._stream = open(self.path, "wb")  # noqa: SIM115 - closed on leaving
                return
            handle, self._partial = tempfile.mkstemp(prefix=".predictions-", dir=folder)
            os.fchmod(handle, 0o666 & ~_umask())
            self._stream = os.fdopen(handle, "wb")
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from None

    def add(self, number: int, text: bytes, problem: UserError | None = None) -> None:
        """Called by all ranks in each round: `text` belongs to unit `number` of this rank, or it failed."""
        done = allgather_sizes(self.comm, number)
        parts = gather_arrays(self.comm, np.frombuffer(text, np.uint8))
        if parts is not None:
            for unit, part in zip(done.tolist(), parts, strict=True):
                if len(part):
                    heapq.heappush(self._waiting, (unit, part.tobytes()))
            problem = problem or self._write_up_to(int(done.min()))
        agree(self.comm, problem)

    def _write_up_to(self, number: int) -> UserError | None:
        """Write what waits up to a unit: no rank has an earlier one left."""
        assert self._stream is not None
        try:
            while self._waiting and self._waiting[0][0] <= number:
                self._stream.write(heapq.heappop(self._waiting)[1])
        except OSError as error:
            return UserError(f"cannot write {self.path}: {error.strerror}")
        return None

    def __exit__(self, kind: Any, *_: Any) -> None:
        problem = None
        if self._stream is not None:
            try:
                self._write_up_to(LAST)
                self._stream.flush()
                if self._partial:
                    os.fsync(self._stream.fileno())
                if self._partial and kind is None:
                    os.replace(self._partial, self.path)
            except OSError as error:
                problem = UserError(f"cannot write {self.path}: {error.strerror}")
            with contextlib.suppress(OSError):  # with a full disk there is still something in its buffer
                if self.path != "-":
                    self._stream.close()
            with contextlib.suppress(OSError):
                if self._partial:
                    Path(self._partial).unlink(missing_ok=True)
        if kind is None:
            agree(self.comm, problem)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
