# SPDX-License-Identifier: Apache-2.0
"""Batches of sequences of unequal lengths in torch: x (T, B, I) is padded at the end; layers leave the padding out."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.dropout import Runs
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer, Trace, joined

# node of ONNX that stands for the states that no graph has after sequences of unequal lengths
UNKNOWN_STATES = "ai.edgernn::UnknownStates"


def checked_lengths(lengths: Tensor | Sequence[int], x: Tensor) -> Tensor:
    """Return the lengths (B,) as integers on the device of x (T, B, ...); UsageError unless they are from 1 to T."""
    counts = torch.as_tensor(lengths, device=x.device)
    if counts.shape != x.shape[1:2] or counts.is_floating_point() or counts.dtype == torch.bool:
        got = f"{counts.dtype} {tuple(counts.shape)}"
        raise UsageError(f"lengths: expected whole numbers ({x.shape[1]},), got {got}; pass one for each sequence")
    if not torch.compiler.is_compiling():
        least, most = (int(n) for n in counts.aminmax())
        if least < 1 or most > len(x):
            raise UsageError(f"lengths: expected 1 to {len(x)}, got {least} to {most}; pad x, or pass its lengths")
    return counts.long()


def present_steps(lengths: Tensor, x: Tensor) -> Tensor:
    """Return the mask (T, B) of the steps of x (T, B, ...) within the lengths (B,)."""
    return torch.arange(x.shape[0], device=x.device).unsqueeze(1) < lengths


def without_padding(x: Tensor, lengths: Tensor) -> Tensor:
    """Return x (T, B, ...) with 0 beyond the lengths (B,): a NaN there would reach the gradients of weights."""
    present = present_steps(lengths, x)
    return torch.where(present.view(*present.shape, *[1] * (x.ndim - 2)), x, 0)


def reversed_time(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse the time of sequences (T, B, ...), within their lengths if given."""
    if lengths is None:
        return x.flip(0)
    t = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    places = torch.where(t < lengths, lengths - 1 - t, t)
    return x.gather(0, places.view(*places.shape, *[1] * (x.ndim - 2)).expand_as(x))


def last_steps(y: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the last step of each of the sequences y (T, B, N), as (B, N)."""
    if lengths is None:
        return y[-1]
    return y.gather(0, (lengths - 1).view(1, -1, 1).expand(1, *y.shape[1:])).squeeze(0)


def check_lengths(layer: RecurrentLayer) -> None:
    """Raise UsageError if the steps of a layer's cell depend on the length of the whole sequence."""
    if not layer.cell.streaming:
        raise UsageError(
            "lengths: expected a cell that does not depend on the length of the whole sequence, got "
            f"{layer.cell.name}; set its option length, or use another cell"
        )


def run_layer(
    layer: RecurrentLayer,
    run: Runs,
    x: Tensor,
    state: State,
    lengths: Tensor | None,
    weights: Tensor | None = None,
    *,
    reverse: bool = False,
    needs_state: bool = True,
) -> tuple[Tensor, State, Trace]:
    """Run a layer over sequences, of these lengths if given.

    Args:
        layer: The layer.
        run: The layer, or a function that runs it with other weights.
        x: Input (T, B, I), finite in the padding, too.
        state: State before the first step.
        lengths: Number of steps of each sequence (B,); None if all have T.
        weights: Factors of the steps in the penalty on updates (T, B), in the order in which the layer reads them.
            Default: 1.
        reverse: Read each sequence backwards.
        needs_state: Return the whole last state, which takes one run for each different length if the layer has other
            states than h. Otherwise one run over the padded batch is enough.

    Returns:
        The output (T, B, H), which is 0 beyond a length; the state after the last step of each sequence, or its first
        tensor alone without `needs_state`; and the record of the steps within the lengths.

    Raises:
        UsageError: A cell whose steps depend on the length of the sequence. In a compiled graph, a layer with other
            states than h; a graph of ONNX may not read them.
    """
    if reverse:
        y, last, trace = run_layer(
            layer, run, reversed_time(x, lengths), state, lengths, weights, needs_state=needs_state
        )
        return reversed_time(y, lengths), last, trace
    if lengths is None:
        layer.step_weights = weights
        return run(x, state)
    check_lengths(layer)
    more = state[1:] if needs_state else ()
    if more and not torch.compiler.is_compiling():
        return _run_parts(layer, run, x, state, lengths, weights)
    if more and not torch.onnx.is_in_onnx_export():
        names = ", ".join(layer.states)
        raise UsageError(
            f"lengths: expected a layer with the state h alone in a traced or compiled graph, got {names}; "
            "leave out lengths, or use a cell such as gru"
        )
    present = present_steps(lengths, x)
    if not layer.rule.is_dense():
        layer.step_weights = present.to(x) if weights is None else present * weights
    y, _, trace = run(x, state)
    layer.step_weights = None
    y = torch.where(present.unsqueeze(-1), y, 0)
    unknown = _unknown_states(more, lengths) if more else ()
    return y, (last_steps(y, lengths), *unknown), trace if torch.compiler.is_compiling() else trace.only(present)


def _unknown_states(states: State, lengths: Tensor) -> State:
    """Return values of states at the ends of sequences that a graph of ONNX cannot have, and may not read."""
    dtypes, shapes = [torch.float32 for _ in states], [s.shape for s in states]
    return tuple(
        torch.onnx.ops.symbolic_multi_out(UNKNOWN_STATES, (*states, lengths), dtypes=dtypes, shapes=shapes, version=1)
    )


def _run_parts(
    layer: RecurrentLayer, run: Runs, x: Tensor, state: State, lengths: Tensor, weights: Tensor | None
) -> tuple[Tensor, State, Trace]:
    """Run a layer from one length to the next, each time on the sequences that are as long."""
    begin, states = 0, list(state)
    outputs, traces = [], []
    for end in sorted(set(lengths.tolist())):
        rows = (lengths >= end).nonzero().squeeze(1)
        layer.step_weights = None if weights is None else weights[begin:end, rows]
        y, last, trace = run(x[begin:end, rows], tuple(s[rows] for s in states))
        states = [s.index_copy(0, rows, new) for s, new in zip(states, last, strict=True)]
        outputs.append(y.new_zeros(y.shape[0], x.shape[1], y.shape[2]).index_copy(1, rows, y))
        budget = trace.budget * (len(rows) / x.shape[1])
        traces.append(replace(trace.only(y.new_ones(y.shape[:2], dtype=torch.bool)), budget=budget))
        begin = end
    layer.step_weights = None
    outputs.append(outputs[0].new_zeros(x.shape[0] - begin, *outputs[0].shape[1:]))
    return torch.cat(outputs), tuple(states), joined(traces)
