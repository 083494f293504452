"""How kernels are compiled and where the machine code is kept. The one module that imports Numba.

Rules for kernels:

* One signature per kernel. Callers hand writable, C-contiguous arrays of the documented dtypes: Numba takes a
  read-only array for another type and would compile the kernel again (`own` makes an array fit).
* No eager signatures: a run compiles what it uses.
* A kernel made by a factory closes over ints, floats and strings only. A closure over another compiled
  function changes the key of the disk cache in every process; such functions are named at module level.

The disk cache lies in a folder of this user on this node, named by a digest of everything the machine code
depends on, because Numba itself looks only at the file that holds the kernel: a helper changed in another
file, another compiler flag or another CPU would go unnoticed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np

# Environment variables that change the code Numba generates, but not the key of its cache.
_ENVIRONMENT = (
    "NUMBA_BOUNDSCHECK",
    "NUMBA_OPT",
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
    "NUMBA_SLP_VECTORIZE",
)


def _digest() -> str:
    """Name of the cache folder: sources of the kernels, Numba, Python, CPU and flags."""
    from importlib.metadata import version

    parts = [version("numba"), version("llvmlite"), platform.python_version(), platform.machine()]
    parts += [llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()]
    parts += [f"{name}={os.environ.get(name, '')}" for name in _ENVIRONMENT]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=10)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _is_private(folder: Path) -> bool:
    """Whether nobody but this user can put machine code into the folder."""
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _choose_cache_dir() -> Path:
    """LIGHTCTR_CACHE_DIR, or a private folder in the node's temporary directory."""
    chosen = os.environ.get("LIGHTCTR_CACHE_DIR")
    if chosen:
        base = Path(chosen).expanduser().absolute()
    else:
        base = Path(tempfile.gettempdir()) / f"lightctr_mpi-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if chosen or _is_private(base):
            folder = base / _digest()
            folder.mkdir(mode=0o700, exist_ok=True)
            return folder
    except OSError:
        pass  # a full or read-only disk costs compile time, not the run
    return Path(tempfile.mkdtemp(prefix="lightctr_mpi-"))


CACHE_DIR = _choose_cache_dir()
os.environ["NUMBA_CACHE_DIR"] = str(CACHE_DIR)  # Numba reads it when it is imported


def _import_numba() -> Any:
    """Numba, without its search for SciPy's BLAS, which no kernel uses.

    The search imports scipy.linalg, a sixth of the time that the program takes to start.
    """
    hidden: dict[str, Any] = {name: None for name in ("scipy", "scipy.linalg") if name not in sys.modules}
    sys.modules.update(hidden)  # None: cannot be imported
    try:
        import numba
        import numba.np.arraymath  # searches when it is imported, which else is at the first kernel
    finally:
        for name in hidden:
            del sys.modules[name]
    return numba


numba = _import_numba()
# In case somebody imported Numba before us.
numba.config.CACHE_DIR = str(CACHE_DIR)  # type: ignore[attr-defined]

# Sums may be reordered and fused, so that they vectorise; NaN and infinity keep their meaning, so that a
# diverged run is noticed.
FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}

jit: Any = numba.njit(fastmath=FAST, **_OPTIONS)
jit_exact: Any = numba.njit(**_OPTIONS)
inline: Any = numba.njit(fastmath=FAST, inline="always", **_OPTIONS)
inline_exact: Any = numba.njit(inline="always", **_OPTIONS)


def own(array: np.ndarray, dtype: type | np.dtype | str) -> np.ndarray:
    """The array itself if it is writable, C-contiguous and of this dtype, else a private copy that is."""
    return np.require(array, dtype, requirements=("C_CONTIGUOUS", "WRITEABLE", "ALIGNED"))
