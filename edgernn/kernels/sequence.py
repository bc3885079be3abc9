# SPDX-License-Identifier: Apache-2.0
"""Generator of a layer's two Triton kernels, which run a whole sequence forward or backward in one launch.

A program instance processes ROWS rows of the batch over all T steps, without synchronisation between instances. Kernels
have one of two forms:

- resident: states stay in registers, and a tile has all columns. The weights of the first `held` matrix products are
  read once, before the first step, and stay in shared memory. Those of the other products are read at every step.
- streamed: tiles have BLOCK columns. States pass through memory, and weights are read from the L2 cache in blocks.

Products outside the recurrence are not part of the kernels: W x + b of all steps is an input, and the gradients of all
pre-activations are an output. Matrix products convert their left factor to the type of the weights, and sum in float32.
If the weights are float32, the constant PRECISION says how they are multiplied: as "tf32", or "ieee" for full float32.
"""

from edgernn.kernels.backward import BackwardSource
from edgernn.kernels.forward import ForwardSource
from edgernn.kernels.layer_spec import LayerSpec
from edgernn.kernels.writer import HEADER


def source(spec: LayerSpec, resident: bool, held: int) -> str:
    """Generate the source of a Python module with the Triton kernels `forward` and `backward` of a layer.

    Args:
        spec: Description of the layer.
        resident: True for the resident form (states in registers), false for the streamed one (states in memory).
        held: In the resident form, number of matrix products whose weights are loaded once, before the first step.

    Returns:
        Python source with Triton functions.
    """
    maps = [part for part in (spec.mid, spec.update) if part is not None]
    parts = "".join(part.text for part in (*maps, *(spec.rule.maps if spec.rule else ())))
    return HEADER + parts + ForwardSource(spec, resident, held).text() + BackwardSource(spec, resident, held).text()
