# SPDX-License-Identifier: Apache-2.0
"""Tables and picture of the page *When does skipping pay?*, from the results of sweeps and of benchmarks."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.skip_curve import GROUP_SIZES, group_title
from benchmarks.tables import table
from benchmarks.tables.measured import RESULTS, filled, read_report, with_margin
from benchmarks.tables.sweeps import by_seed, how_timed, measured_sweeps, neurons_and_settings, score_of, worth
from edgernn.names import parts
from edgernn.training.pictures import save
from edgernn.training.statistics import Difference, mean_difference
from edgernn.training.sweep.table import choice_text
from edgernn.training.tables.table_text import number

# colours of verdicts in the picture
_COLOURS = {"better": "#009e73", "equal": "#0072b2", "undecided": "silver", "worse": "#d55e00"}
# one colour in all panels for each rule: of single neurons, of groups of 16, of steps, and of values
_RULES = {
    **dict.fromkeys(("selective", "single neurons"), "C0"),
    **dict.fromkeys(("selective, groups of 16", "groups of 16", "sarnn"), "C1"),
    **{"skip": "C2", "periodic": "C3", "delta": "C4"},
}
# largest difference on the axis of the picture, in points or cycles
_LIMIT = 8
# models of docs/results/microcontrollers.json by type of weights: dense, selective and periodic
_IN_C = {
    "": ("gru (2, 128), float32", "adding-sarnn (2, 128)", "gru (2, 128), periodic, float32"),
    ", int8": ("gru (2, 128), int8", "adding-sarnn (2, 128), int8", "gru (2, 128), periodic, int8"),
}
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
                report = _with_between(read_report(name))
                yield report | {"task": f"{report['task']}, over folds"} if folder == "skipping" else report


def _with_between(report: dict[str, Any]) -> dict[str, Any]:
    """Add the models of the sweep in benchmarks/sweeps/between to those of the sweep of the same signal."""
    name = f"between-{report['task']}"
    if not report["sweep"].startswith("benchmarks/sweeps/signals/") or not (RESULTS / f"{name}.json").is_file():
        return report
    between = read_report(name)
    return report | {"rows": report["rows"] + between["rows"], "latency_note": between["latency_note"]}


def skipping() -> dict[str, str]:
    """Return the tables of the page: a dict from the name of each part to its text."""
    measured = {"use": use(), "verdicts": verdicts(), "folds": folds()}
    return measured | {"sizes": sizes(), "large": large(), "shares": shares()}


def folds() -> str:
    """Return the section about models that were chosen over folds, or no text if its sweep is not measured."""
    if not measured_sweeps("skipping", "skipping"):
        return ""
    how = (
        "The 21 training users are dealt into seven folds, and each seed validates on one of them. All models have the "
        "same learning rate and length."
    )
    return f"### Activity, chosen over folds\n\n{filled(how)}\n\n{equal_time('skipping-activity')}"


def use() -> str:
    """Return the table that says for each signal what to use: a learned rule, a fixed period, or a dense model."""
    rows = []
    for report in _reports():
        sign = 1 if report["higher_is_better"] else -1
        compared = comparisons(report)
        kinds = [[c for c in compared if (c.row["rule"] == "periodic") is fixed] for fixed in (False, True)]
        best = [max(kind, key=lambda c: worth(c.row, sign)) if kind else None for kind in kinds]
        unit = "" if score_of(report)[0].endswith("%") else " cycles"
        cells = [f"{_named(c.row, report)}: {with_margin(c.difference, 1)}{unit}" if c else "" for c in best]
        rivals = list(dict.fromkeys(_named(c.rival, report) for c in best if c))
        better = [f"`{c.row['rule']}`" for c in best if c and c.verdict == "better"]
        rows.append([report["task"], *cells, ", ".join(rivals), better[0] if better else "the dense one"])
    how = (
        "Differences on the test split from the dense model that takes at most as long, in points or cycles, with 95 % "
        "confidence intervals, paired by seed; fewer cycles are better. Of each kind, the validation split chose the "
        "model with the best mean. Use: what skips only if it is better by the rule of the "
        "[next table](#at-equal-time). Times are those of a step, both called from C, as there."
    )
    heads = ["task", "learned rule", "fixed period", "dense, of equal time", "use"]
    return f"{table(heads, rows, 5)}\n\n{filled(how)}"


def _named(row: dict[str, Any], report: dict[str, Any]) -> str:
    return (
        f"`{' + '.join(parts(row['cell'], row['rule']))}` {neurons_and_settings(row, report)}, {number(_time(row))} µs"
    )


def verdicts() -> str:
    """Return the table that counts, for each sweep and rule, how models that skip compare at equal time."""
    rows = []
    total: Counter[str] = Counter()
    reports = list(_reports())
    for report in reports:
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
        "take at most as long; times are those of a step, both called from C, on one thread of "
        f"{', '.join(sorted({report['latency_machine'] for report in reports}))}. Better and worse: the 95 % "
        "confidence interval of the difference on the test split, paired by seed, excludes 0. Equal: it lies within ±1 "
        "point or cycle, which is an equivalence test: two one-sided tests, at 2.5 % each. There is no correction for "
        "the number of comparisons: of twenty that differ in nothing, one is expected to exclude 0."
    )
    how = " ".join([how, *(report["latency_note"] for report in reports if "latency_note" in report)])
    return f"{table(['task', 'rule', 'models', *_COLOURS], rows, 2)}\n\n{filled(how)}"


def equal_time(name: str) -> str:
    """Return the table of the `comparisons` of models that the validation split chose, from docs/results/NAME.json."""
    report = read_report(name)
    title, factor = score_of(report)
    heads = ["cell and rule", "settings", title, "µs", "without skipping", "µs", "difference", "verdict"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---:|---:|---|---:|---:|---|"]
    chosen = {choice["row"] for choice in report["choices"]}
    compared = [comparison for comparison in comparisons(report) if comparison.row["name"] in chosen]
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
        f"Models that the validation split chose beside others of at most equal time: {counted}. Difference: mean over "
        f"{len(report['seeds'])} seeds on the test split, paired, ± half of its 95 % confidence interval. "
        f"{how_timed(report)} Made by `{report['command']}`."
    )
    choices = [f"- {choice_text(choice)}: {choice['row']}." for choice in report["choices"]]
    return "\n".join([*lines, "", filled(how), "", *choices])


def sizes() -> str:
    """Return the table of time and work over processor and batch, for layers of which a share is skipped."""
    curve, streams, controllers = (read_report(name) for name in ("skip-curve", "skip-streams", "microcontrollers"))
    rows = []
    single = [(layer, 1) for layer in curve["layers"]]
    batches = [
        (result, result["B"])
        for layer in streams["layers"]
        for result in layer["results"]
        if result["T"] == 1 and result["B"] in (8, 128)
    ]
    for layer, batch in single + batches:
        points = {point["skip"]: point["time"] for point in layer["points"] if point["group_size"] == 1}
        name, cost = f"{layer['cell']} ({layer['I']}, {layer['H']})", f"{number(layer['dense_us'])} µs"
        rows.append([name, f"x86, B = {batch}", cost, *(f"{points[skip]:.2f}" for skip in (0.4, 0.75, 0.9)), ""])
    for weights, title, cost, *ratios in _elsewhere():
        shown = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        rows.append([f"gru (2, 128){weights}", title, cost, "", "", *shown])
    machine = curve["machine"]
    skipped = 100 * (1 - controllers["models"]["adding-sarnn (2, 128)"]["cortex-m4"]["updates"] / 128)
    how = (
        "Time of a step, or its number of instructions, relative to the same layer without a rule; skipped are single "
        "neurons under `selective`, and steps under `periodic`. x86: one thread of "
        f"{machine['cpu']}, {machine['instruction_set']}, both layers in edgernn and called from Python, for one "
        f"sequence once for {curve['T']} steps, for a batch at each step. wasm: Node, called from JavaScript. "
        "Microcontrollers: instructions counted in QEMU, in C. In the rows of wasm and microcontrollers, 90 % stands "
        f"for the model adding-sarnn, which skips {skipped:.0f} %. Made by `python -m benchmarks.skip_curve`, "
        "`skip_streams`, `wasm` and `firmware`."
    )
    heads = ["layer (I, H)", "on", "a step, dense", "40 % skipped", "75 % skipped", "90 % skipped", "period of 10"]
    return f"{table(heads, rows, 2)}\n\n{filled(how)}"


def _elsewhere() -> Iterator[tuple[str, str, str, float, float | None]]:
    """Yield the costs of gru (2, 128) in wasm and on microcontrollers.

    Yields:
        Type of the weights, title of the device, dense cost, and the costs of `selective` and of `periodic` relative
        to it; None: not measured.
    """
    times = read_report("wasm")["microseconds"]["node"]
    dense = times["gru (2, 128), float32"]
    yield "", "wasm", f"{number(dense)} µs", times["adding-sarnn"] / dense, None
    report = read_report("microcontrollers")
    for weights, models in _IN_C.items():
        for device, title in report["titles"].items():
            whole, selective, periodic = (report["models"][name][device]["instructions"] for name in models)
            yield weights, title, f"{whole:,} instructions", selective / whole, periodic / whole


def large() -> str:
    """Return the table of large layers under each rule, beside dense layers of equal time."""
    report = read_report("large-layers")
    rules = list(dict.fromkeys(row["rule"] for layer in report["layers"] for row in layer["rules"]))
    rows = []
    for layer in sorted(report["layers"], key=lambda layer: (layer["weights"], layer["H"])):
        dense = layer["dense"][-1]
        for period in dict.fromkeys(row["period"] for row in layer["rules"]):
            found = {row["rule"]: row for row in layer["rules"] if row["period"] == period}
            cells = [f"{found[rule]['time']:.2f} ({_equal(found[rule], layer)})" for rule in rules]
            name = f"{layer['H']}, {layer['weights']}"
            rows.append([name, f"{number(dense['us'])} µs", f"{100 * (1 - 1 / period):.0f} %", *cells])
    machine = report["machine"]
    how = (
        "Time of a step relative to the dense layer; in brackets the number of neurons of the dense layer, with as "
        "many inputs, that takes as long, interpolated between measured sizes; more: no smaller layer does. GRU layers "
        "with as many inputs as neurons and random weights, one sequence, step by step from C, on one thread of "
        f"{machine['cpu']}, {machine['instruction_set']}, with {report['caches']['2']} bytes of second-level "
        f"and {report['caches']['3']} of third-level cache; "
        f"medians of {report['rounds']} interleaved rounds. Made by `{report['command']}`."
    )
    return f"{table(['neurons, weights', 'dense', 'skipped', *rules], rows, 1)}\n\n{filled(how)}"


def _equal(row: dict[str, Any], layer: dict[str, Any]) -> str:
    return "more" if row["us"] > layer["dense"][-1]["us"] else str(row["equal_H"])


def shares() -> str:
    """Return the table of work and time of word models over the share of background, alone and in a batch."""
    report = read_report("room-shares")
    cases: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in report["rows"]:
        language = row["model"].split("-")[0]
        case = (language, row["streams"], row["speaking"], row["talk"])
        cases.setdefault(case, {})[row["model"].removeprefix(f"{language}-room-")] = row
    names = list(dict.fromkeys(name for found in cases.values() for name in found))
    rows = []
    for (language, count, speaking, _), found in sorted(cases.items(), key=lambda case: (case[0][0], case[0][1:3])):
        background = f"{100 * next(iter(found.values()))['background']:.0f} % background"
        if speaking == count:
            title = background if count == 1 else f"{count} streams, {background}"
        else:
            title = f"{speaking} of {count} streams with {background}, the others silent"
        cells = [_share(found[name]) if name in found else "" for name in names]
        rows.append([language, title, *cells])
    machine = report["machine"]
    how = (
        "Time for a second of audio of one stream relative to the dense model, without the front end and, in brackets, "
        "with it; then the share of neurons that are updated, or under `delta` of values of h that are sent. Packed "
        f"models, step by step from C, on one thread of {machine['cpu']}, {machine['instruction_set']}; medians of "
        f"{report['rounds']} interleaved rounds on five minutes of room, of whose background four fifths are noise. "
        "`periodic` has a period of four steps, and its time does not depend on its weights. Made by "
        f"`{report['command']}`."
    )
    return f"{table(['words', 'room', *(f'`{name}`' for name in names)], rows, 2)}\n\n{filled(how)}"


def _share(row: dict[str, Any]) -> str:
    if row["updated"] == 1:
        return f"{row['recurrent']:.0f} µs ({row['whole']:.0f} µs)"
    return f"{row['recurrent_time']:.2f} ({row['whole_time']:.2f}), {100 * row['updated']:.0f} %"


def draw_skipping(path: Path = RESULTS / "skipping.png") -> None:
    """Draw the difference of each model that skips from its rival of equal time, over its share of skipped updates.

    Differences beyond the axis are triangles at its end.
    """
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
            skipped, value = row["skip_percent"]["mean"], difference.value
            style = {"color": _COLOURS[verdict], "zorder": 1 if verdict == "undecided" else 2}
            if abs(value) > _LIMIT:
                marker = "^" if sign * value > 0 else "v"
                ax.plot(skipped, math.copysign(_LIMIT, value), marker, ms=5, clip_on=False, **style)
                continue
            low, high = difference.interval or (value, value)
            ax.errorbar(skipped, value, [[value - low], [high - value]], fmt="o", ms=3, lw=1, **style)
        ax.axhline(0, color="black", lw=0.8, zorder=0)
        unit = "points" if score_of(report)[0].endswith("%") else "cycles"
        ax.set(title=report["task"], xlabel="updates skipped, %", ylabel=unit, ylim=(-_LIMIT, _LIMIT))
        if sign < 0:
            ax.invert_yaxis()
    handles = [axes[0].plot([], [], "o", color=colour, label=verdict)[0] for verdict, colour in _COLOURS.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    save(figure, path)


def draw_costs(path: Path = RESULTS / "skipping-costs.png") -> None:
    """Draw the cost of models that skip, relative to dense ones, by size, processor, share of background and batch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.6), layout="constrained")
    axes = figure.subplots(2, 3)
    for ax, weights, highest in ((axes[0, 0], "float32", 1.1), (axes[0, 1], "int8", 4.5)):
        _draw_large(ax, weights, "time")
        ax.set(title=f"size, {weights}, 75 % skipped", ylim=(0, highest))
    _draw_processors(axes[0, 2])
    _draw_shares(axes[1, 0])
    _draw_batches(axes[1, 1])
    _draw_large(axes[1, 2], "float32", "equal_H")
    axes[1, 2].set(title="equal time, 75 % skipped", ylabel="dense neurons, relative", ylim=(0, 1.1))
    for ax in axes.flat:
        ax.axhline(1, color="black", lw=0.8, zorder=0)
    for ax in axes.flat[1:5]:
        ax.legend(frameon=False, fontsize="small", loc=(0.5, 0.6) if ax is axes[1, 0] else "best")
    figure.supylabel("cost relative to the dense model")
    save(figure, path)


def _draw_large(ax: Any, weights: str, figure: str) -> None:
    """Plot the time of large layers with 75 % skipped, or the neurons of dense layers of equal time, over the size."""
    layers = [layer for layer in read_report("large-layers")["layers"] if layer["weights"] == weights]
    layers.sort(key=lambda layer: int(layer["H"]))
    sizes = [layer["H"] for layer in layers]
    for rule in dict.fromkeys(row["rule"] for row in layers[0]["rules"]):
        found = [row for layer in layers for row in layer["rules"] if (row["rule"], row["period"]) == (rule, 4)]
        whole = sizes if figure == "equal_H" else [1] * len(sizes)
        values = [row[figure] / one for row, one in zip(found, whole, strict=True)]
        ax.plot(sizes, values, color=_RULES[rule], marker=".", label=rule)
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, map(str, sizes))
    ax.set(xlabel="neurons")


def _draw_processors(ax: Any) -> None:
    """Draw bars of the cost of gru (2, 128) with 90 % skipped, by processor."""
    curve = next(layer for layer in read_report("skip-curve")["layers"] if (layer["I"], layer["H"]) == (2, 128))
    single = next(p["time"] for p in curve["points"] if (p["group_size"], p["skip"]) == (1, 0.9))
    costs: dict[str, tuple[float, float | None]] = {"x86": (single, None)}
    for weights, title, _, selective, periodic in _elsewhere():
        costs[title.split(" (")[0] + weights] = (selective, periodic)
    for offset, rule, values in zip(
        (-0.2, 0.2), ("selective", "periodic"), zip(*costs.values(), strict=True), strict=True
    ):
        places, heights = [place + offset for place in range(len(costs))], [value or 0 for value in values]
        ax.bar(places, heights, 0.4, color=_RULES[rule], label=rule)
    ax.set_xticks(range(len(costs)), costs, rotation=60, ha="right", fontsize="x-small")
    ax.set(title="processor, 90 % skipped", ylim=(0, 1.1))


def _draw_shares(ax: Any) -> None:
    """Plot the time of the Arabic word models over the share of background, for one stream."""
    rows = [row for row in read_report("room-shares")["rows"] if row["streams"] == 1 and row["updated"] < 1]
    for name in dict.fromkeys(row["model"] for row in rows if row["model"].startswith("arabic")):
        points = [(100 * row["background"], row["recurrent_time"]) for row in rows if row["model"] == name]
        rule = name.removeprefix("arabic-room-")
        ax.plot(*zip(*sorted(points), strict=True), color=_RULES[rule], marker=".", label=rule)
    ax.set(title="share of background", xlabel="background, %", ylim=(0, 1.1))


def _draw_batches(ax: Any) -> None:
    """Plot the time of gru (64, 128) with 75 % skipped over the number of streams."""
    (layer,) = (layer for layer in read_report("skip-streams")["layers"] if layer["I"] == 64)
    batches = sorted({result["B"] for result in layer["results"]})
    for size in GROUP_SIZES:
        points = [
            (result["B"], point["time"])
            for result in layer["results"]
            for point in result["points"]
            if (result["T"], point["group_size"], point["skip"]) == (1, size, 0.75)
        ]
        ax.plot(*zip(*points, strict=True), color=_RULES[group_title(size)], marker=".", label=group_title(size))
    ax.set_xscale("log", base=2)
    ax.set_xticks(batches, map(str, batches))
    ax.set(title="batch, 75 % skipped", xlabel="streams", ylim=(0, 1.1))
