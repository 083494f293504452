"""Optimizers, one file each, registered by name in registry.py."""

from __future__ import annotations

from .. import defaults
from ..config import OptimizerOptions
from ..registry import lookup
from .base import Optimizer

__all__ = ["Optimizer", "build"]


def build(options: OptimizerOptions, model: str = "") -> Optimizer:
    """The optimizer of this name.

    Args:
        options: as given by the user.
        model: name of the model, by which unset options are filled (defaults.py); without it, none may be
        unset.
    """
    settled = defaults.optimizer(options, model) if model else options
    return lookup("optimizer", options.name)(settled)
