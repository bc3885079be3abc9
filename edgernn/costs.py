# SPDX-License-Identifier: Apache-2.0
"""Cost of a model in parameters and operations, computed from its sizes.

macs            multiply-adds of one step of the recurrent layers with nothing skipped: those of all matrix-vector
                products of the cells, of their update rules and of the imputer. The product of a state with a weight
                vector (H,) of a rule counts as H. Element-wise recurrences of cells (sru, irc-sru, lru, mingru,
                minlstm) count nothing
macs_executed   multiply-adds that remain when the rows of neurons that are not updated are skipped
flops_paper     operations as the SA-RNN paper counts them. The product with a row of n weights costs n multiplications
                and n - 1 additions, where a row holds all weights of a neuron's gate, for input and state together. The
                sum over all rows is multiplied by the share of neurons that are updated, or under the rule delta by the
                share of the values of h that are sent. In a model of several layers, this is the mean share over all
                layers. The rows of the update gate under the rule topk, which all neurons compute, count in full. The
                cost of the update rule and of the imputer is added. Biases and point-wise operations are free
frontend_macs   multiply-adds of a step of the audio front end, if the model has one, with a real FFT (`LogMel.macs`);
                the other figures do not include them
block_macs      multiply-adds of a step of the linear maps of the residual blocks, if the model has them
                (`ResidualBlock.macs`); the other figures do not include them
"""

from dataclasses import dataclass

from edgernn.extras import needed_by

with needed_by("edgernn.costs"):
    from edgernn.cells.base import Cell
    from edgernn.imputers import Imputer
    from edgernn.model import RecurrentModel, SequenceModel
    from edgernn.rules.base import UpdateRule
    from edgernn.rules.decision import Rates


@dataclass(frozen=True)
class Cost:
    """Cost of one time step of one sequence: parameters, bytes and operations.

    Attributes:
        parameters: Number of learned weights, without the zeros of block-sparse weights.
        weight_bytes: Bytes of these weights in an exported file, in the type that the model is trained for (setting
            weights). The cost of a layer alone counts them as float32.
        macs: Multiply-adds of the recurrent layers with nothing skipped.
        macs_executed: Multiply-adds that remain if only a share `update_rate` (see `cost`) of the neurons is updated.
        flops_paper: Multiplications plus additions as the SA-RNN paper counts them, times `update_rate`. The product
            with a row of n weights counts as 2n - 1.
        frontend_macs: Multiply-adds of the audio front end, which `macs` and `macs_executed` do not include.
        block_macs: Multiply-adds of the residual blocks around the layers, which the other figures do not include.
    """

    parameters: int
    weight_bytes: int
    macs: int
    macs_executed: float
    flops_paper: float
    frontend_macs: int = 0
    block_macs: int = 0


def cost(
    cell: Cell,
    rule: UpdateRule,
    update_rate: float = 1.0,
    busy_rate: float | None = None,
    imputer: Imputer | None = None,
    *,
    keeps_sums: bool = True,
) -> Cost:
    """Count the parameters, multiply-adds and operations of one step of a layer, for one sequence.

    Args:
        cell: The cell.
        rule: The update rule, which selects the neurons that change.
        update_rate: Mean share of the neurons that change at a step, or under the rule delta of the values of h that
            are sent, from 0 to 1.
        busy_rate: Share of the steps at which at least one neuron changes, from 0 to 1. At all other steps,
            products whose results several neurons share are skipped, too. Default: 1, or 0 if update_rate is 0.
        imputer: The layer that fills in missing values, if any.
        keeps_sums: False if the weights are stored as bfloat16 or int8, see `UpdateRule.executed_macs`.

    Returns:
        The cost.
    """
    mid, update = cell.macs()
    rows = sum(cell.mid_size if g.mid else cell.hidden_size for g in cell.gates if g.x or g.m or g.mid)
    # a gate of the states alone shares its rows with a gate of x alone, such as the candidate of gru, if there is one
    input_gates = sum(g.x and not (g.h or g.c or g.m or g.mid) for g in cell.gates)
    state_gates = sum(not (g.x or g.m or g.mid) for g in cell.gates)
    rows += cell.hidden_size * max(0, state_gates - input_gates) + (cell.recurrent.rank or 0)
    gate = rule.decision_flops(cell)
    modules = [module for module in (cell, rule, imputer) if module is not None]
    parameters = sum(p.numel() for module in modules for p in module.parameters()) - cell.held_zeros()
    imputer_macs = 0 if imputer is None else imputer.macs()
    rates = Rates(update_rate, busy_rate, keeps_sums=keeps_sums and imputer is None)
    return Cost(
        parameters=parameters,
        weight_bytes=4 * parameters,
        macs=mid + update + rule.macs() + imputer_macs,
        macs_executed=rule.executed_macs(cell, rates) + imputer_macs,
        flops_paper=update_rate * (2 * (mid + update) - rows - gate)
        + gate
        + rule.flops_paper()
        + (0 if imputer is None else imputer.flops_paper()),
    )


def model_cost(model: RecurrentModel, update_rate: float = 1.0) -> Cost:
    """Compute the cost of a model as the sum over its recurrent layers.

    `parameters` and `weight_bytes` also count the output layer (head), the embedding, the audio front end and the
    residual blocks. The multiply-adds of the front end are in `frontend_macs`, and those of the blocks in `block_macs`;
    those of the head are not counted.

    Args:
        model: The model.
        update_rate: Mean share of the neurons of all layers that change at a step, from 0 to 1. It multiplies the cost
            of each layer; the layers' own shares are not counted.

    Returns:
        The cost of one step.
    """
    keeps_sums = model.rounding.weights == "float32"
    parts = [
        cost(layer.cell, layer.rule, update_rate, None, layer.imputer, keeps_sums=keeps_sums)
        for layer in model.recurrent_layers()
    ]
    zeros = sum(layer.cell.held_zeros() for layer in model.recurrent_layers())
    parameters = sum(p.numel() for p in model.parameters()) - zeros
    frontend = getattr(model, "frontend", None)
    blocks = model.residual_blocks() if isinstance(model, SequenceModel) else []
    return Cost(
        parameters=parameters,
        weight_bytes=4 * parameters - model.rounding.bytes_saved(model),
        macs=sum(p.macs for p in parts),
        macs_executed=sum(p.macs_executed for p in parts),
        flops_paper=sum(p.flops_paper for p in parts),
        frontend_macs=0 if frontend is None else frontend.macs(),
        block_macs=sum(block.macs() for block in blocks),
    )


def executed_macs(model: RecurrentModel) -> float:
    """Count the multiply-adds of a model's recurrent layers in its last forward pass: the mean per step of a sequence.

    They are counted from the decisions of each layer at each step, and not from a mean share of updated neurons.
    """
    layers, keeps_sums = model.recurrent_layers(), model.rounding.weights == "float32"
    return sum(layer.executed_macs(trace, keeps_sums) for layer, trace in zip(layers, model.traces, strict=True))
