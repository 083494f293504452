"""Model files: what is written comes back bit for bit, and nothing but a whole file is ever read."""

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from lightctr_mpi import checkpoint
from lightctr_mpi.checkpoint import Layout, ModelMeta, history_columns, history_records
from lightctr_mpi.checkpoint.attributes import crc32
from lightctr_mpi.checkpoint.describe import as_text, describe, non_defaults
from lightctr_mpi.checkpoint.export import export_text, import_text
from lightctr_mpi.config import DataOptions
from lightctr_mpi.errors import DataError, UserError

LAYOUTS = {
    "lr": Layout(7, None, (("linear", ()),), (("bias", (1,)),), ("z", "n")),
    "fm": Layout(7, None, (("linear", ()), ("factors", (3,))), (("bias", (1,)),), ("squares",)),
    "ffm": Layout(7, 2, (("factors", (2, 4)),), (), ("squares",)),
    "empty": Layout(0, 0, (("factors", (0, 4)),), (("bias", (1,)),), ()),
}


def make_meta(**progress):
    return ModelMeta(
        config_toml=f"seed = 9\n[train]\nepochs = 4\n[data]\nblock_rows = {DataOptions().block_rows}\n",
        model={"name": "fm", "k": 3, "norm": True, "init_scale": None, "note": "größer"},
        optimizer={"name": "adagrad", "lr": 0.1, "limits": [1, 2.5, None]},
        reader={"format": "csv", "schema": {"label": "click", "ignore": []}, "hashing_seed": 5},
        hashing_seed=2**64 - 1,
        progress={"epoch": 2, "rows_done": 123, "loss": 0.1 + 0.2, "best_value": None, "seed": 2**62}
        | progress,
        history={"epoch": [1, 2], "valid_logloss": [0.5, 1 / 3], "valid_auc": [None, 0.75]},
    )


def make_arrays(layout, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, part in layout.parts().items():
        if name.endswith("/keys"):
            arrays[name] = np.arange(3, 3 + 4 * part.shape[0], 4).astype(part.dtype)
        else:
            arrays[name] = rng.normal(size=part.shape).astype(np.float32)
    return arrays


def save(path, layout, arrays=None, meta=None, rows=3, **options):
    """Write with chunks of `rows` rows."""
    arrays = make_arrays(layout) if arrays is None else arrays
    per_key = [name for name, part in layout.parts().items() if part.per_key]
    chunks = (
        (a, min(a + rows, layout.n_keys), {name: arrays[name][a : a + rows] for name in per_key})
        for a in range(0, layout.n_keys, rows)
    )
    dense = {name: a for name, a in arrays.items() if name not in per_key and not name.endswith("/keys")}
    keys, fields = arrays["features/keys"], arrays.get("fields/keys")
    checkpoint.write(str(path), meta or make_meta(), layout, keys, fields, chunks, dense, **options)
    return arrays


@pytest.fixture
def fm(tmp_path):
    path = tmp_path / "model.h5"
    save(path, LAYOUTS["fm"])
    return path


@pytest.mark.parametrize("name", LAYOUTS)
def test_everything_comes_back_bit_for_bit(tmp_path, name):
    layout, path = LAYOUTS[name], tmp_path / "new folder" / "m.h5"
    arrays = save(path, layout, verify=True)
    with checkpoint.open(path) as model:
        assert model.layout == layout and model.n_keys == layout.n_keys
        assert model.meta == make_meta()
        assert list(model.meta.history) == ["epoch", "valid_logloss", "valid_auc"]
        types = [
            type(v) for v in (model.meta.progress["loss"], model.meta.model["norm"], model.meta.model["k"])
        ]
        assert types == [float, bool, int]
        assert set(model.parts) == set(arrays)
        for part, array in arrays.items():
            read = model.read(part)
            assert read.dtype == array.dtype and read.tobytes() == array.tobytes()
        assert np.array_equal(model.keys, arrays["features/keys"])
        assert (model.field_keys is None) == (layout.n_fields is None)
        if layout.n_keys:
            table = f"parameters/{layout.tables[-1][0]}"
            assert np.array_equal(model.rows(table, 2, 6), arrays[table][2:6])
            pieces = list(model.pieces(table, 2 * arrays[table][0].nbytes))
            assert [a for a, _, _ in pieces] == [0, 2, 4, 6] and pieces[-1][1] == 7
            assert np.array_equal(np.concatenate([p for _, _, p in pieces]), arrays[table])
    assert os.listdir(path.parent) == ["m.h5"]


def test_numbers_that_are_no_numbers_survive(tmp_path):
    layout = LAYOUTS["lr"]
    arrays = make_arrays(layout)
    arrays["parameters/linear"][:3] = [np.nan, np.inf, -0.0]
    save(tmp_path / "m.h5", layout, arrays)
    with checkpoint.open(tmp_path / "m.h5") as model:
        assert model.read("parameters/linear").tobytes() == arrays["parameters/linear"].tobytes()
    info = describe(tmp_path / "m.h5")
    assert info["parameters"]["linear"]["nonfinite"] == 2
    json.dumps(info, allow_nan=False)


def test_every_object_explains_itself_and_data_is_contiguous(fm):
    missing = []

    def look(name, item):
        if "description" not in item.attrs or "crc32" not in item.attrs:
            missing.append(name)

    with h5py.File(fm) as file:
        file.visititems(look)
        assert not missing
        for name, part in LAYOUTS["fm"].parts().items():
            assert file[name].chunks is None and file[name].id.get_offset() is not None
            assert tuple(d.label for d in file[name].dims) == part.dims
            assert file[name].attrs["crc32"] == crc32(file[name][()].tobytes())
        assert [d.label for d in file["parameters/factors"].dims] == ["key", "factor"]


def test_crc32_is_the_standard_one():
    assert crc32(b"123456789") == 0xCBF43926  # the check value of CRC-32/ISO-HDLC
    digits = np.frombuffer(b"123456789", np.uint8)
    assert crc32(digits[4:], crc32(digits[:4])) == 0xCBF43926 and crc32(digits[:0]) == 0


def test_history_changes_between_records_and_columns():
    records = [{"epoch": 1, "auc": None}, {"epoch": 2, "auc": 0.5, "late": 1.0}]
    columns = history_columns(records)
    assert columns == {"epoch": [1, 2], "auc": [None, 0.5], "late": [None, 1.0]}
    assert history_records(columns) == [{"epoch": 1, "auc": None, "late": None}, records[1]]
    assert history_records({}) == []


# --- files that cannot be used -----------------------------------------------------------------------------


def refuse(path, *words, verify=True):
    with pytest.raises(UserError) as caught:
        checkpoint.open(path, verify=verify)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text
    for word in words:
        assert word in text
    return text


def test_missing_empty_and_foreign_files(tmp_path):
    refuse(tmp_path / "none.h5", "No such file")
    refuse(tmp_path, "folder")
    (tmp_path / "empty.h5").touch()
    refuse(tmp_path / "empty.h5", "empty")
    (tmp_path / "text.h5").write_text("1 0:1:1\n" * 100)
    refuse(tmp_path / "text.h5", "not an HDF5 file")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    refuse(tmp_path / "other.h5", "not written by this program")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.attrs["format"] = "lightctr_mpi rows"
    refuse(tmp_path / "rows.h5", "not a model", "lightctr_mpi rows")


def test_newer_schema_is_refused_by_its_number(fm):
    with h5py.File(fm, "r+") as file:
        file.attrs["schema_version"] = 3
        file.attrs["program_version"] = "9.8"
    refuse(fm, "schema version 3", "9.8", "up to 2")


def test_truncated_at_any_length(fm):
    whole = fm.read_bytes()
    for length in range(1, len(whole), len(whole) // 40):
        fm.write_bytes(whole[:length])
        text = refuse(fm)
        if length > 100:
            assert "truncated" in text and f"{len(whole):,} were written" in text


def test_what_is_missing_is_named(fm):
    for name in (
        "parameters/factors",
        "features/keys",
        "optimizer/squares/linear",
        "config",
        "history/epoch",
    ):
        with h5py.File(fm, "r+") as file:
            file.move(name, "elsewhere")
        refuse(fm, f"dataset /{name} is missing")
        with h5py.File(fm, "r+") as file:
            file.move("elsewhere", name)
    checkpoint.open(fm).close()
    with h5py.File(fm, "r+") as file:
        del file["progress"]
    refuse(fm, "group /progress is missing")


def test_wrong_shape_and_type_are_named(fm):
    for value in (np.zeros((7, 2), np.float32), np.zeros((7, 3), np.float64), np.zeros((6, 3), np.float32)):
        with h5py.File(fm, "r+") as file:
            del file["parameters/factors"]
            file["parameters/factors"] = value
        refuse(fm, "/parameters/factors", str(value.shape[1]), str(value.dtype), "float32[7, 3]")


def test_changed_values_fail_the_checksum(fm):
    with h5py.File(fm, "r+") as file:
        file["optimizer/squares/factors"][3, 1] += 1
    refuse(fm, "checksum mismatch in dataset /optimizer/squares/factors")
    with checkpoint.open(fm, verify=False) as model:
        model.read("parameters/factors")
        with pytest.raises(UserError, match="checksum"):
            model.read("optimizer/squares/factors")
        with pytest.raises(UserError, match="checksum"):
            list(model.pieces("optimizer/squares/factors"))


def test_changed_attributes_fail_the_checksum(fm):
    with h5py.File(fm, "r+") as file:
        file["progress"].attrs["loss"] = 0.3
    refuse(fm, "attributes of /progress", verify=False)


def test_no_flipped_byte_goes_unnoticed(fm, tmp_path):
    """A changed byte either is refused or does not matter (free space): no other values come out."""
    whole, broken = fm.read_bytes(), tmp_path / "broken.h5"
    with checkpoint.open(fm) as model:
        expected = {name: model.read(name).tobytes() for name in model.parts}
    rng, refused = random.Random(4), 0
    for _ in range(80):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        broken.write_bytes(data)
        try:
            with checkpoint.open(broken) as model:
                assert model.meta == make_meta()
                assert {name: model.read(name).tobytes() for name in model.parts} == expected
        except UserError:
            refused += 1
    assert refused > 40


# --- writing -----------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_drains_its_senders(fm):
    before, seen = fm.read_bytes(), []

    def chunks():
        for a in range(7):
            seen.append(a)
            yield a, a + 1, {}

    arrays = make_arrays(LAYOUTS["fm"])
    target = fm / "no folder" / "m.h5"  # a file where a folder should be
    with pytest.raises(UserError, match="cannot write .*m.h5: Not a directory"):
        checkpoint.write(str(target), make_meta(), LAYOUTS["fm"], arrays["features/keys"], None, chunks(), {})
    assert seen == list(range(7))
    assert fm.read_bytes() == before and os.listdir(fm.parent) == ["model.h5"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda a, b, rows: (a, b, rows | {"parameters/linear": rows["parameters/linear"].astype(np.float64)}),
        lambda a, b, rows: (a, b, {k: v for k, v in rows.items() if k != "parameters/linear"}),
        lambda a, b, rows: (a + 1, b + 1, rows),
        lambda a, b, rows: (a, b, rows | {"parameters/factors": rows["parameters/factors"][:, :2]}),
        lambda a, b, rows: (a, b, {k: v[: 6 - a] for k, v in rows.items()}),
    ],
    ids=["type", "missing", "gap", "shape", "too few"],
)
def test_arrays_that_do_not_fit_are_refused(fm, damage):
    before, layout, arrays = fm.read_bytes(), LAYOUTS["fm"], make_arrays(LAYOUTS["fm"])
    per_key = [name for name, part in layout.parts().items() if part.per_key]
    chunks = [damage(0, 7, {name: arrays[name] for name in per_key})]
    dense = {name: arrays[name] for name in ("parameters/bias", "optimizer/squares/bias")}
    with pytest.raises(ValueError):
        checkpoint.write(str(fm), make_meta(), layout, arrays["features/keys"], None, chunks, dense)
    assert fm.read_bytes() == before and os.listdir(fm.parent) == ["model.h5"]


FULL_DISK = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from test_checkpoint import LAYOUTS, save
from lightctr_mpi.config import DataOptions
from lightctr_mpi.errors import UserError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    save(sys.argv[1], LAYOUTS["fm"])
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("room", [10, 3000, 9000, -100])
def test_a_full_disk_is_an_error_and_no_crash(fm, room):
    """The limit on file size stands in for a full disk; negative: that much less than the file needs."""
    size = room if room > 0 else fm.stat().st_size + room
    before = fm.read_bytes()
    command = [sys.executable, "-c", FULL_DISK, fm, Path(__file__).parent, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"cannot write {fm}: File too large\n"
    assert fm.read_bytes() == before and os.listdir(fm.parent) == ["model.h5"]


def write_until_killed(path, told):
    """Child process: save step after step, tell the number of each through the pipe."""
    for step in itertools.count(1):
        save(path, LAYOUTS["fm"], meta=make_meta(step=step))
        os.write(told, b"%d\n" % step)


def test_killed_at_any_moment_the_previous_file_opens(fm):
    rng = random.Random(8)
    for _ in range(25):
        listen, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write_until_killed(fm, told)
            finally:
                os._exit(1)
        os.close(told)
        with os.fdopen(listen) as lines:
            assert lines.readline() == "1\n"
            time.sleep(rng.random() * 0.05)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            last = int(["1", *lines.read().split()][-1])
        with checkpoint.open(fm) as model:
            # the file may be one step ahead of the last step that was told
            assert 0 <= model.meta.progress["step"] - last <= 1


def test_writing_needs_memory_for_a_chunk_only(tmp_path):
    layout = Layout(200_000, None, (("factors", (64,)),), (), ())
    code = f"""
import resource, sys
import numpy as np
from lightctr_mpi import checkpoint
from lightctr_mpi.checkpoint import Layout, ModelMeta
layout, rows = {layout!r}, np.ones((5000, 64), np.float32)
keys = np.arange(layout.n_keys, dtype=np.uint64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
chunks = ((a, a + 5000, {{"parameters/factors": rows}}) for a in range(0, layout.n_keys, 5000))
checkpoint.write(sys.argv[1], ModelMeta(), layout, keys, None, chunks, verify=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.h5"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40_000  # kB; the array has 51,200


# --- the folder of a run -----------------------------------------------------------------------------------


def test_newest_passes_over_what_cannot_be_used(tmp_path):
    folder, told = tmp_path / "checkpoints", []
    assert checkpoint.newest(tmp_path) is None
    for name in ("b.h5", "c.h5", "a.h5"):
        save(folder / name, LAYOUTS["lr"])
    assert checkpoint.newest(tmp_path, told.append) == str(folder / "a.h5") and told == []
    with h5py.File(folder / "a.h5", "r+") as file:
        file["parameters/linear"][0] += 1
    (folder / "d.h5").write_bytes((folder / "c.h5").read_bytes()[:-10])
    (folder / ".e.h5.123.partial").write_bytes(b"half")
    assert checkpoint.newest(tmp_path, told.append) == str(folder / "c.h5")
    assert len(told) == 2 and "truncated" in told[0] and "checksum" in told[1]
    # times of the files do not count: a copied folder keeps its order
    shutil.copy(folder / "b.h5", folder / "z.h5")
    assert checkpoint.newest(tmp_path) == str(folder / "c.h5")


def test_prune_keeps_the_newest(tmp_path):
    folder = tmp_path / "checkpoints"
    for name in ("3.h5", "1.h5", "2.h5"):
        save(folder / name, LAYOUTS["lr"])
    (folder / "broken.h5").write_bytes(b"x")
    for name, age in (("old", 7200), ("new", 0)):
        leftover = folder / f".{name}.h5.1.partial"
        leftover.touch()
        os.utime(leftover, (time.time() - age,) * 2)
    assert checkpoint.prune(tmp_path, 2) == [str(folder / "3.h5")]
    assert sorted(os.listdir(folder)) == [".new.h5.1.partial", "1.h5", "2.h5", "broken.h5"]
    assert checkpoint.prune(tmp_path, 2) == []


def test_publish_links_and_replaces(tmp_path, monkeypatch):
    folder, model = tmp_path / "checkpoints", tmp_path / "model.h5"
    first, second = folder / "1.h5", folder / "2.h5"
    save(first, LAYOUTS["lr"], meta=make_meta(step=1))
    save(second, LAYOUTS["lr"], meta=make_meta(step=2))
    checkpoint.publish(first, model)
    assert model.samefile(first)
    checkpoint.publish(first, model)  # again: both names belong to one file already
    checkpoint.publish(second, model)
    first.unlink()
    second.unlink()
    with checkpoint.open(model) as opened:
        assert opened.meta.progress["step"] == 2

    def no_links(*_):
        raise OSError(95, "Operation not supported")

    save(first, LAYOUTS["lr"], meta=make_meta(step=3))
    monkeypatch.setattr(os, "link", no_links)
    checkpoint.publish(first, model)
    with checkpoint.open(model) as opened:
        assert opened.meta.progress["step"] == 3 and not model.samefile(first)
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "model.h5"]
    with pytest.raises(UserError, match="cannot read model .*none.h5: No such file"):
        checkpoint.publish(folder / "none.h5", model)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write .*model.h5: "):
        checkpoint.publish(first, tmp_path / "file" / "model.h5")


# --- for people --------------------------------------------------------------------------------------------


def test_describe(fm):
    with checkpoint.open(fm) as model:
        factors, linear = model.read("parameters/factors"), model.read("parameters/linear")
        keys = model.keys
    info = describe(fm)
    json.dumps(info, allow_nan=False)
    about = info["parameters"]["factors"]
    assert about["norm"] == pytest.approx(np.linalg.norm(factors.astype(np.float64)))
    assert (about["min"], about["max"], about["shape"]) == (factors.min(), factors.max(), [7, 3])
    order = np.argsort(-np.abs(linear))
    assert [e["key"] for e in info["largest_linear"]] == keys[order].tolist()
    assert [e["weight"] for e in info["largest_linear"]] == linear[order].tolist()
    assert info["history"][0] == {"epoch": 1, "valid_logloss": 0.5, "valid_auc": None}
    assert info["config"] == {"seed": 9, "train.epochs": 4}
    assert info["bytes"] == fm.stat().st_size and info["keys"] == 7 and info["fields"] is None
    text = as_text(info)
    for word in ("fm, 7 features", "train.epochs = 4", "squares/factors", "0.333333", str(keys[order[0]])):
        assert word in text
    assert "data.block_rows" not in text  # as by default


def test_describe_an_empty_model(tmp_path):
    save(tmp_path / "m.h5", LAYOUTS["empty"], meta=ModelMeta())
    info = describe(tmp_path / "m.h5")
    assert info["parameters"]["factors"]["min"] is None and info["history"] == []
    assert "No finished epoch" in as_text(info)


def test_non_defaults_of_text_that_is_no_toml():
    assert non_defaults("= nothing") == {}
    assert non_defaults("[model]\nname = 'fm'\nk = 3\n[later]\nx = 1\n") == {"model.k": 3, "later.x": 1}


@pytest.mark.parametrize("name", LAYOUTS)
def test_text_export_and_back(tmp_path, name):
    layout, model, text = LAYOUTS[name], tmp_path / "m.h5", tmp_path / "m.txt"
    arrays = save(model, layout)
    export_text(str(model), str(text))
    import_text(str(text), str(tmp_path / "back.h5"))
    with checkpoint.open(tmp_path / "back.h5") as back:
        assert back.meta.model == make_meta().model and back.meta.reader == make_meta().reader
        assert back.meta.hashing_seed == 2**64 - 1 and back.meta.config_toml == make_meta().config_toml
        assert set(back.parts) == {n for n in arrays if not n.startswith("optimizer/")}
        for part in back.parts:
            assert back.read(part).tobytes() == arrays[part].tobytes()
    assert sorted(os.listdir(tmp_path)) == ["back.h5", "m.h5", "m.txt"]


def test_text_export_reads_like_its_description(fm, tmp_path):
    export_text(str(fm), str(tmp_path / "m.txt"))
    lines = (tmp_path / "m.txt").read_text().splitlines()
    assert lines[3] == "# columns key linear factors[3]"
    with checkpoint.open(fm) as model:
        linear, factors = model.read("parameters/linear"), model.read("parameters/factors")
    words = lines[4 + 2].split()
    assert words[0] == "11"  # keys are 3, 7, 11, ...
    assert np.array(words[1:], np.float32).tolist() == [linear[2], *factors[2].tolist()]


def test_malformed_text_names_the_line(fm, tmp_path):
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    export_text(str(fm), str(good))
    lines = good.read_text().splitlines(keepends=True)
    cases = {
        1: (["key,weight\n", *lines[1:]], "text model"),
        2: ([lines[0], "# {}\n", *lines[2:]], "JSON"),
        3: ([*lines[:2], "# bias 1 2\n", *lines[3:]], "1 numbers"),
        5: ([*lines[:4], "٣ 1 2 3 4\n", *lines[5:]], "keys in ascending order"),
        6: ([*lines[:5], lines[4], *lines[6:]], "keys in ascending order"),
        7: ([*lines[:6], "11 1 2 3\n", *lines[7:]], "a key and 4 values"),
        8: ([*lines[:7], "15 1 x 3 4\n", *lines[8:]], "numbers"),
        11: (lines[:-1], "7 features"),
        12: ([*lines, "99 1 2 3 4\n"], "7 features"),
    }
    for number, (text, expected) in cases.items():
        bad.write_text("".join(text))
        with pytest.raises(DataError) as caught:
            import_text(str(bad), str(tmp_path / "new.h5"))
        assert f"bad.txt:{number}: " in str(caught.value) and expected in str(caught.value)
    with pytest.raises(UserError, match="none.txt: No such file"):
        import_text(str(tmp_path / "none.txt"), str(tmp_path / "new.h5"))
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not text"):
        import_text(str(bad), str(tmp_path / "new.h5"))
    assert not (tmp_path / "new.h5").exists()


def test_the_documentation_predicts(tmp_path, monkeypatch):
    """The five lines of docs/checkpoint.md against the definition of an FM, pair by pair."""
    docs = (Path(__file__).parents[1] / "docs" / "checkpoint.md").read_text()
    snippet = re.search(r"```python\n(.*?)```", docs, re.S)[1]
    arrays = save(tmp_path / "model.h5", LAYOUTS["fm"])
    monkeypatch.chdir(tmp_path)
    result = {}
    exec(snippet, result)
    result["model"].close()
    assert arrays["features/keys"].tolist()[:2] == [3, 7]
    x = np.array([1.0, 0.5]) / np.sqrt(1.25)
    w, v = arrays["parameters/linear"], arrays["parameters/factors"]
    logit = arrays["parameters/bias"][0] + x[0] * w[0] + x[1] * w[1] + x[0] * x[1] * (v[0] @ v[1])
    assert result["probability"] == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-6)
