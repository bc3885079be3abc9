# SPDX-License-Identifier: Apache-2.0
"""The command line: every example of every --help, errors, exit codes and --json."""

import json
import os
import re
import resource
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgernn.cli.frame import COMMANDS, following, json_command, main
from edgernn.errors import counted
from edgernn.npz import read_npz
from edgernn.runtime import Session
from tests.models import exported
from tests.test_stream_files import layer, weights_of
from tests.test_stream_files import model as foreign_model
from tests.words import tone, write_wav

# changes that make an example fast enough for a test; the rest is run verbatim
SHORTER = {"train": "steps=20 eval_every=10", "bench": "--rounds 1 --warmup 0", "calibrate": "--loss 1000"}

# verbs whose examples use each other's files, in this order, and verbs that start processes, which take a minute
IN_TURN = (
    "train",
    "plot",
    "evaluate",
    "export",
    "pack",
    "run",
    "bench",
    "cells",
    "models",
    "data",
    "info",
    "wakeword",
    "help",
    "calibrate",
    "stream",
)
TABLES = ("reproduce", "sweep")

# an input file of the example of `edgernn sweep`
SWEEP = 'task = "adding"\ncells = ["gru", "sarnn"]\nseeds = 2\n[settings]\nT = 5\nhidden_size = 4\nsteps = 5\n'


def edgernn(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "edgernn", *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def example_of(verb, capsys):
    assert main([verb, "--help"]) == 0
    match = re.search(r"\nExample:\n  edgernn (.*)\n\Z", capsys.readouterr().out.replace(" \\\n   ", ""))
    assert match, f"edgernn {verb} --help does not end with an example"
    return shlex.split(match[1])


def run_example(verb, capsys):
    words = example_of(verb, capsys)
    assert words[0] == verb
    if verb == "train":
        words += ["--out", "runs/adding-sarnn"]
    if verb == "calibrate":
        # a dense model
        assert main(["train", "--task", "adding", "--cell", "gru", "steps=20", "T=10", "hidden_size=8"]) == 0
    if verb == "wakeword":
        write_wav(Path("room.wav"), tone("left"))
    if verb == "stream":
        nodes = [onnx.helper.make_node("Transpose", ["x"], ["X"], perm=[1, 0, 2]), layer("GRU")]
        shapes = [("x", ["B", "T", 40])], [("Y", ["T", 1, "B", None])]
        onnx.save(foreign_model(nodes, weights_of("GRU", I=40), *shapes), "net.onnx")
    assert main([*words, *SHORTER.get(verb, "").split()]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def test_every_verb_has_an_example_that_is_run():
    assert sorted([*IN_TURN, *TABLES]) == sorted(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("verb", TABLES)
def test_examples_that_start_processes_run(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    run_example(verb, capsys)


@pytest.mark.slow
# the model of twenty steps uses its input so little that no threshold harms it
@pytest.mark.filterwarnings("ignore:loss. the chosen thresholds execute 0 %")
def test_examples_run_in_turn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=np.random.default_rng(0).random((4, 50, 2)))
    for verb in IN_TURN:
        run_example(verb, capsys)
    assert np.load("y.npz")["y"].shape == (4, 1)
    card = (tmp_path / "runs" / "adding-sarnn" / "model.md").read_text()
    assert "    edgernn train --task adding --cell sarnn" in card
    with np.load("runs/adding-sarnn/example.npz") as example:
        answers = Session("runs/adding-sarnn/model.onnx").run(example["x"].swapaxes(0, 1))
        np.testing.assert_allclose(answers, example["y"], atol=1e-4)
    assert json.loads((tmp_path / "bench" / "bench.json").read_text())["timings"]


@pytest.mark.slow
def test_json_of_a_process_is_one_document_and_nothing_else():
    process = edgernn("cells", "--json")
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)


@pytest.mark.parametrize("verb", ["export", "run", "bench"])
def test_json_is_one_document_and_nothing_else(verb, tmp_path, monkeypatch, capfd):
    """Covers output to standard output from both Python and libraries."""
    monkeypatch.chdir(tmp_path)
    model = str(exported("gru")[1])
    if verb == "export":
        assert main(["train", "--task", "adding", "--cell", "pru", "--out", "r", "steps=2", "T=5"]) == 0
    np.save(tmp_path / "x.npy", np.zeros((4, 3)))
    words = {
        "export": ["r"],
        "run": [model, "--input", "x.npy", "--output", "y.csv"],
        "bench": [model, "--steps", "4", "--rounds", "1", "--out", "b"],
    }
    capfd.readouterr()
    assert main([verb, *words[verb], "--json"]) == 0
    assert json.loads(capfd.readouterr().out)


def test_numbers_that_json_lacks_are_null(capsys):
    @json_command(example="edgernn odd", text=str)
    def odd():
        """Return numbers."""
        return {"y": [1.0, float("nan")], "rows": ({"loss": float("inf")},)}

    odd.main(["--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == {"y": [1.0, None], "rows": [{"loss": None}]}


def test_a_warning_of_ours_is_one_line(tmp_path, monkeypatch, capsys):
    model = exported("gru")[1]
    monkeypatch.setattr("edgernn.runtime.open_model.no_native", lambda *_: "there is no library here")
    np.save(tmp_path / "x.npy", np.zeros((4, 3)))
    words = ["run", str(model), "--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.csv")]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(words) == 0
    output = "edgernn: warning: there is no library here; running the portable operators, which are slower\n"
    assert output in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "heavy", "output"),
    [
        (
            "--help",
            "torch numpy onnx onnxruntime matplotlib rich edgernn.training",
            [f"  {verb} " for verb in COMMANDS],
        ),
        ("cells", "torch._dynamo onnx onnxruntime matplotlib triton", ["| lru |", "| phasedlstm |"]),
    ],
)
@pytest.mark.slow
def test_a_command_imports_nothing_heavy(command, heavy, output):
    code = (
        f"import sys; from edgernn.cli.frame import main; main([{command!r}]);"
        f"heavy = set({heavy.split()!r}) & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert all(words in process.stdout for words in output)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["exprt"], 2, "unknown command 'exprt': did you mean 'export'?"),
        (["export", "nowhere"], 1, "nowhere: no such run directory"),
        (["export"], 2, "Missing argument 'RUN'"),
        (["bench"], 2, "MODEL: expected one file or name, or --cell NAME"),
        (["bench", "none.onnx"], 1, "none.onnx: no such file"),
        (["bench", "--cell", "sarn"], 2, "unknown cell 'sarn': did you mean 'sarnn'?"),
        (
            ["bench", "--cell", "gru", "--skip", "0.5"],
            2,
            "skip: expected 0 with the rule always, which updates every neuron at every step",
        ),
        (["bench", "none.onnx", "--device", "tpu"], 2, "'tpu' is not"),
        (["run", "none.onnx", "--input", "x.npz", "--output", "y.npz"], 1, "none.onnx: no such file"),
        (
            ["run", "none.onnx", "--input", "x.txt", "--output", "y.npz"],
            2,
            "expected a file whose name ends in .npz, .npy, .csv",
        ),
        (["cells", "--hidden", "0"], 2, "0 is not in the range"),
        (["cells", "--no-such-option"], 2, "No such option"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_errors_are_one_line_with_the_right_code(words, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("edgernn: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_damaged_runs_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--task", "adding", "--cell", "pru", "--out", "r", "steps=2", "T=5", "hidden_size=4"]) == 0
    capsys.readouterr()
    weights, config = tmp_path / "r" / "model.safetensors", tmp_path / "r" / "config.json"
    whole, text = weights.read_bytes(), config.read_text()
    for path, content, message in (
        (weights, whole[:-7], "model.safetensors: expected a safetensors file, got a damaged one"),
        (weights, b"", "model.safetensors: expected a safetensors file, got a damaged one"),
        (config, "{", "config.json: expected a JSON file, got other or damaged text"),
        (config, "[]", "config.json: expected the config of a run"),
        (config, text.replace('"hidden_size": 4', '"hidden_size": 5'), "expected (10, 2), got (8, 2)"),
        (
            config,
            text.replace('"layers": 1', '"floors": 1'),
            "not a configuration that this version of edgernn reads (floors: ",
        ),
    ):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert main(["export", "r"]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "r" / "model.onnx").exists()
        weights.write_bytes(whole)
        config.write_text(text)


@pytest.mark.parametrize("lost", ["result.json", "model.safetensors"])
def test_an_unfinished_run_names_the_command_that_finishes_it(lost, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["train", "--task", "adding", "--cell", "pru", "--out", "my run", "steps=2", "T=5", "hidden_size=4"]) == 0
    )
    for name in ("result.json", "state.safetensors", lost):
        (tmp_path / "my run" / name).unlink(missing_ok=True)
    capsys.readouterr()
    for words in (["export", "my run"], ["calibrate", "my run"]):
        assert main(words) == 1
        error = capsys.readouterr().err
        assert "resume it: edgernn train --resume --out 'my run'" in error
    words = shlex.split(error.rpartition("resume it: ")[2])
    assert main(words[1:]) == 0
    assert main(["export", "my run"]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_folder_whose_name_is_no_utf8_is_read_and_written(tmp_path, monkeypatch, capsys):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    run = f"{folder}/run"
    assert main(["train", "--task", "adding", "--cell", "pru", "--out", run, "steps=2", "T=5", "hidden_size=4"]) == 0
    for words in (["export", run], ["info", run], ["run", f"{run}/model.onnx"], ["evaluate", run]):
        assert main(words) == 0, capsys.readouterr().err


def test_the_example_stays_that_of_the_main_model(tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["train", "--task", "adding", "--cell", "gru", "--out", run, "steps=2", "T=5", "hidden_size=4"]) == 0
    assert main(["export", run, "--weights", "int8"]) == 0
    assert "and the model's outputs y" in Path(run, "model-int8.md").read_text()
    assert main(["export", run]) == 0
    whole = np.load(Path(run, "example.npz"))["y"]
    assert main(["export", run, "--weights", "int8"]) == 0
    assert (np.load(Path(run, "example.npz"))["y"] == whole).all()
    assert "and the outputs of `model.onnx` y" in Path(run, "model-int8.md").read_text()


@pytest.mark.parametrize(
    ("words", "suggestion", "place"),
    [
        (["train", "--task", "adding", "--cell", "gru", "hidden=3"], "'hidden_size'", "help train"),
        (["train", "--task", "adding", "--cell", "grux"], "'gru'", "cells"),
        (["train", "--task", "addin", "--cell", "gru"], "'adding'", "help train"),
        (["run", "hartbeats-gru"], "'heartbeats-gru'", "models"),
        (["data", "fetch", "mnis"], "'mnist'", "data list"),
        (["reproduce", "sarn-1"], "'sarnn-1'", "reproduce --list"),
        (["trin"], "'train'", "help"),
    ],
)
def test_unknown_names_are_answered_by_similar_ones_and_the_list(words, suggestion, place, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert suggestion in error
    assert len(error) < 200
    assert f"`edgernn {place}` lists all " in error
    assert main(place.split()) == 0
    assert suggestion.strip("'") in capsys.readouterr().out


def test_debug_shows_the_traceback(tmp_path, capsys):
    for words in (["--debug", "export", str(tmp_path / "x")], ["export", str(tmp_path / "x"), "--debug"]):
        assert main(words) == 1
        assert "Traceback" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "x")]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((400, 4, 3)))
    before = sorted(tmp_path.iterdir())
    process = subprocess.run(
        [sys.executable, "-m", "edgernn", "run", exported("gru")[1], "--input", "x.npy", "--output", "y.npy"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        # limit files to 1,000 bytes, to simulate a full disk
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert process.returncode == 1
    assert re.fullmatch(
        r"edgernn: error: y\.npy: File too large; existing files are unchanged; free some space and .*\n",
        process.stderr,
    )
    assert sorted(tmp_path.iterdir()) == before


# runs a command line in a process whose standard streams with these numbers are closed
CLOSED = """
import os, sys
numbers, words = sys.argv[1], sys.argv[2:]
for number in numbers:
    os.close(int(number))
os.execv(sys.executable, [sys.executable, "-m", "edgernn", *words])
"""


@pytest.mark.parametrize("numbers", ["1", "2", "012"])
@pytest.mark.slow
def test_a_command_works_with_closed_streams_and_keeps_its_files_out_of_their_numbers(tmp_path, numbers):
    words = ["train", "--task", "adding", "--cell", "gru", "T=5", "steps=2", "hidden_size=4", "--out", "run"]
    process = subprocess.run(
        [sys.executable, "-c", CLOSED, numbers, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0
    assert (tmp_path / "run/result.json").is_file()
    # no line of the progress or of a library is in a file of the run
    for name in ("config.json", "result.json", "state.json"):
        json.loads((tmp_path / "run" / name).read_text())
    assert ("2 steps (" in process.stdout) == ("1" not in numbers)
    failed = subprocess.run([sys.executable, "-c", CLOSED, numbers, "nonsense"], cwd=tmp_path, timeout=300)
    assert failed.returncode == 2


@pytest.mark.slow
def test_a_full_disk_behind_standard_error_keeps_the_exit_status():
    with Path("/dev/full").open("w") as full:
        process = subprocess.run([sys.executable, "-m", "edgernn", "nonsense"], stderr=full, timeout=300)
    assert process.returncode == 2


@pytest.mark.parametrize("value", [None, "0"])
@pytest.mark.slow
def test_onnx_runtime_writes_nothing_to_the_home_folder_unless_the_user_asks(tmp_path, monkeypatch, value):
    """ONNX Runtime 1.31 writes a device id and telemetry events there."""
    (tmp_path / "home").mkdir()
    environment = {name: text for name, text in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path / "home")} | ({} if value is None else {"ORT_DISABLE_TELEMETRY": value})
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 3), np.float32))
    words = ["run", exported("gru")[1], "--input", "x.npz", "--output", "y.npz"]
    code = f"import os, sys; from edgernn.cli.frame import main; assert main({[*map(str, words)]}) == 0; " + (
        "print(os.environ['ORT_DISABLE_TELEMETRY'])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert process.stdout.splitlines()[-1] == (value or "1"), process.stderr
    if value is None:
        assert list((tmp_path / "home").rglob("*")) == []


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_fits_a_narrow_terminal(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 60
    example = text.partition("Example:\n")[2].replace(" \\\n   ", "")
    assert example.strip().count("\n") == 0


@pytest.mark.parametrize("option", ["--input", "--stream"])
def test_standard_input_is_no_file_of_inputs(option, capsys):
    assert main(["run", "engine-life-gru", option, "-"]) == 2
    assert f"{option}: expected a file, got -; write what is on standard input to a file" in capsys.readouterr().err


def test_one_is_not_plural():
    assert [counted(n, "step") for n in (0, 1, 2, 1000)] == ["0 steps", "1 step", "2 steps", "1,000 steps"]


def test_calibrate_offers_the_example_of_a_model(capsys):
    assert main(["calibrate", "engine-life-gru"]) == 2
    error = capsys.readouterr().err
    data = re.search(r"inputs of engine-life-gru, got none; give --data (\S+)\n", error)[1]
    assert read_npz(Path(data))["x"].ndim == 3


def test_a_byte_of_a_name_that_is_no_text_is_shown_in_one_way(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a\udcff.txt").touch()
    # a message with the name, and one with its repr
    for words in (["info", "a\udcff.onnx"], ["train", "--task", "a\udcff.txt", "--cell", "gru"]):
        assert main(words) != 0
        assert re.search(r"[^\w\\]a\\xff\.(onnx|txt)", capsys.readouterr().err)


def test_the_next_command_takes_names_that_begin_with_a_dash_or_have_spaces():
    assert following("export", "runs/my-gru") == "next: edgernn export runs/my-gru"
    assert following("export", "-x") == "next: edgernn export ./-x"
    assert following("bench", "a b/model.onnx") == "next: edgernn bench 'a b/model.onnx'"
