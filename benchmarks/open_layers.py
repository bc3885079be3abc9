# SPDX-License-Identifier: Apache-2.0
"""Costs of a network of one's own beside those of its parts: `python -m benchmarks.open_layers --out docs/results`.

- A training step in one's own loop, plain and under torch.compile, beside a step of `edgernn train`.
- A call of the torch op `edgernn::recurrent` beside a call of the kernels, for one step of one sequence, and beside a
  call of an empty op in Python with the same arguments.
- A file with a convolution, a recurrent layer and a linear map beside files of its recurrent layer and of the rest.

Everything runs on one thread, and times are CPU times of this thread, which other processes change little.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import onnxruntime
import torch
from torch import Tensor, nn

from benchmarks.training_steps import measure
from edgernn.bench.provenance import machine
from edgernn.export import to_onnx
from edgernn.files import write_json
from edgernn.model import SequenceModel
from edgernn.nn import CausalConv1d, Recurrent, budget
from edgernn.runtime.network import NetworkSession
from edgernn.training.config import TrainConfig
from edgernn.training.loop import train_step
from edgernn.training.tasks.adding import Adding
from edgernn.training.tasks.sources import Batch

T, B, I, H, CHANNELS = 50, 100, 2, 128, 16
PENALTY = 1e-4


class Net(nn.Module):
    """A recurrent layer and a linear map of its last output; with `convolution`, a causal convolution before."""

    def __init__(self, convolution: bool = False, recurrent: bool = True) -> None:
        super().__init__()
        self.conv = CausalConv1d(I, CHANNELS, 5) if convolution else None
        self.rnn = Recurrent("sarnn", CHANNELS if convolution else I, H) if recurrent else None
        self.head = nn.Linear(H if recurrent else CHANNELS, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (T, B, I) to (B, 1)."""
        y = x if self.conv is None else self.conv(x.permute(1, 2, 0))[0].permute(2, 0, 1).relu()
        y = y if self.rnn is None else self.rnn(y)[0]
        last: Tensor = self.head(y[-1])
        return last


def own_step(net: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor, target: Tensor) -> Callable[[], None]:
    """Return a function that takes a training step of a network in a loop of one's own."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step() -> None:
        loss = (call(x) - target).square().mean() + PENALTY * budget(net)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def training_steps(rounds: int) -> dict[str, float]:
    """Time training steps; return seconds by name."""
    x, target = torch.rand(T, B, I), torch.rand(B, 1)
    own, compiled = Net(), Net()
    model = SequenceModel("sarnn", I, H, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    task, config = Adding(T=T), TrainConfig(lambda_=PENALTY)
    batch = Batch(x, target)
    model.train()

    def edgernn_train() -> None:
        train_step(model, optimizer, batch, task, config)

    runs = {
        "edgernn train": edgernn_train,
        "own loop": own_step(own, own, x, target),
        "own loop, compiled": own_step(compiled, torch.compile(compiled, fullgraph=True), x, target),
    }
    return measure(runs, rounds, time.thread_time)


def op_call(rounds: int) -> dict[str, float]:
    """Time a step of one sequence by the torch op, by the kernels alone, and by an empty op; return seconds by name."""
    (layer,) = Recurrent("sarnn", I, H).recurrent_layers()
    x = torch.rand(1, 1, I)
    state = layer.initial_state(1, x)

    # what a compiled or exported program passes
    weights = [*layer.named_parameters(remove_duplicate=False), *layer.named_buffers(remove_duplicate=False)]
    tensors, key, slope = [x, *state, *(w for _, w in weights)], layer.op_key(), float(layer.rule.slope)

    def op() -> None:
        torch.ops.edgernn.recurrent.default(tensors, None, key, layer.training, slope, False, False)

    def kernels() -> None:
        layer(x, state)

    outputs = torch.ops.edgernn.recurrent.default(tensors, None, key, layer.training, slope, False, False)
    library: Any = torch.library.Library("open_layers", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("empty(" + str(torch.ops.edgernn.recurrent.default._schema).split("(", 1)[1])
    library.impl("empty", lambda *_: outputs, "CPU")

    def empty() -> None:
        torch.ops.open_layers.empty.default(tensors, None, key, layer.training, slope, False, False)

    with torch.no_grad():
        # a call of the kernels before each other call, as caches of a processor lose the code of the others
        runs = {"op": op, "kernels": kernels, "empty op": empty, "kernels again": kernels}
        times = measure(runs, 100 * rounds, time.thread_time)
    return {name: times[name] for name in ("op", "kernels", "empty op")}


def files(rounds: int) -> dict[str, float]:
    """Time exported networks on one sequence, in ONNX Runtime with the library; return seconds by name."""
    x, features = torch.rand(T, 1, I), torch.rand(T, 1, CHANNELS)
    with tempfile.TemporaryDirectory() as folder:
        whole, layer, rest = (Path(folder) / f"{name}.onnx" for name in ("whole", "layer", "rest"))
        to_onnx(Net(convolution=True).eval(), whole, (x,))
        to_onnx(Recurrent("sarnn", CHANNELS, H).eval(), layer, (features,))
        torch.onnx.export(Net(convolution=True, recurrent=False).eval(), (x,), rest, dynamo=True, verbose=False)
        network, recurrent = NetworkSession(whole), NetworkSession(layer)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        others = onnxruntime.InferenceSession(rest, options, providers=["CPUExecutionProvider"])
    array, inputs, name = x.numpy(), features.numpy(), others.get_inputs()[0].name
    runs: dict[str, Callable[[], Any]] = {
        "convolution, recurrent layer, linear map": lambda: network.run(array),
        "recurrent layer": lambda: recurrent.run(inputs),
        "convolution, linear map": lambda: others.run(None, {name: array}),
    }
    return measure(runs, 20 * rounds, time.thread_time)


def report(rounds: int) -> dict[str, Any]:
    """Measure everything; times are in microseconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parts = {"training step": training_steps(rounds), "op": op_call(rounds), "file": files(rounds)}
    microseconds = {part: {name: 1e6 * s for name, s in seconds.items()} for part, seconds in parts.items()}
    steps, op, file = microseconds.values()
    ratios = {name: steps[name] / steps["edgernn train"] for name in ("own loop", "own loop, compiled")}
    whole, *alone = file.values()
    return {
        "machine": machine(),
        "sizes": {"T": T, "B": B, "I": I, "H": H},
        "rounds": rounds,
        "us": microseconds,
        "to edgernn train": ratios,
        "op cost": op["op"] - op["kernels"],
        "file to its parts": whole / sum(alone),
    }


@click.command()
@click.option("--rounds", default=25, show_default=True, help="Number of interleaved rounds of training steps.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for open-layers.json.")
def main(rounds: int, out: Path | None) -> None:
    """Time a network of one's own, on one thread, beside the parts it is made of."""
    result = report(rounds)
    for part, times in result["us"].items():
        for name, us in times.items():
            click.echo(f"{part}: {name}: {us:,.1f} µs")
    for name, ratio in result["to edgernn train"].items():
        click.echo(f"{name}: {ratio:.2f} of edgernn train's step (at most 1.1)")
    empty = result["us"]["op"]["empty op"]
    click.echo(f"op's own cost: {result['op cost']:.1f} µs a call (at most 15), an empty op's {empty:.1f}")
    click.echo(f"file: {result['file to its parts']:.2f} of its parts alone")
    if out is not None:
        write_json(out / "open-layers.json", result)


if __name__ == "__main__":
    main()
