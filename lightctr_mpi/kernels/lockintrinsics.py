"""Locks that kernels on several threads or ranks take. Imported only when a kernel is compiled."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types

from .intrinsics import _address, intrinsic

_ONE, _ZERO = ir.Constant(ir.IntType(32), 1), ir.Constant(ir.IntType(32), 0)


def _is_i32_array(typ) -> bool:
    return isinstance(typ, types.Array) and typ.dtype == types.int32 and typ.layout == "C"


@intrinsic
def try_lock(typingctx, locks, at):
    """Set locks[at] (int32) to 1; returns whether it was 0. What others wrote under the lock is seen."""
    if not (_is_i32_array(locks) and isinstance(at, types.Integer)):
        return None

    def codegen(context, builder, signature, args):
        place = _address(context, builder, signature.args[0], args[0], args[1], signature.args[1])
        before = builder.atomic_rmw("xchg", place, _ONE, "acquire")
        return builder.icmp_signed("==", before, _ZERO)

    return types.boolean(locks, at), codegen


@intrinsic
def unlock(typingctx, locks, at):
    """Set locks[at] (int32) to 0, after all that was written under the lock."""
    if not (_is_i32_array(locks) and isinstance(at, types.Integer)):
        return None

    def codegen(context, builder, signature, args):
        place = _address(context, builder, signature.args[0], args[0], args[1], signature.args[1])
        builder.store_atomic(_ZERO, place, "release", align=4)
        return context.get_dummy_value()

    return types.void(locks, at), codegen
