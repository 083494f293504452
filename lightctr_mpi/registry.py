"""Every name a user can choose, and the object it stands for: kind -> name -> "module:object".

Imports happen on look-up, so that `--help` loads no numerical library and a run loads only what it uses.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from .errors import UserError

NAMES: dict[str, dict[str, str]] = {
    "model": {
        "lr": "lightctr_mpi.models.lr:LogisticRegression",
        "fm": "lightctr_mpi.models.fm:FactorizationMachine",
        "ffm": "lightctr_mpi.models.ffm:FieldAwareFactorizationMachine",
    },
    "optimizer": {
        "sgd": "lightctr_mpi.optim.sgd:SGD",
        "adagrad": "lightctr_mpi.optim.adagrad:Adagrad",
        "ftrl": "lightctr_mpi.optim.ftrl:FTRL",
    },
    "reader": {
        "libffm": "lightctr_mpi.readers.libffm:LibffmReader",
        "libsvm": "lightctr_mpi.readers.libsvm:LibsvmReader",
        "dense": "lightctr_mpi.readers.dense:DenseReader",
        "csv": "lightctr_mpi.readers.delimited:CsvReader",
        "tsv": "lightctr_mpi.readers.delimited:TsvReader",
        "criteo": "lightctr_mpi.readers.delimited:CriteoReader",
        "avazu": "lightctr_mpi.readers.delimited:AvazuReader",
    },
    "codec": {
        "float32": "lightctr_mpi.codecs.float32:Float32",
        "float16": "lightctr_mpi.codecs.float16:Float16",
        "int8": "lightctr_mpi.codecs.int8:Int8",
        "uniform8": "lightctr_mpi.codecs.quantile:Uniform8",
        "log8": "lightctr_mpi.codecs.quantile:Log8",
        "normal8": "lightctr_mpi.codecs.quantile:Normal8",
    },
}


def lookup(kind: str, name: str) -> Any:
    """The object registered as `name`; raises UserError that names the nearest one."""
    names = NAMES[kind]
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f", did you mean {near[0]}" if near else ""
        raise UserError(f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})")
    module, attribute = names[name].split(":")
    return getattr(importlib.import_module(module), attribute)
