# SPDX-License-Identifier: Apache-2.0
"""Exported files: their contents, and that they compute what torch computes."""

import copy
import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

import edgernn
from edgernn.cell_program import cell_program
from edgernn.cells import CELLS, Cell, Gate, Vector
from edgernn.errors import EdgernnError, UsageError
from edgernn.export import check, to_onnx
from edgernn.export.graph import build
from edgernn.export.native_kernels import without_kernel
from edgernn.names import COMBINATIONS
from edgernn.rules import RULES
from edgernn.runtime import Session
from tests.models import exported
from tests.pairs import PAIRS
from tests.tolerances import FLOAT32

NATIVE_RULES = ("always", "selective")
STACKS = {
    "one layer": {},
    # the first layer has I = 3, the second I = 2 H; the other stack has I = H, so both ops of a cell occur
    "two layers, bidirectional": {"layers": 2, "bidirectional": True, "output": "all", "mean": 0.5, "std": 2.0},
    "two layers": {"layers": 2},
    # one function for layers with different H
    "layers of two sizes": {"layers": 3, "last_size": 20, "output": "all"},
}
# every cell under one of the rules for training, in a stack; every rule on a one-stage and a two-stage cell, and on one
# that reads the previous input or c; every combination of the papers in a stack
CELL_RULES = [(cell, ("always", "skip", "selective")[number % 3]) for number, cell in enumerate(CELLS)]
RULE_CELLS = [(cell, rule) for cell in ("gru", "gru-before") for rule in RULES]
RULE_CELLS += [(("t-lstm", "lstm-peephole")[number % 2], rule) for number, rule in enumerate(RULES)]
CASES = dict.fromkeys((*pair, "one layer") for pair in RULE_CELLS if pair in PAIRS)
CASES |= dict.fromkeys((*pair, "layers of two sizes") for pair in [*CELL_RULES, *COMBINATIONS.values()])
# reversing a sequence is the same for all cells: one with other equations where I = H, one that reads the last input
BACKWARDS = [("gru", "selective"), ("irc-sru", "always"), ("t-lstm", "always"), ("lstm", "phased")]
CASES |= dict.fromkeys((*pair, "two layers, bidirectional") for pair in BACKWARDS)
CASES |= dict.fromkeys((cell, "always", "two layers") for cell in ("sru", "irc-sru", "irc-t-lstm"))
# the subset of `make quick`
QUICK = [("gru", r, "one layer") for r in RULES] + [("irc-sru", "always", s) for s in STACKS if s != "one layer"]
# rules without and with decisions, with memory, with a step count, and with thresholds of columns
some_rules = pytest.mark.parametrize("rule", ["always", "selective", "skip", "phased", "delta"])
MATRIX = [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in CASES]


@pytest.mark.parametrize(("cell", "rule", "stack"), MATRIX)
def test_torch_equals_function_equals_native(cell, rule, stack):
    model, path = exported(cell, rule, **STACKS[stack])
    checks = check(model, path)
    assert [c.backend for c in checks] == ["portable", "native"]
    for one in checks:
        assert one.worst <= FLOAT32
        assert one.steps > 300 or model.bidirectional
        assert one.sequences > 0
        assert one.ties < 10


@pytest.mark.parametrize("rule", [*NATIVE_RULES, "skip", "delta"])
@pytest.mark.parametrize(
    "sizes",
    # a shape of the traced function has ones that are neither I nor H
    [{"input_size": 1, "layers": 3, "last_size": 20}, {"layers": 3, "last_size": 1}],
    ids=str,
)
def test_sizes_of_one_are_exported(rule, sizes):
    checks = check(*exported("gru", rule, **sizes))
    assert [one.backend for one in checks] == ["portable", "native"]
    assert all(one.worst <= FLOAT32 for one in checks)


@pytest.mark.parametrize("backend", ["portable", "native"])
@pytest.mark.parametrize(("T", "B"), [(1, 1), (1, 5), (37, 1), (6, 3)], ids=str)
@pytest.mark.parametrize("rule", NATIVE_RULES)
def test_sequence_equals_torch_at_other_lengths_and_batches(backend, T, B, rule):
    model, path = exported("gru", rule, layers=2, output="all", mean=0.5, std=2.0)
    session = Session(path, backend=backend)
    x = torch.randn(T, B, 3)
    with torch.no_grad():
        y, _ = model(x)
    np.testing.assert_allclose(session.run(x.numpy()), y, rtol=0, atol=FLOAT32)


@pytest.mark.parametrize(("cell", "rule"), [("gru", "always"), ("lstm", "selective")])
def test_file_is_what_the_design_says(cell, rule):
    model, path = exported(cell, rule, layers=2, output="all", mean=0.5, std=2.0)
    proto = onnx.load(path)
    onnx.checker.check_model(path, full_check=True)
    assert proto.ir_version == 9
    assert {o.domain: o.version for o in proto.opset_import} == {"": 20, "ai.edgernn": 1}
    assert [(f.domain, f.name) for f in proto.functions] == [("ai.edgernn", "Recurrent")]
    nodes = [n for n in proto.graph.node if n.domain == "ai.edgernn"]
    assert [n.op_type for n in nodes] == ["Recurrent"] * 2
    for node in nodes:
        assert "" not in node.input
        assert {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} == {
            "schema": 2,
            "cell": cell.encode(),
            "rule": rule.encode(),
            "macs": model.layers[0 if node.name == "layer0" else 1].macs(),
        }
    info = json.loads(next(p.value for p in proto.metadata_props if p.key == "edgernn"))
    assert (
        info["model"]["layer"]["cell"]["name"],
        info["model"]["layer"]["rule"]["name"],
        info["model"]["hidden_size"],
        info["streaming"],
    ) == (cell, rule, 33, True)
    assert (info["model"]["input"]["mean"], info["model"]["input"]["std"], info["version"]) == (
        [0.5],
        [2.0],
        edgernn.__version__,
    )


def graph_of(*arguments, **options):
    return build(edgernn.SequenceModel(*arguments, **options), portable=False).graph


def attributes_of(node):
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cell": "sarnn"}, {"cell": "gru", "rule": "selective"}),
        ({"cell": "rits"}, {"cell": "lstm", "rule": "always", "imputer": "rits"}),
        ({"cell": "gru", "rank": 3}, {"cell": "gru", "rule": "always", "rank": 3}),
        ({"cell": "gru", "norm": "layer"}, {"cell": "gru", "rule": "always", "norm": "layer"}),
        ({"cell": "eins", "cell_options": {"a": "x"}}, {"cell": "eins-from-x", "rule": "always"}),
    ],
    ids=["rule", "imputer", "rank", "norm", "form"],
)
def test_a_node_says_what_its_layer_is_made_of(options, expected):
    (node,) = (n for n in graph_of(options.pop("cell"), 6, 4, **options).node if n.domain == "ai.edgernn")
    attributes = attributes_of(node)
    assert attributes.pop("macs") > 0
    assert attributes == {"schema": 2, **expected}


def test_layers_that_differ_have_functions_of_their_own(tmp_path):
    model = edgernn.SequenceModel("irc-sru", 3, 4, layers=3)
    checks = to_onnx(model, tmp_path / "m.onnx")
    assert {check.backend for check in checks} == {"portable", "native"}
    proto = onnx.load(tmp_path / "m.onnx")
    assert [f.name for f in proto.functions] == ["Recurrent", "Recurrent2"]
    assert [n.op_type for n in proto.graph.node if n.domain == "ai.edgernn"] == [
        "Recurrent",
        "Recurrent2",
        "Recurrent2",
    ]
    assert Session(tmp_path / "m.onnx").info["kernels"] == ["irc-sru-projected", "irc-sru"]


def test_a_file_has_at_most_sixteen_functions_of_layers():
    model = edgernn.SequenceModel("gru", 3, 4, layers=17)
    for number, layer in enumerate(model.recurrent_layers()):
        layer.cell.variant = f"{number}"
    with pytest.raises(
        UsageError, match="layers: expected at most 16 different combinations of cell, rule and options, got more"
    ):
        build(model)


def test_file_holds_no_paths_of_the_machine_it_was_made_on():
    _, path = exported("gru")
    content = path.read_bytes()
    for trace in (b"/home", b"site-packages", b".py", b"torch"):
        assert trace not in content


class Leaky(Cell):
    """A user-defined cell: a leaky integrator with a squashed, learned rate.

    u_t = tanh(W x_t + R h_{t-1} + b),  h_t = h_{t-1} + σ(ρ) ⊙ (u_t - h_{t-1})
    """

    name = "leaky"
    gates = (Gate("u"),)

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.rho = torch.nn.Parameter(torch.randn(hidden_size))

    def update(self, p, state):
        (h,) = state
        return (h + torch.sigmoid(self.rho) * (torch.tanh(p.u) - h),)


@pytest.mark.parametrize("rule", ["always", "variable"])
def test_a_users_own_cell_exports_with_no_further_code(rule, tmp_path):
    model = edgernn.SequenceModel(Leaky, 3, 7, 2, rule=rule, layers=2)
    checks = to_onnx(model, tmp_path / "m.onnx", metadata={"task": "mine"})
    assert checks[0].backend == "portable"
    assert checks[0].worst <= FLOAT32
    session = Session(tmp_path / "m.onnx", backend="portable")
    assert (session.info["model"]["layer"]["cell"]["name"], session.info["task"]) == ("leaky", "mine")


class Softsign(Cell):
    """A user-defined point-wise cell: a gated unit with softsign for tanh, and a learned slope."""

    name = "softsign"
    gates = (Gate("z"), Gate("n"))
    vectors = {"slope": Vector("H", 1.0, torch.nn.functional.softplus)}  # noqa: RUF012

    turned = False

    def update(self, p, state):
        (h,) = state
        n = torch.nn.functional.softsign(p.slope * p.n)
        z = torch.sigmoid(-p.z if self.turned else p.z)
        return (torch.lerp(h, n, z),)


@some_rules
def test_a_users_own_cell_carries_its_program_and_runs_in_stock_onnxruntime(rule, tmp_path):
    model = edgernn.SequenceModel(Softsign, 3, 7, 2, rule=rule)
    checks = to_onnx(model, tmp_path / "m.onnx")
    assert all(check.worst <= FLOAT32 for check in checks)
    proto = onnx.load(tmp_path / "m.onnx")
    (node,) = (n for n in proto.graph.node if n.domain == "ai.edgernn")
    assert node.op_type == "Recurrent"
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    program = cell_program(model.recurrent_layers()[0].cell).attributes()
    assert {name: attributes[name] for name in program} == program
    assert program.keys() <= set(proto.functions[0].attribute)
    kind = "softsign" if rule == "always" else f"softsign+{rule}"
    info = json.loads(proto.metadata_props[0].value)
    assert (info["kernels"], info["programs"]) == ([kind], {kind: kind.replace("softsign", "*")})


def test_layers_of_other_equations_do_not_share_a_function():
    model = edgernn.SequenceModel(Softsign, 3, 3, 2, layers=3)
    for turned, layer in zip((False, True, False), model.recurrent_layers(), strict=True):
        layer.cell.turned = turned
    nodes = [n.op_type for n in build(model, portable=False).graph.node if n.domain == "ai.edgernn"]
    assert nodes == ["Recurrent", "Recurrent2", "Recurrent"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"cell": Leaky},
            r"leaky: the native library cannot run this cell: update: cannot be traced .*; read only .* `vectors`; .*",
        ),
        (
            {"cell": Softsign, "norm": "layer"},
            "norm=layer: the native library has no kernel for a layer with a normalisation; run .*, or leave out norm",
        ),
        ({"cell": "gru"}, "None"),
    ],
)
def test_a_layer_without_a_kernel_says_why(change, message):
    layers = edgernn.SequenceModel(input_size=3, hidden_size=4, **change).recurrent_layers()
    assert re.fullmatch(message, str(without_kernel(layers)))


def test_a_users_own_cell_needs_a_name_of_its_own():
    class Mine(Leaky):
        name = "gru"

    with pytest.raises(
        UsageError, match="cell: expected a name of its own for the class Mine, got 'gru', the name of a built-in cell"
    ):
        build(edgernn.SequenceModel(Mine, 3, 7, 2))


def test_a_cell_without_native_kernel_runs_portably_beside_the_library(tmp_path):
    model = edgernn.SequenceModel(Leaky, 3, 7, 2)
    to_onnx(model, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((5, 2, 3), np.float32)
    with torch.no_grad():
        y, _ = model(torch.from_numpy(x))
    with pytest.warns(RuntimeWarning, match="the native library has no kernel for leaky; running the portable"):
        session = Session(tmp_path / "m.onnx")
    assert session.backend == "portable"
    np.testing.assert_allclose(session.run(x), y, rtol=0, atol=FLOAT32)
    with pytest.raises(edgernn.EdgernnError, match="no kernel for leaky"):
        Session(tmp_path / "m.onnx", backend="native")


class ElsewhereTraced(Leaky):
    """A cell whose trace differs from its computation."""

    name = "elsewhere"

    def update(self, p, state):
        (h,) = super().update(p, state)
        return (0.9 * h if torch.compiler.is_exporting() else h,)


class NeverTraced(RULES["selective"]):
    """A rule that decides for no neuron while it is traced."""

    name = "never"

    def score(self, e, state, memory):
        score = super().score(e, state, memory)
        return score - 100 if torch.compiler.is_exporting() else score


@pytest.mark.parametrize(
    ("cell", "rule", "message"),
    [
        (ElsewhereTraced, None, r"differs from torch in float64 by .*; the export is wrong"),
        ("gru", NeverTraced, "the export is wrong"),
    ],
    ids=["values", "updates"],
)
def test_wrong_export_fails_loudly_and_leaves_nothing(cell, rule, message, tmp_path):
    with pytest.raises(edgernn.EdgernnError, match=message):
        to_onnx(edgernn.SequenceModel(cell, 3, 33, rule=rule), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_export_does_not_change_the_model(tmp_path):
    model = edgernn.SequenceModel("sarnn", 3, 5).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    to_onnx(model, tmp_path / "m.onnx")
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def large(scale=8.5):
    """Make a chaotic model: its recurrent weights amplify the rounding of each step."""
    torch.manual_seed(3)
    model = edgernn.SequenceModel("gru", 4, 64, 2, output="all")
    torch.nn.init.uniform_(model.recurrent_layers()[0].cell.R, -scale, scale)
    return model


def test_large_recurrent_weights_are_compared_with_the_rounding_of_torch(tmp_path):
    checks = to_onnx(large(), tmp_path / "m.onnx")
    assert all(c.step_error < 1e-4 < c.sequence_error for c in checks)
    wrong = large()
    with torch.no_grad():
        wrong.recurrent_layers()[0].cell.b[0] += 0.5
    with pytest.raises(
        EdgernnError, match=r"differs from torch in float64 by .*, and torch in float32 by .*report a bug"
    ):
        check(wrong, tmp_path / "m.onnx")


def test_rounding_grows_with_the_length_of_rows():
    module, rows = sys.modules[check.__module__], 16384
    model = edgernn.SequenceModel("rnn", rows, 4, None).eval()
    x = torch.randn(1, 1, rows)
    with torch.no_grad():
        cell = model.recurrent_layers()[0].cell
        cell.W.mul_(32)
        # sums of large numbers that cancel
        cell.b.copy_(-(x[0, 0].double() @ cell.W.double().T).reshape(cell.b.shape))
    state = model.initial_state(1, model.input_mean)
    expected = module._torch(model, x, state)
    exact = module._torch(copy.deepcopy(model).double(), x.double(), state)[0]
    rounding = (expected[0] - exact).abs().max()

    def error(times, tolerance):
        h = (exact + times * rounding).numpy()
        session = SimpleNamespace(backend="native", run_from=lambda x, named: (h, {model.state_names[0]: h}))
        return module._error(session, model, x, state, expected, torch.ones(1, dtype=torch.bool), tolerance)

    assert error(100, 1e-7) > 50 * rounding
    with pytest.raises(EdgernnError, match="the export is wrong; report a bug"):
        error(200, 1e-7)
    with pytest.raises(EdgernnError, match=r"inputs of int8 weights .*; use bfloat16 weights"):
        error(1e9, 1e-3)


@pytest.mark.parametrize(
    ("weight", "message"),
    [(1e3, "16 bits, .* too coarse for these weights; use bfloat16 weights"), (1e38, "the weights are too large")],
)
def test_weights_that_int8_or_float32_cannot_compute_are_no_bug(weight, message, tmp_path):
    torch.manual_seed(0)
    model = edgernn.SequenceModel("minlstm", 4, 8, 2, layers=2).eval()
    with torch.no_grad():
        for layer in model.recurrent_layers():
            layer.cell.W[-1, 0] = weight
    with pytest.raises(EdgernnError, match=message):
        to_onnx(model, tmp_path / "m.onnx", weights="int8")


def test_an_example_takes_the_place_of_noise(tmp_path):
    model = edgernn.SequenceModel("rnn", 3, 8, 2)
    checks = to_onnx(model, tmp_path / "m.onnx", example=torch.randn(5, 2, 3))
    assert {(c.steps, c.sequences) for c in checks} == {(10, 2)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.double(), r"dtype: expected float32 weights, got float64 in .*; use model\.float\(\)"),
        (lambda model: model.head.bfloat16(), r"dtype: expected float32 weights, got bfloat16 in head\.weight"),
        (lambda model: model.head.bias.data.fill_(torch.nan), r"expected finite numbers, got nan in head\.bias"),
        (
            lambda model: model.recurrent_layers()[0].cell.b.data.fill_(-torch.inf),
            r"expected finite numbers, got -inf in layers\.0\.cell\.b; train the model again",
        ),
    ],
    ids=["double", "one part", "NaN", "infinite"],
)
def test_weights_that_are_no_finite_float32_numbers_are_refused(change, message, tmp_path):
    model = edgernn.SequenceModel("rnn", 3, 8, 2)
    change(model)
    with pytest.raises(UsageError, match=message):
        to_onnx(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_no_file_to_write(tmp_path):
    with pytest.raises(UsageError, match=r"path: expected a file to write, got the folder .*; pass .*model\.onnx"):
        to_onnx(edgernn.SequenceModel("rnn", 3, 8, 2), tmp_path)
