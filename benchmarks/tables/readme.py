# SPDX-License-Identifier: Apache-2.0
"""Tables of README.md: one real task, and the adding task."""

import json
from typing import Any

from benchmarks.tables.measured import ADDING_MODEL, BASELINES, filled, read_report
from edgernn.errors import EdgernnError
from edgernn.names import parts
from edgernn.training.tables.table_text import shown_baselines
from edgernn.training.tasks.adding import Adding

# from rows of docs/results/sarnn-4.json to their titles in the README
ADDING_ROWS = {
    "gru": "`gru-before`",
    "random-90": "`gru-before`, 90 % of the updates left out at random",
    "skiprnn-0": "`gru-before` + `skip`, λ = 0",
    "sarnn-1e-5": "`gru-before` + `selective`, λ = 1e-5",
    "sarnn-1e-4": "`gru-before` + `selective`, λ = 1e-4",
}
# models of docs/results/sweep-activity.json in the README: (cell, rule, some of the settings)
BASELINE_MODELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("lstm", "always", {"hidden_size": 64}),
    ("gru", "always", {"hidden_size": 64}),
)
# these must be on a front of the validation split
CHOSEN_MODELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("gru", "always", {"hidden_size": 32}),
    ("pru", "always", {"hidden_size": 32}),
    ("gru", "delta", {"hidden_size": 32, "skip": 0.9}),
)
# settings that make another model of the same cell, rule and size
_VARIANTS = {"rank", "density", "weights"}
# mean squared error at which the adding task counts as solved
_BOUND = Adding.solved


def adding() -> str:
    """Return the README's table: errors and FLOPs on the adding task, from `edgernn reproduce sarnn-4`."""
    report = read_report("sarnn-4")
    rows = {row["name"]: row for row in report["rows"]}
    lines = ["| model | MSE | MSE / bound | neurons updated | FLOPs a sequence |", "|---|---:|---:|---:|---:|"]
    for name, title in ADDING_ROWS.items():
        columns = {column: value["mean"] for column, value in rows[name]["columns"].items()}
        updated = 100 - columns["skip_percent"]
        lines.append(
            f"| {title} | {columns['mse']:.1e} | {columns['mse'] / _BOUND:.2f} | {updated:.0f} % | "
            f"{columns['flops'] / 1e6:.2f} M |"
        )
    for entry in shown_baselines(report):
        mse = entry["columns"]["mse"]["mean"]
        lines.append(f"| *{entry['name']}* | {mse:.1e} | {mse / _BOUND:.2f} | | |")
    model, suite = json.loads(ADDING_MODEL.read_text(encoding="utf-8")), read_report("performance")
    times, machine = model["timings"], model["machine"]
    (dense,) = (case["contenders"]["edgernn"] for case in suite["cases"] if case["name"] == BASELINES[0])
    text = (
        f"Adding task with T = 100, 128 neurons, one seed: `{report['command']}`. An MSE up to the bound, 1/"
        f"{1 / _BOUND:.0f}, counts as solved; with another seed, the model of λ = 1e-4 may miss it. In italics: "
        "baselines without a network; the second one adds the marked numbers by definition. FLOPs: the SA-RNN "
        "paper's [convention](docs/background/cost.md). `gru-before` is its GRU, with the reset gate before the "
        "product."
    )
    timed = (
        f"Time: `models/adding-sarnn` (`gru` + `selective`, T = {model['settings']['steps']}, "
        f"{model['skip_percent']:.0f} % skipped) takes {times['edgernn native']['us_per_step']:.2f} µs a step, and "
        f"ONNX Runtime's GRU operator of the same size {times['ONNX Runtime GRU']['us_per_step']:.2f} µs, both in one "
        f"call a sequence from Python, on {machine['cpu']}: `edgernn bench models/adding-sarnn/model.onnx`. Our dense "
        f"`gru` of this size takes {dense['us']:.2f} µs, called so with T = 500: `{suite['command']}`."
    )
    return "\n".join([*lines, "", filled(text), "", filled(timed)])


def activity() -> str:
    """Return the README's table of one real task: baselines, and models that the validation split chose."""
    report = read_report("sweep-activity")
    lines = ["| model | neurons | accuracy, 95 % interval | skipped | multiply-adds a step | µs a step | kB |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    rows = [_activity_row(report, *model) for model in (*BASELINE_MODELS, *CHOSEN_MODELS)]
    for row in rows[len(BASELINE_MODELS) :]:
        if not row["front"]:
            raise EdgernnError(
                f"{row['name']}: expected a model on a front of the validation split, got another; name one on a front"
            )
    for row in rows:
        low, high = row["test"]["interval"]
        title = " + ".join(f"`{part}`" for part in parts(row["cell"], row["rule"]))
        cells = [title, str(row["settings"]["hidden_size"]), f"{row['test']['mean']:.1f} % ({low:.1f} to {high:.1f})"]
        cells += [f"{row['skip_percent']['mean']:.0f} %", f"{row['work']['mean']:,.0f}"]
        cells += [f"{row['latency']['mean']:.2f}", f"{row['bytes']['mean'] / 1000:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    for entry in shown_baselines(report):
        accuracy = entry["columns"]["accuracy"]
        low, high = accuracy["interval"]
        lines.append(f"| *{entry['name']}* | | {accuracy['mean']:.1f} % ({low:.1f} to {high:.1f}) | | | | |")
    text = (
        f"Means over {len(report['seeds'])} seeds on the test split, with weights in float32. Times: "
        f"{report['latency_call']}, on one thread of {report['latency_machine']}. Differences within 3 points are not "
        "certain. The last three models are on a front of the validation split: the two dense ones of time, `delta` of "
        f"multiply-adds. Made by `{report['command']}`: [all models, and how to "
        "choose](docs/background/signals/activity.md)."
    )
    return "\n".join(lines) + "\n\n" + filled(text)


def _activity_row(report: dict[str, Any], cell: str, rule: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the row of the sweep with this cell, rule and settings, whose weights are dense float32 ones."""
    matches: list[dict[str, Any]] = [
        row
        for row in report["rows"]
        if row["chosen"]
        and (row["cell"], row["rule"]) == (cell, rule)
        and settings.items() <= row["settings"].items()
        and not _VARIANTS & row["settings"].keys()
    ]
    (row,) = matches
    return row
