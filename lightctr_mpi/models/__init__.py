"""Models, one file each, registered by name in registry.py."""

from __future__ import annotations

from .. import defaults
from ..config import ModelOptions
from ..registry import lookup
from .base import Model

__all__ = ["Model", "build"]


def build(options: ModelOptions, n_fields: int, loss: str) -> Model:
    """The model of this name, unset options filled with its defaults (defaults.py).

    Args:
        n_fields: number of fields of the data, 0 without.
        loss: logistic or squared.

    Raises UserError when the model cannot work on such data.
    """
    return lookup("model", options.name)(defaults.model(options), n_fields, loss)
