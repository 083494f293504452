"""Defaults that depend on the model and the optimizer. Standard library only.

They are chosen so that a first run on an unknown file of clicks is good; docs/results.md has the figures.
"""

from __future__ import annotations

import dataclasses
import math

from .config import ModelOptions, OptimizerOptions

FACTORS = {"lr": 0, "fm": 8, "ffm": 4}

# (model, optimizer) -> learning rate, L2 penalty
RATES: dict[tuple[str, str], tuple[float, float]] = {
    ("lr", "sgd"): (0.1, 1e-6),
    ("lr", "adagrad"): (0.2, 1e-6),
    ("lr", "ftrl"): (0.1, 1e-6),
    ("fm", "sgd"): (0.02, 1e-5),
    ("fm", "adagrad"): (0.05, 1e-5),
    ("fm", "ftrl"): (0.05, 1e-5),
    ("ffm", "sgd"): (0.02, 2e-5),
    ("ffm", "adagrad"): (0.1, 2e-5),
    ("ffm", "ftrl"): (0.1, 2e-5),
}


def model(options: ModelOptions) -> ModelOptions:
    """The options with k and init_scale filled in; k is 0 for a model without factors."""
    k = FACTORS[options.name] if options.k is None or options.name == "lr" else options.k
    scale = options.init_scale
    if scale is None:
        scale = 1 / math.sqrt(max(k, 1)) if options.init == "uniform" else 0.05
    return dataclasses.replace(options, k=k, init_scale=scale)


def optimizer(options: OptimizerOptions, model_name: str) -> OptimizerOptions:
    """The options with lr, l2 and alpha filled in."""
    lr, l2 = RATES[model_name, options.name]
    if options.lr is not None:
        lr = options.lr
    if options.l2 is not None:
        l2 = options.l2
    alpha = lr if options.alpha is None else options.alpha
    return dataclasses.replace(options, lr=lr, l2=l2, alpha=alpha)
