"""Models in shards: one model to every reader, whole or refused, never half an old and half a new one."""

import dataclasses
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_checkpoint import LAYOUTS, make_arrays, make_meta, refuse, save

from lightctr_mpi import checkpoint, cli
from lightctr_mpi.block import Block
from lightctr_mpi.checkpoint import Layout, ModelMeta
from lightctr_mpi.checkpoint.attributes import crc32_joined
from lightctr_mpi.checkpoint.describe import as_text, describe
from lightctr_mpi.checkpoint.export import export_text
from lightctr_mpi.checkpoint.order import in_key_order
from lightctr_mpi.errors import UserError
from lightctr_mpi.predict import Scorer
from lightctr_mpi.resume import dictionaries
from lightctr_mpi.runfolder import RunFolder

N = 23


def sized(name, n_keys=N):
    return dataclasses.replace(LAYOUTS[name], n_keys=n_keys)


def arrays_of(layout, seed=0):
    """Random arrays; keys ascend over the whole range of uint64."""
    arrays = make_arrays(layout, seed)
    keys = np.random.default_rng(seed).integers(0, 2**64, layout.n_keys, np.uint64)
    assert len(set(keys.tolist())) == len(keys)
    arrays["features/keys"] = np.sort(keys)
    return arrays


def some_owners(n_keys, count, seed=1):
    """Shard of each key; of several shards, number 1 gets none."""
    numbers = [i for i in range(count) if i != 1 or count == 1]
    return np.random.default_rng(seed).choice(numbers, n_keys)


def save_shards(path, layout, arrays, owners, count, token, meta=None):
    """The shards of a model; returns their paths."""
    paths = []
    for number in range(count):
        mine = owners == number
        shard = dataclasses.replace(layout, n_keys=int(mine.sum()), dense=())
        names = set(shard.parts())
        of_shard = {name: a for name, a in arrays.items() if name in names}
        for name, part in shard.parts().items():
            if part.by_key:
                of_shard[name] = arrays[name][mine]
        paths.append(checkpoint.shard_path(path, token, number, count))
        save(paths[-1], shard, of_shard, meta, shard=(token, number, count))
    return paths


def join(path, layout, arrays, paths, token, meta=None):
    dense = {n: arrays[n] for n, part in layout.parts().items() if not part.by_key and n != "fields/keys"}
    fields = arrays.get("fields/keys")
    checkpoint.write_sharded(str(path), meta or make_meta(), layout, paths, fields, dense, token)


def save_sharded(path, layout, arrays=None, count=2, token=None, meta=None, owners=None):
    """A whole model in shards; returns its arrays in the order of the shards, and the paths of the shards."""
    arrays = arrays_of(layout) if arrays is None else arrays
    owners = some_owners(layout.n_keys, count) if owners is None else owners
    token = token or checkpoint.new_token()
    paths = save_shards(path, layout, arrays, owners, count, token, meta)
    join(path, layout, arrays, paths, token, meta)
    order = np.argsort(owners, kind="stable")
    by_key = {name for name, part in layout.parts().items() if part.by_key}
    return {name: a[order] if name in by_key else a for name, a in arrays.items()}, paths


@pytest.fixture
def model(tmp_path):
    """A model in two shards, with keys in both."""
    path = tmp_path / "run" / "model.h5"
    owners = np.arange(N) % 2
    expected, paths = save_sharded(path, sized("fm"), owners=owners)
    return SimpleNamespace(path=path, expected=expected, shards=[Path(p) for p in paths])


# --- one model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["lr", "fm", "ffm"])
def test_shards_are_one_model(tmp_path, name, count):
    layout, path = sized(name), tmp_path / "m.h5"
    expected, paths = save_sharded(path, layout, count=count)
    with checkpoint.open(path) as model:
        assert (model.layout, model.meta, model.schema_version) == (layout, make_meta(), 2)
        assert model.files == [str(path), *paths]
        assert set(model.parts) == set(expected)
        for part, array in expected.items():
            read = model.read(part)
            assert read.dtype == array.dtype and read.tobytes() == array.tobytes()
            pieces = list(model.pieces(part, 3 * array[:1].nbytes))
            assert [a for a, _, _ in pieces] == [0, *(b for _, b, _ in pieces[:-1])]
            assert all(0 < len(p) == b - a <= 3 for a, b, p in pieces)
            assert np.concatenate([p for _, _, p in pieces]).tobytes() == array.tobytes()
            for a, b in [(0, len(array)), (2, 9), (5, 6), (7, 7), (len(array) - 1, len(array))]:
                assert np.array_equal(model.rows(part, a, b), array[a:b])
        assert np.array_equal(model.keys, expected["features/keys"])
        assert np.array_equal(model.keys[model.order], np.sort(expected["features/keys"]))
    assert sorted(os.listdir(tmp_path)) == ["m.h5", "m.shards"]
    assert sorted(os.listdir(tmp_path / "m.shards")) == sorted(os.path.basename(p) for p in paths)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_hdf5_shows_one_model(tmp_path, count):
    layout = sized("ffm")
    expected, _ = save_sharded(tmp_path / "m.h5", layout, count=count)
    with h5py.File(tmp_path / "m.h5") as file:
        assert json.loads(file.attrs["shards_json"])[0][0].startswith("m.shards/")
        for name, part in layout.parts().items():
            assert file[name].is_virtual == (part.dims[0] == "key")
            assert file[name][()].tobytes() == expected[name].tobytes()
            assert file[name].attrs["crc32"] == zlib.crc32(expected[name].tobytes())
            assert file[name].attrs["description"]
            assert tuple(d.label for d in file[name].dims) == part.dims
        assert "within each shard" in file["features/keys"].attrs["description"]


@pytest.mark.parametrize("name", ["empty", "fm"])
def test_a_model_without_keys(tmp_path, name):
    layout = sized(name, 0)
    expected, _ = save_sharded(tmp_path / "m.h5", layout, count=2)
    with checkpoint.open(tmp_path / "m.h5") as model:
        assert model.n_keys == len(model.keys) == len(model.order) == 0
        for part in model.parts:
            assert model.read(part).shape == expected[part].shape
            assert sum(len(p) for _, _, p in model.pieces(part)) == len(expected[part])
    checkpoint.merge(tmp_path / "m.h5", tmp_path / "one.h5")
    with checkpoint.open(tmp_path / "one.h5") as one:
        assert one.layout == layout
    with h5py.File(tmp_path / "m.h5") as file:
        assert file["features/keys"].shape == (0,)


def test_an_old_program_refuses_all_of_it(model, tmp_path):
    """It reads up to version 1, which stays that of plain files, and looks at the version first."""
    save(tmp_path / "plain.h5", LAYOUTS["fm"])
    for path, version in [(model.path, 2), *((s, 2) for s in model.shards), (tmp_path / "plain.h5", 1)]:
        with h5py.File(path) as file:
            assert file.attrs["schema_version"] == version


def test_a_shard_is_no_model(model):
    assert "shard 1 of 2" in refuse(model.shards[1], "open the file beside")


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_join(first, second):
    assert crc32_joined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_checksums_of_long_stretches_join():
    zeros, length = bytes(1 << 20), 5 << 20
    crc = functools.reduce(lambda c, _: zlib.crc32(zeros, c), range(5), zlib.crc32(b"abc"))
    of_zeros = functools.reduce(lambda c, _: zlib.crc32(zeros, c), range(5), 0)
    assert crc32_joined(zlib.crc32(b"abc"), of_zeros, length) == crc


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 9), st.data())
def test_any_distribution_of_keys(tmp_path_factory, owners, step, data):
    layout, path = sized("fm", len(owners)), tmp_path_factory.mktemp("any") / "m.h5"
    arrays = arrays_of(layout, seed=len(owners))
    expected, _ = save_sharded(path, layout, arrays, 4, owners=np.array(owners, np.int64))
    a = data.draw(st.integers(0, len(owners)))
    b = data.draw(st.integers(a, len(owners)))
    names = ["parameters/factors", "optimizer/squares/linear"]
    with checkpoint.open(path) as model:
        for name in names:
            assert np.array_equal(model.rows(name, a, b), expected[name][a:b])
        rows = list(in_key_order(model, names, step))
    assert [(a, b) for a, b, _, _ in rows] == [
        (a, min(a + step, len(owners))) for a in range(0, len(owners), step)
    ]
    if rows:
        assert np.array_equal(np.concatenate([keys for _, _, keys, _ in rows]), arrays["features/keys"])
        for name in names:
            assert np.concatenate([r[name] for *_, r in rows]).tobytes() == arrays[name].tobytes()


# --- where the files lie -----------------------------------------------------------------------------------


def direct(path, cwd):
    """The linear weights as HDF5 shows them to a program that runs in another folder."""
    code = "import h5py, sys; print(h5py.File(sys.argv[1])['parameters/linear'][:].tobytes().hex())"
    done = subprocess.run([sys.executable, "-c", code, path], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return bytes.fromhex(done.stdout)


@pytest.mark.parametrize("stem", ["model", "100%b of %d", "größer 'x'", "a[1]*?"])
def test_a_folder_moves_as_a_whole(tmp_path, monkeypatch, stem):
    old, new, decoy = tmp_path / "old", tmp_path / "new", tmp_path / "cwd"
    expected, paths = save_sharded(old / f"{stem}.h5", sized("fm"), owners=np.arange(N) % 2)
    # a folder of the same name where the reader happens to be must not be taken for it
    shutil.copytree(old / f"{stem}.shards", decoy / f"{stem}.shards")
    for shard in (decoy / f"{stem}.shards").iterdir():
        with h5py.File(shard, "r+") as file:
            file["parameters/linear"][:] = 99
    old.rename(new)
    linear, path = expected["parameters/linear"].tobytes(), new / f"{stem}.h5"
    for where in (new, decoy, tmp_path):
        relative = os.path.relpath(path, where)
        assert direct(relative, where) == direct(path, where) == linear
        monkeypatch.chdir(where)
        for name in (path, relative):
            with checkpoint.open(name) as model:
                assert model.read("parameters/linear").tobytes() == linear
    os.symlink(path, tmp_path / "link.h5")
    monkeypatch.chdir(decoy)
    with checkpoint.open(tmp_path / "link.h5") as model:
        assert model.read("parameters/linear").tobytes() == linear
    checkpoint.publish(path, tmp_path / f"{stem}%.h5")
    assert direct(tmp_path / f"{stem}%.h5", decoy) == linear


def test_a_renamed_model_keeps_its_shards(model):
    model.path.rename(model.path.with_name("best.h5"))
    with checkpoint.open(model.path.with_name("best.h5")) as best:
        assert best.read("parameters/linear").tobytes() == model.expected["parameters/linear"].tobytes()


# --- what cannot be used -----------------------------------------------------------------------------------


def test_a_missing_shard_is_named_and_hdf5_shows_no_weights(model):
    model.shards[1].unlink()
    for verify in (True, False):
        refuse(model.path, "not complete", str(model.shards[1]), "is missing", verify=verify)
    with h5py.File(model.path) as file:
        half = len(range(0, N, 2))
        linear, keys = file["parameters/linear"][:], file["features/keys"][:]
    assert np.isnan(linear[half:]).all() and np.isfinite(linear[:half]).all()
    assert (keys[half:] == 2**64 - 1).all()
    shutil.rmtree(model.path.parent / "model.shards")
    refuse(model.path, "not complete", str(model.shards[0]), "is missing")


def test_a_truncated_shard(model):
    whole = model.shards[0].read_bytes()
    for length in (0, 100, 3000, len(whole) - 1):
        model.shards[0].write_bytes(whole[:length])
        text = refuse(model.path, str(model.shards[0]), verify=False)
        assert "truncated" in text or "empty" in text
    model.shards[0].write_bytes(whole + b"\0")
    refuse(model.path, f"has {len(whole) + 1:,} bytes, {len(whole):,} were written", verify=False)


def test_a_foreign_shard(model, tmp_path):
    other, layout = tmp_path / "other" / "model.h5", sized("fm")
    _, theirs = save_sharded(other, layout, owners=np.arange(N) % 2)
    first, second = (shard.read_bytes() for shard in model.shards)
    cases = {
        "belongs to another checkpoint": [Path(theirs[1]).read_bytes(), first],
        "is not a shard but a whole model": [save_plain(tmp_path / "plain.h5").read_bytes()],
        "not a model": [b"something else" * 100],
    }
    for words, contents in cases.items():
        for content in contents:
            model.shards[1].write_bytes(content)
            refuse(model.path, str(model.shards[1]), words, verify=False)
    model.shards[1].write_bytes(second)
    checkpoint.open(model.path).close()


def save_plain(path):
    save(path, sized("fm"), arrays_of(sized("fm")))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_keys": 4}, "has 4 keys, 11 were written"),
        ({"slots": ("other",)}, "has other arrays"),
        ({"tables": (("linear", ()), ("factors", (2,)))}, "has other arrays"),
    ],
)
def test_another_shard_of_the_same_token(model, monkeypatch, change, words):
    """What a server gone wrong may write: the name and the token are right, the content is not."""
    token, number, count = model.shards[1].stem.split("-")[0], 1, 2
    layout = dataclasses.replace(sized("fm", 11), dense=(), **change)
    save(model.shards[1], layout, arrays_of(layout), shard=(token, number, count))
    with h5py.File(model.path) as file:
        written = json.loads(file.attrs["shards_json"])[1][2]
    assert model.shards[1].stat().st_size != written
    sizes = {str(model.shards[0]): model.shards[0].stat().st_size, str(model.shards[1]): written}
    monkeypatch.setattr(os.path, "getsize", sizes.get)
    with pytest.raises(UserError, match=re.escape(words)):
        checkpoint.open(model.path, verify=False)


def test_same_shard_written_anew_with_other_numbers(model):
    token = model.shards[0].stem.split("-")[0]
    layout = dataclasses.replace(sized("fm"), n_keys=12, dense=())
    save(model.shards[0], layout, arrays_of(layout, seed=5), shard=(token, 0, 2))
    with h5py.File(model.path) as file:
        assert model.shards[0].stat().st_size == json.loads(file.attrs["shards_json"])[0][2]
    refuse(model.path, "does not belong to its shards", "/features/keys", verify=False)


def test_changed_values_of_a_shard(model):
    with h5py.File(model.shards[1], "r+") as file:
        file["optimizer/squares/factors"][3, 1] += 1
    text = refuse(model.path, str(model.shards[1]), "checksum mismatch in dataset /optimizer/squares/factors")
    assert text.startswith(str(model.path))
    with checkpoint.open(model.path, verify=False) as opened:
        opened.read("parameters/factors")
        with pytest.raises(UserError, match="checksum"):
            opened.read("optimizer/squares/factors")
        with pytest.raises(UserError, match="checksum"):
            list(opened.pieces("optimizer/squares/factors"))


def test_changed_values_of_the_model_file(model):
    with h5py.File(model.path, "r+") as file:
        file["parameters/bias"][0] += 1
    refuse(model.path, "checksum mismatch in dataset /parameters/bias")


def test_virtual_datasets_that_show_something_else(model):
    with h5py.File(model.path, "r+") as file:
        dataset = file["parameters/linear"]
        attributes = dict(dataset.attrs)
        first, second = (source.file_name for source in dataset.virtual_sources())
        shuffled = h5py.VirtualLayout((N,), "<f4")  # the shards have 12 and 11 keys
        shuffled[:11] = h5py.VirtualSource(second, "parameters/linear", (11,), "<f4")
        shuffled[11:] = h5py.VirtualSource(first, "parameters/linear", (12,), "<f4")
        del file["parameters/linear"]
        file.create_virtual_dataset("parameters/linear", shuffled).attrs.update(attributes)
    refuse(model.path, "/parameters/linear does not show its shards", verify=False)


def test_no_flipped_byte_goes_unnoticed(model):
    """A changed byte in any of the files either is refused or does not matter."""
    rng, refused = random.Random(6), {}
    for path in (model.path, *model.shards):
        whole = path.read_bytes()
        for _ in range(40):
            data = bytearray(whole)
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
            path.write_bytes(data)
            try:
                with checkpoint.open(model.path) as opened:
                    assert opened.meta == make_meta()
                    for name, array in model.expected.items():
                        assert opened.read(name).tobytes() == array.tobytes()
            except UserError as error:
                assert "\n" not in str(error) and str(model.path) in str(error)
                refused[path] = refused.get(path, 0) + 1
        path.write_bytes(whole)
    assert len(refused) == 3 and min(refused.values()) > 10


def test_keys_out_of_order(tmp_path):
    layout = sized("fm", 6)
    arrays = arrays_of(layout)
    arrays["features/keys"][2:4] = arrays["features/keys"][2]  # one key in both shards
    save_sharded(tmp_path / "m.h5", layout, arrays, owners=np.arange(6) % 2)
    with checkpoint.open(tmp_path / "m.h5") as model, pytest.raises(UserError, match="is in two of its"):
        Scorer(model)
    with pytest.raises(UserError, match=f"key {arrays['features/keys'][2]} is in two of its shards"):
        checkpoint.merge(tmp_path / "m.h5", tmp_path / "one.h5")
    arrays["features/keys"][:2] = arrays["features/keys"][[1, 0]]
    save_sharded(tmp_path / "m.h5", layout, arrays, owners=np.zeros(6, np.int64))
    with pytest.raises(UserError, match="are not ascending"):
        checkpoint.merge(tmp_path / "m.h5", tmp_path / "one.h5")
    assert not (tmp_path / "one.h5").exists()


# --- writing -----------------------------------------------------------------------------------------------


def test_names_of_shards(tmp_path):
    path = tmp_path / "checkpoints" / "epoch-00001-row-000000000000.h5"
    expected = tmp_path / "checkpoints" / "epoch-00001-row-000000000000.shards" / "abc-0-of-2.h5"
    assert checkpoint.shard_path(path, "abc", 0, 2) == str(expected)
    for token, number, count in [("a/b", 0, 2), ("", 0, 2), ("a-b", 0, 1), ("a", 2, 2), ("a", -1, 2)]:
        with pytest.raises(ValueError):
            checkpoint.shard_path(path, token, number, count)
    tokens = {checkpoint.new_token() for _ in range(100)}
    assert len(tokens) == 100 and all(checkpoint.shard_path(path, t, 0, 1) for t in tokens)


def test_committing_removes_older_shards_and_nothing_else(model):
    folder = model.path.parent / "model.shards"
    (folder / "notes.txt").write_text("mine")
    (folder / ".dead-0-of-2.h5.123.partial").touch()
    _, paths = save_sharded(model.path, sized("fm"), count=3)
    assert sorted(os.listdir(folder)) == sorted(["notes.txt", *(os.path.basename(p) for p in paths)])
    checkpoint.open(model.path).close()


def test_what_cannot_be_committed_leaves_the_old_model(model):
    layout, arrays = sized("fm"), arrays_of(sized("fm"), seed=3)
    before = model.path.read_bytes()
    paths = save_shards(model.path, layout, arrays, np.arange(N) % 2, 2, "new")
    with pytest.raises(ValueError, match="are not the shards"):
        join(model.path, layout, arrays, paths[::-1], "new")
    with pytest.raises(ValueError, match="are not the shards"):
        join(model.path, layout, arrays, [], "new")
    with pytest.raises(ValueError, match=r"\[12, 11\] keys in the shards of 24"):
        join(model.path, sized("fm", 24), arrays, paths, "new")
    with pytest.raises(ValueError, match="expected"):
        checkpoint.write_sharded(str(model.path), make_meta(), layout, paths, None, {}, "new")
    os.rename(paths[0], paths[0] + ".away")
    with pytest.raises(UserError, match="cannot write .*model.h5: .*new-0-of-2.h5: No such file"):
        join(model.path, layout, arrays, paths, "new")
    shutil.copy(paths[1], paths[0])
    with pytest.raises(ValueError, match="is shard"):
        join(model.path, layout, arrays, paths, "new")
    os.rename(paths[0] + ".away", paths[0])
    with pytest.raises(ValueError, match="has other arrays than the model"):
        wrong = dataclasses.replace(sized("fm", 11), dense=(), slots=())
        save(paths[1], wrong, arrays_of(wrong), shard=("new", 1, 2))
        join(model.path, dataclasses.replace(layout), arrays, paths, "new")
    assert model.path.read_bytes() == before
    with checkpoint.open(model.path) as opened:
        assert opened.read("parameters/linear").tobytes() == model.expected["parameters/linear"].tobytes()
    assert sorted(os.listdir(model.path.parent)) == ["model.h5", "model.shards"]


def test_reading_while_the_model_is_replaced(model, tmp_path, monkeypatch):
    """The file is read, then another takes its place with its shards: the reader starts again."""
    new = tmp_path / "new.h5"
    save_sharded(new, sized("fm"), meta=make_meta(step=2))
    find, done = checkpoint.read.Checkpoint._read_meta, []

    def replaced(self):
        if self.path == str(model.path) and not done:
            done.append(1)
            checkpoint.publish(new, model.path)
        return find(self)

    monkeypatch.setattr(checkpoint.read.Checkpoint, "_read_meta", replaced)
    with checkpoint.open(str(model.path)) as opened:
        assert opened.meta.progress["step"] == 2 and done


# --- the folder of a run -----------------------------------------------------------------------------------


def test_newest_passes_over_incomplete_ones(tmp_path):
    folder, told = tmp_path / "checkpoints", []
    paths = {}
    for name in ("1", "2", "3", "4"):
        _, paths[name] = save_sharded(folder / f"{name}.h5", sized("lr"), owners=np.arange(N) % 2)
    assert checkpoint.newest(tmp_path) == str(folder / "4.h5")
    os.unlink(paths["4"][0])
    with h5py.File(paths["3"][1], "r+") as file:
        file["parameters/linear"][2] += 1
    save_shards(folder / "5.h5", sized("lr"), arrays_of(sized("lr")), np.arange(N) % 2, 2, "never")
    assert checkpoint.newest(tmp_path, told.append) == str(folder / "2.h5")
    assert len(told) == 2 and "is missing" in told[0] and "checksum mismatch" in told[1]


def test_prune_removes_shards_with_their_model(tmp_path):
    folder = tmp_path / "checkpoints"
    paths = {}
    for name in ("1", "2", "3"):
        _, paths[name] = save_sharded(folder / f"{name}.h5", sized("lr"))
    shutil.copy(folder / "2.h5", folder / "2b.h5")  # shares the shards
    os.unlink(paths["1"][0])  # unreadable: stays for the user to look at
    left = folder / "9.shards"
    save_shards(folder / "8.h5", sized("lr"), arrays_of(sized("lr")), np.arange(N) % 2, 2, "young")
    save_shards(folder / "9.h5", sized("lr"), arrays_of(sized("lr")), np.arange(N) % 2, 2, "dead")
    shutil.copy(paths["3"][0], folder / "3.shards" / "dead-0-of-1.h5")
    (left / "mine.txt").touch()
    for shards in ("1", "3", "9"):
        for path in [*(folder / f"{shards}.shards").iterdir(), folder / f"{shards}.shards"]:
            os.utime(path, (time.time() - 7200,) * 2)
    assert checkpoint.prune(tmp_path, 2) == [str(folder / "2.h5")]
    assert sorted(os.listdir(folder)) == [
        *("1.h5", "1.shards", "2.shards", "2b.h5", "3.h5", "3.shards", "8.shards", "9.shards")
    ]
    assert os.listdir(left) == ["mine.txt"] and len(os.listdir(folder / "1.shards")) == 1
    assert sorted(os.listdir(folder / "3.shards")) == sorted(os.path.basename(p) for p in paths["3"])
    checkpoint.open(folder / "2b.h5").close()
    assert checkpoint.prune(tmp_path, 1) == [str(folder / "2b.h5")]
    assert checkpoint.newest(tmp_path) == str(folder / "3.h5")


def no_links(*_):
    raise OSError(95, "Operation not supported")


@pytest.mark.parametrize("links", [True, False])
def test_publish(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    folder, target = tmp_path / "checkpoints", tmp_path / "model.h5"
    first, second, plain = folder / "1.h5", folder / "2.h5", folder / "3.h5"
    _, shards = save_sharded(first, sized("fm"), meta=make_meta(step=1), owners=np.arange(N) % 2)
    expected, _ = save_sharded(second, sized("fm"), count=5, meta=make_meta(step=2))
    arrays = save(plain, sized("fm"), arrays_of(sized("fm")), meta=make_meta(step=3))
    for _ in range(2):  # the second time both names belong to the same files already
        checkpoint.publish(first, target)
    with checkpoint.open(target) as model, checkpoint.open(first) as source:
        assert (model.meta, model.created, model.token) == (source.meta, source.created, source.token)
        assert model.files == [str(target), *(str(tmp_path / "model.shards" / Path(s).name) for s in shards)]
        for mine, theirs in zip(model.files[1:], source.files[1:], strict=True):
            assert os.path.samefile(mine, theirs) == links
    checkpoint.publish(second, target)
    assert len(os.listdir(tmp_path / "model.shards")) == 5
    shutil.rmtree(folder / "2.shards")
    with checkpoint.open(target) as model:
        assert model.meta.progress["step"] == 2
        assert model.read("parameters/factors").tobytes() == expected["parameters/factors"].tobytes()
    assert direct(target, "/") == expected["parameters/linear"].tobytes()
    checkpoint.publish(plain, target)
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "model.h5"]
    with checkpoint.open(target) as model:
        assert model.read("parameters/linear").tobytes() == arrays["parameters/linear"].tobytes()
    checkpoint.publish(first, target)
    with checkpoint.open(target) as model:
        assert model.meta.progress["step"] == 1
    checkpoint.publish(target, target)
    checkpoint.open(target).close()
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "model.h5", "model.shards"]
    with pytest.raises(UserError, match="is missing"):
        checkpoint.publish(second, target)
    checkpoint.open(target).close()


def test_an_earlier_run_is_set_aside_with_its_shards(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create()
    path = folder.checkpoint(1, 0)
    save_sharded(path, sized("fm"))
    checkpoint.publish(path, folder.model)
    previous = folder.set_aside()
    assert os.listdir(tmp_path) == ["previous"]
    checkpoint.open(previous / "model.h5").close()
    assert checkpoint.newest(previous) == str(previous / "checkpoints" / path.name)


# --- killed ------------------------------------------------------------------------------------------------

CHANGES = {"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"}


SMALL = Layout(7, None, (("factors", (2,)),), (("bias", (1,)),))


def save_step(folder, step, name):
    """What a run does at the end of an epoch that is its best so far."""
    path, meta = folder / "checkpoints" / f"{name}.h5", ModelMeta(progress={"step": step})
    save_sharded(path, SMALL, arrays_of(SMALL, step), meta=meta, owners=np.arange(7) % 2)
    checkpoint.publish(path, folder / "model.h5")
    checkpoint.prune(folder, 1)


def killed_before(number, work):
    """Do the work in a child that dies before its n-th change of the disk; False: it got through."""
    child = os.fork()
    if child == 0:
        try:
            left = iter(range(number))

            def count():
                if next(left, None) is None:
                    os._exit(9)

            sys.addaudithook(lambda event, _: count() if event in CHANGES else None)
            fsync = os.fsync
            os.fsync = lambda descriptor: (count(), fsync(descriptor))[1]
            work()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def step_of(path):
    """Number of the step whose model this is, all of its arrays compared."""
    with checkpoint.open(path) as model:
        step = model.meta.progress["step"]
        expected = arrays_of(SMALL, step)
        for name in ("features/keys", "parameters/factors"):
            assert np.array_equal(model.read(name)[model.order], expected[name])
        assert model.read("parameters/bias") == expected["parameters/bias"]
        return step


@pytest.mark.parametrize(("name", "stride"), [("b", 1), ("a", 3)], ids=["another name", "the same name"])
def test_killed_before_any_change_a_whole_model_is_left(tmp_path, name, stride):
    """Every (or every third) moment between two changes to the disk, from the first shard to the end."""
    start, folder, seen = tmp_path / "start", tmp_path / "run", []
    save_step(start, 1, "a")
    number = 0
    while True:
        shutil.copytree(start, folder)
        killed = killed_before(number, functools.partial(save_step, folder, 2, name))
        seen.append((step_of(checkpoint.newest(folder)), step_of(folder / "model.h5")))
        if number % 6 == 0 or not killed:
            save_step(folder, 3, name)  # the run is started again and gets this far once more
            assert step_of(folder / "model.h5") == step_of(checkpoint.newest(folder)) == 3
            for path in list((folder / "checkpoints").rglob("*")):
                os.utime(path, (time.time() - 7200,) * 2)
            checkpoint.prune(folder, 1)
            assert [len(list(folder.rglob(p))) for p in ("*.h5", "*.shards")] == [6, 2]
        if not killed:
            break
        shutil.rmtree(folder)
        number += stride
    # first the checkpoint, then the model, each changes once and for good
    assert seen == sorted(seen) and set(seen) == {(1, 1), (2, 1), (2, 2)}
    assert number > 50


def test_killed_at_any_time_a_whole_model_is_left(tmp_path):
    rng = random.Random(9)
    for _ in range(10):
        save_step(tmp_path, 1, "0")
        listen, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for step in range(2, 10_000):
                    save_step(tmp_path, step, str(step % 3))
                    os.write(told, b"%d\n" % step)
            finally:
                os._exit(1)
        os.close(told)
        with os.fdopen(listen) as lines:
            assert lines.readline() == "2\n"
            time.sleep(rng.random() * 0.1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            last = int(["2", *lines.read().split()][-1])
        # at most one step ahead of the last step that was told
        assert 0 <= step_of(checkpoint.newest(tmp_path)) - last <= 1
        assert 0 <= step_of(tmp_path / "model.h5") - last <= 1


# --- the rest of the program -------------------------------------------------------------------------------


def both(tmp_path, name, count=3):
    """The same model as a plain file and in shards."""
    layout = Layout(N, 2 if name == "ffm" else None, LAYOUTS[name].tables, (("bias", (1,)),), ("squares",))
    tails = {"factors": (2, 4)} if name == "ffm" else {"linear": (), "factors": (3,)}
    if name == "ffm":
        tails = {"linear": (), **tails}
    layout = dataclasses.replace(layout, tables=tuple(tails.items()))
    meta = make_meta()
    meta.model = {"name": name, "k": 4 if name == "ffm" else 3, "norm": True, "loss": "logistic"}
    arrays = arrays_of(layout)
    save(tmp_path / "plain.h5", layout, arrays, meta)
    save_sharded(tmp_path / "sharded.h5", layout, arrays, count, meta=meta)
    return arrays


@pytest.mark.parametrize("name", ["fm", "ffm"])
def test_predictions_are_the_same_bits(tmp_path, name):
    both(tmp_path, name)
    rng, rows, length = np.random.default_rng(3), 40, 5
    block = Block(
        np.arange(0, rows * length + 1, length, dtype=np.int64),
        rng.integers(-1, N, rows * length).astype(np.int32),
        rng.integers(0, 2, rows * length).astype(np.int32),
        rng.normal(size=rows * length).astype(np.float32),
        np.zeros(rows, np.float32),
    )
    found = []
    for path in ("plain.h5", "sharded.h5"):
        with checkpoint.open(tmp_path / path, verify=False) as source:
            scorer = Scorer(source)
        logits = scorer.logits(dataclasses.replace(block))
        assert np.isfinite(logits).all() and len(set(logits.tolist())) > rows // 2
        found.append([scorer.keys.tobytes(), scorer.rows.tobytes(), logits.tobytes()])
    assert found[0] == found[1]


def test_descriptions_and_texts_are_the_same(tmp_path):
    arrays = both(tmp_path, "fm")
    arrays["parameters/linear"][:] = np.where(np.arange(N) % 3, 0.5, -0.5)  # ties go to the smaller key
    with checkpoint.open(tmp_path / "plain.h5") as plain:
        layout, meta = plain.layout, plain.meta
    save(tmp_path / "plain.h5", layout, arrays, meta)
    _, paths = save_sharded(tmp_path / "sharded.h5", layout, arrays, 3, meta=meta)
    one, many = describe(tmp_path / "plain.h5"), describe(tmp_path / "sharded.h5")
    differ = {"file", "bytes", "shards", "schema_version", "created", "parameters", "state"}
    assert {k: v for k, v in one.items() if k not in differ} == {
        k: v for k, v in many.items() if k not in differ
    }
    assert [e["key"] for e in many["largest_linear"]] == arrays["features/keys"][:10].tolist()
    for group in ("parameters", "state"):
        assert one[group].keys() == many[group].keys()
        for name, about in one[group].items():  # only the order of the sum differs
            assert many[group][name] == about | {"norm": pytest.approx(about["norm"], rel=1e-12)}
    assert one["shards"] == [] and [s["file"] for s in many["shards"]] == paths
    assert [s["keys"] for s in many["shards"]] == np.bincount(some_owners(N, 3), minlength=3).tolist()
    assert many["bytes"] == sum(os.path.getsize(p) for p in [tmp_path / "sharded.h5", *paths])
    assert "in 3 shards" in as_text(many) and "shards" not in as_text(one)
    for name in ("plain", "sharded"):
        export_text(str(tmp_path / f"{name}.h5"), str(tmp_path / f"{name}.txt"))
    assert (tmp_path / "plain.txt").read_bytes() == (tmp_path / "sharded.txt").read_bytes()
    with pytest.raises(UserError, match="part of the model"):
        export_text(str(tmp_path / "sharded.h5"), paths[1])


@pytest.mark.parametrize("name", ["fm", "ffm"])
def test_merge(tmp_path, name):
    arrays = both(tmp_path, name)
    checkpoint.merge(tmp_path / "sharded.h5", tmp_path / "one.h5")
    with checkpoint.open(tmp_path / "one.h5") as one, checkpoint.open(tmp_path / "sharded.h5") as many:
        assert (one.layout, one.meta, one.created) == (many.layout, many.meta, many.created)
        assert one.schema_version == 1 and one.files == [str(tmp_path / "one.h5")]
        for part, array in arrays.items():
            assert one.read(part).tobytes() == array.tobytes()
    checkpoint.merge(tmp_path / "one.h5", tmp_path / "again.h5")  # of a plain file: a copy
    assert (tmp_path / "again.h5").read_bytes() == (tmp_path / "one.h5").read_bytes()


def test_merge_on_the_command_line(model, tmp_path, capsys):
    one = tmp_path / "one.h5"
    assert cli.run(["inspect", str(model.path), "--json", "--merge", str(one)]) == 0
    assert json.loads(capsys.readouterr().out)["keys"] == N
    with checkpoint.open(one) as merged:
        order = np.argsort(model.expected["features/keys"])
        for name in ("features/keys", "parameters/factors", "optimizer/squares/linear"):
            assert merged.read(name).tobytes() == model.expected[name][order].tobytes()
    for target in (model.path, *model.shards):
        before = target.read_bytes()
        with pytest.raises(UserError, match="cannot write"):
            cli.run(["inspect", str(model.path), "--merge", str(target)])
        assert target.read_bytes() == before


def test_merging_needs_memory_for_a_piece_only(tmp_path):
    code = """
import resource, sys
import numpy as np
from lightctr_mpi import checkpoint
from lightctr_mpi.checkpoint import Layout, ModelMeta
n, path = 200_000, sys.argv[1]
rows = np.ones((5000, 64), np.float32)
def chunks(count):
    for a in range(0, count, 5000):
        yield a, a + 5000, {"parameters/factors": rows}
paths = [checkpoint.shard_path(path, "t", i, 2) for i in range(2)]
for i in range(2):
    keys = np.arange(i, 2 * n, 2, dtype=np.uint64)
    layout = Layout(n, None, (("factors", (64,)),))
    checkpoint.write(paths[i], ModelMeta(), layout, keys, None, chunks(n), shard=("t", i, 2))
layout = Layout(2 * n, None, (("factors", (64,)),))
checkpoint.write_sharded(path, ModelMeta(), layout, paths, None, {}, "t")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
checkpoint.merge(path, sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m.h5", tmp_path / "one.h5"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60_000  # kB; the array has 102,400
    with checkpoint.open(tmp_path / "one.h5", verify=False) as one:
        assert np.array_equal(one.keys, np.arange(400_000))


def test_going_on_from_shards_knows_all_keys(tmp_path):
    arrays = both(tmp_path, "ffm")
    keys, fields = arrays["features/keys"], arrays["fields/keys"]
    new = np.sort(np.append(keys[::2], np.uint64(8)))
    rows = SimpleNamespace(keys=new, fields=fields[:1])
    with checkpoint.open(tmp_path / "sharded.h5") as source:
        found, known = dictionaries("ffm", rows, source)
        assert np.array_equal(found, np.sort(np.append(keys, np.uint64(8)))) and np.array_equal(known, fields)
        rows.keys = keys
        assert np.array_equal(dictionaries("ffm", rows, source)[0], keys)


def test_the_documentation_holds_for_shards(tmp_path, monkeypatch):
    """The lines of docs/checkpoint.md against the definition of an FM, with keys in the order of shards."""
    docs = (Path(__file__).parents[1] / "docs" / "checkpoint.md").read_text()
    snippet = re.search(r"```python\n(.*?)```", docs, re.S)[1]
    arrays = make_arrays(LAYOUTS["fm"])
    owners = np.array([1, 0, 1, 0, 0, 1, 1])  # keys 3 and 7 are in different shards
    save_sharded(tmp_path / "model.h5", LAYOUTS["fm"], arrays, 2, owners=owners)
    monkeypatch.chdir(tmp_path)
    result = {}
    exec(snippet, result)
    result["model"].close()
    assert result["keys"].tolist() == [7, 15, 19, 3, 11, 23, 27]
    x = np.array([1.0, 0.5]) / np.sqrt(1.25)
    w, v = arrays["parameters/linear"], arrays["parameters/factors"]
    logit = arrays["parameters/bias"][0] + x[0] * w[0] + x[1] * w[1] + x[0] * x[1] * (v[0] @ v[1])
    assert result["probability"] == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-6)
