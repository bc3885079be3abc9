# SPDX-License-Identifier: Apache-2.0
"""The kernels and the torch op of a recurrent layer under every caller: results and gradients of the layer's loop."""

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import edgernn
import edgernn.nn
from edgernn.kernels import why_loop
from edgernn.kernels.training_library import TrainCall
from edgernn.layer import RecurrentLayer, python_loop
from tests.own_cells import LiGRU

pytestmark = pytest.mark.usefixtures("training_library")

Pass = tuple[Tensor, ...]
# cell, settings, and the name of the implementation on a CPU
MODELS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "gru": ("gru", {}, "fused"),
    "lstm": ("lstm", {"layers": 2, "bidirectional": True}, "fused"),
    "sarnn": ("sarnn", {}, "fused"),
    "delta": ("deltagru", {}, "fused"),
    "skip": ("skiprnn", {}, "fused"),
    "sru": ("sru", {}, "fused"),
    "clockwork": ("cwrnn", {"rule_options": {"groups": 3}}, "fused"),
    "low-rank": ("gru", {"rank": 2}, "fused"),
    "own": (LiGRU, {}, "fused"),
    "imputer": ("gru-d", {}, "torch"),
    "layer-norm": ("gru", {"norm": "layer"}, "torch"),
}


@pytest.fixture(autouse=True)
def _compiles_anew() -> None:
    torch._dynamo.reset()


@contextmanager
def calls() -> Iterator[list[bool]]:
    """List the calls of the training library; True for a backward pass."""
    made: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        run = TrainCall.run
        patch.setattr(TrainCall, "run", lambda self, back: (made.append(back), run(self, back))[1])
        yield made


def make(name: str) -> edgernn.SequenceModel:
    cell, settings, _ = MODELS[name]
    torch.manual_seed(1)
    model = edgernn.SequenceModel(cell, 3, 6, 2, output="all", **settings)
    for layer in model.recurrent_layers():
        layer.rule.anneal(7)
    return model


def one_pass(model: edgernn.SequenceModel, call: Callable[..., Any], x: Tensor) -> Pass:
    """Return the outputs of a call, its states and update budget, and the gradients of x and of all parameters."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y, state = call(x)
    loss = y.sin().sum() + sum(s.cos().sum() for s in state) + 0.3 * model.budget
    loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return tuple(t.detach().clone() for t in (y, *state, model.budget, x.grad, *grads))  # type: ignore[union-attr]


def assert_same(got: Pass, expected: Pass) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5 * max(1.0, float(b.abs().max())))


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_kernels_serve_a_plain_call_and_a_compiled_one(name: str) -> None:
    model, x = make(name), torch.randn(7, 4, 3)
    backend = MODELS[name][2]
    assert {layer.backend for layer in model.recurrent_layers()} == {backend}
    assert all((why_loop(layer, "cpu") is None) == (backend == "fused") for layer in model.recurrent_layers())
    with python_loop(model):
        expected = one_pass(model, model, x)
    count = len(model.recurrent_layers()) if backend == "fused" else 0
    with calls() as made:
        assert_same(one_pass(model, model, x), expected)
    assert made == [False] * count + [True] * count
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with calls() as made:
        assert_same(one_pass(model, compiled, x), expected)
        # another length and batch
        again, other = torch.randn(5, 2, 3), torch.randn(9, 3, 3)
        made.clear()
        for values in (again, other):
            results = one_pass(model, compiled, values)
            with python_loop(model):
                assert_same(results, one_pass(model, model, values))
    assert sorted(made) == sorted([False, True] * 2 * count)


def test_exported_program_runs_any_length_and_trains(name: str) -> None:
    model, x = make(name), torch.randn(7, 4, 3)
    axes = ({0: torch.export.Dim("T"), 1: torch.export.Dim("B")},)
    program = torch.export.export(model, (x,), dynamic_shapes=axes)
    ops = [node.target for node in program.graph.nodes if node.target == torch.ops.edgernn.recurrent.default]
    assert len(ops) == len(model.recurrent_layers())
    module = program.module()
    again = torch.randn(9, 2, 3, requires_grad=True)
    y, _ = module(again)
    y.sin().sum().backward()
    got = again.grad
    again.grad = None
    with python_loop(model):
        expected, _ = model(again)
        expected.sin().sum().backward()
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(got, again.grad, rtol=0, atol=2e-5)


def test_ops_pass_torchs_own_checks() -> None:
    (layer,) = make("sarnn").recurrent_layers()
    x = torch.randn(3, 2, 3, requires_grad=True)
    tensors = [x, torch.randn(2, 6, requires_grad=True), *layer.parameters(), *layer.buffers()]
    key = layer.op_key()
    for keep in (True, False):
        checked = torch.library.opcheck(
            torch.ops.edgernn.recurrent.default,
            (tensors, torch.rand(3, 2), key, True, 2.0, True, keep),
            # its outputs have gradients, which this test cannot tell from those that it keeps
            test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
        )
        assert set(checked.values()) == {"SUCCESS"}
    with pytest.raises(edgernn.EdgernnError, match="expected a layer that was traced in this process, got other"):
        torch.ops.edgernn.recurrent(tensors, None, "other", True, 2.0, True, True)


def test_op_reads_the_weights_of_each_call_and_frees_them() -> None:
    model, twin = make("gru"), make("gru")
    (layer,) = model.recurrent_layers()
    x, state = torch.randn(3, 2, 3), torch.zeros(2, 6)

    def assert_op_equals_layer(layer: RecurrentLayer) -> None:
        tensors = [x, state, *layer.parameters(), *layer.buffers()]
        with torch.no_grad():
            expected, _, _ = layer(x, (state,))
            for _ in range(2):
                y, *_ = torch.ops.edgernn.recurrent(tensors, None, layer.op_key(), layer.training, 1.0, False, False)
                assert torch.equal(y, expected)

    assert_op_equals_layer(layer)
    # an optimiser changes weights in place, and others give them new memory
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    one_pass(model, model, x)
    optimizer.step()
    assert_op_equals_layer(layer)
    layer.cell.W.data = torch.randn(18, 3)
    assert_op_equals_layer(layer)
    layer.cell.W.data = layer.cell.W.data.clone().t().contiguous().t()
    assert_op_equals_layer(layer)
    assert_op_equals_layer(copy.deepcopy(layer))
    assert_op_equals_layer(twin.recurrent_layers()[0])
    layer.cell.R = nn.Parameter(torch.randn(18, 6))
    assert_op_equals_layer(layer.eval())
    memory = weakref.ref(layer.cell.R.untyped_storage())
    assert memory() is not None
    del model, layer, optimizer
    gc.collect()
    assert memory() is None


def test_plain_calls_of_the_op_go_past_the_dispatcher() -> None:
    (layer,) = make("sarnn").recurrent_layers()
    tensors = [torch.randn(3, 2, 3), torch.randn(2, 6), *layer.parameters(), *layer.buffers()]
    arguments = tensors, torch.rand(3, 2), layer.op_key(), True, 2.0, False, False
    with torch.no_grad():
        expected = torch.ops.edgernn.recurrent(*arguments)
        got = torch.ops.edgernn.recurrent.default(*arguments)
        assert all(map(torch.equal, got, expected))
        with torch.profiler.profile() as profile:
            torch.ops.edgernn.recurrent.default(*arguments)
        assert "edgernn::recurrent" not in {event.name for event in profile.events()}  # type: ignore[union-attr]
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = torch.ops.edgernn.recurrent.default(*arguments)
    assert all(isinstance(fake, FakeTensor) for fake in fakes)
    assert [fake.shape for fake in fakes] == [tensor.shape for tensor in expected]


def test_weights_without_memory_of_their_own_run_the_loop() -> None:
    model, x = make("gru"), torch.randn(4, 2, 3)
    (layer,) = model.recurrent_layers()
    expected, _ = model(x)
    layer.cell.R = nn.Parameter(TwoTensor(layer.cell.R.detach(), layer.cell.R.detach() + 1))
    with calls() as made:
        y, _ = model(x)
    assert made == []
    torch.testing.assert_close(y.a, expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit:DeprecationWarning")
def test_trace_of_torch_jit_has_the_steps() -> None:
    rnn, (x, other) = edgernn.nn.Recurrent("sarnn", 3, 6), torch.randn(2, 4, 2, 3)
    with torch.no_grad():
        traced = torch.jit.trace(rnn, x)  # type: ignore[no-untyped-call]
        torch.testing.assert_close(traced(other), rnn(other), rtol=0, atol=1e-6)


def test_callers_that_replace_weights_and_copy() -> None:
    model, x = make("sarnn"), torch.randn(7, 4, 3)
    expected = one_pass(model, model, x)
    clone = copy.deepcopy(model)
    with calls() as made:
        assert_same(one_pass(clone, clone, x), expected)
        clone.load_state_dict(model.state_dict())
        assert_same(one_pass(clone, lambda x: checkpoint(clone, x, use_reentrant=False), x), expected)
        values = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
        y, _ = torch.func.functional_call(model, values, (x,))
        assert torch.equal(y, expected[0])
    # a checkpointed pass runs forward twice
    assert made == [False, True, False, False, True, False]


def test_distributed_training_runs_on_kernels(tmp_path: Path) -> None:
    model, x = make("gru"), torch.randn(7, 4, 3)
    expected = one_pass(model, model, x)
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", world_size=1, rank=0)
    try:
        with calls() as made:
            assert_same(one_pass(model, DistributedDataParallel(model), x), expected)
        assert made == [False, True]
    finally:
        torch.distributed.destroy_process_group()


def test_autocast_leaves_a_layer_in_float32() -> None:
    (layer,) = make("sarnn").recurrent_layers()
    x = torch.randn(7, 4, 3)
    expected, last, _ = layer(x)
    with torch.autocast("cpu", torch.bfloat16), calls() as made:
        y, state, _ = layer(x)
        rounded, _, _ = layer(x.bfloat16())
        compiled, _, _ = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    assert made == [False] * 3
    assert torch.equal(y, expected)
    assert torch.equal(compiled, expected)
    assert torch.equal(state[0], last[0])
    assert rounded.dtype == torch.float32


@pytest.mark.parametrize("cell", ["gru", "mingru", LiGRU])
def test_first_call_may_be_checkpointed_or_without_gradients(cell: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 2, 3)
    gradients = []
    for kind in ("plain", "checkpoint", "inference"):
        torch.manual_seed(1)
        layer = edgernn.nn.Recurrent(cell, 3, 6)
        if kind == "inference":
            with torch.inference_mode():
                layer(x)
        y = checkpoint(lambda x: layer(x)[0], x, use_reentrant=False) if kind == "checkpoint" else layer(x)[0]  # noqa: B023
        gradients.append(torch.autograd.grad(y.sin().sum(), list(layer.parameters())))
    for got in gradients[1:]:
        torch.testing.assert_close(got, gradients[0], rtol=0, atol=1e-6)


def pruned(part: nn.Module, name: str) -> None:
    prune.random_unstructured(part, name, 0.5)


@pytest.mark.filterwarnings(
    "ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning",
    "ignore:.* should not be instantiated:DeprecationWarning",
)
@pytest.mark.parametrize(
    "change",
    [pruned, nn.utils.weight_norm, nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal],
)
@pytest.mark.parametrize("part", ["cell", "rule"])
def test_weights_that_torch_computes_from_others(change: Any, part: str) -> None:
    model, x = make("sarnn"), torch.randn(7, 4, 3)
    # chooses kernels for the layer without the change
    model(x)
    changed = getattr(model.recurrent_layers()[0], part)
    change(changed, max((n for n, p in changed.named_parameters() if p.ndim == 2), default="rule_h"))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        with python_loop(model):
            expected = one_pass(model, model, x)
        assert_same(one_pass(model, model, x), expected)
        assert_same(one_pass(model, compiled, x), expected)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)


# torch scripts derivatives on first use
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_transforms_of_functions_run_the_loop() -> None:
    model, x = make("gru"), torch.randn(4, 2, 3)
    values = {n: p.detach() for n, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        y, _ = torch.func.functional_call(model, values, (x,))
        return y.square().sum()

    grads = torch.func.grad(loss)(values, x)
    loss(dict(model.named_parameters()), x).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad, rtol=0, atol=1e-5)
    many = torch.stack([x, x + 1])
    torch.testing.assert_close(
        torch.func.vmap(loss, (None, 0))(values, many), torch.stack([loss(values, each) for each in many])
    )
    _, tangent = torch.func.jvp(lambda x: loss(values, x), (x,), (torch.ones_like(x),))
    x.requires_grad_()
    loss(values, x).backward()
    assert x.grad is not None
    torch.testing.assert_close(tangent, x.grad.sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", ["selective", "delta"])
def test_gradients_of_each_sequence_by_transforms(rule: str) -> None:
    torch.manual_seed(0)
    options = {"theta_x": 0.2, "theta_h": 0.2, "learn_thresholds": True} if rule == "delta" else {}
    model, x = edgernn.nn.Recurrent("gru", 3, 6, rule=rule, **options), torch.randn(3, 4, 3)
    values = {n: p.detach() for n, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, values, (x[:, None],))[0].sin().sum()

    grads = torch.func.vmap(torch.func.grad(loss), (None, 1))(values, x)
    for b in range(4):
        model.zero_grad()
        loss(dict(model.named_parameters()), x[:, b]).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(grads[name][b], parameter.grad, rtol=0, atol=1e-5)


def test_second_derivatives_and_batches_of_gradients_need_the_loop() -> None:
    model, x = make("gru"), torch.randn(4, 2, 3, requires_grad=True)
    with pytest.raises(edgernn.EdgernnError, match="got several gradients at once; run the forward pass inside"):
        torch.autograd.grad(model(x)[0][-1, 0], x, torch.eye(2), is_grads_batched=True)
    with python_loop(model):
        (many,) = torch.autograd.grad(model(x)[0][-1, 0], x, torch.eye(2), is_grads_batched=True)
    (one,) = torch.autograd.grad(model(x)[0][-1, 0], x, torch.eye(2)[1])
    torch.testing.assert_close(many[1], one)
    with pytest.raises(edgernn.EdgernnError, match=r"with edgernn\.layer\.python_loop\(module\)"):
        torch.autograd.grad(model(x)[0].sum(), x, create_graph=True)
    program = torch.export.export(model, (x,)).module()
    with pytest.raises(edgernn.EdgernnError, match=r"got create_graph=True; run the forward pass inside"):
        torch.autograd.grad(program(x)[0].sum(), x, create_graph=True)
    with python_loop(model):
        (grad,) = torch.autograd.grad(model(x)[0].square().sum(), x, create_graph=True)
    assert model.recurrent_layers()[0].backend == "fused"
    (second,) = torch.autograd.grad(grad.square().sum(), x)
    assert second.abs().max() > 0


def test_compiled_layer_follows_changes() -> None:
    """The slope of the surrogate gradient, the mode and the penalty's weights are arguments of the op."""
    model, x = make("sarnn"), torch.randn(7, 4, 3)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    one_pass(model, compiled, x)
    for layer in model.recurrent_layers():
        layer.rule.anneal(50)
    assert_same(one_pass(model, compiled, x), one_pass(model, model, x))
    with model.marked(torch.rand(7, 4) < 0.5, 0.1):
        assert_same(one_pass(model, compiled, x), one_pass(model, model, x))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)[0], model(x)[0])


class Conv(nn.Module):
    """A network of one's own around a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 5, 3, padding=1)
        self.layer = RecurrentLayer(edgernn.CELLS["gru"](5, 6), edgernn.RULES["selective"](5, 6))

    def forward(self, x: Tensor) -> Tensor:
        y, _, trace = self.layer(self.conv(x.permute(1, 2, 0)).permute(2, 0, 1).relu())
        return y.mean() + trace.budget


def test_layer_in_a_network_of_ones_own() -> None:
    torch.manual_seed(0)
    network, x = Conv(), torch.randn(7, 4, 3)
    with calls() as made:
        network(x).backward()
        grads = [p.grad.clone() for p in network.parameters() if p.grad is not None]
        network.zero_grad()
        torch.compile(network, backend="aot_eager", fullgraph=True)(x).backward()
    assert made == [False, True] * 2
    for grad, parameter in zip(grads, network.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=0, atol=1e-6)
