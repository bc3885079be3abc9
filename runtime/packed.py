# SPDX-License-Identifier: Apache-2.0
"""Conversion of an exported .onnx file to a packed model: a file that C programs run without ONNX Runtime."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError, UsageError
from edgernn.files import output_file, write_bytes
from edgernn.log_mel import fft_size
from edgernn.runtime.fourier import frequency_order
from edgernn.runtime.graph_facts import check_facts, check_nodes
from edgernn.runtime.graph_options import PLAIN, GraphOptions
from edgernn.runtime.info import (
    BLOCKS,
    NORMALISATIONS,
    block,
    feature_size,
    frontend,
    layer_sizes,
    read_info,
    read_model,
)
from edgernn.runtime.interface import declared_values, state_sizes
from edgernn.runtime.library import DOMAIN, library_path
from edgernn.runtime.packed_format import (
    DETECTION,
    HEADER,
    MOST_NAME,
    LayerRecord,
    custom_cell,
    file_content,
    group_size,
)
from edgernn.runtime.stepper import memory
from edgernn.runtime.weights import Weight, Weights, check_memory, parse
from edgernn.runtime.word_detection import PostProcessing

if TYPE_CHECKING:
    import onnx

# the layout is that of runtime/csrc/packed/file.h; a model without blocks is packed in the older version
VERSION, VERSION_WITHOUT_BLOCKS = 5, 4
STANDARDISES, HAS_HEAD = 1, 2


def pack_file(
    model: Path,
    out: Path,
    options: GraphOptions = PLAIN,
) -> dict[str, Any]:
    """Convert an ONNX file to a packed model, the file that C programs run.

    Args:
        model: A file that edgernn exported, or a streaming file of another tool.
        out: The file to write.
        options: What the user says of a file of another tool, or of a network of one's own.

    Returns:
        Dict with the paths `model` (the ONNX file), `packed` (the packed model) and `library` (the native library that
        C programs link), and two sizes in bytes: `bytes` of the packed model, and `memory`, which a program needs
        besides the packed model to run it on one sequence. A file of another tool, or a network of one's own, also has
        the costs of a step: `steps` and `operations` (how many operations, and how many of each kind) and `macs`
        (multiply-adds); and the shapes of its `inputs` and `outputs` by name, in the order of x and y. If the model was
        trained on resampled rows or on windows, `reading` has the `rate` in rows a second and the rows of a `window`,
        which a packed model does not keep: the program that runs it does this.

    Raises:
        EdgernnError: The file cannot be read, or the native library is missing.
        UsageError: The model cannot run step by step, because it needs whole sequences, or has a node that no packed
            model has, or `out` cannot be replaced.
    """
    output_file(out, model)
    content, info, costs = _packed(read_model(model), model, options)
    content = _add_names(content, info)
    # also verifies that the library can read the packed model
    stream_bytes, library = memory(content), library_path()
    write_bytes(out, content)
    sizes = {"bytes": len(content), "memory": stream_bytes}
    if reading := {name: value for name in ("rate", "window") if (value := (info.get("reading") or {}).get(name))}:
        costs["reading"] = reading
    return {"model": str(model), "packed": str(out), **sizes, "library": library, **costs}


def pack(content: bytes, path: Path, names: bool = False) -> bytes:
    """Convert the content of an ONNX file to the content of a packed model, which C programs run.

    Args:
        content: The content of the ONNX file.
        path: Path of the ONNX file, for error messages.
        names: True to append the names of the classes and channels, if the metadata has one for each output or input
            of the model. A state saved by a model with the names can be restored by the same model without them, and
            vice versa.

    Returns:
        The content of the packed model.

    Raises:
        EdgernnError: The content is not that of a valid ONNX file.
        UsageError: The model cannot run step by step, because it needs whole sequences, or has a node that no packed
            model has.
    """
    packed, info, _ = _packed(content, path)
    return _add_names(packed, info) if names else packed


def _packed(
    content: bytes,
    path: Path,
    options: GraphOptions = PLAIN,
) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """Return a packed model, the metadata of its file, and the costs of a step graph."""
    from edgernn.runtime.step_graph.pack import is_graph, pack_graph

    proto = parse(content, path, external="read")
    if is_graph(proto):
        graph = pack_graph(proto, path, len(content), options)
        return graph.content.data, graph.info, graph.report
    options.refuse(path)
    model = _packable(proto, len(content), path)
    return model.content(), model.info, {}


def read_packable(content: bytes, path: Path) -> "PackedModel":
    """Read what a packed model has from the content of an exported ONNX file; raise the errors of `pack`."""
    return _packable(parse(content, path), len(content), path)


def _packable(model: "onnx.ModelProto", size: int, path: Path) -> "PackedModel":
    info = read_info({p.key: p.value for p in model.metadata_props}.get("edgernn"), path)
    if not info["streaming"]:
        raise UsageError(
            f"{path}: expected a model that runs step by step, got one that needs whole sequences; use `edgernn run`"
        )
    graph = model.graph
    states = state_sizes(info, declared_values(graph.input), declared_values(graph.output), size, path)
    check_facts(model, info, path)
    check_nodes(model, path)
    packed = PackedModel(model, info, states, path)
    check_memory(packed.size, size, path)
    return packed


@dataclass(frozen=True)
class PackedLayer:
    """A recurrent layer of a packed model.

    Attributes:
        name: Cell and rule, such as gru+selective.
        inputs: Weights, then the initial values of the states, in the order of the inputs of the layer's node.
        block: Weights of the residual block around the layer.
        cell: Attributes of a user-defined cell (`CellTable.attributes`) and its name, "cell"; empty for a built-in one.
        group_size: Number of adjacent neurons that the update rule updates or skips together.
    """

    name: str
    inputs: list[Weight]
    block: list[Weight]
    cell: dict[str, Any]
    group_size: int


class PackedModel:
    """Content of a packed model, read from an ONNX model: sizes and weights.

    Args:
        model: The model.
        info: Its metadata, as `read_info` returns it.
        states: Dict from the name of each state (B, H) to H.
        path: Path of the file, for error messages.

    Attributes:
        info: The metadata.
        layers: Recurrent layers from the first to the last.
        embedding: Embedding (words, I) of a model that reads words; else empty.
        frontend: Settings, window, filters and PCEN's parameters of a front end, and its initial states; else empty.
        standardisation: Mean and standard deviation of the input (I,) each; empty without them.
        head: W and b of the linear output layer; empty without one.
    """

    info: dict[str, Any]
    layers: list[PackedLayer]
    embedding: list[Weight]
    frontend: list[Any]
    standardisation: list[Weight]
    head: list[Weight]

    def __init__(self, model: "onnx.ModelProto", info: dict[str, Any], states: Mapping[str, int], path: Path) -> None:
        self._weights, self.info = Weights(model, path), info
        words, settings = info["model"]["input"]["vocabulary"] is not None, frontend(info)
        self.embedding = [self._weights["embedding.E"]] if words else []
        self.frontend = [] if settings is None else list(self._frontend(settings, states))
        self.standardisation = []
        if "input.mean" in self._weights:
            for name in ("input.mean", "input.std"):
                size, values = feature_size(info), self._weights[name].values
                if values.shape not in ((1,), (size,)):
                    raise EdgernnError(
                        f"{path}: {name}: expected {size} numbers, or one, got shape {values.shape}; export the model "
                        "again"
                    )
                self.standardisation.append(Weight(np.broadcast_to(values, size)))
        nodes = [node for node in model.graph.node if node.domain == DOMAIN]
        order = [name for node in nodes for name in node.input[1:] if name in states]
        # saved states of the packed model and of a session have the same order
        if order != [name for name in states if name in order]:
            raise EdgernnError(
                f"{path}: expected the states in the order of the nodes that read them, got another order; "
                "export the model again"
            )
        self.head = []
        if "head.b" in self._weights:
            # a tied head shares the embedding's matrix
            name = "head.W.T" if "head.W.T" in self._weights else "embedding.E"
            self.head = [self._weights[name], self._weights["head.b"]]
        kinds = dict(zip(dict.fromkeys(node.op_type for node in nodes), info["kernels"], strict=True))
        for kind in kinds.values():
            if len(kind.encode()) > MOST_NAME:
                raise EdgernnError(
                    f"{path}: expected a cell and rule whose names take at most {MOST_NAME} bytes, got {kind:.100}; "
                    "give the cell a shorter name and export the model again"
                )
        self.layers = [
            PackedLayer(
                kinds[node.op_type],
                [
                    Weight(np.full(states[name], info["initial_state"].get(name, 0), np.float32))
                    if name in states
                    else self._weights[name]
                    for name in node.input[1:]
                ],
                list(self._block(f"{node.name}.block", block(info))),
                custom_cell(node, path),
                group_size(node, path),
            )
            for node in nodes
        ]

    def _frontend(self, settings: Mapping[str, Any], states: Mapping[str, int]) -> Iterator[Weight]:
        """Yield the tensors of an audio front end.

        `settings` is the dict of the front end's settings in the metadata, `states` a dict from the name of each state
        to its width.
        """
        kind = NORMALISATIONS.index(settings["normalise"])
        # smoothing rate of the tracked value; only a noise floor has another rate when it falls
        rise = settings["pcen_smoothing" if settings["normalise"] == "pcen" else "floor_rise"]
        numbers = [settings["energy_floor"], kind, rise, settings["floor_fall"]]
        window, stored = (self._weights[f"frontend.{name}"].values for name in ("window", "filters"))
        order = frequency_order(fft_size(len(window)))
        filters = np.zeros((settings["bands"], int(order.max()) + 1), np.float32)
        np.add.at(filters.T, order, stored)
        yield from (Weight(np.array(numbers, np.float32)), Weight(window))
        # saved states have the checksum of the file, so that the filters of earlier files, of one hop, stay a matrix
        yield from filter_tensors(filters) if settings["stack"] > 1 else [Weight(filters)]
        if settings["normalise"] == "pcen":
            yield from (self._weights[f"frontend.{name}"] for name in ("alpha", "delta", "r"))
        heard = [width for name, width in states.items() if name.startswith("frontend.")]
        yield from (Weight(np.zeros(width, np.float32)) for width in heard)

    def _block(self, prefix: str, kind: str | None) -> Iterator[Weight]:
        if kind is None:
            return
        names = ["encoder.W.T", "encoder.b"] if f"{prefix}.encoder.b" in self._weights else []
        names += ["norm.scale", "norm.shift", "linear.W.T", "linear.b"]
        names += ["gate.W.T", "gate.b"] if kind == "gated" else []
        yield from (self._weights[f"{prefix}.{name}"] for name in names)

    @property
    def _tensors(self) -> list[Weight]:
        layers = [weight for layer in self.layers for weight in (*layer.inputs, *layer.block)]
        return [*self.embedding, *self.frontend, *self.standardisation, *layers, *self.head]

    @property
    def size(self) -> int:
        """Number of bytes of the tensors in the packed model."""
        return sum(values.nbytes for t in self._tensors for values in (t.values, t.scales) if values is not None)

    def content(self) -> bytes:
        info = self.info
        output, audio, kind = info["model"]["head"]["size"] or layer_sizes(info)[-1], frontend(info), block(info)
        return file_content(
            VERSION_WITHOUT_BLOCKS if kind is None else VERSION,
            STANDARDISES * bool(self.standardisation) | HAS_HEAD * bool(self.head) | BLOCKS.get(kind or "", 0),
            (feature_size(info), info["model"]["input"]["vocabulary"] or 0, output),
            [LayerRecord(layer.name, len(layer.inputs), layer.cell, layer.group_size) for layer in self.layers],
            self._tensors,
            hop=(0, 0) if audio is None else (info["model"]["input"]["size"], audio["sample_rate"]),
        )


def filter_tensors(filters: NDArray[np.float32]) -> list[Weight]:
    """Return the tensors of mel filters (bands, N/2 + 1) in a packed model, where N is the size of the FFT.

    They are the weights of all bands, each from its first nonzero one to its last, and the first frequency and the
    number of weights of each band (bands, 2). Filters that are not in order of frequency are stored as a matrix.
    """
    nonzero = [np.flatnonzero(row) for row in filters]
    bounds = np.array([(k[0], k[-1] + 1) if len(k) else (0, 1) for k in nonzero])
    if (np.diff(bounds, axis=0) < 0).any():
        return [Weight(filters)]
    weights = np.concatenate([row[first:end] for row, (first, end) in zip(filters, bounds, strict=True)])
    return [Weight(weights), Weight(np.column_stack([bounds[:, 0], bounds[:, 1] - bounds[:, 0]]).astype(np.float32))]


def _add_names(packed: bytes, info: Mapping[str, Any]) -> bytes:
    """Return a packed model with the names of its classes, then of its channels, each with a zero byte at its end.

    Names of which there is not one for each output or input are left out: all classes are then "" if channels follow.
    The packed model is returned unchanged without names. A front end and a vocabulary have no channels with names. The
    settings of word detection in the description of a model with a front end follow the names of its classes.
    """
    header = list(HEADER.unpack_from(packed))
    bands, vocabulary, outputs, hop = header[6], header[7], header[8], header[11]
    inputs = 0 if vocabulary or hop else bands
    known = [
        names if type(names) is list and len(names) == count and all(type(name) is str for name in names) else []
        for names, count in ((info.get("classes"), outputs), (info.get("channels"), inputs))
    ]
    if not any(known) or len(packed) >= 1 << 32:
        return packed
    # metadata may have any character
    listed = [*(known[0] or [""] * outputs), *known[1]]
    names = b"".join(name.replace("\0", "?").encode(errors="replace") + b"\0" for name in listed)
    if hop and info.get("detector"):
        names += DETECTION.pack(*astuple(PostProcessing.stored(info)))
    body = packed[HEADER.size :] + names
    header[3], header[4], header[-1] = HEADER.size + len(body), zlib.crc32(body), len(packed)
    return HEADER.pack(*header) + body
