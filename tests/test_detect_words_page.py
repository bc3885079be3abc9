# SPDX-License-Identifier: Apache-2.0
"""The page on the detection of words: its commands on small data, its settings and its Python."""

import json
import re
import shlex
from pathlib import Path

import pytest

from edgernn.cli.frame import main
from edgernn.cli.run import command
from edgernn.export.exported_model import read_exported
from edgernn.runtime import PostProcessing
from edgernn.runtime.run_stream import run_stream
from edgernn.runtime.wav import read_wav
from edgernn.runtime.zoo import ENTRY, entries, find_model
from edgernn.settings import fields_of
from edgernn.training.evaluate_model import task_of_entry
from edgernn.training.tasks.keywords import Keywords
from tests.words import RATE, write_arabic, write_english_test_set, write_noise, write_own

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/how-to/detect-words.md").read_text(encoding="utf-8")
# a training of seconds on a few tones, in place of the page's values
SHORTER = {"hidden_size": 24, "batch_size": 8, "lr": 0.01, "epochs": 30, "room": 0.02, "lambda": 0, "silence": 0.1}
EASIER = {"mask_channels": 0, "talk": 0.3, "snr_low": 20}


@pytest.mark.slow
def test_the_commands_lead_from_clips_to_detections(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGERNN_DATA", str(tmp_path / "data"))
    write_arabic(tmp_path / "data/arabic-speech-commands", train=12, held_out=6)
    write_english_test_set(tmp_path / "data/speech-commands-test")
    write_noise(tmp_path / "speech-noise")
    write_own(tmp_path / "my_words")
    text = PAGE.replace("\\\n", "")
    for line in re.findall(r"^ {4}edgernn (.*)$", text, re.MULTILINE):
        words = shlex.split(line)
        if words[0] == "train":
            changed = SHORTER | EASIER
            # the models of the tables need not learn the words: their commands must run
            if "noise_folder=speech-noise" in words:
                changed |= {"epochs": 2}
            # the weights of a model in the zoo fit its own size only
            if "start_run=english-room-gru" in words:
                changed |= {"epochs": 1, "hidden_size": 112}
            words = [word for word in words if word.partition("=")[0] not in changed]
            words += [f"{name}={value}" for name, value in changed.items()]
        if words[0] == "evaluate":
            # the page's ten hours are longer than the test
            words = ["room=0.05" if word == "room=10" else word for word in words]
        capsys.readouterr()
        assert main(words) == 0, line
        if words[0] == "evaluate":
            assert re.search(r"^room_hours +0\.05$", capsys.readouterr().out, re.MULTILINE)
        if words[0] == "run":
            assert re.search(r"^ +\d+\.\d\d s  (left|right)  0\.\d\d$", capsys.readouterr().out, re.MULTILINE)
    result = json.loads(Path("runs/keywords-sarnn/result.json").read_text())
    named = set(re.findall(r"`([a-z_]+)`", PAGE[PAGE.index("| figure |") : PAGE.index("These figures are for")]))
    assert {f"room_{name}" for name in named - {"words", "hours"}} <= set(result)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir("runs/keywords-sarnn")
    samples = read_wav(Path("room.wav"), RATE).astype("float32") / 2**15
    microphone = list(samples[: len(samples) // 320 * 320].reshape(-1, 320))
    exec(compile(code.replace("0.7", "0.5"), "detect-words.md", "exec"), {"microphone": microphone})
    assert re.search(r"^\d+\.\d+ (left|right)$", capsys.readouterr().out, re.MULTILINE)


def test_the_page_has_the_defaults_of_the_code():
    defaults = PostProcessing()
    for name in ("smoothing", "threshold", "refractory"):
        assert f"| `--{name}` | {getattr(defaults, name):g} |" in PAGE
        (option,) = (option for option in command.params if option.name == name)
        assert f"[default: that of the file, else {getattr(defaults, name):g}]" in option.help
    settings = fields_of(Keywords)
    for text in ("snr_low=5", "snr_high=30", "noisy=0.8", "silence=0.1", "room=1", "talk=0.05", "threshold=0.5"):
        name, value = text.split("=")
        assert f"{text}" in PAGE
        assert settings[name].default == float(value)


def test_the_models_of_the_page_can_be_tested_again_on_their_settings():
    """`edgernn evaluate NAME` takes the settings of the test from the command in the entry of a model."""
    names = set(re.findall(r"`edgernn evaluate ([a-z-]+) ", PAGE))
    assert names
    for name in names:
        path = find_model(Path(name))
        model, info = read_exported(path)
        task, source, seed = task_of_entry(path.with_name(ENTRY), {"room": 10})
        assert isinstance(task, Keywords)
        assert (task.stream, task.room, task.noise_folder) == (3, 10, "speech-noise")
        assert (source, seed, task.output) == (None, 0, model.config.head.output)
        assert task.input_size == model.config.frontend.hop == model.config.input.size
        entry = next(entry for entry in entries() if entry["name"] == name)
        assert model.config.layer.cell.name == entry["cell"]
        assert len(info["classes"]) == 41


def test_silence_costs_a_trained_model_next_to_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r'^ {4}python -c "(.*?)"$', PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(re.sub(r"^ {4}", "", program, flags=re.MULTILINE), "detect-words.md", "exec"), {})
    assert len(read_wav(Path("silence.wav"), RATE)) == 60 * RATE
    report = json.loads((ROOT / "docs/results/room.json").read_text(encoding="utf-8"))
    for name, model in report["models"].items():
        result = run_stream(find_model(Path(name)), Path("silence.wav"))
        # other processors round otherwise
        assert {key: result[key] for key in model["silence"]} == pytest.approx(model["silence"], rel=0.1)
        assert not result["detections"]
        assert result["macs_a_second"] <= (0.02 if name != "arabic-room-gru" else 1) * 6_316_800
