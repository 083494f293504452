"""The text of `train --help`: every option, by section. Standard library only."""

from __future__ import annotations

import dataclasses
import textwrap

from .config import Run
from .optiontable import OPTIONS, OTHER_VARIABLES, Option

_WIDTH = 100
_INDENT = " " * 6

_HEAD = """\
usage: python -m lightctr_mpi train [JOB.toml] [--SECTION.KEY VALUE ...]
       mpirun -n N python -m lightctr_mpi train [JOB.toml] [--SECTION.KEY VALUE ...]

Train a model. A value is taken from the last of: its default, the job file, the environment variable
LIGHTCTR_<SECTION>_<KEY>, the flag. In a job file, a section is a TOML table: [optimizer], below it lr = 0.1.
Switches: --quiet, --model.norm false, --no-model.norm. Lists: --data.train a.ffm b.ffm;
LIGHTCTR_DATA_TRAIN="a.ffm b.ffm"; train = ["a.ffm", "b.ffm"].
"""


def help_text() -> str:
    """Usage, then each option with what it takes, its default and its documentation."""
    lines = [_HEAD]
    docs = {f.name: f.default_factory.__doc__ for f in dataclasses.fields(Run) if callable(f.default_factory)}
    section = None
    for option in OPTIONS.values():
        if option.section != section:
            section = option.section
            lines.append(f"\n{section}: {docs[section]}" if section else "general:")
        lines += _entry(option)
    lines.append("\nother environment variables:")
    for variable, doc in OTHER_VARIABLES.items():
        lines += [f"  {variable}", *_wrap(doc)]
    return "\n".join(lines) + "\n"


def _entry(option: Option) -> list[str]:
    facts = []
    if option.range is not None:
        facts.append(str(option.range))
    if option.default not in (None, "", ()):  # otherwise the documentation says what happens
        shown = str(option.default)
        facts.append("default: " + (shown.lower() if option.kind == "bool" else shown))
    doc = option.doc + (f" [{'; '.join(facts)}]" if facts else "")
    flag = f"  --{option.key} {option.metavar}".rstrip()
    return [flag, *_wrap(doc)]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
