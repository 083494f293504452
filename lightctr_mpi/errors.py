"""What can go wrong through no fault of the program, and the exit codes that say so."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

EXIT_DONE = 0
EXIT_FAULT = 1
EXIT_USER = 2
EXIT_STOPPED = (
    75  # stopped after saving: the batch system may start the job again (EX_TEMPFAIL of sysexits.h)
)


def one_line(text: object) -> str:
    """The text with line breaks and other characters that do not print as escapes.

    Names of files and cells of data are shown in messages, and may hold anything.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


class UserError(Exception):
    """Something the user gave cannot be used; the message is one line and says what and where."""


class DataError(UserError):
    """A malformed row.

    Args:
        file: path of the file as the user named it.
        line: line number, from 1; 0 when it is not known yet.
        found: what stands there.
        expected: what should stand there.
    """

    def __init__(self, file: str, line: int, found: str, expected: str):
        super().__init__(file, line, found, expected)
        self.file, self.line, self.found, self.expected = file, line, found, expected

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: found {self.found}, expected {self.expected}"


class Diverged(UserError):
    """A loss or a parameter stopped being finite."""


class Fault(Exception):
    """Something is wrong that no user can have caused; the message is one line and needs no traceback."""


class Stopped(Exception):
    """A stop was asked for (SIGUSR1, SIGTERM) and the state has been saved."""


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the system says against writing a file into a UserError that names it."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether a name belongs to a device, a pipe or the like, also through a link as /dev/stdout is one.

    Such a name must be opened, never replaced: a rename puts a plain file in the place of the device.
    """
    try:
        if os.path.islink(path) and os.readlink(path).startswith("/proc/"):
            return True  # also where nothing is at its end, as after a shell's >&-
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Raises UserError where a file is to be replaced as a whole and is not one."""
    if is_special(path):
        raise UserError(f"cannot write {os.fspath(path)}: it is not a file")
