"""What blocks.py names, in LLVM's terms. Imported only when a kernel is compiled."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types

from .intrinsics import F32X4, F32X8, Vector, _is_f32_array, intrinsic

FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
_FLOAT, _I32 = ir.FloatType(), ir.IntType(32)
_ELEMENT = {FLOAT32: _FLOAT, FLOAT16: ir.HalfType(), BFLOAT16: ir.IntType(16)}
_BITS = {FLOAT32: 32, FLOAT16: 16, BFLOAT16: 16}
_CUT = {FLOAT16: 13, BFLOAT16: 16}  # bits of the mantissa that are lost
F32X2 = Vector(2)
_VECTORS = {2: F32X2, 4: F32X4, 8: F32X8}
_STEP = 0x9E3779B1  # 2^32 divided by the golden ratio: an additive sequence of low discrepancy


def _widen(builder, raw, lanes, kind):
    """float32 lanes of stored ones."""
    floats = ir.VectorType(_FLOAT, lanes)
    if kind == FLOAT16:
        return builder.fpext(raw, floats)
    if kind == BFLOAT16:
        ints = ir.VectorType(_I32, lanes)
        shift = ir.Constant(ints, [16] * lanes)
        return builder.bitcast(builder.shl(builder.zext(raw, ints), shift), floats)
    return raw


def _narrow(builder, value, noise, lanes, kind):
    """Stored lanes of float32 ones, rounded up with the probability of what is cut off."""
    if kind == FLOAT32:
        return value
    ints = ir.VectorType(_I32, lanes)
    cut = _CUT[kind]
    bits = builder.add(builder.bitcast(value, ints), builder.bitcast(noise, ints))
    if kind == BFLOAT16:
        high = builder.lshr(bits, ir.Constant(ints, [16] * lanes))
        return builder.trunc(high, ir.VectorType(ir.IntType(16), lanes))
    kept = builder.and_(bits, ir.Constant(ints, [(0xFFFFFFFF << cut) & 0xFFFFFFFF] * lanes))
    floats = builder.bitcast(kept, ir.VectorType(_FLOAT, lanes))
    return builder.fptrunc(floats, ir.VectorType(ir.HalfType(), lanes))


def _lanes(numbers):
    numbers = list(numbers)
    return ir.Constant(ir.VectorType(_I32, len(numbers)), numbers)


def _place(builder, array, at, kind):
    """Pointer to the number `at` of the kind."""
    return builder.gep(builder.bitcast(array, _ELEMENT[kind].as_pointer()), [at])


def _data(context, builder, typ, value):
    return context.make_array(typ)(context, builder, value=value).data


def _read(builder, pointer, typ, kind):
    value = builder.load(builder.bitcast(pointer, typ.as_pointer()))
    value.align = _BITS[kind] // 8
    return value


def _write(builder, pointer, value, kind):
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = _BITS[kind] // 8


def _make_load(kind: int, lanes: int):
    vector = _VECTORS[lanes]

    @intrinsic
    def load(typingctx, table, at):
        if not (_is_f32_array(table) and isinstance(at, types.Integer)):
            return None

        def codegen(context, builder, signature, args):
            index = context.cast(builder, args[1], signature.args[1], types.intp)
            pointer = _place(builder, _data(context, builder, signature.args[0], args[0]), index, kind)
            raw = _read(builder, pointer, ir.VectorType(_ELEMENT[kind], lanes), kind)
            return _widen(builder, raw, lanes, kind)

        return vector(table, at), codegen

    return load


def _make_store(kind: int, lanes: int):
    vector = _VECTORS[lanes]

    @intrinsic
    def store(typingctx, table, at, value, noise):
        if not (_is_f32_array(table) and isinstance(at, types.Integer) and value == noise == vector):
            return None

        def codegen(context, builder, signature, args):
            index = context.cast(builder, args[1], signature.args[1], types.intp)
            pointer = _place(builder, _data(context, builder, signature.args[0], args[0]), index, kind)
            _write(builder, pointer, _narrow(builder, args[2], args[3], lanes, kind), kind)
            return context.get_dummy_value()

        return types.void(table, at, value, noise), codegen

    return store


def _starts(context, builder, signature, args, blocks, kind):
    """Pointers to the blocks table[base[g + i] + add]."""
    table, base = (_data(context, builder, signature.args[i], args[i]) for i in (0, 1))
    g, add = (context.cast(builder, args[i], signature.args[i], types.intp) for i in (2, 3))
    found = []
    for i in range(blocks):
        start = builder.load(builder.gep(base, [builder.add(g, ir.Constant(g.type, i))]))
        found.append(_place(builder, table, builder.add(start, add), kind))
    return found


def _are_places(table, base, g, add):
    good = _is_f32_array(table) and isinstance(base, types.Array) and base.dtype == types.int64
    return good and isinstance(g, types.Integer) and isinstance(add, types.Integer)


def _make_gather(kind: int, lanes: int, blocks: int):
    """One vector of `blocks` stretches at base[g + i] + add."""
    vector, word = _VECTORS[lanes], ir.IntType(_BITS[kind] * lanes // blocks)

    @intrinsic
    def gather(typingctx, table, base, g, add):
        if not _are_places(table, base, g, add):
            return None

        def codegen(context, builder, signature, args):
            if word.width > 64:  # four floats: two vectors, side by side
                halves = [
                    _read(builder, pointer, ir.VectorType(_ELEMENT[kind], lanes // 2), kind)
                    for pointer in _starts(context, builder, signature, args, blocks, kind)
                ]
                return builder.shuffle_vector(*halves, _lanes(range(lanes)))
            packed = ir.Constant(ir.VectorType(word, blocks), ir.Undefined)
            for i, pointer in enumerate(_starts(context, builder, signature, args, blocks, kind)):
                packed = builder.insert_element(
                    packed, _read(builder, pointer, word, kind), ir.Constant(_I32, i)
                )
            raw = builder.bitcast(packed, ir.VectorType(_ELEMENT[kind], lanes))
            return _widen(builder, raw, lanes, kind)

        return vector(table, base, g, add), codegen

    return gather


def _make_scatter(kind: int, lanes: int, blocks: int):
    """The inverse of `_make_gather`, rounding by `noise`."""
    vector, word = _VECTORS[lanes], ir.IntType(_BITS[kind] * lanes // blocks)

    @intrinsic
    def scatter(typingctx, table, base, g, add, value, noise):
        if not (_are_places(table, base, g, add) and value == noise == vector):
            return None

        def codegen(context, builder, signature, args):
            raw = _narrow(builder, args[4], args[5], lanes, kind)
            if word.width > 64:
                for i, pointer in enumerate(_starts(context, builder, signature, args, blocks, kind)):
                    half = _lanes(range(i * lanes // 2, (i + 1) * lanes // 2))
                    _write(builder, pointer, builder.shuffle_vector(raw, raw, half), kind)
                return context.get_dummy_value()
            packed = builder.bitcast(raw, ir.VectorType(word, blocks))
            for i, pointer in enumerate(_starts(context, builder, signature, args, blocks, kind)):
                _write(builder, pointer, builder.extract_element(packed, ir.Constant(_I32, i)), kind)
            return context.get_dummy_value()

        return types.void(table, base, g, add, value, noise), codegen

    return scatter


def _make_shuffle(source: Vector, target: Vector, lanes: list[int]):
    """The named lanes of one vector, or of two in a row."""

    @intrinsic
    def shuffle(typingctx, a, b):
        if not a == b == source:
            return None

        def codegen(context, builder, signature, args):
            return builder.shuffle_vector(args[0], args[1], _lanes(lanes))

        return target(a, b), codegen

    return shuffle


load8_f16, load8_bf16 = _make_load(FLOAT16, 8), _make_load(BFLOAT16, 8)
store8_f16, store8_bf16 = _make_store(FLOAT16, 8), _make_store(BFLOAT16, 8)
load2 = _make_load(FLOAT32, 2)
store2 = _make_store(FLOAT32, 2)
gather4_f32, gather4_f16, gather4_bf16 = (_make_gather(kind, 8, 2) for kind in range(3))
scatter4_f32, scatter4_f16, scatter4_bf16 = (_make_scatter(kind, 8, 2) for kind in range(3))
gather2_f32, gather2_f16, gather2_bf16 = (_make_gather(kind, 8, 4) for kind in range(3))
scatter2_f32, scatter2_f16, scatter2_bf16 = (_make_scatter(kind, 8, 4) for kind in range(3))
both2_f32, both2_f16, both2_bf16 = (_make_gather(kind, 4, 2) for kind in range(3))
put2_f32, put2_f16, put2_bf16 = (_make_scatter(kind, 4, 2) for kind in range(3))
floats2, put_floats2 = _make_gather(FLOAT32, 2, 2), _make_scatter(FLOAT32, 2, 2)
even8, odd8 = (_make_shuffle(F32X8, F32X8, list(range(i, 16, 2))) for i in (0, 1))
even4, odd4 = (_make_shuffle(F32X8, F32X4, list(range(i, 8, 2))) for i in (0, 1))
even2, odd2 = (_make_shuffle(F32X4, F32X2, list(range(i, 4, 2))) for i in (0, 1))
join2 = _make_shuffle(F32X2, F32X4, [0, 1, 2, 3])
low2, high2 = (_make_shuffle(F32X4, F32X2, [i, i + 1]) for i in (0, 2))
spread2 = _make_shuffle(F32X4, F32X8, [0, 0, 1, 1, 2, 2, 3, 3])  # k = 2: four numbers, each for a block
spread4 = _make_shuffle(F32X2, F32X8, [0] * 4 + [1] * 4)
swap8 = _make_shuffle(F32X8, F32X8, [4, 5, 6, 7, 0, 1, 2, 3])
swap4 = _make_shuffle(F32X4, F32X4, [2, 3, 0, 1])
swap2 = _make_shuffle(F32X8, F32X8, [2, 3, 0, 1, 6, 7, 4, 5])
# Within halves of 4 lanes, which is one instruction: neighbours of both vectors, lanes twice or four times.
pairs_even, pairs_odd = (
    _make_shuffle(F32X8, F32X8, [lane + i for lane in (0, 2, 8, 10, 4, 6, 12, 14)]) for i in (0, 1)
)
low_twice, high_twice = (
    _make_shuffle(F32X8, F32X8, [lane + i for lane in (0, 0, 1, 1, 4, 4, 5, 5)]) for i in (0, 2)
)
each0, each1, each2, each3 = (_make_shuffle(F32X8, F32X8, [i] * 4 + [i + 4] * 4) for i in range(4))
# Across halves: from the order of blocks to that of `pairs_even` (k = 2: its own inverse; k = 4) and back.
cross = _make_shuffle(F32X8, F32X8, [0, 1, 4, 5, 2, 3, 6, 7])
apart, together = (
    _make_shuffle(F32X8, F32X8, lanes) for lanes in ([0, 2, 4, 6, 1, 3, 5, 7], [0, 4, 1, 5, 2, 6, 3, 7])
)
low_halves, high_halves = (
    _make_shuffle(F32X8, F32X8, [i, i + 1, i + 2, i + 3, i + 8, i + 9, i + 10, i + 11]) for i in (0, 4)
)
repeat2 = _make_shuffle(F32X2, F32X8, [0, 1] * 4)
double2 = _make_shuffle(F32X2, F32X4, [0, 0, 1, 1])


@intrinsic
def start_dither(typingctx, number, state):
    """Random bits (in a vector of 8) that a row of data begins with.

    number: uint32 of the row; state: float32 that every step changes, else the row would always round alike.
    """
    if number != types.uint32 or state != types.float32:
        return None

    def codegen(context, builder, signature, args):
        ints = ir.VectorType(_I32, 8)
        value = ir.Constant(ints, ir.Undefined)
        odd = builder.mul(builder.bitcast(args[1], _I32), ir.Constant(_I32, 0xC2B2AE35))
        start = builder.xor(args[0], builder.xor(odd, builder.lshr(odd, ir.Constant(_I32, 15))))
        for lane in range(8):
            value = builder.insert_element(value, start, ir.Constant(_I32, lane))
        # Lanes apart by a quarter turn and more, each on a path of its own.
        offsets = ir.Constant(ints, [(lane * 0x6C8E9CF5 + 0x2545F491) & 0xFFFFFFFF for lane in range(8)])
        factor = ir.Constant(ints, [0x85EBCA6B] * 8)
        mixed = builder.add(builder.mul(value, factor), offsets)
        return builder.bitcast(mixed, ir.VectorType(_FLOAT, 8))

    return F32X8(number, state), codegen


@intrinsic
def next_dither(typingctx, state):
    """The random bits that follow."""
    if state != F32X8:
        return None

    def codegen(context, builder, signature, args):
        ints = ir.VectorType(_I32, 8)
        grown = builder.add(builder.bitcast(args[0], ints), ir.Constant(ints, [_STEP] * 8))
        return builder.bitcast(grown, ir.VectorType(_FLOAT, 8))

    return F32X8(state), codegen


def _make_noise(kind: int):
    @intrinsic
    def noise(typingctx, dither):
        """What rounding adds to a number: as many random bits as are cut off."""
        if dither != F32X8:
            return None

        def codegen(context, builder, signature, args):
            ints = ir.VectorType(_I32, 8)
            shift = ir.Constant(ints, [32 - _CUT[kind]] * 8)
            return builder.bitcast(builder.lshr(builder.bitcast(args[0], ints), shift), F32X8.llvm)

        return F32X8(dither), codegen

    return noise


noise_f16, noise_bf16 = _make_noise(FLOAT16), _make_noise(BFLOAT16)
