# SPDX-License-Identifier: Apache-2.0
"""Detection of spoken words in a recording: `edgernn run --stream`."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from edgernn.errors import EdgernnWarning, UsageError
from edgernn.runtime.listener import Listener
from edgernn.runtime.wav import read_wav

# number of steps whose samples and scores are float32 in memory at a time: 80 s of steps of 20 ms
BLOCK = 4096


def run_stream(
    model: Path,
    source: Path,
    changes: Mapping[str, float | None] = MappingProxyType({}),
    *,
    backend: Literal["auto", "native", "portable"] = "auto",
    threads: int = 1,
    device: str = "cpu",
) -> dict[str, Any]:
    """Run a model on a recording step by step, as an app does, and detect spoken words.

    Args:
        model: The exported file of a model that reads audio samples and has names of its classes.
        source: The recording, a wav file; see `read_wav` for its kinds. A remainder at its end that is shorter than one
            step of the model is ignored.
        changes: Settings of the word detection, smoothing, threshold and refractory, that replace those in the file
            unless they are None.
        backend: "native" for edgernn's native library, "portable" for standard ONNX operators, or "auto" for native if
            it is available, else portable.
        threads: Number of threads that ONNX Runtime uses within an operator.
        device: "cpu" or "cuda".

    Returns:
        Dict with these keys. `recording`: path of the wav file. `seconds`: its length without the remainder.
        `detections`: a list of dicts with the keys `seconds` (time from the start), `word` and `score` (average
        probability). `backend`: "native" or "portable". `skip_percent`: percentage of neuron updates that were skipped.
        Four counts are per second of audio: `updates_a_second`, the neuron updates; `macs_a_second`, the multiply-adds
        of the layers; `frontend_macs_a_second`, those of the front end, which computes features from the samples; and
        `block_macs_a_second`, those of the residual blocks around the layers.

    Raises:
        UsageError: The model does not read audio or has no names of classes, or the recording is shorter than a step.
        EdgernnError: A file cannot be read, the model's output does not have one score for each class, or the backend
            or the device is not available.
    """
    listener = Listener(model, changes, backend=backend, threads=threads, device=device)
    if "samples" in (listener.session.info.get("reading") or {}):
        text = f"{model}: trained on clips of one word each, so it may find words in speech and noise where none are"
        warnings.warn(f"{text}; for recordings, train it with stream=3 silence=0.5", EdgernnWarning, stacklevel=2)
    samples = read_wav(source, listener.rate)
    if len(samples) < listener.hop:
        raise UsageError(
            f"{source}: expected at least {listener.hop} samples, one step of the model, got {len(samples)}; record "
            "more"
        )
    size = BLOCK * listener.hop
    words = [word for begin in range(0, len(samples), size) for word in listener.feed(samples[begin : begin + size])]
    return {
        "recording": str(source),
        "seconds": listener.seconds,
        "detections": [listener.describe(word) for word in words],
        "backend": listener.session.backend,
        **listener.work(),
    }
