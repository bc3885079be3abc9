# SPDX-License-Identifier: Apache-2.0
"""Settings of trainings in TOML files: sweeps, and recipes of papers' tables."""

import itertools
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from edgernn.errors import EdgernnError
from edgernn.files import read_bytes
from edgernn.settings import Expected


def _with_none(settings: dict[str, Any]) -> dict[str, Any]:
    """Replace the word "none" by None in values from TOML, which has no null."""
    return {name: None if value == "none" else value for name, value in settings.items()}


Settings = Annotated[dict[str, Any], AfterValidator(_with_none)]
Choices = dict[str, Annotated[list[Any], Field(min_length=1), Expected("a list of values")]]


def combinations(choices: Mapping[str, list[Any]]) -> list[Settings]:
    """List all combinations of the values of settings, each as a dict from setting to value.

    `choices` is a dict from setting to its values; an empty one gives a single empty combination.
    """
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def label(settings: Settings) -> str:
    """Format a dict of settings as a label that can be part of a file name, such as "T=10,hidden_size=3"."""
    return ",".join(f"{key}={value}" for key, value in settings.items())


def over(settings: Settings, others: Settings) -> Settings:
    """Merge two dicts of settings; those in `others` override those in `settings`.

    If two settings exclude each other, such as epochs and steps, the one in `others` removes the one in `settings`.
    """
    overridden = {name for chosen, excluded in _EXCLUDED if chosen in others for name in excluded}
    return {**{key: value for key, value in settings.items() if key not in overridden}, **others}


# a setting, and the settings that it excludes
_EXCLUDED = (
    ("steps", {"epochs"}),
    ("epochs", {"steps"}),
    ("skip", {"lambda", "skip_target"}),
    ("lambda", {"skip"}),
    ("skip_target", {"skip"}),
)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; EdgernnError if it does not exist, or is not TOML.

    Floats below a key "reported" are Decimal, because their digits show how the paper rounded.
    """
    try:
        content = tomllib.loads(read_bytes(path, "a TOML file").decode("utf-8-sig"), parse_float=Decimal)
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file; check the path") from None
    except EdgernnError:
        raise
    # also text that is not UTF-8, numbers of thousands of digits, and thousands of brackets
    except (ValueError, RecursionError) as error:
        raise EdgernnError(f"{path}: expected valid TOML, got a mistake ({error}); correct it") from None
    values: dict[str, Any] = _floats(content)
    return values


def _floats(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: entry if key == "reported" else _floats(entry) for key, entry in value.items()}
    return [_floats(entry) for entry in value] if isinstance(value, list) else value
