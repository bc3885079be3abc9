# SPDX-License-Identifier: Apache-2.0
"""The GPU training kernels: interpreted and compared with the layer's loop in float64, and compiled."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import edgernn
from edgernn.cells import CELLS, Cell, Gate, Gates
from edgernn.cells.base import State
from edgernn.cells.recurrent import BlockSparse
from edgernn.kernels import WIDEST, WIDEST_WITHOUT_GRAPHS, attach
from edgernn.kernels.common import ANY_CELL
from edgernn.layer import RecurrentLayer
from edgernn.program import OPS, ProgramError
from edgernn.rules import RULES
from tests.fused import CELLS_AND_RULES, LOSSES, inputs, make, make_groups, run, whole_loss

pytest.importorskip("triton", reason="triton, which makes the kernels for GPUs, is not installed")
# imports an op without triton; kernels run on the CPU where the environment asks for it: see conftest
from benchmarks.gpu_items import grad
from edgernn.kernels import gpu, sequence
from edgernn.kernels.describe_layer import describe_layer
from edgernn.kernels.kernel_form import KernelForm, choose, precision
from edgernn.kernels.triton_source import load
from tests.pairs import covering
from tests.triton_layers import RESIDENT, SPINE, STREAMED, assert_same, both_forms, compile_for_real, fused, use_form

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="TRITON_INTERPRET=1 is not set: the kernels need a GPU"
)


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


@pytest.mark.parametrize("rule", ANY_CELL)
@both_forms
def test_every_rule_equals_the_loop(rule: str, form: KernelForm, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(form, monkeypatch)
    assert_same(make("lstm", rule, 2, 5), 2, 3)


# groups of a power of two, which the resident form sums in registers, and others; the last with fewer neurons, or none
@pytest.mark.parametrize(
    ("cell", "G", "H", "budget"),
    [
        ("gru", 2, 5, "decisions"),
        ("lstm", 4, 10, "likelihoods"),
        ("gru-before", 7, 10, "decisions"),
        ("irc-sru", 7, 7, "likelihoods"),
    ],
)
@both_forms
def test_groups_of_neurons_equal_the_loop(
    cell: str, G: int, H: int, budget: str, form: KernelForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_form(form, monkeypatch)
    assert_same(make_groups(cell, 7, H, G, budget=budget), 3, 3)


@pytest.mark.parametrize(("G", "H"), [(16, 20), (16, 16), (32, 40)])
def test_wide_groups_equal_the_loop(G: int, H: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(RESIDENT, monkeypatch)
    assert_same(make_groups("gru", 3, H, G), 3, 3)


@both_forms
@pytest.mark.parametrize("cell", SPINE)
def test_inputs_as_wide_as_the_state_equal_the_loop(
    cell: str, form: KernelForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_form(form, monkeypatch)
    assert_same(make(cell, "skip", 5, 5), 2, 2)


# the kernel of a layer is the text of its cell between the parts of its rule
@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        pair if pair[1] == "always" else pytest.param(*pair, marks=pytest.mark.slow)
        for pair in covering(CELLS_AND_RULES, SPINE, 1)
    ],
)
def test_every_cell_and_every_rule_equal_the_loop(cell: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # neighbouring rules of a cell have different forms, and so have neighbouring cells of a rule
    cells = sorted({name for name, _ in CELLS_AND_RULES})
    resident = (cells.index(cell) + ANY_CELL.index(rule)) % 2 == 0
    use_form(RESIDENT if resident else STREAMED, monkeypatch)
    assert_same(make(cell, rule, 3 if resident else 5, 5), 2, 3)


@pytest.mark.parametrize("loss", ["last", "second", "budget", "y"])
@pytest.mark.parametrize("rule", ["selective", "skip"])
def test_any_part_of_the_result_may_be_left_out_of_the_loss(
    rule: str, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_form(RESIDENT, monkeypatch)
    assert_same(make("lstm", rule, 3, 5), 3, 2, LOSSES[loss])


@pytest.mark.parametrize("budget", ["decisions", "likelihoods"])
def test_both_budgets_equal_the_loop(budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(RESIDENT, monkeypatch)
    layer = make("gru", "selective", 4, 7, budget=budget)
    # wide enough that likelihoods are clipped at both ends
    torch.nn.init.normal_(layer.rule.rule_W)
    assert_same(layer, 4, 2)
    x, state = inputs(layer, 3, 2)
    with torch.no_grad():
        torch.testing.assert_close(fused(layer)(x, state)[2].budget, layer(x, state)[2].budget)


@pytest.mark.parametrize(
    ("rule", "options"),
    [("selective", {}), ("selective", {"group_size": 4, "detach_state": True}), ("skip", {})],
)
def test_weights_of_the_budgets_steps_equal_the_loop(
    rule: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_form(RESIDENT, monkeypatch)
    layer = make("gru", rule, 4, 7, **options)
    layer.step_weights = 3 * torch.rand(4, 2)
    assert_same(layer, 4, 2)


def test_sparse_weights_and_a_learned_start_equal_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(RESIDENT, monkeypatch)
    layer = make("gru", "skip", 3, 18, BlockSparse(0.5))
    layer.cell.threshold(hold=True)
    assert_same(layer, 2, 2)
    x = torch.randn(2, 3, 3)
    gradients = []
    for module in (fused(layer), layer):
        module.zero_grad()
        whole_loss(*module(x)).backward()
        gradients.append(module.start[0].grad)
    torch.testing.assert_close(*gradients)


class Own(Cell):
    """A user-defined cell with ops that no built-in cell has."""

    name = "own"
    gates = (Gate("a"), Gate("b", bias=False))

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        share = torch.exp(-torch.relu(p.a)) / 2
        new = torch.where(p.b > 0.25, p.b.square(), torch.erf(p.b) if self.has_erf else p.b.abs())
        return (share * h + (1 - share) * new / (1 + new.clamp(min=0.5)),)

    has_erf = False


def test_cell_of_a_user_equals_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(RESIDENT, monkeypatch)
    assert_same(RecurrentLayer(Own(3, 5), RULES["selective"](3, 5)), 3, 2)


class Summing(Own):
    def update(self, p: Gates, state: State) -> State:
        return (p.a - p.b.mean(-1, keepdim=True),)


class Erring(Own):
    has_erf = True


class Detaching(Own):
    def update(self, p: Gates, state: State) -> State:
        return (p.a.detach() * p.b,)


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        (Summing, "update: torch's mean is not point-wise here; use operators that act on each neuron separately"),
        (Erring, f"update: torch's erf is not supported; use operators that {', '.join(OPS)} can express"),
        (Detaching, "update: the gradient in torch differs from that of the traced equations; do not call detach"),
    ],
)
def test_equations_without_a_translation_are_left_to_the_loop(cell: type[Cell], why: str) -> None:
    layer = RecurrentLayer(cell(3, 5), RULES["always"](3, 5))
    with pytest.raises(edgernn.UsageError) as refused:
        gpu.GpuUnroller(layer)
    assert str(refused.value) == f"there is no kernel for own: {why}; change the cell"
    with pytest.raises(ProgramError, match=why):
        describe_layer(layer)


# torch's compiler wraps an autograd function in an object
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_the_op_says_its_shapes_and_is_compiled_around(monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(RESIDENT, monkeypatch)
    layer = fused(make("gru", "selective", 3, 5))
    x, state = inputs(layer, 2, 2)
    y, last, _, grads = run(layer, x, state, whole_loss)
    layer.zero_grad()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x.requires_grad_()
    other_y, other_last, trace = compiled(x, state)
    whole_loss(other_y, other_last, trace).backward()
    assert torch.equal(other_y, y)
    assert torch.equal(other_last[0], last[0])
    torch.testing.assert_close(x.grad, grads["x"])
    torch.testing.assert_close(layer.cell.R.grad, grads["cell.R"])


def test_op_passes_torchs_own_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_form(RESIDENT, monkeypatch)
    layer = fused(make("gru", "selective", 2, 3))
    x, state = inputs(layer, 2, 1)
    tensors = [x.requires_grad_(), *state, *layer.parameters(), *layer.buffers()]
    arguments = (tensors, None, layer.op_key(), True, 1.0, True, True)
    with torch.random.fork_rng():
        torch.use_deterministic_algorithms(False)
        torch.library.opcheck(
            torch.ops.edgernn.recurrent.default,
            arguments,
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


@pytest.mark.parametrize(
    ("allowed", "matmul", "expected"),
    [(True, "highest", "tf32"), (True, "medium", "bf16"), (False, "highest", "ieee"), (False, "medium", "bf16")],
)
def test_precision_is_that_of_torchs_own_recurrent_layers(allowed: bool, matmul: str, expected: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(matmul)
        with torch.backends.cudnn.flags(allow_tf32=allowed):
            assert precision() == expected
    finally:
        torch.set_float32_matmul_precision(before)


# cells whose errors show that the test would find operands that are not rounded
SENSITIVE = {"eins", "irc-gru", "irc-t-lstm"}


@pytest.mark.parametrize("cell", [*sorted(SENSITIVE), "gru", "lstm-peephole", "decaynet", "sru"])
def test_tf32_operands_are_rounded_to_nearest(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # the interpreter multiplies in float32, so that the operands alone have errors
    item = {"cell": cell, "rule": "always", "how": "tf32", "size": (6, 17, 24, 60)}
    assert grad(item, "cpu")["error"] <= 7.5e-4
    if cell not in SENSITIVE:
        return
    # tensor cores cut off the low bits of operands
    rounding = "(tile.to(tl.int32, bitcast=True) + 0x1000) & -0x2000"
    assert sequence.HEADER.count(rounding) == 1
    monkeypatch.setattr(
        sequence, "HEADER", sequence.HEADER.replace(rounding, "tile.to(tl.int32, bitcast=True) & -0x2000")
    )
    gpu.kernels.cache_clear()
    try:
        assert grad(item, "cpu")["error"] > 1.2e-3
    finally:
        gpu.kernels.cache_clear()


def test_rounding_is_to_the_nearest_of_ten_bits() -> None:
    exact, half = 1 + 2.0**-10, 2.0**-11
    values = torch.tensor([0.0, -0.0, exact, exact + 0.9 * half, exact + 1.1 * half, -exact - 1.1 * half])
    values = torch.cat([values, torch.tensor([float("inf"), -float("inf"), float("nan")]), torch.randn(7) * 1e-30])
    rounded = torch.full((16,), 2.0)
    run_rounded(values, rounded)
    assert torch.equal(rounded[:6], torch.tensor([0.0, -0.0, exact, exact, exact + 2 * half, -exact - 2 * half]))
    assert torch.equal(rounded[6:9].nan_to_num(5.0), values[6:9].nan_to_num(5.0))
    assert ((rounded[9:] - values[9:]).abs() <= values[9:].abs() * half).all()


def run_rounded(values: Tensor, out: Tensor) -> None:
    """Apply the kernels' function `rounded` to 16 values."""
    text = (
        "@triton.jit\ndef apply(x, y):\n    i = tl.arange(0, 16)\n"
        '    tl.store(y + i, rounded(tl.load(x + i), "tf32"))\n'
    )
    load(sequence.HEADER + text).apply[(1,)](values, out)


@pytest.mark.parametrize(
    ("cell", "H", "precision", "form"),
    [
        # three tiles of 128 x 128 numbers take 192 KiB, four do not fit
        ("gru", 128, "tf32", KernelForm(True, held=3)),
        ("lstm", 128, "bf16", KernelForm(True, held=4)),
        ("lstm", 128, "tf32", KernelForm(True, held=2)),
        ("rnn", 256, "bf16", KernelForm(True, held=1)),
        ("gru", 256, "bf16", KernelForm(False)),
        ("sru", 200, "tf32", KernelForm(True, held=0)),
        ("gru", 300, "bf16", KernelForm(False)),
        ("gru", 16, "ieee", KernelForm(False, block=32, block_k=32)),
    ],
)
def test_weights_are_held_where_they_fit(cell: str, H: int, precision: str, form: KernelForm) -> None:
    assert choose(describe_layer(make(cell, "always", 3, H)), precision) == form


def test_smaller_shared_memory_holds_less() -> None:
    spec = describe_layer(make("gru", "always", 3, 128))
    assert choose(spec, "tf32", 163 * 1024) == KernelForm(True, held=1)
    assert choose(spec, "tf32", 99 * 1024) == KernelForm(True, held=0)


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ({"cell": "sarnn", "layers": 2, "bidirectional": True}, "fused"),
        ({"cell": "sarnn", "rule_options": {"group_size": 3}}, "fused"),
        ({"cell": "egru", "rule": "delta"}, "fused"),
        ({"cell": "pru", "rule": "topk"}, "fused"),
        ({"cell": "gru", "hidden_size": WIDEST + 1}, "graphs"),
        ({"cell": "gru", "hidden_size": WIDEST_WITHOUT_GRAPHS + 1}, "graphs"),
        ({"cell": "gru", "rule": "delta", "hidden_size": WIDEST + 1}, "graphs"),
        ({"cell": "gru", "rule": "variable"}, "torch"),
        ({"cell": "gru", "norm": "layer"}, "graphs"),
        ({"cell": "lstm", "norm": "recurrent-batch"}, "graphs"),
        ({"cell": "gru", "rank": 2}, "fused"),
        ({"cell": "gru-d", "input_size": 6}, "torch"),
    ],
    ids=[
        "sarnn",
        "groups",
        "delta",
        "topk",
        "wide",
        "widest",
        "wide-delta",
        "rule",
        "layer-norm",
        "batch-norm",
        "rank",
        "imputer",
    ],
)
def test_attach_takes_kernels_on_a_gpu(options: dict[str, object], backend: str) -> None:
    model = edgernn.SequenceModel(**{"input_size": 3, "hidden_size": 8, **options})
    assert attach(model, "auto", "cuda:0") == backend
    if backend == "torch" or "norm" in options:
        with pytest.raises(edgernn.UsageError, match="backend: fused cannot run this model: "):
            attach(model, "fused", "cuda")
    else:
        assert attach(model, "fused", "cuda") == "fused"
    assert attach(model, "torch", "cuda") == "torch"
    # recordings of the loop are kept for trainings that can replay them
    without = "torch" if "norm" in options or options.get("hidden_size", 0) > WIDEST_WITHOUT_GRAPHS else "fused"
    unrecorded = {"fused": "fused", "torch": "torch", "graphs": without}[backend]
    assert attach(model, "auto", "cuda", replays=False) == unrecorded


def test_without_triton_the_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    model = edgernn.SequenceModel("gru", 3, 8)
    assert attach(model, "auto", "cuda") == "torch"
    with pytest.raises(edgernn.UsageError, match="the package triton, which compiles GPU kernels, is not installed"):
        attach(model, "fused", "cuda")
    with pytest.raises(edgernn.UsageError, match="there are no kernels for the device mps"):
        attach(model, "fused", "mps")


def test_less_is_held_where_a_device_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    tried = []
    real = gpu.kernels

    def kernels(key: str, resident: bool, held: int) -> object:
        tried.append(held if resident else None)
        if resident:
            raise OutOfResources(2, 1, "shared memory")
        return real(key, resident, held)

    monkeypatch.setattr(gpu, "kernels", kernels)
    monkeypatch.setattr(gpu, "_SMALLER", {})
    monkeypatch.setattr(gpu, "choose", lambda spec, precision, shared=0: KernelForm(True, held=3))
    layer = make("gru", "always", 2, 3)
    x, state = inputs(layer, 1, 1)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(fused(layer)(x, state)[0], layer(x, state)[0])
    assert tried == [3, 2, 1, None, None]


def test_wrong_shapes_and_other_precisions() -> None:
    layer = fused(make("gru", "always", 3, 9))
    with pytest.raises(edgernn.EdgernnError, match=r"state h: expected shape \(2, 9\), got \(2, 8\)"):
        layer(torch.zeros(4, 2, 3), (torch.zeros(2, 8),))
    assert layer.double()(torch.zeros(2, 2, 3, dtype=torch.float64))[0].dtype == torch.float64


@pytest.mark.check("gpu")
@pytest.mark.parametrize("group_size", [1, 16])
def test_kernels_compile_for_a_gpu(group_size: int) -> None:
    # triton may specialise arguments that are 1
    sizes = ("--steps", "1", "--batch", "1", "--option", f"group_size={group_size}")
    compiled = compile_for_real(*sizes, "gru+selective")
    assert [kernel["direction"] for kernel in compiled] == ["forward", "backward"]
    for kernel in compiled:
        # no spills, and resident tiles fit the 227 KiB of an H100
        assert (kernel["form"], kernel["stack"]) == ("resident, 3 held", 0)
        assert kernel["shared"] <= 227 * 1024


@pytest.mark.check("gpu")
@pytest.mark.parametrize(
    ("rule", "precision", "options"),
    [
        ("delta", "tf32", []),
        ("delta", "tf32", ["--option", "straight_through=false"]),
        ("topk", "tf32", []),
        ("topk", "ieee", []),
    ],
)
def test_kernels_of_columns_and_gates_compile_for_a_gpu(rule: str, precision: str, options: list[str]) -> None:
    sizes = ("--steps", "1", "--batch", "1", "--inputs", "1", "--precision", precision)
    compiled = compile_for_real(*sizes, *options, f"gru+{rule}")
    first = ["send"] if rule == "delta" else []
    assert [kernel["direction"] for kernel in compiled] == [*first, "forward", "backward"]
    for kernel in compiled:
        # Triton 3.6 spills four registers of topk's backward kernel, 3.7 none
        assert kernel["stack"] <= 16
        assert kernel["shared"] <= 227 * 1024


SETTINGS = [
    *((rule, "tf32", 24) for rule in ("always", "selective", "skip", "phased")),
    ("always", "bf16", 16),
    # with exact products the weights are streamed
    ("skip", "ieee", 24),
    *((rule, precision, 24) for rule in ("delta", "topk") for precision in ("tf32", "ieee")),
]


@pytest.mark.check("gpu")
@pytest.mark.parametrize(("rule", "precision", "I"), SETTINGS)
def test_every_cell_compiles_for_a_gpu(rule: str, precision: str, I: int) -> None:
    # a quarter of the cells beside three of one and two stages; each cell has two of the settings
    turn = SETTINGS.index((rule, precision, I))
    cells = [
        cell for place, cell in enumerate(CELLS) if cell in ("gru-before", "t-lstm", "lstm") or (place + turn) % 5 == 0
    ]
    layers = [f"{cell}+{rule}" for cell in cells if RULES[rule].refusal(CELLS[cell]) is None]
    compiled = compile_for_real("--hidden", "16", "--inputs", str(I), "--precision", precision, *layers)
    assert len([kernel for kernel in compiled if kernel["direction"] != "send"]) == 2 * len(layers)
