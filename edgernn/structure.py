# SPDX-License-Identifier: Apache-2.0
"""Keys to compare torch modules: modules with equal keys compute the same function of their inputs and weights."""

import types
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgernn.constants import NUMBERS

_SCALARS = (
    bool,
    int,
    float,
    str,
    bytes,
    type,
    torch.dtype,
    torch.device,
    types.FunctionType,
    types.BuiltinFunctionType,
)


def structure(module: nn.Module) -> Hashable:
    """Return a key of a module; two modules with equal keys differ at most in the values of parameters and buffers.

    The key is None if the module, or a part of it, has an attribute of a type that cannot be compared by value.
    """
    try:
        return _module(module)
    except _NotComparedError:
        return None


class _NotComparedError(Exception):
    """Raised for an attribute of a module that cannot be compared by value."""


def _module(module: nn.Module) -> Hashable:
    attributes = []
    for name, value in vars(module).items():
        if name == NUMBERS:
            # values of buffers
            continue
        if name in ("_parameters", "_buffers"):
            key: Hashable = tuple((n, None if t is None else (t.shape, t.dtype, t.device)) for n, t in value.items())
        else:
            key = _key(value)
        attributes.append((name, key))
    return type(module), *attributes


def _key(value: Any) -> Hashable:
    if value is None or isinstance(value, _SCALARS):
        # with type and repr, as 1 == 1.0 == True, 0.0 == -0.0 and NaN != NaN
        return type(value), repr(value) if isinstance(value, float) else value
    if isinstance(value, nn.Module):
        return _module(value)
    if isinstance(value, dict):
        return type(value), *((_key(k), _key(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return type(value), *map(_key, value)
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(_key, value))
    if is_dataclass(value) and not isinstance(value, Tensor):
        return type(value), *(_key(getattr(value, field.name)) for field in fields(value))
    raise _NotComparedError
