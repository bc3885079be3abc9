# SPDX-License-Identifier: Apache-2.0
"""Tables and picture of the page *When does skipping pay?*, from the results of sweeps and of benchmarks."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tables import table
from benchmarks.tables.measured import RESULTS, filled, read_report, with_margin
from benchmarks.tables.sweeps import by_seed, how_timed, measured_sweeps, neurons_and_settings, score_of, worth
from edgernn.names import parts
from edgernn.training.pictures import save
from edgernn.training.tables.statistics import Difference, mean_difference
from edgernn.training.tables.table_text import number

# colours of verdicts in the picture
_COLOURS = {"better": "#009e73", "equal": "#0072b2", "undecided": "silver", "worse": "#d55e00"}
# folders of sweeps in benchmarks/sweeps, and prefixes of their reports; the metric of adding has no unit
_SWEEPS, _WITHOUT = (("signals", "sweep"), ("rivals", "rivals"), ("skipping", "skipping")), {"rivals-adding"}


class Comparison(NamedTuple):
    """A model that skips beside the best model of at most its time that does not.

    Attributes:
        row: Row of the model in "rows" of table.json.
        rival: Row of the other model.
        difference: Mean over the seeds of the model's metric less the rival's on the test split, paired.
        verdict: better, equal, undecided or worse.
    """

    row: dict[str, Any]
    rival: dict[str, Any]
    difference: Difference
    verdict: str


def comparisons(report: dict[str, Any]) -> list[Comparison]:
    """Compare each model of a sweep that skips with the one without skipping that takes at most as long.

    The rival has the best mean on the validation split of all models that update every neuron at every step and take at
    most as long; if there is none, it is the fastest of them. The verdict is that of the 95 % confidence interval of
    the difference: equal if it lies within ±1 point or unit, better or worse if it excludes 0 and is not equal, else
    undecided.
    """
    sign, factor = 1 if report["higher_is_better"] else -1, score_of(report)[1]
    timed = [row for row in report["rows"] if row["chosen"] and row["latency"]["mean"] is not None]
    whole, skipping = ([row for row in timed if (row["rule"] == "always") is dense] for dense in (True, False))
    compared = []
    for row in sorted(skipping, key=_time):
        rivals = [other for other in whole if _time(other) <= _time(row)]
        rival = max(rivals, key=lambda other: worth(other, sign)) if rivals else min(whole, key=_time)
        values, rival_values = by_seed(row), by_seed(rival)
        seeds = sorted(values.keys() & rival_values.keys())
        pairs = ([factor * of[seed] for seed in seeds] for of in (values, rival_values))
        difference = mean_difference(*pairs, paired=True)
        compared.append(Comparison(row, rival, difference, _verdict(difference, sign)))
    return compared


def _verdict(difference: Difference, sign: int) -> str:
    low, high = sorted(sign * bound for bound in difference.interval or (difference.value, difference.value))
    if low >= -1 and high <= 1:
        return "equal"
    return "better" if low > 0 else "worse" if high < 0 else "undecided"


def _time(row: dict[str, Any]) -> float:
    return float(row["latency"]["mean"])


def _reports() -> Iterator[dict[str, Any]]:
    for folder, prefix in _SWEEPS:
        for path in measured_sweeps(folder, prefix):
            if (name := f"{prefix}-{path.stem}") not in _WITHOUT:
                yield read_report(name)


def skipping() -> dict[str, str]:
    """Return the tables of the page: a dict from the name of each part to its text."""
    texts = {"verdicts": verdicts(), "sizes": sizes()}
    return texts | {path.stem: equal_time(f"skipping-{path.stem}") for path in measured_sweeps("skipping", "skipping")}


def verdicts() -> str:
    """Return the table that counts, for each sweep and rule, how models that skip compare at equal time."""
    rows = []
    total: Counter[str] = Counter()
    for report in _reports():
        counts: dict[str, Counter[str]] = {}
        for comparison in comparisons(report):
            counts.setdefault(comparison.row["rule"], Counter())[comparison.verdict] += 1
            total[comparison.verdict] += 1
        for rule, of_rule in counts.items():
            numbers = [str(of_rule[verdict] or "") for verdict in _COLOURS]
            rows.append([report["task"], rule, str(of_rule.total()), *numbers])
    rows.append(["**all**", "", str(total.total()), *(str(total[verdict]) for verdict in _COLOURS)])
    how = (
        "Each model that skips, beside the model without skipping that the validation split prefers among those that "
        "take at most as long; times are those of a step from C, on one thread. Better and worse: the 95 % confidence "
        "interval of the difference on the test split, paired by seed, excludes 0. Equal: it lies within ±1 point or "
        "cycle. There is no correction for the number of comparisons: of twenty that differ in nothing, one is "
        "expected to exclude 0."
    )
    return f"{table(['task', 'rule', 'models', *_COLOURS], rows, 2)}\n\n{filled(how)}"


def equal_time(name: str) -> str:
    """Return the table of the `comparisons` of a sweep, from docs/results/NAME.json."""
    report = read_report(name)
    title, factor = score_of(report)
    heads = ["cell and rule", "settings", title, "µs", "without skipping", "µs", "difference", "verdict"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---:|---:|---|---:|---:|---|"]
    compared = comparisons(report)
    for row, rival, difference, verdict in compared:
        quality = number(factor * row["test"]["mean"])
        cells = [
            " + ".join(parts(row["cell"], row["rule"])),
            neurons_and_settings(row, report),
            quality,
            number(_time(row)),
        ]
        cells += [f"{rival['cell']} {neurons_and_settings(rival, report)}", number(_time(rival))]
        lines.append(f"| {' | '.join([*cells, with_margin(difference, 1), verdict])} |")
    counted = ", ".join(f"{n} {verdict}" for verdict, n in sorted(Counter(c.verdict for c in compared).items()))
    how = (
        f"Of {len(compared)} models that skip, beside others of at most equal time: {counted}. Difference: mean over "
        f"{len(report['seeds'])} seeds on the test split, paired, ± half of its 95 % confidence interval. "
        f"{how_timed(report)} Made by `{report['command']}`."
    )
    return "\n".join(lines) + "\n\n" + filled(how)


def sizes() -> str:
    """Return the table of time and work over size and processor, for layers of which a share is skipped."""
    curve, controllers = read_report("skip-curve"), read_report("microcontrollers")
    lines = [
        "| layer (I, H) | on | a step, dense | 40 % skipped | 75 % skipped | 90 % skipped |",
        f"|---|---|{'---:|' * 4}",
    ]
    single = [(layer, 1) for layer in curve["layers"]]
    batches = [
        (result, result["B"])
        for layer in read_report("skip-streams")["layers"]
        for result in layer["results"]
        if result["T"] == 1 and result["B"] in (8, 128)
    ]
    for layer, batch in single + batches:
        points = {point["skip"]: point["time"] for point in layer["points"] if point["group_size"] == 1}
        cells = [
            f"{layer['cell']} ({layer['I']}, {layer['H']})",
            f"x86, B = {batch}",
            f"{number(layer['dense_us'])} µs",
        ]
        lines.append(f"| {' | '.join([*cells, *(f'{points[skip]:.2f}' for skip in (0.4, 0.75, 0.9))])} |")
    dense, skips = (controllers["models"][name] for name in ("gru (2, 128), float32", "adding-sarnn (2, 128)"))
    for device, title in controllers["titles"].items():
        ratio = skips[device]["instructions"] / dense[device]["instructions"]
        instructions = f"{dense[device]['instructions']:,} instructions"
        lines.append(f"| gru (2, 128) | {title} | {instructions} | | | {ratio:.2f} |")
    how = (
        "Time of a step, or its number of instructions, relative to the same layer without a rule, for single neurons "
        "under `selective`. On a microcontroller 90 % stands for the model adding-sarnn, which skips "
        f"{100 * (1 - skips['cortex-m4']['updates'] / 128):.0f} %. Made by `python -m benchmarks.skip_curve`, "
        "`skip_streams` and `firmware`."
    )
    return "\n".join(lines) + "\n\n" + filled(how)


def draw_skipping(path: Path = RESULTS / "skipping.png") -> None:
    """Draw the difference of each model that skips from its rival of equal time, over its share of skipped updates."""
    from matplotlib.figure import Figure

    reports = list(_reports())
    columns = 3
    figure = Figure(figsize=(9, 2.6 * -(-len(reports) // columns)), layout="constrained")
    axes = figure.subplots(-(-len(reports) // columns), columns, squeeze=False).flatten()
    for ax in axes[len(reports) :]:
        ax.set_visible(False)
    for ax, report in zip(axes, reports, strict=False):
        sign = 1 if report["higher_is_better"] else -1
        for row, _, difference, verdict in comparisons(report):
            low, high = difference.interval or (difference.value, difference.value)
            error = [[difference.value - low], [high - difference.value]]
            style = {"color": _COLOURS[verdict], "zorder": 1 if verdict == "undecided" else 2}
            ax.errorbar(row["skip_percent"]["mean"], difference.value, error, fmt="o", ms=3, lw=1, **style)
        ax.axhline(0, color="black", lw=0.8, zorder=0)
        unit = "points" if score_of(report)[0].endswith("%") else "cycles"
        ax.set(title=report["task"], xlabel="updates skipped, %", ylabel=unit, ylim=(-8, 8))
        if sign < 0:
            ax.invert_yaxis()
    handles = [axes[0].plot([], [], "o", color=colour, label=verdict)[0] for verdict, colour in _COLOURS.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    save(figure, path)
