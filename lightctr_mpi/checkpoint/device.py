"""A file for HDF5 to write into that never fails before its eyes.

A disk that fills up while the HDF5 library closes a file leaves the library in a state in which it crashes
the process (version 1.14 does). So errors of the system are kept here, HDF5 is told that all went well, and
the writer asks.
"""

from __future__ import annotations

import os


class Device:
    """A new file, as the file-like object that h5py accepts; leaving the `with` block raises what went wrong.

    Raises:
        OSError: on opening, from `check` and on leaving; the first error of the system.
    """

    def __init__(self, path: str):
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._at = 0
        self.error: OSError | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        """Bring the file to the device and close it."""
        try:
            if kind is None and self.error is None:
                os.fsync(self._descriptor)
        except OSError as error:
            self.error = error
        finally:
            os.close(self._descriptor)
        if kind is None:
            self.check()

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        try:
            done = 0
            while self.error is None and done < len(view):
                done += os.pwrite(self._descriptor, view[done:], self._at + done)
        except OSError as error:
            self.error = error
        self._at += len(view)
        return len(view)

    def read(self, size: int) -> bytes:
        """Read what was written; bytes that never reached the device are zeros."""
        data = os.pread(self._descriptor, size, self._at)
        self._at += size
        return data + bytes(size - len(data))

    def readinto(self, target: memoryview) -> int:
        view = memoryview(target).cast("B")
        view[:] = self.read(len(view))
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        size = self._at if size is None else size
        try:
            if self.error is None:
                os.ftruncate(self._descriptor, size)
        except OSError as error:
            self.error = error
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            offset += os.fstat(self._descriptor).st_size
        elif whence == os.SEEK_CUR:
            offset += self._at
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Nothing is buffered here."""
