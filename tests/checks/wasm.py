# SPDX-License-Identifier: Apache-2.0
"""`make check-wasm`: runtime/js in Node and Chromium equal torch and the library, and refuse damaged models."""

import gzip
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.export.rounding import rounded
from edgernn.imputers import IMPUTERS
from edgernn.runtime.stepper import Stepper
from tests.apps import ROOT, need, need_chromium, need_wasm, run
from tests.models import contractive, packed_alone
from tests.mutants import packed_mutant
from tests.own_cells_oracle import CASE_RULES, CASES
from tests.pairs import PAIRS
from tests.step_networks import packed_networks
from tests.test_own_cells import assert_matches, case_model, case_truth
from tests.test_packed import random_input, steps, torch_outputs
from tests.tolerances import FLOAT32

PACKAGE = ROOT / "runtime" / "js"
CORPUS = ROOT / "tests" / "corpus" / "packed"
DAMAGED = 2000  # damaged models
MOST_GZIPPED = 180_000  # bytes of edgernn.wasm with all cells, rules, own cells and step graphs
# tolerance against torch, as for packed models on x86: int8 products quantise their operand to 16 bits
CLOSE = {"float32": 2e-6, "bfloat16": 2e-6, "int8": 2e-4}


@dataclass(frozen=True)
class Job:
    """A packed model and its input: x (T, B, I) or words (T, B)."""

    packed: bytes
    x: NDArray[Any]


@dataclass(frozen=True)
class Stepped:
    """The outputs (T, B, O) of a job and its updates of all sequences per step, or the message of its error."""

    y: NDArray[np.float32] | None
    updates: list[int]
    message: str | None
    milliseconds: float


# Node's option, if any, with which it takes edgernn.wasm or edgernn-relaxed.wasm
MODULES = {"edgernn": "--no-experimental-wasm-relaxed-simd", "edgernn-relaxed": "--experimental-wasm-relaxed-simd"}
modules = pytest.mark.parametrize("module", MODULES)
runtimes = pytest.mark.parametrize("module", [*MODULES, "chromium"])


def node_words(module: str) -> list[str]:
    """Return the command of Node with the option for a module; newer versions have relaxed SIMD and no option."""
    need("node")
    need_wasm()
    if module == "chromium":
        need_chromium()
        return ["node"]
    words = ["node", MODULES[module]]
    if run(*words, "--eval", "").returncode == 0:
        return words
    if module == "edgernn":
        pytest.skip("this version of Node takes edgernn-relaxed.wasm always")
    return words[:1]


def step_in_node(jobs: list[Job], module: str, timeout: float = 300) -> list[Stepped]:
    """Step all models in one process of Node, or on one page of Chromium."""
    command = node_words(module)
    listed, parts, offset = [], [], 0
    for job in jobs:
        places = []
        for part in (job.packed, job.x.astype(np.float32).tobytes()):
            places.append((offset, len(part)))
            # a view of floats needs this alignment
            parts.append(part.ljust(-(-len(part) // 8) * 8, b"\0"))
            offset += len(parts[-1])
        listed.append({"model": places[0], "x": places[1], "steps": job.x.shape[0], "batch": job.x.shape[1]})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "jobs.json").write_text(json.dumps(listed), encoding="utf-8")
        (folder / "data").write_bytes(b"".join(parts))
        process = run(*command, ROOT / "tests" / "step_packed.mjs", folder, module, timeout=timeout)
        assert process.returncode == 0, process.stderr
        y = np.frombuffer((folder / "y").read_bytes(), np.float32)
    results = []
    for job, line in zip(jobs, process.stdout.splitlines(), strict=True):
        result = json.loads(line)
        count = result.get("outputs")
        outputs = None if count is None else y[:count].reshape(*job.x.shape[:2], -1)
        y = y[count or 0 :]
        results.append(Stepped(outputs, result.get("updates", []), result.get("message"), result["milliseconds"]))
    return results


def assert_equals_torch(cases: dict[str, tuple[Any, str, NDArray[Any]]], module: str) -> None:
    """Assert that each (model, weights, x) in Node equals torch, and in its updates the native library."""
    jobs = [Job(packed_alone(model, weights), x) for model, weights, x in cases.values()]
    for (name, (model, weights, x)), job, got in zip(cases.items(), jobs, step_in_node(jobs, module), strict=True):
        assert got.message is None, f"{name}: {got.message}"
        expected = torch_outputs(model, x)
        assert np.abs(expected).max() > 100 * CLOSE[weights], name
        np.testing.assert_allclose(got.y, expected, rtol=0, atol=CLOSE[weights], err_msg=name)
        y, updates, _ = steps(job.packed, x)
        np.testing.assert_allclose(got.y, y, rtol=0, atol=FLOAT32, err_msg=name)
        assert got.updates == ([] if updates is None else updates.sum(-1).tolist()), name


@runtimes
def test_every_cell_under_every_rule(module):
    cases = {}
    for number, (cell, rule) in enumerate(PAIRS):
        options = {"cell_options": {"length": 9}} if cell == "decaynet" else {}
        x = random_input(9, (1, 3)[number % 2], 3)
        cases[f"{cell} {rule}"] = contractive(cell, rule, **options), "float32", x
    assert_equals_torch(cases, module)


@runtimes
def test_the_zoo_and_networks_of_other_tools(module, tmp_path):
    networks = packed_networks(tmp_path)
    jobs = [Job(packed, x) for packed, x in networks.values()]
    for name, job, got in zip(networks, jobs, step_in_node(jobs, module), strict=True):
        assert got.message is None, f"{name}: {got.message}"
        y, updates, _ = steps(job.packed, job.x)
        limit = FLOAT32 * max(1.0, np.abs(y).max())
        np.testing.assert_allclose(got.y, y, rtol=0, atol=limit, err_msg=name)
        assert got.updates == ([] if updates is None else updates.sum(-1).tolist()), name


@runtimes
def test_weights_of_fewer_bytes(module):
    cases = {}
    for cell in ("rnn", "gru", "lstm", "irc-gru", "eins", "sru", "fastgrnn"):
        for rule in ("always", "skip", "selective"):
            for weights in ("bfloat16", "int8"):
                size = 33 if cell == "sru" else 17
                model = rounded(contractive(cell, rule, input_size=size), weights)
                cases[f"{cell} {rule} {weights}"] = model, weights, random_input(9, 2, size)
    assert_equals_torch(cases, module)


@runtimes
def test_every_shape_of_model(module):
    shapes = {
        "stack": {"layers": 2, "output": "all", "mean": 0.5, "std": 2.0, "last_size": 17},
        "no head": {"output_size": None},
        "low rank": {"rank": 4},
        "sparse": {"density": 0.25},
        "one neuron": {"hidden_size": 1, "input_size": 3},
        "large": {"hidden_size": 128},
    }
    cases = {}
    for rule in ("always", "selective"):
        for name, options in shapes.items():
            cases[f"{rule} {name}"] = contractive("gru", rule, **options), "float32", random_input(6, 2, 3)
    x = np.abs(random_input(6, 2, 9))
    x[..., 3:6] = x[..., 3:6] > 0.7
    for imputer in IMPUTERS:
        cases[imputer] = contractive("lstm", input_size=9, imputer=imputer), "float32", x
    words = np.random.default_rng(0).integers(0, 40, (7, 2))
    options = {"vocabulary": 40, "output": "all", "input_size": 8, "output_size": 5}
    cases["words"] = contractive("lstm", **options), "float32", words
    assert_equals_torch(cases, module)


@runtimes
def test_cells_that_the_library_does_not_know(module):
    names = [(name, rule) for name in CASES for rule in CASE_RULES]
    models = [case_model(*name) for name in names]
    truths = [case_truth(*name, model) for name, model in zip(names, models, strict=True)]
    jobs = [Job(packed_alone(model), x) for model, (x, _) in zip(models, truths, strict=True)]
    for (_, rule), (_, expected), got in zip(names, truths, step_in_node(jobs, module), strict=True):
        assert_matches(got.y, None, expected, "always")
        assert got.updates == ([] if rule == "always" else expected.updates.sum(-1).tolist())


def native(job: Job) -> tuple[NDArray[np.float32] | None, str | None]:
    """Step a job as step_packed.mjs does; return y, or the message of the error."""
    try:
        stepper = Stepper(job.packed, job.x.shape[1], on_nonfinite="reset")
    except EdgernnError as error:
        return None, str(error)
    numbers, outputs = job.x.astype(np.float32).ravel(), []
    for t in range(job.x.shape[0]):
        x_t = numbers[(t * stepper.x.size + np.arange(stepper.x.size)) % numbers.size]
        if stepper.x.ndim == 1:
            vocabulary = int.from_bytes(job.packed[36:40], "little")
            x_t = x_t.astype(np.int64) % vocabulary
        stepper.x[...] = x_t.reshape(stepper.x.shape)
        assert stepper.step(), stepper.refusal()
        outputs.append(stepper.y.copy())
    return np.stack(outputs), None


@modules
def test_damaged_models_have_the_same_end_as_in_the_native_library(module):
    files = sorted(CORPUS.iterdir())
    jobs = []
    for number in range(DAMAGED):
        draw = random.Random(number)
        content = packed_mutant(draw.choice(files).read_bytes(), draw)
        batch = 1 + number % 3
        x = np.random.default_rng(number).integers(0, 9, (3, batch, 2)).astype(np.float32)
        jobs.append(Job(content, x))
    accepted = equal = 0
    for number, (job, got) in enumerate(zip(jobs, step_in_node(jobs, module), strict=True)):
        y, message = native(job)
        assert got.message == message, number
        assert got.milliseconds < 2000, number
        if y is None:
            continue
        accepted += 1
        assert got.y.size == y.size, number
        equal += np.allclose(got.y, y.reshape(got.y.shape), rtol=1e-3, atol=1e-3, equal_nan=True)
    print(f"{DAMAGED} damaged models: {accepted} run, {equal} of them with equal outputs")
    assert DAMAGED // 10 < accepted < DAMAGED
    # sums of large damaged weights may cancel or overflow in one library alone
    assert equal > 0.95 * accepted


@modules
def test_the_module_is_small(capsys, module):
    need_wasm()
    content = (PACKAGE / f"{module}.wasm").read_bytes()
    size = len(gzip.compress(content, 9))
    with capsys.disabled():
        print(f"\n{module}.wasm: {len(content)} bytes, {size} gzipped")
    assert size <= MOST_GZIPPED


@modules
def test_the_package_behaves(tmp_path, module):
    """tests/npm_package.test.mjs, by Node's own test runner."""
    command = node_words(module)
    for name, model in {
        "sarnn": contractive("gru", "selective", hidden_size=128),
        "words": contractive("lstm", vocabulary=11, output="all"),
    }.items():
        (tmp_path / f"{name}.edgernn").write_bytes(packed_alone(model))
    stepper = Stepper((tmp_path / "sarnn.edgernn").read_bytes(), 1)
    for x in random_input(5, 1, 3):
        stepper.x[...] = x
        assert stepper.step()
    (tmp_path / "sarnn.state").write_bytes(stepper.save_state())
    stepper.x[...] = 0.5
    assert stepper.step()
    (tmp_path / "sarnn.y").write_bytes(stepper.y.tobytes())
    words = [*command, "--test", ROOT / "tests" / "npm_package.test.mjs"]
    process = run(*words, timeout=300, environment={"FOLDER": str(tmp_path)})
    assert process.returncode == 0, process.stdout + process.stderr
