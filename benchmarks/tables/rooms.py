# SPDX-License-Identifier: Apache-2.0
"""Tables and picture of word models, for the pages detect-words.md and calibrate.md of docs/how-to.

`python -m benchmarks.rooms` writes the figures to docs/results/room.json, `python -m benchmarks.room_times` the
times to docs/results/room-times.json, `python -m benchmarks.calibration` docs/results/calibration.json, and
`python -m benchmarks.word_settings` docs/results/word-settings.json. `python -m benchmarks.spoken_words` writes
docs/results/spoken-words.json.
"""

from pathlib import Path
from typing import Any

from benchmarks.tables import table
from benchmarks.tables.measured import ROOT, compared, filled, read_report
from edgernn.runtime.zoo import entries
from edgernn.training.tasks.spotting import det_curve

# how a model was run: must equal the names in benchmarks/room_times.py
IN_C = "edgernn, a call from C for each step"
ONE_CALL, EACH_STEP = "one call from Python", "a call from Python for each step"
OURS, THEIRS = "edgernn", "ONNX Runtime"
_DENSE, _PICTURED = "arabic-room-gru", "arabic-room-delta"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _models() -> dict[str, dict[str, Any]]:
    models: dict[str, dict[str, Any]] = read_report("room")["models"]
    return models


def _table(rows: list[list[str]]) -> str:
    """Format a table with a column for each model from its rows, whose first cells are their titles."""
    return table(["", *(f"`{name}`" for name in _models())], rows)


def rooms() -> dict[str, str]:
    """Return the generated parts of the page, as a dict from the names of their markers to their texts."""
    return {
        "room": _room(),
        "room-work": _work(),
        "room-variants": _variants(),
        "room-times": _times(),
        "word-starts": _starts(),
        "front-ends": _front_ends(),
        "spoken-words": _spoken_words(),
    }


def _room() -> str:
    """Return the table of the detections in ten hours."""
    metrics = [model["room"] for model in _models().values()]
    known = {entry["name"]: entry for entry in entries(ROOT / "models")}
    threshold = read_report("room")["threshold"]
    chosen = [known[name] for name in _models()]
    cells = [entry["cell"] + (f" + {entry['rule']}" if entry["rule"] != "always" else "") for entry in chosen]
    stricter = [figures["stricter"] for figures in metrics]
    return _table(
        [
            ["cell and rule", *cells],
            ["isolated words", *(_percent(figures["accuracy_words"]) for figures in metrics)],
            ["isolated words and silence", *(_percent(figures["accuracy"]) for figures in metrics)],
            ["hits", *(_percent(figures["room_hits"]) for figures in metrics)],
            ["wrong words", *(_percent(figures["room_wrong"]) for figures in metrics)],
            ["missed", *(_percent(figures["room_missed"]) for figures in metrics)],
            ["false alarms an hour", *(f"{figures['room_false_alarms_an_hour']:.1f}" for figures in metrics)],
            [
                f"at a threshold of {threshold:g}: hits, wrong words, false alarms an hour",
                *(
                    f"{_percent(one['hits'])}, {_percent(one['wrong'])}, {one['false_alarms_an_hour']:.1f}"
                    for one in stricter
                ),
            ],
        ]
    )


def _work() -> str:
    """Return the table of the work a second of audio, and what part it is of the dense model's work."""
    models = _models()
    dense = models[_DENSE]["room"]
    front = dense["room_frontend_macs_a_second"]

    def counts(part: str, name: str) -> list[str]:
        return [f"{model[part][name]:,.0f}" for model in models.values()]

    def shares(added: float) -> list[str]:
        whole = dense["room_macs_a_second"] + added
        return [_percent((model["room"]["room_macs_a_second"] + added) / whole) for model in models.values()]

    skipped = [
        f"{model['room']['room_skip_percent']:.1f} %, {model['room']['room_skip_percent_background']:.1f} %"
        for model in models.values()
    ]
    shown = _table(
        [
            ["updates a second", *counts("room", "room_updates_a_second")],
            ["updates skipped in the room, and between words", *skipped],
            ["multiply-adds a second of the layers", *counts("room", "room_macs_a_second")],
            ["share of the dense model's multiply-adds", *shares(0)],
            ["share of the dense model's multiply-adds, with the front end in both", *shares(front)],
            [
                "multiply-adds a second of the layers in an hour with one word",
                *counts("one_word", "room_macs_a_second"),
            ],
            ["multiply-adds a second of the layers in digital silence", *counts("silence", "macs_a_second")],
            ["updates a second in digital silence", *counts("silence", "updates_a_second")],
        ]
    )
    cheapest, position = models[_PICTURED]["room"]["room_macs_a_second"], list(models).index(_PICTURED)
    quiet = models[_PICTURED]["silence"]["macs_a_second"]
    text = (
        f"The front end takes {front:,.0f} multiply-adds a second more, in all models and at any time. With it, "
        f"`{_PICTURED}` executes {cheapest + front:,.0f} multiply-adds a second in the room, and the dense model "
        f"{dense['room_macs_a_second'] + front:,.0f}: {shares(front)[position]} of the work, "
        f"or {shares(0)[position]} without the front end. In digital silence it executes {quiet + front:,.0f}, of "
        f"which the front end is {_percent(front / (quiet + front))}. The front end skips nothing, also in silence."
    )
    return f"{shown}\n\n{filled(text)}"


def _variants() -> str:
    """Return the table of other thresholds and penalties of delta, and of longer training of the dense model."""
    report = read_report("room")
    head = ["settings in place of those above", "isolated words", "isolated words and silence"]
    rows = []

    def add(title: str, metrics: dict[str, Any]) -> None:
        share = metrics["room_macs_a_second"] / metrics["room_macs_a_second_dense"]
        hits = f"{_percent(metrics['room_hits'])}, {metrics['room_false_alarms_an_hour']:.1f}"
        shares = (metrics["accuracy_words"], metrics["accuracy"])
        rows.append([title, *map(_percent, shares), hits, _percent(share)])

    for run in report["runs"]:
        words = " ".join(f"{name}={value}" for name, value in run["settings"].items())
        rule = "" if "theta_x" in run["settings"] else ", without `--rule delta`"
        add(f"`{words}`" + (", with `--rule periodic`" if "period" in run["settings"] else rule), run)
    for metrics in report["untrained"]:
        add(f"`theta_x={metrics['theta_x']} theta_h={metrics['theta_h']}`, not trained further", metrics)
    return table([*head, "hits, false alarms an hour", "work of the dense model"], rows)


def _times() -> str:
    """Return the table of the times of a second of audio, and how the times of the models compare."""
    report = read_report("room-times")
    rows = [
        [f"`{row['model']}`, {row['way']}", f"{row['whole']:,.0f}", f"{row['recurrent']:,.0f}"]
        for row in report["rows"]
    ]
    times = {(row["model"], row["way"]): row for row in report["rows"]}
    skipping = [model for model, way in times if way == IN_C and model != _DENSE]
    in_c = [times[model, IN_C] for model in skipping]
    one_call = times[_DENSE, f"{THEIRS}, {ONE_CALL}"]
    how = (
        f"Microseconds for a second of audio, medians of {report['rounds']} interleaved rounds on one thread of an "
        f"{report['processor']}, {report['instruction_set']}, of the first minute of the room, which has more words "
        f"than the hour: `{report['command']}`."
    )
    text = (
        "Called from C for each step, both by edgernn, the dense model takes "
        f"{_ratios(times[_DENSE, IN_C], in_c, 'the models that skip')}. One call of ONNX Runtime from Python for the "
        f"whole recording, which a stream cannot make, takes {_ratios(one_call, in_c, 'these loops in C')}."
    )
    for call in (ONE_CALL, EACH_STEP):
        ours = [times[model, f"{OURS}, {call}"] for model in skipping if (model, f"{OURS}, {call}") in times]
        if ours:
            dense = times[_DENSE, f"{THEIRS}, {call}"]
            text += f" With {call} in both, the dense model in ONNX Runtime takes {_ratios(dense, ours, 'they do')}."
        elif call == EACH_STEP:
            text += (
                " A call from Python costs time that a loop in C does not spend, so the times of ONNX Runtime with a "
                "call for each step do not compare with those from C. The command now times edgernn from Python, too; "
                "an earlier version made this table."
            )
    return "\n\n".join([filled(how), table(["", "whole model", "recurrent part"], rows), filled(text)])


def _ratios(row: dict[str, Any], others: list[dict[str, Any]], than: str) -> str:
    """Say how many times as long as other rows, named `than`, a row takes in the recurrent part and as a whole."""
    bounds = []
    for part in ("recurrent", "whole"):
        values = [row[part] / other[part] for other in others]
        bounds.append(f"{min(values):.1f} to {max(values):.1f} times")
    return f"{bounds[0]} as long as {than} in the recurrent part, and {bounds[1]} as a whole"


# columns of the tables of word settings, from title to the key of the figures in docs/results/word-settings.json
_ROOM_COLUMNS = {
    "English words, unknown words and silence, validation": "validation",
    "test": "test",
    # must equal FALSE_ALARMS in benchmarks/word_settings.py
    **{f"hits at no more than {most} false alarms an hour": f"hits_{most}" for most in (20, 50)},
}
_ISOLATED_COLUMNS = {"isolated Arabic words, validation": "validation", "test": "test"}


def _starts() -> str:
    """Return the tables of the English model with weights that start at random, and with those of another model."""
    parts = [part for part in read_report("word-settings") if part.startswith("starts_")]
    tables = [
        f"{part.removeprefix('starts_')} epochs:\n\n{_settings_table(part, 'start_run', 'none', _ROOM_COLUMNS)}"
        for part in parts
    ]
    return "\n\n".join([*tables, _measured_words()])


def _front_ends() -> str:
    """Return the tables of the normalisations of the audio front end, each compared with `log`."""
    isolated = _settings_table("isolated", "normalise", "log", _ISOLATED_COLUMNS)
    return "\n\n".join([isolated, _settings_table("room", "normalise", "log", _ROOM_COLUMNS), _measured_words()])


def _measured_words() -> str:
    """Say how the settings of word models were measured."""
    return filled(f"Measured by `{read_report('word-settings')['command']}`.")


def _settings_table(part: str, setting: str, base: str, columns: dict[str, str]) -> str:
    """Format a table of a setting's values, each compared with the value `base`, over seeds."""
    report = read_report("word-settings")
    rows = []

    def figures(name: str, key: str) -> dict[int, float]:
        return {row["seed"]: 100 * row[key] for row in report[part] if row[setting] == name}

    for name in dict.fromkeys(row[setting] for row in report[part]):
        cells = [compared(figures(name, key), {} if name == base else figures(base, key)) for key in columns.values()]
        rows.append([f"`{name}`", *cells])
    seeds = len(dict.fromkeys(row["seed"] for row in report[part]))
    how = (
        f"means of {seeds} seeds, and the difference from `{base}` with its 95 % interval, paired by seed; bold if it "
        "excludes 0"
    )
    text = filled(f"In percent, {how if seeds > 1 else 'one training each'}.")
    return f"{table([f'`{setting}`', *columns], rows)}\n\n{text}"


def _spoken_words() -> str:
    """Return the table of the words that the page detects, of those that the C program detects."""
    report = read_report("spoken-words")
    models: dict[str, dict[str, Any]] = report["models"]
    rows = []
    for way in next(iter(models.values()))["samples"]:
        counts = [(model["samples"][way], model["in_c"]) for model in models.values()]
        cells = [(f"{count['alike']} of {all_words}", str(count["further"])) for count, all_words in counts]
        rows.append([way, *(cell for pair in cells for cell in pair)])
    detections = " and ".join(str(model["in_c"]) for model in models.values())
    text = (
        f"The {report['recordings']} recordings have ten words in 20 s each, 15 dB above noise. The C program makes "
        f"{detections} detections, some of them wrong. "
        f"Measured by `{report['command']}`, with Node {report['node']} on an {report['processor']}."
    )
    heads = (head for name in models for head in (f"`{name}`, also detected", "only on the page"))
    return f"{table(['samples', *heads], rows)}\n\n{filled(text)}"


def calibrated() -> dict[str, str]:
    """Return the generated parts of the page on calibration, as a dict from the names of their markers to texts."""
    return {"calibrated": _calibrated_words(), "calibrated-room": _calibrated_room()}


def _calibrated_words() -> str:
    """Return the table of the dense model of isolated words with thresholds for several losses."""
    report = read_report("calibration")
    times = {(row["model"], row["way"]): row for row in report["times"]}
    head = ["`--loss`", "accuracy, validation", "accuracy, test", "accuracy, words", "multiply-adds"]
    head += ["multiply-adds, words", "recurrent part, µs", "whole model, µs"]
    rows = []
    validation = report["rows"][-1]["validation"]["dense"]
    for row in report["rows"]:
        name = "dense" if row["loss"] is None else str(row["loss"])
        chosen = validation if row["loss"] is None else row["validation"]["accuracy"]
        time = times[name, IN_C]
        cells = [name, *(_percent(share) for share in (chosen, row["accuracy"], row["words"]["value"]))]
        cells += [_percent(part["macs_executed"] / report["macs"]) for part in (row, row["words"])]
        rows.append([*cells, f"{time['recurrent']:.0f}", f"{time['whole']:.0f}"])
    text = (
        "Accuracy and multiply-adds of the layers over all test clips, and over those with a word. Times: microseconds "
        f"for a second of audio, step by step in C, medians of {report['rounds']} interleaved rounds on one thread of "
        f"an {report['processor']}, {report['instruction_set']}, of {report['clips']} test clips. edgernn runs all "
        f"models, packed. Measured by `{report['command']}`."
    )
    return f"{table(head, rows)}\n\n{filled(text)}"


def _calibrated_room() -> str:
    """Return the table of the dense model of a room with thresholds, without further training."""
    report = read_report("room")
    dense = report["models"][_DENSE]["room"]
    rows = []
    for row in (dense, *report["untrained"]):
        name = "dense" if row is dense else f"{row['theta_x']:g}, {row['theta_h']:g}"
        cells = [name, _percent(row["room_hits"]), _percent(row["room_wrong"])]
        cells.append(f"{row['room_false_alarms_an_hour']:.1f}")
        rows.append([*cells, _percent(row["room_macs_a_second"] / dense["room_macs_a_second"])])
    text = (
        f"{dense['room_hours']:g} hours of room. Multiply-adds are those of the layers, as shares of the dense ones. "
        "The thresholds were set by hand, equal in both layers, and not by `edgernn calibrate`. Measured by `python -m "
        "benchmarks.rooms docs/results/room.json`."
    )
    head = ["thresholds of x and h", "hits", "wrong words", "false alarms an hour", "multiply-adds"]
    return f"{table(head, rows)}\n\n{filled(text)}"


def draw_detections(path: Path) -> None:
    """Draw the DET curve of the pictured model in the room into an image file."""
    figures = _models()[_PICTURED]["room"]
    det_curve(path, figures["curve"], figures["room_hours"])
