# SPDX-License-Identifier: Apache-2.0
"""The documentation page on a user's own data, run verbatim."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgernn.cli.frame import main
from edgernn.runtime.wav import write_wav
from edgernn.settings import fields_of
from edgernn.training.tasks.arrays import Arrays
from edgernn.training.tasks.tables import Tables

TUTORIALS = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
PAGE = (TUTORIALS / "own-data.md").read_text(encoding="utf-8")


def follow(page=PAGE):
    """Save the page's scripts and run its commands in order, in the current folder."""
    for name, code in re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL):
        Path(name).write_text(code)
    commands = re.findall(r"^    ((?:python|edgernn) .*)$", page, re.MULTILINE)
    for command in commands:
        program, *words = shlex.split(command)
        if program == "python":
            process = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)
            assert process.returncode == 0, process.stderr
        else:
            assert main(words) == 0, command
    return commands


@pytest.mark.slow
def test_the_page_leads_from_files_to_models_that_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = follow()
    printed = capsys.readouterr().out
    verbs = [command.split()[1] for command in commands if command.startswith("edgernn")]
    cycle = ["train", "export", "bench", "run"]
    assert verbs == [*cycle, "evaluate", *cycle, "train", "export", "run"]
    results = {run.parent.name: json.loads(run.read_text()) for run in tmp_path.glob("runs/*/result.json")}
    assert results["shapes-sarnn"]["accuracy"] > 0.9
    assert results["shapes-csv"]["accuracy"] > 0.9
    assert float(re.search(r"50 test sequences of new\.npz\naccuracy +(\S+)", printed)[1]) > 0.9
    assert json.loads((tmp_path / "runs/shapes-csv/config.json").read_text())["task"]["classes"] == ["sine", "square"]
    with np.load("new.npz") as new:
        assert re.search(r"\nclass +probability.*\n(\S+)", printed)[1] == ("sine", "square")[new["y"][0]]
    # far better than the baseline of no change
    x, following = np.loadtxt("new.csv"), np.loadtxt("next.csv")
    assert following.shape == x.shape
    assert np.mean((following[5:-1] - x[6:]) ** 2) < np.mean((x[5:-1] - x[6:]) ** 2)
    assert len(list(tmp_path.glob("runs/*/bench.json"))) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("default::edgernn.errors.EdgernnWarning")
def test_recordings_become_a_model_for_a_phone_and_a_board(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    follow((TUTORIALS / "own-recordings.md").read_text(encoding="utf-8"))
    # the first recording of p0: 300 rows are the first activity and a part of the second
    activity = Path("motion/0-0.csv").read_text().splitlines()[100].split(",")[4]
    answers = re.findall(r"^ +\d+  (\w+) ", capfd.readouterr().out, re.MULTILINE)
    assert answers[:3] == [activity] * 3
    assert json.loads(Path("runs/motion-gru/result.json").read_text())["accuracy"] > 0.9
    assert all(name.encode() in Path("motion.edgernn").read_bytes() for name in ("sit", "stairs", "walk"))
    assert (tmp_path / "firmware" / "model.c").is_file()


def test_the_example_in_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(import .*?)```", PAGE, re.DOTALL)
    exec(code, {})
    assert "['low' 'high' 'low']" in capsys.readouterr().out
    assert (tmp_path / "runs/data-gru/model.onnx").is_file()


@pytest.mark.filterwarnings("ignore:skip. expected:edgernn.errors.EdgernnWarning")
def test_the_command_for_sounds_trains_a_model_of_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for word, tone in (("left", 300.0), ("right", 900.0)):
        Path("my_words", word).mkdir(parents=True)
        for i in range(5):
            loudness = rng.uniform(0.1, 0.5)
            samples = loudness * np.sin(2 * np.pi * tone * np.arange(16_000) / 16_000)
            write_wav(Path("my_words", word, f"{i}.wav"), samples.astype(np.float32), 16_000)
    (command,) = re.findall(r"`(edgernn train --task my_words/ .*?)` trains", PAGE)
    assert main([*shlex.split(command)[1:], "--out", "run", "hidden_size=8", "steps=4"]) == 0
    assert json.loads(Path("run/config.json").read_text())["task"]["classes"] == ["left", "right", "_silence_"]


def test_the_page_names_every_setting_of_its_tasks():
    assert all(f"`{name}=" in PAGE for task in (Arrays, Tables) for name in fields_of(task))
