"""Report: what a run tells people and programs while it works."""

from __future__ import annotations

from .base import NullReport, Report, Reports
from .console import Console, size_text
from .jsonl import JsonLines, to_json

__all__ = ["Console", "JsonLines", "NullReport", "Report", "Reports", "build", "size_text", "to_json"]


def build(rank: int, quiet: bool) -> Report:
    """The report of a rank: rank 0 talks to the console, unless quiet, and to a file (`open_metrics`)."""
    if rank != 0:
        return NullReport()
    return Reports(JsonLines()) if quiet else Reports(Console(), JsonLines())
