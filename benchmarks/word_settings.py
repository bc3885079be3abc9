# SPDX-License-Identifier: Apache-2.0
"""Compares settings of word models: `python -m benchmarks.word_settings FOLDER --out FILE`.

Each normalisation of the audio front end is trained with one seed on isolated Arabic words, and with three on long
recordings of English words. The command on the card of models/english-room-gru is run for 40 epochs with three seeds,
and for 150 with one, with weights that start at random and with those of models/arabic-room-gru. The runs are in
FOLDER; finished ones are not trained again. FILE is the JSON file to write. EDGERNN_DATA is the folder of data sets,
and the current folder has the noise speech-noise.
"""

import shlex
from pathlib import Path
from typing import Any

import edgernn
from benchmarks import command_of
from benchmarks.trained_runs import card_arguments, parse, train_once
from edgernn.files import read_json, write_json
from edgernn.runtime.info import NORMALISATIONS
from edgernn.training.run_directory import SERIES, RunDirectory

SEEDS, ISOLATED_SEEDS = range(3), range(1)
ISOLATED = shlex.split(
    "--task keywords --cell gru layers=2 hidden_size=112 dropout_input=0.1 dropout_hidden=0.2 dropout_output=0.3 "
    "lr=0.004 lr_decay=0.965 epochs=90"
)
ROOM = shlex.split(
    "--task keywords --cell gru corpus=speech-commands-test stream=3 silence=0.5 noise_folder=speech-noise "
    "batch_size=32 lr=0.004 lr_decay=0.93 epochs=40"
)
STARTS = ("none", "arabic-room-gru")
# from epochs of the English model to the options that its card's command gets, and the number of seeds
EPOCHS: dict[int, tuple[str, ...]] = {40: ("epochs=40", "lr_decay=0.93"), 150: ()}
START_SEEDS = {40: 3, 150: 1}
# false alarms an hour, for each of which the threshold with the most hits is taken
FALSE_ALARMS = (20, 50)


def room_figures(run: Path, result: dict[str, Any]) -> dict[str, float]:
    """Return figures of a run from 0 to 1: its hits in the room, and its accuracy on the validation and test clips.

    These are isolated words, unknown words and silence.
    """
    series = read_json(run / SERIES)
    points = list(zip(series["room_hits"], series["room_false_alarms_an_hour"], strict=True))
    hits = {
        f"hits_{most}": max((hit for hit, alarms in points if alarms <= most), default=0.0) for most in FALSE_ALARMS
    }
    return {"validation": RunDirectory(run).metrics()[-1]["accuracy"], "test": result["accuracy"], **hits}


def isolated(folder: Path, name: str, seed: int) -> dict[str, Any]:
    """Train the model of isolated Arabic words with a normalisation; return its accuracy on both splits' words."""
    run = folder / f"words-{name}-{seed}"
    result = train_once(run, seed, ISOLATED, [f"normalise={name}"])
    validation = RunDirectory(run).metrics()[-1]["accuracy_words"]
    return {"normalise": name, "seed": seed, "validation": validation, "test": result["accuracy_words"]}


def in_room(folder: Path, name: str, seed: int) -> dict[str, Any]:
    """Train the model of English words with a normalisation; return its figures."""
    run = folder / f"room-{name}-{seed}"
    return {"normalise": name, "seed": seed, **room_figures(run, train_once(run, seed, ROOM, [f"normalise={name}"]))}


def started(folder: Path, name: str, epochs: int) -> list[dict[str, Any]]:
    """Train the English model with weights from a start; return its figures for each seed."""
    rows = []
    for seed in range(START_SEEDS[epochs]):
        run = folder / f"english-{name}-{epochs}-{seed}"
        result = train_once(run, seed, card_arguments("english-room-gru"), [*EPOCHS[epochs], f"start_run={name}"])
        rows.append({"start_run": name, "seed": seed, **room_figures(run, result)})
    return rows


def main() -> None:
    arguments = parse(__doc__)
    folder = arguments.folder
    report = {
        "command": command_of("word_settings"),
        "edgernn": edgernn.__version__,
        "isolated": [isolated(folder, name, seed) for name in NORMALISATIONS for seed in ISOLATED_SEEDS],
        "room": [in_room(folder, name, seed) for name in NORMALISATIONS for seed in SEEDS],
        **{f"starts_{epochs}": [row for name in STARTS for row in started(folder, name, epochs)] for epochs in EPOCHS},
    }
    write_json(arguments.out, report)


if __name__ == "__main__":
    main()
