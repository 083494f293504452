"""What the values of a schema may be. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    from .schema import Schema

KINDS = ("log", "value")
REST = ("error", "categorical", "ignore")
HEADER = ("auto", "yes", "no")


def listed(names: Iterable[str], most: int = 10) -> str:
    """Names for a message, not too many of them."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more


def typed(key: str, value: Any, source: str) -> Any:
    """The value of a key in the type of its attribute."""

    def fail(expected: str) -> UserError:
        return UserError(f"{source}: {key} = {value!r}: expected {expected}")

    def text(item: Any, expected: str) -> str:
        if isinstance(item, bool) or not isinstance(item, (str, int)):
            raise fail(expected)
        return str(item)

    if key in ("categorical", "ignored", "columns", "missing"):
        if not isinstance(value, (list, tuple)):
            raise fail("a list")
        return tuple(text(item, "a list of texts or column numbers") for item in value)
    if key in ("numeric", "suffix", "labels"):
        if not isinstance(value, Mapping):
            raise fail("a table")
        return dict(value)
    if key == "header" and isinstance(value, bool):
        return "yes" if value else "no"
    if key in ("hash_seed", "hash_bits"):
        if isinstance(value, bool) or not isinstance(value, int):
            raise fail("an integer")
        return value
    if key == "quote" and value is None:
        return None
    return text(value, "a text")


def check_values(schema: Schema, source: str) -> None:
    """Raises UserError for a value outside of its range."""

    def demand(holds: bool, key: str, expected: str) -> None:
        if not holds:
            raise UserError(f"{source}: {key} = {getattr(schema, key)!r}: expected {expected}")

    def number(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

    def mark(text: str) -> bool:
        return len(text) == 1 and text.isascii() and not text.isalnum() and text not in "\r\n\0.+-"

    demand(
        not schema.separator or mark(schema.separator),
        "separator",
        "one ASCII character that is no part of a number or a word",
    )
    demand(
        schema.quotes == "" or (mark(schema.quotes) and schema.quotes not in (" ", schema.separator)),
        "quote",
        "one ASCII character other than the separator and the blank, or nothing",
    )
    demand(schema.rest in REST, "rest", f"one of {', '.join(REST)}")
    demand(schema.header in HEADER, "header", f"one of {', '.join(HEADER)}")
    demand(
        all(kind in KINDS for kind in schema.numeric.values()), "numeric", '"log" or "value" for each column'
    )
    demand(
        all(number(n) and isinstance(n, int) and n >= 1 for n in schema.suffix.values()),
        "suffix",
        "a number of bytes, at least 1, for each column",
    )
    demand(all(number(v) for v in schema.labels.values()), "labels", "a finite number for each text")
    demand(0 <= schema.hash_seed < 2**64, "hash_seed", "0 to 2^64 - 1")
    demand(1 <= schema.hash_bits <= 64, "hash_bits", "1 to 64")
    demand(len(set(schema.columns)) == len(schema.columns), "columns", "each name once")


def check_parts(schema: Schema, source: str) -> None:
    """Raises UserError for a column with two parts, or a suffix of a column that is not categorical."""
    named = schema.named()
    twice = [name for name in named if named.count(name) > 1]
    if twice:
        raise UserError(f"{source}: column {twice[0]!r} is given two parts")
    for name in schema.suffix:
        if name not in schema.categorical:
            raise UserError(f"{source}: suffix names {name!r}, which is not among the categorical columns")
