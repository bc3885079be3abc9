# SPDX-License-Identifier: Apache-2.0
"""A model that detects the tones of `tests.words`, made without training: a neuron listens to the band of a tone."""

from pathlib import Path

import numpy as np
import torch

import edgernn
from edgernn.export import to_onnx
from edgernn.log_mel import mel_filters
from tests.words import PITCH, RATE, tone

CLASSES = [*PITCH, "_unknown_", "_silence_"]
NEURONS = 4 * len(PITCH)


def tone_model() -> edgernn.SequenceModel:
    """Make an rnn with selective updates, whose neurons change at a tone and once after its end."""
    model = edgernn.SequenceModel(
        "rnn", 320, NEURONS, len(CLASSES), rule="selective", output="all", frontend="logmel", hop=320, window_size=512
    ).eval()
    config = model.config.frontend
    filters = mel_filters(config)
    (layer,) = model.recurrent_layers()
    parameters = {name.split(".")[-1]: parameter for name, parameter in layer.named_parameters()}
    with torch.no_grad():
        for parameter in [*parameters.values(), *model.head.parameters()]:
            parameter.zero_()
        for neuron in range(NEURONS):
            word = neuron % len(PITCH)
            frequency = round(PITCH[CLASSES[word]] * 2 * (filters.shape[1] - 1) / RATE)
            band = int(filters[:, frequency].argmax())
            # features are 0 in silence, up to 9 where a tone begins or ends, and about 15 in the band of a tone
            parameters["W"][neuron, band], parameters["b"][neuron] = 1.0, -12.0
            parameters["rule_W"][neuron, band] = 0.5
            parameters["rule_d"][neuron], parameters["rule_b"][neuron] = 4.0, -0.75
            model.head.weight[word, neuron] = 5.0 * len(PITCH) / NEURONS
        model.head.bias[CLASSES.index("_unknown_")] = -5.0
    return model


def write_tone_model(folder: Path) -> Path:
    """Export the model with the names of its classes."""
    to_onnx(tone_model(), folder / "words.onnx", metadata={"classes": CLASSES})
    return folder / "words.onnx"


def tones(*words: str, seconds: float = 1.0) -> np.ndarray:
    """Return samples (S,), int16, of these words one after the other, each in `seconds`."""
    return np.concatenate([tone(word, i, seconds) for i, word in enumerate(words)])
