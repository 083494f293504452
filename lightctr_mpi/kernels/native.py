"""Machine code of kernels on disk, called without Numba: loading Numba takes longer than many a run.

Numba compiles a kernel; `export` keeps its object code with what is needed to call it, and in later processes
`load` links that with LLVM alone and calls it through ctypes. What is called is Numba's own function, in its
calling convention: (pointer to the result, pointer to the exception, arguments) -> status, where an array is
(owner, parent, number of elements, bytes of one, address, shape, strides), a tuple its items in a row.
It is called through an entry of ours that takes all of this from one buffer.
`export` compares this with what Numba says of each function and keeps nothing that looks different, so that
with another convention kernels run as Numba runs them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import itertools
import json
import os
import platform
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

Call = Callable[[tuple], Any]
_NRT = "numba.core.runtime._nrt_python"  # the extension module with Numba's allocator
_ARRAY = ("meminfo", "parent", "nitems", "itemsize", "data", "shape", "strides")

# Python's and NumPy's scalars: (LLVM's type, that of ctypes, Numba's name).
_BOOL = ("i8", ctypes.c_bool, "bool")
_SCALARS: dict[type, tuple[str, Any, str]] = {
    int: ("i64", ctypes.c_int64, "int64"),
    float: ("double", ctypes.c_double, "float64"),
    bool: _BOOL,
    np.bool_: _BOOL,
    np.float32: ("float", ctypes.c_float, "float32"),
    np.float64: ("double", ctypes.c_double, "float64"),
}
for _bits in (8, 16, 32, 64):
    for _sign in ("int", "uint"):
        _name = f"{_sign}{_bits}"
        _SCALARS[getattr(np, _name)] = (f"i{_bits}", getattr(ctypes, f"c_{_name}"), _name)
_RESULTS = {name: kind for _, kind, name in _SCALARS.values()} | {"boolean": ctypes.c_bool}
# How `struct` packs each into 8 bytes.
_CODES = {ctypes.c_bool: "?7x", ctypes.c_float: "f4x", ctypes.c_double: "d", ctypes.c_void_p: "Q"}
for _code, _bits in zip("bhiq", (8, 16, 32, 64), strict=True):
    _rest = f"{8 - _bits // 8}x" if _bits < 64 else ""
    _CODES[getattr(ctypes, f"c_int{_bits}")] = _code + _rest
    _CODES[getattr(ctypes, f"c_uint{_bits}")] = _code.upper() + _rest
_ENTRY = "from_buffer_"  # before the name of the function that takes its arguments from a buffer
_PLAIN = (int, float, bool)  # ctypes takes these as they are


# Bits of numpy.ndarray.flags.num: C-contiguous and aligned; writeable.
_PLAIN_MEMORY, _WRITEABLE = 0x101, 0x400


class Foreign(Exception):
    """An argument that only Numba knows how to pass."""


def describe(arg: Any) -> Any:
    """What decides how an argument is passed, hashable; raises Foreign."""
    kind = type(arg)
    if kind is np.ndarray:
        flags = arg.flags.num
        if flags & _PLAIN_MEMORY == _PLAIN_MEMORY:
            return arg.dtype, arg.ndim, flags & _WRITEABLE
    elif kind is tuple:
        return tuple([describe(item) for item in arg])
    elif kind in _SCALARS and (kind is not int or -(2**63) <= arg < 2**63):
        return kind
    raise Foreign


def passable(key: tuple) -> bool:
    """Whether the elements of all arrays are numbers in this machine's order of bytes."""
    return all(
        passable(item) if not isinstance(item[0], np.dtype) else item[0].isnative and item[0].kind in "iufb"
        for item in key
        if isinstance(item, tuple) and item
    )


def _unpacking(key: tuple, names: Iterator[str], passed: list[str]) -> str:
    """Target that takes a tuple of arguments apart; `passed` gets the expressions passed for them."""
    parts = []
    for item in key:
        if isinstance(item, tuple) and not (item and isinstance(item[0], np.dtype)):
            parts.append(_unpacking(item, names, passed))
            continue
        name = next(names)
        parts.append(name)
        if not isinstance(item, tuple):
            passed.append(name if item in _PLAIN else f"{name}.item()")
        elif item[1] == 1:  # by far the most
            size = item[0].itemsize
            passed.append(f"0, 0, len({name}), {size}, {name}.ctypes.data, len({name}), {size}")
        else:
            head = f"0, 0, {name}.size, {name}.itemsize, {name}.ctypes.data"
            passed.append(f"{head}, *{name}.shape, *{name}.strides")
    return "(" + "".join(f"{part}, " for part in parts) + ")"


def _make_flatten(key: tuple) -> Callable[[tuple, Any, Any], tuple]:
    """Function of (arguments, result, problem) that gives all that is passed, written out for this key."""
    passed: list[str] = []
    target = _unpacking(key, (f"a{i}" for i in itertools.count()), passed)
    unpack = f"    {target} = args\n" if key else ""
    space: dict[str, Any] = {}
    exec(f"def flatten(args, *heads):\n{unpack}    return (*heads, {', '.join(passed)})", space)
    return space["flatten"]


def _passed(key: tuple) -> Iterator[tuple[str, Any]]:
    """(LLVM's type, that of ctypes) of what is passed for arguments of this description."""
    for item in key:
        if not isinstance(item, tuple):
            yield _SCALARS[item][:2]
        elif item and isinstance(item[0], np.dtype):
            yield from [("ptr", ctypes.c_void_p)] * 2
            yield from [("i64", ctypes.c_int64)] * 2
            yield "ptr", ctypes.c_void_p
            yield from [("i64", ctypes.c_int64)] * (2 * item[1])
        else:
            yield from _passed(item)


def _llvm_name(kind: Any) -> str:
    return "ptr" if kind.is_pointer else str(kind)


def _conforms(result: Any, key: tuple) -> list[str] | None:
    """Names of the types that a compiled function returns, if it can be called as said above, else None.

    Args:
        result: Numba's CompileResult.
        key: description of the arguments.
    """
    context, signature = result.target_context, result.signature
    models, convention = context.data_model_manager, context.call_conv
    function = convention.get_function_type(signature.return_type, signature.args)
    passed = [_llvm_name(kind) for kind in function.args]
    if passed != ["ptr", "ptr", *(name for name, _ in _passed(key))] or str(function.return_type) != "i32":
        return None
    stack = list(signature.args)
    while stack:
        kind = stack.pop()
        stack += getattr(kind, "types", ())
        if type(kind).__name__ == "Array" and tuple(models[kind]._fields) != _ARRAY:
            return None
    returned = signature.return_type
    names = [str(kind) for kind in getattr(returned, "types", [returned])]
    if names == ["none"]:
        return []
    tuples = type(returned).__name__ in ("Tuple", "UniTuple")
    return names if all(name in _RESULTS for name in names) and (tuples or len(names) == 1) else None


def _bare(module: Any, symbol: str) -> Any:
    """A copy of an LLVM module with one function and what it calls, without Numba's wrappers for Python."""
    bare = llvm.parse_bitcode(module.as_bitcode())
    for function in bare.functions:
        if not function.is_declaration:
            function.linkage = llvm.Linkage.external if function.name == symbol else llvm.Linkage.internal
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(bare, llvm.create_pass_builder(_machine(), llvm.create_pipeline_tuning_options()))
    return bare


def _add_entry(module: Any, function: Any, symbol: str) -> None:
    """Add a function to the module that takes the arguments of another from a buffer, 8 bytes for each.

    One pointer instead of dozens of arguments: ctypes takes a quarter of a microsecond for each.
    """
    from llvmlite import ir

    byte, extra = ir.IntType(8), ir.Module()
    extra.triple, extra.data_layout = module.triple, module.data_layout
    callee = ir.Function(extra, function, symbol)
    entry = ir.Function(extra, ir.FunctionType(ir.IntType(32), [byte.as_pointer()]), _ENTRY + symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    args = []
    for i, kind in enumerate(function.args):
        place = builder.gep(entry.args[0], [ir.Constant(ir.IntType(64), 8 * i)])
        args.append(builder.load(builder.bitcast(place, kind.as_pointer())))
    builder.ret(builder.call(callee, args))
    module.link_in(llvm.parse_assembly(str(extra)))


def export(result: Any, key: tuple, path: Path) -> None:
    """Keep a compiled function for `load`; does nothing if it is one that has to be called by Numba.

    Args:
        result: Numba's CompileResult; key: description of the arguments.
    """
    with contextlib.suppress(Exception):  # whatever is different in another Numba
        names = _conforms(result, key)
        if names is None:
            return
        symbol = result.fndesc.llvm_func_name
        module = _bare(result.library._get_module_for_linking(), symbol)
        convention, signature = result.target_context.call_conv, result.signature
        _add_entry(module, convention.get_function_type(signature.return_type, signature.args), symbol)
        functions = [f for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
        variables = [v for v in module.global_variables if v.is_declaration]
        head = {
            "symbol": _ENTRY + symbol,
            "needs": [item.name for item in functions + variables],
            "returns": names,
            "tuple": type(result.signature.return_type).__name__ in ("Tuple", "UniTuple"),
        }
        code = _machine().emit_object(module)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".native-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(head).encode() + b"\n" + code)
            os.replace(partial, path)
        except OSError:
            Path(partial).unlink(missing_ok=True)


def load(path: Path, key: tuple) -> Call | None:
    """The function that `export` has kept, to be called with the tuple of its arguments; None without one."""
    try:
        line, _, code = path.read_bytes().partition(b"\n")
        head = json.loads(line)
        engine = _engine()  # with it, LLVM knows the symbols of this process
        if any(name.startswith("NRT_") for name in head["needs"]):
            _add_allocator()
        if not all(llvm.address_of_symbol(name) for name in head["needs"]):
            return None
        engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address = engine.get_function_address(head["symbol"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError):
        return None
    return _bind(address, key, head["returns"], head["tuple"], path.name) if address else None


def _bind(address: int, key: tuple, returns: list[str], as_tuple: bool, name: str) -> Call:
    passed = [kind for _, kind in _passed(key)]
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p)(address)
    pack = struct.Struct("=QQ" + "".join(_CODES[kind] for kind in passed)).pack
    fields = [(f"r{i}", _RESULTS[kind]) for i, kind in enumerate(returns)] or [("r0", ctypes.c_void_p)]
    names = [field for field, _ in fields]
    structure = type("Result", (ctypes.Structure,), {"_fields_": fields})
    address_of, nothing, flatten = ctypes.addressof, not returns, _make_flatten(key)

    def call(args: tuple) -> Any:
        result, problem = structure(), ctypes.c_void_p()
        if function(pack(*flatten(args, address_of(result), address_of(problem)))):
            raise MemoryError(f"no memory for the work space of a kernel ({name})")
        if nothing:
            return None
        values = [getattr(result, field) for field in names]
        return tuple(values) if as_tuple else values[0]

    def fix(args: tuple) -> Callable[[], None]:
        result, problem = structure(), ctypes.c_void_p()
        packed = pack(*flatten(args, address_of(result), address_of(problem)))

        def again(_kept: Any = (args, result, problem)) -> None:
            if function(packed):
                raise MemoryError(f"no memory for the work space of a kernel ({name})")

        return again

    call.fix = fix  # type: ignore[attr-defined]
    return call


@functools.cache
def _machine() -> Any:
    """This CPU, with all it can do, as Numba compiles for it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if platform.machine() in ("x86_64", "AMD64") else "default",
        codemodel="jitdefault",
        jit=True,
    )


@functools.cache
def _engine() -> Any:
    """LLVM's linker for code in memory."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())


@functools.cache
def _add_allocator() -> None:
    """Make Numba's allocator known to LLVM, without the rest of Numba; raises ImportError."""
    module = sys.modules.get(_NRT)
    if module is None:
        package = importlib.util.find_spec("numba")
        places = package.submodule_search_locations if package else None
        folder = Path(places[0], "core", "runtime") if places else Path()
        paths = [path for suffix in EXTENSION_SUFFIXES if (path := folder / f"_nrt_python{suffix}").exists()]
        spec = importlib.util.spec_from_file_location(_NRT, paths[0]) if paths else None
        if spec is None or spec.loader is None:
            raise ImportError(_NRT)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[_NRT] = module  # Numba, if it is needed later, is to use the same
    for name, address in module.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
