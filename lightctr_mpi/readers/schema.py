"""Schema: what each column of a delimited file means. Standard library only.

A schema is written by hand as a TOML file (docs/data.md), or comes with a format (criteo, avazu). `resolve`
binds it to the columns of the training data; the resolved form goes through `to_dict` into caches and model
files, so that prediction needs no schema file and numbers the fields alike.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError
from .schema_check import check_parts, check_values, listed, typed


@dataclass(frozen=True)
class Schema:
    """Meaning of the columns. A column is named by its name or by its number, from 1, written as text.

    Attributes:
        label: column of the label.
        categorical: columns whose text is the feature.
        numeric: column -> "log" (a feature for each bin of size) or "value" (one feature that has
            the number as its value).
        suffix: categorical column -> how many of its last bytes count; the others are dropped.
        ignored: columns that are not read.
        weight: column of the sample weight, or "".
        group: column of the group of a row (query, session), or "".
        rest: what columns named nowhere are: "error", "categorical" or "ignore".
        columns: all columns in the order of the file; () until resolved, if the header gives them.
        separator: one character; "": that of the format.
        quote: one character, or "" where quotes mean nothing; None: '"', or "" where the separator is a tab.
        header: whether files start with a line of names: "yes", "no", or "auto": if it names the columns.
        missing: texts of a missing cell, besides the empty one.
        labels: text of a label -> its number.
        hash_seed: seed of the keys.
        hash_bits: keys keep this many bits; 64 keeps collisions negligible.
    """

    label: str = ""
    categorical: tuple[str, ...] = ()
    numeric: Mapping[str, str] = field(default_factory=dict)
    suffix: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    weight: str = ""
    group: str = ""
    rest: str = "error"
    columns: tuple[str, ...] = ()
    separator: str = ""
    quote: str | None = None
    header: str = "auto"
    missing: tuple[str, ...] = ()
    labels: Mapping[str, float] = field(default_factory=dict)
    hash_seed: int = 0
    hash_bits: int = 64

    @property
    def quotes(self) -> str:
        """The quote character in force, "" for none."""
        return self.quote if self.quote is not None else ("" if self.separator == "\t" else '"')

    @property
    def features(self) -> tuple[str, ...]:
        """Feature columns in the order of `columns`; the place of a column here is its field number."""
        return tuple(name for name in self.columns if name in self.categorical or name in self.numeric)

    @property
    def is_resolved(self) -> bool:
        """Whether every column is known and has a part."""
        return bool(self.columns) and set(self.columns) == set(self.named())

    def named(self) -> list[str]:
        """Every column that has a part, in the order of the attributes."""
        single = [name for name in (self.label, self.weight, self.group) if name]
        return [*single, *self.categorical, *self.numeric, *self.ignored]

    def resolve(self, names: Iterable[str], source: str) -> Schema:
        """The schema with all columns known and referred to by name.

        Args:
            names: the columns in the order of the file.
            source: what to call that file in errors.

        Raises:
            UserError: a column that is not there, twice there, or named nowhere while `rest` is "error".
        """
        columns = tuple(names)
        twice = sorted({name for name in columns if columns.count(name) > 1})
        if twice:
            raise UserError(f"{source}: two columns are called {twice[0]!r}")
        bound = self._by_name(columns, source)
        assigned = set(bound.named())
        rest = tuple(name for name in columns if name not in assigned)
        if rest and self.rest == "error":
            raise UserError(
                f"{source}: the schema gives no part to {listed(rest)}; add them to categorical, numeric or"
                ' ignored, or set rest = "categorical" or rest = "ignore"'
            )
        part = "categorical" if self.rest == "categorical" else "ignored"
        return dataclasses.replace(bound, columns=columns, **{part: getattr(bound, part) + rest})

    def _by_name(self, columns: tuple[str, ...], source: str) -> Schema:
        """The schema with column numbers replaced by names."""

        def name_of(text: str) -> str:
            if not text or text in columns:
                return text
            if text.isascii() and text.isdigit() and 1 <= int(text) <= len(columns):
                return columns[int(text) - 1]
            near = difflib.get_close_matches(text, columns, 1)
            raise UserError(
                f"{source}: there is no column {text!r}, which the schema names"
                + (f"; did you mean {near[0]!r}" if near else f"; there are {listed(columns)}")
            )

        changes: dict[str, Any] = {}
        for part in ("label", "weight", "group"):
            changes[part] = name_of(getattr(self, part))
        for part in ("categorical", "ignored"):
            changes[part] = tuple(name_of(text) for text in getattr(self, part))
        for part in ("numeric", "suffix"):
            changes[part] = {name_of(text): value for text, value in getattr(self, part).items()}
        bound = dataclasses.replace(self, **changes)
        check_parts(bound, source)
        return bound

    def without_header(self) -> Schema:
        """The same for files that have no header."""
        return dataclasses.replace(self, header="no")

    def to_dict(self) -> dict[str, Any]:
        """All that is not a default, as lists, dictionaries, texts and numbers (fit for JSON and TOML)."""
        items = dataclasses.asdict(self)
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in items.items()}
        return {key: value for key, value in plain.items() if items[key] != getattr(_EMPTY, key)}


_EMPTY = Schema()


def from_dict(items: Mapping[str, Any], source: str) -> Schema:
    """A checked schema; the inverse of `to_dict`, and what a TOML file is read through.

    Raises:
        UserError: an unknown key, a wrong type or range, a column with two parts; it starts with `source`.
    """
    known = [f.name for f in dataclasses.fields(Schema)]
    clean: dict[str, Any] = {}
    for key, value in items.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}" if near else f"known are {', '.join(known)}"
            raise UserError(f"{source}: unknown key {key!r}; {hint}")
        clean[key] = typed(key, value, source)
    schema = Schema(**clean)
    check_values(schema, source)
    check_parts(schema, source)
    if schema.columns:
        schema._by_name(schema.columns, source)
    return schema


def from_file(path: str) -> Schema:
    """The schema in a TOML file; raises UserError that names the file."""
    try:
        with open(path, "rb") as file:
            return from_dict(tomllib.load(file), path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from None


def criteo() -> Schema:
    """Criteo's display advertising data: label, 13 counts and 26 categories between tabs, no header."""
    counts = [f"I{i}" for i in range(1, 14)]
    categories = [f"C{i}" for i in range(1, 27)]
    return Schema(
        label="label",
        numeric=dict.fromkeys(counts, "log"),
        categorical=tuple(categories),
        columns=("label", *counts, *categories),
        separator="\t",
        header="no",
    )


def avazu() -> Schema:
    """Avazu's click data, with a header: all is categorical, of `hour` (YYMMDDHH) the hour of the day."""
    return Schema(
        label="click",
        categorical=("hour",),
        suffix={"hour": 2},
        ignored=("id",),
        rest="categorical",
        header="yes",
    )
