# SPDX-License-Identifier: Apache-2.0
"""The GPU kernels compared with the float64 oracle, on an emulated GPU.

The kernels' source is the one that nvcc compiles; tests/csrc/cpu_emulator.cc emulates threads, barriers and
reductions. `edgernn_cuda_geometry` selects the launch geometries to test.
"""

import ctypes
import re
import shutil
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime as ort
import pytest

from benchmarks.cuda_calls import CudaCalls, Sizes
from benchmarks.gpu_forms import ON_GPU
from edgernn.cells import COMPILED
from edgernn.errors import EdgernnError, UsageError
from tests import oracle
from tests.kernel_builds import build, incremental_build, need
from tests.native import OPS, VARIANTS, Inputs, draw, draw_call, draw_clear_call, layer, oracle_result, session
from tests.pairs import fits
from tests.test_native_refusals import BAD_CALLS, BAD_WEIGHTS
from tests.test_native_refusals import test_bad_call_is_refused_by_name as refuses_call
from tests.test_native_refusals import test_bad_weights_are_refused_by_name as refuses_weights
from tests.test_native_weights import low_rank
from tests.tolerances import FLOAT32

RULES = ON_GPU
WITH_LOW_RANK = [rule for rule in RULES if rule not in ("delta", "topk")]
# the library for GPUs has no interpreter of cells
GPU_OPS = [op for op in OPS if op[1] in RULES and (op[0] in COMPILED or op[0] in VARIANTS)]
# cases of `make quick`: every rule on a one-stage and a two-stage cell
EVERY_OP = pytest.mark.parametrize(
    ("cell", "rule"), [op if op[0] in ("gru", "eins") else pytest.param(*op, marks=pytest.mark.slow) for op in GPU_OPS]
)
# H, I, T, B
SIZES = [(5, 3, 9, 2), (33, 33, 4, 3), (16, 1, 12, 1)]
# sequences and blocks per cluster, threads per block, bytes of shared memory; 0: automatic
GEOMETRIES = [(0, 0, 0, 0), (1, 1, 32, 0), (4, 2, 64, 0), (1, 8, 32, 0), (1, 4, 96, 12000)]


@pytest.fixture(scope="session")
def path() -> Path:
    need("cmake")
    folder = incremental_build("cuda", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", targets=("edgernn_cuda_emulated",))
    return folder / "libedgernn_cuda_emulated.so"


@pytest.fixture(scope="session")
def emulated(path: Path) -> CudaCalls:
    return CudaCalls(path)


@pytest.fixture
def set_geometry(emulated: CudaCalls):
    """A function that sets the launch geometry until the test ends."""

    def set_geometry(*geometry: int) -> None:
        assert emulated._library.edgernn_cuda_geometry(*geometry) == 0

    yield set_geometry
    set_geometry(0, 0, 0, 0)


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def run(
    library: CudaCalls, cell: str, rule: str, weights: Inputs, feed: Inputs, in_place: bool = False
) -> list[np.ndarray]:
    """Run the op; return y, the states, updates and macs. in_place: Final states overwrite initial states."""
    T, B, I = feed["X"].shape
    H = feed[layer(cell.partition("/")[0], "always", 5, 3).states[0]].shape[1]
    module = layer(cell, rule, H, I)
    sizes = Sizes(I, H, int(cell.partition("/")[2] or 0), "forget" in cell, module.rule.group_size)
    packed = np.full(library.packed_bytes(module.kernel_name, sizes), 255, np.uint8)
    library.pack(module.kernel_name, sizes, [address(w) for w in weights.values()], address(packed))
    after = [feed[name] if in_place else np.full_like(feed[name], np.nan) for name in module.states]
    y = np.full((T, B, H), np.nan, np.float32)
    updates, macs = np.full((T, B), -1), np.full(B, -1)
    states = [address(feed[name]) for name in module.states]
    outputs = address(y), [address(state) for state in after], address(updates), address(macs)
    library.run(module.kernel_name, sizes, address(packed), T, B, address(feed["X"]), states, *outputs)
    return [y, *after, updates, macs]


def assert_equal(rule: str, got: list[np.ndarray], want: oracle.Result) -> None:
    # kept sums round once more at each step
    atol = 2 * FLOAT32 if rule == "delta" else FLOAT32
    for a, b in zip(got, [want.y, *want.state, *want.memory], strict=False):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)
    if rule != "always":
        np.testing.assert_array_equal(got[-2], want.updates)
        np.testing.assert_array_equal(got[-1], want.needed)


@EVERY_OP
@pytest.mark.slow
def test_op_equals_oracle_however_it_is_cut_up(emulated, set_geometry, cell, rule) -> None:
    place = GPU_OPS.index((cell, rule))
    for number, (H, I, T, B) in enumerate(SIZES):
        weights = draw(cell, rule, H, I)
        feed, expected = draw_clear_call(cell, rule, weights, (H, I, T, B))
        # every op runs two geometries in each size, and all five in its three sizes
        turn = place + 2 * number
        for geometry in (GEOMETRIES * 2)[turn % 5 : turn % 5 + 2]:
            set_geometry(*geometry)
            assert_equal(rule, run(emulated, cell, rule, weights, feed), expected)


# H, I, T, B for each G: the last group with fewer neurons, fewer groups than blocks, and whole groups
@pytest.mark.parametrize(
    ("cell", "G"),
    [("gru", 4), ("gru", 16), ("lstm-peephole", 7), ("gru-before", 32), ("eins", 2), ("irc-t-lstm", 5), ("gru/3", 4)],
)
def test_groups_of_neurons_equal_oracle(emulated, set_geometry, monkeypatch, cell, G) -> None:
    rule = f"selective/{G}"
    for H, I, T, B in [(33, 33, 4, 3), (G, 3, 5, 1), (64, 5, 9, 2)]:
        name, _, rank = cell.partition("/")
        name, weights = low_rank(monkeypatch, name, rule, int(rank), H, I) if rank else (cell, draw(cell, rule, H, I))
        feed, expected = draw_clear_call(name, rule, weights, (H, I, T, B))
        assert G == H or 0 < expected.updates.sum() < T * B * H
        for geometry in GEOMETRIES:
            set_geometry(*geometry)
            assert_equal(rule, run(emulated, name, rule, weights, feed), expected)


@pytest.mark.parametrize("rule", WITH_LOW_RANK)
@pytest.mark.parametrize("cell", ["gru", "lstm-peephole", "gru-before", "eins", "irc-lstm", "fastgrnn"])
def test_low_rank_equals_oracle(emulated, set_geometry, monkeypatch, cell, rule) -> None:
    name, weights = low_rank(monkeypatch, cell, rule, 3, 33, 5)
    feed, expected = draw_clear_call(name, rule, weights, (33, 5, 7, 3))
    for geometry in GEOMETRIES:
        set_geometry(*geometry)
        assert_equal(rule, run(emulated, name, rule, weights, feed), expected)


@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        ("gru", "always"),
        ("lstm", "always"),
        ("gru", "selective"),
        ("gru", "selective/16"),
        ("gru", "skip"),
        ("gru", "topk"),
        ("gru", "delta"),
    ],
)
def test_weights_that_are_too_many_for_the_chip_are_read_where_they_are(emulated, set_geometry, cell, rule) -> None:
    weights = draw(cell, rule, 200, 40)
    feed, expected = draw_clear_call(cell, rule, weights, (200, 40, 3, 2))
    for blocks in (1, 2):
        # weights of 0.5 MB and more, with 0.2 MB of shared memory
        set_geometry(0, blocks, 0, 0)
        assert_equal(rule, run(emulated, cell, rule, weights, feed), expected)


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("cell", ["gru", "lstm", "eins", "gru-before"])
def test_none_and_all_neurons_updated(emulated, set_geometry, cell, share) -> None:
    weights = draw(cell, "selective", 33, 3)
    weights["rule_b"][:] = 100.0 * (2.0 * share - 1.0)
    feed = draw_call(cell, "selective", 33, 3, 5, 2)
    for geometry in GEOMETRIES:
        set_geometry(*geometry)
        got = run(emulated, cell, "selective", weights, feed)
        assert_equal("selective", got, oracle_result(cell, "selective", weights | feed))
        np.testing.assert_array_equal(got[-2], np.full((5, 2), int(33 * share)))


# scores of the update gate of the sixteen neurons
SCORES = {
    "equal": [0.5] * 16,
    "two values": [1.0, 0.5, 0.5, 1.0] * 4,
    "zeros": [-0.0, 0.0, -1.0, 0.0] * 4,
    "not finite": [np.nan, -np.inf, 2.0, np.inf] * 4,
    "few numbers": [np.nan, -np.inf] * 7 + [1.0, np.nan],
}


@pytest.mark.parametrize("case", SCORES)
@pytest.mark.parametrize("cell", ["gru-before", "pru"])
def test_of_equal_scores_the_first_neurons_change(emulated, set_geometry, cell, case) -> None:
    weights, feed = draw(cell, "topk", 16, 3), draw_call(cell, "topk", 16, 3, 1, 1)
    gate, sign = oracle.CELLS[cell].gate
    gates = slice(16 * gate, 16 * (gate + 1))
    for name in ("W", "R"):
        weights[name][gates] = 0
    weights["b"][gates] = sign * np.array(SCORES[case])
    for k in (1, 5, 8, 16):
        weights["rule_k"][:] = k
        expected = oracle_result(cell, "topk", weights | feed)
        for geometry in GEOMETRIES:
            set_geometry(*geometry)
            got = run(emulated, cell, "topk", weights, feed)
            assert_equal("topk", got, expected)
            assert got[-2] == k


@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        op
        for op in product(("gru", "gru-before", "decaynet", "irc-t-lstm"), (*RULES, "selective/4"))
        if fits(op[0], op[1].partition("/")[0])
    ],
)
def test_steps_with_carried_state_equal_whole_sequence(emulated, cell, rule) -> None:
    weights = draw(cell, rule, 16, 4)
    if "length" in weights:
        weights["length"][:] = 6
    feed = draw_call(cell, rule, 16, 4, 6, 3)
    whole = run(emulated, cell, rule, weights, feed)
    names = list(feed)[1:]
    parts = []
    for t in range(6):
        got = run(emulated, cell, rule, weights, feed | {"X": feed["X"][t : t + 1]})
        feed |= dict(zip(names, got[1:], strict=False))
        parts.append(got)
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), whole[0])
    for a, b in zip(parts[-1][1:-2], whole[1:-2], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.concatenate([part[-2] for part in parts]), whole[-2])


@pytest.mark.parametrize("rule", [*RULES, "selective/4"])
def test_states_may_come_out_where_they_went_in(emulated, set_geometry, rule) -> None:
    cell = "gru-before" if rule == "topk" else "irc-t-lstm"
    weights = draw(cell, rule, 16, 16)
    set_geometry(1, 4, 32, 0)
    for steps in (1, 3, 7):
        feed = draw_call(cell, rule, 16, 16, steps, 2)
        expected = run(emulated, cell, rule, weights, feed)
        got = run(emulated, cell, rule, weights, feed, in_place=True)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_outputs_that_nobody_wants_are_left_out(emulated) -> None:
    weights, feed = draw("gru", "selective", 5, 3), draw_call("gru", "selective", 5, 3, 4, 2)
    packed = np.empty(emulated.packed_bytes("gru+selective", Sizes(3, 5)), np.uint8)
    emulated.pack("gru+selective", Sizes(3, 5), [address(w) for w in weights.values()], address(packed))
    x, h = address(feed["X"]), address(feed["h"])
    emulated.run("gru+selective", Sizes(3, 5), address(packed), 4, 2, x, [h], 0, [0])


# op, sizes, steps and the expected error
REFUSED = {
    "sizes": ("gru", (3, 1 << 17, 0), 1, r"edgernn: gru: H: expected 1 to 65536, got 131072"),
    "rank": ("gru", (3, 5, 2), 1, r"edgernn: gru: rank: R is whole, got 2"),
    "no rank": ("gru+low-rank", (3, 5, 0), 1, r"edgernn: gru\+low-rank: rank: expected 1 to 65536, got 0"),
    "square": ("sru", (3, 5, 0), 1, r"edgernn: sru: I: expected H = 5, got 3"),
    "groups": ("gru", (3, 5, 0, False, 2), 1, r"edgernn: gru: group_size: expected 1, got 2"),
    "wide groups": (
        "gru+selective",
        (3, 5, 0, False, 6),
        1,
        r"edgernn: gru\+selective: group_size: expected 1 to 5, got 6",
    ),
    "memory": (
        "gru",
        (3, 60000, 0),
        1,
        r"edgernn: gru: I = 3 and H = 60000 need \d+ bytes of shared memory, this GPU ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_run_is_refused_before_anything_is_done(emulated, case) -> None:
    op, sizes, steps, output = REFUSED[case]
    feed = np.zeros(8, np.float32)
    # must not be dereferenced
    with pytest.raises(EdgernnError, match=output):
        emulated.run(op, Sizes(*sizes), address(feed), steps, 1, address(feed), [address(feed)], 0, [0])


def test_an_op_that_is_not_there_is_refused(emulated) -> None:
    assert "rits+gru" not in emulated.kernels()
    assert "gru+phased" not in emulated.kernels()
    with pytest.raises(UsageError, match=r"unknown kind .gru\+phased."):
        emulated.packed_bytes("gru+phased", Sizes(3, 5))
    assert (
        emulated._library.edgernn_cuda_packed_bytes(b"gru+phased", 3, 5, 0, 0, 1, ctypes.byref(ctypes.c_int64())) == 2
    )
    assert emulated._library.edgernn_cuda_error() == b"layer: no kernel for a GPU is called gru+phased"
    assert emulated._library.edgernn_cuda_pack(b"gru", 3, 5, 0, 0, 1, None, None, None) == 2
    assert b"null" in emulated._library.edgernn_cuda_error()
    for geometry in [(2, 1, 32, 0), (1, 3, 32, 0), (1, 1, 33, 0), (1, 1, 1024, 0)]:
        assert emulated._library.edgernn_cuda_geometry(*geometry) == 2


def test_every_cell_has_an_op_under_every_rule(emulated) -> None:
    assert {layer(cell, rule, 5, 3).kernel_name for cell, rule in GPU_OPS} <= emulated.kernels()


# as nodes of ONNX Runtime


@pytest.fixture
def in_onnx(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGERNN_LIBRARY", str(path))


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
@pytest.mark.parametrize(
    ("cell", "rule"),
    [("gru", rule) for rule in (*RULES, "selective/4")]
    + [("eins", "always"), ("irc-t-lstm", "skip"), ("gru/3", "skip")],
)
def test_node_equals_oracle(in_onnx, monkeypatch, cell, rule, constant) -> None:
    sizes = (33, 33 if cell == "irc-t-lstm" else 5, 7, 3)
    if "/" in cell:
        cell, weights = low_rank(monkeypatch, "gru", rule, 3, *sizes[:2])
    else:
        weights = draw(cell, rule, *sizes[:2])
    feed, expected = draw_clear_call(cell, rule, weights, sizes)
    node = session(cell, rule, weights, constant=constant, sizes=sizes[:2])
    for _ in range(2):
        assert_equal(rule, node.run(None, feed if constant else weights | feed), expected)


def test_outputs_of_a_node_may_be_left_out(in_onnx) -> None:
    weights = draw("lstm", "selective", 5, 3)
    feed = draw_call("lstm", "selective", 5, 3, 6, 2)
    whole = session("lstm", "selective", weights).run(None, feed)
    for kept in (["", "", "c_out"], ["Y"], ["", "", "", "", "macs"]):
        got = session("lstm", "selective", weights, outputs=kept).run(None, feed)
        places = [i for i, name in enumerate(kept) if name]
        for i, array in zip(places, got, strict=True):
            np.testing.assert_array_equal(array, whole[i])


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
@pytest.mark.parametrize("case", [case for case, words in BAD_CALLS.items() if words[1] in RULES])
def test_bad_call_is_refused_as_on_a_processor(in_onnx, case, constant) -> None:
    refuses_call(case, constant)


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
@pytest.mark.parametrize("case", [case for case, words in BAD_WEIGHTS.items() if words[1] in RULES])
def test_bad_weights_are_refused_as_on_a_processor(in_onnx, case, constant) -> None:
    refuses_weights(case, constant)


# for a real GPU


class Usage(NamedTuple):
    """Resources of a compiled kernel: registers per thread, and bytes of them that are stored in memory instead."""

    cell: str
    tile: int
    gpu: str
    registers: int
    spilled: int


def kernel_usages(text: str) -> list[Usage]:
    """Read the resources of the recurrence kernels from the output of ptxas -v."""
    pattern = re.compile(
        r"Compiling entry function '\S*RecurrenceKernelINS_\d+([A-Za-z]+)ELi(\d)E\S*' for '(\w+)'"
        r".*?(\d+) bytes spill stores.*?Used (\d+) registers",
        re.DOTALL,
    )
    return [
        Usage(cell, int(tile), gpu, int(registers), int(spilled))
        for cell, tile, gpu, spilled, registers in pattern.findall(text)
    ]


@pytest.mark.check("gpu")
def test_library_is_compiled_for_gpus(emulated, tmp_path, capsys) -> None:
    need("cmake")
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    options = ("-DEDGERNN_CUDA=ON", "-DCMAKE_CUDA_FLAGS=-Xptxas=-v")
    built = build(tmp_path, *options, targets=("edgernn_cuda",)) / "libedgernn_cuda.so"
    usages = kernel_usages((tmp_path / "build.txt").read_text())
    assert {usage.tile for usage in usages} == {1, 4}
    assert len({usage.cell for usage in usages}) >= len(COMPILED)
    spilling = [usage for usage in usages if usage.spilled]
    with capsys.disabled():
        print(f"\n{len(spilling)} of {len(usages)} CUDA kernels spill registers")
        for usage in spilling:
            print(f"  {usage.cell}, {usage.tile} sequences, {usage.gpu}: {usage.spilled} bytes")
    for usage in spilling:
        # 512 threads have no more registers
        assert usage.registers == 128, usage
        assert usage.spilled <= 200, usage
    library = CudaCalls(built)
    assert library.kernels() == emulated.kernels()
    why = library.missing()
    if why is not None:
        options = ort.SessionOptions()
        with pytest.raises(Exception, match=re.escape(why)):
            options.register_custom_ops_library(str(built))
        with pytest.raises(EdgernnError, match="CUDA: "):
            run(library, "gru", "always", draw("gru", "always", 5, 3), draw_call("gru", "always", 5, 3, 2, 1))
