"""A model as text that any program can read, and back.

Format, one item a line:

    # lightctr_mpi text model 1
    # {...}                               model, reader, layout and configuration as one line of JSON
    # fields 0 3 17                       numbers of the fields, in the order of the factors (if any)
    # bias -1.25                          parameters that have no key: name and values
    # columns key linear factors[39,4]    what the following lines hold
    1024 0.0125 0.31 -0.02 ...            one feature: its key, then the values of each column, row-major;
                                          keys ascend, also where those of the model do not

Numbers have nine significant digits, which give back every float32 exactly. The state of the optimizer is
left out: an imported model predicts and can be inspected, but training cannot go on from it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import TextIO

import numpy as np

from ..errors import DataError, UserError, refuse_special
from .opening import open_checkpoint
from .order import in_key_order
from .read import Checkpoint
from .schema import Layout, ModelMeta
from .write import Chunk, partial_name, replace, sync, write

HEADER = "# lightctr_mpi text model 1"
ROWS = 4096


def export_text(model: str, path: str) -> None:
    """Write a model file as text, replacing `path` in one step.

    Raises UserError when the model cannot be read or the text cannot be written.
    """
    path = os.path.abspath(path)
    refuse_special(path)
    partial = partial_name(path)
    with open_checkpoint(model) as checkpoint:
        checkpoint.spare(path)
        try:
            with open(partial, "w", encoding="utf-8", newline="\n") as out:
                _put_head(out, checkpoint)
                _put_rows(out, checkpoint)
            sync(partial)
            replace(partial, path)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(partial)


def import_text(text: str, model: str) -> None:
    """Write the model that a text export holds to a model file (without optimizer state).

    Raises:
        DataError: a malformed line.
        UserError: the text cannot be read or the model cannot be written.
    """
    try:
        with open(text, encoding="utf-8") as lines:
            meta, layout, field_keys, dense, head_lines = _get_head(text, lines)
        keys = _get_keys(text, layout, head_lines)
        write(model, meta, layout, keys, field_keys, _get_rows(text, layout, head_lines), dense)
    except OSError as error:
        raise UserError(f"cannot read {text}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise UserError(f"{text} is not a text model: it is not text") from None


def _put_head(out: TextIO, checkpoint: Checkpoint) -> None:
    meta, layout = checkpoint.meta, checkpoint.layout
    about = {
        "model": meta.model,
        "reader": meta.reader,
        "hashing_seed": meta.hashing_seed,
        "layout": layout.to_attributes() | {"slots": []},
        "config": meta.config_toml,
    }
    out.write(f"{HEADER}\n# {json.dumps(about)}\n")
    if checkpoint.field_keys is not None:
        out.write("# fields" + "".join(f" {n}" for n in checkpoint.field_keys) + "\n")
    for name, _ in layout.dense:
        values = checkpoint.read(f"parameters/{name}").reshape(-1)
        out.write(f"# {name}" + "".join(f" {v:.9g}" for v in values) + "\n")
    columns = [name + (f"[{','.join(map(str, tail))}]" if tail else "") for name, tail in layout.tables]
    out.write(" ".join(["# columns key", *columns]) + "\n")


def _put_rows(out: TextIO, checkpoint: Checkpoint) -> None:
    names = [f"parameters/{name}" for name, _ in checkpoint.layout.tables]
    line = "%d" + " %.9g" * _width(checkpoint.layout) + "\n"
    for a, b, keys, arrays in in_key_order(checkpoint, names, ROWS):
        rows = np.concatenate([arrays[name].reshape(b - a, -1) for name in names], axis=1).tolist()
        out.write("".join(line % (key, *row) for key, row in zip(keys.tolist(), rows, strict=True)))


def _width(layout: Layout) -> int:
    return sum(int(np.prod(tail, dtype=np.int64)) for _, tail in layout.tables)


def _get_head(
    text: str, lines: TextIO
) -> tuple[ModelMeta, Layout, np.ndarray | None, dict[str, np.ndarray], int]:
    """Read to the line of columns; the last value is the number of lines read."""

    def expect(number: int, condition: bool, line: str, expected: str) -> None:
        if not condition:
            raise DataError(text, number, repr(line.rstrip("\n")[:60]), expected)

    line = lines.readline()
    expect(1, line.rstrip("\n") == HEADER, line, repr(HEADER))
    line, number = lines.readline(), 2
    try:
        about = json.loads(line.removeprefix("# "))
        layout = Layout.from_attributes(about["layout"])
        meta = ModelMeta(about["config"], about["model"], {}, about["reader"], about["hashing_seed"])
    except (ValueError, KeyError, TypeError):
        expect(2, False, line, "the model's description as JSON")
    shape: tuple[int, ...]
    names = ["fields"] * (layout.n_fields is not None) + [name for name, _ in layout.dense]
    found: dict[str, np.ndarray] = {}
    for name in names:
        line, number = lines.readline(), number + 1
        expect(number, line.split()[:2] == ["#", name], line, f"'# {name}' and its values")
        shape = (layout.n_fields or 0,) if name == "fields" else dict(layout.dense)[name]
        try:
            values = np.array(line.split()[2:], np.int32 if name == "fields" else np.float32)
            found[name] = values.reshape(shape)
        except ValueError:
            expect(number, False, line, f"'# {name}' and {int(np.prod(shape))} numbers")
    line, number = lines.readline(), number + 1
    expect(number, line.startswith("# columns "), line, "'# columns ...'")
    dense = {f"parameters/{name}": found[name] for name, _ in layout.dense}
    return meta, layout, found.get("fields"), dense, number


def _rows_of(text: str, skip: int) -> Iterator[tuple[int, list[str]]]:
    with open(text, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if number > skip:
                yield number, line.split()


def _get_keys(text: str, layout: Layout, skip: int) -> np.ndarray:
    """uint64[n_keys]; checks the number of lines, the number of values and the order of the keys."""
    keys = np.zeros(layout.n_keys, np.uint64)
    width, row, last = _width(layout), -1, -1
    for row, (number, words) in enumerate(_rows_of(text, skip)):
        if row == layout.n_keys:
            raise DataError(text, number, "another line", f"{layout.n_keys} features")
        if len(words) != width + 1:
            raise DataError(text, number, f"{len(words)} words", f"a key and {width} values")
        if not (words[0].isascii() and words[0].isdecimal()) or not last < int(words[0]) < 2**64:
            raise DataError(text, number, repr(words[0]), "keys in ascending order, below 2^64")
        keys[row] = last = int(words[0])
    if row + 1 < layout.n_keys:
        raise DataError(text, skip + row + 2, "the end", f"{layout.n_keys} features")
    return keys


def _get_rows(text: str, layout: Layout, skip: int) -> Iterator[Chunk]:
    names = [name for name, _ in layout.tables]
    tails = [tail for _, tail in layout.tables]
    cuts = np.cumsum([int(np.prod(tail, dtype=np.int64)) for tail in tails])[:-1]
    source = _rows_of(text, skip)
    for a in range(0, layout.n_keys, ROWS):
        b = min(a + ROWS, layout.n_keys)
        rows = np.empty((b - a, _width(layout)), np.float32)
        for i in range(b - a):
            number, words = next(source)
            try:
                rows[i] = words[1:]
            except ValueError:
                raise DataError(text, number, repr(" ".join(words)[:60]), "numbers") from None
        parts = np.split(rows, cuts, axis=1)
        yield (
            a,
            b,
            {f"parameters/{n}": p.reshape(b - a, *t) for n, t, p in zip(names, tails, parts, strict=True)},
        )
