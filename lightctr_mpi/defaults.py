"""Defaults that depend on the model and the optimizer. Standard library only.

They are chosen so that a first run on an unknown file of clicks is good; docs/results.md has the figures.
"""

from __future__ import annotations

import dataclasses
import math

from .config import ModelOptions, OptimizerOptions, TrainOptions

FACTORS = {"lr": 0, "fm": 8, "ffm": 4}

# (model, optimizer) -> learning rate, L2 penalty.
# Chosen on a planted set of a million rows of 39 categorical fields, on Adult and on Phishing, with instance
# normalisation: the gradient of a normalised row is a few times smaller than that of a raw one, hence rates
# above the usual 0.05. FM and FFM have to leave the neighbourhood of 0, where gradients vanish, within the
# first epoch; the best validation loss comes after one to three. A sample touches a key's factors of FFM
# once for each other field, hence its smaller penalty.
RATES: dict[tuple[str, str], tuple[float, float]] = {
    ("lr", "sgd"): (0.1, 1e-5),
    ("lr", "adagrad"): (0.4, 1e-5),
    ("lr", "ftrl"): (0.3, 1e-5),
    ("fm", "sgd"): (0.05, 1e-5),
    ("fm", "adagrad"): (0.3, 1e-5),
    ("fm", "ftrl"): (0.3, 1e-5),
    ("ffm", "sgd"): (0.1, 2e-6),
    ("ffm", "adagrad"): (0.3, 2e-6),
    ("ffm", "ftrl"): (0.3, 2e-6),
}

# Standard deviation of normal initial factors: small enough for the first logits to be near 0 (a uniform
# start above 0 costs half an epoch to unlearn), large enough for gradients of factors, which are factors
# themselves. FFM starts as FM does, since its blocks move together (model.share); apart, they need 0.2.
DEVIATION = {"lr": 0.1, "fm": 0.1, "ffm": 0.1}

# model -> (epochs at most, epochs without improvement before stopping), with validation rows.
# FM and FFM reach their best validation loss within a few epochs and then fit noise. The loss of LR is convex
# and goes on falling, ever more slowly, while single epochs go up and down by more than one of them gains. An
# epoch of LR is cheap besides.
COURSES = {"lr": (100, 5), "fm": (30, 2), "ffm": (30, 2)}
EPOCHS = 5  # where nothing stops a run


def model(options: ModelOptions) -> ModelOptions:
    """The options with k and init_scale filled in; k is 0 for a model without factors."""
    k = FACTORS[options.name] if options.k is None or options.name == "lr" else options.k
    scale = options.init_scale
    if scale is None:
        scale = 1 / math.sqrt(max(k, 1)) if options.init == "uniform" else DEVIATION[options.name]
    return dataclasses.replace(options, k=k, init_scale=scale)


def optimizer(options: OptimizerOptions, model_name: str, batch_size: int = 1) -> OptimizerOptions:
    """The options with lr, l2 and alpha filled in.

    Args:
        batch_size: rows of a step, 1 for a sequential run. SGD averages a batch, so that its default rate
        grows
            with the root of the batch; Adagrad and FTRL sum it, and their own history sets the pace.
    """
    lr, l2 = RATES[model_name, options.name]
    if options.name == "sgd":
        lr *= math.sqrt(batch_size)
    if options.lr is not None:
        lr = options.lr
    if options.l2 is not None:
        l2 = options.l2
    alpha = lr if options.alpha is None else options.alpha
    return dataclasses.replace(options, lr=lr, l2=l2, alpha=alpha)


def course(options: TrainOptions, model_name: str, validated: bool) -> TrainOptions:
    """The options with epochs and patience filled in; validated: whether there are validation rows."""
    epochs, patience = COURSES[model_name]
    if options.patience is not None:
        patience = options.patience
    if not validated or patience == 0:
        epochs = EPOCHS
    return dataclasses.replace(options, epochs=options.epochs or epochs, patience=patience)
