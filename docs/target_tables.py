# SPDX-License-Identifier: Apache-2.0
"""Tables of the trained models beside published figures, for the page docs/how-to/trained-models.md."""

from typing import Any

from room_tables import EACH_STEP

from edgernn.runtime.zoo import entries
from edgernn.training.tasks.remaining_life import RemainingLife
from measured_tables import ROOT, filled, read_report

# points of accuracy over words that a skipping model may lose, and the share of the multiply-adds that it may execute
_POINTS, _SHARE = 0.5, 40.0
# in a room: share of the multiply-adds, points of hits and of wrong words, and share of real time, in %
_ROOM_SHARE, _ROOM_POINTS, _REAL_TIME = 6.0, 1.0, 1.0
_WORDS_TARGET = f"at most {_POINTS} points less, at {_SHARE:.0f} % or less: a target of this project"
# factors by which a model that skips is faster than the dense model in ONNX Runtime, step by step
_FASTER = {"recurrent": 10, "whole": 5}
# accuracy of the authors' CNN over 40 words, in %
_WORDS = 97.97
# the dense model of long recordings, whose times are no target
_DENSE_ROOM = "arabic-room-gru"
# sensitivity and precision of de Chazal et al., in %
_BEATS = {"V": (77.7, 81.9), "S": (75.9, 38.5)}
# root mean squared error of an LSTM of one layer in arXiv:2604.27234, in cycles
_ENGINES = 14.93

Row = tuple[str, str, str, str]


def _verdict(misses: list[str]) -> str:
    return f"missed: {', '.join(misses)}" if misses else "reached"


def _above(value: float, most: float, unit: str, what: str = "", digits: int = 2) -> list[str]:
    """Return the text of a miss if a value exceeds its limit, else an empty list."""
    return [f"{what}by {value - most:.{digits}f} {unit}"] * (value > most)


def _word_rows(models: dict[str, dict[str, Any]]) -> list[Row]:
    """Compare the models of isolated words over the test clips that have a word, without silence."""
    dense = models["arabic-words-gru"]["parts"]["words"]
    accuracy = 100 * dense["value"]
    low, high = (100 * dense["interval"][end] for end in ("low", "high"))
    inside = "within" if low <= _WORDS <= high else "outside"
    rows = [
        (
            "`arabic-words-gru`, isolated words",
            f"accuracy_words {accuracy:.2f} % ({low:.2f} to {high:.2f})",
            f"{_WORDS} %, CNN of the data set's authors, {inside} this interval",
            _verdict(_above(_WORDS, accuracy, "points")),
        )
    ]
    for name in ("arabic-words-sarnn", "arabic-room-delta"):
        words = models[name]["parts"]["words"]
        loss = accuracy - 100 * words["value"]
        share = 100 * words["macs_executed"] / dense["macs_executed"]
        rows.append(
            (
                f"`{name}`, isolated words",
                f"{loss:.2f} points less than `arabic-words-gru`, at {share:.1f} % of its multiply-adds",
                _WORDS_TARGET,
                _verdict(_word_misses(loss, share)),
            )
        )
    return rows


def _room_rows(models: dict[str, dict[str, Any]]) -> list[Row]:
    """Compare the models of long recordings with the dense model that was trained further, see room.json."""
    report, times = read_report("room"), read_report("room-times")
    further = _dense_run(report["runs"])
    dense, rows = _room_figures(further), []
    (steps,) = (timed for timed in times["rows"] if timed["way"] == EACH_STEP)
    for timed in times["rows"]:
        name = timed["model"]
        if name == _DENSE_ROOM or timed["way"] != "C":
            continue
        took, room = timed["whole"], report["models"][name]["room"]
        figures = _room_figures(room)
        share = 100 * figures["macs_a_second"] / dense["macs_a_second"]
        misses = _above(share, _ROOM_SHARE, "points", "multiply-adds ", 1)
        misses += _above(dense["hits"] - figures["hits"], _ROOM_POINTS, "points", "hits ", 1)
        misses += _above(figures["wrong"] - dense["wrong"], _ROOM_POINTS, "points", "wrong words ", 1)
        misses += _above(figures["false_alarms_an_hour"], dense["false_alarms_an_hour"], "an hour", "false alarms ", 1)
        text = (
            f"{figures['hits']:.1f} % hits (dense {dense['hits']:.1f} %), {figures['wrong']:.1f} % wrong words "
            f"({dense['wrong']:.1f} %), {figures['false_alarms_an_hour']:.1f} false alarms an hour "
            f"({dense['false_alarms_an_hour']:.1f})"
        )
        rows.append(
            (
                f"`{name}`, in a room of {room['room_hours']:g} hours",
                f"{text}, at {share:.1f} % of the multiply-adds",
                f"hits and wrong words within {_ROOM_POINTS:.0f} point, no more false alarms, at {_ROOM_SHARE:.0f} % "
                "or less: a target of this project",
                _verdict(misses),
            )
        )
        busy = 100 * took / 1e6
        rows.append(
            (
                f"`{name}`, in C, a stream of 16 kHz",
                f"{took:.0f} µs a second, {busy:.3f} % of real time, on an {times['processor']}, "
                f"{times['instruction_set']}: `python -m tests.measure_room_times`",
                f"at most {_REAL_TIME:.0f} % of real time: a target of this project",
                _verdict(_above(busy, _REAL_TIME, "points")),
            )
        )
        ratios = {part: steps[part] / timed[part] for part in _FASTER}
        misses = [
            f"{part} by a factor of {least / ratios[part]:.1f}"
            for part, least in _FASTER.items()
            if ratios[part] < least
        ]
        rows.append(
            (
                f"`{name}`, in C, beside `{_DENSE_ROOM}` in ONNX Runtime, both step by step",
                f"recurrent part {ratios['recurrent']:.1f} times faster, whole model {ratios['whole']:.1f} times",
                f"{_FASTER['recurrent']} and {_FASTER['whole']} times or more: a target of this project",
                _verdict(misses),
            )
        )
        loss = 100 * (further["accuracy_words"] - models[name]["parts"]["words"]["value"])
        share = 100 * models[name]["parts"]["words"]["macs_executed"] / further["macs_executed"]
        rows.append(
            (
                f"`{name}`, isolated words",
                f"{loss:.2f} points less than the dense model of the room, trained further, at {share:.1f} % of its "
                "multiply-adds",
                _WORDS_TARGET,
                _verdict(_word_misses(loss, share)),
            )
        )
    return rows


def _word_misses(loss: float, share: float) -> list[str]:
    """Return the misses of a skipping model that loses points of accuracy over words at a share of the work, in %."""
    misses = _above(loss, _POINTS, "points", "accuracy ")
    return misses + _above(share, _SHARE, "points", "multiply-adds ", 1)


def _dense_run(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run of the dense model among those of `python -m tests.measure_rooms`: the one without thresholds."""
    dense = [run for run in runs if "theta_x" not in run["settings"]]
    if len(dense) != 1:
        raise ValueError(f"room.json: expected one run without theta_x, got {len(dense)}; measure the rooms again")
    return dense[0]


def _room_figures(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a room that the targets compare; hits and wrong words in %."""
    shares = {key: 100 * metrics[f"room_{key}"] for key in ("hits", "wrong")}
    return shares | {key: metrics[f"room_{key}"] for key in ("false_alarms_an_hour", "macs_a_second")}


def _beat_rows(beats: dict[str, Any]) -> list[Row]:
    rows = []
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
                f"`{beats['name']}`",
                f"{name}: sensitivity {pair[0]:.1f} %, precision {pair[1]:.1f} %",
                f"{published_pair[0]} % and {published_pair[1]} %, de Chazal et al.",
                _verdict(misses),
            )
        )
    return rows


def _engine_row(entry: dict[str, Any]) -> Row:
    """Compare an error with a published one, of which it is unknown whether it is that of capped lives."""
    error, uncapped = entry["value"], entry["card_metrics"]["rmse_uncapped"]
    capped, whole = (_verdict(_above(value, _ENGINES, "cycles")) for value in (error, uncapped))
    verdict = capped if capped == whole else f"{capped} if the published lives are capped; {whole} if they are not"
    return (
        f"`{entry['name']}`",
        f"RMSE {error:.2f} cycles with true lives capped at {RemainingLife.cap}, {uncapped:.2f} without the cap",
        f"{_ENGINES}, LSTM of one layer; whether with a cap is unknown",
        verdict,
    )


def _losses(models: dict[str, dict[str, Any]]) -> str:
    """Return sentences with the accuracy over words that each Arabic model that skips loses to the dense ones."""
    words = {name: 100 * entry["parts"]["words"]["value"] for name, entry in models.items() if "arabic-" in name}
    skipping = [name for name in words if models[name]["rule"] != "always"]
    dense, room = words["arabic-words-gru"], words["arabic-room-gru"]
    near = ", ".join(f"`{name}`" for name in skipping if dense - words[name] <= _POINTS) or "none yet"
    text = ", ".join(f"`{name}` {dense - words[name]:.2f}" for name in skipping)
    return (
        f"Models of isolated Arabic words that skip and lose at most {_POINTS} points to `arabic-words-gru`: {near}. "
        f"The losses in points: {text}. `arabic-room-gru`, the dense model for running recordings, loses "
        f"{dense - room:.2f} itself."
    )


def targets() -> str:
    """Return the table of targets: what each trained model reaches, and the published figure beside it."""
    models = {entry["name"]: entry for entry in entries(ROOT / "models")}
    rows = [*_word_rows(models), *_room_rows(models), *_beat_rows(models["heartbeats-gru"])]
    rows += _beat_rows(models["heartbeats-delta"])
    rows += [_engine_row(models[name]) for name in ("engine-life-gru", "engine-life-sarnn")]
    lines = ["| model | test | published figure or target | |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", filled(_losses(models))])


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
