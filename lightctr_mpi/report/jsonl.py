"""metrics.jsonl: one JSON object for each epoch, on disk as soon as the epoch is over."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from ..errors import writing
from .base import Report


class JsonLines(Report):
    """Appends a line for each epoch, once there is a file to write to."""

    def __init__(self) -> None:
        self._stream: TextIO | None = None

    def open_metrics(self, path: str | os.PathLike[str], history: Sequence[Mapping[str, Any]] = ()) -> None:
        path = os.fspath(path)
        part = path + ".part"  # a kill in between must not lose the old lines
        self.close()
        with writing(path):
            with open(part, "w", encoding="utf-8") as stream:
                stream.writelines(to_json(record) + "\n" for record in history)
            os.replace(part, path)
            self._stream = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()

    def epoch(self, record: Mapping[str, Any], best: bool = False) -> None:
        if self._stream is not None:
            with writing(self._stream.name):
                self._stream.write(to_json(record) + "\n")
                self._stream.flush()

    def close(self) -> None:
        if self._stream is not None:
            with suppress(OSError):  # `epoch` has told of the disk that is full
                self._stream.close()
            self._stream = None


def to_json(value: Any) -> str:
    """One line of strict JSON: NaN and infinities, which JSON lacks, become null; NumPy scalars numbers."""
    return json.dumps(_plain(value), allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy's, without importing it
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
