# SPDX-License-Identifier: Apache-2.0
"""The commands `edgernn wakeword`: record a phrase that wakes an app, and listen for it."""

import sys
from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import CommandGroup, json_command
from edgernn.cli.options import COUNT, PATH, inference_backend
from edgernn.cli.wakeword_train import bank, train
from edgernn.errors import counted


@click.group(cls=CommandGroup, example="edgernn wakeword listen english-room-gru --input room.wav")
def command() -> None:
    """Make a wake word: a phrase of one's own that a model hears while it is left on.

    Everything stays on this computer: nothing is sent anywhere.
    """


class _Meter:
    """A line on the terminal with the time and the level of the sound; empty if standard error is no terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def show(self, seconds: float, level: float, length: float | None = None) -> None:
        if self._is_shown:
            bar = "#" * max(0, round((level + 60) / 3))
            share = "" if length is None else f" of {length:.0f} s, {100 * seconds / length:.0f} %"
            sys.stderr.write(f"\r{seconds:9.1f} s{share}  [{bar:<20}] {level:4.0f} dB ")
            sys.stderr.flush()

    def say(self, line: str) -> None:
        self.clear()
        print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")


def _alarm(alarm: dict[str, Any]) -> str:
    return f"{alarm['seconds']:9.2f} s  {alarm['word']}  {alarm['score']:.2f}  {alarm['clip']}"


def _listen_text(result: dict[str, Any]) -> str:
    alarms, seconds = result["alarms"], result["seconds"]
    line = f"{result['source']}: {counted(len(alarms), 'alarm')} in {seconds:.1f} s"
    if not seconds:
        return line
    rate, low, high = (result[f"alarms_an_hour{end}"] for end in ("", "_low", "_high"))
    line = f"{line}, {rate:.1f} an hour (95 %: {low:.1f} to {high:.1f})"
    return f"{line}; clips in {result['clips']}" if alarms else line


@json_command(example="edgernn wakeword listen english-room-delta --input room.wav", text=_listen_text)
@click.argument("model", type=PATH)
@click.option("--input", "source", type=PATH, help="Wav file to listen to.  [default: the microphone, until Ctrl-C]")
@click.option(
    "--clips",
    type=PATH,
    default=Path("alarms"),
    show_default=True,
    help="Folder for a wav file of each alarm, with the 2 s before it.",
)
@click.option(
    "--threshold",
    type=float,
    help="Average probability (0 to 1) that raises an alarm.  [default: that of the file, else 0.5]",
)
@click.option(
    "--smoothing",
    type=float,
    help="Number of seconds over which probabilities are averaged.  [default: that of the file, else 0.3]",
)
@click.option(
    "--refractory",
    type=float,
    help="Number of seconds after an alarm without another one.  [default: that of the file, else 0.8]",
)
@inference_backend
def _listen(
    model: Path,
    source: Path | None,
    clips: Path,
    threshold: float | None,
    smoothing: float | None,
    refractory: float | None,
    **options: Any,
) -> dict[str, Any]:
    """Listen for the words of MODEL, print each alarm with its time and score, and keep its sound as a wav file.

    MODEL is an exported file, or a name that `edgernn models` lists. At the end, or at Ctrl-C, the command prints the
    number of alarms an hour.

    The microphone needs the package sounddevice or, on Linux, the program arecord.
    """
    from edgernn.runtime.listen import listen
    from edgernn.runtime.zoo import find_model

    meter = _Meter()
    changes = {"threshold": threshold, "smoothing": smoothing, "refractory": refractory}
    try:
        return listen(
            find_model(model),
            source,
            clips,
            changes,
            on_alarm=lambda alarm: meter.say(_alarm(alarm)),
            on_sound=meter.show,
            **options,
        )
    finally:
        meter.clear()


def _record_text(result: dict[str, Any]) -> str:
    refused = f", {counted(len(result['refused']), 'take')} refused" if result["refused"] else ""
    return f"{result['folder']}: {counted(len(result['files']), 'new take')}{refused}"


@json_command(example="edgernn wakeword record takes --input recordings --speaker anna", text=_record_text)
@click.argument("folder", type=PATH)
@click.option(
    "--input",
    "sources",
    type=PATH,
    multiple=True,
    help="Wav file with one take, or folder of such files; may be repeated.  [default: the microphone]",
)
@click.option("--takes", type=COUNT, default=25, show_default=True, help="Number of takes through the microphone.")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 5),
    default=2.5,
    show_default=True,
    help="Length of a take through the microphone.",
)
@click.option("--speaker", help="Name of the speaker, which begins the names of the files.")
@click.option("--rate", type=click.IntRange(8000, 48000), default=16000, show_default=True, help="Samples per second.")
def _record(
    folder: Path, sources: tuple[Path, ...], takes: int, seconds: float, speaker: str | None, rate: int
) -> dict[str, Any]:
    """Record a phrase many times, or read recordings of it, and write each take to FOLDER as a numbered wav file.

    A phrase of two words that are seldom said together gives the fewest false alarms. Say it as you will say it later:
    near and far, loud and low. Each take is checked. One that is silent or clipped is not written, nor one of the
    microphone that is cut off; a sentence says what to do. Recordings of another sample rate are converted. Nothing in
    FOLDER is overwritten.

    The microphone needs the package sounddevice or, on Linux, the program arecord.
    """
    from edgernn.errors import EdgernnError
    from edgernn.runtime.takes import Takes

    recorded = Takes(folder, speaker, rate)

    def before(number: int) -> bool:
        print(f"take {number} of {takes}: press Enter, then say the phrase ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline() != ""

    def say(name: str, sentence: str | None) -> None:
        print(f"{name}: {sentence or 'good'}", file=sys.stderr)

    try:
        if sources:
            recorded.read(sources, say)
        else:
            recorded.record(takes, seconds, before, lambda: print("speak now", file=sys.stderr), say)
    except KeyboardInterrupt:
        # the takes so far are written
        print(file=sys.stderr)
    if not recorded.files and recorded.refused:
        (name, sentence), *_ = recorded.refused.items()
        raise EdgernnError(f"{name}: {sentence}")
    return recorded.report()


command.add_command(_record, "record")
command.add_command(bank, "bank")
command.add_command(train, "train")
command.add_command(_listen, "listen")
