"""From defaults, a job file, the environment and flags to one Run, and back to text.

A later source wins: defaults < TOML file < environment < flags. Every value is checked where it enters, and a
wrong name or value is refused with the place it came from. Standard library only.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import config
from .config import SECTIONS, Run
from .errors import UserError
from .flags import read_flags
from .optiontable import OPTIONS, OTHER_VARIABLES, PREFIX, VARIABLES, Given, nearest, unknown
from .usage import help_text

__all__ = ["Resolved", "explain", "from_dict", "from_toml", "help_text", "resolve", "to_dict", "to_toml"]


@dataclass(frozen=True)
class Resolved:
    """A Run and where its values came from.

    Attributes:
        run: the options.
        sources: dotted key -> (value, source) of every value that was given; the rest are defaults.
    """

    run: Run
    sources: Given


def resolve(
    argv: Sequence[str], env: Mapping[str, str], base: Sequence[str] = (), base_name: str = "the job"
) -> Resolved:
    """Read `[job.toml] [--section.key value ...]` and the environment.

    Args:
        argv: the command line behind the command.
        env: the environment.
        base: flags of a built-in job called `base_name`, which everything else wins over.

    Raises:
        UserError: an unknown name, a value out of range, an unreadable job file, options that contradict
            each other.
    """
    file, flags = read_flags(argv)
    given: Given = {key: (value, base_name) for key, (value, _) in read_flags(base)[1].items()}
    if file is not None:
        given |= _read_file(file)
    given |= _read_environment(env)
    given |= flags
    return Resolved(_build(given), given)


def explain(resolved: Resolved) -> list[str]:
    """One line for each value that is not the default, in the order of the documentation."""
    lines = []
    for key, option in OPTIONS.items():
        if key in resolved.sources:
            value, source = resolved.sources[key]
            if value != option.default:
                lines.append(f"{key} = {_toml_value(value)} (from {source})")
    return lines


def to_dict(run: Run) -> dict[str, Any]:
    """Nested plain dictionary (JSON-able): tuples as lists, options left to the trainer as None."""
    tree: dict[str, Any] = {}
    for key, value in _flat(run).items():
        section, _, name = key.rpartition(".")
        place = tree.setdefault(section, {}) if section else tree
        place[name] = list(value) if isinstance(value, tuple) else value
    return tree


def from_dict(tree: Mapping[str, Any], source: str = "a dictionary") -> Run:
    """The inverse of `to_dict`; keys may be missing. Raises UserError as `resolve` does."""
    return _build({key: (value, source) for key, value in _read_tree(tree, lambda *_: source)})


def to_toml(run: Run) -> str:
    """A job file that gives this Run again.

    Options left to the trainer (None) are left out, and so are those without a meaning under the chosen model
    and optimizer, whatever stands there.
    """
    lines, section = [], ""
    for key, value in _flat(run).items():
        option = OPTIONS[key]
        if option.section != section:
            section = option.section
            lines += ["", f"[{section}]"]
        if value is not None and config.applies(run, key):
            lines.append(f"{option.name} = {_toml_value(value)}")
    return "\n".join(lines) + "\n"


def from_toml(text: str, name: str) -> Run:
    """The Run of a job file's text (for instance of a checkpoint); `name` stands for it in messages."""
    return _build(_read_toml(text, name))


def _build(given: Given) -> Run:
    parts: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
    for key, (value, _) in given.items():
        parts[OPTIONS[key].section][OPTIONS[key].name] = value
    factories = {f.name: f.default_factory for f in dataclasses.fields(Run)}
    sections = {name: factories[name](**parts[name]) for name in SECTIONS}  # type: ignore[operator]
    run = Run(**parts[""], **sections)
    config.check(run)
    return run


def _flat(run: Run) -> dict[str, Any]:
    """Dotted key -> value, in the order of the table."""
    return {
        key: getattr(getattr(run, option.section) if option.section else run, option.name)
        for key, option in OPTIONS.items()
    }


def _toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if value is None:
        return '"auto"'
    if isinstance(value, str):  # JSON's escapes are TOML's, except that TOML also wants DEL escaped
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


# --- job file ---


def _read_file(path: str) -> Given:
    try:
        with open(path, "rb") as stream:
            text = stream.read().decode()
    except OSError as error:
        raise UserError(f"cannot read job file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"job file {path} is not UTF-8 text (byte {error.start})") from None
    try:
        return _read_toml(text, path)
    except _NotToml as problem:
        hint = "" if path.endswith(".toml") else f"; rows to train on are given as --data.train {path}"
        raise UserError(f"{problem}{hint}") from None


class _NotToml(UserError):
    """A job file that cannot be parsed."""


def _read_toml(text: str, name: str) -> Given:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _NotToml(f"{name} is not valid TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply to be a job file") from None

    def place(section: str, key: str) -> str:
        line = _line_of(text, section, key)
        return f"{name}:{line}" if line else name

    return {key: (value, place(*_split(key))) for key, value in _read_tree(tree, place)}


def _read_tree(tree: Mapping[str, Any], place: Any) -> list[tuple[str, Any]]:
    """(key, checked value) of a nested dictionary; `place(section, name)` tells where a key stands."""
    found = []
    for name, value in tree.items():
        if name in SECTIONS:
            if not isinstance(value, Mapping):
                raise UserError(
                    f"{name} (from {place('', name)}) is a section: write [{name}] and its keys below"
                )
            found += [(f"{name}.{key}", item) for key, item in value.items()]
        elif isinstance(value, Mapping) and name not in OPTIONS:
            near = difflib.get_close_matches(name, SECTIONS, 1)
            raise unknown(f"[{name}]", place(name, ""), f"[{near[0]}]" if near else "")
        else:
            found.append((name, value))
    for i, (key, value) in enumerate(found):
        source = place(*_split(key))
        if key not in OPTIONS:
            raise unknown(key, source, nearest(key))
        found[i] = (key, OPTIONS[key].read(value, source))
    return found


def _split(key: str) -> tuple[str, str]:
    section, _, name = key.rpartition(".")
    return section, name


def _line_of(text: str, section: str, name: str) -> int:
    """Line of a key, or of a section's header when name is ""; 0 when it is written in an unusual way."""
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        if header:
            current = header[1]
            if current == (f"{section}.{name}" if section and name else section or name):
                return number
            continue
        written = line.partition("=")[0].strip().replace(" ", "")
        full = f"{current}.{written}" if current else written
        if name and full == (f"{section}.{name}" if section else name):
            return number
    return 0


# --- environment ---


def _read_environment(env: Mapping[str, str]) -> Given:
    """Options among the variables; an empty one counts as unset."""
    given: Given = {}
    for variable in sorted(env):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable not in VARIABLES:
            near = difflib.get_close_matches(variable, [*VARIABLES, *OTHER_VARIABLES], 1, 0.85)
            key = nearest(variable.removeprefix(PREFIX).lower())
            suggestion = near[0] if near else OPTIONS[key].variable if key else ""
            raise unknown(variable, "the environment", suggestion)
        if env[variable]:
            option, source = VARIABLES[variable], f"environment variable {variable}"
            given[option.key] = (option.read_text(env[variable], source), source)
    return given
