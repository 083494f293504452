"""Sub-commands: what each takes on the command line. The work is done elsewhere and imported on demand."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from . import __version__
from .errors import UserError

HELP = """\
usage: python -m lightctr_mpi [COMMAND] ...
       mpirun -n 8 python -m lightctr_mpi [COMMAND] ...

Train click-through-rate models (LR, FM, FFM) on sparse data, on one core or on many MPI ranks.

commands:
  (none)    train on the sample data that ships with the program
  train     train on your own files             (train --help lists every option)
  predict   one probability a line for a file of rows
  evaluate  metrics of a model on a file of rows
  inspect   what a model file contains
  convert   text to the binary row store
  synth     make data with a planted model
  warmup    compile the kernels before the first run

All but warmup, synth and inspect use every rank that mpirun starts. COMMAND --help tells more.
"""


class _Parser(argparse.ArgumentParser):
    """argparse whose usage errors are ours: one line, exit code 2, the same under mpirun."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UserError(f"{message} (see: {self.prog} --help)")


def run(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code. Raises UserError for anything the user got wrong."""
    name = argv[0] if argv else ""
    if name in ("-h", "--help", "help"):
        return _say(HELP)
    if name == "--version":
        return _say(f"lightctr_mpi {__version__}\n")
    if not name or name.startswith("-"):
        return _sample(argv)
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"unknown command {name!r}{hint} (commands: {', '.join(COMMANDS)})")
    return COMMANDS[name](argv[1:])


def _say(text: str) -> int:
    """Print on one rank, without loading MPI."""
    from .mpi import _rank

    if _rank() == 0:
        sys.stdout.write(text)
        sys.stdout.flush()
    return 0


def _sample(argv: Sequence[str]) -> int:
    """No command: the main job on the data that ships; options given now win over the job's own."""
    from .sample import sample_job

    return _train(argv, sample_job(), "the sample job")


def _train(argv: Sequence[str], base: Sequence[str] = (), base_name: str = "") -> int:
    if any(word in ("-h", "--help") for word in argv):
        from .usage import help_text

        return _say(help_text())
    from .options import resolve

    resolved = resolve(argv, os.environ, base, base_name)
    from .job import train
    from .mpi import world

    return train(resolved, world(alone=resolved.run.mode != "ps"))


def _predict(argv: Sequence[str]) -> int:
    parser = _parser("predict", "Write one probability a line, in the order of the rows.")
    parser.add_argument("model", help="model file")
    parser.add_argument("rows", nargs="+", help="files of rows (globs, .gz and - allowed)")
    parser.add_argument("-o", "--out", default="-", help="file to write (default: standard output)")
    parser.add_argument("--raw", action="store_true", help="write the logit, not the probability")
    args, data_flags = _parse(parser, argv)
    from .mpi import world
    from .predict import predict

    return predict(world(alone=True), args.model, args.rows, args.out, data_flags, raw=args.raw)


def _evaluate(argv: Sequence[str]) -> int:
    parser = _parser("evaluate", "Metrics of a model on labelled rows.")
    parser.add_argument("model", help="model file")
    parser.add_argument("rows", nargs="+", help="files of rows (globs, .gz and - allowed)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args, data_flags = _parse(parser, argv)
    from .mpi import world
    from .predict import evaluate

    return evaluate(world(alone=True), args.model, args.rows, data_flags, as_json=args.json)


def _inspect(argv: Sequence[str]) -> int:
    parser = _parser("inspect", "What a model file contains.", data_flags=False)
    parser.add_argument("model", help="model file")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--export", metavar="FILE", help="write the parameters as text (docs/checkpoint.md)")
    parser.add_argument("--merge", metavar="FILE", help="write a model that lies in shards as one file")
    args = parser.parse_args(list(argv))
    from .commands import inspect

    return inspect(args.model, as_json=args.json, export=args.export, merge=args.merge)


def _convert(argv: Sequence[str]) -> int:
    parser = _parser("convert", "Turn text files into one binary row store (HDF5).")
    parser.add_argument("rows", nargs="+", help="files of rows (globs, .gz and - allowed)")
    parser.add_argument("out", help="row store to write")
    parser.add_argument(
        "--loss",
        default="logistic",
        choices=("logistic", "squared"),
        help="what the labels are for: clicks, or (squared) any number",
    )
    args, data_flags = _parse(parser, argv)
    from .commands import convert
    from .mpi import world

    return convert(world(), args.rows, args.out, data_flags, args.loss)


def _synth(argv: Sequence[str]) -> int:
    from .synth import add_synth_cli

    return add_synth_cli(list(argv))


def _warmup(argv: Sequence[str]) -> int:
    parser = _parser(
        "warmup", "Compile the kernels of a training run into this node's cache.", data_flags=False
    )
    parser.add_argument("--model", default="all", help="lr, fm, ffm or all")
    args = parser.parse_args(list(argv))
    from .warm import warmup

    return warmup(args.model)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": _train,
    "predict": _predict,
    "evaluate": _evaluate,
    "inspect": _inspect,
    "convert": _convert,
    "synth": _synth,
    "warmup": _warmup,
}


def _parser(name: str, about: str, data_flags: bool = True) -> _Parser:
    more = "Options --data.KEY VALUE (see train --help) tell how the rows are read." if data_flags else None
    return _Parser(prog=f"python -m lightctr_mpi {name}", description=about, epilog=more, allow_abbrev=False)


def _parse(parser: _Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command's own arguments, and the --data.* flags among them (each takes one value)."""
    own, flags, words = [], [], iter(argv)
    for word in words:
        if not word.startswith("--data."):
            own.append(word)
        elif "=" in word:
            flags.append(word)
        else:
            value = next(words, None)
            if value is None:
                raise UserError(f"{word} needs a value")
            flags += [word, value]
    if any(word in ("-h", "--help") for word in own):
        _say(parser.format_help())
        raise SystemExit(0)
    return parser.parse_intermixed_args(own), flags  # files may stand on both sides of -o FILE
