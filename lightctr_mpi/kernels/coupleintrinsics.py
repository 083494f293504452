"""What couples.py names: couples of neighbouring float32 that 8 ids name, gathered and scattered.

A couple travels as one word of 64 bits. Functions named `.._end` take care of lanes behind the end of a row.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types

from .intrinsics import F32X8, intrinsic

_I8, _I32, _DOUBLE = ir.IntType(8), ir.IntType(32), ir.DoubleType()
_INTS, _WORDS = ir.VectorType(_I32, 8), ir.VectorType(_DOUBLE, 4)
_ORDER = ((0, 1, 4, 5), (2, 3, 6, 7))  # lanes of two vectors of 4 words: one shuffle then parts the couples


def _lanes(numbers):
    return ir.Constant(_INTS, list(numbers))


def _at(context, builder, array_type, array, index):
    """Pointer to an element."""
    return builder.gep(context.make_array(array_type)(context, builder, value=array).data, [index])


def _places(builder, e, last, clamp):
    """Numbers of the 8 entries."""
    places = [builder.add(e, ir.Constant(e.type, lane)) for lane in range(8)]
    if clamp:
        places = [builder.select(builder.icmp_signed("<", at, last), at, last) for at in places]
    return places


def _splat(builder, scalar):
    value = ir.Constant(_INTS, ir.Undefined)
    for lane in range(8):
        value = builder.insert_element(value, scalar, ir.Constant(_I32, lane))
    return value


def _inside(builder, e, last):
    """Which lanes belong to an entry of their own."""
    rest = builder.trunc(builder.sub(last, e), _I32)
    return builder.icmp_signed("<=", _lanes(range(8)), _splat(builder, rest))


def _load_ids(context, builder, array_type, array, e, last, clamp):
    """The 8 ids as a vector."""
    if not clamp:
        pointer = builder.bitcast(_at(context, builder, array_type, array, e), _INTS.as_pointer())
        return builder.load(pointer, align=4)
    value = ir.Constant(_INTS, ir.Undefined)
    for lane, at in enumerate(_places(builder, e, last, clamp)):
        number = builder.load(_at(context, builder, array_type, array, at))
        value = builder.insert_element(value, number, ir.Constant(_I32, lane))
    return value


def _couples(context, builder, signature, args, clamp):
    """Pointers to the 8 couples as words."""
    table, ids, e, last = args[:4]
    data = context.make_array(signature.args[0])(context, builder, value=table).data
    words = builder.bitcast(data, _DOUBLE.as_pointer())
    for at in _places(builder, e, last, clamp):
        number = builder.load(_at(context, builder, signature.args[1], ids, at))
        yield builder.gep(words, [builder.sext(number, e.type)])


def _make_load(clamp: bool):
    @intrinsic
    def load(typingctx, table, ids, e, last):
        """The first and the second floats of the couples."""

        def codegen(context, builder, signature, args):
            pointers = list(_couples(context, builder, signature, args, clamp))
            halves = []
            for lanes in _ORDER:
                half = ir.Constant(_WORDS, ir.Undefined)
                for i, lane in enumerate(lanes):
                    word = builder.load(pointers[lane], align=4)
                    half = builder.insert_element(half, word, ir.Constant(_I32, i))
                halves.append(builder.bitcast(half, F32X8.llvm))
            first = builder.shuffle_vector(*halves, _lanes([0, 2, 8, 10, 4, 6, 12, 14]))
            second = builder.shuffle_vector(*halves, _lanes([1, 3, 9, 11, 5, 7, 13, 15]))
            return context.make_tuple(builder, signature.return_type, [first, second])

        return types.UniTuple(F32X8, 2)(table, ids, types.int64, types.int64), codegen

    return load


def _make_store(clamp: bool):
    @intrinsic
    def store(typingctx, table, ids, e, last, first, second):
        """The inverse of `load`."""

        def codegen(context, builder, signature, args):
            pointers = list(_couples(context, builder, signature, args, clamp))
            low = builder.shuffle_vector(*args[4:], _lanes([0, 8, 1, 9, 4, 12, 5, 13]))
            high = builder.shuffle_vector(*args[4:], _lanes([2, 10, 3, 11, 6, 14, 7, 15]))
            for half, lanes in zip((low, high), _ORDER, strict=True):
                words = builder.bitcast(half, _WORDS)
                for i, lane in enumerate(lanes):
                    word = builder.extract_element(words, ir.Constant(_I32, i))
                    builder.store(word, pointers[lane], align=4)
            return context.get_dummy_value()

        return types.void(table, ids, types.int64, types.int64, F32X8, F32X8), codegen

    return store


load_couples, load_couples_end = _make_load(False), _make_load(True)
store_couples, store_couples_end = _make_store(False), _make_store(True)


@intrinsic
def load_end(typingctx, values, e, last):
    """values (float32) of the entries."""

    def codegen(context, builder, signature, args):
        value = ir.Constant(F32X8.llvm, ir.Undefined)
        for lane, at in enumerate(_places(builder, args[1], args[2], True)):
            number = builder.load(_at(context, builder, signature.args[0], args[0], at))
            value = builder.insert_element(value, number, ir.Constant(_I32, lane))
        return value

    return F32X8(values, types.int64, types.int64), codegen


@intrinsic
def clear_end(typingctx, x, e, last):
    """x with zeros behind the end."""

    def codegen(context, builder, signature, args):
        zero = ir.Constant(F32X8.llvm, [0.0] * 8)
        return builder.select(_inside(builder, args[1], args[2]), args[0], zero)

    return F32X8(F32X8, types.int64, types.int64), codegen


def _none(builder, mask):
    return builder.icmp_unsigned("==", builder.bitcast(mask, _I8), ir.Constant(_I8, 0))


def _make_known(clamp: bool):
    @intrinsic
    def known(typingctx, ids, e, last):
        """Whether no id is negative."""

        def codegen(context, builder, signature, args):
            numbers = _load_ids(context, builder, signature.args[0], args[0], args[1], args[2], clamp)
            return _none(builder, builder.icmp_signed("<", numbers, _lanes([0] * 8)))

        return types.boolean(ids, types.int64, types.int64), codegen

    return known


def _make_apart(clamp: bool):
    @intrinsic
    def apart(typingctx, ids, e, last, x):
        """Whether no id is negative, no x is 0 and all ids differ: the entries have no order."""

        def codegen(context, builder, signature, args):
            numbers = _load_ids(context, builder, signature.args[0], args[0], args[1], args[2], clamp)
            bad = builder.icmp_signed("<", numbers, _lanes([0] * 8))
            bad = builder.or_(bad, builder.fcmp_ordered("==", args[3], ir.Constant(F32X8.llvm, [0.0] * 8)))
            if clamp:  # repeated lanes get numbers that differ
                inside = _inside(builder, args[1], args[2])
                numbers = builder.select(inside, numbers, _lanes(range(-8, 0)))
            for turn in (1, 2, 3, 4):  # all distances around a circle of 8
                turned = builder.shuffle_vector(numbers, numbers, _lanes((i + turn) % 8 for i in range(8)))
                bad = builder.or_(bad, builder.icmp_signed("==", numbers, turned))
            return _none(builder, bad)

        return types.boolean(ids, types.int64, types.int64, F32X8), codegen

    return apart


are_known, are_known_end = _make_known(False), _make_known(True)
are_apart, are_apart_end = _make_apart(False), _make_apart(True)
