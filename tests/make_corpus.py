# SPDX-License-Identifier: Apache-2.0
"""Generates the fuzzing corpus: `python -m tests.make_corpus`.

Files in tests/corpus/packed are packed models with random weights and, where the cell allows it, I=2, H=3, O=1.
Files in tests/corpus/models are exported models. All files are rewritten, identically at every run.
"""

import struct
from pathlib import Path

import edgernn
from edgernn.export import graph
from edgernn.export.rounding import rounded
from tests.models import contractive, packed_alone
from tests.test_step_graph_engine import example
from tests.use_mutants import MODELS

FOLDER = Path(__file__).resolve().parent / "corpus" / "packed"
SIZES = {"input_size": 2, "hidden_size": 3, "output_size": 1}


def models() -> dict[str, edgernn.SequenceModel]:
    """Models that cover every rule, imputer and part of a file, and cells with different inputs and states."""
    drawn = {rule: contractive("gru", rule, **SIZES) for rule in edgernn.rules.RULES}
    for cell in ("rnn", "sru", "pru", "eins", "irc-t-lstm", "fastgrnn-split"):
        drawn[cell] = contractive(cell, **SIZES)
    drawn["decaynet"] = contractive("decaynet", **SIZES, cell_options={"length": 9})
    drawn["words"] = contractive("fastgrnn", **SIZES, vocabulary=5)
    # the head needs more workspace than the layer
    drawn["outputs"] = contractive("rnn", input_size=1, hidden_size=1, output_size=90)
    drawn["layers"] = contractive("gru", "skip", **SIZES, layers=2, last_size=4, mean=0.5, std=2.0)
    drawn["last-input"] = contractive("irc-lstm", "selective", **SIZES)
    drawn["rank"] = contractive("gru", "selective", **SIZES, rank=1)
    drawn["no-head"] = contractive("lstm-peephole", "clockwork", **SIZES | {"output_size": None})
    audio = {"frontend": "logmel", "window_size": 7, "hop": 3, "bands": 2, "low_frequency": 500.0}
    for normalise in ("log", "floor", "pcen"):
        name = f"{normalise}-mel"
        drawn[name] = contractive("gru", **SIZES | {"input_size": 3}, **audio, normalise=normalise, mean=0.5)
    # an encoder at the beginning and at the end
    for block in ("linear", "gated"):
        drawn[f"{block}-blocks"] = contractive("mingru", **SIZES, layers=2, last_size=4, block=block)
    drawn["blocks-that-skip"] = contractive("gru", "selective", **SIZES | {"input_size": 3}, block="gated")
    for imputer in edgernn.imputers.IMPUTERS:
        drawn[imputer] = contractive("lstm", "phased", **SIZES | {"input_size": 3}, imputer=imputer)
    return drawn


def exported_files() -> dict[str, bytes]:
    """Exported files that cover words, imputers, layers, blocks, directions, heads and weight types."""
    sizes = {"input_size": 3, "hidden_size": 4, "output_size": 2}
    words = {"input_size": 4, "hidden_size": 4, "output_size": 5, "vocabulary": 5, "tied": True, "output": "all"}
    chosen = {
        "both-directions": (contractive("fastgrnn", "skip", **sizes, bidirectional=True), "bfloat16"),
        "blocks": (contractive("mingru", **sizes, layers=2, block="gated"), "int8"),
        "imputer": (contractive("lstm", "phased", **sizes | {"output_size": None}, imputer="gru-d"), "float32"),
        "layers": (contractive("gru", "selective", **sizes, layers=2, mean=0.5, std=2.0), "float32"),
        "words": (contractive("lstm", **words), "int8"),
    }
    return {
        name: graph.build(rounded(model, weights), weights=weights).SerializeToString()
        for name, (model, weights) in chosen.items()
    }


def retyped(content: bytes, number_type: int) -> bytes:
    """Change the type of every tensor with two axes, without changing the bytes of its elements and scales."""
    changed = bytearray(content)
    layers, tensors = struct.unpack_from("<II", content, 44)
    for i in range(tensors):
        at = 64 + 96 * layers + 32 * i
        axes, data = struct.unpack_from("<4xI8xQ", content, at)
        if axes == 2:
            struct.pack_into("<I12xQQ", changed, at, number_type, data, data)
    return bytes(changed)


def main() -> None:
    for folder in (FOLDER, MODELS):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
    for name, content in exported_files().items():
        (MODELS / f"{name}.onnx").write_bytes(content)
    for name, model in models().items():
        (FOLDER / name).write_bytes(packed_alone(model))
    (FOLDER / "steps").write_bytes(example().content())
    for name in ("always", "selective", "skip", "rits", "words", "gated-blocks"):
        for number_type in (1, 2):
            (FOLDER / f"{name}-{number_type}").write_bytes(retyped((FOLDER / name).read_bytes(), number_type))


if __name__ == "__main__":
    main()
