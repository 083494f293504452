"""Options: precedence of sources, errors that name key and source, and text that gives the same Run again."""

import dataclasses
import json
import re
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightctr_mpi import options
from lightctr_mpi.config import OWNERS, ModelOptions, OptimizerOptions, Range, Run, check
from lightctr_mpi.errors import UserError
from lightctr_mpi.optiontable import OPTIONS, VARIABLES, nearest


def run_of(*argv, **env):
    return options.resolve(argv, env).run


def error_of(*argv, **env):
    with pytest.raises(UserError) as caught:
        options.resolve(argv, env)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def job(tmp_path):
    def write(text):
        path = tmp_path / "job.toml"
        path.write_text(text)
        return str(path)

    return write


# --- sources ---


def test_without_anything_the_defaults_hold():
    resolved = options.resolve([], {"HOME": "/root", "LIGHTCTR_CACHE_DIR": "/tmp/x"})
    assert resolved.run == Run()
    assert resolved.sources == {}
    assert options.explain(resolved) == []


def test_later_sources_win(job):
    path = job("seed = 2\n[optimizer]\nlr = 0.2\nl2 = 0.5\n[model]\nk = 2\n")
    env = {"LIGHTCTR_OPTIMIZER_LR": "0.3", "LIGHTCTR_MODEL_K": "3", "LIGHTCTR_OUT": ""}
    resolved = options.resolve([path, "--model.k", "4"], env)
    run = resolved.run
    assert (run.seed, run.optimizer.l2, run.optimizer.lr, run.model.k, run.out) == (2, 0.5, 0.3, 4, "")
    assert options.explain(resolved) == [
        f"seed = 2 (from {path}:1)",
        "model.k = 4 (from the command line)",
        "optimizer.lr = 0.3 (from environment variable LIGHTCTR_OPTIMIZER_LR)",
        f"optimizer.l2 = 0.5 (from {path}:4)",
    ]


def test_a_built_in_job_is_what_everything_else_wins_over(job):
    base = ["--data.train", "sample", "--out", "runs/sample", "--model.k", "2", "--seed", "9"]
    argv = [job("[model]\nk = 3\n"), "--data.train", "mine"]
    resolved = options.resolve(argv, {"LIGHTCTR_SEED": "8"}, base, "the sample job")
    run = resolved.run
    assert (run.data.train, run.out, run.model.k, run.seed) == (("mine",), "runs/sample", 3, 8)
    assert options.explain(resolved)[1] == 'out = "runs/sample" (from the sample job)'


def test_a_value_equal_to_the_default_is_not_explained():
    assert options.explain(options.resolve(["--seed", "1", "--mode=auto"], {})) == []


def test_the_command_of_the_documentation():
    command = (
        "--data.train a.ffm --data.valid b.ffm --data.format libffm --model.name ffm --model.k 4 "
        "--optimizer.name adagrad --optimizer.lr 0.2 --optimizer.l2 2e-5 --train.epochs 5 "
        "--train.batch_size 4096 --mode ring --seed 7 --out run1"
    )
    run = run_of(*command.split())
    assert run.data.train == ("a.ffm",) and run.data.valid == ("b.ffm",) and run.data.format == "libffm"
    assert (run.model.name, run.model.k) == ("ffm", 4)
    assert (run.optimizer.name, run.optimizer.lr, run.optimizer.l2) == ("adagrad", 0.2, 2e-5)
    assert (run.train.epochs, run.train.batch_size) == (5, 4096)
    assert (run.mode, run.seed, run.out, run.quiet) == ("ring", 7, "run1", False)


@pytest.mark.parametrize(
    ("argv", "quiet", "norm"),
    [
        (["--quiet"], True, True),
        (["--quiet", "--no-model.norm"], True, False),
        (["--model.norm", "false"], False, False),
        (["--model.norm=NO", "--quiet", "on"], True, False),
        (["--quiet", "--no-quiet", "--model.norm", "1"], False, True),
    ],
)
def test_booleans(argv, quiet, norm):
    run = run_of(*argv)
    assert (run.quiet, run.model.norm) == (quiet, norm)


def test_a_switch_does_not_swallow_the_job_file(job):
    assert run_of("--quiet", job("seed = 5")).seed == 5


@pytest.mark.parametrize(
    ("argv", "train"),
    [
        (["--data.train", "a", "b", "c", "--quiet"], ("a", "b", "c")),
        (["--data.train", "a", "--data.train=b c"], ("a", "b c")),
        (["--data.train", "-"], ("-",)),
        (["--data.train="], ()),
    ],
)
def test_lists(argv, train):
    assert run_of(*argv).data.train == train


def test_lists_from_other_sources(job):
    path = job('data.train = ["a", "b"]\ndata.valid = "c"\n')
    assert run_of(path).data.train == ("a", "b")
    assert run_of(path).data.valid == ("c",)
    assert run_of(path, "--data.train", "d").data.train == ("d",)  # replaces, does not append
    assert run_of(path, LIGHTCTR_DATA_TRAIN="x 'y z'").data.train == ("x", "y z")


def test_auto_takes_an_optional_value_back(job):
    path = job("[model]\nk = 16\n")
    assert run_of(path, "--model.k", "auto").model.k is None


def test_every_option_can_be_set_by_every_source(job):
    """Each takes a value other than its default by flag, by variable and by file, and they agree."""
    for key, option in OPTIONS.items():
        if option.choices:
            text = next(c for c in reversed(option.choices) if c != option.default)
        else:
            text = {"bool": str(not option.default).lower(), "str": "some", "list": "some"}.get(
                option.kind, "1"
            )
            text = "3" if text == "1" and option.default == 1 else text
            halves = ("optimizer.init", "optimizer.beta", "ring.top_k", "ps.top_k")
            text = "0.5" if key in halves else "3:10" if key == "ps.slow" else text
        argv = [f"--{key}", text]
        extra = {
            "optimizer.alpha": ["--optimizer.name", "ftrl"],
            "optimizer.beta": ["--optimizer.name", "ftrl"],
            "train.monitor": ["--data.valid", "v"],
            "ps.delay": ["--ps.consistency", "asp"],
            "ps.evict_hits": ["--ps.evict_age", "2"],
            "optimizer.sums": ["--model.name", "ffm"],
            "model.storage": ["--model.name", "ffm", "--optimizer.sums", "block"],
        }.get(key, [])
        by_flag = run_of(*argv, *extra)
        assert by_flag != run_of(*extra), key
        assert run_of(*extra, **{option.variable: text}) == by_flag
        assert (
            run_of(job(f"{key} = {json.dumps(text) if option.kind in ('str', 'list') else text}"), *extra)
            == by_flag
        )


# --- errors ---


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("--ps.delay constant", "ps.delay = constant corrects late gradients"),
        ("--ps.evict_hits 3", "spares keys from ps.evict_age, which is 0"),
        ("--ps.slow 3", "ps.slow = 3: expected RANK:FACTOR"),
        ("--ps.slow 3:0", "ps.slow = 3:0: expected RANK:FACTOR"),
        ("--ps.top_k 0", "ps.top_k = 0"),
    ],
)
def test_options_of_the_parameter_server_that_contradict_each_other(argv, says):
    with pytest.raises(UserError, match=re.escape(says)):
        run_of(*argv.split())


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--optimizer.lrr", "did you mean --optimizer.lr?"),
        ("--optimizer.l", "did you mean --optimizer.l"),
        ("--lr", "did you mean --optimizer.lr?"),
        ("--train.batch-size", "did you mean --train.batch_size?"),
        ("--epochs", "did you mean --train.epochs?"),
        ("--seeds", "did you mean --seed?"),
        ("--model", "did you mean --model.name?"),
        ("--data", "did you mean --data.train?"),
        ("--ring.zzzzz", "that section has dense_above"),
        ("--zzzzz", "see train --help"),
        ("-q", "see train --help"),
    ],
)
def test_unknown_flags(flag, hint):
    for argv in ([flag, "1"], [f"{flag}=1"], ["--quiet", flag]):
        assert error_of(*argv).startswith(f"unknown option {flag} (from the command line); {hint}")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model.norm", "flase"], "model.norm = flase (from the command line): expected true or false"),
        (
            ["--model.name", "fmm"],
            "model.name = fmm (from the command line): expected one of lr, fm, ffm; did",
        ),
        (["--seed"], "--seed (from the command line) needs a value"),
        (["--seed", "--quiet"], "--seed (from the command line) needs a value"),
        (["--data.train", "--quiet"], "--data.train (from the command line) needs a value"),
        (["--no-quiet=true"], "--no-quiet (from the command line) takes no value"),
        (
            ["--data.train", "a", "b.toml"],
            "--data.train (from the command line) got b.toml: put the job file before",
        ),
        (["a.toml", "b.toml"], "one job file at most, found a.toml and b.toml"),
        (["--", "--seed", "1"], "one job file at most, found --seed and 1"),
        (["--out", "a\udcff"], "out = 'a\\udcff' (from the command line): expected text"),
    ],
)
def test_flag_errors(argv, message):
    assert error_of(*argv).startswith(message)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("optimizer.lr", "1000", "a number above 0 and at most 100, or auto"),
        ("optimizer.lr", "0", "a number above 0 and at most 100, or auto"),
        ("optimizer.lr", "nan", "a number above 0"),
        ("optimizer.lr", "1_0", "a number above 0"),
        ("optimizer.lr", "", "a number above 0"),
        ("optimizer.l2", "-1", "a number at least 0"),
        ("optimizer.l2", "inf", "a number at least 0"),
        ("optimizer.l2", "1e999", "a number at least 0"),
        ("optimizer.alpha", "0", "a number above 0"),
        ("model.k", "0", "a whole number at least 1 and at most 1024"),
        ("model.k", "4.0", "a whole number at least 1"),
        ("model.k", "٤", "a whole number at least 1"),
        ("seed", "-1", "a whole number at least 0"),
        ("seed", "9223372036854775808", "a whole number at least 0 and at most 9223372036854775807"),
        ("train.epochs", "99999999999999999999999", "a whole number at least 1"),
        ("ring.dense_above", "1.5", "a number at least 0 and at most 1"),
    ],
)
def test_values_out_of_range_name_key_source_value_and_range(key, value, expected):
    message = error_of(f"--{key}", value)
    assert message.startswith(f"{key} = {value or repr(value)} (from the command line): expected {expected}")
    if value:
        variable = OPTIONS[key].variable
        message = error_of(**{variable: value})
        assert message.startswith(
            f"{key} = {value} (from environment variable {variable}): expected {expected}"
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 1\n[optimizer]\nname = 'sgd'\nlr = 0\n", "optimizer.lr = 0 (from {}:4): expected a number"),
        ("[optimizer]\nlrr = 1", "unknown option optimizer.lrr (from {}:2); did you mean optimizer.lr?"),
        ("[optimiser]\nlr = 1", "unknown option [optimiser] (from {}:1); did you mean [optimizer]?"),
        ("optimizer = 'sgd'", "optimizer (from {}:1) is a section"),
        ("sed = 1", "unknown option sed (from {}:1); did you mean seed?"),
        ("model.k = true", "model.k = True (from {}:1): expected a whole number"),
        ("model = {{k = '4'}}", "model.k = 4 (from {}): expected a whole number"),
        ("quiet = 1", "quiet = 1 (from {}:1): expected true or false"),
        ("[data]\ntrain = [1]", "data.train = [1] (from {}:2): expected a list of file names"),
        ("out = 3", "out = 3 (from {}:1): expected text"),
        ("[seed]\nx = 1", "seed = {{'x': 1}} (from {}:1): expected a whole number"),
        ("optimizer.l2 = 1" + "0" * 400, "optimizer.l2 = 1000"),
        ('out = "a\\u0000b"', "out = 'a\\x00b' (from {}:1): expected text"),
        ("seed = ", "{} is not valid TOML: "),
        ("seed = 1\nseed = 2", "{} is not valid TOML: "),
    ],
)
def test_job_file_errors(job, text, message):
    path = job(text.replace("{{", "{").replace("}}", "}"))
    assert error_of(path).startswith(message.format(path))


def test_unreadable_job_files(tmp_path):
    assert "cannot read job file nowhere.toml: No such file" in error_of("nowhere.toml")
    assert "cannot read job file" in error_of(str(tmp_path))
    (tmp_path / "latin.toml").write_bytes(b'out = "\xe9"')
    assert "is not UTF-8 text (byte 7)" in error_of(str(tmp_path / "latin.toml"))
    (tmp_path / "deep.toml").write_text("seed = " + "[" * 100_000)
    assert str(tmp_path / "deep.toml") in error_of(str(tmp_path / "deep.toml"))


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("LIGHTCTR_OPTIMIZER_LRR", "LIGHTCTR_OPTIMIZER_LR"),
        ("LIGHTCTR_LR", "LIGHTCTR_OPTIMIZER_LR"),
        ("LIGHTCTR_CACHEDIR", "LIGHTCTR_CACHE_DIR"),
    ],
)
def test_unknown_variables(variable, suggestion):
    assert error_of(**{variable: "1"}) == (
        f"unknown option {variable} (from the environment); did you mean {suggestion}?"
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--model.name lr --no-model.linear", ("model.linear", "lr")),
        ("--optimizer.alpha 0.1", ("optimizer.alpha", "ftrl", "adagrad")),
        ("--optimizer.name sgd --optimizer.init 2", ("optimizer.init", "adagrad", "sgd")),
        ("--data.label_map 1:0,2:1 --data.labels soft", ("data.label_map", "soft")),
        ("--train.monitor valid_auc", ("train.monitor", "data.valid")),
        ("--train.monitor valid_logloss --model.loss squared", ("train.monitor", "model.loss")),
    ],
)
def test_contradictions(argv, words):
    message = error_of(*argv.split())
    assert all(word in message for word in words)


def test_no_contradiction_where_the_option_applies():
    check(run_of("--optimizer.name=ftrl", "--optimizer.alpha=0.1", "--optimizer.beta=0.5"))
    check(run_of("--train.monitor=valid_auc", "--data.valid=x"))
    check(run_of("--model.name=lr", "--model.k=4"))  # one command line for all models


# --- the table ---


def test_variables_and_keys_are_one_to_one():
    assert len(VARIABLES) == len(OPTIONS)
    assert VARIABLES["LIGHTCTR_TRAIN_BATCH_SIZE"].key == "train.batch_size"
    assert VARIABLES["LIGHTCTR_SEED"].key == "seed"


def test_every_default_is_a_value_its_option_takes():
    for option in OPTIONS.values():
        assert option.read(option.default, "here") == option.default
        assert option.doc and option.kind in ("bool", "int", "float", "str", "list")


def test_nearest_prefers_the_right_name_in_another_section():
    assert nearest("model.batch_size") == "train.batch_size"
    assert nearest("optimizer.k") == "model.k"
    assert nearest("qqqqqq") == ""


def test_ranges():
    assert Range(0, 1).holds(0) and Range(0, 1).holds(1) and not Range(0, 1, True).holds(0)
    assert not Range(0).holds(float("inf")) and not Range(0).holds(float("nan"))
    assert Range(0).holds(10**400)  # integers of any size, no overflow
    assert str(Range(0, 1, True)) == "above 0 and at most 1" and str(Range(1)) == "at least 1"


def test_help_is_complete():
    text = options.help_text()
    flat = " ".join(text.split())
    for option in OPTIONS.values():
        assert f"  --{option.key}" in text
        assert option.doc in flat, option.key
        assert all(choice in flat for choice in option.choices)
        if option.range is not None:
            assert str(option.range) in flat
        if option.kind in ("int", "float") and option.default is not None:
            assert f"default: {option.default}]" in flat
    assert "LIGHTCTR_CACHE_DIR" in text
    assert max(map(len, text.splitlines())) <= 110


def test_no_numerical_library_is_loaded():
    code = (
        "import sys, lightctr_mpi.options as o; o.resolve(['--seed', '3'], {}); o.help_text();"
        "print([m for m in ('numpy', 'numba', 'h5py', 'mpi4py') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- text and back ---

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)


def values_of(option):
    if option.choices:
        return st.sampled_from(option.choices)
    low, high = (option.range.low, option.range.high) if option.range else (None, None)
    if option.kind == "int":
        values = st.integers(int(low), min(high, 2**63 - 1))
    elif option.kind == "float":
        values = st.floats(
            low, None if high > 1e300 else high, exclude_min=option.range.open_low, allow_infinity=False
        )
    else:
        values = {
            "bool": st.booleans(),
            "str": st.just("") | NAMES,
            "list": st.lists(NAMES, max_size=3).map(tuple),
        }[option.kind]
    return st.none() | values if option.optional else values.filter(lambda v: v != "auto")


@st.composite
def runs(draw):
    flat = {key: draw(values_of(option)) for key, option in OPTIONS.items()}
    for key, (chooser, names) in OWNERS.items():
        if flat[chooser] not in names:
            flat[key] = OPTIONS[key].default
    if flat["optimizer.sums"] == "block":
        flat["model.name"] = "ffm"
    else:
        flat["model.storage"] = "float32"
    flat["model.linear"] |= flat["model.name"] == "lr"
    flat["data.label_map"] = "" if flat["data.labels"] == "soft" else flat["data.label_map"]
    if flat["train.monitor"].endswith("logloss"):
        flat["model.loss"] = "logistic"
    flat["data.valid"] = flat["data.valid"] or ("v",)
    if flat["ps.delay"] != "none":
        flat["ps.consistency"] = "asp"
    if flat["ring.replica"] == "node":
        flat["mode"], flat["train.sync"] = "ring", "none"
        of_wire = ("ring.codec", "ring.top_k", "ring.dense_above")
        flat |= {key: OPTIONS[key].default for key in of_wire}
    flat["ps.evict_age"] = flat["ps.evict_age"] or int(flat["ps.evict_hits"] > 0)
    if flat["ps.admit_after"] > 1 or flat["ps.evict_age"]:
        flat["model.unseen"] = "skip"
    flat["ps.slow"] = draw(st.just("") | st.builds("{}:{}".format, st.integers(0, 9), st.integers(1, 9)))
    run = Run(**{key: value for key, value in flat.items() if "." not in key})
    for section in {option.section for option in OPTIONS.values()} - {""}:
        part = {o.name: flat[o.key] for o in OPTIONS.values() if o.section == section}
        run = dataclasses.replace(run, **{section: dataclasses.replace(getattr(run, section), **part)})
    return run


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs())
def test_a_run_survives_toml_and_dictionary(tmp_path_factory, run):
    text = options.to_toml(run)
    path = tmp_path_factory.getbasetemp() / "round.toml"
    path.write_bytes(text.encode())
    assert options.resolve([str(path)], {}).run == run
    assert options.from_toml(text, "model.h5") == run
    assert options.from_dict(json.loads(json.dumps(options.to_dict(run)))) == run
    assert options.to_toml(options.from_toml(text, "again")) == text


def test_toml_of_an_unset_option_leaves_it_out():
    text = options.to_toml(Run())
    assert "k =" not in text.split("[model]")[1].split("[optimizer]")[0]
    assert 'name = "fm"' in text and "quiet = false" in text and "seed = 1" in text


def test_toml_of_a_settled_run_can_be_used_again():
    """What a trainer fills in where it means nothing (k = 0 for lr, alpha for adagrad) is not written."""
    run = Run(
        model=ModelOptions(name="lr", k=0, init_scale=0.05), optimizer=OptimizerOptions(lr=0.2, alpha=0.2)
    )
    again = options.from_toml(options.to_toml(run), "config.toml")
    assert (again.model.name, again.model.k, again.optimizer.lr, again.optimizer.alpha) == (
        "lr",
        None,
        0.2,
        None,
    )


def test_text_of_a_stranger_is_refused_with_its_name():
    with pytest.raises(UserError, match=r"unknown option model.depth \(from model.h5:2\)"):
        options.from_toml("[model]\ndepth = 3\n", "model.h5")
    with pytest.raises(UserError, match=r"model.k = 0 \(from the pickle\)"):
        options.from_dict({"model": {"k": 0}}, "the pickle")
