# SPDX-License-Identifier: Apache-2.0
"""Times a packed step graph beside ONNX Runtime, called from Python with buffers that stay, or from C."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgernn.bench.provenance import machine
from edgernn.bench.step_loop import ONNX_RUNTIME, PACKED, STREAMS, times_from_c
from edgernn.errors import EdgernnError
from edgernn.progress import Progress
from edgernn.runtime.graph_options import PLAIN, GraphOptions
from edgernn.runtime.graph_states import fix_inputs
from edgernn.runtime.info import read_model
from edgernn.runtime.library import onnxruntime, run_interruptibly
from edgernn.runtime.open_model import open_session
from edgernn.runtime.step_graph.content import Content
from edgernn.runtime.step_graph.lowering import shape_of
from edgernn.runtime.step_graph.pack import pack_graph, work_text
from edgernn.runtime.stepper import Stepper, memory
from edgernn.runtime.timing import Rounds, interleaved
from edgernn.runtime.weights import parse
from edgernn.tolerance import allowed_error

Array = NDArray[Any]
# number of steps on which the outputs are compared
_STEPS = 50
# streams that are timed together
MANY = 64
# least number of steps whose operations are timed
_PROFILED = 1000


class _OnnxSteps:
    """Runs an ONNX file step by step, with x, y and two copies of the states bound once; x and y are flat."""

    def __init__(self, model: onnx.ModelProto, states: Mapping[str, str], path: Path, threads: int) -> None:
        session = open_session(path, model.SerializeToString(), None, threads)
        kept = {value.name: value for value in model.graph.input if value.name in states}
        arrays = {
            value.name: np.zeros(shape_of(value), np.float32)
            for value in model.graph.input
            if value.name in {v.name for v in session.get_inputs()} - states.keys()
        }
        self._inputs = list(arrays.values())
        copies = [{name: np.zeros(shape_of(value), np.float32) for name, value in kept.items()} for _ in range(2)]
        names = [value.name for value in session.get_outputs()]
        first = run_interruptibly(session, names, {**arrays, **copies[0]})
        results = {name: value for name, value in first.items() if name not in states.values()}
        # ONNX Runtime does not write a bound output that is an input of the graph
        self._outputs = [arrays.get(name, value) for name, value in results.items() if value.dtype == np.float32]
        results = {name: value for name, value in results.items() if name not in arrays}
        if not results and not kept:
            raise EdgernnError(f"{path}: expected an output that a node computes, got inputs alone; there is no work")
        wrap = onnxruntime().OrtValue.ortvalue_from_numpy
        self._bindings = []
        shared = {name: wrap(array) for name, array in (*arrays.items(), *results.items())}
        wrapped = [{name: wrap(array) for name, array in copy.items()} for copy in copies]
        for before, after in zip(wrapped, wrapped[::-1], strict=True):
            binding = session.io_binding()
            for name in arrays:
                binding.bind_ortvalue_input(name, shared[name])
            for name, value in before.items():
                binding.bind_ortvalue_input(name, value)
            for name in results:
                binding.bind_ortvalue_output(name, shared[name])
            for name, value in after.items():
                binding.bind_ortvalue_output(states[name], value)
            self._bindings.append(binding)
        self._run, self._turn = session.run_with_iobinding, 0

    def step(self, row: Array) -> None:
        start = 0
        for array in self._inputs:
            array.ravel()[...] = row[start : start + array.size]
            start += array.size
        self._run(self._bindings[self._turn])
        self._turn = 1 - self._turn

    @property
    def y(self) -> Array:
        return np.concatenate([array.ravel() for array in self._outputs])


def bench_graph(
    path: Path,
    rounds: Rounds | None = None,
    *,
    x: Array | None = None,
    options: GraphOptions = PLAIN,
    threads: int = 1,
    by_node: bool = False,
    from_c: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Pack an ONNX file, compare its outputs with those of ONNX Runtime, and time both.

    Args:
        path: A file that `edgernn pack` takes as a step graph.
        rounds: Settings of the timing. Default: those of `edgernn bench`.
        x: Inputs of each step (T, I), the inputs of the file that are no states joined. Default: 50 steps of normal
            numbers with a standard deviation of 0.5.
        options: What the user says of the file. The outputs of weights of a smaller type are not compared, but their
            difference is in the report.
        threads: Number of threads of ONNX Runtime; a packed model runs on one.
        by_node: Also time each operation.
        from_c: Also time both in loops in C, which the program `cc` compiles. ONNX Runtime then runs on one thread.
        progress: Progress bar. Default: none.

    Returns:
        JSON-compatible dict: "model", "machine", "settings", "error" (largest difference of an output), "bytes" of the
        packed file, "memory" of a stream in bytes and "stream_memory" of each beyond 64, the costs of
        `PackedGraph.report`, and "step" with the median microseconds of a step of each runtime by name, and "ratio",
        the median over rounds of ONNX Runtime's time divided by ours. With `by_node`, "nodes" lists the operations,
        those that take longest first: "operation", "node" (operator and name of the node that it computes), "us" (mean
        microseconds) and "share" of the step. With `from_c`, "from_c" has the "step" and the "ratio" of the loops in C,
        and "streams", the microseconds of a stream's step among 64.

    Raises:
        UsageError: The file cannot be packed.
        EdgernnError: The outputs differ, or there is no `cc`.
    """
    content = read_model(path)
    model = parse(content, path, external="read")
    packed = pack_graph(model, path, len(content), options)
    fix_inputs(model, options.values, options.shapes, path)
    stepper, other = Stepper(packed.content.data, 1), _OnnxSteps(model, packed.states, path, threads)
    width = sum(map(math.prod, packed.lowered.inputs.values()))
    if x is None:
        x = (0.5 * np.random.default_rng(0).standard_normal((_STEPS, width))).astype(np.float32)
    elif x.ndim != 2 or x.shape[1] != width:
        raise EdgernnError(f"x: expected shape (T, {width}), got {x.shape}; join the inputs of a step")

    def packed_step(row: Array) -> None:
        stepper.x[0] = row
        if not stepper.step():
            raise EdgernnError(f"{path}: the step failed: {stepper.refusal()}")

    outputs, expected = list[Array](), list[Array]()
    for row in x[:_STEPS]:
        packed_step(row)
        other.step(row)
        outputs.append(stepper.y[0].copy())
        expected.append(other.y)
    if not np.isfinite(expected).all():
        raise EdgernnError(f"{path}: expected finite outputs of ONNX Runtime, got others; check weights and example")
    error = float(np.abs(np.array(outputs) - expected).max())
    is_exact = options.weights in (None, "float32")
    if is_exact and not error <= (most := allowed_error(np.array(expected), len(expected))):
        raise EdgernnError(
            f"{path}: expected outputs that differ by at most {most:.1e} from ONNX Runtime's, got {error:.1e}; report "
            "a bug"
        )
    rounds = rounds or Rounds()
    seconds = interleaved({PACKED: _cycle(packed_step, x), ONNX_RUNTIME: _cycle(other.step, x)}, rounds, progress)
    medians = {name: np.array([np.median(block) for block in blocks]) for name, blocks in seconds.items()}
    further: dict[str, Any] = {"nodes": _node_times(stepper, packed.content, x)} if by_node else {}
    if from_c:
        many = Stepper(packed.content.data, MANY)
        further["from_c"] = times_from_c(model, stepper, many, packed.states, x, rounds)
    sizes = [memory(packed.content.data, count) for count in (1, MANY, 2 * MANY)]
    return {
        "model": path.name,
        "machine": machine(),
        "settings": {"rounds": rounds.rounds, "block_ms": rounds.block_ms, "threads": threads, "steps": len(x)},
        "error": error,
        "bytes": len(packed.content.data),
        "memory": sizes[0],
        "stream_memory": (sizes[2] - sizes[1]) // MANY,
        **packed.report,
        "step": {name: 1e6 * float(np.median(times)) for name, times in medians.items()},
        "ratio": float(np.median(medians[ONNX_RUNTIME] / medians[PACKED])),
        **further,
    }


def _node_times(stepper: Stepper, content: Content, x: Array) -> list[dict[str, Any]]:
    """Return the mean time of each operation, the longest first."""
    nanoseconds = np.zeros(len(content.names), np.int64)
    passes = -(-_PROFILED // len(x))
    for _ in range(passes):
        for row in x:
            stepper.x[0] = row
            if not stepper.profile(nanoseconds):
                raise EdgernnError(f"the step failed: {stepper.refusal()}")
    return [
        {
            "operation": content.names[k],
            "node": content.nodes[k],
            "us": float(nanoseconds[k]) / (passes * len(x)) / 1000,
            "share": float(nanoseconds[k] / max(nanoseconds.sum(), 1)),
        }
        for k in np.argsort(-nanoseconds, kind="stable")
    ]


def _cycle(step: Callable[[Array], None], x: Array) -> Callable[[], None]:
    """Return a function that runs the next step of x at each call, without an end."""
    turn = 0

    def call() -> None:
        nonlocal turn
        step(x[turn])
        turn = (turn + 1) % len(x)

    return call


def graph_page(report: Mapping[str, Any]) -> str:
    """Format a report of `bench_graph` as Markdown."""
    nodes = [
        f"| {row['operation']} | {row['node']} | {row['us']:.2f} | {100 * row['share']:.1f} |"
        for row in report.get("nodes", ())
    ]
    if nodes:
        nodes = ["", "| operation | node | µs | % of a step |", "|---|---|---:|---:|", *nodes]
    ways = {"from Python": report, **({"from C": report["from_c"]} if "from_c" in report else {})}
    times = {name: [f"{way['step'][name]:,.1f}" for way in ways.values()] for name in (PACKED, ONNX_RUNTIME)}
    rows = [f"| {name} | {' | '.join(cells)} |" for name, cells in times.items()]
    many = []
    if "from_c" in report:
        time, size = report["from_c"][STREAMS], report["stream_memory"]
        many = [
            "",
            f"A step of each of {MANY} streams takes {time:,.1f} µs a stream from C; a further stream has {size:,} "
            "bytes of memory.",
        ]
    ratios = " and ".join(f"{way['ratio']:.2f} times as long {name}" for name, way in ways.items())
    return "\n".join(
        [
            f"{report['model']}: {work_text(report)}; {report['bytes']:,} bytes, and {report['memory']:,} for a "
            "stream.",
            "",
            f"| µs a step of one stream, called | {' | '.join(ways)} |",
            "|---|" + "---:|" * len(ways),
            *rows,
            "",
            f"ONNX Runtime takes {ratios}. Worst difference of an output: "
            f"{report['error']:.1e}. {report['machine']['cpu']}, instruction set "
            f"{report['machine']['instruction_set']}.",
            *many,
            *nodes,
        ]
    )
