# SPDX-License-Identifier: Apache-2.0
"""Measures linear maps of other people's networks that skip: `python -m benchmarks.linear_thresholds FOLDER`.

FOLDER has the files of DTLN and NSNet2 as `benchmarks.step_graphs` reads them. Linear maps and 1×1 convolutions get the
rule delta, with thresholds of a multiple of the mean change of each input; recurrent layers compute all products. The
table has the share of the maps' multiply-adds that is left, and the relative change of the outputs.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from benchmarks import parser_of
from benchmarks.step_graphs import FILES, STATELESS, Array
from benchmarks.tables import table
from edgernn.export.linear_nodes import LinearNode
from edgernn.export.streaming.stream_file import stream_file
from edgernn.runtime.library import library_path
from edgernn.runtime.open_model import open_session
from edgernn.training.calibration.calibrated_graph import CalibratedGraph, open_graph

NAMES = ("dtln/model_1.onnx", "dtln/model_2.onnx", "nsnet2/nsnet2-20ms-baseline.onnx")
MULTIPLES = (0, 0.1, 0.25, 0.5, 1)
FRAMES = 400


def run(graph: CalibratedGraph, proto: onnx.ModelProto, x: Array) -> Mapping[str, Array]:
    """Run a file from zeros on one frame a call; return its inputs and outputs, joined along the first axis."""
    session = open_session("network.onnx", proto, library_path(), 1)
    names = [value.name for value in session.get_outputs()]
    following = {state.input: state.output for state in graph.states}
    following |= {v.name: f"{v.name}.next" for v in session.get_inputs() if f"{v.name}.next" in names}
    shapes = {v.name: [n if isinstance(n, int) else 1 for n in v.shape] for v in session.get_inputs()}
    (read,) = shapes.keys() - following.keys()
    feeds = {name: np.zeros(shapes[name], np.float32) for name in following}
    results: list[dict[str, Array]] = []
    for frame in x:
        feeds[read] = frame.reshape(shapes[read])
        results.append(feeds | dict(zip(names, session.run(names, feeds), strict=True)))
        feeds = {name: results[-1][output] for name, output in following.items()}
    return {name: np.concatenate([np.atleast_1d(result[name]) for result in results]) for name in results[0]}


def measure(path: Path, x: Array) -> list[tuple[float, float]]:
    """Return the share of multiply-adds and the relative change of the outputs, for each of the multiples."""
    graph = open_graph(path, linear=True)
    watched, names = graph.watching()
    dense = run(graph, watched, x)
    units = []
    for node, pair in zip(graph.nodes, names, strict=True):
        values = [graph.steps(node, dense[name], len(x)) for name in pair]
        units.append(graph.units(node, *values)[0] if isinstance(node, LinearNode) else 0.0)
    maps = [node for node in graph.nodes if isinstance(node, LinearNode)]
    rows = []
    for multiple in MULTIPLES:
        outputs = run(graph, graph.with_delta([(multiple * unit, 0.0) for unit in units], True), x)
        macs = sum(int(outputs[f"{node.name}.macs"].sum()) for node in maps)
        y, expected = (np.concatenate([of[name].ravel() for name in graph.outputs]) for of in (outputs, dense))
        change = float(np.sqrt(np.square(y - expected).mean() / np.square(expected).mean()))
        rows.append((macs / (len(x) * sum(node.macs for node in maps)), change))
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Folder with the networks.")
    folder: Path = parser.parse_args().folder
    columns = []
    for name in NAMES:
        reference, array = FILES[name].reference
        x = np.load(folder / reference)[array]
        frames = x.reshape(-1, x.shape[-1])[:FRAMES]
        with tempfile.TemporaryDirectory() as temporary:
            path = folder / name
            if name in STATELESS:
                path = Path(temporary) / path.name
                stream_file(folder / name, path)
            columns.append(measure(path, frames))
    heading = [
        "thresholds",
        *(f"{FILES[name].title}: {figure}" for name in NAMES for figure in ("executed", "outputs")),
    ]
    rows = []
    for multiple, *pairs in zip(MULTIPLES, *columns, strict=True):
        figures = (text for share, change in pairs for text in (f"{100 * share:.0f} %", f"{100 * change:.1f} %"))
        rows.append([f"{multiple:g}", *figures])
    print(table(heading, rows))


if __name__ == "__main__":
    main()
