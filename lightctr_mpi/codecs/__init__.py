"""Codecs: how rows of floats travel between ranks. One file for each way, registered by name in registry.py.

What a lossy codec, or sending the largest rows only, leaves out is kept by `feedback.Feedback` and sent
later.
"""

from __future__ import annotations

from ..registry import lookup
from .base import Codec

__all__ = ["Codec", "build"]


def build(name: str) -> Codec:
    """A codec of this name; raises UserError for one that does not exist."""
    return lookup("codec", name)()
