# SPDX-License-Identifier: Apache-2.0
"""Checks of the inputs and outputs of an exported ONNX graph against the metadata of the file."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgernn.errors import EdgernnError
from edgernn.runtime.info import frontend, is_network, layer_sizes, step_samples

if TYPE_CHECKING:
    import onnx

# state of the front end that follows a value, by the normalisation
_FOLLOWED = {"floor": "noise_floor", "pcen": "smooth_energy"}
FLOATS, INTEGERS = "tensor(float)", "tensor(int64)"
# ending of the output with the next value of a state
NEXT = ".next"
# each axis is a name, "T" or "B", or a size
Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Value:
    """Name, type and shape of an input or output of an ONNX graph.

    The type is in ONNX Runtime's notation, such as tensor(float). Each axis is a name, a size, or None if unknown.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...]

    def fits(self, type: str, shape: Shape) -> bool:
        """Return True if this input or output has the ONNX Runtime type `type`, such as tensor(float), and the shape.

        A size in `shape` must be equal. A name in `shape`, such as "T", accepts any size or name of that axis.
        """
        axes = zip(shape, self.shape, strict=False)
        return (
            self.type == type
            and len(self.shape) == len(shape)
            and all(isinstance(axis, str) or axis == other for axis, other in axes)
        )


def next_values(inputs: Iterable[str], outputs: Collection[str]) -> dict[str, str]:
    """Return the states of a network of one's own: for each input NAME with an output NAME.next, that output."""
    return {name: name + NEXT for name in inputs if name + NEXT in outputs}


def declared_values(values: "Iterable[onnx.ValueInfoProto]") -> list[Value]:
    """Return the name, type and shape of each input or output of an ONNX graph, as `Value` objects."""
    from onnx import TensorProto

    types = {TensorProto.FLOAT: FLOATS, TensorProto.INT64: INTEGERS}
    return [
        Value(
            value.name,
            types.get(value.type.tensor_type.elem_type, "another type"),
            tuple(axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim),
        )
        for value in values
    ]


def state_sizes(
    info: Mapping[str, Any], inputs: Iterable[Value], outputs: Iterable[Value], size: int, path: Path
) -> dict[str, int]:
    """Check an exported ONNX graph's inputs and outputs against the file's metadata, and return the states' sizes.

    Args:
        info: The file's metadata, a dict that `read_info` returned.
        inputs: Inputs of the graph.
        outputs: Outputs of the graph.
        size: Size of the file in bytes. It is at least the number of channels and states, because each of them has a
            weight in the file. This limits the memory that a damaged file can request.
        path: Path of the file, for error messages.

    Returns:
        Dict from the name of each state to the length H of its last axis, in the order of the inputs.

    Raises:
        EdgernnError: An input or output is missing, its type or shape differs from the metadata, or the file has
            fewer bytes than channels and states.
    """
    model, read = info["model"], {value.name: value for value in inputs}
    reads_words = model["input"]["vocabulary"] is not None
    x = (INTEGERS, ("T", "B")) if reads_words else (FLOATS, ("T", "B", model["input"]["size"]))
    _expect(path, "input", "x", read.pop("x", None), *x)
    states = {}
    for name, value in read.items():
        H = value.shape[-1] if value.shape else None
        if not isinstance(H, int) or not value.fits(FLOATS, ("B", H)) or H < 1:
            raise _error(path, "input", name, f"{FLOATS} (B, H)", value)
        states[name] = H
    if (count := model["input"]["size"] + sum(states.values())) > size:
        raise EdgernnError(
            f"{path}: damaged: {count} channels and states cannot fit in a file of {size} bytes; export the model again"
        )
    layers = {name: width for name, width in states.items() if not name.startswith("frontend.")}
    _check_frontend(path, info, {name: width for name, width in states.items() if name not in layers})
    if not is_network(info):
        _check_layers(path, info, layers)
    for name, start in info["initial_state"].items():
        if states.get(name) != len(start):
            raise EdgernnError(
                f"{path}: initial value of the state {name:.50}: expected {states.get(name, 0)} numbers, got "
                f"{len(start)}; export the model again"
            )
    _check_outputs(path, info, states, {value.name: value for value in outputs})
    return states


def _check_frontend(path: Path, info: Mapping[str, Any], states: Mapping[str, int]) -> None:
    """Check the states of the audio front end against its settings in the metadata `info`."""
    settings, expected = frontend(info), {}
    size = info["model"]["input"]["size"]
    if settings is not None and step_samples(settings) != size:
        raise EdgernnError(
            f"{path}: front end: expected hop * stack = {size}, the size of x, got {settings['hop']} * "
            f"{settings['stack']}; export the model again"
        )
    # a network of one's own without states starts its front end anew in each sequence
    if settings is not None and (info["streaming"] or not is_network(info)):
        overlap = settings["window_size"] - settings["hop"]
        expected = {"frontend.samples": overlap} if overlap > 0 else {}
        if (followed := _FOLLOWED.get(settings["normalise"])) is not None:
            expected[f"frontend.{followed}"] = settings["bands"]
    if states != expected:
        raise EdgernnError(
            f"{path}: front end: expected states of the sizes {expected}, got {states}; export the model again"
        )


def _check_layers(path: Path, info: Mapping[str, Any], states: Mapping[str, int]) -> None:
    """Check the number of layers in the graph, and their numbers of neurons H, against the metadata `info`."""
    model = info["model"]
    directions = ["", ".reverse"][: 1 + model["bidirectional"]]
    sizes: dict[str, int] = {}
    for name, H in states.items():
        sizes.setdefault(name.rpartition(".")[0], H)
    count = model["layers"] * len(directions)
    if len(sizes) != count:
        raise EdgernnError(
            f"{path}: expected states of {count} layers in the graph, got states of {len(sizes)} layers; "
            "export the model again"
        )
    for i, H in enumerate(layer_sizes(info)):
        for direction in directions:
            name = f"layer{i}{direction}"
            if sizes.get(name) != H:
                raise EdgernnError(
                    f"{path}: {name}: expected a state of {H} neurons, got {sizes.get(name)}; export the model again"
                )


def _check_outputs(path: Path, info: Mapping[str, Any], states: Mapping[str, int], values: Mapping[str, Value]) -> None:
    """Check the type and shape of each output of the ONNX graph against the metadata `info`."""
    head = info["model"]["head"]
    O = head["size"] or layer_sizes(info)[-1] * (1 + info["model"]["bidirectional"])
    _expect(path, "output", "y", values.get("y"), FLOATS, ("T", "B", O)[head["output"] == "last" :])
    for name, H in states.items():
        _expect(path, "output", f"{name}.next", values.get(f"{name}.next"), FLOATS, ("B", H))
    counts: dict[str, Shape] = {"updates": ("T", "B"), "macs": ("B",)}
    if values.keys() & counts.keys():
        for name, shape in counts.items():
            _expect(path, "output", name, values.get(name), INTEGERS, shape)


def _expect(path: Path, kind: str, name: str, value: Value | None, type: str, shape: Shape) -> None:
    if value is None or not value.fits(type, shape):
        raise _error(path, kind, name, f"{type} {_words(shape)}", value)


def _error(path: Path, kind: str, name: str, expected: str, value: Value | None) -> EdgernnError:
    got = "none" if value is None else f"{value.type} {_words(value.shape)}"
    return EdgernnError(
        f"{path}: {kind} {name:.50} of its graph: expected {expected}, got {got:.100}; export the model again"
    )


def _words(shape: Iterable[Any]) -> str:
    return f"({', '.join(map(str, shape))})"
