# SPDX-License-Identifier: Apache-2.0
"""Generates the constant arrays and the struct of the audio front end in the C code."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.runtime.firmware.model_content import FrontendContent
from edgernn.runtime.firmware.pointwise_c import float_literal


def frontend_record(frontend: FrontendContent, bands: int, array: Callable[[str, str, NDArray[Any]], str]) -> str:
    """Generate the constant struct `EdgernnFrontend` of engine/edgernn_frontend.h.

    Args:
        frontend: The front end of the model.
        bands: Number of features of a step.
        array: Function that adds a constant array to the source, and returns its name. Its arguments are the C type of
            an element, a name, and the values.

    Returns:
        The definition of the struct.
    """
    half = frontend.filters.shape[1] - 1
    numbers = {"hop": frontend.hop, "window_size": len(frontend.window), "half": half, "bands": bands}
    fields = {name: str(number) for name, number in numbers.items()}
    fields |= {name: array(type, f"frontend_{name}", table) for name, (type, table) in _tables(frontend).items()}
    energy_floor, _, rise, fall = frontend.settings
    # a smooth energy falls as it rises
    fall = rise if frontend.normalisation == "pcen" else fall
    settings = zip(("energy_floor", "rise", "fall"), (energy_floor, rise, fall), strict=True)
    fields |= {name: float_literal(number) for name, number in settings}
    members = "\n".join(f"    .{name} = {value}," for name, value in fields.items())
    return f"static const EdgernnFrontend frontend = {{\n{members}\n}};\n"


def _tables(frontend: FrontendContent) -> dict[str, tuple[str, NDArray[Any]]]:
    """Return the C type and values of each constant array; mel filters lack the zeros around their weights."""
    half = frontend.filters.shape[1] - 1
    angles = 2 * np.pi * np.arange(half) / (2 * half)
    kept = [np.flatnonzero(row) for row in frontend.filters]
    spans = [(int(k[0]), int(k[-1]) + 1) if len(k) else (0, 0) for k in kept]
    filters = [row[first:end] for row, (first, end) in zip(frontend.filters, spans, strict=True)]
    tables: dict[str, tuple[str, NDArray[Any]]] = {
        "window": ("float", frontend.window),
        "cosines": ("float", np.cos(angles).astype(np.float32)),
        "sines": ("float", np.sin(angles).astype(np.float32)),
        "first": ("uint16_t", np.array([first for first, _ in spans])),
        "count": ("uint16_t", np.array([end - first for first, end in spans])),
        "filters": ("float", np.concatenate(filters)),
    }
    return tables | {name: ("float", v) for name, v in zip(("alpha", "delta", "r"), frontend.pcen, strict=False)}
