# SPDX-License-Identifier: Apache-2.0
"""Base class of modules with constants: buffers whose numbers follow from the options, and that no state dict has."""

from typing import Any, Self

import torch
from torch import Tensor, nn

# attribute of a module with the values of its constants
NUMBERS = "_numbers"


class Constants(nn.Module):
    """Module that has its constants again when it leaves the device meta, on which tensors have no numbers.

    `to_empty` allocates tensors for `load_state_dict` to fill, and `load_state_dict(..., assign=True)` replaces those
    of meta. Both would leave the constants out, as they are not in the state dict.
    """

    _numbers: dict[str, Any] = {}  # noqa: RUF012 (replaced, never changed)

    def register_constant(self, name: str, numbers: Any) -> None:
        """Register a buffer with these numbers, a list or an array, in torch's default dtype."""
        self._numbers = self._numbers | {name: numbers}
        self.register_buffer(name, torch.tensor(numbers, dtype=torch.get_default_dtype()), persistent=False)

    def _on_meta(self) -> dict[str, Tensor]:
        buffers = {name: self._buffers[name] for name in self._numbers}
        return {name: buffer for name, buffer in buffers.items() if buffer is not None and buffer.is_meta}

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        lost = self._on_meta()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name in lost:
            buffer = self._buffers[name]
            if buffer is not None and not buffer.is_meta:
                buffer.copy_(torch.tensor(self._numbers[name]))
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, *others: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, metadata, *others)
        if metadata.get("assign_to_params_buffers"):
            for name, buffer in self._on_meta().items():
                self._buffers[name] = torch.tensor(self._numbers[name], dtype=buffer.dtype)
