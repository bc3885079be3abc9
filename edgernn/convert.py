# SPDX-License-Identifier: Apache-2.0
"""Conversion of torch.nn.RNN, GRU and LSTM to a SequenceModel and back."""

from itertools import product

from edgernn.extras import needed_by

with needed_by("edgernn.convert"):
    import torch
    from torch import Tensor, nn
    from torch.nn.utils import parametrize

    from edgernn.cells.base import Cell
    from edgernn.errors import UsageError
    from edgernn.model import SequenceModel

_MODULES: dict[str, type[nn.RNN | nn.GRU | nn.LSTM]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def from_torch(module: nn.RNN | nn.GRU | nn.LSTM) -> SequenceModel:
    """Convert a recurrent module of torch.nn to a model with the cell rnn, gru or lstm.

    torch's two biases are added into one, except for the candidate state n of gru, which keeps both. If the module has
    no biases, those of the model are zero. The model reads x (T, B, I). The module has one tensor
    (layers·directions, B, H) for each state, h or c. The model has a tensor (B, H) for each state of each layer and
    direction.

    Args:
        module: The module to convert, without relu, proj_size, dropout and batch_first.

    Returns:
        A model without a head that returns the outputs of all steps (output="all").

    Raises:
        UsageError: The module is of another class, has nonlinearity="relu", proj_size, dropout or batch_first, or
            computes its weights anew in each call, as pruning and weight normalisation do.
    """
    names = {kind: name for name, kind in _MODULES.items()}
    if type(module) not in names:
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        raise UsageError(f"module: expected torch.nn.RNN, GRU or LSTM, got {kind}; {_remedy(module)}")
    cell = names[type(module)]
    check_permanent(module)
    if module.batch_first:
        raise UsageError(
            "batch_first: expected False, got True, but the model reads (T, B, I); set module.batch_first = False, "
            "convert it, and call the model with x.transpose(0, 1)"
        )
    if cell == "rnn" and module.nonlinearity != "tanh":
        raise UsageError(
            f"nonlinearity: expected tanh, got {module.nonlinearity}, which edgernn's rnn does not have; convert a "
            "module with tanh"
        )
    if module.proj_size:
        raise UsageError(
            f"proj_size: expected 0, got {module.proj_size}, a projection, which edgernn's cells do not have; convert "
            "a module without it"
        )
    if module.dropout:
        raise UsageError(f"dropout: expected 0, got {module.dropout}; set module.dropout = 0 if training is over")
    model = SequenceModel(
        cell,
        module.input_size,
        module.hidden_size,
        layers=module.num_layers,
        bidirectional=module.bidirectional,
        output="all",
    ).to(next(module.parameters()))
    for layer, suffix in zip(model.recurrent_layers(), suffixes(module), strict=True):
        copy_weights(layer.cell, module, suffix)
    return model.train(module.training)


@torch.no_grad()
def copy_weights(cell: Cell, module: nn.RNNBase | nn.RNNCellBase, suffix: str) -> None:
    """Copy weights of a recurrent module of torch, whose names end in `suffix`, to a cell that computes the same.

    The two biases b_ih and b_hh are added, but for b_in and b_hn at their ends in a GRU, where the reset gate
    multiplies b_hn alone. There, b ends with b_in and b_hn.
    """
    cell.W.copy_(getattr(module, f"weight_ih{suffix}"))
    cell.R.copy_(getattr(module, f"weight_hh{suffix}"))
    if not module.bias:
        cell.b.zero_()
        return
    b_ih, b_hh = (getattr(module, f"bias_{name}{suffix}") for name in ("ih", "hh"))
    merged = len(b_ih) - (len(b_ih) // 3 if cell.name == "gru" else 0)
    cell.b.copy_(torch.cat([b_ih[:merged] + b_hh[:merged], b_ih[merged:], b_hh[merged:]]))


def check_permanent(module: nn.Module) -> None:
    """Raise UsageError for weights that the hooks of torch.nn.utils compute in a call: pruned or normalised ones.

    They may be outdated between calls.
    """
    computed = [
        f"{path}.{name}".removeprefix(".")
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor) and {f"{name}_orig", f"{name}_g"} & part._parameters.keys()
    ]
    if computed:
        raise UsageError(
            f"weights: expected parameters, got {', '.join(computed)} computed from others at each call; make them "
            "permanent first: torch.nn.utils.prune.remove(module, name) after pruning, or "
            "torch.nn.utils.remove_weight_norm(module, name)"
        )


def to_torch(model: SequenceModel) -> nn.RNN | nn.GRU | nn.LSTM:
    """Convert the recurrent layers of a model to a module of torch.nn.

    torch's second bias is zero, except for the candidate state n of gru. Block-sparse weights become dense ones, with
    zeros. Weights that the model rounds (setting `weights`) are rounded in the module. The output layer (`model.head`),
    the embedding and dropout are not part of it.

    Args:
        model: Model with the cell rnn, gru or lstm, which updates all neurons at every step.

    Returns:
        A module that reads (T, B, I) and returns the outputs of all steps.

    Raises:
        UsageError: torch.nn has no such module: the cell is not rnn, gru or lstm, an update rule skips neurons, the
            layers differ in size, or the model has an imputer, an audio front end, residual blocks, low-rank weights
            or a normalisation, standardises its input, or computes its weights anew in each call.
    """
    check_permanent(model)
    name, rule = model.cell_type.name, model.rule_type.name
    if name not in _MODULES:
        raise UsageError(
            f"cell: expected one of {', '.join(_MODULES)}, got {name}; torch.nn has no such cell: convert one of these"
        )
    if model.rule_type.can_skip:
        raise UsageError(
            f"rule: expected always, got {rule}; torch.nn updates every neuron at every step: convert a model with the "
            "rule always"
        )
    layers = model.recurrent_layers()
    if layers[0].imputer is not None:
        raise UsageError(
            f"imputer: expected none, got {layers[0].imputer.name}; torch.nn has no layer that fills in missing "
            "values: convert a model without an imputer"
        )
    if model.frontend is not None:
        raise UsageError(
            "frontend: expected none, got logmel; torch.nn has no module that reads raw audio: convert a model without "
            "a front end"
        )
    if model.config.block is not None:
        raise UsageError(
            f"block: expected none, got {model.config.block}; torch.nn has no module with residual blocks: convert a "
            "model without block"
        )
    if layers[0].kernel_name != name:
        raise UsageError(
            f"cell: expected a plain {name} layer, got {layers[0].kernel_name}, which torch.nn does not have; convert "
            f"a model with the default options of {name}, without rank and norm"
        )
    if model.last_size not in (None, model.hidden_size):
        raise UsageError(
            f"last_size: expected layers of equal size, got {model.hidden_size} neurons and {model.last_size} in the "
            "last layer; torch.nn has no module for that: convert a model without last_size"
        )
    if model.standardises:
        raise UsageError(
            "mean, std: expected 0 and 1, got others, but a torch.nn module does not standardise its input; set "
            "model.input_mean to 0 and model.input_std to 1, and standardise the input of the module yourself"
        )
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
        for layer, suffix in zip(layers, suffixes(module), strict=True):
            getattr(module, f"weight_ih{suffix}").copy_(model.rounding.matrix(layer.cell.W, training=False))
            # an optimiser may have moved weights that pruning holds at zero
            r = layer.cell.R * layer.cell.kept if layer.cell.is_sparse else layer.cell.R
            getattr(module, f"weight_hh{suffix}").copy_(model.rounding.matrix(r, training=False))
            b_ih, b_hh = getattr(module, f"bias_ih{suffix}"), getattr(module, f"bias_hh{suffix}")
            merged = len(b_ih) - (module.hidden_size if name == "gru" else 0)
            b_ih.copy_(layer.cell.b[: len(b_ih)])
            b_hh.zero_()
            b_hh[merged:].copy_(layer.cell.b[len(b_ih) :])
    return module.train(model.training)


def _remedy(module: nn.Module) -> str:
    """Return what to do with a module that `from_torch` does not convert."""
    if parametrize.is_parametrized(module):
        return "call torch.nn.utils.parametrize.remove_parametrizations(module, name) for each of its weights first"
    if "quantized" in type(module).__module__:
        return "convert the module from which it was quantised"
    if isinstance(module, nn.RNNBase):
        return "its forward may differ: load its state_dict into a module of torch.nn, and convert that one"
    return "edgernn converts no other class"


def suffixes(module: nn.RNNBase) -> list[str]:
    """List the ends of a torch module's parameter names: "_l0", "_l0_reverse" (if bidirectional), "_l1" and so on."""
    directions = ("", "_reverse") if module.bidirectional else ("",)
    return [f"_l{layer}{direction}" for layer, direction in product(range(module.num_layers), directions)]
