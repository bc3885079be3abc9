# SPDX-License-Identifier: Apache-2.0
"""Times packed networks of other people beside ONNX Runtime: `python -m benchmarks.step_graphs FOLDER --out FILE`.

FOLDER/NAME/*.onnx are the files of silero-vad, NSNet2, DTLN and GTCRN, and FOLDER/NAME/ref.npz has the inputs of each
frame. A file that is missing is named and left out. ONNX Runtime runs the original file, or for NSNet2, which has no
states, what `edgernn stream` makes of it. Both are called from Python, on one thread. Nothing else may run on the
machine.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from edgernn.bench.step_graphs import bench_graph, graph_page
from edgernn.export.streaming.stream_file import stream_file
from edgernn.files import write_json
from edgernn.runtime.timing import Rounds

# file: values and shapes that it needs, and the array of its inputs
FILES: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "silero/silero_vad.onnx": (
        {"values": {"sr": np.array(16000)}, "shapes": {"input": [1, 576]}},
        ("silero/ref.npz", "frames"),
    ),
    "silero/silero_vad_openvino_16k.onnx": ({}, ("silero/ref.npz", "frames")),
    "dtln/model_1.onnx": ({}, ("dtln/ref.npz", "input_2")),
    "dtln/model_2.onnx": ({}, ("dtln/ref.npz", "input_4")),
    "nsnet2/nsnet2-20ms-baseline.onnx": ({}, ("nsnet2/ref.npz", "input")),
    "gtcrn/gtcrn_simple.onnx": ({}, ("gtcrn/ref.npz", "mix")),
}
# files without states
STATELESS = ("nsnet2/nsnet2-20ms-baseline.onnx",)


def timed(folder: Path, name: str, rounds: Rounds) -> dict[str, Any]:
    """Return the report of a file of the folder."""
    options, (reference, array) = FILES[name]
    x = np.load(folder / reference)[array]
    # NSNet2 has all frames in one call, the others have the frames first
    frames = x.reshape(-1, x.shape[-1]) if name in STATELESS else x.reshape(len(x), -1)
    with tempfile.TemporaryDirectory() as temporary:
        path = folder / name
        if name in STATELESS:
            path = Path(temporary) / path.name
            stream_file(folder / name, path)
        return bench_graph(path, rounds, x=frames, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Folder of the files and their inputs.")
    parser.add_argument("--out", type=Path, help="JSON file to write.")
    parser.add_argument("--rounds", type=int, default=15, help="Number of timing rounds.  [default: 15]")
    arguments = parser.parse_args()
    reports, missing = dict[str, Any](), list[str]()
    for name, (_, (reference, _)) in FILES.items():
        if not (arguments.folder / name).is_file() or not (arguments.folder / reference).is_file():
            missing.append(name)
            continue
        reports[name] = timed(arguments.folder, name, Rounds(arguments.rounds))
        print(graph_page(reports[name]), flush=True)
    if missing:
        print(f"left out, as they are not in {arguments.folder}: {', '.join(missing)}")
    if arguments.out is not None:
        write_json(arguments.out, {"command": "python -m benchmarks.step_graphs", "files": reports, "missing": missing})


if __name__ == "__main__":
    main()
