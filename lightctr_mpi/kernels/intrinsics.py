"""What kernels say to LLVM directly: vectors of 4 or 8 float32 lanes, prefetch, words of 8 bytes.

Only compiling needs this module, and it needs Numba: kernels name the functions through simd.py and words.py.

LLVM vectorises a plain loop over k = 4 or 8 factors badly: the trip count is unknown or so small that the
loop is unrolled into scalars. Kernels on factors name the vectors themselves. On a CPU without 8-lane
registers LLVM splits an operation into two.

`load` and `store` take a C-contiguous float32 array of any number of dimensions and the offset in elements
from its start; neither checks bounds, and addresses need no alignment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import models, register_model

_FLAGS = ("reassoc", "contract", "arcp", "nsz", "afn")
_FLOAT = ir.FloatType()
_I32 = ir.IntType(32)


def intrinsic(function: Callable) -> Any:
    """Numba's decorator; kernels call the result without the typing context, which type checkers cannot
    know."""
    return numba.extending.intrinsic(function)


class Vector(types.Type):
    """Numba type of `lanes` float32 values in one register."""

    def __init__(self, lanes: int):
        self.lanes = lanes
        super().__init__(name=f"f32x{lanes}")

    @property
    def llvm(self):
        return ir.VectorType(_FLOAT, self.lanes)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm)


F32X4, F32X8 = Vector(4), Vector(8)


def _address(context, builder, array_type, array, offset, offset_type):
    """Pointer to the element `offset` places behind the array's first."""
    data = context.make_array(array_type)(context, builder, value=array).data
    index = context.cast(builder, offset, offset_type, types.intp)
    return builder.gep(data, [index])


def _is_f32_array(typ) -> bool:
    return isinstance(typ, types.Array) and typ.dtype == types.float32 and typ.layout == "C"


def _make_load(vector: Vector):
    @intrinsic
    def load(typingctx, array, offset):
        if not (_is_f32_array(array) and isinstance(offset, types.Integer)):
            return None

        def codegen(context, builder, signature, args):
            pointer = _address(context, builder, signature.args[0], args[0], args[1], signature.args[1])
            value = builder.load(builder.bitcast(pointer, vector.llvm.as_pointer()))
            value.align = 4
            return value

        return vector(array, offset), codegen

    return load


def _make_store(vector: Vector):
    @intrinsic
    def store(typingctx, array, offset, value):
        if not (_is_f32_array(array) and isinstance(offset, types.Integer) and value == vector):
            return None

        def codegen(context, builder, signature, args):
            pointer = _address(context, builder, signature.args[0], args[0], args[1], signature.args[1])
            builder.store(args[2], builder.bitcast(pointer, vector.llvm.as_pointer())).align = 4
            return context.get_dummy_value()

        return types.void(array, offset, value), codegen

    return store


def _make_splat(vector: Vector):
    @intrinsic
    def splat(typingctx, scalar):
        if scalar != types.float32:
            return None

        def codegen(context, builder, signature, args):
            value = ir.Constant(vector.llvm, ir.Undefined)
            for lane in range(vector.lanes):
                value = builder.insert_element(value, args[0], ir.Constant(_I32, lane))
            return value

        return vector(scalar), codegen

    return splat


def _make_total(vector: Vector):
    @intrinsic
    def total(typingctx, value):
        if value != vector:
            return None

        def codegen(context, builder, signature, args):
            name = f"llvm.vector.reduce.fadd.v{vector.lanes}f32"
            kind = ir.FunctionType(_FLOAT, [_FLOAT, vector.llvm])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.call(function, [ir.Constant(_FLOAT, 0.0), args[0]], fastmath=_FLAGS)

        return types.float32(value), codegen

    return total


load4, load8 = _make_load(F32X4), _make_load(F32X8)
store4, store8 = _make_store(F32X4), _make_store(F32X8)
splat4, splat8 = _make_splat(F32X4), _make_splat(F32X8)
total4, total8 = _make_total(F32X4), _make_total(F32X8)


@intrinsic
def join(typingctx, low, high):
    """Vector of 8 lanes of two of 4."""
    if not low == high == F32X4:
        return None

    def codegen(context, builder, signature, args):
        lanes = ir.Constant(ir.VectorType(_I32, 8), list(range(8)))
        return builder.shuffle_vector(args[0], args[1], lanes)

    return F32X8(low, high), codegen


def _make_half(first: int):
    @intrinsic
    def half(typingctx, value):
        if value != F32X8:
            return None

        def codegen(context, builder, signature, args):
            lanes = ir.Constant(ir.VectorType(_I32, 4), list(range(first, first + 4)))
            return builder.shuffle_vector(args[0], ir.Constant(F32X8.llvm, ir.Undefined), lanes)

        return F32X4(value), codegen

    return half


low, high = _make_half(0), _make_half(4)


def _binary(name: str):
    @intrinsic
    def operation(typingctx, a, b):
        if not (isinstance(a, Vector) and a == b):
            return None

        def codegen(context, builder, signature, args):
            return getattr(builder, name)(args[0], args[1], flags=_FLAGS)

        return a(a, b), codegen

    return operation


add, sub, mul, div = _binary("fadd"), _binary("fsub"), _binary("fmul"), _binary("fdiv")


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c, fused where the CPU can."""
    if not (isinstance(a, Vector) and a == b == c):
        return None

    def codegen(context, builder, signature, args):
        return builder.fadd(builder.fmul(args[0], args[1], flags=_FLAGS), args[2], flags=_FLAGS)

    return a(a, b, c), codegen


@intrinsic
def sqrt(typingctx, a):
    """Square root of each lane; x / sqrt(y) becomes the CPU's reciprocal square root and one Newton step."""
    if not isinstance(a, Vector):
        return None

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(a.llvm, [a.llvm])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{a.lanes}f32")
        return builder.call(function, [args[0]], fastmath=_FLAGS)

    return a(a), codegen


def _estimates_rsqrt(context) -> bool:
    """Whether the code is for an x86 CPU with AVX."""
    triple, _, features = context.codegen().magic_tuple()
    return triple.startswith(("x86_64", "i386", "i686")) and "+avx" in features.split(",")


@intrinsic
def rsqrt(typingctx, a):
    """1 / sqrt(a) of each lane, for normal numbers above 0; a relative error of about 2e-7 at most.

    With AVX the CPU's estimate e of 12 bits and one Newton step, e (3/2 - a e^2 / 2), which LLVM chooses for
    x / sqrt(y) on some CPUs only; elsewhere square root and division. 0 and infinity give NaN with AVX.
    """
    if not isinstance(a, Vector):
        return None

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(a.llvm, [a.llvm])

        def call(name, **flags):
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.call(function, [args[0]], **flags)

        def constant(number):
            return ir.Constant(a.llvm, [number] * a.lanes)

        if not _estimates_rsqrt(context):
            root = call(f"llvm.sqrt.v{a.lanes}f32", fastmath=_FLAGS)
            return builder.fdiv(constant(1.0), root, flags=_FLAGS)
        e = call("llvm.x86.avx.rsqrt.ps.256" if a.lanes == 8 else "llvm.x86.sse.rsqrt.ps")
        # Contracted, but not reassociated: (a e) e is near 1, where a (e e) could overflow for small a.
        minus_half = builder.fmul(args[0], constant(-0.5))
        square = builder.fmul(builder.fmul(minus_half, e), e, flags=("contract",))
        correction = builder.fadd(square, constant(1.5), flags=("contract",))
        return builder.fmul(e, correction)

    return a(a), codegen


@intrinsic
def prefetch(typingctx, array, offset):
    """Ask for the cache line of element `offset`, to be read; any address is harmless."""
    if not (isinstance(array, types.Array) and isinstance(offset, types.Integer)):
        return None

    def codegen(context, builder, signature, args):
        pointer = _address(context, builder, signature.args[0], args[0], args[1], signature.args[1])
        byte_pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        write, keep, data = (ir.Constant(_I32, number) for number in (0, 3, 1))
        builder.call(function, [builder.bitcast(pointer, byte_pointer), write, keep, data])
        return context.get_dummy_value()

    return types.void(array, offset), codegen


@intrinsic
def sign(typingctx, a):
    """-1, 0 or 1 in each lane."""
    if not isinstance(a, Vector):
        return None

    def codegen(context, builder, signature, args):
        zero, one = ir.Constant(a.llvm, [0.0] * a.lanes), ir.Constant(a.llvm, [1.0] * a.lanes)
        above = builder.select(builder.fcmp_ordered(">", args[0], zero), one, zero)
        below = builder.select(builder.fcmp_ordered("<", args[0], zero), one, zero)
        return builder.fsub(above, below, flags=_FLAGS)

    return a(a), codegen


@intrinsic
def word_at(typingctx, data, at):
    """The 8 bytes of data (uint8[]) from position `at` on as a little-endian number: a single load."""

    def codegen(context, builder, signature, args):
        start = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        place = builder.gep(start, [args[1]])
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)
        return word if sys.byteorder == "little" else builder.bswap(word)

    return types.uint64(data, types.uint64), codegen


@intrinsic
def trailing_zeros(typingctx, word):
    """Zero bits of a uint64, not 0, below its lowest one."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen
