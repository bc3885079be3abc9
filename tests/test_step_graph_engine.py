# SPDX-License-Identifier: Apache-2.0
"""Step graphs in packed models: every step of the engine against NumPy in float64, and damaged files."""

import struct
import zlib

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided

from edgernn.cells import CELLS
from edgernn.errors import EdgernnError
from edgernn.export.layer_functions import layer_weights
from edgernn.layer import RecurrentLayer
from edgernn.program import OPS
from edgernn.rules import RULES
from edgernn.runtime.library import SCHEMA
from edgernn.runtime.packed_format import HEADER, LAYER, TENSOR
from edgernn.runtime.step_graph.stored import stored
from edgernn.runtime.stepper import Stepper, memory
from edgernn.runtime.weights import PACKED_MAGIC, Weight
from edgernn.weight_types import WEIGHT_TYPES
from tests.tolerances import FLOAT32

ARENA, STATE, CONSTANT, INPUT, OUTPUT = range(5)
MOVE, LINEAR, DEPTHWISE, RECURRENT, PROGRAM, REDUCE, GATHER, FOURIER, BRANCH = range(9)
VERSION, STEP_GRAPH = 6, 16


class Graph:
    """Writes a step graph that reads x (B, inputs) and writes y (B, outputs)."""

    def __init__(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs
        self.tensors, self.values, self.steps, self.layers = [], [], [], []
        self.arena = 0
        self.x, self.y = self.value(INPUT, inputs), self.value(OUTPUT, outputs)

    def value(self, kind, size, offset=0, tensor=0):
        self.values.append((kind, offset, size, tensor))
        return len(self.values) - 1

    def buffer(self, size):
        offset = self.arena
        self.arena += -(-size // 16) * 16
        return self.value(ARENA, size, offset)

    def tensor(self, array):
        self.tensors.append(array if isinstance(array, Weight) else Weight(np.asarray(array, np.float32)))
        return len(self.tensors) - 1

    def constant(self, array):
        return self.value(CONSTANT, np.size(array), self.tensor(array))

    def state(self, start):
        return self.value(STATE, len(start), 0, self.tensor(start))

    def step(self, code, *arguments):
        self.steps += [code, len(arguments), *map(int, arguments)]

    def content(self):
        start = HEADER.size + 32
        records = start + LAYER.size * len(self.layers) + TENSOR.size * len(self.tensors)
        body = b"".join(struct.pack("<4I", *value) for value in self.values)
        body += struct.pack(f"<{len(self.steps)}i", *self.steps)
        at, tensors, data = records + len(body), b"", b""
        for weight in self.tensors:
            array, places = weight.values, []
            for part in (array, weight.scales):
                data += bytes(-(at + len(data)) % 64)
                places.append(0 if part is None else at + len(data))
                data += b"" if part is None else part.tobytes()
            tensors += TENSOR.pack("fui".index(array.dtype.kind), array.ndim, *(*array.shape, 1)[:2], *places)
        layers = b"".join(LAYER.pack(name.encode(), count, 0, 1) for name, count in self.layers)
        states = sum(value[0] == STATE for value in self.values)
        graph = struct.pack("<8I", len(self.values), states, 0, len(self.steps), self.arena, 0, 0, 0)
        rest = graph + layers + tensors + body + data
        sizes = STEP_GRAPH, self.inputs, 0, self.outputs, len(self.layers), len(self.tensors), 0, 0, 0
        return HEADER.pack(PACKED_MAGIC, VERSION, SCHEMA, HEADER.size + len(rest), zlib.crc32(rest), *sizes) + rest


def run(content, x):
    """Return y (T, B, O) of x (T, B, I)."""
    stepper = Stepper(content, x.shape[1])
    outputs = []
    for x_t in x:
        stepper.x[...] = x_t
        assert stepper.step(), stepper.refusal()
        outputs.append(stepper.y.copy())
    return np.stack(outputs)


def assert_computes(graph, function, steps=1, atol=FLOAT32):
    """Compare with function(x (I,) in float64) for several batches, whose streams must have the bits of one alone."""
    x = np.random.default_rng(7).standard_normal((steps, 64, graph.inputs), np.float32)
    content = graph.content()
    alone = run(content, x[:, :1])
    np.testing.assert_allclose(alone[:, 0], [function(x_t.astype(float)) for x_t in x[:, 0]], rtol=0, atol=atol)
    for batch in (3, 11, 64):
        y = run(content, x[:, :batch])
        np.testing.assert_array_equal(y[:, :1], alone)
        last = run(content, x[:, batch - 1 : batch])
        np.testing.assert_array_equal(y[:, -1:], last)


def view(array, offset, shape, strides):
    return as_strided(array.reshape(-1)[offset:], shape, [array.itemsize * stride for stride in strides])


@pytest.mark.parametrize(
    ("inputs", "offset", "loops", "outputs"),
    [
        (12, 0, [(12, 1, 1)], 12),
        (12, 0, [(3, 1, 4), (4, 3, 1)], 12),
        (12, 11, [(12, -1, 1)], 12),
        (5, 2, [(4, 0, 3), (3, 1, 1)], 12),
        (24, 0, [(2, 12, 12), (3, 1, 4), (4, 3, 1)], 24),
        (64, 1, [(2, 32, 1), (2, 16, 2), (2, 8, 4), (2, 4, 8), (2, 2, 16), (1, 5, 1)], 32),
    ],
)
def test_a_move_copies_along_strides(inputs, offset, loops, outputs):
    graph = Graph(inputs, outputs)
    graph.step(MOVE, graph.x, offset, graph.y, 0, len(loops), *sum(loops, ()))

    def move(x):
        y = np.zeros(outputs)
        for index in np.ndindex(*[count for count, _, _ in loops]):
            at = [sum(i * loop[k] for i, loop in zip(index, loops, strict=True)) for k in (1, 2)]
            y[at[1]] = x[offset + at[0]]
        return y

    assert_computes(graph, move, atol=0)


def test_a_move_fills_from_one_number():
    graph = Graph(1, 7)
    graph.step(MOVE, graph.constant([2.5]), 0, graph.y, 0, 1, 7, 0, 1)
    assert_computes(graph, lambda x: np.full(7, 2.5), atol=0)


@pytest.mark.parametrize("weights", WEIGHT_TYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 8, 21, 64])
@pytest.mark.parametrize("rows", [(1, 1), (5, 1), (2, 3), (3, 7)])
def test_a_linear_map_of_overlapping_rows_is_a_convolution(rows, outputs, bias, weights):
    """A padded convolution over channels-last data, of two blocks of frames."""
    depth, stride, (blocks, frames) = 13, 4, rows
    length = depth + (frames - 1) * stride
    random = np.random.default_rng(1)
    w, b = stored(random.standard_normal((outputs, depth)) / 4, weights), random.standard_normal(outputs) * bias
    graph = Graph(blocks * length, blocks * frames * outputs)
    buffer = graph.buffer(blocks * frames * outputs + 3)
    loops = blocks, length, frames * outputs, frames, stride, outputs
    graph.step(LINEAR, graph.x, 0, buffer, 3, graph.tensor(w), graph.tensor(b) if bias else -1, *loops)
    graph.step(MOVE, buffer, 3, graph.y, 0, 1, blocks * frames * outputs, 1, 1)
    assert_computes(
        graph,
        lambda x: (view(x, 0, (blocks, frames, depth), (length, stride, 1)) @ w.floats.T + b).ravel(),
        # int8 weights multiply inputs of 16 bits
        atol=2e-4 if weights == "int8" else FLOAT32,
    )


@pytest.mark.parametrize("outputs", [1, 8, 21, 64])
@pytest.mark.parametrize(("begin", "end"), [(3, 12), (5, 9), (0, 15), (3, 3), (-2, 99)])
def test_margins_are_not_multiplied(begin, end, outputs):
    """Margins that are not zero, as a file says, show that a convolution of several streams leaves them out."""
    channels, taps, frames = 3, 3, 3
    length = (frames + taps - 1) * channels
    random = np.random.default_rng(3)
    w = random.standard_normal((outputs, taps * channels)).astype(np.float32)
    graph = Graph(length, frames * outputs)
    loops = 1, 0, 0, frames, channels, outputs
    graph.step(LINEAR, graph.x, 0, graph.y, 0, graph.tensor(w), -1, *loops, begin, end)
    x = random.standard_normal((1, 5, length)).astype(np.float32)
    places = np.arange(length)
    between = np.where((places >= begin) & (places < end), x[0], 0)
    rows = [between[:, i * channels : (i + taps) * channels].astype(float) @ w.T for i in range(frames)]
    np.testing.assert_allclose(run(graph.content(), x)[0], np.hstack(rows), rtol=0, atol=FLOAT32)


@pytest.mark.parametrize("columns", [1, 5, 16, 33])
def test_a_depthwise_convolution_has_taps_for_each_column(columns):
    rows, taps = 4, [0, columns, 3 * columns]
    random = np.random.default_rng(2)
    w, b = random.standard_normal((3, columns)).astype(np.float32), random.standard_normal(columns).astype(np.float32)
    graph = Graph((rows + 3) * columns, rows * columns)
    loops = 2, 2 * columns, 2 * columns, 2, columns, columns
    graph.step(DEPTHWISE, graph.x, 0, graph.y, 0, graph.tensor(w), graph.tensor(b), *loops, 3, *taps)

    def convolve(x):
        x = x.reshape(-1, columns)
        return sum((w[k] * x[k_row : k_row + rows] for k, k_row in enumerate((0, 1, 3))), b).ravel()

    assert_computes(graph, convolve)


def assert_program(shape, operands, instructions, result, function):
    """Run a program on x of a shape (rows1, rows2, columns); operands are arrays that NumPy broadcasts, or x."""
    size = int(np.prod(shape))
    graph = Graph(size, size)
    words = []
    for operand in operands:
        if operand is None:
            words += [graph.x, 0, shape[1] * shape[2], shape[2], 1]
            continue
        array = np.array(operand, np.float32, ndmin=3)
        strides = [0 if n == 1 else s // 4 for n, s in zip(array.shape, array.strides, strict=True)]
        words += [graph.constant(array.ravel()), 0, *strides]
    codes = [(OPS[name].code, *places, *[-1] * (3 - len(places))) for name, *places in instructions]
    result_words = 1, graph.y, 0, shape[1] * shape[2], shape[2], len(codes), *sum(codes, ()), result
    graph.step(PROGRAM, *shape, len(operands), *words, *result_words)
    assert_computes(graph, lambda x: function(x.reshape(shape)).ravel())


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 3), (2, 3, 1), (3, 1, 16), (2, 5, 21), (1, 1, 1000)])
def test_a_program_broadcasts_its_operands(shape):
    random = np.random.default_rng(3)
    scale, shift = random.standard_normal((2, shape[2])).astype(np.float32)
    offset = random.standard_normal((shape[0], 1, 1)).astype(np.float32)
    instructions = [("mul", 0, 1), ("add", 5, 2), ("sub", 6, 3), ("max", 7, 4), ("tanh", 8)]
    assert_program(
        shape,
        [None, scale, shift, offset, -0.5],
        instructions,
        9,
        lambda x: np.tanh(np.maximum(x * scale + shift - offset, -0.5)),
    )


def test_a_program_writes_over_its_operands():
    """The first result is stored over what the second one reads, in a buffer and in the state."""
    graph = Graph(20, 40)
    state, buffer = graph.state(np.zeros(20)), graph.buffer(20)
    graph.step(MOVE, graph.x, 0, buffer, 0, 1, 20, 1, 1)
    row = 0, 0, 0
    add, mul = (OPS[name].code for name in ("add", "mul"))
    operands = 2, buffer, *row, 1, state, *row, 1
    results = 2, buffer, *row, state, *row
    graph.step(PROGRAM, 1, 1, 20, *operands, *results, 2, add, 0, 1, -1, mul, 0, 1, -1, 2, 3)
    graph.step(MOVE, buffer, 0, graph.y, 0, 1, 20, 1, 1)
    graph.step(MOVE, state, 0, graph.y, 20, 1, 20, 1, 1)
    last = [np.zeros(20)]

    def function(x):
        y, last[0] = x + last[0], x * last[0]
        return np.concatenate([y, last[0]])

    assert_computes(graph, function, steps=3)


def test_a_program_may_read_infinity():
    graph = Graph(5, 5)
    limit, buffer = graph.constant([np.inf]), graph.buffer(5)
    operands = 2, graph.x, 0, 0, 0, 1, limit, 0, 0, 0, 0
    graph.step(PROGRAM, 1, 1, 5, *operands, 1, buffer, 0, 0, 0, 1, OPS["min"].code, 0, 1, -1, 2)
    graph.step(MOVE, buffer, 0, graph.y, 0, 1, 5, 1, 1)
    assert_computes(graph, lambda x: x, atol=0)


@pytest.mark.parametrize(("kind", "function"), list(enumerate([np.sum, np.max, np.min])))
@pytest.mark.parametrize(
    ("outer", "reduced", "columns"),
    [
        ([(2, 30), (3, 10)], [(1, 0), (10, 1)], (1, 1)),
        ([(1, 0), (2, 30)], [(2, 15), (3, 5)], (5, 1)),
        ([(1, 0), (3, 1)], [(4, 15), (5, 3)], (1, 0)),
        ([(1, 0), (1, 0)], [(1, 0), (60, 1)], (1, 1)),
        ([(1, 0), (1, 0)], [(2, 30), (3, 10)], (5, 2)),
        ([(1, 0), (1, 0)], [(3, 20), (1, 0)], (20, 1)),
    ],
)
def test_a_reduction_of_rows_and_columns(kind, function, outer, reduced, columns):
    outputs = outer[0][0] * outer[1][0] * columns[0]
    graph = Graph(60, outputs)
    graph.step(REDUCE, kind, graph.x, 0, graph.y, 0, *sum([*outer, *reduced, columns], ()))
    loops = [*outer, columns, *reduced]
    shape, strides = zip(*loops, strict=True)
    assert_computes(graph, lambda x: function(view(x, 0, shape, strides), axis=(3, 4)).ravel())


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("columns", [1, 5])
def test_a_reduction_to_the_largest_or_smallest_number_keeps_nan(kind, columns):
    graph = Graph(1, columns)
    numbers = np.tile(np.arange(40.0)[:, None], columns)
    for place in (0, 3, 17, 39):
        numbers[place] = np.nan
        graph.steps = []
        graph.step(REDUCE, kind, graph.constant(numbers), 0, graph.y, 0, 1, 0, 1, 0, 1, 0, 40, columns, columns, 1)
        assert np.isnan(run(graph.content(), np.zeros((1, 1, 1), np.float32))).all(), place
        numbers[place] = place


@pytest.mark.parametrize("inner", [1, 3])
def test_a_gather_takes_parts_and_zeros(inner):
    indices = [2, -1, 0, 2, 3]
    graph = Graph(4 * inner, 5 * inner)
    graph.step(GATHER, graph.x, 0, graph.y, 0, inner, 5, *indices)
    padded = lambda x: np.concatenate([x.reshape(4, inner), np.zeros((1, inner))])  # noqa: E731
    assert_computes(graph, lambda x: padded(x)[indices].ravel(), atol=0)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_a_number_of_the_graph_chooses_a_row(weights):
    table = stored(np.random.default_rng(0).standard_normal((5, 3)), weights)
    graph = Graph(2, 3)
    values = graph.value(CONSTANT, 15, graph.tensor(table))
    graph.step(GATHER, values, 0, graph.y, 0, 3, 0, graph.x, 1)
    assert_computes(graph, lambda x: table.floats[int(max(x[1], 0))], steps=5, atol=0)
    # a number that is no row chooses the first one
    for number in (-1, 5, 1e9):
        np.testing.assert_array_equal(run(graph.content(), np.full((1, 1, 2), number))[0, 0], table.floats[0])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("size", "length"), [(2, 2), (4, 3), (8, 8), (64, 33), (128, 40), (256, 256), (512, 400)])
def test_a_fourier_transform_of_windows(size, length, count):
    hop = max(1, size // 2)
    window = np.hanning(length + 2)[1:-1]
    graph = Graph(length + 2 * hop, count * (size + 2))
    rows = count, hop, size + 2
    graph.step(FOURIER, graph.x, 0, graph.y, 0, *rows, size, graph.tensor(window))

    def transform(x):
        frames = view(x, 0, (count, length), (hop, 1)) * window
        spectrum = np.fft.rfft(frames, size)
        return np.concatenate([spectrum.real, spectrum.imag], axis=1).ravel()

    assert_computes(graph, transform, atol=2e-5)


def layer_name(layer):
    rule = layer.rule.name
    return layer.cell.form if rule == "always" else f"{layer.cell.form}+{rule}"


def recurrent_graph(layer, length, rows, zero=False, joined=True):
    """A layer over `length` steps and `rows` rows, with its states in one value each or as a part of one."""
    inputs, hidden = layer.cell.input_size, layer.cell.hidden_size
    graph = Graph(length * rows * inputs, length * rows * hidden)
    weights = [weight.detach().numpy() for weight in layer_weights(layer).values()]
    first = len(graph.tensors)
    for weight in weights:
        graph.tensor(weight)
    graph.layers.append((layer_name(layer), len(weights)))
    widths = [layer.widths[name] for name in layer.states]
    states = []
    for width in widths:
        size = rows * width
        size += 0 if joined else 3
        value = graph.buffer(size) if zero else graph.state(np.zeros(size))
        states += [value, 0 if joined else 3]
    words = first, graph.x, 0, graph.y, 0, length, rows, int(zero), len(widths), *states
    graph.step(RECURRENT, 0, *words)
    return graph


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(("length", "rows", "zero"), [(1, 1, False), (1, 3, False), (4, 2, False), (6, 3, True)])
@pytest.mark.parametrize("name", ["gru always", "lstm always", "gru delta", "gru selective"])
def test_a_layer_runs_over_rows_and_time(name, length, rows, zero, joined):
    torch.manual_seed(0)
    cell, rule = name.split()
    layer = RecurrentLayer(CELLS[cell](5, 11), RULES[rule](5, 11))
    graph = recurrent_graph(layer, length, rows, zero, joined)
    kept = [None]

    def function(x):
        with torch.no_grad():
            y, state, *_ = layer(torch.tensor(x.reshape(length, rows, 5), dtype=torch.float32), kept[0])
        kept[0] = None if zero else state
        return y.numpy().ravel()

    assert_computes(graph, function, steps=3)


def example():
    """A graph with every step."""
    torch.manual_seed(1)
    graph = Graph(64, 16)
    random = np.random.default_rng(5)
    kept = graph.state(np.zeros(64))
    window, spectrum = graph.buffer(128), graph.buffer(66)
    graph.step(MOVE, kept, 0, window, 0, 1, 64, 1, 1)
    graph.step(MOVE, graph.x, 0, window, 64, 1, 64, 1, 1)
    graph.step(MOVE, graph.x, 0, kept, 0, 1, 64, 1, 1)
    graph.step(FOURIER, window, 32, spectrum, 0, 1, 64, 66, 64, graph.tensor(np.hanning(64)))
    power, features, pooled = graph.buffer(33), graph.buffer(24), graph.buffer(12)
    add, mul = (OPS[name].code for name in ("add", "mul"))
    operands = 3, spectrum, 0, 0, 0, 1, spectrum, 33, 0, 0, 1, graph.constant([0.5]), 0, 0, 0, 0
    program = 3, mul, 0, 0, -1, mul, 1, 1, -1, add, 3, 4, -1, 5
    graph.step(PROGRAM, 1, 1, 33, *operands, 1, power, 0, 0, 0, *program)
    w, b = random.standard_normal((12, 32)), random.standard_normal(12)
    graph.step(LINEAR, power, 0, features, 0, graph.tensor(w), graph.tensor(b), 1, 0, 0, 2, 1, 12)
    graph.step(REDUCE, 1, features, 0, pooled, 0, 1, 0, 1, 0, 1, 0, 2, 12, 12, 1)
    taken, filtered, hidden = graph.buffer(12), graph.buffer(8), graph.buffer(16)
    graph.step(GATHER, pooled, 0, taken, 0, 4, 3, 2, -1, 0)
    taps = graph.tensor(random.standard_normal((2, 4)))
    graph.step(DEPTHWISE, taken, 0, filtered, 0, taps, -1, 1, 0, 0, 2, 4, 4, 2, 0, 4)
    layer = RecurrentLayer(CELLS["lstm"](8, 16), RULES["always"](8, 16))
    first = len(graph.tensors)
    weights = [weight.detach().numpy() for weight in layer_weights(layer).values()]
    for weight in weights:
        graph.tensor(weight)
    graph.layers.append((layer_name(layer), len(weights)))
    states = graph.state(np.zeros(16)), 0, graph.state(np.zeros(16)), 0
    graph.step(RECURRENT, 0, first, filtered, 0, hidden, 0, 1, 1, 0, 2, *states)
    graph.step(MOVE, hidden, 0, graph.y, 0, 1, 16, 1, 1)
    return graph


def branching():
    """Two maps of 4 numbers, of which the second runs where x is below 0.5, and within that a copy below 0.

    y is a state of 4 numbers that the steps in branches write, and what the second branch copied at last.
    """
    graph, less = Graph(8, 8), OPS["less"].code
    flags, sums, both = graph.buffer(2), graph.buffer(4), graph.state(np.arange(8.0))
    w = graph.tensor(np.random.default_rng(5).standard_normal((4, 4)))
    operands = 2, graph.x, 0, 0, 0, 0, graph.constant([0.5, 0]), 0, 0, 0, 1
    graph.step(PROGRAM, 1, 1, 2, *operands, 1, flags, 0, 0, 0, 1, less, 0, 1, -1, 2)
    graph.step(LINEAR, graph.x, 0, sums, 0, w, -1, 1, 0, 0, 1, 0, 0)
    graph.step(BRANCH, flags, 0, 1, 3, 16, 3)
    graph.step(LINEAR, sums, 0, both, 0, w, -1, 1, 0, 0, 1, 0, 0)
    graph.step(BRANCH, flags, 1, 1, 0, 0, 1)
    graph.step(MOVE, graph.x, 4, both, 4, 1, 4, 1, 1)
    graph.step(BRANCH, flags, 0, 0, 0, 1, 1)
    graph.step(MOVE, graph.x, 0, both, 3, 1, 1, 0, 0)
    graph.step(MOVE, both, 0, graph.y, 0, 1, 8, 1, 1)
    return graph


def test_steps_of_a_branch_run_for_the_streams_whose_number_says_so():
    graph = branching()
    w, both = np.float64(graph.tensors[1].values), np.arange(8.0)

    def step(x):
        if x[0] < 0.5:
            both[:4] = w @ w @ x[:4]
        if x[0] < 0:
            both[4:] = x[4:]
        if x[0] >= 0.5:
            both[3] = x[0]
        return both.copy()

    assert_computes(graph, step, steps=6)
    stepper = Stepper(graph.content(), 3)
    stepper.x[:, 0] = -1, 0.25, 2
    assert stepper.step(), stepper.refusal()
    assert stepper.updates is None
    np.testing.assert_array_equal(stepper.macs, [16, 16, 1])


@pytest.mark.slow
@pytest.mark.parametrize("build", [example, branching])
def test_damaged_arguments_are_refused_or_harmless(build):
    """Each argument of each step is replaced: the engine refuses the file, or runs it within its memory."""
    graph = build()
    x = np.random.default_rng(6).standard_normal((2, 2, graph.inputs)).astype(np.float32)
    run(graph.content(), x)
    messages = []
    for place, word in enumerate(graph.steps):
        for wrong in (-1, 0, 1, word + 1, word - 1, 2 * word + 7, 2**28, 2**31 - 1, -(2**31)):
            steps = graph.steps.copy()
            steps[place] = wrong
            graph.steps, kept = steps, graph.steps
            try:
                run(graph.content(), x)
            except EdgernnError as error:
                messages.append(str(error))
            graph.steps = kept
    assert len(messages) > 4 * len(graph.steps)
    assert all(message.startswith("packed model: ") and "expected" in message for message in messages)


@pytest.mark.parametrize(("build", "count"), [(example, 11), (branching, 9)])
def test_the_time_of_each_operation_is_added(build, count):
    graph = build()
    stepper, other = (Stepper(graph.content(), 1) for _ in range(2))
    stepper.x[...] = other.x[...] = 0.5
    nanoseconds = np.zeros(count, np.int64)
    for _ in range(20):
        assert stepper.profile(nanoseconds), stepper.refusal()
        assert other.step()
    np.testing.assert_array_equal(stepper.y, other.y)
    assert np.all(nanoseconds >= 0)
    assert nanoseconds.sum() > 0
    assert not stepper.profile(np.zeros(3, np.int64))
    assert stepper.refusal() == f"count: expected {count}, the operations of the model, got 3"


def test_groups_of_streams_share_an_arena():
    """A large arena is that of a few streams; the margins of a padded buffer stay zero, also in a smaller group."""
    graph = Graph(16, 16)
    padded, sums, large = graph.buffer(32), graph.buffer(16), graph.buffer(6000)
    state, w = graph.state(np.arange(16)), np.random.default_rng(9).standard_normal((16, 32))
    graph.step(MOVE, graph.x, 0, large, 100, 1, 16, 1, 1)
    graph.step(MOVE, large, 100, padded, 8, 1, 16, 1, 1)
    graph.step(LINEAR, padded, 0, sums, 0, graph.tensor(w / 8), -1, 1, 0, 0, 1, 0, 0)
    tanh, add = OPS["tanh"].code, OPS["add"].code
    read = 2, state, 0, 0, 0, 1, sums, 0, 0, 0, 1
    graph.step(PROGRAM, 1, 1, 16, *read, 1, state, 0, 0, 0, 2, tanh, 0, -1, -1, add, 2, 1, -1, 3)
    graph.step(PROGRAM, 1, 1, 16, 2, state, 0, 0, 0, 1, graph.x, 0, 0, 0, 1, 1, graph.y, 0, 0, 0, 1, add, 0, 1, -1, 2)
    content = graph.content()
    x = np.random.default_rng(10).standard_normal((3, 19, 16)).astype(np.float32)
    y = run(content, x)
    h = np.arange(16.0)
    for t in range(3):
        h = np.tanh(h) + w.astype(np.float32)[:, 8:24] / 8 @ x[t, 18]
        np.testing.assert_allclose(y[t, 18], h + x[t, 18], rtol=0, atol=FLOAT32)
    for stream in range(19):
        np.testing.assert_array_equal(y[:, stream], run(content, x[:, stream : stream + 1])[:, 0])
    assert memory(content, 64) - memory(content, 8) < 56 * 4 * 64


def test_states_counts_and_bad_samples_of_streams():
    torch.manual_seed(0)
    layer = RecurrentLayer(CELLS["gru"](5, 11), RULES["selective"](5, 11))
    content = recurrent_graph(layer, 2, 3).content()
    x = np.random.default_rng(8).standard_normal((3, 2, 30)).astype(np.float32)
    stepper = Stepper(content, 2, "hold")

    def step(x):
        stepper.x[...] = x
        assert stepper.step(), stepper.refusal()
        return stepper.y.copy()

    first = step(x[0])
    neurons = 2 * 3 * 11
    assert stepper.updates is not None
    assert stepper.macs is not None
    assert np.all((stepper.updates > 0) & (stepper.updates < neurons))
    assert np.all(stepper.macs > stepper.updates)
    saved = stepper.save_state()
    second = step(x[1])
    stepper.restore_state(saved)
    np.testing.assert_array_equal(step(x[1]), second)
    stepper.restart_row(1)
    np.testing.assert_array_equal(step(x[0])[1], first[1])
    stepper.x[...] = np.nan
    assert stepper.step()
    assert np.all(np.isfinite(stepper.y))
    np.testing.assert_array_equal(stepper.nonfinite, [1, 1])


def small(steps, tensors=((2, 3),)):
    """A graph with these steps, x (6,), y (6,) and a buffer (6,) as values 0 to 2, and some tensors."""
    graph = Graph(6, 6)
    graph.buffer(6)
    for shape in tensors:
        graph.tensor(np.ones(shape))
    for step in steps:
        graph.step(*step)
    return graph


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ((9, 0), "step 0: code: expected 0 to 8, got 9"),
        (
            (MOVE, 0, 0, 0, 0, 1, 6, 1, 1),
            r"\(move\): to: expected a value that steps may write, got a constant or an inp",
        ),
        ((MOVE, 0, 0, 1, 0, 1, 7, 1, 1), r"\(move\): from: expected numbers 0 to 5 of value 0, got 0 to 6"),
        ((MOVE, 0, 0, 1, 0, 1, 6, -1, 1), "from: expected numbers 0 to 5 of value 0, got -5 to 0"),
        ((MOVE, 0, 0, 1, 0, 1, 2**20, 0, 0), "results: expected 1 to 6, got 1048576"),
        ((MOVE, 0, 0, 3, 0, 1, 6, 1, 1), "to: expected 0 to 2, got 3"),
        ((MOVE, 0, 0, 1, 0, 1, 6, 1), "stride of to: expected a number, got no more arguments"),
        ((MOVE, 0, 0, 1, 0, 1, 6, 1, 1, 5), r"arguments: expected 8, got 9"),
        ((LINEAR, 0, 0, 1, 0, 1, -1, 1, 0, 0, 1, 0, 0), r"W: expected 0, got 1"),
        ((LINEAR, 0, 0, 1, 0, 0, -1, 1, 0, 0, 3, 2, 2), "from: expected numbers 0 to 5 of value 0, got 2 to 6"),
        ((LINEAR, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0), r"b: expected 1 axes, got \(2, 3\)"),
        ((REDUCE, 3, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 6, 1, 1, 1), "kind: expected 0 to 2, got 3"),
        ((GATHER, 0, 0, 1, 0, 2, 2, 0, 3), "from: expected numbers 0 to 5 of value 0, got 0 to 7"),
        ((FOURIER, 0, 0, 1, 0, 1, 0, 0, 6, -1), "N: expected a power of two, got 6"),
        ((FOURIER, 0, 0, 1, 0, 1, 0, 0, 2, 0), r"window: expected 1 axes, got \(2, 3\)"),
        ((GATHER, 0, 0, 1, 0, 2, 0, 0, 0), "from: expected a constant with rows of 2 numbers, got another value"),
        ((GATHER, 2, 0, 1, 0, 6, 0, 0, 0), "from: expected a constant with rows of 6 numbers, got another value"),
        ((GATHER, 2, 0, 1, 0, 3, 0, 0, 9), "index: expected numbers 0 to 5 of value 0, got 9"),
        ((PROGRAM, 1, 1, 6, 1, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 1, 99, 0, 0, -1, 1), "operation codes below 21, got 99"),
        ((BRANCH, 0, 0, 2, 0, 0, 0), "wanted: expected 0 to 1, got 2"),
        ((BRANCH, 0, 9, 1, 0, 0, 0), "from: expected numbers 0 to 5 of value 0, got 9"),
        ((BRANCH, 0, 0, 1, 0, -1, 0), "macs: expected 0 to 2147483647, got -1"),
        ((BRANCH, 0, 0, 1, 0, 0, 1), r"\(branch\): steps: expected 0, got 1"),
        ((RECURRENT, 0, 0, 0, 0, 1, 0, 1, 1, 0, 0), "layer: expected none, got 0"),
    ],
)
def test_an_invalid_step_is_named(step, message):
    with pytest.raises(EdgernnError, match="packed model: step 0.*" + message.removeprefix("step 0")):
        Stepper(small([step]).content(), 1)


def test_overlapping_values_of_a_layer_are_refused():
    torch.manual_seed(0)
    graph = recurrent_graph(RecurrentLayer(CELLS["gru"](5, 11), RULES["always"](5, 11)), 1, 1, zero=True)
    state = graph.steps[2 + 2 + 7 + 1]
    kind, offset, size, tensor = graph.values[state]
    graph.values += [(kind, offset, size, tensor)]
    graph.steps[2 + 4], graph.steps[2 + 5] = len(graph.values) - 1, 0
    with pytest.raises(EdgernnError, match="values: expected separate ones for x, y and each state"):
        Stepper(graph.content(), 1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((5, 0, 6, 0), "value 3: kind: expected 0 to 4, got 5"),
        ((ARENA, 11, 6, 0), "value 3: size: expected 1 to 5, got 6"),
        ((STATE, 0, 5, 0), "value 3: size: expected 6, got 5"),
        ((CONSTANT, 1, 6, 0), "value 3: tensor: expected one of 1, got 1"),
        ((INPUT, 2**31, 2**31, 0), "value 3: size: expected 1 to"),
    ],
)
def test_an_invalid_value_is_named(value, message):
    graph = small([])
    graph.values.append(value)
    with pytest.raises(EdgernnError, match=message):
        Stepper(graph.content(), 1)


def test_memory_is_in_proportion_to_the_file():
    graph = small([])
    graph.arena = 2**29
    with pytest.raises(EdgernnError, match=r"expected one that needs at most .* bytes of memory"):
        Stepper(graph.content(), 1)
