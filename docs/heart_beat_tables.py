# SPDX-License-Identifier: Apache-2.0
"""Tables of heart beat models on docs/how-to/trained-models.md, from `python -m tests.measure_heart_beats`."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from edgernn.training.statistics import mean_difference
from measured_tables import filled, read_report

# sensitivity and precision of de Chazal et al., in %
DE_CHAZAL = {"V": (77.7, 81.9), "S": (75.9, 38.5)}
_MEASURES = ("sensitivity", "precision")
# the dense run in the commands of the page
_DENSE = "runs/beats"


def heart_beats() -> dict[str, str]:
    """Return the tables, as a dict from the name of a part of the page to its text."""
    report = read_report("heart-beats")
    return {"beats": _variants(report), "beat-seeds": _seeds(report), "points": _operating_points(report)}


def _variants(report: dict[str, Any]) -> str:
    """Return a table of models that were trained with seed 0 and other options than the dense model."""
    dense, calibrated = report["seeds"][0]["dense"], report["calibrated"]
    lines = [
        "| command, or options of the card's command | macro_f1 | S: sensitivity | multiply-adds a step |",
        "|---|---:|---:|---:|",
        f"| none | {dense['macro_f1']:.3f} | {dense['sensitivity_S']:.3f} | {dense['macs']:,} |",
        f"| `edgernn calibrate {_DENSE} --loss {calibrated['loss']:g}` | {calibrated['macro_f1']:.3f} | not counted | "
        f"{calibrated['executed'] * calibrated['macs']:,.0f} |",
    ]
    lines += [
        f"| `{row['options'].replace('DENSE', _DENSE)}` | {row['macro_f1']:.3f} | {row['sensitivity_S']:.3f} | "
        f"{row['macs_executed']:,.0f} |"
        for row in report["variants"]
    ]
    return "\n".join(lines)


def _seeds(report: dict[str, Any]) -> str:
    """Return a table of the dense model and of one with the rule delta, means over seeds and their difference."""
    rows = report["seeds"]

    def values(model: str, metric: str) -> list[float]:
        return [row[model][metric] for row in rows]

    lines = [
        f"| mean of {len(rows)} seeds, test records | dense | `delta` | difference, 95 % interval |",
        "|---|---:|---:|---:|",
        _line("macro_f1", [(values("dense", "macro_f1"), values("delta", "macro_f1"))]),
        "| macro_f1 of each seed | "
        + " | ".join(", ".join(f"{value:.3f}" for value in values(model, "macro_f1")) for model in ("dense", "delta"))
        + " | |",
    ]
    for name in DE_CHAZAL:
        pairs = [(values("dense", key), values("delta", key)) for key in (f"{each}_{name}" for each in _MEASURES)]
        lines.append(_line(f"{name}: {', '.join(_MEASURES)}", pairs))
    macs, skipped = fmean(values("delta", "macs_executed")), fmean(values("delta", "skip_percent"))
    lines.append(f"| multiply-adds a step | {rows[0]['dense']['macs']:,} | {macs:,.0f} | |")
    lines.append(f"| skipped | 0 % | {skipped:.1f} % | |")
    return "\n".join([*lines, "", filled(f"Measured by `{report['command']}`.")])


def _line(name: str, pairs: Sequence[tuple[list[float], list[float]]]) -> str:
    """Return a row of the table of seeds; each pair has the values of a metric of the dense and the other model."""
    differences = []
    for dense, delta in pairs:
        difference = mean_difference(delta, dense, paired=True)
        low, high = difference.interval or (0.0, 0.0)
        differences.append(f"{difference.value:+.3f} ± {(high - low) / 2:.3f}".replace("-", "−"))
    means = [", ".join(f"{fmean(pair[i]):.3f}" for pair in pairs) for i in range(2)]
    return f"| {name} | {' | '.join(means)} | {', '.join(differences)} |"


def _operating_points(report: dict[str, Any]) -> str:
    """Return a table of sensitivity and precision of heart beats, over the number added to the output of S."""
    rates = " S: sensitivity | precision | V: sensitivity | precision |"
    lines = [
        "| | validation records, five seeds | | | test records, mean of five seeds | | | "
        "| `heartbeats-gru`, test records | | | |",
        f"|---:|{'---:|' * 11}",
        f"| offset | macro_f1 | S: sensitivity | precision |{rates}{rates}",
    ]
    for number, (validation, model) in enumerate(zip(report["validation"], report["model"], strict=True)):
        tests = [row["offsets"][number] for row in report["seeds"]]
        mean = [fmean(100 * test[name][measure] for test in tests) for name in ("S", "V") for measure in _MEASURES]
        cells = [f"{validation['macro_f1']:.3f}", *(f"{100 * validation['S'][measure]:.1f}" for measure in _MEASURES)]
        cells += [f"{value:.1f}" for value in (*mean, *_points(model))]
        lines.append(f"| {model['offset']} | {' | '.join(cells)} |")
    published = [f"{value}" for value in (*DE_CHAZAL["S"], *DE_CHAZAL["V"])]
    return "\n".join([*lines, f"| de Chazal et al. | | | | {' | '.join([*published, *published])} |"])


def _points(row: dict[str, Any]) -> list[float]:
    """Return sensitivity and precision of S and V in percent."""
    return [100 * row[name][measure] for name in ("S", "V") for measure in _MEASURES]
