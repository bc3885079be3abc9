# SPDX-License-Identifier: Apache-2.0
"""Reader of an exported file's metadata, a JSON text that describes the model: parsing and checks."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.files import MODEL, check_path, read_bytes
from edgernn.runtime.library import SCHEMA

# normalisations of a front end, in the order of the C++ enum Normalisation
NORMALISATIONS = ("log", "floor", "pcen")
Check = Callable[[Any], bool]
# kinds of residual block around a layer, with the flag of each in a packed model
BLOCKS = {"linear": 4, "gated": 8}


def _is_number(value: Any) -> bool:
    """Return True for an int or a float (not a bool) that is finite as float32."""
    return type(value) in (int, float) and abs(value) < 3e38


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value < 2**31


def _is_name(value: Any) -> bool:
    return type(value) is str and value != "" and value.isascii()


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _list_of(check: Check) -> Check:
    return lambda value: type(value) is list and len(value) > 0 and all(map(check, value))


def _is_names(value: Any, count: int) -> bool:
    return type(value) is list and len(value) == count and all(map(_is_text, value))


def _is_state(value: Any) -> bool:
    return type(value) is dict and all(map(_list_of(_is_number), value.values()))


def _is_frontend(value: Any) -> bool:
    """Return True for valid settings of an audio front end, or for {"name": None}, which means no front end."""
    if type(value) is not dict or "name" not in value:
        return False
    sizes = [value.get(key) for key in ("sample_rate", "window_size", "hop", "bands")]
    named = _is_name(value["name"]) and value.get("normalise") in NORMALISATIONS
    # a file of an earlier version lacks "stack"
    return value["name"] is None or (named and all(map(_is_size, [*sizes, value.get("stack", 1)])))


def _is_reading(value: object) -> bool:
    """True for a description of how tables (`edgernn.runtime.timeline.read_recording`) or clips of sound are read."""
    if type(value) is not dict:
        return False
    if value.keys() == {"samples"}:
        return _is_size(value["samples"])
    rates, sizes, lists = ("rate", "measured", "gap"), ("window", "stride"), ("columns", "channels")
    return (
        # only some files have a date; earlier versions wrote no sequence and no targets
        value.keys() - {"date", "sequence", "targets"} == {"time", "missing", *rates, *sizes, *lists}
        # users name their columns
        and all(_list_of(_is_text)(value[key]) for key in lists)
        and all(value.get(key) is None or _is_text(value[key]) for key in ("time", "date", "sequence"))
        and (value.get("targets", []) == [] or _list_of(_is_text)(value["targets"]))
        and type(value["missing"]) is bool
        and all(value[key] is None or (_is_number(value[key]) and value[key] > 0) for key in rates)
        and all(value[key] is None or _is_size(value[key]) for key in sizes)
    )


def _is_detector(value: object) -> bool:
    """True for settings of word detection (`edgernn.runtime.word_detection.PostProcessing`)."""
    return (
        type(value) is dict
        and value.keys() == {"smoothing", "threshold", "refractory"}
        and all(map(_is_number, value.values()))
        and 0 < value["threshold"] <= 1
        and all(0 <= value[name] <= 60 for name in ("smoothing", "refractory"))
    )


_SIZE = "a whole number of at least 1", _is_size
_OPTIONAL_SIZE = "null or a whole number of at least 1", lambda value: value is None or _is_size(value)
_NUMBER = "a number", _is_number
_NUMBERS = "a list of numbers", _list_of(_is_number)
_NAME, _FLAG = ("a name", _is_name), ("true or false", _is_flag)
# dotted name of each required value: (the expected value in words, a check)
_FIELDS: dict[str, tuple[str, Check]] = {
    "kernels": ("a list of names", _list_of(_is_name)),
    "programs": ("a table of names", lambda value: type(value) is dict and all(map(_is_name, value.values()))),
    "model.layer.cell.name": _NAME,
    "model.layer.rule.name": _NAME,
    "model.hidden_size": _SIZE,
    "model.layers": _SIZE,
    "model.last_size": _OPTIONAL_SIZE,
    "model.bidirectional": _FLAG,
    "model.input.size": _SIZE,
    "model.input.mean": _NUMBERS,
    "model.input.std": _NUMBERS,
    "model.input.vocabulary": _OPTIONAL_SIZE,
    "model.head.size": _OPTIONAL_SIZE,
    "model.head.output": ("last or all", lambda value: value in ("last", "all")),
    "streaming": _FLAG,
    "initial_state": ("a table of lists of numbers", _is_state),
    "macs": _NUMBER,
    "cost.parameters": _NUMBER,
    "cost.macs_executed": _NUMBER,
    "cost.flops_paper": _NUMBER,
    "cost.flops_paper_idle": _NUMBER,
}


# further values of the file of a network of one's own, which has none of those about a stack of layers
_STACK = ("model.layer", "model.hidden_size", "model.last_size", "model.bidirectional")
_NETWORK_FIELDS: dict[str, tuple[str, Check]] = {
    "network": _NAME,
    "neurons": ("a list of sizes", _list_of(_is_size)),
    **{name: field for name, field in _FIELDS.items() if not name.startswith(_STACK)},
}


@dataclass(frozen=True)
class UpdateWords:
    """Names of what an update rule updates and skips, for reports: `updated` is what the output `updates` counts."""

    updated: str
    skipped: str


def update_words(kind: str | None) -> UpdateWords:
    """Return the names of what an update rule updates and skips.

    Most rules skip neurons. Under a rule of the kind COLUMN all neurons change, and products do not read all values of
    h anew.

    Args:
        kind: Name of the rule's kind (`UpdateRule.kind`), or None if it is unknown, as that of a user's own rule.

    Returns:
        The names; for an unknown kind, names that are right for all rules.
    """
    if kind is None:
        return UpdateWords("updates", "updates skipped")
    if kind == "COLUMN":
        return UpdateWords("values of h sent", "values of h not sent")
    return UpdateWords("neurons updated", "neurons skipped")


def read_model(path: Path) -> bytes:
    """Return the content of a model file; raise EdgernnError if the file is missing or the path is a folder."""
    check_path(path)
    if (path / MODEL).is_file():
        raise EdgernnError(f"{path}: expected a model file, got a folder; pass the file in it: {path / MODEL}")
    if path.is_dir():
        raise EdgernnError(
            f"{path}: expected a model file, got a folder without {MODEL}; for a run directory, write the file with: "
            f"edgernn export {quote(str(path))}"
        )
    try:
        return read_bytes(path, "a model file")
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file; check the path") from None


def read_info(text: str | None, path: Path, *, networks: bool = False) -> dict[str, Any]:
    """Parse and check the description of the model in an exported file's metadata.

    Args:
        text: The JSON text in the file's metadata, or None if it has none.
        path: Path of the file, for error messages.
        networks: True to read the file of a trained network of one's own, too.

    Returns:
        The description, a nested dict; `_FIELDS`, or `_NETWORK_FIELDS`, lists the values that are always in it.

    Raises:
        EdgernnError: The text is missing, cannot be parsed or has another schema, or a value is missing or invalid.
    """
    if text is None:
        raise EdgernnError(
            f"{path}: expected a file that `edgernn export` wrote, got one without edgernn metadata; run a file "
            "of another tool, or what `edgernn calibrate` made of one, in ONNX Runtime itself"
        )
    try:
        info: dict[str, Any] = json.loads(text, parse_float=_finite, parse_constant=_finite)
        schema = info["schema"]
        # optional in a file without custom cells
        info.setdefault("programs", {})
    except (ValueError, TypeError, KeyError, RecursionError):
        raise EdgernnError(f"{path}: its edgernn metadata cannot be read; export the model again") from None
    if schema != SCHEMA:
        remedy = "export the model again" if isinstance(schema, int) and schema < SCHEMA else "update edgernn"
        raise EdgernnError(f"{path}: expected edgernn metadata of version {SCHEMA}, got {schema!r:.50}; {remedy}")
    own = is_network(info)
    if own and not (networks and "model" in info):
        remedy = "name its run directory, or open it with Session" if "model" in info else "open it with NetworkSession"
        raise EdgernnError(
            f"{path}: expected the file of a SequenceModel, got that of a network of one's own; {remedy} of "
            "edgernn.runtime"
        )
    for name, (expected, is_valid) in (_NETWORK_FIELDS if own else _FIELDS).items():
        value: Any = info
        for key in name.split("."):
            if type(value) is not dict or key not in value:
                raise EdgernnError(f"{path}: its edgernn metadata lacks the value {name}; export the model again")
            value = value[key]
        if not is_valid(value):
            got = f"expected {expected}, got {value!r:.50}"
            raise EdgernnError(f"{path}: value {name} in its edgernn metadata: {got}; export the model again")
    # a file of an earlier version lacks both
    for name in ("frontend_macs", "block_macs"):
        if not _is_number(value := info["cost"].setdefault(name, 0)):
            got = f"expected a number, got {value!r:.50}"
            raise EdgernnError(f"{path}: value cost.{name} in its edgernn metadata: {got}; export the model again")
    # a file of an earlier version lacks the entry, as it has no front end
    if not _is_frontend(settings := info["model"].get("frontend", {"name": None})):
        raise EdgernnError(
            f"{path}: model.frontend in its edgernn metadata: expected a table with a name and sizes, got "
            f"{settings!r:.50}; export the model again"
        )
    # only a file that was trained on tables with headers has them
    if (names := info.get("channels")) is not None and not _is_names(names, info["model"]["input"]["size"]):
        got = f"expected null or a list of a name for each input, got {names!r:.50}"
        raise EdgernnError(f"{path}: value channels in its edgernn metadata: {got}; export the model again")
    # only a file that was trained on tables has it
    if (reading := info.get("reading")) is not None and not _is_reading(reading):
        got = f"expected null, a table of a time, rates and sizes, or a number of samples, got {reading!r:.50}"
        raise EdgernnError(f"{path}: value reading in its edgernn metadata: {got}; export the model again")
    # only a file of a model of words has it
    if (detector := info.get("detector")) is not None and not _is_detector(detector):
        got = f"expected null or a table of smoothing, threshold and refractory, got {detector!r:.50}"
        raise EdgernnError(f"{path}: value detector in its edgernn metadata: {got}; export the model again")
    if (kind := info["model"].get("block")) not in (None, *BLOCKS):
        got = f"expected null or one of {', '.join(BLOCKS)}, got {kind!r:.50}"
        raise EdgernnError(f"{path}: model.block in its edgernn metadata: {got}; update edgernn")
    return info


def is_network(info: Mapping[str, Any]) -> bool:
    """True for the description of a network of one's own."""
    return "network" in info


def not_utf8(path: Path) -> EdgernnError:
    """Build the error for an ONNX file that contains a name, such as that of a tensor, that is not valid UTF-8."""
    return EdgernnError(
        f"{path}: expected names in UTF-8, got other bytes: the file is damaged; export the model again"
    )


def _finite(text: str) -> float:
    """Parse a number of a JSON text; raise ValueError for NaN, Infinity and overflow, which Python's parser accepts."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"expected a finite number, got {text}")
    return value


def kernels(info: Mapping[str, Any]) -> list[str]:
    """Return the names of the native library's kernels that a file needs, from its description (`read_info`).

    For a user-defined cell, the name is that of the kernel that interprets the cell's equations.
    """
    return [info["programs"].get(kind, kind) for kind in info["kernels"]]


def frontend(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings of a file's audio front end from its description (`read_info`), or None without one."""
    settings: dict[str, Any] = {"stack": 1, **info["model"].get("frontend", {})}
    return None if settings.get("name") is None else settings


def step_samples(settings: Mapping[str, Any]) -> int:
    """Return the number of new samples that an audio front end with these settings reads at a step."""
    return int(settings["stack"] * settings["hop"])


def block(info: Mapping[str, Any]) -> str | None:
    """Return the kind of residual block around a file's layers, "linear" or "gated", or None without blocks."""
    # a file of an earlier version lacks the entry
    kind: str | None = info["model"].get("block")
    return kind


def feature_size(info: Mapping[str, Any]) -> int:
    """Return the number of values that the first layer reads at a step, from a file's description (`read_info`)."""
    settings = frontend(info)
    return int(info["model"]["input"]["size"] if settings is None else settings["stack"] * settings["bands"])


def layer_sizes(info: Mapping[str, Any]) -> list[int]:
    """Return the number of neurons H of each layer, from the first to the last, from a description (`read_info`)."""
    if is_network(info):
        return list(info["neurons"])
    model = info["model"]
    return [model["hidden_size"]] * (model["layers"] - 1) + [model["last_size"] or model["hidden_size"]]
