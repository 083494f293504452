"""Every option of a run: one frozen dataclass per section, with its documentation and its range.

Standard library only, so that `--help` and usage errors are instant. `options.py` fills these from defaults,
a TOML file, the environment and flags; nothing else in the program keeps a default of its own.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from .errors import UserError


@dataclass(frozen=True)
class Range:
    """Allowed values of a numeric option; `open_low` excludes the lower end itself."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False

    def holds(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and value <= self.high and abs(value) != math.inf

    def __str__(self) -> str:
        """In words, to stand behind "a number": "above 0 and at most 100"."""
        bounds = (("above" if self.open_low else "at least", self.low), ("at most", self.high))
        return " and ".join(f"{word} {_short(bound)}" for word, bound in bounds if math.isfinite(bound))


def _short(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def option(default: Any, doc: str, *, choices: tuple[str, ...] = (), range: Range | None = None) -> Any:
    """A dataclass field with its one-line documentation and the values it takes."""
    metadata = {"doc": doc, "choices": choices, "range": range}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


# How rows of floats travel (codecs/).
CODECS = ("float32", "float16", "int8", "uniform8", "log8", "normal8")


@dataclass(frozen=True)
class DataOptions:
    """Where rows come from and how they are read."""

    train: tuple[str, ...] = option((), "training files (globs, .gz and - for standard input allowed)")
    valid: tuple[str, ...] = option((), "validation files: metrics each epoch, early stopping")
    test: tuple[str, ...] = option((), "test files: metrics once, of the final model")
    format: str = option(
        "auto",
        "format of the files",
        choices=("auto", "libffm", "libsvm", "dense", "csv", "tsv", "criteo", "avazu"),
    )
    schema: str = option("", "TOML file that names the columns of csv and tsv files (docs/data.md)")
    header: str = option(
        "auto", "whether csv, tsv and dense files start with a line of names", choices=("auto", "yes", "no")
    )
    label_column: str = option("first", "place of the label in dense files", choices=("first", "last"))
    labels: str = option(
        "binary", "binary: -1/0 and 1; soft: probabilities in [0, 1]", choices=("binary", "soft")
    )
    label_map: str = option("", "labels to read as 0 or 1, for instance 1:0,2:1 or <=50K:0,>50K:1")
    on_bad_row: str = option("error", "what a malformed row does", choices=("error", "skip"))
    cache: str = option(
        "auto", "folder for the binary row store; auto: beside the data, else in the run folder"
    )
    memory: str = option(
        "auto",
        "map: row store mapped into memory; stream: read window by window",
        choices=("auto", "map", "stream"),
    )
    block_rows: int = option(4096, "rows that are shuffled and read together", range=Range(1))
    window_blocks: int = option(64, "blocks among which rows are mixed", range=Range(1))


@dataclass(frozen=True)
class ModelOptions:
    """What is learned."""

    name: str = option("fm", "model", choices=("lr", "fm", "ffm"))
    k: int | None = option(None, "number of factors (default: 8 for fm, 4 for ffm)", range=Range(1, 1024))
    bias: bool = option(True, "learn a global bias")
    linear: bool = option(True, "learn a linear weight for each feature")
    norm: bool = option(True, "instance normalisation: scale each row to Euclidean length 1")
    loss: str = option("logistic", "loss", choices=("logistic", "squared"))
    init: str = option("normal", "distribution of initial factors", choices=("normal", "uniform"))
    storage: str = option(
        "float32",
        "ffm: factors in memory; 16 bits, rounded stochastically, need optimizer.sums = block",
        choices=("float32", "float16", "bfloat16"),
    )
    init_scale: float | None = option(
        None,
        "normal: standard deviation, uniform: upper end, the lower one is 0 (default: by model and k)",
        range=Range(0, math.inf, True),
    )
    share: float = option(
        1.0,
        "ffm: part of the summed gradient of a feature's blocks that moves each of them; 0: as libffm",
        range=Range(0, 1000),
    )
    unseen: str = option(
        "skip",
        "keys that training lacks: skip, they count nothing; start: they count with their starting weights",
        choices=("skip", "start"),
    )


@dataclass(frozen=True)
class OptimizerOptions:
    """How parameters move."""

    name: str = option("adagrad", "optimizer", choices=("sgd", "adagrad", "ftrl"))
    lr: float | None = option(None, "learning rate (default: by model)", range=Range(0, 100, True))
    l2: float | None = option(
        None, "L2 penalty on the parameters that a sample touches (default: by model)", range=Range(0)
    )
    l1: float = option(0.0, "L1 penalty on the parameters that a sample touches", range=Range(0))
    init: float = option(
        1.0, "adagrad: start of the sum of squared gradients", range=Range(0, math.inf, True)
    )
    sums: str = option(
        "weight",
        "adagrad: a sum of squares for each weight, or (ffm, row by row) for each block of k (row-wise)",
        choices=("weight", "block"),
    )
    alpha: float | None = option(
        None, "ftrl: alpha of the per-coordinate rate (default: lr)", range=Range(0, 100, True)
    )
    beta: float = option(
        1.0, "ftrl: beta of the per-coordinate rate alpha / (beta + sqrt(n))", range=Range(0)
    )


@dataclass(frozen=True)
class TrainOptions:
    """The course of the training."""

    epochs: int | None = option(
        None,
        "passes over the training rows at most (default: 5; with data.valid, which stops it, 30, lr 100)",
        range=Range(1),
    )
    sync: str = option(
        "auto",
        "none: one row after the other on one rank; exact: mini-batches, equal on any number of ranks",
        choices=("auto", "none", "exact"),
    )
    batch_size: int | None = option(
        None, "rows of a mini-batch, all ranks together (default: by size of the data)", range=Range(1)
    )
    shuffle: bool = option(True, "new order of rows each epoch")
    patience: int | None = option(
        None,
        "epochs without improvement before stopping; 0: never stop early (default: 2, lr 5)",
        range=Range(0),
    )
    monitor: str = option(
        "auto",
        "metric that decides the best epoch (auto: valid_logloss, valid_rmse for the squared loss)",
        choices=("auto", "valid_logloss", "valid_auc", "valid_rmse", "train_logloss"),
    )
    resume: str = option(
        "", "continue from a checkpoint file, or auto: from the newest of the run folder if there is one"
    )
    threads: int = option(
        1,
        "threads per rank, as far as there are cores; row by row they share one model (Hogwild)",
        range=Range(1, 1024),
    )


@dataclass(frozen=True)
class CheckpointOptions:
    """What is written besides the final model."""

    every: int = option(1, "epochs between checkpoints; 0: best epochs and the last only", range=Range(0))
    keep: int = option(2, "checkpoints kept", range=Range(1))


@dataclass(frozen=True)
class RingOptions:
    """The ring all-reduce, or one copy of the model for all ranks of a node."""

    dense_above: float = option(
        0.25, "share of touched keys in a batch above which whole tables are exchanged", range=Range(0, 1)
    )
    codec: str = option(
        "float32",
        "how gradients travel; what a lossy codec leaves out is kept and sent later",
        choices=CODECS,
    )
    top_k: float = option(
        1.0,
        "share of a batch's gradient rows that are sent, the largest; the rest later",
        range=Range(0, 1, True),
    )
    replica: str = option(
        "rank",
        "rank: each rank holds the model, exact batches; node: the ranks of a node share it, row by row",
        choices=("rank", "node"),
    )


@dataclass(frozen=True)
class PsOptions:
    """The parameter server: rank 0 is the Master, ranks 1 to `servers` keep parameters, the rest learn."""

    servers: int | None = option(
        None, "ranks that keep parameters (default: a quarter of the ranks, at least 1)", range=Range(1, 4096)
    )
    consistency: str = option(
        "bsp",
        "bsp: exact, as one process; ssp: parameters at most `staleness` clocks old; asp: as they are",
        choices=("bsp", "ssp", "asp"),
    )
    staleness: int = option(
        4, "ssp: clocks (one batch for each worker) that parameters may lag behind", range=Range(0)
    )
    prefetch: bool = option(True, "ask for the parameters of the next batch while computing this one")
    delay: str = option(
        "none",
        "correct late gradients (DC-ASGD): constant, or adaptive to the mean square of gradients",
        choices=("none", "constant", "adaptive"),
    )
    delay_lambda: float | None = option(
        None, "strength of the correction (default: 0.04 constant, 2 adaptive)", range=Range(0)
    )
    delay_memory: int = option(
        256,
        "MB a server keeps of what workers last pulled; beyond it gradients go uncorrected",
        range=Range(0),
    )
    pull_codec: str = option("float32", "how parameters travel to workers", choices=CODECS)
    push_codec: str = option(
        "float32", "how gradients travel; what a lossy codec leaves out is sent later", choices=CODECS
    )
    top_k: float = option(
        1.0,
        "share of a batch's gradient rows that are sent, the largest; the rest later",
        range=Range(0, 1, True),
    )
    admit_after: int = option(
        0, "batches a key must be seen in before it gets parameters; 0 or 1: at once", range=Range(0)
    )
    evict_age: int = option(0, "drop keys not seen for this many epochs; 0: never", range=Range(0))
    evict_hits: int = option(
        0, "with evict_age: keep keys that were seen in at least this many batches; 0: none", range=Range(0)
    )
    lease_seconds: float = option(
        60.0, "seconds after which a stalled worker's batch is given to another", range=Range(0, 86400, True)
    )
    silence_seconds: float = option(
        600.0, "seconds without a sign of a rank after which the run ends", range=Range(0, 86400, True)
    )
    slow: str = option("", "for tests of uneven nodes: RANK:FACTOR stretches the leases of a worker")
    trace: bool = option(False, "write every pull and push of each server to ps-trace-<server>.npy")


@dataclass(frozen=True)
class Run:
    """A resolved configuration."""

    mode: str = option(
        "auto",
        "how ranks work together; auto: single on one rank, ring or ps by size of the model on more",
        choices=("auto", "single", "ring", "ps"),
    )
    seed: int = option(1, "seed of initial values and of the order of rows", range=Range(0, 2**63 - 1))
    out: str = option("", "run folder; default: runs/<model>")
    quiet: bool = option(False, "print errors only")
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    train: TrainOptions = field(default_factory=TrainOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    ring: RingOptions = field(default_factory=RingOptions)
    ps: PsOptions = field(default_factory=PsOptions)


SECTIONS = tuple(f.name for f in dataclasses.fields(Run) if dataclasses.is_dataclass(f.default_factory))


# Options that mean something for some models or optimizers only: key -> (option that decides, its values).
OWNERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "model.k": ("model.name", ("fm", "ffm")),
    "model.init": ("model.name", ("fm", "ffm")),
    "model.init_scale": ("model.name", ("fm", "ffm")),
    "model.share": ("model.name", ("ffm",)),
    "model.unseen": ("model.name", ("fm", "ffm")),
    "optimizer.init": ("optimizer.name", ("adagrad",)),
    "optimizer.sums": ("optimizer.name", ("adagrad",)),
    "optimizer.alpha": ("optimizer.name", ("ftrl",)),
    "optimizer.beta": ("optimizer.name", ("ftrl",)),
}


def applies(run: Run, key: str) -> bool:
    """Whether an option has a meaning under the chosen model and optimizer."""
    if key not in OWNERS:
        return True
    chooser, names = OWNERS[key]
    section, _, name = chooser.partition(".")
    return getattr(getattr(run, section), name) in names


def check(run: Run) -> None:
    """What no single option can tell: raises UserError for options that contradict each other.

    The options of factors are accepted, without effect, for a model that has none, so that one command line
    serves for comparing models; a forgotten hyper-parameter of an optimizer would be a silent mistake.
    """
    if run.model.name == "lr" and not run.model.linear:
        raise UserError(
            "model.name = lr learns nothing else than the linear weights: model.linear cannot be false"
        )
    for f in dataclasses.fields(OptimizerOptions):
        key = f"optimizer.{f.name}"
        if getattr(run.optimizer, f.name) != f.default and not applies(run, key):
            owner = OWNERS[key][1][0]
            raise UserError(f"{key} belongs to {owner} and optimizer.name is {run.optimizer.name}")
    if run.data.label_map and run.data.labels == "soft":
        raise UserError("data.label_map makes labels 0 and 1: it cannot be used with data.labels = soft")
    if run.optimizer.sums == "block" and run.model.name != "ffm":
        raise UserError(f"optimizer.sums = block is for model.name = ffm, not {run.model.name}")
    if run.model.storage != "float32" and run.optimizer.sums != "block":
        raise UserError(f"model.storage = {run.model.storage} needs optimizer.sums = block")
    _check_monitor(run)
    _check_ps(run.ps)
    if run.model.unseen == "start" and (run.ps.admit_after > 1 or run.ps.evict_age):
        raise UserError(
            "model.unseen = start: a key without parameters would count with starting weights, which "
            "ps.admit_after and ps.evict_age are to prevent"
        )
    _check_node(run)


def _check_node(run: Run) -> None:
    """One copy of the model on a node: nothing travels, and no gradients are summed."""
    if run.ring.replica != "node":
        return
    if run.mode == "ps":
        raise UserError("ring.replica = node is for mode ring: in mode ps the servers keep the model")
    if run.train.sync == "exact":
        raise UserError("ring.replica = node learns row by row: it cannot be used with train.sync = exact")
    if run.train.sync == "auto" and run.train.batch_size is not None:
        raise UserError("ring.replica = node learns row by row: it cannot be used with train.batch_size")
    for key in ("codec", "top_k", "dense_above"):
        given = getattr(run.ring, key)
        if given != RingOptions.__dataclass_fields__[key].default:
            raise UserError(
                f"ring.{key} = {given} is about gradients on the wire; with ring.replica = node none travel"
            )


def _check_ps(ps: PsOptions) -> None:
    if ps.delay != "none" and ps.consistency == "bsp":
        raise UserError(
            f"ps.delay = {ps.delay} corrects late gradients; none is late in ps.consistency = bsp"
        )
    if ps.evict_hits and not ps.evict_age:
        raise UserError("ps.evict_hits spares keys from ps.evict_age, which is 0")
    rank, _, factor = ps.slow.partition(":")
    if ps.slow and not (rank.isdecimal() and factor.isdecimal() and int(factor) > 0):
        raise UserError(f"ps.slow = {ps.slow}: expected RANK:FACTOR, for instance 3:10")


def _check_monitor(run: Run) -> None:
    monitor, logistic = run.train.monitor, run.model.loss == "logistic"
    if monitor.endswith("logloss") and not logistic:
        raise UserError(f"train.monitor = {monitor} needs model.loss = logistic, it is {run.model.loss}")
    usual = (
        "valid_logloss" if logistic else "valid_rmse"
    )  # what auto stands for, with validation files or not
    if monitor.startswith("valid_") and monitor != usual and not run.data.valid:
        raise UserError(f"train.monitor = {monitor} needs validation files: data.valid is empty")
