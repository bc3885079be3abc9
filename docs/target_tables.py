# SPDX-License-Identifier: Apache-2.0
"""Tables of the trained models beside published figures, for the page docs/how-to/trained-models.md."""

from edgernn.runtime.zoo import entries
from measured_tables import ROOT, read_report

# points of accuracy that a skipping model may lose, and the share of the multiply-adds that it may execute, in %
_POINTS, _SHARE = 0.5, 40.0
# sensitivity and precision of de Chazal et al., in %
_BEATS = {"V": (77.7, 81.9), "S": (75.9, 38.5)}


def _verdict(misses: list[str]) -> str:
    return f"missed: {', '.join(misses)}" if misses else "reached"


def targets() -> str:
    """Return the table of targets: what each trained model reaches, and the published figure beside it."""
    models = {entry["name"]: entry for entry in entries(ROOT / "models")}
    dense, beats = (models[name] for name in ("arabic-words-gru", "heartbeats-gru"))
    accuracy, published = 100 * dense["value"], 97.97
    rows = [
        (
            "`arabic-words-gru`",
            f"accuracy {accuracy:.2f} %",
            f"{published} %, CNN of the data set's authors",
            _verdict([f"by {published - accuracy:.2f} points"] * (accuracy < published)),
        ),
    ]
    for name in ("arabic-words-sarnn", "arabic-room-delta"):
        loss = accuracy - 100 * models[name]["value"]
        share = 100 * models[name]["macs_executed"] / dense["macs_executed"]
        misses = [f"by {loss - _POINTS:.2f} points"] * (loss > _POINTS)
        misses += [f"by {share - _SHARE:.1f} %"] * (share > _SHARE)
        rows.append(
            (
                f"`{name}`, isolated words",
                f"{loss:.2f} points less than `arabic-words-gru`, at {share:.1f} % of its multiply-adds",
                f"at most {_POINTS} points less, at {_SHARE:.0f} % or less: a target of this project",
                _verdict(misses),
            )
        )
    for name, published_pair in _BEATS.items():
        pair = [100 * beats["classes"][name][measure] for measure in ("sensitivity", "precision")]
        words = ("sensitivity", "precision")
        misses = [
            f"{word} by {wanted - got:.1f} points"
            for word, got, wanted in zip(words, pair, published_pair, strict=True)
            if got < wanted
        ]
        rows.append(
            (
                "`heartbeats-gru`",
                f"{name}: sensitivity {pair[0]:.1f} %, precision {pair[1]:.1f} %",
                f"{published_pair[0]} % and {published_pair[1]} %, de Chazal et al.",
                _verdict(misses),
            )
        )
    for name in ("engine-life-gru", "engine-life-sarnn"):
        error = models[name]["value"]
        misses = [f"by {error - 14.93:.2f} cycles"] * (error > 14.93)
        rows.append((f"`{name}`", f"RMSE {error:.2f} cycles", "14.93, LSTM of one layer", _verdict(misses)))
    lines = ["| model | test | published figure or target | |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def operating_points() -> str:
    """Return a table of sensitivity and precision of heart beats, from `python -m tests.measure_operating_points`."""
    lines = ["| offset | S: sensitivity, % | precision, % | V: sensitivity, % | precision, % | N: sensitivity, % |"]
    lines.append("|---:|---:|---:|---:|---:|---:|")
    for row in read_report("operating-points")["rows"]:
        rates = [row[name][measure] for name in ("S", "V") for measure in ("sensitivity", "precision")]
        rates.append(row["N"]["sensitivity"])
        lines.append(f"| {row['offset']} | {' | '.join(f'{rate:.1f}' for rate in rates)} |")
    published = [*_BEATS["S"], *_BEATS["V"]]
    return "\n".join([*lines, f"| de Chazal et al. | {' | '.join(map(str, published))} | |"])
