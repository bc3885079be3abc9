# SPDX-License-Identifier: Apache-2.0
"""Types in which a file stores weight matrices."""

from typing import Literal, get_args

WeightType = Literal["float32", "bfloat16", "int8"]
WEIGHT_TYPES: tuple[WeightType, ...] = get_args(WeightType)
# bits of a weight, by the name of its type
WEIGHTS: dict[str, int] = {"float32": 32, "bfloat16": 16, "int8": 8}
