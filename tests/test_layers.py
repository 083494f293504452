"""Imports point one way: each layer knows only layers below it or beside it (docs/architecture.md)."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import lightctr_mpi

PACKAGE = Path(lightctr_mpi.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# From the bottom up. What is not listed is part of the commands on top, which nothing below may import.
TIERS = (
    {"errors"},
    {"config", "registry", "defaults", "optiontable", "usage", "flags", "options", "settle", "threads"},
    {"kernels", "block", "comm", "inorder"},
    {"models", "optim", "codecs", "readers", "scores", "metrics", "planted"},
    {"rowstore", "checkpoint", "shard", "compact", "hot", "report"},
    {"bound", "modelfile", "stores", "input", "unseen"},
    {"ring", "ps", "train"},
)
STANDARD_LIBRARY_ONLY = TIERS[0] | TIERS[1]  # so that --help and errors are instant
ONLY_ARRAYS = {
    "kernels",
    "models",
    "optim",
    "codecs",
    "readers",
    "block",
    "shard",
    "compact",
    "hot",
}  # no messages between ranks


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def layer_of(path: Path) -> str:
    """Top folder below the package, or the module in it: "kernels", "mpi"."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def tier_of(layer: str) -> int:
    return next((i for i, layers in enumerate(TIERS) if layer in layers), len(TIERS))


def imports(path: Path) -> set[str]:
    """Absolute dotted names of everything a module imports, at any depth of its code."""
    package = ["lightctr_mpi", *path.relative_to(PACKAGE).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def outside(names: set[str]) -> set[str]:
    """Imported libraries."""
    return {name.split(".")[0] for name in names} - {"lightctr_mpi", "__future__"}


def inside(names: set[str]) -> set[str]:
    """Imported layers of the package; names of the package itself (its version) are none."""
    layers = {layer_of(path) for path in MODULES}
    return {name.split(".")[1] for name in names if name.startswith("lightctr_mpi.")} & layers


def test_how_imports_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "ring").mkdir()
    path = tmp_path / "ring" / "store.py"
    path.write_text(
        "import os.path\nfrom ..kernels import sparse\nfrom . import x\ndef f():\n from mpi4py import MPI\n"
    )
    expected = {"os.path", "lightctr_mpi.kernels.sparse", "lightctr_mpi.ring.x", "mpi4py.MPI"}
    assert imports(path) == expected
    assert outside(expected) == {"os", "mpi4py"}
    assert layer_of(path) == "ring" and name_of(path) == "ring/store.py"


def test_there_is_something_to_look_at():
    names = {name_of(path) for path in MODULES}
    assert {"mpi.py", "kernels/jit.py", "ring/reduce_scatter.py"} <= names
    assert "comm" in inside(imports(PACKAGE / "mpi.py"))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_layering(path):
    layer, names = layer_of(path), imports(path)
    libraries, layers = outside(names), inside(names)
    higher = {other for other in layers - {layer} if tier_of(other) > tier_of(layer)}
    assert not higher, f"{name_of(path)} imports from above"
    if name_of(path) != "mpi.py":
        assert "mpi4py" not in libraries
    if layer != "kernels":
        assert not libraries & {"numba", "llvmlite"}
    if layer in STANDARD_LIBRARY_ONLY:
        assert libraries <= sys.stdlib_module_names
    if layer in ONLY_ARRAYS:
        assert "comm" not in layers
