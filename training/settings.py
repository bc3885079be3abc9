# SPDX-License-Identifier: Apache-2.0
"""Settings that a user writes as `key=value`: where they are declared, and how a word becomes a value."""

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edgernn.errors import UsageError, nearest

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True)
class Setting:
    """One setting: the name that the user writes, its type, and the least value (or the one it must exceed)."""

    name: str
    kind: type
    default: Any
    optional: bool = False
    at_least: float | None = None
    above: float | None = None

    @property
    def attribute(self) -> str:
        """The Python name of the field or argument."""
        return "lambda_" if self.name == "lambda" else self.name

    def read(self, value: object) -> Any:
        """The value of a word, or of a Python object of the right type. Raises UsageError for any other."""
        if self.optional and (value is None or value == "none"):
            return None
        parsed = self._parse(value)
        if parsed is None or (isinstance(parsed, float) and not math.isfinite(parsed)):
            raise self._error(value)
        if self.at_least is not None and parsed < self.at_least:
            raise self._error(value)
        if self.above is not None and parsed <= self.above:
            raise self._error(value)
        return parsed

    def _parse(self, value: object) -> Any:
        if self.kind is bool:
            return value if isinstance(value, bool) else _BOOLS.get(str(value).lower())
        if isinstance(value, bool):
            return None
        if isinstance(value, str) or (self.kind is float and isinstance(value, int)):
            try:
                return self.kind(value)
            except (ValueError, OverflowError):
                return None
        return value if isinstance(value, self.kind) else None

    def _error(self, value: object) -> UsageError:
        words = _KINDS[self.kind]
        if self.at_least is not None:
            words += f" of at least {self.at_least:g}"
        if self.above is not None:
            words += f" above {self.above:g}"
        return UsageError(f"{self.name}: expected {words}{' or none' if self.optional else ''}, got {value!r}")


def setting(default: Any, *, at_least: float | None = None, above: float | None = None) -> Any:
    """A dataclass field that is a setting with a limit."""
    return dataclasses.field(default=default, metadata={"at_least": at_least, "above": above})


def fields_of(owner: type) -> dict[str, Setting]:
    """The settings that a dataclass declares as its fields."""
    hints = typing.get_type_hints(owner)
    found = {}
    for field in dataclasses.fields(owner):
        kind, optional = _kind(hints[field.name])
        if kind is None:
            raise TypeError(f"{owner.__name__}.{field.name}: a setting is an int, float, bool or str")
        name = field.name.rstrip("_")
        found[name] = Setting(name, kind, field.default, optional, **field.metadata)
    return found


def options_of(owner: type) -> dict[str, Setting]:
    """The settings of a cell or rule: what its constructor takes beside the sizes, if of a plain type."""
    hints = typing.get_type_hints(owner.__init__)  # type: ignore[misc]
    found = {}
    for name, parameter in inspect.signature(owner).parameters.items():
        kind, optional = _kind(hints.get(name))
        if name not in ("input_size", "hidden_size") and kind is not None:
            found[name] = Setting(name, kind, parameter.default, optional)
    return found


def _kind(hint: object) -> tuple[type | None, bool]:
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    plain = [part for part in parts if part is not types.NoneType]
    if len(plain) == 1 and isinstance(plain[0], type) and plain[0] in _KINDS:
        return plain[0], len(plain) < len(parts)
    return None, False


def split_words(words: Iterable[str]) -> dict[str, str]:
    """`key=value` words as a dictionary. Raises UsageError for a word of another form, or a key given twice."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"expected key=value, got {word!r}")
        if key in found:
            raise UsageError(f"{key}: given twice, {found[key]!r} and {value!r}")
        found[key] = value
    return found


def bind(given: Mapping[str, object], *owners: Mapping[str, Setting]) -> list[dict[str, Any]]:
    """Share out settings among their owners: for each the given ones by Python name, read.

    Raises UsageError for a key that no owner has, with the nearest one.
    """
    shares: list[dict[str, Any]] = [{} for _ in owners]
    for key, value in given.items():
        holder = next((i for i, owner in enumerate(owners) if key in owner), None)
        if holder is None:
            raise nearest("setting", key, [name for owner in owners for name in owner])
        found = owners[holder][key]
        shares[holder][found.attribute] = found.read(value)
    return shares
