"""One step of an optimizer on one coordinate, and on rows of a table. All arithmetic is float32.

SGD: w -= rate g.
Adagrad (Duchi, Hazan, Singer 2011; libffm's form): s += g^2, w -= rate g / sqrt(s), with s started above 0.
FTRL-proximal (McMahan et al. 2013, "Ad click prediction: a view from the trenches", algorithm 1):
    sigma = (sqrt(n + g^2) - sqrt(n)) / alpha, z += g - sigma w, n += g^2,
    w = 0 if |z| <= l1 else -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2).
`rate` is FTRL's alpha. State of a row lies in slots of `width` columns: s; or z, then n.
"""

from __future__ import annotations

import math

import numpy as np

from . import simd
from .ahead import fetch_entries
from .jit import inline, jit

SGD, ADAGRAD, FTRL = 0, 1, 2
AHEAD = 8  # rows that memory is asked for in advance
ZERO, ONE = np.float32(0), np.float32(1)


@inline
def sign(x):
    """-1, 0 or 1 as float32."""
    return np.float32(x > ZERO) - np.float32(x < ZERO)


@inline
def ftrl_weight(z, n, alpha, beta, l1, l2):
    """The closed form of the weight. A function of the state alone."""
    shrunk = abs(z) - l1
    return ZERO if shrunk <= ZERO else -sign(z) * shrunk / ((beta + math.sqrt(n)) / alpha + l2)


@inline
def step(opt, table, row, column, state, state_row, slot, width, g, hyper):
    """Move table[row, column] along gradient g; its state is state[state_row, slot], [.., slot + width].

    hyper: rate, beta, l1, l2 as float32; a tuple in inner loops, as an array would be read again each time.
    """
    rate, beta, l1, l2 = hyper
    if opt == SGD:
        table[row, column] -= rate * g
    elif opt == ADAGRAD:
        s = state[state_row, slot] + g * g
        state[state_row, slot] = s
        table[row, column] -= rate * g / math.sqrt(s)
    else:
        n = state[state_row, slot + width]
        grown = n + g * g
        sigma = (math.sqrt(grown) - math.sqrt(n)) / rate
        z = state[state_row, slot] + g - sigma * table[row, column]
        state[state_row, slot] = z
        state[state_row, slot + width] = grown
        table[row, column] = ftrl_weight(z, grown, rate, beta, l1, l2)


@inline
def step8(opt, table, offset, slot, g, rate8):
    """SGD or Adagrad on 8 neighbouring coordinates; `slot` is the offset of their sums of squares."""
    step8_apart(opt, table, offset, table, slot, g, rate8)


@inline
def step8_apart(opt, table, offset, state, slot, g, rate8):
    """`step8` with the sums of squares in an array of their own, from offset `slot`."""
    w = simd.load8(table, offset)
    if opt == SGD:
        simd.store8(table, offset, simd.sub(w, simd.mul(rate8, g)))
    else:
        s = simd.fma(g, g, simd.load8(state, slot))
        simd.store8(state, slot, s)
        simd.store8(table, offset, simd.sub(w, simd.mul(simd.mul(rate8, g), simd.rsqrt(s))))


@inline
def step_bias(opt, bias, g, hyper):
    """Move bias[0], whose state follows it; a bias is not regularised."""
    rate, beta = hyper[0], hyper[1]
    if opt == SGD:
        bias[0] -= rate * g
    elif opt == ADAGRAD:
        bias[1] += g * g
        bias[0] -= rate * g / math.sqrt(bias[1])
    else:
        grown = bias[2] + g * g
        bias[1] += g - (math.sqrt(grown) - math.sqrt(bias[2])) / rate * bias[0]
        bias[2] = grown
        bias[0] = ftrl_weight(bias[1], grown, rate, beta, ZERO, ZERO)


def _make_apply_rows(opt: int):
    @jit
    def apply_rows(table, row_ids, state, state_ids, state_column, width, grads, scale, hyper):
        """Move rows row_ids[i] of `table` along scale * grads[i].

        table: float32[n, stride]; grads: float32[u, width]; row_ids, state_ids: int32[u];
        state: float32[m, stride'], possibly `table` itself, its slots from column state_column on;
        scale: float32; hyper: float32 (rate, beta, l1, l2).
        """
        if state_column < 0 or width < 0:
            return  # never: tells the compiler that no index counts from the end
        whole = width - width % 8 if opt != FTRL else 0
        scale8, rate8 = simd.splat8(scale), simd.splat8(hyper[0])
        slots = width * opt  # SGD, Adagrad and FTRL are 0, 1, 2: as many slots of state
        for i in range(len(row_ids)):
            if i + AHEAD < len(row_ids):
                fetch_entries(table, row_ids, i + AHEAD, i + AHEAD + 1, width)
                if slots:
                    later = np.int64(state_ids[i + AHEAD]) * state.shape[1] + state_column
                    for c in range(0, slots, 16):
                        simd.prefetch(state, later + c)
            row, state_row = row_ids[i], state_ids[i]
            if row < 0 or state_row < 0:
                continue
            to, slot = np.int64(row) * table.shape[1], np.int64(state_row) * state.shape[1] + state_column
            for c in range(0, whole, 8):
                g8 = simd.mul(scale8, simd.load8(grads, i * width + c))
                step8_apart(opt, table, to + c, state, slot + c, g8, rate8)
            for c in range(whole, width):
                g = scale * grads[i, c]
                step(opt, table, row, c, state, state_row, state_column + c, width, g, hyper)

    return apply_rows


def _make_apply_dense(opt: int):
    @jit
    def apply_dense(param, state, grad, scale, hyper):
        """Move param along scale * grad, without FTRL's own l1 and l2.

        param, grad: float32[n]; state: float32[slots * n]; scale: float32; hyper: float32 (rate, beta, l1,
        l2).
        """
        n, unregularised = len(param), (hyper[0], hyper[1], ZERO, ZERO)
        table, slots = param.reshape((1, n)), state.reshape((1, state.size))
        for c in range(n):
            g = scale * grad[c]
            step(opt, table, 0, c, slots, 0, c, n, g, unregularised)

    return apply_dense


sgd_rows, adagrad_rows, ftrl_rows = (_make_apply_rows(opt) for opt in (SGD, ADAGRAD, FTRL))
sgd_dense, adagrad_dense, ftrl_dense = (_make_apply_dense(opt) for opt in (SGD, ADAGRAD, FTRL))
