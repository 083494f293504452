"""Field-aware factorization machine (Juan et al. 2016), summed by field first:

    logit = b + sum_e x_e w_j + sum_{e < e'} x_e x_e' <W[j, f'], W[j', f]>,   x_e = r v_e, f field of e
    T[f, g] = sum over the entries e of field g of x_e W[j_e, f]
    pairs = sum_e x_e (sum_g <W[j_e, g], T[f_e, g]> - x_e |W[j_e, f_e]|^2) / 2
    d logit / d W[j, g] = sum over the entries of j of x_e (T[f_e, g] - [g = f_e] x_e W[j, f_e])

which costs O(entries * fields * k) and is exact for any number of entries in a field. T[f, .] has the layout
of a row of W, so that the loops over g and the factors are one loop over contiguous floats.

A row of the table is [W_j (fields * k, rounded up to whole vectors of 8: h), w_j if linear, .., state from
`slot`]. An entry touches the block W[j, g] if the row has another entry of field g; only touched blocks are
regularised. Entries with an unseen id or field, or of value 0, are not there.

Places: a row with entries of most fields uses T over all fields ("full", place = field). A row with entries
of few of many fields numbers these fields 0..m-1 and uses a T of m * m blocks, so that cost does not grow
with all fields.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from . import blocks, ffmpairs, ffmshare, simd
from .ahead import fetch_entries, fetch_row
from .jit import inline, jit
from .losses import add_loss, point_both
from .rows import longest_row
from .steps import FTRL, sign, step, step8, step_bias

HALF, ONE, ZERO = np.float32(0.5), np.float32(1), np.float32(0)
AHEAD = 4  # rows of data whose own numbers are asked for in advance


@jit
def scratch(longest, n_fields, k):
    """Work space for rows of up to `longest` entries: T, touched float32[h], own float32[k], x, index,
    shared float32[h + k] or longer."""
    m = n_fields if 2 * longest >= n_fields else longest
    h = (m * k + 7) // 8 * 8
    size = max(longest, n_fields)
    return (
        np.zeros(m * h, np.float32),
        np.zeros(h, np.float32),
        np.empty(k, np.float32),
        np.empty(size, np.float32),
        np.zeros((6, size), np.int32),
        np.zeros(max(h, n_fields * k) + k, np.float32),
    )


@jit
def enter_row(a, b, r, ids, fields, values, n_fields, x, index):
    """List the entries that count and number their fields.

    index: 0 entry, 1 id and 2 place of each entry; 3 field and 4 count of each place; 5 place + 1 of each
    field, or 0. Returns the number of entries and of places.
    """
    n, m = 0, 0
    for e in range(a, b):
        value = r * values[e] if values.size > 0 else r
        f = fields[e]
        if ids[e] >= 0 and f >= 0 and value != 0:
            x[n] = value
            index[0, n], index[1, n], index[2, n] = e, ids[e], f
            n += 1
            if index[5, f] == 0:
                index[3, m] = f
                m += 1
                index[5, f] = m
    full = 2 * m >= n_fields
    for q in range(m):
        if not full:
            index[4, q] = 0
    if full:
        for f in range(n_fields):
            index[5, f] = f + 1
            index[3, f] = f
            index[4, f] = 0
        m = n_fields
    for t in range(n):
        q = index[5, index[2, t]] - 1
        index[2, t] = q
        index[4, q] += 1
    for q in range(m):
        index[5, index[3, q]] = 0
    return n, m


@jit
def sum_fields(n, m, k, x, index, table, T):
    """Fill T: block (q, g) at q * h + g * k, h = m k rounded up to 8."""
    h, stride = (m * k + 7) // 8 * 8, table.shape[1]
    for c in range(m * h):
        T[c] = ZERO
    for t in range(n):
        row, to = np.int64(index[1, t]) * stride, np.int64(index[2, t]) * k
        if k == 4:
            x4 = simd.splat4(x[t])
            for q in range(m):
                part = simd.fma(x4, simd.load4(table, row + index[3, q] * 4), simd.load4(T, to))
                simd.store4(T, to, part)
                to += h
        elif k == 2:
            x4 = simd.splat4(x[t])
            x2 = blocks.low2(x4, x4)
            for q in range(m):
                part2 = simd.fma(x2, blocks.load2(table, row + index[3, q] * 2), blocks.load2(T, to))
                blocks.store2(T, to, part2, part2)
                to += h
        elif k % 8 == 0:
            x8 = simd.splat8(x[t])
            for q in range(m):
                block = row + index[3, q] * k
                for d in range(0, k, 8):
                    part = simd.fma(x8, simd.load8(table, block + d), simd.load8(T, to + d))
                    simd.store8(T, to + d, part)
                to += h
        else:
            for q in range(m):
                block = index[3, q] * k
                for d in range(k):
                    T[to + d] += x[t] * table[index[1, t], block + d]
                to += h


@jit
def row_logit(n, m, k, full, x, index, table, linear, column, T):
    """Linear part and pairs of a row whose T is filled."""
    z, h, stride = ZERO, (m * k + 7) // 8 * 8, table.shape[1]
    for t in range(n):
        j, q = index[1, t], index[2, t]
        row, at, dot = np.int64(j) * stride, np.int64(q) * h, ZERO
        if full:
            sum8 = simd.splat8(ZERO)
            for c in range(0, h, 8):
                sum8 = simd.fma(simd.load8(table, row + c), simd.load8(T, at + c), sum8)
            dot = simd.total8(sum8)
        else:
            for g in range(m):
                block = index[3, g] * k
                for d in range(k):
                    dot += table[j, block + d] * T[at + g * k + d]
        own, block = ZERO, index[3, q] * k
        for d in range(k):
            own += table[j, block + d] * table[j, block + d]
        z += HALF * x[t] * (dot - x[t] * own)
        if linear:
            z += x[t] * table[j, column]
    return z


@jit
def _mark_touched(m, k, index, touched):
    """1 on the blocks of fields that have an entry, else 0."""
    for q in range(m):
        one = ONE if index[4, q] > 0 else ZERO
        for d in range(q * k, q * k + k):
            touched[d] = one
    for d in range(m * k, (m * k + 7) // 8 * 8):
        touched[d] = ZERO


@inline
def _take_out(j, q, k, x, index, table, at, T, touched, own):
    """Leave the entry's own part out of its block of T, and the penalty if no other entry is of its field."""
    alone, block = index[4, q] == 1, index[3, q] * k
    for d in range(k):
        own[d] = T[at + q * k + d]
        T[at + q * k + d] = ZERO if alone else own[d] - x * table[j, block + d]
        if alone:
            touched[q * k + d] = ZERO


@inline
def _put_back(q, k, at, T, touched, own):
    """Undo `_take_out`."""
    for d in range(k):
        T[at + q * k + d] = own[d]
        touched[q * k + d] = ONE


@inline
def _find_entries(n, k, n_fields, x, index, stride, pairs):
    """Whether each field has one entry, as `ffmpairs` wants; if so, base and x of each go to `pairs`."""
    base, by_field = pairs
    if n != n_fields or not (k == 2 or k == 4 or k % 8 == 0):
        return False
    for f in range(n_fields):
        if index[4, f] != 1:
            return False
    for t in range(n):
        base[index[2, t]] = np.int64(index[1, t]) * stride
        by_field[index[2, t]] = x[t]
    return True


@inline
def _logit_by_pairs(use_share, n, k, pairs, table, linear, column, shared):
    """Linear part and pairs of a row with one entry in each field; fills `shared` if there is a share."""
    base, by_field = pairs
    if use_share:
        z = ffmshare.logit(n, k, base, by_field, table, shared)
    else:
        z = ffmpairs.logit(n, k, base, by_field, table)
    if linear:
        for f in range(n):
            z += by_field[f] * table[base[f] // table.shape[1], column]
    return z


@inline
def _add_blocks(full, j, at, m, k, kx, index, T, touched, table, l2, l1, grad, u):
    """Gradient of the blocks of W[j] that an entry touches; `at` is where its row of T starts."""
    if full:
        row, to, h = np.int64(j) * table.shape[1], np.int64(u) * grad.shape[1], (m * k + 7) // 8 * 8
        kx8, l28, l18 = simd.splat8(kx), simd.splat8(l2), simd.splat8(l1)
        for c in range(0, h, 8):
            w = simd.load8(table, row + c)
            pull = simd.fma(l18, simd.sign(w), simd.mul(l28, w))
            slope = simd.fma(kx8, simd.load8(T, at + c), simd.mul(simd.load8(touched, c), pull))
            simd.store8(grad, to + c, simd.add(simd.load8(grad, to + c), slope))
    else:
        for q in range(m):
            block = index[3, q] * k
            for d in range(k):
                w, c = table[j, block + d], q * k + d
                grad[u, block + d] += kx * T[at + c] + touched[c] * (l2 * w + l1 * sign(w))


@inline
def _add_row(n, m, k, full, kappa, work, local, table, l2, l1, grad, share):
    """Gradient of the factors of one row whose T is filled."""
    T, touched, own, x, index, shared = work
    h = (m * k + 7) // 8 * 8
    _mark_touched(m, k, index, touched)
    for t in range(n):
        j, q, u = index[1, t], index[2, t], local[index[0, t]]
        at, kx = np.int64(q) * h, kappa * x[t]
        _take_out(j, q, k, x[t], index, table, at, T, touched, own)
        source, start = T, at
        if share > ZERO:
            ffmshare.mix(m, k, at, T, touched, share, shared)
            source, start = shared, np.int64(0)
        _add_blocks(full, j, start, m, k, kx, index, source, touched, table, l2, l1, grad, u)
        _put_back(q, k, at, T, touched, own)


@inline
def _add_linear(n, kappa, x, index, local, table, l2, l1, grad, column):
    """Gradient of the linear weights of one row."""
    for t in range(n):
        w = table[index[1, t], column]
        grad[local[index[0, t]], column] += kappa * x[t] + l2 * w + l1 * sign(w)


@jit
def backward(csr, table, shape, local, dlogit, penalty, grad):
    """Add to grad float32[u, h + linear] the gradient of sum_i dlogit[i] logit[i] and of the regulariser."""
    (indptr, ids, fields, values, norms), (n_fields, k, linear, share), (l2, l1) = csr, shape, penalty
    work = scratch(longest_row(indptr, np.arange(len(indptr) - 1)), n_fields, k)
    T, _, _, x, index, shared = work
    column = (n_fields * k + 7) // 8 * 8
    for i in range(len(dlogit)):
        n, m = enter_row(indptr[i], indptr[i + 1], norms[i], ids, fields, values, n_fields, x, index)
        sum_fields(n, m, k, x, index, table, T)
        _add_row(n, m, k, m == n_fields, dlogit[i], work, local, table, l2, l1, grad, share)
        if linear:
            _add_linear(n, dlogit[i], x, index, local, table, l2, l1, grad, column)


@jit
def gradient(csr, target, loss, table, shape, local, b0, penalty, grad, sums):
    """`forward`, the loss and `backward` in one pass; sums float64[3] += loss, weight, slope of the bias."""
    (indptr, ids, fields, values, norms), (labels, weights) = csr, target
    (n_fields, k, linear, share), (l2, l1) = shape, penalty
    work = scratch(longest_row(indptr, np.arange(len(indptr) - 1)), n_fields, k)
    T, _, _, x, index, shared = work
    pairs = (np.empty(n_fields, np.int64), np.empty(n_fields, np.float32))
    grads = np.empty(n_fields, np.int64)
    column = (n_fields * k + 7) // 8 * 8
    for i in range(len(labels)):
        a, b = indptr[i], indptr[i + 1]
        if i + 1 < len(labels):
            fetch_entries(table, ids, b, indptr[i + 2], column + linear)
            fetch_entries(grad, local, b, indptr[i + 2], column + linear)
        n, m = enter_row(a, b, norms[i], ids, fields, values, n_fields, x, index)
        full = m == n_fields
        paired = _find_entries(n, k, n_fields, x, index, table.shape[1], pairs)
        if paired:
            z = b0 + _logit_by_pairs(share > ZERO, n, k, pairs, table, linear, column, shared)
        else:
            sum_fields(n, m, k, x, index, table, T)
            z = b0 + row_logit(n, m, k, full, x, index, table, linear, column, T)
        kappa = add_loss(loss, z, labels, weights, i, sums)
        if paired:
            base, by_field = pairs
            for t in range(n):
                grads[index[2, t]] = np.int64(local[index[0, t]]) * grad.shape[1]
            if share > ZERO:
                ffmshare.scale(n, k, share * kappa, by_field, shared)
            ffmpairs.add(True, n, k, kappa, base, grads, by_field, shared, table, grad, penalty)
        else:
            _add_row(n, m, k, full, kappa, work, local, table, l2, l1, grad, share)
        if linear:
            _add_linear(n, kappa, x, index, local, table, l2, l1, grad, column)


@inline
def _learn_blocks(opt, use_l1, full, j, at, m, k, kx, index, T, touched, table, slot, width, hyper, penalty):
    """One step on the blocks of W[j] that the row touches; `at` is where the entry's row of T starts."""
    l2, l1 = penalty
    if full and opt != FTRL:
        offset, h = np.int64(j) * table.shape[1], (m * k + 7) // 8 * 8
        kx8, l28, l18, rate8 = simd.splat8(kx), simd.splat8(l2), simd.splat8(l1), simd.splat8(hyper[0])
        for c in range(0, h, 8):
            w = simd.load8(table, offset + c)
            pull = simd.mul(l28, w)
            if use_l1:
                pull = simd.fma(l18, simd.sign(w), pull)
            g = simd.fma(kx8, simd.load8(T, at + c), simd.mul(simd.load8(touched, c), pull))
            step8(opt, table, offset + c, offset + slot + c, g, rate8)
    else:
        for q in range(m):
            block = index[3, q] * k
            for d in range(k):
                col, c = block + d, q * k + d
                pull = l2 * table[j, col]
                if use_l1:
                    pull += l1 * sign(table[j, col])
                g = kx * T[at + c] + touched[c] * pull
                step(opt, table, j, col, table, j, slot + col, width, g, hyper)


@inline
def _learn_row(opt, use_l1, n, m, k, full, kappa, work, ids, ahead, table, slot, hyper, penalty, share):
    """One step on the factors of every entry; asks for the table rows of the entries from `ahead` on."""
    T, touched, own, x, index, shared = work
    h, width = (m * k + 7) // 8 * 8, slot
    for t in range(n):
        fetch_entries(table, ids, min(ahead + t, len(ids)), min(ahead + t + 1, len(ids)), table.shape[1])
        j, q = index[1, t], index[2, t]
        at, kx = np.int64(q) * h, kappa * x[t]
        _take_out(j, q, k, x[t], index, table, at, T, touched, own)
        source, start = T, at
        if share > ZERO:
            ffmshare.mix(m, k, at, T, touched, share, shared)
            source, start = shared, np.int64(0)
        _learn_blocks(
            opt, use_l1, full, j, start, m, k, kx, index, source, touched, table, slot, width, hyper, penalty
        )
        _put_back(q, k, at, T, touched, own)


@inline
def _learn_linear(opt, use_l1, n, kappa, x, index, table, column, slot, hyper, penalty):
    """One step on the linear weight of every entry."""
    for t in range(n):
        j = index[1, t]
        g = kappa * x[t] + penalty[0] * table[j, column]
        if use_l1:
            g += penalty[1] * sign(table[j, column])
        step(opt, table, j, column, table, j, slot + column, slot, g, hyper)


@cache
def make_sweep(opt: int, loss: int, use_l1: int, use_bias: int, k: int, use_share: int):
    """Kernel that learns from one row after the other; closes over ints, as the disk cache demands."""

    @jit
    def sweep(csr, target, order, table, shape, slot, bias, hyper, penalty, sums):
        (indptr, ids, fields, values, norms), (labels, weights) = csr, target
        n_fields, width, linear, share = shape  # width is k, but no constant: one code for all k
        work = scratch(longest_row(indptr, order), n_fields, width)
        T, touched, _, x, index, shared = work
        pairs = (np.empty(n_fields, np.int64), np.empty(n_fields, np.float32))
        column = (n_fields * width + 7) // 8 * 8
        loss_sum, weight_sum = 0.0, 0.0
        for p in range(len(order)):
            i = order[p]
            if p + 2 * AHEAD < len(order):
                simd.prefetch(indptr, order[p + 2 * AHEAD])
                fetch_row(csr, target, order[p + AHEAD])
            a, b = indptr[i], indptr[i + 1]
            ahead = indptr[order[p + 1]] if p + 1 < len(order) else len(ids)
            n, m = enter_row(a, b, norms[i], ids, fields, values, n_fields, x, index)
            full = m == n_fields
            paired = opt != FTRL and _find_entries(n, k, n_fields, x, index, table.shape[1], pairs)
            if paired:
                z = _logit_by_pairs(use_share, n, k, pairs, table, linear, column, shared)
            else:
                sum_fields(n, m, width, x, index, table, T)
                z = row_logit(n, m, width, full, x, index, table, linear, column, T)
            if use_bias:
                z += bias[0]
            weight = np.float64(weights[i]) if weights.size > 0 else 1.0
            point, slope = point_both(loss, z, labels[i])
            loss_sum += weight * point
            weight_sum += weight
            kappa = np.float32(weight * slope)
            if paired:
                (base, by_field), rate = pairs, hyper[0]
                if use_share:
                    ffmshare.scale(n, k, share * kappa, by_field, shared)
                ffmpairs.learn(
                    opt,
                    use_l1,
                    use_share,
                    n,
                    k,
                    kappa,
                    base,
                    by_field,
                    shared,
                    table,
                    slot,
                    rate,
                    penalty,
                    ids,
                    ahead,
                )
                if linear:
                    _learn_linear(opt, use_l1, n, kappa, x, index, table, column, slot, hyper, penalty)
            else:
                _mark_touched(m, width, index, touched)
                _learn_row(
                    opt,
                    use_l1,
                    n,
                    m,
                    width,
                    full,
                    kappa,
                    work,
                    ids,
                    ahead,
                    table,
                    slot,
                    hyper,
                    penalty,
                    share,
                )
                if linear:
                    _learn_linear(opt, use_l1, n, kappa, x, index, table, column, slot, hyper, penalty)
            if use_bias:
                step_bias(opt, bias, kappa, hyper)
        sums[0] += loss_sum
        sums[1] += weight_sum

    return sweep
