# SPDX-License-Identifier: Apache-2.0
"""The command line's shared behaviour, and `edgernn train`."""

import json
import re
import shlex
import signal
import subprocess
import sys
import types
from typing import ClassVar

import click
import numpy as np
import pytest

import edgernn
from edgernn.cli.frame import COMMANDS, json_command, main
from edgernn.config import ModelConfig
from edgernn.settings import as_word, fields_of
from edgernn.training import TASKS
from edgernn.training.config import TrainConfig
from tests.training_helpers import SMALL, command_line, without_pictures, words

TRAIN = ["train", "--task", "adding", "--cell", "sarnn"]
TINY = [*words(SMALL), "steps=3"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    without_pictures(monkeypatch)


def failing(capsys, *args):
    """Return the exit status and the single line on standard error."""
    status = main(args)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("edgernn: error: ")
    assert err.count("\n") == 1
    return status, err


# shared behaviour


def test_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, line in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", out, re.MULTILINE)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"edgernn {edgernn.__version__}\n"


def test_no_verb_shows_the_help_and_fails(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: edgernn" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], "unknown command 'trian': did you mean 'train'"),
        (["--nothing"], "No such option"),
        (["train", "--nothing"], "No such option '--nothing'.*; see edgernn train --help"),
        (["train", "--cell", "gru"], "Missing option '--task'; give it, or a --recipe"),
        (["train", "--task", "adding"], "Missing option '--cell'"),
        (["train"], "Missing options '--task' and '--cell'; give both, or a --recipe"),
        (["run", "model.onnx", "x.csv"], "extra argument .x.csv.; pass an input file as --input FILE"),
        (["train", "--resume", "--out", "run", "lr=1"], "or --resume and --out alone, without settings"),
        ([*TRAIN, "--seed", "-1"], "Invalid value for '--seed'"),
        ([*TRAIN, "--seed", str(2**63)], "Invalid value for '--seed': 9223372036854775808 is not in the range"),
        ([*TRAIN, "--devices", str(2**31)], "Invalid value for '--devices'"),
        ([*TRAIN, "--device", "tpu"], "Invalid value for '--device'"),
        ([*TRAIN, "hiden_size=3"], "unknown setting 'hiden_size': did you mean 'hidden_size'"),
        ([*TRAIN, "--lr=0.01"], "No such option '?--lr'?.* Did you mean the setting lr=0.01"),
        ([*TRAIN, "--hidden-size", "32"], "Did you mean the setting hidden_size=32"),
        (["evaluate", "run", "--room=10"], "Did you mean the setting room=10"),
        (["train", "--task", "adding", "--cel", "gru"], "--cell'[^S]*; see edgernn train --help"),
        (["export", "run", "--lr=0.01"], "No such option '?--lr'?[^=]*; see edgernn export --help"),
        ([*TRAIN, "steps"], "expected KEY=VALUE, such as lr=0.01, got 'steps'"),
        ([*TRAIN, "steps=many"], "steps: expected a whole number of at least 1 or none, got 'many'"),
        ([*TRAIN, "steps=1", "epochs=1"], "steps, epochs: expected one of the two"),
        (["train", "--task", "ading", "--cell", "gru"], "unknown task 'ading'"),
        (["train", "--task", "adding", "--cell", "gruu"], "unknown cell 'gruu'"),
        ([*TRAIN, "--rule", "sometimes"], "unknown rule 'sometimes'"),
    ],
)
def test_wrong_usage_exits_with_2(capsys, args, message):
    status, err = failing(capsys, *args)
    assert status == 2
    assert re.search(message, err)


def test_bad_data_exits_with_1(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("EDGERNN_DATA", raising=False)
    status, err = failing(capsys, "train", "--task", "mnist-rows", "--cell", "pru")
    assert status == 1
    assert "EDGERNN_DATA" in err
    np.savez(tmp_path / "mine.npz", x=np.full((9, 2, 1), np.nan), y=np.zeros(9))
    status, err = failing(capsys, "train", "--task", "mine.npz", "--cell", "pru")
    assert status == 1
    assert "got nan at index (0, 0, 0)" in err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.npz"]


def test_a_directory_in_use_exits_with_2(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    status, err = failing(capsys, *TRAIN, "--out", ".")
    assert status == 2
    assert "expected a new or empty directory" in err


def test_a_full_or_forbidden_disk_exits_with_1(capsys):
    status, err = failing(capsys, *TRAIN, *TINY, "--out", "/proc/nowhere/run")
    assert status == 1
    assert "/proc/nowhere" in err


# verbs defined for the test


@pytest.fixture
def one_verb(monkeypatch):
    """Register a function as the verb `train`."""

    def use(function):
        command = json_command("edgernn train", str)(function)
        module = types.ModuleType("train")
        module.command = command
        monkeypatch.setitem(sys.modules, "edgernn.cli.train", module)

    return use


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (edgernn.UsageError("wrong\n word"), 2, "edgernn: error: wrong word"),
        (edgernn.EdgernnError("bad data"), 1, "edgernn: error: bad data"),
        (
            OSError(28, "No space left on device", "a.bin"),
            1,
            "edgernn: error: a.bin: No space left on device; existing files are unchanged; free some space and run "
            "the command again",
        ),
        (
            FileExistsError(17, "File exists", "a"),
            1,
            "edgernn: error: a: File exists; expected a folder, got a file of that name; remove the file or choose "
            "another path",
        ),
        (PermissionError(13, "Permission denied"), 1, "edgernn: error: Permission denied"),
        (RuntimeError("odd"), 1, "edgernn: error: RuntimeError: odd (--debug shows the traceback)"),
        (KeyboardInterrupt(), 130, "edgernn: interrupted"),
        (KeyboardInterrupt("saved"), 130, "edgernn: saved"),
        (click.FileError("x", "unreadable"), 1, "edgernn: error: Could not open file 'x': unreadable"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_error_is_one_line_and_a_status(capsys, one_verb, error, status, message):
    def function():
        raise error

    one_verb(function)
    assert main(["train"]) == status
    assert capsys.readouterr() == ("", message + "\n")


@pytest.mark.parametrize("args", [["--debug", "train"], ["train", "--debug"]], ids=" ".join)
def test_debug_shows_a_traceback(capsys, one_verb, args):
    def function():
        raise edgernn.UsageError("wrong")

    one_verb(function)
    assert main(args) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.endswith("edgernn: error: wrong\n")


class Archive:
    """A file like zipfile.ZipFile: a signal during its construction leaves it without an attribute of its `__del__`."""

    def __init__(self):
        signal.raise_signal(signal.SIGTERM)
        self.is_open = True

    def __del__(self):
        self.is_open = not self.is_open


def test_a_signal_during_a_construction_prints_one_line(capsys, one_verb, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    one_verb(lambda: {"archive": Archive()})
    assert main(["train"]) == 128 + signal.SIGTERM
    assert capsys.readouterr() == ("", "edgernn: interrupted\n")
    assert unraisable == []
    # other errors of a __del__ are printed
    one_verb(lambda: {"a": Archive.__new__(Archive) and 1})
    assert main(["train"]) == 0
    assert len(unraisable) == 1


def test_only_the_result_goes_to_standard_output(capsys, one_verb):
    def function():
        print("noise")
        return {"a": 1}

    one_verb(function)
    assert main(["train", "--json"]) == 0
    assert capsys.readouterr() == ('{\n  "a": 1\n}\n', "noise\n")
    assert main(["train"]) == 0
    assert capsys.readouterr() == ("{'a': 1}\n", "noise\n")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_traceback():
    code = "import sys; from edgernn.cli.frame import main; sys.exit(main(['--help']))"
    command = f"{shlex.join([sys.executable, '-c', code])} | true"
    process = subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True)
    assert process.stderr == ""


# train


def test_train_prints_what_it_did_and_what_is_next(capsys, tmp_path):
    assert main([*TRAIN, *TINY]) == 0
    out, err = capsys.readouterr()
    result = json.loads((tmp_path / "runs/adding-sarnn/result.json").read_text())
    assert f"mse {result['mse']:.4g} on the test sequences (not solved: the threshold is 0.00167)" in out
    assert f"updates skipped: {result['skip_percent']:.1f} %" in out
    assert "run: runs/adding-sarnn, with learning.png, pattern.png\n" in out
    assert out.endswith("next: edgernn export runs/adding-sarnn\n")
    assert "training for at most 3 steps" in err
    for again in ([*TRAIN, *TINY, "--resume"], ["train", "--resume", "--out", "runs/adding-sarnn"]):
        assert main(again) == 0
        assert "is finished: nothing to do" in capsys.readouterr().err
    assert "--resume: expected --out with the directory of a run" in failing(capsys, "train", "--resume")[1]
    status, err = failing(capsys, *TRAIN, *TINY)
    assert status == 2
    trained = f"got runs/adding-sarnn with a finished run (adding, sarnn: mse {result['mse']:.4g})"
    assert f"--out: expected a new or empty directory, {trained}; choose another with --out" in err
    (tmp_path / "runs/adding-sarnn/result.json").rename(tmp_path / "result.json")
    assert "with an unfinished run; resume it: edgernn train --resume --out" in failing(capsys, *TRAIN, *TINY)[1]
    config = tmp_path / "runs/adding-sarnn/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "command": None}))
    status, err = failing(capsys, "train", "--resume", "--out", "runs/adding-sarnn")
    assert status == 1
    assert "config.json: command: expected a list of words, got none; name --task and --cell" in err


def test_the_next_command_works_for_any_path(capsys):
    run = "my runs/it's (1)"
    assert main([*TRAIN, *TINY, "--out", run]) == 0
    following = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert following == ["next:", "edgernn", "export", run]
    assert main(following[2:]) == 0
    following = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert following == ["next:", "edgernn", "bench", f"{run}/model.onnx", "--device", "cpu"]


def test_a_shell_completes_commands_and_options(monkeypatch, capsys):
    monkeypatch.setenv("_EDGERNN_COMPLETE", "bash_complete")
    for typed, completion in (("edgernn ca", "plain,calibrate"), ("edgernn train --reci", "plain,--recipe")):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
        assert main([]) == 0
        assert capsys.readouterr().out.split() == [completion]
    monkeypatch.setenv("_EDGERNN_COMPLETE", "fish_source")
    assert main([]) == 0
    assert "complete --no-files --command edgernn" in capsys.readouterr().out


def test_help_is_also_a_command(capsys):
    for names in ([], ["train"], ["data", "fetch"]):
        assert main(["help", *names]) == 0
        text = capsys.readouterr().out
        assert main([*names, "--help"]) == 0
        assert capsys.readouterr().out == text
    assert "unknown command 'trian': did you mean 'train'" in failing(capsys, "help", "trian")[1]


@pytest.mark.parametrize("words", [[], ["--device", "cpu"]], ids=["auto", "cpu"])
def test_a_resumed_run_stays_on_its_device(capsys, monkeypatch, words):
    assert main([*TRAIN, *TINY, *words]) == 0
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    capsys.readouterr()
    resume = ["train", "--resume", "--out", "runs/adding-sarnn"]
    assert main(resume) == 0
    assert "is finished: nothing to do" in capsys.readouterr().err
    status, err = failing(capsys, *resume, "--device", "cuda")
    assert status == 2
    assert "device: the run in runs/adding-sarnn has 'cpu', got 'cuda'" in err


@pytest.mark.slow
def test_train_json_is_one_document(tmp_path):
    process = command_line(*TRAIN, *TINY, "--json", "--out", "run", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out) == {**json.loads((tmp_path / "run/result.json").read_text()), "run": "run"}


def test_a_corrupt_checkpoint_exits_with_1(capsys, tmp_path):
    assert main([*TRAIN, *TINY]) == 0
    (tmp_path / "runs/adding-sarnn/result.json").unlink()
    (tmp_path / "runs/adding-sarnn/state.safetensors").write_bytes(b"x" * 50)
    capsys.readouterr()
    status, err = failing(capsys, *TRAIN, *TINY, "--resume")
    assert status == 1
    assert "expected a whole checkpoint, got a corrupt one" in err


def test_the_bar_names_loss_metric_and_skip(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "140")
    assert main([*TRAIN, *TINY]) == 0
    err = re.sub(r"\x1b\[[?0-9;]*[a-z]", "", capsys.readouterr().err)
    assert re.search(r"adding sarnn .*3/3 .*loss \d.*mse \d.* skip \d+\.\d %", err)


def test_help_names_every_task(capsys):
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in TASKS)


def test_help_lists_every_setting_once_with_its_default(capsys):
    assert main(["train", "--help"]) == 0
    words = re.findall(r"^  (\w+)=(\S+)  +[A-Za-z]", capsys.readouterr().out, re.MULTILINE)
    tree = [*fields_of(TrainConfig).values(), *fields_of(ModelConfig).values()]
    assert all(setting.doc for setting in tree)
    # a task without settings
    others = {"epochs": 20, "hidden_size": 64}
    assert sorted(words) == sorted((s.name, as_word(others.get(s.name, s.default))) for s in tree)


def test_help_lists_the_settings_of_what_is_named(capsys):
    assert main(["train", "--task", "adding", "--cell", "sarnn", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Adding task: regression of the sum of the two marked values" in out
    assert re.search(r"Settings of the task adding:(.|\n)*\n  T=50 +A whole number of at least 2\.", out)
    assert re.search(r"Settings of the rule selective:(.|\n)*\n  budget=decisions ", out)
    # the task's default, not the source tree's
    assert "\n  steps=6000 " in out
    assert main(["train", "--task", "ading", "--help"]) == 2
    assert "unknown task 'ading': did you mean 'adding'" in capsys.readouterr().err


def test_the_example_runs(capsys, tmp_path):
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    example = re.search(r"Example:\n  (edgernn .*)\n$", out)[1]
    assert main([*shlex.split(example)[1:], "steps=2", "batch_size=5"]) == 0
    assert (tmp_path / "runs/adding-sarnn/result.json").exists()


def test_a_numbered_run_takes_the_next_free_name(tmp_path, capsys):
    words = ["train", "--task", "adding", "--cell", "gru", "--out", str(tmp_path / "a"), "T=5", "steps=1", "--numbered"]
    for name in ("a", "a-2", "a-3"):
        assert main(words) == 0
        assert (tmp_path / name / "result.json").is_file()
        assert json.loads((tmp_path / name / "config.json").read_text())["command"][7] == str(tmp_path / name)
    assert main([*words, "--resume"]) == 2
    assert "numbered: expected false with resume" in capsys.readouterr().err


class Written(list):
    """Stands for the writer of TensorBoard, which is not installed here."""

    made: ClassVar[list] = []

    def __init__(self, folder, purge_step):
        self.made.append((folder, purge_step, self))

    def add_scalar(self, *scalar):
        self.append(scalar)

    def flush(self):
        pass


def test_metrics_go_to_tensorboard_or_a_sentence_names_its_package(tmp_path, monkeypatch, capsys):
    words = ["train", "--task", "adding", "--cell", "gru", "T=5", "steps=2", "eval_every=1", "--tensorboard"]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main([*words, "--out", str(tmp_path / "none")]) == 2
    assert "needs tensorboard; pip install tensorboard" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Written))
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    ((folder, first, scalars),) = Written.made
    assert (folder, first) == (str(tmp_path / "run/tensorboard"), 1)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert scalars == [(k, v, line["step"]) for line in lines for k, v in line.items() if k != "step"]
