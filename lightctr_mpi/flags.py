"""The command line of a run: `[job.toml] [--section.key value ...]`. Standard library only."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from .errors import UserError
from .optiontable import BOOLEAN_WORDS, OPTIONS, Given, Option, nearest, unknown

COMMAND_LINE = "the command line"


def read_flags(argv: Sequence[str]) -> tuple[str | None, Given]:
    """(job file or None, options) of a command line."""
    words = deque(argv)
    files: list[str] = []
    given: Given = {}
    while words:
        word = words.popleft()
        if word == "--":
            files += words
            break
        if not _is_flag(word):
            files.append(word)
            continue
        spelled, equals, value = word.partition("=")
        option, negated = _find_flag(spelled)
        texts = [value] if equals else _take_values(option, negated, words)
        read = _flag_value(option, negated, texts, spelled)
        if option.kind == "list" and option.key in given:
            read = given[option.key][0] + read
        given[option.key] = (read, COMMAND_LINE)
    if len(files) > 1:
        raise UserError(f"one job file at most, found {' and '.join(files)} (options start with --)")
    return (files[0] if files else None), given


def _is_flag(word: str) -> bool:
    """A lone - is a value (standard input), and so is a negative number."""
    return word.startswith("-") and len(word) > 1 and not word[1].isdigit() and word[1] != "."


def _find_flag(spelled: str) -> tuple[Option, bool]:
    key = spelled[2:] if spelled.startswith("--") else ""
    if key in OPTIONS:
        return OPTIONS[key], False
    positive = key.removeprefix("no-")
    if positive in OPTIONS and OPTIONS[positive].kind == "bool":
        return OPTIONS[positive], True
    near = nearest(spelled.lstrip("-"))
    raise unknown(spelled, COMMAND_LINE, f"--{near}" if near else "")


def _take_values(option: Option, negated: bool, words: deque[str]) -> list[str]:
    """Take what belongs to a flag off the words: one value, or for a list all up to the next flag."""
    taken: list[str] = []
    if option.kind == "bool":
        if not negated and words and (words[0].lower() in BOOLEAN_WORDS or _is_misspelled(words[0])):
            taken.append(words.popleft())
    elif option.kind == "list":
        while words and not _is_flag(words[0]):
            taken.append(words.popleft())
    elif words and not words[0].startswith("--"):
        taken.append(words.popleft())
    return taken


def _is_misspelled(word: str) -> bool:
    """Whether a word behind a boolean flag is a wrong value of it and not the job file."""
    return not _is_flag(word) and not word.endswith(".toml")


def _flag_value(option: Option, negated: bool, texts: list[str], spelled: str) -> Any:
    if option.kind == "bool" and not texts:
        return not negated
    if negated:
        raise UserError(f"{spelled} (from {COMMAND_LINE}) takes no value")
    if not texts:
        raise UserError(f"{spelled} (from {COMMAND_LINE}) needs a value: expected {option.expected}")
    if option.kind == "list":
        for text in texts:
            if text.endswith(".toml"):
                raise UserError(
                    f"{spelled} (from {COMMAND_LINE}) got {text}: put the job file before the options"
                )
        return option.read_text(texts, COMMAND_LINE)
    return option.read_text(texts[0], COMMAND_LINE)
