# SPDX-License-Identifier: Apache-2.0
"""`make check-mcu`: the C files of models equal torch and the native library, here and on emulated microcontrollers."""

import copy
import functools
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import edgernn
from edgernn.bench.microcontroller import bench_on_target, emulate, missing_tool, targets
from edgernn.cells import CELLS
from edgernn.errors import EdgernnError, UsageError
from edgernn.export.rounding import rounded
from edgernn.imputers import IMPUTERS
from edgernn.rules import RULES
from edgernn.runtime.firmware.equations import built_in_rules
from edgernn.runtime.firmware.folder import c_files
from edgernn.runtime.graph_options import GraphOptions
from edgernn.runtime.info import read_model
from edgernn.runtime.packed import pack
from tests.apps import ROOT, need, run
from tests.checks.foreign_models import DTLN1, DTLN2, GTCRN, VAD
from tests.checks.foreign_models import file as foreign_file
from tests.firmware import CHECKED, HARNESS, STRICT, step_in_c, write_files
from tests.models import contractive, exported_alone
from tests.native import VARIANTS
from tests.own_cells_oracle import CASE_RULES, CASES
from tests.pairs import covering, pairwise
from tests.step_networks import STEPS, delta_network, streaming_network, zoo
from tests.test_extreme_inputs import streams
from tests.test_frontends import BEGINNINGS, DEFINITIONS, NORMALISATIONS, STACKED, beginnings, model_of, room
from tests.test_own_cells import case_model, case_truth
from tests.test_packed import random_input, steps, torch_outputs
from tests.tolerances import FLOAT32

WRITTEN = sorted(name for name, rule in built_in_rules().items() if rule.has_code)
SELECTIONS = {rule: {"rule": rule} for rule in WRITTEN}
SELECTIONS["selective, groups"] = {"rule": "selective", "rule_options": {"group_size": 4}}
TRAINED = ROOT / "models" / "adding-sarnn" / "model.onnx"
# of a cell that is told its length
DECAYNET = {"cell_options": {"length": 9}}
# tolerance against torch of int8 weights, as in the native library: products quantise their operand to 16 bits
INT8 = 2e-4
# bounds of docs/how-to/deploy-microcontroller.md on a Cortex-M4
MOST_CODE, MOST_INSTRUCTIONS, LEAST_RATIO = 3072, 21_000, 8


def assert_equals_torch(content, model, x, got, tolerance=FLOAT32):
    """Assert that outputs and updates of x (T, I), or words (T,), equal torch and the native library."""
    y, updates, _ = steps(pack(content, Path("model.onnx")), x[:, None])
    expected = torch_outputs(model, x[:, None])[:, 0]
    assert np.abs(expected).max() > 100 * tolerance
    np.testing.assert_allclose(got.y, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(got.y, y[:, 0], rtol=0, atol=FLOAT32)
    neurons = sum(layer.cell.hidden_size for layer in model.recurrent_layers())
    expected_updates = np.full(len(x), neurons) if updates is None else updates[:, 0]
    np.testing.assert_array_equal(got.updates, expected_updates)


def check(model, x, weights="float32"):
    model = rounded(model, weights)
    content = exported_alone(model, weights)
    assert_equals_torch(content, model, x, step_in_c(content, x), INT8 if weights == "int8" else FLOAT32)


def inputs(count=9, size=3):
    return random_input(count, 1, size)[:, 0]


# the C code of a layer is that of its cell between that of its rule
@pytest.mark.parametrize(
    ("cell", "selection"),
    covering([*product(CELLS, SELECTIONS)], ("gru", "lstm-peephole", "eins", "t-lstm")),
)
def test_every_cell_and_every_rule_with_equations(cell, selection):
    options = DECAYNET if cell == "decaynet" else {}
    check(contractive(cell, **SELECTIONS[selection], **options), inputs())


@pytest.mark.parametrize("rule", ["always", "selective"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_a_cell(variant, rule):
    name = VARIANTS[variant](3, 5).name
    options = {"a": "x"} if "from-x" in variant else {}
    options |= {"forget_bias": 1.0} if "forget" in variant else {}
    # the second layer has H inputs, which other variants of sru have
    check(contractive(name, rule, layers=2, cell_options=options), inputs())


@pytest.mark.parametrize("rule", CASE_RULES)
@pytest.mark.parametrize("name", CASES)
def test_a_users_own_cell(name, rule):
    model = case_model(name, rule)
    x, expected = case_truth(name, rule, model)
    content = exported_alone(model)
    got = step_in_c(content, x[:, 0])
    np.testing.assert_allclose(got.y, expected.y[:, 0], rtol=0, atol=FLOAT32)
    if rule != "always":
        np.testing.assert_array_equal(got.updates, expected.updates[:, 0])


@pytest.mark.parametrize(
    ("cell", "rule"),
    covering(
        [*product([name for name in CELLS if name != "decaynet"], ["always", "selective", "skip", "delta"])],
        ("gru", "eins"),
    ),
)
@pytest.mark.parametrize("size", [2, 17])
def test_int8_weights(cell, rule, size):
    check(contractive(cell, rule, input_size=size), inputs(9, size), "int8")


SHAPES = {
    "stack": {"layers": 3, "output": "all", "mean": 0.5, "std": 2.0, "last_size": 17},
    "no head": {"output_size": None},
    "low rank": {"rank": 5},
    "sparse": {"density": 0.25},
    "one neuron": {"hidden_size": 1},
    "whole blocks": {"hidden_size": 32, "input_size": 8},
    "wide": {"hidden_size": 200},
    "one input": {"input_size": 1, "hidden_size": 18},
}


@pytest.mark.parametrize(
    ("shape", "rule", "weights"),
    pairwise(list(SHAPES), ["always", "selective", "skip", "delta"], ["float32", "bfloat16", "int8"]),
)
def test_every_shape_of_model(shape, rule, weights):
    options = {"input_size": 3} | SHAPES[shape]
    if (rule, shape) == ("delta", "low rank"):
        with pytest.raises(EdgernnError, match=r"no kernel for gru\+delta\+low-rank"):
            c_files(exported_alone(contractive("gru", rule, **options)), Path("model.onnx"))
        return
    check(contractive("gru", rule, **options), inputs(6, options["input_size"]), weights)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("tied", [False, True])
def test_words(tied, weights):
    sizes = {"input_size": 33, "output_size": 40} if tied else {"input_size": 8, "output_size": 5}
    model = contractive("lstm", vocabulary=40, output="all", tied=tied, **sizes)
    check(model, np.random.default_rng(0).integers(0, 40, 7), weights)


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("cell", ["gru", "lstm", "eins"])
def test_kept_sums_are_computed_anew(cell, weights):
    x = inputs(600)
    x[[100, 300]] *= 5000
    check(contractive(cell, "delta"), x, weights)


@pytest.mark.parametrize("definition", [*DEFINITIONS.values(), STACKED], ids=[*DEFINITIONS, "stacked"])
@pytest.mark.parametrize("normalise", NORMALISATIONS)
def test_the_audio_front_end(normalise, definition):
    model = model_of(normalise, "gru", "selective", **definition).eval()
    content, x = exported_alone(model), room(24, 1, model.input_size)[:, 0]
    got = step_in_c(content, x)
    y, updates, _ = steps(pack(content, Path("model.onnx")), x[:, None])
    np.testing.assert_allclose(got.y, y[:, 0], rtol=0, atol=FLOAT32)
    np.testing.assert_array_equal(got.updates, updates[:, 0])
    # features of torch differ by its transform
    np.testing.assert_allclose(got.y, torch_outputs(model, x[:, None])[:, 0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_on_extreme_inputs_is_close_to_float64(cell):
    options = DECAYNET if cell == "decaynet" else {}
    model = contractive(cell, hidden_size=9, output_size=None, output="all", **options)
    # one stream of the scales one after the other
    x = streams(model.input_size).transpose(1, 0, 2).reshape(-1, model.input_size)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(torch.from_numpy(x[:, None]).double())[0][:, 0].numpy()
    got = step_in_c(exported_alone(model), x).y
    largest = np.maximum(1, np.abs(expected).max(1))
    allowed = 2e-5 * largest + 1e-6 * np.maximum.accumulate(np.abs(x).max(1))
    assert (np.abs(got - expected).max(1) <= allowed).all()


@pytest.mark.parametrize("normalise", NORMALISATIONS)
def test_the_audio_front_end_after_any_beginning(normalise):
    model, x = model_of(normalise).eval(), beginnings(36, 160)
    expected = torch_outputs(model, x)
    content = exported_alone(model)
    for b in range(len(BEGINNINGS)):
        np.testing.assert_allclose(step_in_c(content, x[:, b]).y, expected[:, b], rtol=0, atol=1e-4)


FUNCTIONS = {
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "abs": np.abs,
    # 0 for NaN, as in torch
    "sign": lambda a: np.nan_to_num(np.sign(a)),
}


def test_functions_equal_float64(tmp_path):
    need("gcc")
    program = tmp_path / "functions"
    words = ("gcc", "-std=c99", *CHECKED, "-I", ROOT / "runtime" / "firmware" / "engine", "-o", program)
    built = run(*words, ROOT / "tests" / "check_functions.c")
    assert built.returncode == 0, built.stderr
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(-60, 60, 20_000)) * rng.choice([-1, 1], 20_000)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 88.0, -104.0, 8192.0, 8193.0, 3.4e38, 1e-40]
    a = np.concatenate([sizes, rng.uniform(-90, 90, 20_000), rng.uniform(-3, 3, 20_000), special]).astype(np.float32)
    process = subprocess.run([program], input=a.tobytes(), capture_output=True, check=True)
    results = np.frombuffer(process.stdout, np.float32).reshape(len(FUNCTIONS), -1)
    for (name, function), got in zip(FUNCTIONS.items(), results, strict=True):
        with np.errstate(all="ignore"):
            expected = function(a.astype(np.float64))
            # of float32: overflow and subnormal results
            expected = np.where(np.abs(expected) > 3.4028235e38, np.copysign(np.inf, expected), expected)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(got[~finite], expected[~finite].astype(np.float32), name)
        tiny = 2e-7 if name == "sigmoid" else 1e-10 if name in ("sin", "cos") else 2e-38
        np.testing.assert_allclose(got[finite], expected[finite], rtol=5e-7, atol=tiny, err_msg=name)


def test_states_and_bad_input(tmp_path):
    need("gcc")
    write_files(exported_alone(contractive("gru", "selective", layers=2)), tmp_path)
    program = tmp_path / "states"
    words = ("gcc", "-std=c99", *CHECKED, "-fno-sanitize=float-divide-by-zero", "-I", tmp_path, "-o", program)
    built = run(*words, ROOT / "tests" / "check_states.c", tmp_path / "model.c")
    assert built.returncode == 0, built.stderr
    process = run(program)
    assert process.returncode == 0, f"line {process.returncode}: {process.stderr}"


def test_two_models_with_names_share_a_program(tmp_path):
    """Two models compile into one program, from C++ too, and a firmware includes one CMake file for each."""
    for tool in ("gcc", "g++", "cmake"):
        need(tool)
    for name in ("alarm", "gesture"):
        files = c_files(exported_alone(contractive("gru", "skip")), Path("model.onnx"), name)
        for file, text in files.texts.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / file).write_text(text)
    (tmp_path / "main.cc").write_text(
        '#include "alarm.h"\n#include "gesture.h"\nstatic AlarmState a;\nstatic GestureState g;\n'
        "int main() { float x[ALARM_INPUT] = {}, y[GESTURE_OUTPUT]; alarm_reset(&a); gesture_reset(&g);\n"
        "return alarm_step(&a, x, y) + gesture_step(&g, x, y); }\n"
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(two C CXX)\n"
        "include(alarm/alarm.cmake)\ninclude(gesture/gesture.cmake)\n"
        "add_executable(two main.cc)\ntarget_link_libraries(two PRIVATE alarm gesture)\n"
    )
    for words in (("cmake", "-S", tmp_path, "-B", tmp_path / "build"), ("cmake", "--build", tmp_path / "build")):
        process = run(*words)
        assert process.returncode == 0, process.stdout + process.stderr
    assert run(tmp_path / "build" / "two").returncode == 0


def test_what_c_lacks_is_refused_by_name():
    def refused(model):
        with pytest.raises(UsageError) as error:
            c_files(exported_alone(model), Path("model.onnx"))
        return str(error.value)

    for rule in set(RULES) - set(WRITTEN):
        assert f"gru+{rule}: expected an update rule with C code" in refused(contractive("gru", rule))
    for imputer in IMPUTERS:
        model = contractive("lstm", input_size=9, imputer=imputer)
        assert "C code needs a layer without imputer and normalisation" in refused(model)
    # the native library, which checks the content first, has no kernel with normalisation either
    with pytest.raises(EdgernnError, match=r"the library has no kernel for gru\+layer"):
        c_files(exported_alone(contractive("gru", norm="layer")), Path("model.onnx"))
    with pytest.raises(UsageError, match="expected a C identifier"):
        c_files(exported_alone(contractive("gru")), Path("model.onnx"), "my-model")


def need_target(target):
    if (reason := missing_tool(target)) is not None:
        pytest.skip(reason)


@functools.cache
def emulated_models():
    """Models that run on every emulated microcontroller: (model, weights, x) by name."""
    softsign = case_model("mut1", "selective")
    cases = {
        "gru+selective": (contractive("gru", "selective"), "float32", inputs()),
        "gru, groups": (contractive("gru", **SELECTIONS["selective, groups"]), "int8", inputs()),
        "lstm+skip": (contractive("lstm", "skip", layers=2), "float32", inputs()),
        "gru+delta": (contractive("gru", "delta", layers=2), "float32", inputs()),
        "lstm-peephole+delta": (contractive("lstm-peephole", "delta", hidden_size=18), "int8", inputs()),
        "irc-gru": (contractive("irc-gru", input_size=6), "float32", inputs(9, 6)),
        "lstm-peephole": (contractive("lstm-peephole", "selective", hidden_size=18), "int8", inputs()),
        "t-lstm": (contractive("t-lstm", "selective"), "float32", inputs()),
        "decaynet": (contractive("decaynet", **DECAYNET), "float32", inputs()),
        "low rank": (contractive("gru", "always", rank=5), "int8", inputs()),
        "own cell": (softsign, "float32", inputs(9, 33)),
        "words": (contractive("lstm", vocabulary=40, input_size=8, output="all"), "int8", np.arange(7) * 5),
        "two inputs": (contractive("gru", input_size=2, hidden_size=18), "int8", inputs(9, 2)),
    }
    return {name: (rounded(model, weights), weights, x) for name, (model, weights, x) in cases.items()}


@functools.cache
def stepped_here(case):
    model, weights, x = emulated_models()[case]
    return step_in_c(exported_alone(model, weights), x)


# every model on two of the four processors
@pytest.mark.parametrize(
    ("target", "case"),
    [
        (target, case)
        for number, case in enumerate(emulated_models())
        for place, target in enumerate(targets())
        if (number + place) % 2 == 0 or case == "gru+selective"
    ],
)
def test_an_emulated_microcontroller_equals_torch(target, case):
    need_target(target)
    model, weights, x = emulated_models()[case]
    content = exported_alone(model, weights)
    got = emulate(content, x, target)
    assert_equals_torch(content, model, x, got, INT8 if weights == "int8" else FLOAT32)
    # whole-number sums are those of this machine
    np.testing.assert_allclose(got.y, stepped_here(case).y, rtol=0, atol=2e-6)


@pytest.mark.parametrize("target", targets())
def test_audio_on_an_emulated_microcontroller(target):
    need_target(target)
    model = model_of("pcen", "gru", "selective").eval()
    content, x = exported_alone(model), room(12, 1, 160)[:, 0]
    got = emulate(content, x, target)
    y, updates, _ = steps(pack(content, Path("model.onnx")), x[:, None])
    np.testing.assert_allclose(got.y, y[:, 0], rtol=0, atol=FLOAT32)
    np.testing.assert_array_equal(got.updates, updates[:, 0])


def undefined(target, file):
    """Return the names that an object file takes from others."""
    symbols = run(targets()[target]["compiler"].removesuffix("gcc") + "nm", "--undefined-only", file)
    assert symbols.returncode == 0, symbols.stderr
    return symbols.stdout.split()


@pytest.mark.parametrize("processor", ["cortex-m4", "cortex-m55"])
def test_clang_compiles_the_model(processor, tmp_path):
    need("clang")
    need_target(processor)
    for name, (model, weights, _) in emulated_models().items():
        write_files(exported_alone(model, weights), tmp_path)
        flags = ("--target=arm-none-eabi", f"-mcpu={processor}", "-mfloat-abi=hard", f"@{tmp_path / 'clang.flags'}")
        compiled = run("clang", *flags, *STRICT, "-c", tmp_path / "model.c", "-o", tmp_path / "model.o")
        assert compiled.returncode == 0, compiled.stderr
        assert undefined(processor, tmp_path / "model.o") == [], name


@pytest.mark.parametrize("target", targets())
def test_the_model_calls_nothing(target, tmp_path):
    """The code calls no C library and no helper of the compiler, as a division of 64-bit numbers would."""
    need_target(target)
    settings = targets()[target]
    for name, (model, weights, _) in emulated_models().items():
        write_files(exported_alone(model, weights), tmp_path)
        flags = (*settings["flags"], *STRICT, f"@{tmp_path / 'gcc.flags'}")
        compiled = run(settings["compiler"], *flags, "-c", tmp_path / "model.c", "-o", tmp_path / "model.o")
        assert compiled.returncode == 0, compiled.stderr
        assert undefined(target, tmp_path / "model.o") == [], name


@functools.cache
def costs(which, target="cortex-m4"):
    """Step a model of (2, 128) on an emulated microcontroller."""
    torch.manual_seed(0)
    if which == "trained":
        content = read_model(TRAINED)
    else:
        model = contractive(
            "gru", "always" if which == "dense" else which, input_size=2, hidden_size=128, output_size=1
        )
        if which == "selective":
            model.recurrent_layers()[0].rule.rule_b.data.fill_(-1e3)
        if which == "skip":
            model.recurrent_layers()[0].rule.rule_b.data.fill_(-30)
        content = exported_alone(model)
    lines = (ROOT / "examples" / "adding.csv").read_text(encoding="utf-8").split()[1:51]
    return emulate(content, np.array([line.split(",") for line in lines], np.float32), target)


def test_a_trained_model_meets_its_bounds():
    need_target("cortex-m4")
    trained, dense = costs("trained"), costs("dense")
    assert trained.engine_bytes <= MOST_CODE
    assert trained.state_bytes <= 4 * (3 * 128 + 2)
    assert trained.instructions <= MOST_INSTRUCTIONS
    assert dense.instructions >= LEAST_RATIO * trained.instructions


def test_skipped_work_is_not_done():
    need_target("cortex-m4")
    # no neuron is updated after the first step of skip; a decision of selective reads two inputs a neuron
    assert costs("selective").updates.sum() == 0
    assert costs("selective").instructions < 128 * 30
    assert costs("skip").updates.tolist() == [128] + [0] * 49
    assert costs("skip").instructions < costs("dense").instructions / 50 + 1000


@pytest.mark.parametrize("path", zoo(), ids=lambda path: f"{path.parent.name} {path.stem}")
def test_the_zoo_in_c(path):
    content, x = path.read_bytes(), np.load(path.parent / "example.npz")["x"][0, :STEPS].astype(np.float32)
    y, updates, _ = steps(pack(content, path), x[:, None])
    got = step_in_c(content, x)
    np.testing.assert_allclose(got.y, y[:, 0], rtol=0, atol=FLOAT32 * max(1.0, np.abs(y).max()))
    if updates is not None:
        assert got.updates.tolist() == updates[:, 0].tolist()


SMALL = [path for path in zoo() if path.stat().st_size < 500_000]


# the boards have 512 kB of flash
@pytest.mark.parametrize("path", SMALL, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_the_zoo_on_an_emulated_microcontroller(path):
    need_target("cortex-m4")
    content, x = path.read_bytes(), np.load(path.parent / "example.npz")["x"][0, :STEPS].astype(np.float32)
    y, updates, _ = steps(pack(content, path), x[:, None])
    got = emulate(content, x, "cortex-m4")
    np.testing.assert_allclose(got.y, y[:, 0], rtol=0, atol=FLOAT32 * max(1.0, np.abs(y).max()))
    if updates is not None:
        assert got.updates.tolist() == updates[:, 0].tolist()


@pytest.mark.parametrize("kind", ["gemm", "conv"])
def test_linear_maps_that_skip_on_an_emulated_microcontroller(kind, tmp_path):
    need_target("cortex-m4")
    path, x = delta_network(tmp_path, kind), 0.1 * inputs(12, 12).cumsum(0)
    y, updates, _ = steps(pack(path.read_bytes(), path), x[:, None])
    got = emulate(path.read_bytes(), x, "cortex-m4")
    np.testing.assert_allclose(got.y, y[:, 0], rtol=0, atol=FLOAT32)
    assert got.updates.tolist() == updates[:, 0].tolist()


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("target", targets())
def test_a_streaming_network_on_an_emulated_microcontroller(target, weights):
    need_target(target)
    net, y, states = streaming_network()
    content, x = net.model(y, **states).SerializeToString(), inputs(9, 4)
    got = emulate(content, x, target, options=GraphOptions(weights=weights))
    # floats that are rounded otherwise may be quantised to a neighbouring number
    tolerance = FLOAT32 if weights == "int8" else 2e-6
    np.testing.assert_allclose(got.y, step_in_c(content, x, weights=weights).y, rtol=0, atol=tolerance)
    assert got.updates.tolist() == [32] * len(x)


def test_a_file_of_another_tool_is_counted(tmp_path):
    need_target("cortex-m4")
    net, y, states = streaming_network()
    (tmp_path / "net.onnx").write_bytes(net.model(y, **states).SerializeToString())
    report = bench_on_target(tmp_path / "net.onnx", "cortex-m4", steps=5)
    assert report["worst_error"] <= FLOAT32
    assert report["instructions"] > 48 * 20


# frames of the reference of silero-vad in which speech begins
SILERO, FIRST, FRAMES = "silero/silero_vad_openvino_16k.onnx", 10, 10


@functools.cache
def silero():
    """Content of the file, and the frames and probabilities of its reference."""
    content, arrays = foreign_file(SILERO).read_bytes(), np.load(foreign_file("silero/ref.npz"))
    return content, arrays["frames"].reshape(-1, 576), arrays["prob"].reshape(-1, 1)


@pytest.mark.parametrize("target", targets())
def test_silero_on_an_emulated_microcontroller(target, add_summary_line):
    content, x, _ = silero()
    need_target(target)
    x = x[FIRST : FIRST + FRAMES]
    got = emulate(content, x, target, options=GraphOptions(weights="int8"))
    # magnitudes of frequencies round otherwise, and may fall to the other side of a quantised number
    np.testing.assert_allclose(got.y, step_in_c(content, x, weights="int8").y, rtol=0, atol=FLOAT32)
    flash, memory = got.engine_bytes + got.weight_bytes, got.state_bytes + got.stack_bytes
    add_summary_line(f"silero, {target}: {got.instructions:,.0f} instructions, {flash:,} and {memory:,} bytes")
    if target == "cortex-m4":
        assert got.instructions <= 1.3e6
        assert flash <= 380_000
        assert memory <= 24_000


def test_silero_in_int8_takes_the_same_decisions():
    content, x, expected = silero()
    y = step_in_c(content, x, weights="int8").y
    assert ((y > 0.5) == (expected > 0.5)).mean() >= 0.995


@pytest.mark.parametrize("name", ["silero", "dtln 1", "dtln 2", "gtcrn"])
def test_foreign_files_equal_their_reference(name):
    file, reference = {
        "silero": (SILERO, VAD),
        "dtln 1": ("dtln/model_1.onnx", DTLN1),
        "dtln 2": ("dtln/model_2.onnx", DTLN2),
        "gtcrn": ("gtcrn/gtcrn_simple.onnx", GTCRN),
    }[name]
    source, read, written, _ = reference
    content, arrays = foreign_file(file).read_bytes(), np.load(foreign_file(source))
    x, y = (arrays[next(iter(names))] for names in (read, written))
    x, y = (a.reshape(len(a), -1)[:100] for a in (x, y))
    np.testing.assert_allclose(step_in_c(content, x).y, y, rtol=0, atol=1e-5 * max(1, np.abs(y).max()))


@pytest.mark.parametrize("target", targets())
def test_the_example_runs(target, tmp_path):
    """examples/mcu, compiled as `make example-mcu` does, prints what the native library computes."""
    need_target(target)
    need("cmake")
    content = read_model(TRAINED)
    write_files(content, tmp_path / "model")
    example, build = ROOT / "examples" / "mcu", tmp_path / "build"
    options = ("--toolchain", example / "toolchain.cmake", f"-DPROCESSOR={target}", f"-DMODEL={tmp_path / 'model'}")
    configured = run("cmake", "-S", example, "-B", build, *options)
    assert configured.returncode == 0, configured.stderr
    process = run("cmake", "--build", build, "--target", "run")
    assert process.returncode == 0, process.stderr
    text = process.stdout + process.stderr
    assert "warning" not in text, text
    x = np.array([(t * 37 % 100 * 0.01, t in (7, 31)) for t in range(50)], np.float32)
    y, updates, _ = steps(pack(content, Path("model.onnx")), x[:, None])
    (printed,) = (line for line in text.splitlines() if line.endswith("updates"))
    assert list(map(int, printed.split()[:50])) == updates[:, 0].tolist()
    assert f"{int(y[-1, 0, 0] * 1000 + 0.5)} thousandths, " in text


def test_a_sequence_model_has_a_header_for_its_sizes(tmp_path):
    files = write_files(exported_alone(edgernn.SequenceModel("sarnn", 3, 20, 2).eval()), tmp_path)
    header = files.texts["model.h"]
    assert "#define MODEL_INPUT 3 " in header
    assert f"{files.state_bytes} bytes" in header
    need("gcc")
    text = f'#include "model.h"\nchar size[sizeof(ModelState) == {files.state_bytes} ? 1 : -1];\n'
    process = run("gcc", *STRICT, "-fsyntax-only", "-I", tmp_path, "-x", "c", "-", text=text)
    assert process.returncode == 0, process.stderr
    assert HARNESS.is_file()
