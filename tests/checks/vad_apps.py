# SPDX-License-Identifier: Apache-2.0
"""`make check-apps`: the apps in C and in a browser's AudioWorklet find the parts of a recording with speech."""

import json
import re

import numpy as np
import pytest

from edgernn.runtime.packed import pack_file
from edgernn.runtime.stepper import Stepper
from tests.apps import EXAMPLES, ROOT, c_program, listen, need, run
from tests.test_step_graph import Net
from tests.tone_model import tones, write_tone_model
from tests.words import RATE, write_wav

# a step of the model of another tool reads 80 samples of the step before
SIZE, NEW = 400, 320


def loudness_model(folder):
    """Write a file of another tool whose output is near 1 for a loud sound, with a mean that it keeps as a state."""
    net = Net(x=[1, SIZE], s=[1, 1, 1])
    loud = net("Unsqueeze", net("ReduceMean", net("Abs", "x"), axes=[1]), np.array([2]))
    mean = net("Add", net("Mul", "s", np.float32(0.5)), net("Mul", loud, np.float32(0.5)))
    scores = net("Sub", net("Mul", mean, np.float32(400)), np.float32(8))
    y = net("Sigmoid", net("Squeeze", scores, np.array([2])))
    path = folder / "loud.onnx"
    path.write_bytes(net.model(y, s=mean).SerializeToString())
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Packed models with the number of new samples of a step: one of another tool, and one of classes."""
    folder = tmp_path_factory.mktemp("vad")
    paths = {"one output": loudness_model(folder), "classes": write_tone_model(folder)}
    packed = {name: path.with_suffix(".edgernn") for name, path in paths.items()}
    for name, path in paths.items():
        pack_file(path, packed[name])
    return {"one output": (packed["one output"], NEW), "classes": (packed["classes"], 320)}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return write_wav(tmp_path_factory.mktemp("audio") / "r.wav", tones("left", "go", "stop", "right"))


def parts_of(packed, added, samples, threshold=0.5):
    """Return the parts with speech in samples, each with its begin and end in seconds."""
    stepper = Stepper(packed.read_bytes(), 1)
    x, parts, begin, last = np.zeros(stepper.x.shape[1], np.float32), [], None, 0.0
    for t in range(len(samples) // added):
        x = np.concatenate([x, samples[t * added : (t + 1) * added]])[-len(x) :]
        stepper.x[...] = x
        assert stepper.step()
        y = stepper.y[0]
        # the last class of several is silence
        speech = y[0] if len(y) == 1 else 1 - 1 / np.exp(y - y[-1]).sum()
        now, end = t * added / RATE, (t + 1) * added / RATE
        if begin is None and speech >= threshold:
            begin = now
        if speech >= threshold - 0.15:
            last = end
        if begin is not None and end - last >= 0.25:
            parts.append((begin, last))
            begin = None
    return parts


@pytest.mark.parametrize("kind", ["one output", "classes"])
def test_speech_in_c(kind, models, recording):
    packed, added = models[kind]
    samples = tones("left", "go", "stop", "right").astype(np.float32) / 32768
    expected = parts_of(packed, added, samples)
    assert len(expected) == 4
    process = run(c_program().parent / "vad", "-n", added, packed, recording)
    assert process.returncode == 0, process.stderr
    *lines, last = process.stdout.splitlines()
    found = [list(map(float, re.findall(r"[\d.]+", line))) for line in lines]
    np.testing.assert_allclose(found, expected, atol=0.006)
    assert last.endswith("in 4 parts of 4.0 s")


def test_bad_settings_are_one_sentence_in_c(models, recording):
    packed, _ = models["one output"]
    for words, message in (
        (["-n", 401], "-n: expected at most 400 samples, which the model reads, got 401"),
        (["-t", 2], "-t: expected a number above 0 and at most 1, got 2"),
    ):
        process = run(c_program().parent / "vad", *words, packed, recording)
        assert (process.returncode, process.stderr) == (1, f"vad: {message}\n")


def test_speech_in_javascript(models):
    """The class of the worklet finds the parts that the C program finds, for samples in parts of any length."""
    need("node")
    samples = tones("left", "go", "stop", "right").astype(np.float32) / 32768
    for packed, added in models.values():
        script = f"""
            import {{ readFileSync }} from "node:fs";
            import {{ Model }} from "{ROOT}/runtime/js/index.mjs";
            import {{ VoiceActivity }} from "{EXAMPLES}/voice_activity.mjs";
            const model = await Model.load(readFileSync("{packed}"));
            const activity = new VoiceActivity(model, {{ rate: {RATE}, added: {added} }});
            const samples = new Float32Array({json.dumps(samples.tolist())});
            const parts = [];
            for (let at = 0, n = 1; at < samples.length; at += n, n = (n * 7) % 503) {{
              for (const step of activity.feed(samples.subarray(at, at + n))) if (step.part) parts.push(step.part);
            }}
            console.log(JSON.stringify(parts));
        """
        process = run("node", "--input-type=module", text=script)
        assert process.returncode == 0, process.stderr
        parts = [(part["begin"], part["end"]) for part in json.loads(process.stdout)]
        np.testing.assert_allclose(parts, parts_of(packed, added, samples), atol=1e-6)


@pytest.mark.parametrize("kind", ["one output", "classes"])
def test_the_worklet_hears_the_microphone(kind, models, recording):
    packed, added = models[kind]
    result = listen(f"vad.html?new={added}", packed, "microphone", recording, 5)
    assert result["error"] == ""
    samples = np.concatenate([tones("left", "go", "stop", "right"), np.zeros(RATE)]).astype(np.float32) / 32768
    found = [[float(part["begin"]), float(part["end"])] for part in result["found"]]
    np.testing.assert_allclose(found, parts_of(packed, added, samples), atol=0.041)


def test_what_is_wrong_is_said_on_the_page(models, tmp_path):
    packed, _ = models["one output"]
    assert listen("vad.html", packed, "refused")["error"].startswith("microphone: access was refused")
    path = write_wav(tmp_path / "r.wav", tones("left"))
    error = listen("vad.html?new=500", packed, "file", path, 1)["error"]
    assert error == "r.wav: new samples: expected 1 to 400, which the model reads, got 500"
