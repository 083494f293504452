"""What is in a model file, as a dictionary for programs and as text for people."""

from __future__ import annotations

import dataclasses
import math
import os
import tomllib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..config import Run
from ..report import size_text
from . import schema
from .attributes import plain
from .opening import open_checkpoint
from .read import Checkpoint
from .sharded import Sharded

LARGEST = 10
EPOCHS_SHOWN = 20


def describe(path: str | os.PathLike) -> dict[str, Any]:
    """All about a model but its arrays, ready for JSON (undefined and non-finite numbers are None).

    Keys: file, bytes (shards included), shards (file, keys and bytes of each; none: one file),
    schema_version, program_version, created, keys, fields, model, reader, hashing_seed, optimizer,
    progress, config (settings that differ from the defaults), history (a list of epochs),
    parameters and state (array name -> shape, bytes, norm, min, max, nonfinite), largest_linear (key and
    weight).

    Raises:
        UserError: the file cannot be used (`open_checkpoint`).
    """
    with open_checkpoint(path) as checkpoint:
        meta, layout = checkpoint.meta, checkpoint.layout
        arrays = {
            name: _statistics(checkpoint, name)
            for name in checkpoint.parts
            if name.startswith(("parameters/", "optimizer/"))
        }
        return _finite(
            {
                "file": os.fspath(path),
                "bytes": sum(os.path.getsize(file) for file in checkpoint.files),
                "shards": _shards(checkpoint),
                "schema_version": checkpoint.schema_version,
                "program_version": checkpoint.program_version,
                "created": checkpoint.created,
                "keys": layout.n_keys,
                "fields": layout.n_fields,
                "model": meta.model,
                "reader": meta.reader,
                "hashing_seed": meta.hashing_seed,
                "optimizer": meta.optimizer,
                "progress": meta.progress,
                "config": non_defaults(meta.config_toml),
                "history": schema.history_records(meta.history),
                "parameters": {k[11:]: v for k, v in arrays.items() if k.startswith("parameters/")},
                "state": {k[10:]: v for k, v in arrays.items() if k.startswith("optimizer/")},
                "largest_linear": _largest_linear(checkpoint),
            }
        )


def _shards(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    if not isinstance(checkpoint, Sharded):
        return []
    files = zip(checkpoint.shards, checkpoint.entries, strict=True)
    return [{"file": shard.path, "keys": entry.keys, "bytes": entry.bytes} for shard, entry in files]


def non_defaults(config_toml: str) -> dict[str, Any]:
    """Settings of a configuration that differ from the program's defaults, as {"section.name": value}."""
    try:
        given = _flat(tomllib.loads(config_toml))
    except tomllib.TOMLDecodeError:
        return {}
    defaults = _flat(plain(dataclasses.asdict(Run())))
    return {name: value for name, value in given.items() if name not in defaults or defaults[name] != value}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _statistics(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """Size, Euclidean norm and range of the finite values of an array, read piece by piece."""
    part = checkpoint.parts[name]
    squares, low, high, nonfinite = 0.0, math.inf, -math.inf, 0
    for _, _, piece in checkpoint.pieces(name):
        values = piece[np.isfinite(piece)].astype(np.float64)
        nonfinite += piece.size - values.size
        if values.size:
            squares += float(values @ values)
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    return {
        "shape": list(part.shape),
        "bytes": part.nbytes,
        "norm": math.sqrt(squares),
        "min": low,
        "max": high,
        "nonfinite": nonfinite,
    }


def _largest_linear(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The linear weights of largest absolute value; ties go to the smaller key."""
    if "parameters/linear" not in checkpoint.parts:
        return []
    keys, best = checkpoint.keys, np.zeros(0, np.int64)
    values = np.zeros(0, np.float32)
    for a, b, piece in checkpoint.pieces("parameters/linear"):
        at = np.concatenate([best, np.arange(a, b)])
        all_values = np.concatenate([values, piece])
        top = np.lexsort((keys[at], -np.abs(all_values)))[:LARGEST]
        best, values = at[top], all_values[top]
    return [{"key": int(keys[i]), "weight": float(w)} for i, w in zip(best, values, strict=True)]


def as_text(info: Mapping[str, Any]) -> str:
    """The dictionary of `describe` for people."""
    fields = "" if info["fields"] is None else f", {info['fields']:,} fields"
    shards = f" in {len(info['shards'])} shards and a file of their own" if info["shards"] else ""
    lines = [
        f"{info['file']}: {info['model'].get('name', 'model')}, {info['keys']:,} features{fields}, "
        f"{size_text(info['bytes'])}{shards}",
        f"written by lightctr_mpi {info['program_version']} at {info['created'][:19]} UTC, "
        f"schema {info['schema_version']}",
    ]
    for title in ("model", "optimizer", "reader", "progress"):
        items = sorted(info[title].items(), key=lambda item: item[0] != "name")
        lines += ["", title.capitalize(), *(f"  {k} = {_short(v)}" for k, v in items)]
    lines += ["", "Settings that differ from the defaults"]
    lines += [f"  {k} = {_short(v)}" for k, v in info["config"].items()] or ["  none"]
    lines += ["", "Arrays", f"  {'name':<24}{'shape':<20}{'norm':>12}{'min':>12}{'max':>12}"]
    for group in ("parameters", "state"):
        for name, s in info[group].items():
            shape = " x ".join(map(str, s["shape"]))
            numbers = "".join(f"{_number(s[k]):>12}" for k in ("norm", "min", "max"))
            bad = f"  {s['nonfinite']} not finite!" if s["nonfinite"] else ""
            lines.append(f"  {name:<24}{shape:<20}{numbers}{bad}")
    lines += ["", *_history_lines(info["history"])]
    if info["largest_linear"]:
        lines += ["", "Largest linear weights", f"  {'key':>20}  weight"]
        lines += [f"  {entry['key']:>20}  {_number(entry['weight'])}" for entry in info["largest_linear"]]
    return "\n".join(lines)


def _history_lines(history: list[dict[str, Any]]) -> list[str]:
    if not history:
        return ["No finished epoch"]
    shown = history[-EPOCHS_SHOWN:]
    names = [n for n in history[0] if any(record[n] is not None for record in shown)]
    rows = [names, *([_number(record[n]) for n in names] for record in shown)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    left_out = f" (the last {len(shown)} of {len(history)})" if len(shown) < len(history) else ""
    table = ["  " + "  ".join(v.rjust(w) for v, w in zip(row, widths, strict=True)) for row in rows]
    return [f"Epochs{left_out}", *table]


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 90 else text[:87] + "..."
