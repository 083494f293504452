"""Inputs that broke other tools, and the program run on them in a folder of its own.

`contents` makes every input file, small and from a fixed seed. With the variable LIGHTCTR_CASES set to a
folder, the tests run a second time over the files of the same names there.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import reference

from lightctr_mpi import cli, mpi
from lightctr_mpi.checkpoint.export import import_text
from lightctr_mpi.errors import UserError

# Taken out of the environment: the program refuses variables with its prefix that it does not know.
GIVEN = os.environ.pop("LIGHTCTR_CASES", None)
SOURCES = ("made", "given") if GIVEN else ("made",)

WIDTH, FIELDS = 9, 4  # feature numbers of a field, fields of the good files
ALONE = mpi.World(None, 0, 1, None, 0, 1, "here", None)  # one rank, without MPI


def good_rows(n: int, seed: int, weights_seed: int = 1) -> list[str]:
    """libffm lines `label 0:a:1 1:b:1 2:c:1 3:d:1` whose labels follow a planted linear model."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, WIDTH, (n, FIELDS)) + WIDTH * np.arange(FIELDS)
    planted = np.random.default_rng(weights_seed).normal(scale=1.3, size=WIDTH * FIELDS)
    labels = rng.random(n) < 1 / (1 + np.exp(-planted[ids].sum(axis=1)))
    return [
        f"{int(y)} " + " ".join(f"{f}:{j}:1" for f, j in enumerate(row))
        for y, row in zip(labels, ids, strict=True)
    ]


def criteo_rows(n: int, seed: int) -> list[str]:
    """Lines of 40 columns: label, 13 counts (some negative), 26 categories; a fifth of the cells is empty."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        counts = [str(c) for c in rng.choice([-2, -1, 0, 1, 5, 120], 13)]
        words = [f"{w:08x}" for w in rng.integers(0, 2**32, 26)]
        cells = ["" if rng.random() < 0.2 else cell for cell in counts + words]
        rows.append("\t".join([str(i % 2), *cells]))
    return rows


def _text(rows: list[str], end: str = "\n") -> bytes:
    return "".join(row + end for row in rows).encode()


def _instead(rows: list[str], line: int, text: str) -> list[str]:
    return [*rows[: line - 1], text, *rows[line:]]


def _before(rows: list[str], *insertions: tuple[int, str]) -> list[str]:
    """Each text becomes the line of its number (in ascending order)."""
    rows = list(rows)
    for line, text in insertions:
        rows.insert(line - 1, text)
    return rows


def contents() -> dict[str, bytes]:
    """Name -> content of every input."""
    good, test = good_rows(200, 0), good_rows(50, 1)
    words = [row.split(" ") for row in good]
    svm = [[int(w.split(":")[1]) for w in row[1:]] for row in words]
    spaces = ["  " + "  ".join(row) + " " if i % 3 == 0 else "\t".join(row) for i, row in enumerate(words)]
    criteo = criteo_rows(12, 2)
    pairs = [("1 0:{}:1 1:12:1", "0 0:{}:1 1:12:1")[i % 2] for i in range(40)]
    raw = [
        f"{i % 5 % 2} 0:{i % 3}:{9567 + 31 * i} 1:{5 + i % 3}:{31835 - 17 * i} 2:{8 + i % 4}:1"
        for i in range(100)
    ]
    files = {
        "good200.ffm": good,
        "good50_test.ffm": test,
        "all_zero_row.ffm": _before(good, (58, "1 0:1:0 1:12:0")),
        "bad_line_late.ffm": _instead(good, 181, "1 0:3:1 1:xx:1"),
        "nan_value.ffm": _instead(good, 100, "1 0:3:1 1:12:1 2:19:1 3:35:nan"),
        "inf_value.ffm": _instead(good, 100, "1 0:3:1 1:12:1 2:19:1 3:35:inf"),
        "raw_counts.ffm": raw,
        "blank_lines.ffm": [*_before(good[:51], (21, "")), ""],
        "label_only_rows.ffm": _before(good[:30], (4, "1"), (18, "0")),
        "libsvm_given_to_ffm.ffm": ["1 3:1 5:1", "0 2:1 5:1", "1 1:1 3:1 4:1"],
        "header_line.ffm": ["label f0:id:v f1:id:v", *good[:10]],
        "comments.svm": ["# made by a tool", "1 1:0.5 3:1 # positive", "-1 2:1", "+1 1:1 2:1 3:1"],
        "labels_m1_p1.ffm": [("+1" if row[0] == "1" else "-1") + row[1:] for row in good],
        "labels_1_2.ffm": [("2" if row[0] == "1" else "1") + row[1:] for row in good[:40]],
        "label_soft.ffm": ["0.7 0:1:1 1:12:1", "0 0:2:1 1:11:1"],
        "id_over_2_32.ffm": [row.format(2**32 + 5 if i % 2 == 0 else 5) for i, row in enumerate(pairs)],
        "one_huge_id.ffm": [*good[:20], "1 0:50000000:1 1:12:1"],
        "negative_id.ffm": ["1 0:-1:1 1:12:1"],
        "negative_field.ffm": ["1 -1:3:1 1:12:1"],
        "id_2_64.ffm": ["1 0:18446744073709551616:1 1:12:1"],
        "word_id.ffm": ["1 0:abc:1 1:12:1"],
        "underscore_id.ffm": ["1 0:1_000:1 1:12:1"],
        "arabic_digit.ffm": ["1 0:\u0663:1 1:12:1"],
        "unseen_at_predict.ffm": ["1 0:1:1 1:999:1 7:3:1", "0 0:2:1 1:12:1"],
        "duplicate_in_row.ffm": [row.format("1:1 0:1" if i % 2 == 0 else "2") for i, row in enumerate(pairs)],
        "zero_based.svm": [" ".join([w[0], *(f"{j}:1" for j in r)]) for w, r in zip(words, svm, strict=True)],
        "one_based.svm": [
            " ".join([w[0], *(f"{j + 1}:1" for j in r)]) for w, r in zip(words, svm, strict=True)
        ],
        "unsorted.ffm": [" ".join([row[0], *row[:0:-1]]) for row in words],
        "criteo_train.tsv": criteo,
        "criteo_test_nolabel.tsv": [row.partition("\t")[2] for row in criteo],
        "empty.ffm": [],
        "one_class.ffm": [row for row in good if row[0] == "1"][:30],
    }
    same = [row.replace("0:1:1 0:1:1", "0:1:2") for row in files["duplicate_in_row.ffm"]]
    made = {name: _text(rows) for name, rows in files.items()}
    return made | {
        "same_as_duplicate.ffm": _text(same),
        "crlf.ffm": _text(good, "\r\n"),
        "spaces_tabs.ffm": "\n".join(spaces).encode(),
    }


def fill(folder: Path, source: str) -> None:
    """Write all inputs ("made") or copy those of the folder that the user named ("given")."""
    for name, data in contents().items():
        if source == "given":
            shutil.copyfile(Path(str(GIVEN)) / name, folder / name)
        else:
            (folder / name).write_bytes(data)


class Model:
    """What a model file says, read with h5py alone.

    Attributes:
        name, norm, keys (list of int), fields (list of int).
        arrays: dataset name -> array of all parameters and of the optimizer's state.
        params: parameters as reference.py has them.
    """

    def __init__(self, path: Path):
        self.path = path
        with h5py.File(path) as file:
            self.name, self.norm = file["model"].attrs["name"], bool(file["model"].attrs["norm"])
            self.keys = file["features/keys"][:].tolist()
            self.fields = file["fields/keys"][:].tolist() if "fields/keys" in file else []
            self.progress = dict(file["progress"].attrs)
            self.arrays = {}
            for group in ("parameters", "optimizer"):
                file[group].visititems(self._keep)
        self.params = {
            name.partition("/")[2]: array.astype(np.float64)
            for name, array in self.arrays.items()
            if name.startswith("parameters/")
        }

    def _keep(self, _: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            self.arrays[str(item.name).lstrip("/")] = item[()]

    def all_finite(self) -> bool:
        return all(np.isfinite(array).all() for array in self.arrays.values())

    def same_as(self, other: Model) -> bool:
        """Whether keys and all arrays are equal bit by bit."""
        return (self.keys, self.fields, list(self.arrays)) == (
            other.keys,
            other.fields,
            list(other.arrays),
        ) and all(array.tobytes() == other.arrays[name].tobytes() for name, array in self.arrays.items())

    def logits(self, rows: list[tuple]) -> np.ndarray:
        """Of rows as `parse` gives them, computed pair by pair in float64 (reference.py)."""
        key, field = ({j: i for i, j in enumerate(known)} for known in (self.keys, self.fields))
        found = []
        for _, fields, ids, values in rows:
            at = np.array([key.get(j, -1) for j in ids], np.int64)
            of = np.array([field.get(f, -1) for f in fields], np.int64) if self.fields else None
            factor = reference.norm_of(values, self.norm)
            found.append(reference.logit(self.name, self.params, (at, of, values), factor))
        return np.array(found)

    def probabilities(self, rows: list[tuple]) -> np.ndarray:
        return sigmoid(self.logits(rows))


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z, np.float64)))


def parse(text: str) -> list[tuple]:
    """(label, fields, ids, values) of each line of clean libffm or libsvm text; blank lines are left out."""
    rows = []
    for line in filter(None, text.splitlines()):
        label, *words = line.split()
        cells = [word.split(":") for word in words]
        fields, ids = ([int(c[i]) for c in cells] for i in (0, -2))
        rows.append((float(label), fields, ids, np.array([float(c[-1]) for c in cells])))
    return rows


def logloss(labels, probabilities) -> float:
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))


class Program:
    """The command line, called within this process: no start-up, and no MPI."""

    def __init__(self, folder: Path, capsys):
        self.folder, self._capsys = folder, capsys
        self.said = self.out = self.errors = ""

    def run(self, *words: object) -> str:
        """What the command wrote to standard output; `errors` keeps standard error."""
        self._capsys.readouterr()
        assert cli.run([str(word) for word in words]) == 0
        out, self.errors = self._capsys.readouterr()
        return out

    def refused(self, *words: object) -> str:
        """The message of the command, which must end with a user's error: one line."""
        try:
            cli.run([str(word) for word in words])
        except UserError as error:
            text = str(error)
            assert "\n" not in text
            return text
        finally:
            self.out, self.errors = self._capsys.readouterr()
        raise AssertionError(f"{words} was not refused")

    def train(self, rows: str, *flags: object, out: str = "run", name: str = "fm") -> Model:
        """Train, by default an FM; the model that is left. `said` keeps what was printed."""
        self.said = self.run("train", "--data.train", rows, "--model.name", name, "--out", out, *flags)
        return self.model(out)

    def model(self, out: str = "run") -> Model:
        return Model(self.folder / out / "model.h5")

    def history(self, out: str = "run") -> list[dict]:
        return [json.loads(line) for line in self.text(f"{out}/metrics.jsonl").splitlines()]

    def predict(self, model: Model | str, rows: str, *flags: object) -> np.ndarray:
        path = model.path if isinstance(model, Model) else model
        self.run("predict", path, rows, "-o", "p.txt", *flags)
        return np.array([float(line) for line in self.text("p.txt").splitlines()])

    def evaluate(self, model: Model | str, rows: str, *flags: object) -> dict:
        path = model.path if isinstance(model, Model) else model
        return json.loads(self.run("evaluate", path, rows, "--json", *flags))

    def text(self, name: str) -> str:
        return (self.folder / name).read_bytes().decode()

    def lines(self, name: str) -> list[str]:
        return self.text(name).splitlines()

    def write(self, name: str, *rows: str) -> str:
        (self.folder / name).write_bytes(_text(list(rows)))
        return name

    def linear(self, weights: dict[int, float], bias: float = 0.0, out: str = "made.h5") -> Model:
        """A model made by hand: LR without normalisation."""
        about = {
            "model": {"name": "lr", "k": 0, "linear": True, "bias": True, "norm": False, "loss": "logistic"},
            "reader": {"format": "libsvm", "task": "logistic"},
            "hashing_seed": 0,
            "layout": {
                "n_keys": len(weights),
                "n_fields": None,
                "tables": [["linear", []]],
                "dense": [["bias", [1]]],
                "slots": [],
            },
            "config": "",
        }
        head = [
            "# lightctr_mpi text model 1",
            "# " + json.dumps(about),
            f"# bias {bias!r}",
            "# columns key linear",
        ]
        self.write("made.txt", *head, *(f"{key} {weight!r}" for key, weight in sorted(weights.items())))
        import_text(str(self.folder / "made.txt"), str(self.folder / out))
        return Model(self.folder / out)
