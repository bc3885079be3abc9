# SPDX-License-Identifier: Apache-2.0
"""Convolutions as steps: rows of a matrix product that overlap in a padded buffer whose channels lie together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.step_graph.builder import Builder, Tensor
from edgernn.runtime.step_graph.operators import Node, padded, reshaped, sliced
from edgernn.runtime.step_graph.steps import Depthwise, Fft, Linear, Move, Operand
from edgernn.runtime.step_graph.views import Pieces, View, collapsed, dense

Array = NDArray[Any]
# largest difference of the rows of a Fourier transform from a kernel, as a share of the largest number of it
_FOURIER = 1e-6


@dataclass(frozen=True)
class Taps:
    """Elements that a convolution reads along an axis: output j reads j * stride + start + k * step, k < count.

    Attributes:
        outputs: Number of outputs.
        stride: Distance of what two neighbouring outputs read.
        start: First element that the first output reads.
        step: Distance of the elements that an output reads.
        count: Number of elements that an output reads.
    """

    outputs: int
    stride: int
    start: int
    step: int
    count: int


def conv(builder: Builder, node: Node) -> Tensor:
    """Return the result of Conv over one or two axes."""
    x, W, b = _arguments(node, transposed=False)
    kernel = W.shape[2:]
    strides, dilations = _option(node, "strides", kernel, 1), _option(node, "dilations", kernel, 1)
    groups = node.attribute("group", 1)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = _pads(node, x.shape[2:], spans, strides)
    lengths = [n + p + q - s for n, (p, q), s in zip(x.shape[2:], pads, spans, strict=True)]
    if min(lengths) < 0:
        raise node.refuse(f"at least {max(spans)} elements", f"{min(x.shape[2:])}", "fix the shapes with --shape")
    taps = [Taps(n // s + 1, s, 0, d, k) for n, s, d, k in zip(lengths, strides, dilations, kernel, strict=True)]
    result = dense(
        builder.arena(len(W) * math.prod(t.outputs for t in taps)),
        [1, len(W), *(t.outputs for t in taps)],
        [0, *range(2, 2 + len(taps)), 1],
    )
    if _is_frames(W, groups, taps) and _fourier(builder, x, pads[-1], W, b, taps[-1], result):
        return result
    for axis, (t, (before, _)) in enumerate(zip(taps, pads, strict=True)):
        taps[axis], chosen, pads[axis] = _reaching(replace(t, start=-before), x.shape[2 + axis])
        W = np.take(W, chosen, 2 + axis)
    _correlate(builder, _padded(builder, x, pads, groups, taps), taps, W, b, groups, result)
    return result


def _reaching(taps: Taps, length: int) -> tuple[Taps, range, tuple[int, int]]:
    """Return the taps without those at the ends that read only padding, their range, and the padding they need."""

    def reaches(tap: int) -> bool:
        place = taps.start + tap * taps.step
        place += taps.stride * max(0, -(place // taps.stride))
        return place < length and place <= taps.start + tap * taps.step + taps.stride * (taps.outputs - 1)

    reaching = list(filter(reaches, range(taps.count))) or [0]
    chosen = range(reaching[0], reaching[-1] + 1)
    start = taps.start + chosen[0] * taps.step
    end = start + (len(chosen) - 1) * taps.step + (taps.outputs - 1) * taps.stride + 1
    kept = replace(taps, start=max(start, 0), count=len(chosen))
    return kept, chosen, (max(-start, 0), max(end - length, 0))


def conv_transpose(builder: Builder, node: Node) -> Tensor:
    """Return the result of ConvTranspose over one or two axes: a convolution for each phase of the strides."""
    x, W, b = _arguments(node, transposed=True)
    kernel = W.shape[2:]
    strides, dilations = _option(node, "strides", kernel, 1), _option(node, "dilations", kernel, 1)
    groups, extra = node.attribute("group", 1), _option(node, "output_padding", kernel, 0)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    full = [(n - 1) * s + span + e for n, s, span, e in zip(x.shape[2:], strides, spans, extra, strict=True)]
    wanted = node.attribute("output_shape")
    if wanted is not None or node.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise node.refuse("pads as numbers", "auto_pad or output_shape", "export the model with fixed pads")
    pads = node.attribute("pads") or [0] * (2 * len(kernel))
    pairs = list(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))
    lengths = [f - p - q for f, (p, q) in zip(full, pairs, strict=True)]
    phases = [
        [_phase(phase, n, s, d, k, p) for phase in range(min(s, n))]
        for n, s, d, k, (p, _) in zip(lengths, strides, dilations, kernel, pairs, strict=True)
    ]
    reach = [[t.start for t, _ in axis if t.count] for axis in phases]
    ends = [[t.start + (t.count - 1) * t.step + t.outputs - 1 for t, _ in axis if t.count] for axis in phases]
    around = [
        (max(0, -min(first, default=0)), max(0, max(last, default=0) - n + 1))
        for first, last, n in zip(reach, ends, x.shape[2:], strict=True)
    ]
    per_group = W.shape[1]
    C, O = W.shape[0], per_group * groups
    # (C, O / G, …) to (O, C / G, …)
    turned = W.reshape(groups, C // groups, per_group, *kernel).swapaxes(1, 2).reshape(O, C // groups, *kernel)
    source = _padded(builder, x, around, groups, None)
    result = dense(builder.arena(O * math.prod(lengths)), [1, O, *lengths], [0, *range(2, 2 + len(kernel)), 1])
    for index in np.ndindex(*map(len, phases)):
        parts = [axis[k] for axis, k in zip(phases, index, strict=True)]
        taps = [replace(t, start=t.start + before) for (t, _), (before, _) in zip(parts, around, strict=True)]
        weights = turned
        target: View = result
        for axis, ((t, chosen), k) in enumerate(zip(parts, index, strict=True)):
            weights = np.take(weights, chosen, 2 + axis)
            part = target.sliced(2 + axis, k, t.outputs, strides[axis])
            assert part is not None
            target = part
        if 0 in weights.shape:
            numbers = np.zeros(O) if b is None else b
            builder.store(np.broadcast_to(numbers.reshape(1, O, *(1 for _ in kernel)), target.shape), target)
        else:
            _correlate(builder, source, taps, weights, b, groups, target)
    return result


def _phase(phase: int, length: int, stride: int, dilation: int, kernel: int, before: int) -> tuple[Taps, list[int]]:
    """Return what each stride-th output of ConvTranspose reads, from output `phase` on, and with which weights."""
    pairs = sorted(
        ((phase + before - k * dilation) // stride, k)
        for k in range(kernel)
        if (phase + before - k * dilation) % stride == 0
    )
    outputs = -(-(length - phase) // stride)
    if not pairs:
        return Taps(outputs, 1, 0, 1, 0), []
    step = pairs[1][0] - pairs[0][0] if len(pairs) > 1 else 1
    return Taps(outputs, 1, pairs[0][0], step, len(pairs)), [k for _, k in pairs]


def _arguments(node: Node, *, transposed: bool) -> tuple[Tensor, Array, Array | None]:
    x, W, b = node.tensor(0), node.constant(1), node.constant(2)
    assert W is not None
    if W.ndim not in (3, 4):
        raise node.refuse("one or two axes besides batch and channels", str(W.ndim - 2), "use Conv1d or Conv2d")
    kernel = node.attribute("kernel_shape")
    if kernel is not None and tuple(kernel) != W.shape[2:]:
        raise node.refuse(f"the kernel_shape {W.shape[2:]} of the weights", str(kernel), "export the model again")
    if x.shape[0] != 1:
        raise node.refuse("a batch of 1", str(x.shape[0]), "fix the batch with --shape")
    channels = W.shape[0] if transposed else W.shape[1] * node.attribute("group", 1)
    if x.shape[1] != channels:
        raise node.refuse(f"{channels} channels", str(x.shape[1]), "export the model again")
    return x, np.asarray(W, np.float64), None if b is None else np.asarray(b, np.float64)


def _option(node: Node, name: str, kernel: Sequence[int], default: int) -> list[int]:
    return list(node.attribute(name) or [default] * len(kernel))


def _pads(node: Node, lengths: Sequence[int], spans: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    mode = node.attribute("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID"):
        pads = (node.attribute("pads") if mode == "NOTSET" else None) or [0] * (2 * len(spans))
        return list(zip(pads[: len(spans)], pads[len(spans) :], strict=True))
    result = []
    for n, span, s in zip(lengths, spans, strides, strict=True):
        total = max(0, (-(-n // s) - 1) * s + span - n)
        small, large = total // 2, total - total // 2
        result.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return result


def _padded(
    builder: Builder, x: Tensor, pads: Sequence[tuple[int, int]], groups: int, taps: Sequence[Taps] | None
) -> View:
    """Return x (1, C, …) with zeros around it as a view (1, G, C / G, …) whose channels of a group lie together."""
    for axis, (before, after) in enumerate(pads):
        x = padded(builder, x, 2 + axis, before, after)
    C, lengths = x.shape[1], x.shape[2:]
    shape = [1, groups, C // groups, *lengths]
    depthwise = groups == C
    if isinstance(x, View):
        # a part of a buffer can be read where it is
        view = reshaped(builder, x, shape) if not depthwise else x.reshaped([1, 1, C, *lengths])
        if isinstance(view, View) and _fits(view, taps, depthwise):
            return view
    order = [0, 1, *range(3, len(shape)), 2]
    if depthwise:
        shape = [1, 1, C, *lengths]
    size = math.prod(shape)
    target = dense(builder.arena(size, padded=any(map(any, pads))), shape, order)
    # a box of channels may lie across groups
    count = shape[1] if isinstance(x, Pieces) else 1
    for k in range(count):
        part = target.box((0, k, *(0 for _ in shape[2:])), (1, shape[1] // count, *shape[2:]))
        merged = replace(part, axes=((), (*part.axes[1], *part.axes[2]), *part.axes[3:]))
        width = C // count
        builder.store(sliced(builder, x, 1, k * width, width), merged, zeros=False)
    return target


def _fits(view: View, taps: Sequence[Taps] | None, depthwise: bool) -> bool:
    """Return True if the channels of a view (1, G, C / G, …) lie together, and taps behind each other."""
    if any(len(axis) > 1 for axis in view.axes) or (view.axes[2] and view.axes[2][0][1] != 1):
        return False
    if taps is None or depthwise or all(t.count == 1 for t in taps):
        return True
    last = view.axes[-1]
    return not last or last[0][1] == view.shape[2]


def _correlate(
    builder: Builder, source: View, taps: Sequence[Taps], W: Array, b: Array | None, groups: int, target: View
) -> None:
    """Add the steps of a convolution.

    Args:
        builder: Takes the steps.
        source: x (1, G, C / G, …), or (1, 1, C, …) if each channel has its own kernel, padded.
        taps: What an output reads along each axis.
        W: Weights (O, C / G, …).
        b: Biases (O,), or None.
        groups: G.
        target: Where the result (1, O, …) goes; its channels lie together.
    """
    steps = [axis[0][1] if axis else 0 for axis in source.axes]
    places = [axis[0][1] if axis else 0 for axis in target.axes]
    if len(taps) == 1:
        # one axis is the second one of two
        taps, W = [Taps(1, 1, 0, 1, 1), taps[0]], W[:, :, None]
        steps, places = [*steps[:3], 0, steps[3]], [*places[:2], 0, places[2]]
    O, width = W.shape[:2]
    counts = [t.outputs for t in taps]
    start = source.offset + sum(t.start * s for t, s in zip(taps, steps[3:], strict=True))
    reads = [t.stride * s for t, s in zip(taps, steps[3:], strict=True)]
    inner = [t.step * s for t, s in zip(taps, steps[3:], strict=True)]
    kernel = [t.count for t in taps]
    if groups == O and width == 1 and source.shape[1] == 1:
        counts, strides = collapsed(counts, [reads, places[2:]])
        offsets = [i * inner[0] + j * inner[1] for i in range(kernel[0]) for j in range(kernel[1])]
        weights = W.reshape(O, -1).T
        operands = Operand(source.value, start, strides[0]), Operand(target.value, target.offset, strides[1])
        builder.add(Depthwise(counts, *operands, weights, b, offsets))
        return
    if source.shape[1] == 1 and groups > 1:
        # several kernels for each channel of its own
        steps[1] = 1
    share = O // groups
    for group in range(groups):
        rows = slice(group * share, (group + 1) * share)
        weights = W[rows].transpose(0, 2, 3, 1).reshape(share, -1)
        offset = start + group * steps[1]
        place = Operand(target.value, target.offset + group * share * (places[1] or 1), places[2:])
        bias = None if b is None else b[rows]
        consecutive = kernel == [1, 1] or (kernel[0] == 1 and inner[1] == width)
        operand = Operand(source.value, offset, reads)
        if not consecutive:
            # the elements that each output reads, side by side
            size = weights.shape[1]
            columns = builder.arena(math.prod(counts) * size)
            loops = [*counts, *kernel, width]
            writes = [axis[0][1] if axis else 0 for axis in dense(columns, loops).axes]
            copies, both = collapsed(loops, [[*reads, *inner, 1], writes])
            builder.add(Move(copies, Operand(source.value, offset, both[0]), Operand(columns, 0, both[1])))
            operand = Operand(columns, 0, [counts[1] * size, size])
        turns, both = collapsed(counts, [operand.strides, place.strides])
        builder.add(
            Linear(
                turns,
                Operand(operand.value, operand.offset, both[0]),
                Operand(place.value, place.offset, both[1]),
                weights,
                bias,
            )
        )


def dft(builder: Builder, node: Node) -> Tensor:
    """Return the result of DFT (…, N / 2 + 1, 2) of real numbers (…, N, 1)."""
    x = builder.rows(node.tensor(0))
    # the default is axis 1 in older operator sets, and the one before the last in newer ones: the same in rank 3
    axis, N = node.attribute("axis", 1), x.shape[-2]
    axis_input = node.constant(2)
    if axis_input is not None:
        axis = int(axis_input)
    is_real = x.shape[-1] == 1 and node.attribute("onesided", 0) == 1 and not node.attribute("inverse", 0)
    length = node.constant(1)
    if not is_real or node.axis(axis, len(x.shape)) != len(x.shape) - 2 or N & (N - 1) or N < 2:
        raise node.refuse(
            "one-sided transforms of real numbers along the axis before the last one, whose length is a power of two",
            f"another one of the shape {x.shape}",
            "write it as a convolution",
        )
    if length is not None and int(length) != N:
        raise node.refuse(f"a transform of {N} numbers", str(int(length)), "pad the input with zeros")
    lead = x.shape[:-2]
    target, frequencies = builder.arena(math.prod(lead) * (N + 2)), N // 2 + 1
    builder.add(Fft(math.prod(lead), Operand(x.value, x.offset, [N]), Operand(target, 0, [N + 2]), N, None))
    parts = dense(target, [*lead, 2, frequencies])
    return parts.transposed([*range(len(lead)), len(lead) + 1, len(lead)])


def _is_frames(W: Array, groups: int, taps: Sequence[Taps]) -> bool:
    """Return True if a kernel has the shape of a Fourier transform of frames of a power of two."""
    N = W.shape[-1]
    return (
        groups == 1
        and math.prod(W.shape[1:]) == N
        and N >= 16
        and N & (N - 1) == 0
        and len(W) == N + 2
        and taps[-1].step == 1
    )


def _fourier(
    builder: Builder, x: Tensor, pads: tuple[int, int], W: Array, b: Array | None, taps: Taps, result: View
) -> bool:
    """Compute a convolution by fast Fourier transforms, and return True, if its kernel is one of windowed frames."""
    N = W.shape[-1]
    kernel = W.reshape(N + 2, N)
    window = kernel[0]
    angles = 2 * np.pi * np.outer(np.arange(N // 2 + 1), np.arange(N)) / N
    expected = np.concatenate([np.cos(angles), -np.sin(angles)]) * window
    if (b is not None and b.any()) or np.abs(kernel - expected).max() > _FOURIER * np.abs(kernel).max():
        return False
    x = padded(builder, x, len(x.shape) - 1, *pads)
    view = builder.view(x)
    if len(view.axes[-1]) != 1 or view.axes[-1][0][1] != 1:
        view = builder.copy(view, range(len(view.shape)))
    source = Operand(view.value, view.offset, [taps.stride])
    builder.add(Fft(taps.outputs, source, Operand(result.value, 0, [N + 2]), N, window))
    return True
