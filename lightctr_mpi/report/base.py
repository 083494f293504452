"""What the training loop tells, and to whom. Standard library only, as everything in this package."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any


class Report:
    """Receiver of a run's news. This one drops them: it is what ranks other than 0 hold."""

    def start(self, lines: Sequence[str], epochs: int | None = None) -> None:
        """The run begins: what it works on, and after how many epochs it ends at the latest."""

    def open_metrics(self, path: str | os.PathLike[str], history: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write the records of epochs to this file from now on.

        Args:
            path: the file, written anew.
            history: records of the epochs that a resumed run has behind it. They come from the checkpoint;
                the old file may lack a line, end in half of one, or have epochs that are learned again.

        Raises:
            UserError: the file cannot be written.
        """

    def progress(
        self, epoch: int, done: int, total: int, loss: float, seconds: float, already: int = 0
    ) -> None:
        """A step was taken.

        Args:
            epoch: the current epoch, from 1.
            done: rows of this epoch that were learned, on all ranks together.
            total: rows of an epoch; 0 when unknown.
            loss: mean loss over the rows so far.
            seconds: since this process began to work on the epoch.
            already: rows of the epoch that had been learned before that (after a resume).
        """

    def epoch(self, record: Mapping[str, Any], best: bool = False) -> None:
        """An epoch ended; `record` is its line of metrics, None marking undefined ones."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run is over: name -> value, to be read by a person."""

    def close(self) -> None:
        """Release files and leave the terminal clean; also called after a failure."""


class NullReport(Report):
    """Says nothing."""


class Reports(Report):
    """Tells several receivers."""

    def __init__(self, *receivers: Report):
        self._receivers = receivers

    def start(self, lines: Sequence[str], epochs: int | None = None) -> None:
        for receiver in self._receivers:
            receiver.start(lines, epochs)

    def open_metrics(self, path: str | os.PathLike[str], history: Sequence[Mapping[str, Any]] = ()) -> None:
        for receiver in self._receivers:
            receiver.open_metrics(path, history)

    def progress(
        self, epoch: int, done: int, total: int, loss: float, seconds: float, already: int = 0
    ) -> None:
        for receiver in self._receivers:
            receiver.progress(epoch, done, total, loss, seconds, already)

    def epoch(self, record: Mapping[str, Any], best: bool = False) -> None:
        for receiver in self._receivers:
            receiver.epoch(record, best)

    def note(self, text: str) -> None:
        for receiver in self._receivers:
            receiver.note(text)

    def finish(self, summary: Mapping[str, Any]) -> None:
        for receiver in self._receivers:
            receiver.finish(summary)

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.close()
