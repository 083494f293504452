"""The sample data that ships with the program, and the job that runs when no command is given."""

from __future__ import annotations

import sys
from pathlib import Path

from .errors import UserError

TRAIN, TEST = "sample_train.ffm", "sample_test.ffm"


def sample_folder() -> Path:
    """data/ beside the package (a clone), or the folder an installation puts it into.

    Raises UserError when neither holds the sample.
    """
    beside = Path(__file__).resolve().parent.parent / "data"
    installed = Path(sys.prefix) / "share" / "lightctr_mpi"
    for folder in (beside, installed):
        if (folder / TRAIN).exists():
            return folder
    raise UserError(f"the sample data is neither in {beside} nor in {installed}; give --data.train")


def sample_job() -> list[str]:
    """Flags of the main job."""
    folder = sample_folder()
    return [
        *("--data.train", str(folder / TRAIN)),
        *("--data.test", str(folder / TEST)),
        *("--data.format", "libffm"),
        *("--mode", "ring"),
        *("--train.epochs", "10"),
        *("--out", "runs/sample"),
    ]
