# SPDX-License-Identifier: Apache-2.0
"""Tables of the trained models beside published figures, for the page docs/how-to/trained-models.md."""

from typing import Any

from benchmarks.tables.heart_beats import DE_CHAZAL
from benchmarks.tables.measured import ROOT, filled, read_report
from benchmarks.tables.rooms import EACH_STEP, IN_C, OURS, THEIRS
from edgernn.runtime.zoo import entries
from edgernn.training.tasks.remaining_life import RemainingLife

# points of accuracy over words that a skipping model may lose, and the share of the multiply-adds that it may execute
_POINTS, _SHARE = 0.5, 40.0
# in a room: share of the multiply-adds, points of hits and of wrong words, and share of real time, in %
_ROOM_SHARE, _ROOM_POINTS, _REAL_TIME = 6.0, 1.0, 1.0
_WORDS_TARGET = f"at most {_POINTS} points less, at {_SHARE:.0f} % or less: a target of this project"
# factors by which a model that skips is to be faster than the dense model in ONNX Runtime, both called step by step
_FASTER = {"recurrent": 10, "whole": 5}
# accuracy of the authors' CNN over 40 words, in %
_WORDS = 97.97
# the dense model of long recordings, whose times are no target
_DENSE_ROOM = "arabic-room-gru"
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
    for name in ("arabic-words-delta", "arabic-room-delta"):
        words = models[name]["parts"]["words"]
        rows.append(_skipping_words_row(name, "`arabic-words-gru`", words, dense["value"], dense["macs_executed"]))
    return rows


def _room_rows(models: dict[str, dict[str, Any]]) -> list[Row]:
    """Compare the models of long recordings with the dense model that was trained further, see room.json."""
    report, times = read_report("room"), read_report("room-times")
    dense_run = _dense_run(report["runs"])
    by_way = {(timed["model"], timed["way"]): timed for timed in times["rows"]}
    rows = []
    for (name, way), timed in by_way.items():
        if name != _DENSE_ROOM and way == IN_C:
            rows.append(_room_row(name, report["models"][name]["room"], dense_run))
            rows.append(_real_time_row(name, timed["whole"], times))
            rows.append(_faster_row(name, by_way))
            words, accuracy = models[name]["parts"]["words"], dense_run["accuracy_words"]
            dense = "the dense model of the room"
            rows.append(_skipping_words_row(name, dense, words, accuracy, dense_run["macs_executed"]))
    return rows


def _room_row(name: str, room: dict[str, Any], dense_run: dict[str, Any]) -> Row:
    """Compare the detections and the work of a model in a room with those of the dense model."""
    dense, figures = _room_figures(dense_run), _room_figures(room)
    share = 100 * figures["macs_a_second"] / dense["macs_a_second"]
    misses = _above(share, _ROOM_SHARE, "points", "multiply-adds ", 1)
    misses += _above(dense["hits"] - figures["hits"], _ROOM_POINTS, "points", "hits ", 1)
    misses += _above(figures["wrong"] - dense["wrong"], _ROOM_POINTS, "points", "wrong words ", 1)
    misses += _above(figures["false_alarms_an_hour"], dense["false_alarms_an_hour"], "an hour", "false alarms ", 1)
    return (
        f"`{name}`, in a room of {room['room_hours']:g} hours",
        f"{figures['hits']:.1f} % hits (dense {dense['hits']:.1f} %), {figures['wrong']:.1f} % wrong words "
        f"({dense['wrong']:.1f} %), {figures['false_alarms_an_hour']:.1f} false alarms an hour "
        f"({dense['false_alarms_an_hour']:.1f}), at {share:.1f} % of the multiply-adds",
        f"hits and wrong words within {_ROOM_POINTS:.0f} point, no more false alarms, at {_ROOM_SHARE:.0f} % "
        "or less: a target of this project",
        f"{_verdict(misses)}; its settings were chosen on this test",
    )


def _real_time_row(name: str, microseconds: float, times: dict[str, Any]) -> Row:
    """Compare the time that a model takes in C for a second of audio with real time."""
    percent = 100 * microseconds / 1e6
    return (
        f"`{name}`, in C, a stream of 16 kHz",
        f"{microseconds:.0f} µs a second, {percent:.3f} % of real time, on an {times['processor']}, "
        f"{times['instruction_set']}: `python -m benchmarks.room_times`",
        f"at most {_REAL_TIME:.0f} % of real time: a target of this project",
        _verdict(_above(percent, _REAL_TIME, "points")),
    )


def _faster_row(name: str, times: dict[tuple[str, str], dict[str, Any]]) -> Row:
    """Compare the times of a model, step by step, with those of the dense model in edgernn and in ONNX Runtime."""

    def ratios(theirs: tuple[str, str], ours: tuple[str, str]) -> dict[str, float]:
        return {part: times[theirs][part] / times[ours][part] for part in _FASTER}

    def text(factors: dict[str, float]) -> str:
        return f"recurrent part {factors['recurrent']:.1f} times faster, whole model {factors['whole']:.1f} times"

    cells = [f"both from C by edgernn: {text(ratios((_DENSE_ROOM, IN_C), (name, IN_C)))}"]
    verdict = "not measured: ONNX Runtime was called from Python only, this model from C only"
    if (ours := (name, f"{OURS}, {EACH_STEP}")) in times:
        factors = ratios((_DENSE_ROOM, f"{THEIRS}, {EACH_STEP}"), ours)
        cells.append(f"both from Python, the dense one in ONNX Runtime: {text(factors)}")
        misses = {part: least / factors[part] for part, least in _FASTER.items() if factors[part] < least}
        verdict = _verdict([f"{part} by a factor of {factor:.1f}" for part, factor in misses.items()])
    return (
        f"`{name}`, step by step, beside `{_DENSE_ROOM}`",
        "; ".join(cells),
        f"{_FASTER['recurrent']} and {_FASTER['whole']} times faster than ONNX Runtime, called from the same language: "
        "a target of this project",
        verdict,
    )


def _skipping_words_row(name: str, dense: str, words: dict[str, Any], accuracy: float, macs: float) -> Row:
    """Compare a model that skips with a dense one over clips of isolated words."""
    loss, share = 100 * (accuracy - words["value"]), 100 * words["macs_executed"] / macs
    misses = _above(loss, _POINTS, "points", "accuracy ")
    misses += _above(share, _SHARE, "points", "multiply-adds ", 1)
    return (
        f"`{name}`, isolated words, beside {dense}",
        f"{loss:.2f} points less, at {share:.1f} % of its multiply-adds",
        _WORDS_TARGET,
        _verdict(misses),
    )


def _dense_run(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run of the dense model among those of `python -m benchmarks.rooms`: the one without a rule."""
    dense = [run for run in runs if not {"theta_x", "period"} & run["settings"].keys()]
    if len(dense) != 1:
        raise ValueError(
            f"room.json: expected one run without theta_x and period, got {len(dense)}; measure the rooms again"
        )
    return dense[0]


def _room_figures(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a room that the targets compare; hits and wrong words in %."""
    shares = {key: 100 * metrics[f"room_{key}"] for key in ("hits", "wrong")}
    return shares | {key: metrics[f"room_{key}"] for key in ("false_alarms_an_hour", "macs_a_second")}


def _beat_rows(beats: dict[str, Any]) -> list[Row]:
    seeds, rows = beats["seeds"], []
    name_cell = f"`{beats['name']}`"
    if seeds["test"][seeds["model"]] == max(seeds["test"].values()):
        name_cell += f", the best of {len(seeds['test'])} seeds on the test"
    for name, published_pair in DE_CHAZAL.items():
        pair = [100 * beats["classes"][name][measure] for measure in ("sensitivity", "precision")]
        words = ("sensitivity", "precision")
        misses = [
            f"{word} by {wanted - got:.1f} points"
            for word, got, wanted in zip(words, pair, published_pair, strict=True)
            if got < wanted
        ]
        rows.append(
            (
                name_cell,
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
