# SPDX-License-Identifier: Apache-2.0
"""Frames of wav files, as an ONNX file reads them call by call."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from edgernn.errors import EdgernnError
from edgernn.runtime.graph_states import inputs_of
from edgernn.runtime.info import read_model
from edgernn.runtime.wav import FULL_SCALE, read_wav
from edgernn.runtime.weights import parse

Array = NDArray[Any]


@dataclass(frozen=True)
class Frames:
    """How an ONNX file reads audio.

    Attributes:
        rate: Samples per second.
        length: Samples of a frame.
        hop: Samples from the begin of a frame to that of the next one.
    """

    rate: int
    length: int
    hop: int


def read_frames(model: Path, folder: Path, frames: Frames) -> tuple[dict[str, Array], frozenset[int]]:
    """Cut the wav files of a folder into frames, one for each call of an ONNX file.

    The first frame of a recording ends with its first `hop` samples; zeros stand before them. A remainder at the end is
    left out.

    Args:
        model: The ONNX file. Its first input reads a frame along its last axis; an integer input gets the sample rate.
        folder: The folder; its wav files are read in the order of their names.
        frames: How the file reads audio.

    Returns:
        The inputs by name, with an axis of calls in front, and the calls with which a recording begins.

    Raises:
        EdgernnError: A file cannot be read, or has another rate, or no recording is as long as a hop.
    """
    inputs = list(inputs_of(parse(read_model(model), model, external="check").graph).values())
    parts, starts, count = list[Array](), set[int](), 0
    for path in sorted(folder.glob("*.wav")):
        samples = read_wav(path, frames.rate).astype(np.float32) / FULL_SCALE
        padded = np.concatenate([np.zeros(frames.length - frames.hop, np.float32), samples])
        calls = (len(padded) - frames.length) // frames.hop + 1
        if calls > 0:
            windows = np.lib.stride_tricks.sliding_window_view(padded, frames.length)
            parts.append(windows[:: frames.hop][:calls])
            starts.add(count)
            count += calls
    if not count:
        raise EdgernnError(
            f"{folder}: expected wav files of at least {frames.hop} samples, got none; give a folder of recordings"
        )
    axes = len(inputs[0].type.tensor_type.shape.dim)
    arrays = {inputs[0].name: np.concatenate(parts).reshape(count, *[1] * (axes - 1), frames.length)}
    for value in inputs[1:]:
        if helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).kind in "iu":
            arrays[value.name] = np.full([1] * len(value.type.tensor_type.shape.dim), frames.rate)
    return arrays, frozenset(starts)
