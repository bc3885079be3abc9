# SPDX-License-Identifier: Apache-2.0
"""PyTorch: torch.nn.GRU and LSTM for sequences, GRUCell and LSTMCell for streams, in inference mode."""

import torch
from torch import Tensor, nn

from edgernn.bench.peers.base import Array, Peer, Problem, Sequence, Stream

MODULES: dict[str, type[nn.GRU | nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}
_CELLS: dict[str, type[nn.GRUCell | nn.LSTMCell]] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


class PyTorch(Peer):
    """A state is that of the module: h alone, or (h, c)."""

    name = "PyTorch"
    package = "torch"

    def sequence(self, given: Problem) -> Sequence:
        torch.set_num_threads(given.threads)
        module, x = torch_module(given), torch.from_numpy(given.x)
        start = [torch.from_numpy(value)[None] for value in given.states.values()]

        def call() -> tuple[Array, Array]:
            with torch.inference_mode():
                y, state = module(x, _packed(start))
                return y.numpy(), (state if isinstance(state, Tensor) else state[0])[0].numpy()

        return call

    def stream(self, given: Problem) -> Stream:
        torch.set_num_threads(given.threads)
        cell = _filled(_CELLS[given.cell](given.input_size, given.hidden_size), given, "")
        state = _packed([torch.from_numpy(value) for value in given.states.values()])

        def step(x_t: Array) -> Array:
            nonlocal state
            with torch.inference_mode():
                state = cell(torch.from_numpy(x_t), state)
                return (state if isinstance(state, Tensor) else state[0]).numpy()

        return step


def torch_module(given: Problem) -> nn.Module:
    """torch.nn.GRU or LSTM with the problem's weights."""
    return _filled(MODULES[given.cell](given.input_size, given.hidden_size), given, "_l0")


def _packed(states: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return states[0] if len(states) == 1 else tuple(states)


def _filled(module: nn.Module, given: Problem, suffix: str) -> nn.Module:
    weights = {"weight_ih": given.W, "weight_hh": given.R, "bias_ih": given.b_x, "bias_hh": given.b_h}
    module.load_state_dict({name + suffix: torch.from_numpy(value) for name, value in weights.items()})
    return module.eval()
