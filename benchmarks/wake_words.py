# SPDX-License-Identifier: Apache-2.0
"""Trains and measures wake words of two Arabic words: `python -m benchmarks.wake_words FOLDER FILE`.

FOLDER is the folder to write data, fronts and runs to. FILE is the JSON file of the results. A plan has ten phrases,
five folds by speaker and three seeds: 150 trainings. Of the first fold and seed, each phrase is also trained without a
front, and with its lower layer frozen. The command trains those that FILE does not have, one after the other, and can
be stopped at any time. EDGERNN_DATA is the folder of data sets:
arabic-speech-commands, speech-commands-test and speech-noise as folders of wav files. If espeak-ng is installed, 20 of
its voices are other speech, too, each with 40 lines of tinyshakespeare/input.txt.

A take joins one recording of each of the two words by the same speaker, without the silence round them, with a gap of
up to 0.3 s. The bank of a phrase has the other words, with the second word of the phrase but without the first, so that
the phrase is not composed by chance. The front of a fold hears the words that are in no phrase, by speakers of the
fold's training part. Besides the figures of the training, the exported files of the first seed and fold hear the takes
of the test speakers in their other words and in pink noise, mixed as samples.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import parser_of
from edgernn.files import read_json, write_json
from edgernn.machine import processor
from edgernn.progress import Progress
from edgernn.runtime import Session
from edgernn.runtime.wav import FULL_SCALE, read_wav, write_wav
from edgernn.runtime.word_detection import Detector, PostProcessing
from edgernn.training import train
from edgernn.training.api import TrainedRun
from edgernn.training.plan import configure
from edgernn.training.run_directory import RESULT, SERIES
from edgernn.training.tasks.mel_bank import load_bank, read_recordings
from edgernn.training.tasks.mixing import noise_clips, spoken_part, word_power
from edgernn.training.tasks.recordings import Audio, noise_parts
from edgernn.training.tasks.spotting import LATE
from edgernn.training.tasks.wake_front import FROM_FRONT, SIZES
from edgernn.training.tasks.wakewords import WakeWord, speaker_parts

RATE, HOP = 16000, 160
PHRASES = (
    *("start forward", "four record", "enable direction", "open options", "close digit", "receive previous"),
    *("rotate right", "cancel send", "zero undo", "disable enter"),
)
FOLDS, SEEDS = 5, 3
VOICES = (
    *("en-us+m1", "en-us+m3", "en-gb+m2", "en-gb+f2", "en-us+f3", "en-gb+m7", "en-us+f4", "en-gb-scotland+m4"),
    *("en-029+m5", "en-us+f1", "en-gb-x-rp+m6", "en-us+croak", "en-gb+whisper", "en-us+klatt2", "ar+m2", "ar+f3"),
    *("de+m1", "fr+f2", "es+m3", "it+f1"),
)
LINES = 40
# seconds, number and signal-to-noise ratios in dB of the streams of samples, and the levels of their speech
SECONDS, STREAMS, RATIOS, LEVELS = 6.0, 240, (5.0, 30.0), (-50.0, -12.0)
# settings of a training by its start: all weights from a front, as the command has it; random; the lower layer frozen
STARTS: dict[str, dict[str, Any]] = {
    "front": {**SIZES, **FROM_FRONT},
    "random": {"steps": 2000},
    "frozen": {**SIZES, "start_frozen": 1, "steps": 4000},
}
# metrics of a training that its row does not need
_LEFT_OUT = ("run", "solved", "threshold", "flops_paper", "seconds_per_epoch", "steps_a_sequence")


@dataclass(frozen=True)
class Row:
    """One training of the plan: its phrase, fold, seed and start."""

    phrase: str
    fold: int
    seed: int
    start: str = "front"

    @property
    def name(self) -> str:
        return f"{self.phrase.replace(' ', '-')}-{self.fold}-{self.seed}-{self.start}"


def plan() -> Iterator[Row]:
    """List the trainings: those of the first fold and seed, one start after the other, then all others."""
    rows = [Row(phrase, fold, seed) for seed in range(SEEDS) for fold in range(FOLDS) for phrase in PHRASES]
    yield from (Row(phrase, 0, 0, start) for start in STARTS for phrase in PHRASES)
    yield from rows[len(PHRASES) :]


def _sound(path: Path) -> Audio:
    return spoken_part(read_wav(path, RATE).astype(np.float32) / np.float32(FULL_SCALE), HOP)


def prepare(folder: Path, data: Path) -> None:
    """Write the folders takes/PHRASE and arabic, maybe voices, and bank.npz with all words."""
    words = data / "arabic-speech-commands" / "dataset"
    for phrase in PHRASES:
        first, second = phrase.split()
        random = np.random.default_rng([PHRASES.index(phrase), 0, 0])
        for path in sorted((words / first).glob("*.wav")):
            if not (words / second / path.name).is_file():
                continue
            gap = np.zeros(int(random.uniform(0, 0.3) * RATE), np.float32)
            samples = np.concatenate([_sound(path), gap, _sound(words / second / path.name)])
            speaker = folder / "takes" / phrase / path.name.partition("_")[0]
            speaker.mkdir(parents=True, exist_ok=True)
            write_wav(speaker / path.name, samples, RATE)
    shutil.copytree(words, folder / "arabic", dirs_exist_ok=True)
    if shutil.which("espeak-ng"):
        text = (data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8").splitlines()
        lines = [line for line in text if 40 <= len(line) <= 120]
        for i, voice in enumerate(VOICES):
            place = folder / "voices" / voice
            place.mkdir(parents=True, exist_ok=True)
            sound = ["espeak-ng", "-v", voice, "-p", str(35 + i * 7 % 40), "-s", str(140 + i * 13 % 60)]
            for n, line in enumerate(lines[i * LINES : (i + 1) * LINES]):
                subprocess.run([*sound, "-w", str(place / f"{n}.wav"), "--", line], check=True)
    config = configure(WakeWord.defaults, {}, {})[1].frontend
    bank = read_recordings(folder / "arabic", config, pattern="{}_*")
    sources = {"english": data / "speech-commands-test", "voices": folder / "voices"}
    for name, source in sources.items():
        if source.is_dir():
            part = read_recordings(source, config)
            part.source[:] = name
            bank = bank.joined(part)
    bank.joined(read_recordings(data / "speech-noise", config, is_noise=True)).save(folder / "bank.npz")


def front_of(folder: Path, fold: int) -> Path:
    """Return the run of the front of a fold, which is trained if it is missing."""
    run = folder / f"front-{fold}"
    bank_file = folder / f"front-{fold}.npz"
    if not bank_file.exists():
        bank = load_bank(folder / "bank.npz", configure(WakeWord.defaults, {}, {})[1].frontend)
        speakers = {path.name for phrase in PHRASES for path in (folder / "takes" / phrase).iterdir()}
        parts = speaker_parts(speakers, bank.group, 0, fold)
        in_phrases = {word for phrase in PHRASES for word in phrase.split()}
        words = np.array([Path(name).parent.name for name in bank.name])
        phrased = (bank.source == "arabic") & np.isin(words, [*in_phrases])
        bank.chosen(np.array([parts[group] == 0 for group in bank.group]) & ~phrased).save(bank_file)
    settings = {"bank": str(bank_file)}
    train("wake-front", "gru", out=run, seed=fold, settings=settings, resume=True, progress=Progress())
    return run


def bank_of(folder: Path, phrase: str) -> Path:
    """Return the bank of a phrase: without its first word."""
    path = folder / "banks" / f"{phrase.replace(' ', '-')}.npz"
    if not path.exists():
        bank = load_bank(folder / "bank.npz", configure(WakeWord.defaults, {}, {})[1].frontend)
        words = np.array([Path(name).parent.name for name in bank.name])
        path.parent.mkdir(exist_ok=True)
        bank.chosen((bank.source != "arabic") | (words != phrase.split(maxsplit=1)[0])).save(path)
    return path


def trained(folder: Path, row: Row) -> dict[str, Any]:
    """Train a phrase, and return its figures."""
    settings = {
        "takes": str(folder / "takes" / row.phrase),
        "bank": str(bank_of(folder, row.phrase)),
        "fold": row.fold,
        "eval_every": 10**6,
        **STARTS[row.start],
    }
    if row.start != "random":
        settings["start_run"] = str(front_of(folder, row.fold))
    out = folder / "runs" / row.name
    run = train("wakeword", "gru", out=out, seed=row.seed, settings=settings, resume=True, progress=Progress())
    series = read_json(out / SERIES)
    figures = {name: value for name, value in run.items() if name not in _LEFT_OUT}
    figures |= {"phrase": row.phrase, "fold": row.fold, "start": row.start}
    kept = ("threshold", "hits", "false_alarms")
    figures["series"] = {name: values for name, values in series.items() if name.endswith(kept)}
    if (row.fold, row.seed, row.start) == (0, 0, "front"):
        figures |= in_a_file(folder, row.phrase, run)
    else:
        shutil.rmtree(out)
    return figures


def in_a_file(folder: Path, phrase: str, run: TrainedRun) -> dict[str, Any]:
    """Return the sizes of the exported files of a run in bytes, and the hits of each in streams of samples."""
    figures: dict[str, Any] = {}
    for weights in ("float32", "int8"):
        file = run.export(weights=weights)
        packed = file.with_suffix(".edgernn")
        subprocess.run([sys.executable, "-m", "edgernn", "pack", str(file)], check=True, stdout=subprocess.DEVNULL)
        sizes = {"onnx_bytes": file.stat().st_size, "packed_bytes": packed.stat().st_size}
        figures[f"file_{weights}"] = sizes | heard_in_samples(folder, phrase, file, run.path)
    return figures


def heard_in_samples(folder: Path, phrase: str, file: Path, run: Path) -> dict[str, Any]:
    """Return the hits of an exported file in streams of samples, each with a take of a test speaker."""
    speakers = read_json(run / "split.json")["test"]
    takes = [path for speaker in speakers for path in sorted((folder / "takes" / phrase / speaker).glob("*.wav"))]
    others = [path for speaker in speakers for path in sorted((folder / "arabic").glob(f"*/{speaker}_*.wav"))]
    others = [path for path in others if path.parent.name != phrase.split(maxsplit=1)[0]]
    session, random, length = Session(file), np.random.default_rng([1, 0, 0]), int(SECONDS * RATE)
    noise = [noise_parts(None, HOP, RATE)["test"][1]]
    streams, places = [], []
    for i in range(STREAMS):
        pieces: list[Audio] = []

        def add(path: Path, pieces: list[Audio] = pieces) -> None:
            sound = _sound(path)
            pieces.append(sound / np.float32(np.sqrt(word_power(sound[None], HOP)[0])))
            pieces.append(np.zeros(int(random.uniform(0, 0.3) * RATE), np.float32))

        while sum(map(len, pieces)) < 0.4 * length:
            add(others[random.integers(len(others))])
        begin = sum(map(len, pieces))
        add(takes[i % len(takes)])
        end = sum(map(len, pieces[:-1]))
        while sum(map(len, pieces)) < length:
            add(others[random.integers(len(others))])
        level, ratio = (10 ** (random.uniform(*bounds) / 20) for bounds in (LEVELS, RATIOS))
        samples = np.concatenate(pieces)[:length] + noise_clips(noise, random, 1, length)[0] / np.float32(ratio)
        streams.append(np.clip(samples * np.float32(level), -1, 1))
        places.append((begin, end + LATE * RATE))
    step = session.input_size
    x = np.stack(streams)[:, : length // step * step].reshape(STREAMS, -1, step).swapaxes(0, 1)
    settings = PostProcessing.stored(session.info)
    detector = Detector(session.info["classes"], step / RATE, settings)
    averages = detector.averages(session.run(np.ascontiguousarray(x)))
    hits = 0
    for i, (begin, end) in enumerate(places):
        times = [(word.step + 1) * step for word in detector.find(averages[:, i], settings.threshold)]
        hits += any(begin <= time <= end for time in times)
    return {"hits": hits / STREAMS, "streams": STREAMS}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, help="Number of trainings to do now.  [default: all that are missing]")
    args = parser.parse_args()
    folder: Path = args.folder
    before = read_json(args.file) if args.file.exists() else {}
    done = {_key(run): run for run in before.get("runs", ()) if "start" in run}
    fronts = {front["seed"]: front for front in before.get("fronts", ())}
    if not (folder / "bank.npz").exists():
        prepare(folder, Path(os.environ["EDGERNN_DATA"]))
    rows = list(plan())
    missing = [row for row in rows if _key(asdict(row)) not in done][: args.rows]
    for row in missing:
        done[_key(asdict(row))] = trained(folder, row)
        fronts |= {i: read_json(path) for i in range(FOLDS) if (path := folder / f"front-{i}" / RESULT).exists()}
        runs = [done[key] for key in map(_key, map(asdict, rows)) if key in done]
        report = {"machine": processor(), "planned": len(rows), "fronts": [*fronts.values()], "runs": runs}
        write_json(args.file, report)


def _key(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["phrase"], run["fold"], run["seed"], run["start"]


if __name__ == "__main__":
    main()
