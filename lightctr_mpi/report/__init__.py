"""Report: what a run tells people and programs while it works."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from .base import NullReport, Report, Reports
from .console import Console
from .jsonl import JsonLines, to_json

__all__ = ["Console", "JsonLines", "NullReport", "Report", "Reports", "build", "to_json"]


def build(
    rank: int,
    quiet: bool,
    metrics: str | os.PathLike[str] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> Report:
    """The report of a rank: rank 0 talks to the console (unless quiet) and to the file `metrics`.

    `history` has the records of the epochs that a resumed run has behind it.
    """
    if rank != 0:
        return NullReport()
    receivers: list[Report] = [] if quiet else [Console()]
    if metrics is not None:
        receivers.append(JsonLines(metrics, history))
    return Reports(*receivers)
