# SPDX-License-Identifier: Apache-2.0
"""Tables of heart beat models on docs/how-to/trained-models.md, from `python -m benchmarks.heart_beats`."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from benchmarks.tables.measured import filled, read_report, with_margin
from edgernn.training.statistics import mean_difference

# sensitivity and precision of de Chazal et al., in %
DE_CHAZAL = {"V": (77.7, 81.9), "S": (75.9, 38.5)}
_MEASURES = ("sensitivity", "precision")


def heart_beats() -> dict[str, str]:
    """Return the tables, as a dict from the name of a part of the page to its text."""
    report = read_report("heart-beats")
    return {"beats": _variants(report), "beat-seeds": _seeds(report), "points": _operating_points(report)}


def _variants(report: dict[str, Any]) -> str:
    """Return a table of models that were trained with seed 0 and other options than the dense model."""
    dense, calibrated = report["seeds"][0]["dense"], report["calibrated"]
    lines = [
        f"| command, or options of the card's command | macro_f1 | S: {', '.join(_MEASURES)} | "
        f"V: {', '.join(_MEASURES)} | multiply-adds a step |",
        "|---|---:|---:|---:|---:|",
        f"| none | {_scores(dense)} | {dense['macs']:,} |",
        f"| `edgernn calibrate {report['dense']} --loss {calibrated['loss']:g}` | {calibrated['macro_f1']:.3f} | "
        f"not counted | not counted | {calibrated['executed'] * calibrated['macs']:,.0f} |",
    ]
    lines += [f"| `{row['options']}` | {_scores(row)} | {row['macs_executed']:,.0f} |" for row in report["variants"]]
    lines += [f"| *{name}* | {_scores(metrics)} | |" for name, metrics in report["baselines"].items()]
    return "\n".join(lines)


def _scores(result: dict[str, Any]) -> str:
    """Return three cells: macro_f1, and sensitivity and precision of S and of V."""
    pairs = [", ".join(f"{result[f'{measure}_{name}']:.3f}" for measure in _MEASURES) for name in ("S", "V")]
    return " | ".join([f"{result['macro_f1']:.3f}", *pairs])


def _seeds(report: dict[str, Any]) -> str:
    """Return a table of the dense model and of one with the rule delta, means over seeds and their difference."""
    rows = report["seeds"]

    def values(model: str, metric: str) -> list[float]:
        return [row[model][metric] for row in rows]

    lines = [
        f"| mean of {len(rows)} seeds, test records | dense | `delta` | difference, 95 % interval |",
        "|---|---:|---:|---:|",
        _difference_row("macro_f1", [(values("dense", "macro_f1"), values("delta", "macro_f1"))]),
        "| macro_f1 of each seed | "
        + " | ".join(", ".join(f"{value:.3f}" for value in values(model, "macro_f1")) for model in ("dense", "delta"))
        + " | |",
    ]
    for name in DE_CHAZAL:
        pairs = [(values("dense", key), values("delta", key)) for key in (f"{each}_{name}" for each in _MEASURES)]
        lines.append(_difference_row(f"{name}: {', '.join(_MEASURES)}", pairs))
    macs, skipped = fmean(values("delta", "macs_executed")), fmean(values("delta", "skip_percent"))
    lines.append(f"| multiply-adds a step | {rows[0]['dense']['macs']:,} | {macs:,.0f} | |")
    lines.append(f"| skipped | 0 % | {skipped:.1f} % | |")
    return "\n".join([*lines, "", filled(f"Measured by `{report['command']}`.")])


def _difference_row(name: str, pairs: Sequence[tuple[list[float], list[float]]]) -> str:
    """Return a row of the table of seeds; each pair has the values of a metric of the dense and the other model."""
    differences = [with_margin(mean_difference(delta, dense, paired=True), 3) for dense, delta in pairs]
    means = [", ".join(f"{fmean(pair[i]):.3f}" for pair in pairs) for i in range(2)]
    return f"| {name} | {' | '.join(means)} | {', '.join(differences)} |"


def _operating_points(report: dict[str, Any]) -> str:
    """Return a table of sensitivity and precision of heart beats, over the number added to the output of S."""
    seeds = len(report["seeds"])
    names = [f"{name}: {measure}" for name in ("S", "V") for measure in _MEASURES]
    heads = ["offset", *(f"validation records, {name}" for name in ("macro_f1", *names[:2]))]
    heads += [f"test records, {name}" for name in names] + [f"`heartbeats-gru`, {name}" for name in names]
    lines = [f"| {' | '.join(heads)} |", f"|{'---:|' * len(heads)}"]
    for number, validation in enumerate(report["validation"]):
        rows = [_percentages(row["offsets"][number]) for row in report["seeds"]]
        means = [fmean(values) for values in zip(*rows, strict=True)]
        # heartbeats-gru is the dense run with seed 0
        cells = [f"{value:.1f}" for value in (*_percentages(validation)[:2], *means, *rows[0])]
        lines.append(f"| {validation['offset']} | {validation['macro_f1']:.3f} | {' | '.join(cells)} |")
    published = " | ".join(f"{value}" for value in (*DE_CHAZAL["S"], *DE_CHAZAL["V"]))
    text = (
        f"Sensitivity and precision in %: over the validation records of {seeds} dense runs, means of these runs over "
        "the test records, and those of `heartbeats-gru`, the run with seed 0, over the test records. Measured by "
        f"`{report['command']}`."
    )
    return "\n".join([*lines, f"| de Chazal et al. | | | | {published} | {published} |", "", filled(text)])


def _percentages(row: dict[str, Any]) -> list[float]:
    """Return sensitivity and precision of S and V in percent."""
    return [100 * row[f"{measure}_{name}"] for name in ("S", "V") for measure in _MEASURES]
