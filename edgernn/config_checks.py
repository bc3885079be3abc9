# SPDX-License-Identifier: Apache-2.0
"""Checks of a model's settings that cannot be combined."""

import functools

from edgernn.config import ModelConfig
from edgernn.errors import UsageError
from edgernn.frontends import FrontendConfig
from edgernn.names import resolve_imputer
from edgernn.settings import as_word, fields_of

_SETTINGS = fields_of(ModelConfig)
# settings that have an effect only if another setting has a value, that setting, and the value
_NEEDS = (
    ([name for name in fields_of(FrontendConfig) if name != "frontend"], "frontend", "logmel"),
    (["floor_rise", "floor_fall"], "normalise", "floor"),
    (["pcen_smoothing"], "normalise", "pcen"),
    (["norm_steps"], "norm", "recurrent-batch"),
)


def check_together(config: ModelConfig) -> None:
    """Raise UsageError if a model has settings that cannot be combined, such as `bidirectional` and `imputer`."""
    words = config.input.vocabulary is not None
    imputes = resolve_imputer(config.layer.cell.name, config.layer.imputer) is not None
    options, layers = config.layer.rule.layers, config.layers * (1 + config.bidirectional)
    if options and len(options) != layers:
        raise UsageError(
            f"rule.layers: expected options for each of the {layers} recurrent layers, got {len(options)}; add one for "
            "each, or leave them out"
        )
    if config.last_size is not None and config.layers == 1:
        raise UsageError("last_size: expected at least two layers, got layers=1; set hidden_size for a single layer")
    if words and (set(config.input.mean), set(config.input.std)) != ({0.0}, {1.0}):
        raise UsageError(
            "mean, std: expected 0 and 1 with a vocabulary, as words cannot be standardised; leave them out"
        )
    if imputes and config.bidirectional:
        raise UsageError(
            "bidirectional: expected false with an imputer, which reads the times since the last observation in one "
            "direction; train a model for each direction"
        )
    if config.block is not None and config.bidirectional:
        raise UsageError(
            "block: expected none with bidirectional, as a residual block can hold only a layer of one direction; "
            "leave out block, or bidirectional"
        )
    if config.block is not None and imputes:
        raise UsageError(
            "block: expected none with an imputer, as the residual connection would pass on missing values; leave out "
            "block, or use a cell without imputer"
        )
    if config.weights != "float32" and config.layer.recurrent.density is not None:
        raise UsageError(
            f"weights: expected float32 with density, as block-sparse weights cannot be rounded, got {config.weights}; "
            "leave out one of the two"
        )
    if config.dropout.embedding and not words:
        raise UsageError("dropout_embedding: expected a vocabulary, got none; set one, or use dropout_input instead")
    _check_scales(config)
    _check_frontend(config, imputes)
    if imputes and (words or config.dropout.input or config.dropout.steps or config.dropout.channels):
        raise UsageError(
            "imputer: expected no vocabulary, dropout_input, mask_steps or mask_channels beside it, as its input is "
            "values, masks and times; leave them out"
        )


def _check_scales(config: ModelConfig) -> None:
    """Raise UsageError if mean or std do not fit the features, or a number of std is not above 0."""
    for name, numbers in (("mean", config.input.mean), ("std", config.input.std)):
        if len(numbers) not in (1, config.features):
            raise UsageError(
                f"{name}: expected one number, or {config.features}, one for each feature, got {len(numbers)}; pass as "
                "many"
            )
    if min(config.input.std) <= 0:
        raise UsageError(
            f"std: expected numbers above 0, got {min(config.input.std):g}; pass 1 for a feature that never changes"
        )


def check_effects(config: ModelConfig) -> None:
    """Raise UsageError if a setting without effect has another value than its default.

    Settings of a new model are checked, not those of a stored one, which a user cannot change.
    """
    for names, other, needed in _NEEDS:
        if (value := _value(config, other)) == needed:
            continue
        for name in names:
            if _value(config, name) != _SETTINGS[name].default:
                raise UsageError(
                    f"{name}: expected {other}={needed}, got {other}={as_word(value)}, with which it has no effect; "
                    f"set {other}={needed}, or leave out {name}"
                )


def _value(config: ModelConfig, name: str) -> object:
    return functools.reduce(getattr, _SETTINGS[name].path, config)


def _check_frontend(config: ModelConfig, imputes: bool) -> None:
    """Raise UsageError if a setting cannot be combined with the audio front end."""
    frontend, size = config.frontend, config.input.size
    if frontend.name is None:
        return
    if config.input.vocabulary is not None or imputes:
        raise UsageError("frontend: expected no vocabulary or imputer, as it reads samples of audio; leave them out")
    if size != frontend.samples:
        stacked = f" * stack={frontend.stack}" if frontend.stack > 1 else ""
        remedy = f"set hop={size // frontend.stack}, or " if size % frontend.stack == 0 else ""
        raise UsageError(
            f"hop: expected the size of the input, {size}, as each step reads hop{' * stack' * bool(stacked)} samples, "
            f"got {frontend.hop}{stacked}; {remedy}make {frontend.samples} the size of the input"
        )
