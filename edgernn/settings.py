# SPDX-License-Identifier: Apache-2.0
"""Settings: their declaration, and the conversion of `key=value` arguments and JSON files to configurations.

A configuration is a tree of frozen dataclasses. A field is declared once, with its type, limits, default and help
text:

    lr: Annotated[float, Field(gt=0, description="Learning rate.")] = 1e-3

The short name of a setting is the name of its field, unless the annotation `Word` of the field sets another one. The
dotted name is the path to the field, such as optimizer.lr.
"""

import dataclasses
import difflib
import inspect
import json
import numbers
import operator
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

import annotated_types
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic.fields import FieldInfo

from edgernn.errors import EdgernnError, UsageError, nearest

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
# the validator of a class, which takes milliseconds to build
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
# pydantic config of dataclasses that `parse` reads from files, whose keys have hyphens; it is not strict, as that would
# reject tables, so annotate numbers with StrictInt and StrictFloat
FILE = ConfigDict(extra="forbid", alias_generator=lambda name: name.replace("_", "-"), allow_inf_nan=False)
_LIMITS: dict[type, tuple[str, str]] = {
    annotated_types.Ge: ("of at least", "ge"),
    annotated_types.Gt: ("above", "gt"),
    annotated_types.Le: ("of at most", "le"),
    annotated_types.Lt: ("below", "lt"),
}
T = TypeVar("T")


def whole(name: str, value: object) -> int:
    """Return a size as an int, which may be NumPy's; raise UsageError unless it is whole, from 1 to 2^31 - 1."""
    try:
        size = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except (TypeError, RuntimeError):
        size = 0
    if size < 1:
        raise UsageError(f"{name}: expected a whole number of at least 1, got {value!r}; pass one")
    return _stored(name, size)


def _stored(name: str, value: T) -> T:
    """Return a value; raise UsageError for a whole number that does not fit the 32 bits of sizes in exported files."""
    if isinstance(value, int) and abs(value) >= 2**31:
        raise UsageError(f"{name}: expected a whole number below 2^31, got {value}")
    return value


@dataclass(frozen=True)
class Word:
    """Annotation that gives a setting a short name other than its field's; with None, users cannot set the field."""

    name: str | None


@dataclass(frozen=True)
class Expected:
    """Annotation that describes a field's valid values; errors show it in place of a text derived from the type."""

    words: str


# annotation of a field that a user cannot set, because it follows from the data or from other names
NOT_SET = Word(None)


@dataclass(frozen=True)
class Setting:
    """A setting: one field of a configuration, which users set by KEY=VALUE.

    Attributes:
        name: Short name.
        path: Names of the nested fields that lead from the configuration to the setting.
        hint: Type hint of the field, with its annotations.
        default: Default value.
        doc: Help text.
    """

    name: str
    path: tuple[str, ...]
    hint: Any
    default: Any
    doc: str = ""

    @property
    def dotted(self) -> str:
        return ".".join(name.rstrip("_") for name in self.path)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.hint, config=_STRICT)

    def read(self, value: object) -> Any:
        """Convert text to the setting's type, or validate a Python value; raise UsageError if it is invalid.

        The text "none" becomes None if the setting may be None.
        """
        try:
            if value == "none" and _is_optional(self.hint):
                return None
            if isinstance(value, numbers.Integral) and not isinstance(value, bool):
                # one of NumPy, too
                value = int(value)
            if isinstance(value, str) and str not in _plain_types(self.hint):
                read = self._adapter.validate_strings(value, strict=False)
            else:
                read = self._adapter.validate_python(value)
        except ValidationError:
            raise UsageError(f"{self.name}: expected {expected(self.hint)}, got {value!r}") from None
        return _stored(self.name, read)


def _parts(hint: Any) -> Iterable[Any]:
    """Yield the members of a union type; for any other type, yield the type. `Annotated[T, ...]` counts as T."""
    if typing.get_origin(hint) is Annotated:
        yield from _parts(typing.get_args(hint)[0])
    elif isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        for part in typing.get_args(hint):
            yield from _parts(part)
    else:
        yield hint


def _is_optional(hint: Any) -> bool:
    return types.NoneType in _parts(hint)


def _plain_types(hint: Any) -> list[type]:
    """Return [int], [float], [bool] or [str] if a type hint allows values of that type alone, else []."""
    plain = []
    for part in _parts(hint):
        kind = type(typing.get_args(part)[0]) if typing.get_origin(part) is Literal else part
        # skip type[...]: users write the name of a class, which is text
        if kind is not types.NoneType and typing.get_origin(kind) is not type:
            plain.append(kind)
    return plain if len(plain) == 1 and plain[0] in _KINDS else []


def _annotations(hint: Any) -> Iterable[Any]:
    for note in typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ():
        yield note
        if isinstance(note, FieldInfo):
            yield from note.metadata


def _doc(hint: Any) -> str:
    notes = (note.description for note in _annotations(hint) if isinstance(note, FieldInfo))
    return next((text for text in notes if text), "")


def _in_words(hint: Any) -> str | None:
    return next((note.words for note in _annotations(hint) if isinstance(note, Expected)), None)


def _container(kind: Any) -> str:
    table = dataclasses.is_dataclass(kind) or typing.get_origin(kind) is dict
    return "a table" if table else "a list" if typing.get_origin(kind) is list else "a value of another type"


def expected(hint: Any) -> str:
    """Describe the values that a type hint with its annotations allows, such as "a number above 0", for errors."""
    if words := _in_words(hint):
        return words
    plain = _plain_types(hint)
    choices = [repr(c) for part in _parts(hint) if typing.get_origin(part) is Literal for c in typing.get_args(part)]
    words = " or ".join(choices) or (_KINDS[plain[0]] if plain else _container(next(iter(_parts(hint)))))
    limits = [
        f"{_LIMITS[type(n)][0]} {getattr(n, _LIMITS[type(n)][1]):g}" for n in _annotations(hint) if type(n) in _LIMITS
    ]
    return " ".join([words, " and ".join(limits)]).strip() + " or none" * _is_optional(hint)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, Field))
def configuration(cls: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass that raises UsageError for a value of a wrong type or out of range."""
    checked = checked_dataclass(cls, frozen=True, config=ConfigDict(extra="forbid", **_STRICT))
    construct: Callable[..., None] = checked.__init__

    def init(self: Any, *args: Any, **values: Any) -> None:
        try:
            construct(self, *args, **values)
        except ValidationError as error:
            raise _usage_error(checked, error) from None

    checked.__init__ = init  # type: ignore[method-assign]
    return typing.cast(type[T], checked)


def _usage_error(owner: type, error: ValidationError) -> UsageError:
    """Convert the first problem of pydantic's ValidationError, raised when creating an `owner`, to a UsageError."""
    problem = error.errors()[0]
    name = str(problem["loc"][0]).rstrip("_") if problem["loc"] else owner.__name__
    hints = typing.get_type_hints(owner, include_extras=True)
    if problem["type"] in ("unexpected_keyword_argument", "dataclass_exact_type"):
        return nearest("setting", name, [key.rstrip("_") for key in hints])
    hint = hints.get(str(problem["loc"][0])) if problem["loc"] else None
    if hint is None or not _plain_types(hint):
        return UsageError(f"{name}: {problem['msg']}")
    word = next((note.name for note in _annotations(hint) if isinstance(note, Word) and note.name), name)
    return UsageError(f"{word}: expected {expected(hint)}, got {problem['input']!r}")


def fields_of(owner: type) -> dict[str, Setting]:
    """Return the fields that users can set in a configuration class, nested ones included: a dict by short name."""
    return {setting.name: setting for setting in _leaves(owner, ())}


def _leaves(owner: type, path: tuple[str, ...]) -> Iterable[Setting]:
    hints = typing.get_type_hints(owner, include_extras=True)
    for field in dataclasses.fields(owner):
        hint, field_path = hints[field.name], (*path, field.name)
        words = [note for note in _annotations(hint) if isinstance(note, Word)]
        if dataclasses.is_dataclass(hint):
            yield from _leaves(typing.cast(type, hint), field_path)
        elif _plain_types(hint) and NOT_SET not in words:
            name = words[0].name if words else field.name.rstrip("_")
            yield Setting(name or field.name, field_path, hint, field.default, _doc(hint))


def options_of(owner: type, without: Collection[str] = ("input_size", "hidden_size")) -> dict[str, Setting]:
    """Return the options of a class of cells, update rules or networks, as a dict from name to setting.

    Options are the constructor's arguments of type int, float, bool or str, except those named in `without`.
    """
    hints = typing.get_type_hints(owner.__init__, include_extras=True)  # type: ignore[misc]
    options = {}
    for name, parameter in inspect.signature(owner).parameters.items():
        if name not in without and name in hints and _plain_types(hints[name]):
            options[name] = Setting(name, (name,), hints[name], parameter.default, _doc(hints[name]))
    return options


def split_words(words: Iterable[str]) -> dict[str, str]:
    """Convert `key=value` arguments to a dict from key to value; raise UsageError for other text or a repeated key."""
    settings: dict[str, str] = {}
    words = list(words)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            hint = "; write no spaces around =" if "=" in words else ""
            raise UsageError(f"settings: expected KEY=VALUE, such as lr=0.01, got {word!r}{hint}")
        if key in settings:
            raise UsageError(f"{key}: expected one value, got two: {settings[key]!r} and {value!r}; leave one out")
        settings[key] = value
    return settings


def as_word(value: object) -> str:
    """Format a value as text that `Setting.read` converts back."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


Values = dict[tuple[str, ...], Any]


def bind(values: Mapping[str, object], **owners: Mapping[str, Setting]) -> dict[str, Values]:
    """Assign a user's values to the settings that their keys name, and convert them to the types of the settings.

    Args:
        values: Dict from key to value. A key is a short name or a dotted name. The first parts of a dotted name may be
            left out: norm.steps for model.layer.norm.steps.
        **owners: Groups of settings (model, cell, ...), each a dict from short name to setting. The name of the group
            is the first part of dotted names.

    Returns:
        Dict from group to the values assigned in it: a dict from the path of a setting to the converted value.

    Raises:
        UsageError: A key is unknown or ambiguous, a value is invalid, or a setting is given twice.
    """
    assigned: dict[str, Values] = {name: {} for name in owners}
    for key, value in values.items():
        matches = [
            (name, setting)
            for name, owner in owners.items()
            for setting in owner.values()
            if key == setting.name or ("." in key and f".{name}.{setting.dotted}".endswith(f".{key}"))
        ]
        if not matches:
            raise nearest("setting", key, [name for owner in owners.values() for name in owner])
        if len(matches) > 1:
            names = " or ".join(f"{name}.{setting.dotted}" for name, setting in matches)
            raise UsageError(f"{key}: several settings have this name; write the full name of one: {names}")
        ((name, setting),) = matches
        if setting.path in assigned[name]:
            raise UsageError(f"{key}: expected one value, got two, by its short and by its dotted name; leave one out")
        assigned[name][setting.path] = setting.read(value)
    return assigned


def build(owner: type[T], values: Values) -> T:
    """Create a configuration of class `owner`; `values` maps paths of fields to values, other fields get defaults."""
    hints = typing.get_type_hints(owner)
    arguments: dict[str, Any] = {}
    for name in {path[0] for path in values}:
        inner = {path[1:]: value for path, value in values.items() if path[0] == name}
        arguments[name] = inner[()] if () in inner else build(hints[name], inner)
    return owner(**arguments)


def record(configuration: Any) -> dict[str, Any]:
    """Convert a configuration to nested dicts of JSON values; a class becomes its attribute `name`, or its name."""
    # only for the names of fields: the names of options are those of a constructor's arguments
    fields = dataclasses.asdict(configuration, dict_factory=lambda pairs: {key.rstrip("_"): v for key, v in pairs})
    values: dict[str, Any] = json.loads(json.dumps(fields, allow_nan=False, default=_name_of))
    return values


def _name_of(kind: Any) -> str:
    return str(getattr(kind, "name", kind.__name__))


def load(owner: type[T], fields: object, where: str) -> T:
    """Restore a configuration from the nested dicts of JSON values to which `record` has converted it.

    Args:
        owner: Class of the configuration.
        fields: Result of `record`.
        where: Path of the file that holds `fields`, for errors.

    Returns:
        The configuration.

    Raises:
        EdgernnError: `fields` is not a configuration of this class.
    """
    try:
        configuration: T = _adapter(owner).validate_json(json.dumps(fields))
        return configuration
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        reason = f"{name}: {problem['msg'].lower()}"
        raise EdgernnError(
            f"{where}: not a configuration that this version of edgernn reads ({reason}); train again"
        ) from None


def parse(owner: type[T], values: object, where: str) -> T:
    """Validate a table of a user's TOML file and convert it to a dataclass.

    Args:
        owner: Class to create: a dataclass with the pydantic config `FILE`.
        values: Content of the table.
        where: Path of the file and name of the table; errors begin with it.

    Returns:
        The dataclass.

    Raises:
        EdgernnError: A key is missing or unknown, or a value is invalid.
    """
    try:
        table: T = _adapter(owner).validate_python(values)
        return table
    except ValidationError as error:
        keys, text = _mistake(owner, error)
    # such as "sweep.toml: settings: lr: expected a number, got 'x'"
    raise EdgernnError(": ".join([where, *([".".join(keys)] if keys else []), text]))


def _mistake(owner: type, error: ValidationError) -> tuple[list[str], str]:
    """Find the first mistake in the content of a TOML file: the keys that lead to it, and its description."""
    problem = min(error.errors(), key=lambda problem: problem["type"] != "missing")
    hint: Any = owner
    keys: list[str] = []
    for key in map(str, problem["loc"]):
        if _in_words(hint):
            break
        if dataclasses.is_dataclass(hint):
            fields = typing.get_type_hints(hint, include_extras=True)
            known = {name.replace("_", "-"): fields[name] for name in fields}
            if problem["type"] == "missing" and key == problem["loc"][-1]:
                matches = difflib.get_close_matches(key, problem["input"].keys() - known.keys(), 1)
                hint_text = f"; did you mean {matches[0]!r}?" if matches else ""
                return keys, f"expected the key {key!r}, which is missing{hint_text}"
            if key not in known:
                return keys, str(nearest("key", key, known))
            hint = known[key]
        else:
            hint = typing.get_args(next(iter(_parts(hint))))[-1]
        # errors about a dictionary's keys have an empty key
        keys += [key] if key else []
    if problem["type"] == "value_error":
        return keys, str(problem["ctx"]["error"])
    return keys, f"expected {expected(hint)}, got {problem['input']!r}"


def flat(settings: Mapping[str, Setting], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Look up the values of settings in a configuration that `record` has converted to JSON.

    Args:
        settings: Dict from short name to setting.
        fields: Result of `record`.

    Returns:
        Dict from short name to value, without settings that `fields` lacks.
    """
    values = {}
    for name, setting in settings.items():
        value: Any = fields
        try:
            for key in setting.path:
                value = value[key.rstrip("_")]
        except (KeyError, TypeError):
            continue
        values[name] = value
    return values
