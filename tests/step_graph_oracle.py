# SPDX-License-Identifier: Apache-2.0
"""Runs a packed step graph in NumPy with float64, as a reference for its planner and for the native library."""

import struct

import numpy as np

from edgernn.program import STORED_OPS
from edgernn.runtime.packed_format import DTYPES, HEADER, LAYER, TENSOR

OPS = {op.code: op for op in STORED_OPS.values()}
# numbers of a value that no step has written
UNSET = np.nan


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def lstm(x, states, W, R, b):
    i, f, g, o = np.split(x @ W.T + states[0] @ R.T + b, 4, 1)
    c = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


def gru(x, states, W, R, b):
    (h,) = states
    H = h.shape[1]
    r, z, n = np.split(x @ W.T + b[: 3 * H], 3, 1)
    hr, hz, k = np.split(h @ R.T, 3, 1)
    r, z = sigmoid(r + hr), sigmoid(z + hz)
    return [(1 - z) * np.tanh(n + r * (k + b[3 * H :])) + z * h]


def gru_before(x, states, W, R, V, b):
    (h,) = states
    r, z, n = np.split(x @ W.T + b, 3, 1)
    hr, hz = np.split(h @ R.T, 2, 1)
    r, z = sigmoid(r + hr), sigmoid(z + hz)
    return [(1 - z) * h + z * np.tanh(n + (r * h) @ V.T)]


def rnn(x, states, W, R, b):
    return [np.tanh(x @ W.T + states[0] @ R.T + b)]


CELLS = {"lstm": lstm, "gru": gru, "gru-before": gru_before, "rnn": rnn}


class Oracle:
    """A packed step graph for one stream: `step(x)` returns y, `state` is that of all states."""

    def __init__(self, packed):
        fields = HEADER.unpack_from(packed)
        assert fields[1] == 6
        assert fields[5] == 16
        self.input, self.output, layers, tensors = fields[6], fields[8], fields[9], fields[10]
        at = HEADER.size
        values, states, self.steps, ints, self.arena_size, *self.work = struct.unpack_from("<7I", packed, at)
        at += 32
        self.layers = []
        for _ in range(layers):
            name, count, _, _ = LAYER.unpack_from(packed, at)
            self.layers.append((name.rstrip(b"\0").decode(), count))
            at += LAYER.size
        self.tensors = []
        for _ in range(tensors):
            self.tensors.append(read_tensor(packed, TENSOR.unpack_from(packed, at)))
            at += TENSOR.size
        self.values = [struct.unpack_from("<4I", packed, at + 16 * k) for k in range(values)]
        at += 16 * values
        self.ints = np.frombuffer(packed, "<i4", ints, at).tolist()
        self.arena = np.zeros(self.arena_size)
        self.states = {k: self.tensors[v[3]].copy() for k, v in enumerate(self.values) if v[0] == 1}
        assert len(self.states) == states

    def step(self, x):
        self.x, self.y = np.asarray(x, np.float64), np.full(self.output, UNSET)
        self.updates, self.macs = self.work
        at = count = 0
        while at < len(self.ints):
            code, length = self.ints[at : at + 2]
            arguments = Arguments(self.ints[at + 2 : at + 2 + length])
            skipped = RUN[code](self, arguments) or 0
            assert not arguments.ints, (code, arguments.ints)
            at, count = at + 2 + length, count + 1
            for _ in range(skipped):
                at, count = at + 2 + self.ints[at + 1], count + 1
        assert count == self.steps
        return self.y

    def buffer(self, value, written=False):
        kind, offset, size, _ = self.values[value]
        assert not (written and kind in (2, 3))
        if kind == 0:
            assert offset % 16 == 0
            return self.arena[offset : offset + size]
        if kind == 1:
            return self.states[value]
        if kind == 2:
            assert self.tensors[offset].size == size
            return self.tensors[offset].ravel()
        whole = self.x if kind == 3 else self.y
        return whole[offset : offset + size]

    def view(self, value, offset, counts, strides, written=False):
        buffer = self.buffer(value, written)
        ends = [(n - 1) * s for n, s in zip(counts, strides, strict=True)]
        assert offset + sum(min(e, 0) for e in ends) >= 0
        assert offset + sum(max(e, 0) for e in ends) < len(buffer)
        return np.lib.stride_tricks.as_strided(buffer[offset:], counts, [8 * s for s in strides])


class Arguments:
    def __init__(self, ints):
        self.ints = ints

    def take(self, count):
        taken, self.ints = self.ints[:count], self.ints[count:]
        return taken

    def one(self):
        return self.take(1)[0]


def read_tensor(packed, record):
    type, axes, rows, columns, data, scales = record
    array = np.frombuffer(packed, DTYPES[type], rows * columns, data)
    if type == 1:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    array = array.astype(np.float64).reshape((rows, columns) if axes == 2 else (rows,))
    if type == 2:
        array = array * np.frombuffer(packed, "<f4", rows, scales)[:, None]
    return array


def move(graph, a):
    source, start, target, end, n = a.take(5)
    loops = [a.take(3) for _ in range(n)]
    counts = [loop[0] for loop in loops]
    numbers = graph.view(source, start, counts, [loop[1] for loop in loops]).copy()
    graph.view(target, end, counts, [loop[2] for loop in loops], written=True)[...] = numbers


def linear(graph, a):
    source, start, target, end, W, b, n1, s1, t1, n2, s2, t2 = a.take(12)
    W = graph.tensors[W]
    x = graph.view(source, start, (n1, n2, W.shape[1]), (s1, s2, 1))
    if a.ints:
        least, most = a.take(2)
        places = np.add.outer(np.add.outer(np.arange(n1) * s1, np.arange(n2) * s2), np.arange(W.shape[1]))
        assert not x[(places < least) | (places >= most)].any()
    y = x @ W.T + (0 if b < 0 else graph.tensors[b])
    graph.view(target, end, y.shape, (t1, t2, 1), written=True)[...] = y


def depthwise(graph, a):
    source, start, target, end, W, b, n1, s1, t1, n2, s2, t2, taps = a.take(13)
    W = graph.tensors[W]
    total = 0 if b < 0 else graph.tensors[b]
    for weights, tap in zip(W, a.take(taps), strict=True):
        total = total + weights * graph.view(source, start + tap, (n1, n2, W.shape[1]), (s1, s2, 1))
    graph.view(target, end, total.shape, (t1, t2, 1), written=True)[...] = total


def recurrent(graph, a):
    layer, first, source, start, target, end, steps, rows, zero, count = a.take(10)
    places = [a.take(2) for _ in range(count)]
    name, tensors = graph.layers[layer]
    weights = graph.tensors[first : first + tensors]
    cell = CELLS[name]
    H = weights[1].shape[1]
    width = weights[0].shape[1]
    x = graph.view(source, start, (steps, rows, width), (rows * width, width, 1)).copy()
    y = np.zeros((steps, rows, H))
    if target >= 0:
        y = graph.view(target, end, y.shape, (rows * H, H, 1), written=True)
    views = [graph.view(v, offset, (rows, H), (H, 1), written=True) for v, offset in places]
    states = [view * 0 if zero else view.copy() for view in views]
    for t in range(steps):
        states = cell(x[t], states, *weights)
        y[t] = states[0]
    for view, state in zip(views, states, strict=True):
        view[...] = state


def pointwise(graph, a):
    n1, n2, columns, count = a.take(4)
    shape = n1, n2, columns
    values = []
    for _ in range(count):
        value, offset, s1, s2, s3 = a.take(5)
        assert s3 in (0, 1)
        values.append(graph.view(value, offset, shape, (s1, s2, s3)).copy())
    results = [a.take(4) for _ in range(a.one())]
    for _ in range(a.one()):
        code, *indices = a.take(4)
        op = OPS[code]
        assert all(0 <= k < len(values) for k in indices[: op.arity])
        values.append(op.compute(*(values[k] for k in indices[: op.arity])))
    for value, offset, s1, s2 in results:
        graph.view(value, offset, shape, (s1, s2, 1), written=True)[...] = values[a.one()]


def reduce(graph, a):
    kind, source, start, target, end = a.take(5)
    n1, s1, n2, s2, r1, t1, r2, t2, columns, stride = a.take(10)
    x = graph.view(source, start, (n1, n2, r1, r2, columns), (s1, s2, t1, t2, stride))
    y = (np.sum, np.max, np.min)[kind](x, (2, 3))
    graph.view(target, end, (n1 * n2 * columns,), (1,), written=True)[...] = y.ravel()


def gather(graph, a):
    source, start, target, end, inner, n = a.take(6)
    if n == 0:
        value, offset = a.take(2)
        row = int(graph.view(value, offset, (1,), (1,))[0])
        graph.view(target, end, (inner,), (1,), written=True)[...] = graph.view(source, row * inner, (inner,), (1,))
    for row, index in enumerate(a.take(n)):
        numbers = graph.view(source, start + index * inner, (inner,), (1,)) if index >= 0 else 0
        graph.view(target, end + row * inner, (inner,), (1,), written=True)[...] = numbers


def fft(graph, a):
    source, start, target, end, rows, stride, to, N, window = a.take(9)
    weights = np.ones(N) if window < 0 else graph.tensors[window]
    spectrum = np.fft.rfft(graph.view(source, start, (rows, len(weights)), (stride, 1)) * weights, N)
    y = np.concatenate([spectrum.real, spectrum.imag], 1)
    graph.view(target, end, (rows, N + 2), (to, 1), written=True)[...] = y


def branch(graph, a):
    value, offset, wanted, updates, macs, steps = a.take(6)
    if (graph.view(value, offset, (1,), (1,))[0] != 0) != wanted:
        return steps
    graph.updates, graph.macs = graph.updates + updates, graph.macs + macs
    return 0


RUN = [move, linear, depthwise, recurrent, pointwise, reduce, gather, fft, branch]
