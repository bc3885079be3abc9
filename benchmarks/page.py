# SPDX-License-Identifier: Apache-2.0
"""Reports of the suite as Markdown pages: docs/background/performance.md."""

import re
from typing import Any

from edgernn.bench.case import PAUSE_MS, ROUNDED, WITH_INPUT
from edgernn.bench.page import tables, targets_table, times_table


def page(report: dict[str, Any]) -> str:
    """Format a report of `run_suite` as Markdown: machine, method, targets, where others are faster, and all times."""
    return "\n\n".join([_machine(report), _explained(report), *tables(report["cases"])]) + "\n"


def section(report: dict[str, Any]) -> str:
    """Format a second report, such as one from another machine, as a Markdown section: machine, targets and times."""
    cases = [case for case in report["cases"] if "failed" not in case]
    return "\n\n".join([_machine(report), targets_table(cases), times_table(cases)])


def _machine(report: dict[str, Any]) -> str:
    machine, peers = report["machine"], report["peers"]
    # contenders of the same runtime share one entry
    versions = {
        **machine["versions"],
        **{re.split(r"[ ,]", name)[0]: version for name, version in peers.items() if version},
    }
    versions = {name: version for name, version in versions.items() if name not in ("ONNX", "PyTorch")}
    listed = [f"{name} {version}" for name, version in versions.items()]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, instruction set "
        f"{machine['instruction_set']}; Python {machine['python']}, {', '.join(listed)}. Begun {report['begun']}"
        + (f" by `{report['command']}`." if report["command"] else ".")
    )


def _explained(report: dict[str, Any]) -> str:
    short = "**A quick run, whose figures are rough.** " if report["quick"] else ""
    rounds, block = report["settings"]["rounds"], report["settings"]["block_ms"]
    return (
        f"{short}`gru (2, 128), T=500, B=32` is a gru with 2 inputs and 128 neurons on 32 sequences of 500 steps. "
        "Without B it is one sequence, and T=1 is one step a call. Peers are the other runtimes. `OpenVINO f32` "
        "computes in float32, and `OpenVINO` in the precision that it selects. `JAX, input first` multiplies the whole "
        "input by W before the first step.\n\n"
        "The targets are this project's own. They limit the ratio of our time to another's. *Within the spread*: the "
        "limit lies between the quartiles of this ratio over the rounds.\n\n"
        "Each case runs in a process of its own, limited to as many processors as it has threads. All "
        f"contenders are verified first. Then each of {rounds} rounds times a block of {block:g} ms of each contender, "
        "in shuffled order. A figure is the median over rounds of the block medians, in µs per step. A ratio is the "
        "median over rounds of our time divided by the other's in the same round: below 1 we are faster. With several "
        f"threads, a pause of {PAUSE_MS:g} ms before each block lets the other contenders' threads stop spinning. "
        "All contenders are called from Python, once for all T steps; LiteRT is called once for each step, because its "
        "forms of a whole sequence are slower. Steps from C are calls of a packed model (`edgernn pack`) in a loop "
        "without Python.\n\n"
        "The roofline is measured in the same rounds. For one sequence it is the product with the recurrent weights "
        "alone, packed and warm in cache; at T=1 it includes the input weights. For other cells and for low rank it is "
        "a product with as many multiply-adds as are executed. For a batch it is all multiply-adds at the peak rate of "
        f"one thread times the number of threads. `{WITH_INPUT}` adds the products with a sequence's input weights at "
        f"the peak rate. With weights of fewer bits, edgernn and peers that round may be off by {ROUNDED:g}, and the "
        "best peer is the fastest one in float32."
    )
