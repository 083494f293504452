"""The models and optimizers once more, in plain NumPy float64, straight from their definitions.

Nothing here is shared with the package: pairs are summed over pairs, gradients are written per pair, and a
table is a dictionary of plain arrays. Slow and easy to check by eye; test_models.py holds its gradients
against finite differences of its own loss.

Parameters are a dict: "bias" float64[1], "linear" float64[n], "factors" float64[n, k] or [n, F, k].
Rows are a list of (ids, fields, values) with fields None where there are none.
"""

from __future__ import annotations

import numpy as np


def rows_of(block):
    """List of (ids, fields, values) of a Block, values 1 where the block has none."""
    rows = []
    for i in range(block.n_rows):
        part = slice(int(block.indptr[i]), int(block.indptr[i + 1]))
        ids = block.ids[part].astype(np.int64)
        values = np.ones(len(ids)) if block.values is None else block.values[part].astype(np.float64)
        rows.append((ids, None if block.fields is None else block.fields[part].astype(np.int64), values))
    return rows


def norm_of(values, on=True):
    """Factor that gives a row Euclidean length 1; 1 for a row of zeros."""
    total = float(np.sum(np.square(values)))
    return 1 / np.sqrt(total) if on and total > 0 else 1.0


def entries(name, row, norm):
    """(id, field, x) of the entries that count, x the value after normalisation."""
    ids, fields, values = row
    listed = []
    for e in range(len(ids)):
        field = -2 if fields is None else int(fields[e])
        seen = ids[e] >= 0 and (name != "ffm" or field >= 0)
        if seen and values[e] != 0:
            listed.append((int(ids[e]), field, float(values[e]) * norm))
    return listed


def logit(name, params, row, norm):
    """Value of one row before the sigmoid."""
    listed = entries(name, row, norm)
    z = float(params["bias"][0]) if "bias" in params else 0.0
    if "linear" in params:
        z += sum(x * params["linear"][j] for j, _, x in listed)
    if name == "lr":
        return z
    v = params["factors"]
    for a, (j, f, x) in enumerate(listed):
        for i, g, y in listed[a + 1 :]:
            z += x * y * (v[j] @ v[i] if name == "fm" else v[j, g] @ v[i, f])
    return z


def loss(kind, z, y):
    """Logistic loss in nats of a label in [0, 1], or half the squared error."""
    return np.logaddexp(0, z) - y * z if kind == "logistic" else 0.5 * (z - y) ** 2


def slope(kind, z, y):
    return 1 / (1 + np.exp(-z)) - y if kind == "logistic" else z - y


def penalty(name, params, row, l2, l1):
    """Regulariser of one row: l2/2 w^2 + l1 |w| for each parameter touched, once for each entry that touches
    it.

    FFM: an entry touches the block of field g if another entry of the row has field g.
    """
    total = 0.0

    def cost(w):
        return float(np.sum(0.5 * l2 * np.square(w) + l1 * np.abs(w)))

    listed = entries(name, row, 1.0)
    for a, (j, _, _) in enumerate(listed):
        if "linear" in params:
            total += cost(params["linear"][j])
        if name == "fm":
            total += cost(params["factors"][j])
        elif name == "ffm":
            others = {g for b, (_, g, _) in enumerate(listed) if b != a}
            total += sum(cost(params["factors"][j, g]) for g in others)
    return total


def gradient(name, params, row, norm, dlogit, l2=0.0, l1=0.0, share=0.0):
    """dict like params: gradient of dlogit * logit + penalty.

    share (FFM): to each block that an entry touches, share times the sum over these blocks of what the entry
    adds to the gradient of dlogit * logit.
    """
    listed = entries(name, row, norm)
    grad = {key: np.zeros_like(value) for key, value in params.items()}
    if "bias" in params:
        grad["bias"][0] = dlogit
    for a, (j, f, x) in enumerate(listed):
        if "linear" in params:
            w = params["linear"][j]
            grad["linear"][j] += dlogit * x + l2 * w + l1 * np.sign(w)
        if name == "lr":
            continue
        v, touched = params["factors"], set()
        for b, (i, g, y) in enumerate(listed):
            if b == a:
                continue
            if name == "fm":
                grad["factors"][j] += dlogit * x * y * v[i]
            else:
                grad["factors"][j, g] += dlogit * x * y * v[i, f]
                touched.add(g)
        if share:
            together = [dlogit * x * y * v[i, f] for b, (i, _, y) in enumerate(listed) if b != a]
            for g in touched:
                grad["factors"][j, g] += share * sum(together)
        for where in [j] if name == "fm" else [(j, g) for g in touched]:
            grad["factors"][where] += l2 * v[where] + l1 * np.sign(v[where])
    return grad


class SGD:
    def __init__(self, lr, l2=0.0, l1=0.0):
        self.lr, self.l2, self.l1 = lr, l2, l1

    def start(self, w, dense=False):
        return ()

    def step(self, w, g, state, dense=False):
        w -= self.lr * g


class Adagrad(SGD):
    """Duchi, Hazan, Singer 2011 with the start of libffm."""

    def __init__(self, lr, l2=0.0, l1=0.0, init=1.0):
        super().__init__(lr, l2, l1)
        self.init = init

    def start(self, w, dense=False):
        return (np.full_like(w, self.init),)

    def step(self, w, g, state, dense=False):
        state[0][...] += g * g
        w -= self.lr * g / np.sqrt(state[0])


class FTRL:
    """McMahan et al. 2013, algorithm 1, started where its closed form gives the initial weights."""

    l2 = l1 = 0.0  # nothing is added to a gradient

    def __init__(self, alpha, beta=1.0, lambda2=0.0, lambda1=0.0):
        self.alpha, self.beta, self.lambda2, self.lambda1 = alpha, beta, lambda2, lambda1

    def start(self, w, dense=False):
        l2, l1 = (0.0, 0.0) if dense else (self.lambda2, self.lambda1)
        return (-(w * (self.beta / self.alpha + l2) + np.sign(w) * l1), np.zeros_like(w))

    def step(self, w, g, state, dense=False):
        l2, l1 = (0.0, 0.0) if dense else (self.lambda2, self.lambda1)
        z, n = state
        sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / self.alpha
        z += g - sigma * w
        n += g * g
        closed = -(z - np.sign(z) * l1) / ((self.beta + np.sqrt(n)) / self.alpha + l2)
        w[...] = np.where(np.abs(z) <= l1, 0, closed)


def start(params, optimizer):
    """Optimizer state of every parameter."""
    return {key: optimizer.start(value, dense=key == "bias") for key, value in params.items()}


def move(params, state, grad, optimizer, scale=1.0, touched=None):
    """One step of every parameter; `touched`: ids whose rows move (the others keep even their state)."""
    for key, g in grad.items():
        if key == "bias" or touched is None:
            optimizer.step(params[key], scale * g, state[key], dense=key == "bias")
            continue
        for j in touched:
            part, parts = params[key][j : j + 1], tuple(s[j : j + 1] for s in state[key])
            optimizer.step(part, scale * g[j : j + 1], parts)


def epoch(name, kind, params, state, optimizer, rows, labels, order, norm=True, weights=None, share=0.0):
    """Sequential pass: the mean loss before each update. params and state are moved in place."""
    total, weight_sum = 0.0, 0.0
    for i in order:
        factor = norm_of(rows[i][2], norm)
        z = logit(name, params, rows[i], factor)
        weight = 1.0 if weights is None else float(weights[i])
        total += weight * loss(kind, z, labels[i])
        weight_sum += weight
        dlogit = weight * slope(kind, z, labels[i])
        grad = gradient(name, params, rows[i], factor, dlogit, optimizer.l2, optimizer.l1, share)
        touched = sorted({j for j, _, _ in entries(name, rows[i], factor)})
        move(params, state, grad, optimizer, touched=touched)
    return total / weight_sum
