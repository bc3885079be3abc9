# SPDX-License-Identifier: Apache-2.0
"""Saved states: the state of a `Session` as bytes, in the layout of runtime/csrc/packed/saved_state.h."""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.runtime.library import SCHEMA

VERSION = 1
_MAGIC = b"RNNSTATE"
_HEADER = struct.Struct("<8sIIQIIQQ16s")
# end of the header
_UNUSED = bytes(16)
# the most steps that a stream is taken to have
_MOST_STEPS = 1 << 53
# the state of a front end that keeps samples
_SAMPLES = "frontend.samples"
Array = NDArray[Any]


@dataclass(frozen=True)
class Model:
    """Identity of the model that a saved state belongs to.

    Attributes:
        bytes: Size in bytes of the packed model: the file for C programs, with all layers and weights.
        checksum: CRC-32 checksum of the packed model.
        states: Dict from the name of each state to H, its number of values for one stream. The saved bytes hold the
            states in the order of this dict.
        inputs: I, the number of values in x at one step, or 0 for a model that reads words.
    """

    bytes: int
    checksum: int
    states: Mapping[str, int]
    inputs: int


@dataclass(frozen=True)
class SavedState:
    """The saved state of a batch of B streams: its bytes, and the arrays that `decode` read from them.

    Attributes:
        content: The saved state as bytes.
        counts: Number of steps of each stream (B,) at which x had a NaN or infinite number.
        state: Dict from the name of each state to its value (B, H).
        held: Last finite number of each channel of x (B, I); `on_nonfinite="hold"` of a `Session` replaces NaN and
            infinite numbers by it. The shape is (B, 0) for a model that reads words.
    """

    content: bytes
    counts: NDArray[np.int64]
    state: dict[str, Array]
    held: Array


def encode(model: Model, counts: NDArray[np.int64], state: Mapping[str, Array], held: Array) -> bytes:
    """Encode the state of a batch of streams as bytes.

    Args:
        model: Identity of the model.
        counts: Number of steps of each stream (B,) at which x had a NaN or infinite number.
        state: Dict from the name of each state to its value (B, H), float32.
        held: Last finite number of each channel of x (B, I); `on_nonfinite="hold"` of a `Session` replaces NaN and
            infinite numbers by it. Ignored for a model that reads words.

    Returns:
        The saved state.

    Raises:
        EdgernnError: A state has a NaN, or kept inputs are not finite.
    """
    _check_numbers(state, held)
    arrays = [state[name] for name in model.states] + [held] * (model.inputs > 0)
    body = counts.astype("<i8").tobytes() + b"".join(array.astype("<f4").tobytes() for array in arrays)
    size = _HEADER.size + len(body)
    identity = model.checksum, model.bytes, len(counts), _UNUSED
    return _HEADER.pack(_MAGIC, VERSION, SCHEMA, size, zlib.crc32(body), *identity) + body


def decode(content: bytes, model: Model) -> SavedState:
    """Check a saved state and decode its arrays.

    Args:
        content: The saved state.
        model: Identity of the model that will continue from the state.

    Returns:
        The saved state with its arrays.

    Raises:
        EdgernnError: The state is damaged, has values that no step leaves, or was saved by another model or version.
    """
    if len(content) < _HEADER.size:
        _fail(f"expected at least {_HEADER.size} bytes, got {len(content)}; it is truncated or damaged, start anew")
    magic, version, schema, size, checksum, model_checksum, model_bytes, batch, unused = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        _fail("expected bytes that start with RNNSTATE, got another format; save the state first")
    if (version, schema) != (VERSION, SCHEMA):
        _fail(f"expected version {VERSION} and schema {SCHEMA}, got {version} and {schema}; start anew")
    if size != len(content):
        _fail(f"expected {size} bytes, got {len(content)}; it is truncated or damaged, start anew")
    if zlib.crc32(content[_HEADER.size :]) != checksum:
        _fail("the checksum does not match the content; it is damaged, start anew")
    if unused != _UNUSED:
        _fail("expected zeros at the end of its header, got others; it is damaged, start anew")
    if (model_bytes, model_checksum) != (model.bytes, model.checksum):
        _fail("expected a state of this model, got one of another model; open the model that saved it")
    widths = [*model.states.values(), model.inputs]
    expected = _HEADER.size + batch * (8 + 4 * sum(widths))
    if batch < 1:
        _fail("expected a batch of at least 1, got 0; it is damaged, start anew")
    if size != expected:
        _fail(f"expected {expected} bytes for a batch of {batch}, got {size}; it is damaged, start anew")
    counts = np.frombuffer(content, "<i8", batch, _HEADER.size).astype(np.int64)
    if (bad := (counts < 0) | (counts > _MOST_STEPS)).any():
        row = int(np.argmax(bad))
        got = f"{counts[row]} in sequence {row} of the batch"
        _fail(f"expected a count of steps from 0 to {_MOST_STEPS}, got {got}; start anew")
    arrays, at = [], _HEADER.size + counts.nbytes
    for width in widths:
        array = np.frombuffer(content, "<f4", batch * width, at).astype(np.float32).reshape(batch, width)
        arrays.append(array)
        at += array.nbytes
    state, held = dict(zip(model.states, arrays, strict=False)), arrays[-1]
    _check_numbers(state, held)
    return SavedState(content, counts, state, held)


def _check_numbers(state: Mapping[str, Array], held: Array) -> None:
    """Refuse NaN in a state, and also infinity in kept inputs; only sums of a layer can become infinite."""
    for name, array in {**state, "": held}.items():
        bad = ~np.isfinite(array) if name in ("", _SAMPLES) else np.isnan(array)
        if bad.any():
            row = int(np.argmax(bad.any(1)))
            got = "NaN" if np.isnan(array[row]).any() else "an infinite one"
            _fail(f"expected numbers, got {got} in sequence {row} of the batch; reset that sequence")


def _fail(message: str) -> NoReturn:
    raise EdgernnError(f"saved state: {message}")
