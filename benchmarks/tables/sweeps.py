# SPDX-License-Identifier: Apache-2.0
"""Tables of the pages that compare models, from the results of sweeps."""

import re
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.tables import table
from benchmarks.tables.measured import RESULTS, ROOT, compared, filled, read_report
from edgernn.errors import EdgernnError
from edgernn.names import parts, resolve
from edgernn.rules import RULES
from edgernn.settings import as_word, options_of
from edgernn.training.sweep.run import draw_front
from edgernn.training.sweep.table import choice_text, naming_settings
from edgernn.training.tables.table_latency import EARLIER_CALL
from edgernn.training.tables.table_text import baseline_name, number, shown_baselines
from edgernn.training.tasks import TASKS

# settings by which one way to save work takes more or less of it
_AMOUNTS = ("skip", "theta_x", "theta_h", "k")
# points of accuracy within which models count as equal
_POINTS = 0.5

# steps in a second of signal
_RATES = {"activity": 50, "ecg": 60, "keywords": 50}

# from metrics to the title of a score and the factor to its unit; the others are percentages already
_SCORES = {"mse": ("MSE × 10⁴", 1e4), "macro_f1": ("macro_f1, %", 100.0), "rmse": ("RMSE, cycles", 1.0)}

# this project's target for models trained for int8: points below float32
_INT8_LOSS = 0.2

# signals of which few models are on a front, so that the table has all of them
_WHOLE = {"ecg"}

_COSTS = {"work": "multiply-adds", "latency": "time", "bytes": "bytes"}


def signals() -> dict[str, dict[str, str]]:
    """Return the tables of the pages about signals: a dict from task to dict from the name of a table to its text."""
    texts = {
        path.stem: {"signal": signal(f"sweep-{path.stem}", every=path.stem in _WHOLE)}
        for path in measured_sweeps("signals", "sweep")
    }
    texts["activity"]["longer"] = signal("longer-activity", every=True)
    return texts


def check_signal_pages() -> None:
    """Check the advice on all pages about signals; raise EdgernnError as `check_advice` does."""
    for path in measured_sweeps("signals", "sweep"):
        page = ROOT / "docs" / "background" / "signals" / f"{path.stem}.md"
        check_advice(page.read_text(encoding="utf-8"), read_report(f"sweep-{path.stem}"))


def check_advice(page: str, report: dict[str, Any]) -> None:
    """Refuse a page about a signal that recommends a model which the validation split did not choose.

    The advice is the section "What to choose" up to its next heading. The cells and rules in the bold text of its
    bullets, and the model that its command trains, must be those of models on a front of the validation split.

    Args:
        page: Text of the page.
        report: Report of the sweep.

    Raises:
        EdgernnError: The page has no advice, or names another model.
    """
    advice = page.partition("\n## What to choose\n")[2].partition("\n#")[0]
    bold = " ".join(re.findall(r"^- \*\*(.*?)\*\*", advice, re.DOTALL | re.MULTILINE))
    named = set(re.findall(r"`([a-z0-9-]+)`", bold))
    commands = re.findall(r"^    edgernn train ((?:.*\\\n)*.*)", advice, re.MULTILINE)
    if not named:
        raise EdgernnError(f"{report['task']}: expected advice that names models on the page, got none; write it")
    chosen = [row for row in report["rows"] if row["front"]]
    unknown = named - {name for row in chosen for name in (row["cell"], row["rule"])}
    wrong = [command for command in commands if not any(_trains(command, row) for row in chosen)]
    if unknown or wrong:
        raise EdgernnError(
            f"{report['task']}: expected advice on models on a front of the validation split, got "
            f"{', '.join([*sorted(unknown), *wrong])}; move it to another section"
        )


def _trains(command: str, row: dict[str, Any]) -> bool:
    """Return True if the words after `edgernn train` name the cell, the rule and the settings of a row."""
    words = command.replace("\\\n", " ").split()
    cell, rule = (words[words.index(option) + 1] if option in words else None for option in ("--cell", "--rule"))
    names = tuple(kind.name for kind in resolve(cell or "", rule))
    settings = {f"{key}={as_word(value)}" for key, value in row["settings"].items()}
    return names == (row["cell"], row["rule"]) and settings <= set(words)


def draw_sweeps() -> None:
    """Draw the pictures of the sweeps from their reports, docs/results/NAME.json."""
    for folder, prefix in (("signals", "sweep"), ("rivals", "rivals")):
        for path in measured_sweeps(folder, prefix):
            name = f"{prefix}-{path.stem}"
            draw_front(read_report(name), RESULTS / f"{name}.png")


def measured_sweeps(folder: str, prefix: str) -> list[Path]:
    """Return the sweep files in a folder of benchmarks/sweeps whose report is docs/results/PREFIX-TASK.json."""
    files = sorted((ROOT / "benchmarks" / "sweeps" / folder).glob("*.toml"))
    return [path for path in files if (RESULTS / f"{prefix}-{path.stem}.json").is_file()]


def signal(name: str, *, every: bool = False) -> str:
    """Return the table of a sweep of one task: the best dense model of each cell, and the Pareto-optimal models.

    No other model beats a Pareto-optimal one in both the metric and a cost: multiply-adds, time or bytes. The function
    reads docs/results/NAME.json, the table.json of an `edgernn sweep`. With `every` the table has all models.
    """
    report = read_report(name)
    sign = 1 if report["higher_is_better"] else -1
    chosen = [row for row in report["rows"] if row["chosen"]]
    dense: dict[str, dict[str, Any]] = {}
    for row in chosen:
        if _is_dense(row) and ((best := dense.get(row["cell"])) is None or worth(row, sign) > worth(best, sign)):
            dense[row["cell"]] = row
    shown = {row["name"]: row for row in [*dense.values(), *(row for row in chosen if row["front"] or every)]}
    metric, rate = report["metric"], _RATES.get(report["task"])
    heads = ["cell and rule", "neurons", "settings", f"{metric}, 95 % interval", "skipped", "multiply-adds", "µs"]
    heads += [*(["µs per second of signal"] if rate else []), "kB", "best for"]
    lines = [f"| {' | '.join(heads)} |", f"|---|---:|---|{'---:|' * (len(heads) - 4)}---|"]
    for row in sorted(shown.values(), key=_work):
        *cells, size, best = _cells(row, report)
        time = row["latency"]["mean"]
        a_second = ["" if time is None else f"{rate * time:.0f}"] if rate else []
        lines.append(f"| {' | '.join([*cells, *a_second, size, best])} |")
    for entry in shown_baselines(report):
        quality = _with_bounds(entry["columns"][metric])
        cells = [baseline_name(entry, report, ()), "", "", quality, _skipped(entry["columns"])]
        lines.append(f"| {' | '.join([*cells, *[''] * (len(heads) - len(cells))])} |")
    fewer = ", fewer where a training failed" * any(len(row["seeds"]) < len(report["seeds"]) for row in shown.values())
    second = f" A second of signal has {rate} steps." if rate else ""
    how = (
        f"Means over {len(report['seeds'])} seeds on the test split{fewer}, with the 95 % confidence interval of the "
        f"mean. Multiply-adds, with those of blocks, and µs are those of a step with one sequence.{second} "
        f"Best for: no other model of the {len(chosen)} has both a better mean on the validation split and a lower "
        f"cost of this kind. {how_timed(report)} Made by `{report['command']}`, {len(report['rows'])} combinations of "
        "cell, rule, size and learning rate. Options that all models of a rule share are in that file only."
        f"{_trivial(report)}"
    )
    # an earlier version had no choices
    choices = [f"- {choice_text(choice)}: {choice['row']}." for choice in report.get("choices", ())]
    return "\n".join([*lines, "", filled(how), *[""] * bool(choices), *choices])


def rivals(name: str) -> str:
    """Return the table of the cheapest model of each way to save work, among models of equal quality.

    It reads docs/results/NAME.json, the table.json of an `edgernn sweep`. The quality is judged on the validation
    split. It counts as equal if the accuracy is at most half a point below that of the best dense GRU or LSTM. For a
    task with a bound at which it counts as solved, it is equal if the task is solved. If a way to save work has no such
    model, its best one is shown.
    """
    report = read_report(name)
    sign, solved = 1 if report["higher_is_better"] else -1, TASKS[report["task"]].solved
    chosen = [row for row in report["rows"] if row["chosen"]]
    dense = max(
        (row for row in chosen if _is_dense(row) and row["cell"] in ("gru", "lstm")), key=lambda row: worth(row, sign)
    )
    least = worth(dense, sign) - _POINTS if solved is None else sign * solved
    ways: dict[str, list[dict[str, Any]]] = {}
    for row in chosen:
        ways.setdefault(_way(row, report), []).append(row)
    shown = []
    for rows in ways.values():
        equal = [row for row in rows if worth(row, sign) >= least]
        best = min(equal, key=_work) if equal else max(rows, key=lambda row: worth(row, sign))
        shown.append((True, not equal, _work(best), best))
    if solved is None:
        # the row with which all others are compared comes first, also if a smaller model of its cell is as good
        shown = [(False, False, _work(dense), dense), *(entry for entry in shown if entry[3] is not dense)]
    heads = [f"{report['metric']}, %" if solved is None else report["metric"], "equal" if solved is None else "solved"]
    lines = [f"| way | neurons | {' | '.join(heads)} | skipped | multiply-adds | µs | kB |", f"|---|---|{'---:|' * 6}"]
    for _, unequal, _, row in sorted(shown, key=lambda entry: entry[:3]):
        _, _, _, _, skipped, *costs, _ = _cells(row, report)
        settings = settings_of(row, report)
        amounts = (f"{key}={settings[key]}" for key in _AMOUNTS if key in settings)
        neurons = ", ".join([str(row["settings"]["hidden_size"]), *amounts])
        if solved is not None:
            quality = f"{row['test']['mean']:.4f}"
        elif row is dense:
            quality = f"{row['test']['mean']:.1f}"
        else:
            quality = compared(by_seed(row), by_seed(dense))
        way = _way(row, report)
        lines.append(f"| {' | '.join([way, neurons, quality, 'no' if unequal else 'yes', skipped, *costs])} |")
    for entry in shown_baselines(report):
        columns = entry["columns"]
        mean = columns[report["metric"]]["mean"]
        quality = [f"{mean:.1f}", ""] if solved is None else [f"{mean:.4f}", "yes" if sign * mean >= least else "no"]
        cells = [baseline_name(entry, report, ()), "", *quality, _skipped(columns), "", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    if solved is None:
        judged = (
            "After the mean stands the difference from the model of the first row, paired by seed, ± half the width of "
            "its 95 % confidence interval; bold if the interval excludes 0. Equal: on the validation split, at most "
            "half a point less than the first row."
        )
    else:
        judged = f"Solved: a mean of at most {solved:.5f} on the validation split, at which a training ends."
    how = (
        f"Means over {len(report['seeds'])} seeds on the test split. {judged} Skipped: updates, or under delta values "
        "that are not read anew. Multiply-adds, with those of blocks, and µs are those of a step with one sequence; "
        f"kB: weights. {how_timed(report)} Made by `{report['command']}`, which trains {len(chosen)} models after the "
        f"search. Options that all models of a rule share are in that file only.{_trivial(report)}"
    )
    return "\n".join(lines) + "\n\n" + filled(how)


def skip_rnn() -> str:
    """Return the table of Skip RNN as its authors train it, measured by benchmarks/skip_rnn.py."""
    report = read_report("skip-rnn")
    settings, runs = report["settings"], report["runs"]
    cells = [
        [str(run["seed"]), f"{run['mse']:.5f}", "yes" if run["solved"] else "no", f"{run['skip_percent']:.1f} %"]
        for run in runs
    ]
    text = (
        f"{settings['hidden_size']} neurons, the reset gate before the product, biases of gates that start at 1, a "
        f"fixed λ of 1e-5, batches of {settings['batch_size']}, a rate of {settings['lr']:g}, {settings['steps']:,} "
        f"steps. Solved: a mean squared error of at most a hundredth of the variance. Made by `{report['command']}`."
    )
    return f"{table(['seed', 'mse', 'solved', 'steps skipped'], cells, 0)}\n\n{filled(text)}"


def int8_pairs() -> str:
    """Return the table of all models trained for int8 beside the same models in float32, from the results of sweeps.

    It reads docs/results/rivals-TASK.json and sweep-TASK.json. Two models are the same if cell, rule and settings are,
    but for the type of the weights and the learning rate, which was searched for each.
    """
    lines = ["| task | cell and rule | neurons | float32 | trained for int8 |", "|---|---|---|---:|---:|"]
    losses, unequal = [], 0
    for folder, prefix in (("rivals", "rivals"), ("signals", "sweep")):
        for path in measured_sweeps(folder, prefix):
            report = read_report(f"{prefix}-{path.stem}")
            title, factor = score_of(report)
            for rounded, exact in _twins(report):
                int8, float32 = ({s: factor * v for s, v in by_seed(row).items()} for row in (rounded, exact))
                way = " + ".join(parts(exact["cell"], exact["rule"]))
                neurons = neurons_and_settings(exact, report)
                difference = compared(int8, float32)
                lines.append(
                    f"| {path.stem}, {title} | {way} | {neurons} | {fmean(float32.values()):.1f} | {difference} |"
                )
                unequal += "**" in difference
                if report["higher_is_better"]:
                    losses.append(fmean(float32[seed] - int8[seed] for seed in float32.keys() & int8.keys()))
    within = sum(loss <= _INT8_LOSS for loss in losses)
    how = (
        "Means over the seeds on the test split; after them the difference from float32 ± half the width of its 95 % "
        "confidence interval, paired by seed, bold if the interval excludes 0. Of the "
        f"{len(losses)} pairs with a score in percent, {within} lose at most {_INT8_LOSS} points; the mean loss is "
        f"{fmean(losses):.1f} points. The interval excludes 0 in {unequal or 'none'} of all {len(lines) - 2} pairs. "
        "Made by the sweeps in benchmarks/sweeps/rivals and benchmarks/sweeps/signals."
    )
    return "\n".join(lines) + "\n\n" + filled(how)


def score_of(report: dict[str, Any]) -> tuple[str, float]:
    """Return the title of a report's metric in the unit in which models are compared, and the factor to this unit."""
    return _SCORES.get(report["metric"], (f"{report['metric']}, %", 1.0))


def _twins(report: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the chosen rows that were trained for int8, each with the row of the same model in float32."""
    chosen = [row for row in report["rows"] if row["chosen"]]
    exact = {_without_weights(row, report): row for row in chosen if "weights" not in row["settings"]}
    return [(row, exact[_without_weights(row, report)]) for row in chosen if row["settings"].get("weights") == "int8"]


def _without_weights(row: dict[str, Any], report: dict[str, Any]) -> tuple[Any, ...]:
    """Return a key that is equal for rows of the same model, whatever their type of weights and searched settings."""
    left_out = {"weights", *report["searched"]}
    options = {name: option.default for name, option in options_of(RULES[row["rule"]]).items()} | row["settings"]
    return row["cell"], row["rule"], frozenset((key, options[key]) for key in options.keys() - left_out)


def settings_of(row: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that tell a row apart from others of its cell and rule, without the number of neurons."""
    return {key: row["settings"][key] for key in naming_settings(report, row) if key != "hidden_size"}


def neurons_and_settings(row: dict[str, Any], report: dict[str, Any]) -> str:
    """Format the number of neurons of a row and the settings that tell it apart from others."""
    settings = (f"{key}={value}" for key, value in settings_of(row, report).items())
    return ", ".join([str(row["settings"]["hidden_size"]), *settings])


def _way(row: dict[str, Any], report: dict[str, Any]) -> str:
    """Return the way in which a row's model saves work, as text: its cell, update rule and settings."""
    settings = {key: value for key, value in settings_of(row, report).items() if key not in _AMOUNTS}
    return ", ".join([" + ".join(parts(row["cell"], row["rule"])), *(f"{k}={v}" for k, v in settings.items())])


def how_timed(report: dict[str, Any]) -> str:
    """Return a sentence that says how the times of a report were measured."""
    # the call is missing from reports of an earlier version
    call = report.get("latency_call", EARLIER_CALL)
    text = f"Times: {call}, divided by the number of steps, on one thread of {report['latency_machine']}."
    untimed = report.get("latency_errors", {})
    cells = sorted({row["cell"] for row in report["rows"] if row["name"] in untimed})
    return text + (f" Not timed: {', '.join(cells)}." if cells else "")


def _is_dense(row: dict[str, Any]) -> bool:
    """Return True for a row whose model updates every neuron at every step, with dense float32 weights of full rank."""
    return row["rule"] == "always" and not {"rank", "density", "weights"} & row["settings"].keys()


def worth(row: dict[str, Any], sign: int = 1) -> float:
    return float(sign * row["validation"]["mean"])


def _work(row: dict[str, Any]) -> float:
    return float(row["work"]["mean"])


def by_seed(row: dict[str, Any]) -> dict[int, float]:
    """Return a row's metric on the test split, as a dict from seed to value."""
    return dict(zip(row["seeds"], row["test"]["values"], strict=True))


def _cells(row: dict[str, Any], report: dict[str, Any]) -> list[str]:
    return [
        " + ".join(parts(row["cell"], row["rule"])),
        str(row["settings"]["hidden_size"]),
        ", ".join(f"{key}={value}" for key, value in settings_of(row, report).items()),
        _with_bounds(row["test"]),
        _skipped(row),
        f"{row['work']['mean']:,.0f}",
        "" if row["latency"]["mean"] is None else number(row["latency"]["mean"]),
        f"{row['bytes']['mean'] / 1000:.1f}",
        ", ".join(_COSTS[cost] for cost in row["front"]),
    ]


def _with_bounds(values: dict[str, Any]) -> str:
    """Format the mean of a metric with its confidence interval, such as "90.7 (89.1 to 92.3)"."""
    bounds = f" ({' to '.join(number(bound) for bound in values['interval'])})" if values["interval"] else ""
    return f"{number(values['mean'])}{bounds}"


def _skipped(columns: dict[str, Any]) -> str:
    """Format the percentage of skipped updates; a baseline without updates has none."""
    return f"{columns['skip_percent']['mean']:.0f} %" if "skip_percent" in columns else ""


def _trivial(report: dict[str, Any]) -> str:
    """Return the sentence that explains the rows of trivial baselines, or "" without such rows."""
    return " Rows in italics: trivial baselines, which need no network, on the same test splits." * bool(
        shown_baselines(report)
    )
