"""The table of options: every field of `config.Run` under its dotted key, with the checks of one value.

`options.py` fills a Run through this table, `usage.py` prints it. Standard library only.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import shlex
from dataclasses import dataclass
from typing import Any

from .config import Range, Run
from .errors import UserError

PREFIX = "LIGHTCTR_"
Given = dict[str, tuple[Any, str]]  # dotted key -> (value, where it came from)

# Variables with our prefix that are no options of a run.
OTHER_VARIABLES = {
    "LIGHTCTR_CACHE_DIR": "folder for compiled kernels (default: in the temporary directory)",
}

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
BOOLEAN_WORDS = frozenset(_TRUE + _FALSE)
_INT = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_LARGEST = 2**63 - 1
# kind -> (what is expected, the word in help)
_KINDS = {
    "bool": ("true or false", ""),
    "int": ("a whole number", "N"),
    "float": ("a number", "X"),
    "str": ("text", "TEXT"),
    "list": ("a list of file names", "FILE ..."),
}


class _Unfit(ValueError):
    """A value that the option does not take."""


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        key: dotted name, for instance "optimizer.lr"; "seed" and the like at the top level.
        kind: "bool", "int", "float", "str" or "list" (of strings, kept as a tuple).
        optional: may be None, which stands for a default that the trainer chooses; written "auto".
    """

    key: str
    kind: str
    optional: bool
    default: Any
    doc: str
    choices: tuple[str, ...]
    range: Range | None

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """Name of the environment variable that sets it."""
        return PREFIX + self.key.replace(".", "_").upper()

    @property
    def metavar(self) -> str:
        return "{" + ",".join(self.choices) + "}" if self.choices else _KINDS[self.kind][1]

    @property
    def expected(self) -> str:
        """What the option takes, for messages."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        text = _KINDS[self.kind][0]
        if self.range is not None:
            text += f" {self.range}"
        return text + (", or auto" if self.optional else "")

    def read(self, value: Any, source: str, spelled: Any = None) -> Any:
        """The value, checked: a native one as TOML has them, or None where that is allowed.

        Args:
            value: bool, int, float, str, list or tuple of str, None.
            source: where it came from, for messages ("job.toml:3", "the command line").
            spelled: the value as the user wrote it, where that differs.

        Raises:
            UserError: naming the option, its source, the value and what is expected.
        """
        try:
            return self._checked(value)
        except (_Unfit, OverflowError):
            near = difflib.get_close_matches(str(value), self.choices, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            shown = value if spelled is None else spelled
            if not (isinstance(shown, str) and shown and shown.isprintable()):
                shown = repr(shown)
            raise UserError(f"{self.key} = {shown} (from {source}): expected {self.expected}{hint}") from None

    def read_text(self, text: str | list[str], source: str) -> Any:
        """The same for text from a flag or an environment variable (which has a list as one string)."""
        return self.read(self._parsed(text), source, text)

    def _parsed(self, text: str | list[str]) -> Any:
        """The native value that the text spells; the text itself where it spells none."""
        if isinstance(text, list):
            return text
        if self.kind == "list":
            try:
                return shlex.split(text)
            except ValueError:  # an open quote
                return None
        if self.kind == "bool" and text.lower() in BOOLEAN_WORDS:
            return text.lower() in _TRUE
        if self.kind in ("int", "float") and _INT.fullmatch(text):
            return int(text)
        if self.kind == "float" and _FLOAT.fullmatch(text):
            return float(text)
        return text

    def _checked(self, value: Any) -> Any:
        if self.optional and (value is None or value == "auto"):
            return None
        if self.kind == "list":
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, (list, tuple)) or not all(_is_text(item) for item in value):
                raise _Unfit
            return tuple(item for item in value if item)
        if self.kind == "float" and type(value) is int:
            value = float(value)
        if type(value).__name__ != self.kind or (self.kind == "str" and not _is_text(value)):
            raise _Unfit
        if self.choices and value not in self.choices:
            raise _Unfit
        if self.kind in ("int", "float"):
            limits = self.range or Range()
            if not limits.holds(value) or (self.kind == "int" and abs(value) > _LARGEST):
                raise _Unfit
        return value


def _is_text(value: Any) -> bool:
    """Whether it is a string that can be a file name and can be written as UTF-8."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _collect(cls: type, prefix: str = "") -> dict[str, Option]:
    table: dict[str, Option] = {}
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.default_factory):
            table |= _collect(field.default_factory, f"{field.name}.")  # type: ignore[arg-type]
            continue
        kind, _, rest = str(field.type).partition(" | ")
        kind = "list" if kind.startswith("tuple") else kind
        key = prefix + field.name
        meta = field.metadata
        table[key] = Option(
            key, kind, rest == "None", field.default, meta["doc"], meta["choices"], meta["range"]
        )
    return table


OPTIONS: dict[str, Option] = _collect(Run)
VARIABLES: dict[str, Option] = {option.variable: option for option in OPTIONS.values()}


def nearest(key: str) -> str:
    """The valid key that a wrong one most likely means; "" when none is near."""
    for option in OPTIONS.values():
        if key and option.section == key:  # the section alone: its first option, as its name
            return option.key
    leaf = key.rpartition(".")[2]
    same = [option.key for option in OPTIONS.values() if option.name == leaf]
    if same:  # right name, wrong or missing section
        return difflib.get_close_matches(key, same, 1, 0.0)[0]
    near = difflib.get_close_matches(key, OPTIONS, 1, 0.7)
    if near:
        return near[0]
    leaves = difflib.get_close_matches(leaf, [option.name for option in OPTIONS.values()], 1, 0.7)
    return next((option.key for option in OPTIONS.values() if leaves and option.name == leaves[0]), "")


def unknown(spelled: str, source: str, suggestion: str) -> UserError:
    """The error for a name that is no option; `suggestion` is spelled the same way, or empty."""
    siblings = [
        option.name for option in OPTIONS.values() if option.section == spelled.lstrip("-").split(".")[0]
    ]
    if suggestion:
        hint = f"; did you mean {suggestion}?"
    elif siblings:
        hint = f"; that section has {', '.join(siblings)}"
    else:
        hint = "; see train --help for all options"
    return UserError(f"unknown option {spelled} (from {source}){hint}")
