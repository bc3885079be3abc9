# SPDX-License-Identifier: Apache-2.0
"""From torch.nn's recurrent modules to a SequenceModel, and back."""

from itertools import product

import torch
from torch import Tensor, nn

from edgernn.errors import UsageError
from edgernn.model import SequenceModel

_MODULES: dict[str, type[nn.RNN | nn.GRU | nn.LSTM]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def from_torch(module: nn.RNN | nn.GRU | nn.LSTM) -> SequenceModel:
    """A model with the module's layers, directions and weights that gives every output; its cell is rnn, gru or lstm.

    The two biases of torch become one, their sum, but for the candidate of gru; a module without has zeros.
    x is (T, B, I) also where the module has batch_first, which does not concern its weights. The module's states
    (layers·directions, B, H) are those of the model, one tensor each.
    Raises UsageError for another module, nonlinearity="relu", proj_size, and dropout, which no layer here has.
    """
    names = {kind: name for name, kind in _MODULES.items()}
    if type(module) not in names:
        raise UsageError(f"module: expected torch.nn.RNN, GRU or LSTM, got {type(module).__name__}")
    cell = names[type(module)]
    if cell == "rnn" and module.nonlinearity != "tanh":
        raise UsageError(f"nonlinearity: the cell rnn has tanh, the module {module.nonlinearity}")
    if module.proj_size:
        raise UsageError(f"proj_size: no cell projects its output, the module does to {module.proj_size}")
    if module.dropout:
        raise UsageError(f"dropout: no layer has it, the module has {module.dropout}; set it to 0 if training is over")
    model = SequenceModel(
        cell,
        module.input_size,
        module.hidden_size,
        layers=module.num_layers,
        bidirectional=module.bidirectional,
        output="all",
    ).to(next(module.parameters()))
    with torch.no_grad():
        for layer, suffix in zip(model.recurrent_layers(), _suffixes(module), strict=True):
            layer.cell.W.copy_(getattr(module, f"weight_ih_{suffix}"))
            layer.cell.R.copy_(getattr(module, f"weight_hh_{suffix}"))
            if module.bias:
                b_ih, b_hh = getattr(module, f"bias_ih_{suffix}"), getattr(module, f"bias_hh_{suffix}")
                layer.cell.b.copy_(_joined(b_ih, b_hh, len(b_ih) - _apart(module)))
            else:
                layer.cell.b.zero_()
    return model.train(module.training)


def to_torch(model: SequenceModel) -> nn.RNN | nn.GRU | nn.LSTM:
    """The module of torch.nn with the model's recurrent layers; it takes (T, B, I) and gives every output.

    torch's second bias is zero, but for the candidate of gru. The head is left to the caller: it is `model.head`; so
    are the embedding of a model of words and what training drops.
    Raises UsageError where torch.nn has no such module: another cell or rule, an imputer, low rank or normalised
    weights, a last layer of another size; and for a model that standardises its input.
    """
    name, rule = model.cell_type.name, model.rule_type.name
    if name not in _MODULES:
        raise UsageError(f"cell: torch.nn has {', '.join(_MODULES)}, the model is {name}")
    if model.rule_type.can_skip:
        raise UsageError(f"rule: torch.nn updates every neuron at every step, the model has the rule {rule}")
    layers = model.recurrent_layers()
    if layers[0].imputer is not None:
        raise UsageError("imputer: torch.nn has none, the model does")
    if layers[0].kind != name:
        raise UsageError(f"cell: torch.nn has plain weights, the model's layers are {layers[0].kind}")
    if model.last_size not in (None, model.hidden_size):
        raise UsageError(f"last_size: torch.nn has layers of one size, the model's last one has {model.last_size}")
    if model.standardises:
        raise UsageError("mean, std: torch.nn takes the input as it is, the model standardises it first")
    like = layers[0].cell.W
    module = _MODULES[name](
        model.input_size,
        model.hidden_size,
        len(layers) // model.directions,
        bidirectional=model.bidirectional,
        device=like.device,
        dtype=like.dtype,
    )
    with torch.no_grad():
        for layer, suffix in zip(layers, _suffixes(module), strict=True):
            getattr(module, f"weight_ih_{suffix}").copy_(layer.cell.W)
            getattr(module, f"weight_hh_{suffix}").copy_(layer.cell.R)
            b_ih, b_hh = getattr(module, f"bias_ih_{suffix}"), getattr(module, f"bias_hh_{suffix}")
            shared = len(b_ih) - _apart(module)
            b_ih.copy_(layer.cell.b[: len(b_ih)])
            b_hh.zero_()
            b_hh[shared:].copy_(layer.cell.b[len(b_ih) :])
    return module.train(model.training)


def _suffixes(module: nn.RNNBase) -> list[str]:
    """How torch's parameters end, one a layer and direction, in our order of layers."""
    directions = ("", "_reverse") if module.bidirectional else ("",)
    return [f"l{layer}{direction}" for layer, direction in product(range(module.num_layers), directions)]


def _apart(module: nn.RNNBase) -> int:
    """How many of the last biases stay two, b_n and b_k of our gru, as r comes between them."""
    return module.hidden_size if isinstance(module, nn.GRU) else 0


def _joined(b_ih: Tensor, b_hh: Tensor, shared: int) -> Tensor:
    """Our b: the sum of the first biases, then the others as they are."""
    return torch.cat([b_ih[:shared] + b_hh[:shared], b_ih[shared:], b_hh[shared:]])
