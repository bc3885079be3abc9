# SPDX-License-Identifier: Apache-2.0
"""Description of a model file for people: inputs, outputs, layers, states, sizes and origin. Nothing is run."""

import shlex
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError, UsageError
from edgernn.files import CONFIG, read_json
from edgernn.runtime.info import frontend, layer_sizes, not_utf8, read_info, read_model
from edgernn.runtime.interface import declared_values, state_sizes
from edgernn.runtime.packed_format import DETECTION, GRAPH, GRAPH_VERSION, HEADER, LAYER
from edgernn.runtime.weights import PACKED_MAGIC, parse
from edgernn.runtime.word_detection import PostProcessing
from edgernn.runtime.zoo import ENTRY


def describe_file(path: Path) -> dict[str, Any]:
    """Describe an ONNX file or a packed model; EdgernnError if it is missing, damaged or of another kind.

    Every description has "file", "kind" (in words), "bytes", "input" and "output". The further keys depend on the kind
    of the file, see the functions below.
    """
    content = read_model(path)
    described = describe_packed(content, path) if content.startswith(PACKED_MAGIC) else _onnx(content, path)
    return {"file": str(path), "kind": described.pop("kind"), "bytes": len(content), **described}


def _onnx(content: bytes, path: Path) -> dict[str, Any]:
    model = parse(content, path, external="check")
    try:
        text = {entry.key: entry.value for entry in model.metadata_props}.get("edgernn")
        if text is None:
            return _foreign(model)
        info = read_info(text, path, networks=True)
        inputs, outputs = declared_values(model.graph.input), declared_values(model.graph.output)
    except UnicodeDecodeError:
        raise not_utf8(path) from None
    states = state_sizes(info, inputs, outputs, len(content), path)
    return {"kind": "ONNX file of edgernn", **described_model(info["model"]), **_recorded(info), **origin(path)} | {
        "layers": layer_sizes(info),
        "states": states,
        "streaming": info["streaming"],
        "parameters": int(info["cost"]["parameters"]),
        "macs": int(info["macs"]),
    }


def _recorded(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in a file's metadata that an export may leave out."""
    recorded = {key: info.get(key) for key in ("task", "metric", "skip_percent", "macs_executed", "weights", "seed")}
    return {
        **recorded,
        "value": info.get("metric_value"),
        "classes": info.get("classes"),
        "detector": info.get("detector"),
        "channels": info.get("channels"),
        "edgernn": info.get("version"),
    }


def described_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cell, rule, sizes and sample rate of a model from its settings in metadata or config.json.

    A network of one's own has the name of its class in place of cell, rule and sizes of layers.
    """
    audio = frontend({"model": model})
    if "layer" not in model:
        return {
            "network": model["name"],
            "input": {"size": model["input"]["size"], "vocabulary": model["input"]["vocabulary"]},
            "output": {"size": model["head"]["size"], "at": model["head"]["output"]},
            "sample_rate": None if audio is None else audio["sample_rate"],
        }
    return {
        "cell": model["layer"]["cell"]["name"],
        "rule": model["layer"]["rule"]["name"],
        "input": {"size": model["input"]["size"], "vocabulary": model["input"]["vocabulary"]},
        "output": {"size": model["head"]["size"] or layer_sizes({"model": model})[-1], "at": model["head"]["output"]},
        "layers": layer_sizes({"model": model}),
        "bidirectional": model["bidirectional"],
        "sample_rate": None if audio is None else audio["sample_rate"],
    }


def origin(path: Path) -> dict[str, Any]:
    """Return how a model was trained and what it is not for, from the entry.json or config.json beside its file."""
    try:
        entry = read_json(path.parent / (ENTRY if (path.parent / ENTRY).is_file() else CONFIG))
    except EdgernnError:
        return {"command": None, "data": None, "limits": None}
    entry = entry if isinstance(entry, dict) else {}
    command, data, limits = (entry.get(name) for name in ("command", "data", "limits"))
    return {
        "command": shlex.join(map(str, command)) if isinstance(command, list) else None,
        "data": [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else None,
        "limits": limits if isinstance(limits, str) else None,
    }


def _foreign(model: Any) -> dict[str, Any]:
    """Describe an ONNX file without metadata of edgernn: inputs and outputs with shapes, and operators with counts."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = declared_values(value for value in model.graph.input if value.name not in weights)
    return {
        "kind": "ONNX file of another program",
        "input": {value.name: list(value.shape) for value in inputs},
        "output": {value.name: list(value.shape) for value in declared_values(model.graph.output)},
        "producer": " ".join(filter(None, (model.producer_name, model.producer_version))) or None,
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "operators": dict(Counter(node.op_type for node in model.graph.node).most_common()),
    }


def describe_packed(content: bytes, path: Path) -> dict[str, Any]:
    """Describe a packed model from its header. It has neither the task nor the origin of the model."""
    damaged = EdgernnError(f"{path}: the packed model is damaged; pack the model again")
    if len(content) < HEADER.size:
        raise damaged
    _, version, _, size, checksum, _, features, vocabulary, output, layers, _, samples, rate, names = (
        HEADER.unpack_from(content)
    )
    if size != len(content) or zlib.crc32(content[HEADER.size :]) != checksum:
        raise damaged
    first = HEADER.size + (GRAPH.size if version == GRAPH_VERSION else 0)
    if first + layers * LAYER.size > len(content) or names > len(content):
        raise damaged
    kernels = [LAYER.unpack_from(content, first + i * LAYER.size)[0].rstrip(b"\0") for i in range(layers)]
    steps = GRAPH.unpack_from(content, HEADER.size)[2] if version == GRAPH_VERSION else None
    # names end with a zero each; the settings of word detection of a model of audio follow them
    *listed, tail = content[names:].split(b"\0", output if samples else -1) if names else [b""]
    if len(tail) not in ((0, DETECTION.size) if samples else (0,)):
        raise damaged
    if names and len(listed) not in (output, output + features):
        raise damaged
    try:
        detector = asdict(PostProcessing(*DETECTION.unpack(tail))) if tail else None
    except UsageError:
        raise damaged from None
    words = [word.decode(errors="replace") for word in listed]
    return {
        "kind": "packed model",
        "version": version,
        "input": {"size": samples or features, "vocabulary": vocabulary or None},
        "channels": words[output:] or None,
        "output": {"size": output},
        "kernels": [kernel.decode(errors="replace") for kernel in kernels],
        "operations": steps,
        "sample_rate": rate or None,
        # all are empty if the file names channels alone
        "classes": words[:output] if any(words[:output]) else None,
        "detector": detector,
    }
