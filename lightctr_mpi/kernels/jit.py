"""How kernels are compiled and where the machine code is kept. With intrinsics.py the one module that imports
Numba, and only when there is something to compile: what is in the cache runs without (native.py).

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

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np

from . import native

# Environment variables that change the code Numba generates, but not the key of its cache.
_ENVIRONMENT = (
    "NUMBA_BOUNDSCHECK",
    "NUMBA_OPT",
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
    "NUMBA_SLP_VECTORIZE",
)


def _version(package: str) -> str:
    """Version of a package, as its own file says (importlib.metadata takes 30 ms for it); "" without one."""
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        with contextlib.suppress(OSError):
            return place + Path(place, "_version.py").read_text()
    return ""


def _digest() -> str:
    """Name of the cache folder: sources of the kernels, Numba, Python, CPU and flags."""
    parts = [_version("numba"), _version("llvmlite"), platform.python_version(), platform.machine()]
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

# Sums may be reordered and fused, so that they vectorise; NaN and infinity keep their meaning, so that a
# diverged run is noticed.
FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
# Numba checks more, or compiles nothing: it is to run everything itself.
_WATCHED = any(
    os.environ.get(name, "0") not in ("", "0") for name in ("NUMBA_BOUNDSCHECK", "NUMBA_DISABLE_JIT")
)


@functools.cache
def _numba() -> Any:
    """Numba, without its search for SciPy's BLAS.

    The search imports scipy.linalg, which no kernel calls.
    """
    hidden: dict[str, Any] = {name: None for name in ("scipy", "scipy.linalg") if name not in sys.modules}
    sys.modules.update(hidden)  # None: cannot be imported
    try:
        import numba
        import numba.np.arraymath  # searches when it is imported, which else is at the first kernel
    finally:
        for name in hidden:
            del sys.modules[name]
    # In case somebody imported Numba before us.
    numba.config.CACHE_DIR = str(CACHE_DIR)  # type: ignore[attr-defined]
    return numba


_LOADING = threading.RLock()  # LLVM's linker takes one piece of code after the other


class Kernel:
    """A function that is compiled for the types of its arguments when it is first called with them.

    Called from Python, it is taken from the cache of machine code if it is there. Called by another kernel
    that is being compiled, it passes for the function that Numba makes of it.

    Attributes:
        py_func: the function as written.
        signatures: a description of the arguments for each combination of types it was called with.
    """

    def __init__(self, function: Callable, options: dict[str, Any]):
        functools.update_wrapper(self, function)
        self.py_func, self._options = function, options
        self._calls: dict[Any, native.Call] = {}

    def __call__(self, *args: Any) -> Any:
        try:
            key = native.describe(args)
        except native.Foreign:
            return self.dispatcher(*args)
        return (self._calls.get(key) or self._call_for(key, args))(args)

    def fixed(self, *args: Any) -> Callable[[], Any]:
        """The call with these arguments, to be made many times: arrays are read anew, but not looked at."""
        try:
            call = self._call_for(native.describe(args), args)
        except native.Foreign:
            return lambda: self.dispatcher(*args)
        fix = getattr(call, "fix", None)
        return fix(args) if fix else lambda: call(args)

    def _call_for(self, key: tuple, args: tuple) -> native.Call:
        call = self._calls.get(key)
        if call is None:
            with _LOADING:
                call = self._calls.get(key) or self._find(key, args)
                self._calls[key] = call
        return call

    @property
    def signatures(self) -> list[Any]:
        own = list(self._calls)
        return own or (self.dispatcher.signatures if "dispatcher" in self.__dict__ else [])

    @functools.cached_property
    def dispatcher(self) -> Any:
        """What Numba makes of the function."""
        return _numba().njit(**self._options)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dispatcher, name)

    def _find(self, key: tuple, args: tuple) -> native.Call:
        """From the cache, or compiled and put there."""
        path = None if _WATCHED or not native.passable(key) else self._path(key)
        if path is not None and (call := native.load(path, key)):
            return call
        dispatcher = self.dispatcher
        if path is not None:
            types = tuple(dispatcher.typeof_pyval(arg) for arg in args)
            dispatcher.compile(types)
            native.export(dispatcher.overloads[types], key, path)
        return lambda args: dispatcher(*args)

    def _path(self, key: tuple) -> Path | None:
        """File of the machine code; None for a closure over more than numbers and strings."""
        closed = [cell.cell_contents for cell in self.py_func.__closure__ or ()]
        if not all(isinstance(value, (int, float, str)) for value in closed):
            return None
        options = sorted((name, str(value)) for name, value in self._options.items() if name != "fastmath")
        what = (self.py_func.__module__, self.__qualname__, closed, options, "fastmath" in self._options, key)
        digest = hashlib.blake2b(repr(what).encode(), digest_size=10).hexdigest()
        return CACHE_DIR / f"native-{self.__name__}-{digest}"


class Intrinsic:
    """Stands for a function of intrinsics.py (or another `home`) in kernels, until one is compiled."""

    def __init__(self, name: str, home: str = "intrinsics"):
        self.name, self._home = name, home

    def __call__(self, *args: Any) -> Any:
        raise NotImplementedError(f"{self.name} can only be called by a kernel")

    @property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        home = importlib.import_module(f".{self._home}", __package__)
        context = cpu_target.typing_context
        context.refresh()  # takes in what the import has registered
        return context.resolve_value_type(getattr(home, self.name))


def _decorator(**options: Any) -> Any:
    return functools.partial(Kernel, options=_OPTIONS | options)


jit: Any = _decorator(fastmath=FAST)
jit_exact: Any = _decorator()
inline: Any = _decorator(fastmath=FAST, inline="always")
inline_exact: Any = _decorator(inline="always")


def own(array: np.ndarray, dtype: type | np.dtype | str) -> np.ndarray:
    """The array itself if it is writable, C-contiguous and of this dtype, else a private copy that is."""
    return np.require(array, dtype, requirements=("C_CONTIGUOUS", "WRITEABLE", "ALIGNED"))
