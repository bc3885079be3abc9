# SPDX-License-Identifier: Apache-2.0
"""Detection of spoken words in a recording: `edgernn run --stream`."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgernn.errors import EdgernnError, UsageError
from edgernn.runtime.info import frontend
from edgernn.runtime.session import Session
from edgernn.runtime.wav import FULL_SCALE, read_wav
from edgernn.runtime.word_detection import DetectedWord, Detector, PostProcessing

# number of steps whose samples and scores are float32 in memory at a time: 80 s of steps of 20 ms
BLOCK = 4096


def run_stream(
    model: Path,
    source: Path,
    settings: PostProcessing,
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
        settings: Settings of the word detection: smoothing, threshold and refractory time.
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
    session = Session(model, backend=backend, threads=threads, device=device)
    audio = frontend(session.info)
    if audio is None:
        raise UsageError(
            f"{model}: expected a model that reads audio, got one without a front end; train it with frontend=logmel"
        )
    classes = session.info.get("classes")
    if type(classes) is not list or not all(type(name) is str for name in classes):
        raise UsageError(
            f"{model}: expected the names of its classes in the file, got none; export the model from its run directory"
        )
    hop, rate = audio["hop"], audio["sample_rate"]
    samples = read_wav(source, rate)
    count = len(samples) // hop
    if not count:
        raise UsageError(
            f"{source}: expected at least {hop} samples, one step of the model, got {len(samples)}; record more"
        )
    steps = samples[: count * hop].reshape(count, hop)
    detector = Detector(classes, hop / rate, settings)
    detections: list[DetectedWord] = []
    updates = macs = 0
    for begin in range(0, count, BLOCK):
        block = steps[begin : begin + BLOCK].astype(np.float32) / np.float32(FULL_SCALE)
        scores = np.empty((len(block), len(classes)), np.float32)
        for t, step in enumerate(block):
            y = session.step(step)
            if y.shape != scores[t].shape:
                raise EdgernnError(
                    f"{model}: expected y with a score for each of its {len(classes)} classes, got {len(y)} numbers; "
                    "export the model from its run directory again"
                )
            scores[t] = y
            updates += session.neurons if session.updates is None else int(session.updates.sum())
            macs += session.info["macs"] if session.macs is None else int(session.macs.sum())
        detections += detector.feed(scores)
    seconds, cost = count * hop / rate, session.info["cost"]
    return {
        "recording": str(source),
        "seconds": seconds,
        "detections": [
            {"seconds": (word.step + 1) * hop / rate, "word": classes[word.label], "score": word.score}
            for word in detections
        ],
        "backend": session.backend,
        "skip_percent": 100 * (1 - updates / (count * session.neurons)),
        "updates_a_second": updates / seconds,
        "macs_a_second": macs / seconds,
        # files of earlier versions lack both
        **{f"{part}_macs_a_second": cost.get(f"{part}_macs", 0) * rate / hop for part in ("frontend", "block")},
    }
