# SPDX-License-Identifier: Apache-2.0
"""Update rules, which decide which neurons change at a step.

Saves: the work of the neurons that keep their value. The native kernels skip the weight rows of these neurons. At a
skipped step, `skip` does not even read x. `delta` skips the weight columns of values of x and h that hardly changed.
`topk` computes one gate of all neurons, and the other gates of a fixed number of them.
A decision costs H multiply-adds (`skip`), H + I (`variable`) or H·I + H (`selective`), or one comparison per value of x
and h (`delta`). `topk` reads a gate of the cell. `periodic`, `random`, `clockwork` and `phased` decide from the step
index alone.
Choose `selective` if different neurons are needed at different times, `skip` if whole steps carry no information, and
`variable` if some steps need more computation than others. Choose `delta` if values change slowly, or to make a trained
dense model cheaper without training it again. Choose `topk` if the time of a step is to be bounded, and the cell has an
update gate. Choose `clockwork` or `phased` if the data have known periods. `periodic` and `random` are baselines for
learned rules: try `periodic` first. The weight λ of the penalty on updates trades a learned rule's accuracy for speed.
With the training setting skip=SHARE, λ is adapted until the model skips this share of the updates.
To add a rule: write its file, with the kind of its decisions as base class (`kinds`), list it in RULES, add its
equations in NumPy to `tests/oracle_rules.py`, and run `make docs`, which writes the header of its native kernels. See
`docs/how-to/add-a-rule.md`, also for a new kind.
"""

from edgernn.extras import needed_by

with needed_by("edgernn.rules"):
    from edgernn.rules.always import Always
    from edgernn.rules.base import Decision, Memory, UpdateRule
    from edgernn.rules.delta import Delta
    from edgernn.rules.fixed import Clockwork, Random
    from edgernn.rules.kinds.column import PerColumn
    from edgernn.rules.kinds.gate import ByGate
    from edgernn.rules.kinds.scored import PerNeuron, PerSample
    from edgernn.rules.kinds.timed import Timed
    from edgernn.rules.periodic import Periodic
    from edgernn.rules.phased import Phased
    from edgernn.rules.selective import Selective
    from edgernn.rules.skip import Skip
    from edgernn.rules.topk import TopK
    from edgernn.rules.variable import Variable

RULES: dict[str, type[UpdateRule]] = {
    rule.name: rule
    for rule in (
        Always,
        Periodic,
        Random,
        Clockwork,
        Phased,
        Skip,
        Variable,
        Selective,
        Delta,
        TopK,
    )
}

__all__ = [
    "RULES",
    "Always",
    "ByGate",
    "Clockwork",
    "Decision",
    "Delta",
    "Memory",
    "PerColumn",
    "PerNeuron",
    "PerSample",
    "Periodic",
    "Phased",
    "Random",
    "Selective",
    "Skip",
    "Timed",
    "TopK",
    "UpdateRule",
    "Variable",
]
