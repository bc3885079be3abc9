# SPDX-License-Identifier: Apache-2.0
"""Tables of README.md: one real task, and the adding task."""

import json
from typing import Any

from edgernn.names import parts
from measured_tables import ADDING_MODEL, BASELINES, filled, read_report

# from rows of docs/results/sarnn-4.json to their titles in the README
ADDING_ROWS = {
    "gru": "`gru-before`",
    "random-90": "`gru-before`, 90 % of the updates left out at random",
    "skiprnn-0": "`gru-before` + `skip`, λ = 0",
    "sarnn-1e-5": "`gru-before` + `selective`, λ = 1e-5",
    "sarnn-1e-4": "`gru-before` + `selective`, λ = 1e-4",
}
# models of docs/results/sweep-activity.json in the README: (cell, rule, settings without the searched ones)
ACTIVITY_MODELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("lstm", "always", {"hidden_size": 64}),
    ("gru", "always", {"hidden_size": 64}),
    ("gru", "skip", {"hidden_size": 64, "skip": 0.9}),
    ("pru", "always", {"hidden_size": 32}),
)


def adding() -> str:
    """Return the README's table: errors and FLOPs on the adding task, from `edgernn reproduce sarnn-4`."""
    report = read_report("sarnn-4")
    rows = {row["name"]: row for row in report["rows"]}
    lines = ["| model | MSE | solved | neurons updated | FLOPs a sequence |", "|---|---:|---|---:|---:|"]
    for name, title in ADDING_ROWS.items():
        columns = {column: value["mean"] for column, value in rows[name]["columns"].items()}
        solved = "yes" if columns["solved"] == 100 else "no"
        updated = 100 - columns["skip_percent"]
        lines.append(
            f"| {title} | {columns['mse']:.1e} | {solved} | {updated:.0f} % | {columns['flops'] / 1e6:.2f} M |"
        )
    model, suite = json.loads(ADDING_MODEL.read_text(encoding="utf-8")), read_report("performance")
    times, machine = model["timings"], model["machine"]
    (dense,) = (case["contenders"]["edgernn"] for case in suite["cases"] if case["name"] == BASELINES[0])
    text = (
        f"Adding task with T = 100, 128 neurons, one seed: `{report['command']}`. It counts as solved if the MSE is at "
        "most 1.67e-3. FLOPs follow the SA-RNN paper's convention ([How cost is counted](docs/background/cost.md)). "
        "`gru-before` is the paper's GRU, with the reset gate before the product. `sarnn` is the rule `selective` with "
        "the cell `gru`."
    )
    timed = (
        f"Time: the `sarnn` in `models/adding-sarnn` (T = {model['settings']['steps']}, {model['skip_percent']:.0f} % "
        f"skipped) takes {times['edgernn native']['us_per_step']:.2f} µs a step, and ONNX Runtime's GRU operator of "
        f"the same size {times['ONNX Runtime GRU']['us_per_step']:.2f} µs, on one core of {machine['cpu']}: `edgernn "
        "bench models/adding-sarnn/model.onnx`. Without our library, ONNX Runtime takes "
        f"{times['edgernn portable']['us_per_step']:.1f} µs for this model, so use the library. Our dense `gru` of "
        f"this size takes {dense['us']:.2f} µs (T = 500, `{suite['command']}`, {suite['machine']['cpu']})."
    )
    return "\n".join([*lines, "", filled(text), "", filled(timed)])


def activity() -> str:
    """Return the README's table of one real task: four models of the sweep of the task activity."""
    report = read_report("sweep-activity")
    chosen = [row for row in report["rows"] if row["chosen"]]
    lines = ["| model | neurons | accuracy, 95 % interval | skipped | multiply-adds a step | µs a step | kB |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for *kind, settings in ACTIVITY_MODELS:
        (row,) = (
            row
            for row in chosen
            if [row["cell"], row["rule"]] == kind
            and {key: value for key, value in row["settings"].items() if key not in report["searched"]} == settings
        )
        low, high = row["test"]["interval"]
        title = " + ".join(f"`{part}`" for part in parts(row["cell"], row["rule"]))
        cells = [title, str(settings["hidden_size"]), f"{row['test']['mean']:.1f} % ({low:.1f} to {high:.1f})"]
        cells += [f"{row['skip_percent']['mean']:.0f} %", f"{row['work']['mean']:,.0f}"]
        cells += [f"{row['latency']['mean']:.2f}", f"{row['bytes']['mean'] / 1000:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    text = (
        f"Means over {len(report['seeds'])} seeds on the test split, with weights in float32. Times: "
        f"{report['latency_call']}, on one thread of {report['latency_machine']}. Differences within 3 points are not "
        "certain, and the model with `skip` was chosen with the test in view. Made by "
        f"`{report['command']}`: [all models, and how to choose](docs/background/signals/activity.md)."
    )
    return "\n".join(lines) + "\n\n" + filled(text)
