"""News for a person: text on standard output, and on a terminal a live progress line on standard error."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from .base import Report

LIVE_SECONDS = 0.2  # between two states of the live line
PLAIN_SECONDS = 10.0  # between two progress lines where there is no terminal

# Set by the launchers of Open MPI, PMIx, MPICH and Slurm for their processes.
_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_COLUMNS = {
    "epoch": "epoch",
    "train_logloss": "train logloss",
    "train_squared_loss": "train loss",
    "train_rmse": "train rmse",
    "valid_logloss": "valid logloss",
    "valid_rmse": "valid rmse",
    "valid_auc": "valid auc",
    "rows_per_second": "rows/s",
    "seconds": "seconds",
}


def can_be_live(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Whether a line may be rewritten on this stream.

    Under mpirun it may not, whatever isatty says: the launcher merges the ranks' output line by line, and
    Open MPI gives its processes a pseudo-terminal even when its own output goes to a file.
    """
    launched = any(name in env for name in _LAUNCHED)
    return stream.isatty() and not launched and env.get("TERM", "dumb") != "dumb"


class Console(Report):
    """Prints.

    Args:
        out: where lines go (default: standard output).
        live_out: where the live line goes (default: standard error).
        live: rewrite one line; default: when `live_out` is a terminal and no launcher stands between.
        clock: seconds from any start.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        live_out: TextIO | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._out = sys.stdout if out is None else out
        self._deaf = False
        self._live_out = sys.stderr if live_out is None else live_out
        self._live = can_be_live(self._live_out, os.environ) if live is None else live
        self._clock = clock
        self._interval = LIVE_SECONDS if self._live else PLAIN_SECONDS
        self._last = -math.inf if self._live else clock()
        self._epochs: int | None = None
        self._columns: list[str] = []
        self._shown = False  # the live line is on the screen

    def start(self, lines: Sequence[str], epochs: int | None = None) -> None:
        self._epochs = epochs
        if not self._live:
            self._last = self._clock()
        self._print(*lines)

    def progress(
        self, epoch: int, done: int, total: int, loss: float, seconds: float, already: int = 0
    ) -> None:
        now = self._clock()
        if now - self._last < self._interval:
            return
        self._last = now
        text = progress_text(epoch, self._epochs, done, total, loss, seconds, already)
        if not self._live:
            self._print(text)
            return
        width = shutil.get_terminal_size().columns - 1
        self._live_out.write("\r" + text[:width] + "\x1b[K")
        self._live_out.flush()
        self._shown = True

    def epoch(self, record: Mapping[str, Any], best: bool = False) -> None:
        columns = [name for name in _COLUMNS if name in record]
        if columns != self._columns:
            self._columns = columns
            self._print("".join(f"{_COLUMNS[name]:>{_width(name)}}" for name in columns))
        row = "".join(f"{_cell(name, record[name]):>{_width(name)}}" for name in columns)
        self._print(row + ("  best" if best else ""))

    def note(self, text: str) -> None:
        self._print(text)

    def finish(self, summary: Mapping[str, Any]) -> None:
        names = {key: key.replace("_", " ") for key in summary}
        width = max(map(len, names.values()), default=0)
        self._print(*(f"{names[key]:<{width}}  {_cell(key, value)}" for key, value in summary.items()))
        self.close()

    def close(self) -> None:
        if self._shown:
            self._live_out.write("\r\x1b[K")
            self._live_out.flush()
            self._shown = False

    def _print(self, *lines: str) -> None:
        self.close()  # the live line must not stay in front of the text
        if self._deaf:
            return
        try:
            for line in lines:
                self._out.write(line + "\n")
            self._out.flush()
        except OSError:  # `train | head`, a full disk below the log: no reason to lose the training
            self._deaf = True
            if self._out is sys.stdout:  # what is still buffered must not fail at exit
                with suppress(OSError, ValueError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())


def progress_text(
    epoch: int, epochs: int | None, done: int, total: int, loss: float, seconds: float, already: int
) -> str:
    """One line about a running epoch; the time left is that of all epochs where their number is known."""
    parts = [f"epoch {epoch}/{epochs}" if epochs else f"epoch {epoch}"]
    parts.append(f"{100 * done // total:3d}%" if total else f"{done:,} rows")
    rate = (done - already) / seconds if seconds > 0 else 0.0
    parts += [f"{rate:,.0f} rows/s", f"loss {_number(loss)}"]
    if rate > 0 and total:
        left = total - done + total * max((epochs or epoch) - epoch, 0)
        parts.append(f"{clock_text(left / rate)} left")
    return "  ".join(parts)


def clock_text(seconds: float) -> str:
    """m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def size_text(n_bytes: float) -> str:
    """A size as a person reads it: 512 B, 33.8 kB, 1.2 MB."""
    if n_bytes < 1000:
        return f"{n_bytes:.0f} B"
    for unit in ("kB", "MB"):
        n_bytes /= 1000
        if n_bytes < 999.95:
            return f"{n_bytes:.1f} {unit}"
    return f"{n_bytes / 1000:,.1f} GB"


def _width(name: str) -> int:
    return 5 if name == "epoch" else max(len(_COLUMNS[name]), 9) + 2


def _cell(name: str, value: Any) -> str:
    """A value as a person reads it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "undefined"
    if name.endswith("per_second"):
        return f"{value:,.0f}"
    if name.endswith("seconds"):
        return f"{value:.2f}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else _number(value)


def _number(value: float) -> str:
    """Five decimals, or as many digits where that would burst its column: a loss that runs away."""
    return f"{value:.5f}" if abs(value) < 1e5 else f"{value:.5g}"
