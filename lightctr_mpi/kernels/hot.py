"""Popular rows of a table, of which each thread has a copy of its own (hot.py of the package).

rank r: place in the order of popularity; slot: where a hash puts a row of the table, ids[slot] is the row or
-1. The copy of the row with slot s stands in row `first + s` of the table; base[r] is what it was when it
last met the shared row. Groups of ranks are merged together: starts: int64[groups + 1], their first ranks;
tiers: int64[t], the first group of tier s, which has 2^s groups; locks: int32[LINE * (groups + 1)], one to a
cache line, the last is the bias's.
"""

from __future__ import annotations

import numpy as np

from . import simd
from .ahead import LINE, fetch_row
from .jit import Intrinsic, inline_exact, jit_exact
from .steps import FTRL, ZERO, ftrl_weight

try_lock, unlock = (Intrinsic(name, "lockintrinsics") for name in ("try_lock", "unlock"))
AHEAD, SOON = 8, 2  # rows of data, and of the table, that memory is asked for in advance
_STEP, _32 = np.uint32(0x9E3779B1), np.uint32(32)  # 2^32 divided by the golden ratio (Fibonacci hashing)


@inline_exact
def _slot(row, bits):
    return np.int32(np.uint32(np.uint32(row) * _STEP) >> (_32 - np.uint32(bits)))


@jit_exact
def count(indptr, ids, order, counts):
    """counts[j] += entries of the rows `order` with id j. counts: int32[keys]."""
    for p in range(len(order)):
        if p + AHEAD < len(order):
            later = order[p + AHEAD]
            for e in range(indptr[later], indptr[later + 1], LINE):
                simd.prefetch(ids, e)
        for e in range(indptr[order[p]], indptr[order[p] + 1]):
            if ids[e] >= 0:
                counts[ids[e]] += 1


@jit_exact
def place(rows, bits, slots, ranked):
    """Give each of the rows (int32[m], the most popular first) its slot, if that is still free.

    slots: int32[2^bits] of -1; ranked: int32[m, 2], filled with row and slot by rank. Returns how many.
    """
    n = 0
    for i in range(len(rows)):
        s = _slot(rows[i], bits)
        if slots[s] < 0:
            slots[s] = rows[i]
            ranked[n, 0], ranked[n, 1] = rows[i], s
            n += 1
    return n


@inline_exact
def _take(csr, target, order, at, end, slots, bits, first, out, out_target):
    """Copy the rows order[at:end] of a block with the table rows of this thread's copies for the ids."""
    (indptr, ids, fields, values, norms), (labels, weights) = csr, target
    (to_indptr, to_ids, to_fields, to_values, to_norms), (to_labels, to_weights) = out, out_target
    to = 0
    to_indptr[0] = 0
    for p in range(at, end):
        if p + 2 * AHEAD < len(order):
            simd.prefetch(indptr, order[p + 2 * AHEAD])
            fetch_row(csr, target, order[p + AHEAD])
        i = order[p]
        source, n = indptr[i], indptr[i + 1] - indptr[i]
        for e in range(n):
            j = ids[source + e]
            s = _slot(j, bits)
            to_ids[to + e] = np.int32(first + s) if slots[s] == j and j >= 0 else j
        if fields.size > 0:
            for e in range(n):
                to_fields[to + e] = fields[source + e]
        if values.size > 0:
            for e in range(n):
                to_values[to + e] = values[source + e]
        to += n
        q = p - at
        to_indptr[q + 1], to_norms[q], to_labels[q] = to, norms[i], labels[i]
        if weights.size > 0:
            to_weights[q] = weights[i]


@inline_exact
def _moved(now, mine, old):
    """What becomes of a shared number; exactly that of one thread where only one has moved it."""
    return mine if now == old else now + (mine - old)


@inline_exact
def _meet(shared, at, copy, to, base, start, n):
    """Merge n numbers from shared[at], copy[to], base[start] on."""
    for c in range(n):
        merged = _moved(shared[at + c], copy[to + c], base[start + c])
        shared[at + c] = merged
        copy[to + c] = merged
        base[start + c] = merged


@inline_exact
def _meet_ftrl(shared, at, copy, to, base, start, width, hyper):
    """The same for `width` weights, z and n: a weight follows from them where two threads have moved it."""
    rate, beta, l1, l2 = hyper
    for c in range(width):
        i, j, k = at + c, to + c, start + c
        z = _moved(shared[i + width], copy[j + width], base[k + width])
        n = _moved(shared[i + 2 * width], copy[j + 2 * width], base[k + 2 * width])
        w = _moved(shared[i], copy[j], base[k])
        old = base[k + 2 * width]
        if shared[i + 2 * width] != old and copy[j + 2 * width] != old:
            w = ftrl_weight(z, n, rate, beta, l1, l2)
        shared[i], shared[i + width], shared[i + 2 * width] = w, z, n
        copy[j], copy[j + width], copy[j + 2 * width] = w, z, n
        base[k], base[k + width], base[k + 2 * width] = w, z, n


@inline_exact
def _merge_group(copies, how, a, b):
    """Merge the rows of ranks a to b."""
    (table, ranked, _, _, first, base), (opt, columns, hyper) = copies, how
    stride, shared, old = table.shape[1], table.reshape(table.size), base.reshape(base.size)
    for r in range(a, b):
        if r + SOON < b:
            later, later_copy = np.int64(ranked[r + SOON, 0]) * stride, (first + ranked[r + SOON, 1]) * stride
            for c in range(0, columns, LINE):
                simd.prefetch(table, later + c)
                simd.prefetch(table, later_copy + c)
                simd.prefetch(base, (r + SOON) * columns + c)
        row, copy = np.int64(ranked[r, 0]) * stride, (first + ranked[r, 1]) * stride
        if opt == FTRL:
            _meet_ftrl(shared, row, shared, copy, old, r * columns, columns // 3, hyper)
        else:
            _meet(shared, row, shared, copy, old, r * columns, columns)


@inline_exact
def _merge_bias(biases, how):
    (bias, own, base), (opt, _, (rate, beta, _, _)) = biases, how
    if opt == FTRL:
        _meet_ftrl(bias, 0, own, 0, base, 0, 1, (rate, beta, ZERO, ZERO))
    else:
        _meet(bias, 0, own, 0, base, 0, len(bias))


@jit_exact
def turn(csr, target, order, out, out_target, copies, biases, groups, how, state):
    """What a thread does between two pieces of its rows: merge what is due, and copy the next piece.

    Due are the bias and one group of each tier, in turn; what another thread holds is left for later.

    Args:
        csr: indptr, ids, fields, values, norms of a block; target: labels, weights; empty where there are
            none. out, out_target: of the copy. order: int64[m] the rows of this thread.
        copies: table, ranked, slots, bits, first, base.
        biases: the shared bias with its state, this thread's, and what that was at the last merge.
        groups: starts, tiers, locks.
        how: the optimizer's code, columns of a row that count, hyper.
        state: int64[3]: number of this turn, the first row and the end of the next piece.
    """
    (starts, tiers, locks), (_, _, slots, bits, first, _) = groups, copies
    n = len(starts) - 1
    if try_lock(locks, LINE * n):
        _merge_bias(biases, how)
        unlock(locks, LINE * n)
    for s in range(len(tiers)):
        g = tiers[s] + (state[0] & ((1 << s) - 1))
        if starts[g] < starts[g + 1] and try_lock(locks, LINE * g):
            _merge_group(copies, how, starts[g], starts[g + 1])
            unlock(locks, LINE * g)
    _take(csr, target, order, state[1], state[2], slots, bits, first, out, out_target)


@jit_exact
def merge_all(copies, biases, groups, how):
    """Merge everything; waits where another thread is at work. Arguments as of `turn`."""
    starts, _, locks = groups
    n = len(starts) - 1
    while not try_lock(locks, LINE * n):
        pass
    _merge_bias(biases, how)
    unlock(locks, LINE * n)
    for g in range(n):
        while not try_lock(locks, LINE * g):
            pass
        _merge_group(copies, how, starts[g], starts[g + 1])
        unlock(locks, LINE * g)
