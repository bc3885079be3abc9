# SPDX-License-Identifier: Apache-2.0
"""PyTorch: torch.nn.GRU and LSTM for sequences, GRUCell and LSTMCell for streams, in inference mode."""

import torch
from torch import Tensor, nn

from benchmarks.peers.base import Array, Peer, Problem, Sequence, Stream
from edgernn.bench.gpu_times import MODULES

_CELLS: dict[str, type[nn.GRUCell | nn.LSTMCell]] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


class PyTorch(Peer):
    """Adapter of PyTorch; the state of a torch module is h, or the pair (h, c)."""

    name = "PyTorch"
    package = "torch"

    def sequence(self, problem: Problem) -> Sequence:
        torch.set_num_threads(problem.threads)
        module, x = torch_module(problem), torch.from_numpy(problem.x)
        start = [torch.from_numpy(value)[None] for value in problem.states.values()]

        def call() -> tuple[Array, Array]:
            with torch.inference_mode():
                y, state = module(x, _packed(start))
                return y.numpy(), (state if isinstance(state, Tensor) else state[0])[0].numpy()

        return call

    def stream(self, problem: Problem) -> Stream:
        torch.set_num_threads(problem.threads)
        cell = _filled(_CELLS[problem.cell](problem.input_size, problem.hidden_size), problem, "")
        state = _packed([torch.from_numpy(value) for value in problem.states.values()])

        def step(x_t: Array) -> Array:
            nonlocal state
            with torch.inference_mode():
                state = cell(torch.from_numpy(x_t), state)
                return (state if isinstance(state, Tensor) else state[0]).numpy()

        return step


def torch_module(problem: Problem) -> nn.Module:
    """Build a torch.nn.GRU or LSTM with the problem's weights."""
    return _filled(MODULES[problem.cell](problem.input_size, problem.hidden_size), problem, "_l0")


def _packed(states: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return states[0] if len(states) == 1 else tuple(states)


def _filled(module: nn.Module, problem: Problem, suffix: str) -> nn.Module:
    weights = {"weight_ih": problem.W, "weight_hh": problem.R, "bias_ih": problem.b_x, "bias_hh": problem.b_h}
    module.load_state_dict({name + suffix: torch.from_numpy(value) for name, value in weights.items()})
    return module.eval()
