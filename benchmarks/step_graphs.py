# SPDX-License-Identifier: Apache-2.0
"""Times packed networks of other people: `python -m benchmarks.step_graphs FOLDER --out docs/results`.

FOLDER/NAME/*.onnx are the files of silero-vad, DTLN, NSNet2 and GTCRN, and FOLDER/NAME/ref.npz has the inputs of each
frame. A file that is missing is named and left out. ONNX Runtime runs the original file, or for NSNet2, which has no
states, what `edgernn stream` makes of it. The packed networks have float32 and int8 matrices. Both are called from
loops in C, for which `cc` must be there, and from Python, on one thread. If the package tract is installed, tract is
called from Python, too. Nothing else may run on the machine.
"""

import gzip
import importlib
import importlib.metadata
import itertools
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.tables import table as markdown_table
from benchmarks.wasm import WASM
from edgernn.bench.provenance import machine
from edgernn.bench.step_graphs import MANY, bench_graph
from edgernn.bench.step_loop import ONNX_RUNTIME, PACKED, STREAMS
from edgernn.export.streaming.stream_file import stream_file
from edgernn.files import write_json
from edgernn.runtime.graph_options import PLAIN, GraphOptions
from edgernn.runtime.graph_states import fix_inputs, pair_states
from edgernn.runtime.info import read_model
from edgernn.runtime.packed import pack_file
from edgernn.runtime.step_graph.lowering import shape_of
from edgernn.runtime.timing import Rounds, interleaved
from edgernn.runtime.weights import parse

Array = NDArray[np.float32]


class Network(NamedTuple):
    """A network of other people.

    Attributes:
        title: Its name in the table.
        reference: File and name of the array of its inputs.
        milliseconds: Sound of a frame.
        options: What packing needs.
    """

    title: str
    reference: tuple[str, str]
    milliseconds: int
    options: GraphOptions = PLAIN


_SILERO = GraphOptions({"sr": np.array(16000)}, {"input": [1, 576]})
FILES = {
    "silero/silero_vad.onnx": Network("silero-vad", ("silero/ref.npz", "frames"), 32, _SILERO),
    "silero/silero_vad_openvino_16k.onnx": Network("silero-vad, its fastest file", ("silero/ref.npz", "frames"), 32),
    "dtln/model_1.onnx": Network("DTLN, part 1", ("dtln/ref.npz", "input_2"), 8),
    "dtln/model_2.onnx": Network("DTLN, part 2", ("dtln/ref.npz", "input_4"), 8),
    "nsnet2/nsnet2-20ms-baseline.onnx": Network("NSNet2", ("nsnet2/ref.npz", "input"), 10),
    "gtcrn/gtcrn_simple.onnx": Network("GTCRN", ("gtcrn/ref.npz", "mix"), 16),
}
# files without states
STATELESS = ("nsnet2/nsnet2-20ms-baseline.onnx",)
TRACT = "tract"


def timed(folder: Path, name: str, rounds: Rounds) -> dict[str, Any]:
    """Return the reports of a file with float32 and int8 matrices, and tract's microseconds a step if it is there."""
    _, (reference, array), _, options = FILES[name]
    x = np.load(folder / reference)[array]
    # NSNet2 has all frames in one call, the others have the frames first
    frames = x.reshape(-1, x.shape[-1]) if name in STATELESS else x.reshape(len(x), -1)
    with tempfile.TemporaryDirectory() as temporary:
        path = folder / name
        if name in STATELESS:
            path = Path(temporary) / path.name
            stream_file(folder / name, path)
        reports: dict[str, Any] = {
            weights: bench_graph(path, rounds, x=frames, options=replace(options, weights=weights), from_c=True)
            for weights in ("float32", "int8")
        }
        reports[TRACT] = tract_step(path, options, frames, rounds)
        pack_file(path, packed := Path(temporary) / "packed.edgernn", replace(options, weights="int8"))
        reports["int8"]["gzipped"] = len(gzip.compress(packed.read_bytes(), 9))
    return reports


def tract_step(path: Path, options: GraphOptions, x: Array, rounds: Rounds) -> float | None:
    """Return the median microseconds of a step of tract, called from Python; None if it is not there or refuses."""
    try:
        tract: Any = importlib.import_module(TRACT)
    except ImportError:
        return None
    model = parse(read_model(path), path, external="read")
    fix_inputs(model, options.values, options.shapes, path)
    following = {state.input: state.output for state in pair_states(onnx.shape_inference.infer_shapes(model).graph)}
    arrays = {value.name: np.zeros(shape_of(value), np.float32) for value in model.graph.input}
    outputs = [value.name for value in model.graph.output]
    with tempfile.TemporaryDirectory() as folder:
        fixed = Path(folder) / "fixed.onnx"
        fixed.write_bytes(model.SerializeToString())
        try:
            loaded = tract.onnx().load(fixed)
            for index, array in enumerate(arrays.values()):
                loaded.set_input_fact(index, ",".join([*map(str, array.shape), "f32"]))
            runnable = loaded.into_model().into_runnable()
            call = _tract_call(runnable, arrays, following, outputs, x)
            call()
        except tract.TractError as error:
            click.echo(f"{path.name}: tract refuses it: {str(error).partition(chr(10))[0]}")
            return None
    return 1e6 * float(np.median([np.median(block) for block in interleaved({TRACT: call}, rounds)[TRACT]]))


def _tract_call(
    runnable: Any, arrays: dict[str, Array], following: dict[str, str], outputs: list[str], x: Array
) -> Callable[[], None]:
    """Return a function that runs the next row of x, and passes the states on as tract's own values."""
    values: dict[str, Any] = dict(arrays)
    # the inputs that are no states, one after the other
    data = [name for name in arrays if name not in following]
    sizes = np.cumsum([arrays[name].size for name in data])[:-1]
    rows = itertools.cycle(x)

    def call() -> None:
        for name, part in zip(data, np.split(next(rows), sizes), strict=True):
            values[name] = np.ascontiguousarray(part, np.float32).reshape(arrays[name].shape)
        results = dict(zip(outputs, runnable.run(list(values.values())), strict=True))
        values.update({name: results[output] for name, output in following.items()})

    return call


def table(report: dict[str, Any]) -> str:
    """Format a report of `main` as Markdown: times of one stream and how they were measured, then streams and sizes."""
    head = ["a frame of", "multiply-adds", "ONNX Runtime", "packed", "ratio", "packed, int8", "ratio"]
    head += ["ONNX Runtime from Python", "tract from Python"]
    rows, further = [], []
    for name, reports in report["files"].items():
        in_c, int8 = (reports[weights]["from_c"] for weights in ("float32", "int8"))
        step = reports["float32"]["step"][ONNX_RUNTIME]
        cells = [f"{in_c['step'][ONNX_RUNTIME]:,.1f}"]
        cells += [cell for way in (in_c, int8) for cell in (f"{way['step'][PACKED]:,.1f}", f"{way['ratio']:.2f}")]
        tract = reports[TRACT]
        cells += [f"{step:,.1f}", "–" if tract is None else f"{tract:,.1f}"]
        title, milliseconds = FILES[name].title, FILES[name].milliseconds
        rows.append([title, f"{reports['float32']['macs']:,}", *cells])
        streams = [f"{in_c[STREAMS]:,.1f}", f"{1000 * milliseconds / in_c[STREAMS]:,.0f}"]
        sizes = [f"{reports['float32']['stream_memory']:,}", f"{reports['int8']['gzipped'] / 1000:,.0f}"]
        further.append([title, f"{milliseconds} ms", *streams, *sizes])
    where, tract = report["machine"], report[TRACT]
    text = "Microseconds a frame, called from C where no other language is named, medians of "
    text += f"{report['rounds']} rounds: one stream on one thread of {where['cpu']}, {where['instruction_set']}"
    text += "." if tract is None else f"; tract {tract}."
    text += " A ratio is ONNX Runtime's time divided by that of the packed model, the median over the rounds; the "
    text += "int8 model has rounds of its own."
    many = f"The packed models again, with {MANY} streams that share the weights and make each step together"
    many += " (microseconds a frame of one of them, called from C, and how many a core then serves in real time)"
    many += ", and the size that a web page loads"
    many += "." if report["module"] is None else f" besides the engine's module of {report['module'] / 1000:,.0f} kB."
    heads = ["a frame of", "sound", f"one of {MANY} streams", "streams in real time", "bytes of a further stream"]
    heads += ["int8 file, kB gzipped"]
    parts = [markdown_table(head, rows), textwrap.fill(text, 120), textwrap.fill(many, 120)]
    return "\n\n".join([*parts, markdown_table(heads, further)])


def picture(path: Path, report: dict[str, Any]) -> None:
    """Draw the times of a step as bars, on a logarithmic axis."""
    from matplotlib.figure import Figure

    from edgernn.training.pictures import save

    files = report["files"]
    bars: dict[str, list[float | None]] = {
        f"{ONNX_RUNTIME}, from C": [r["float32"]["from_c"]["step"][ONNX_RUNTIME] for r in files.values()],
        "tract, from Python": [r[TRACT] for r in files.values()],
        "packed, from C": [r["float32"]["from_c"]["step"][PACKED] for r in files.values()],
        "packed, int8, from C": [r["int8"]["from_c"]["step"][PACKED] for r in files.values()],
    }
    shown = {name: values for name, values in bars.items() if any(value is not None for value in values)}
    colours = dict(zip(bars, ("#999999", "#e69f00", "#0072b2", "#56b4e9"), strict=True))
    figure = Figure(figsize=(8, 0.7 + 0.9 * len(files)), layout="constrained")
    panel, width = figure.subplots(), 0.8 / len(shown)
    for k, (name, values) in enumerate(shown.items()):
        known = [(i, value) for i, value in enumerate(values) if value is not None]
        places = [i + (k - (len(shown) - 1) / 2) * width for i, _ in known]
        drawn = panel.barh(places, [value for _, value in known], width, label=name, color=colours[name])
        panel.bar_label(drawn, [f"{value:,.0f}" for _, value in known], padding=3, fontsize="small")
    panel.set_yticks(range(len(files)), [FILES[name].title for name in files])
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.margins(x=0.1)
    panel.set_xlabel("microseconds a frame, one stream on one thread")
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize="small")
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    save(figure, path)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for step-graphs.json and step-graphs.png.")
@click.option("--rounds", default=15, show_default=True, help="Number of timing rounds.")
def main(folder: Path, out: Path | None, rounds: int) -> None:
    """Time the networks of other people in FOLDER, packed and in other runtimes."""
    reports, missing = dict[str, Any](), list[str]()
    for name, network in FILES.items():
        if (folder / name).is_file() and (folder / network.reference[0]).is_file():
            reports[name] = timed(folder, name, Rounds(rounds))
        else:
            missing.append(name)
    try:
        version = importlib.metadata.version(TRACT)
    except importlib.metadata.PackageNotFoundError:
        version = None
    module = len(gzip.compress(WASM.read_bytes(), 9)) if WASM.is_file() else None
    report = {"machine": machine(), "rounds": rounds, TRACT: version, "module": module, "files": reports}
    report["missing"] = missing
    click.echo(table(report))
    if missing:
        click.echo(f"left out, as they are not in {folder}: {', '.join(missing)}")
    if module is None:
        click.echo("edgernn.wasm: left out, as it is not built; run: make wasm")
    if version is None:
        click.echo("tract: left out, as it is not installed; pip install tract")
    if out is not None:
        write_json(out / "step-graphs.json", report)
        picture(out / "step-graphs.png", report)


if __name__ == "__main__":
    main()
