"""What can go wrong through no fault of the program, and the exit codes that say so."""

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
