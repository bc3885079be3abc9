# SPDX-License-Identifier: Apache-2.0
"""The commands `edgernn wakeword bank` and `edgernn wakeword train`."""

import os
from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import following, json_command
from edgernn.cli.options import PATH
from edgernn.errors import counted

# name of the front in the zoo
_FRONT = "wake-front"
# thresholds of the printed table, besides the chosen one
_PRINTED = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)


def _bank_text(result: dict[str, Any]) -> str:
    rows = [
        f"{source['name']}: {counted(source['recordings'], 'recording')}, {source['minutes']:.1f} min of "
        f"{'noise' if source['is_noise'] else 'distinct speech'}"
        for source in result["sources"]
    ]
    return "\n".join(
        [*rows, f"{result['bank']}: {result['minutes']:.1f} min of distinct speech, {result['bytes']:,} B"]
    )


@json_command(example="edgernn wakeword bank talk --noise noise --out bank.npz", text=_bank_text)
@click.argument("sources", nargs=-1, required=True, type=PATH, metavar="FOLDER|BANK.npz...")
@click.option("--noise", type=PATH, multiple=True, help="Folder with wav files of noise without speech; repeatable.")
@click.option("--out", type=PATH, default=Path("bank.npz"), show_default=True, help="File to write.")
@click.option(
    "--split-by",
    "pattern",
    metavar="PATTERN",
    help="Pattern of the files' paths, with {} for the speaker, such as '{}_*'.  [default: subfolders, or the text "
    "before _nohash_ of a file's name]",
)
def bank(sources: tuple[Path, ...], noise: tuple[Path, ...], out: Path, pattern: str | None) -> dict[str, Any]:
    """Make a bank of other speech and of noise, which a wake word must not be confused with.

    Each FOLDER has wav files of speech, such as hours of the room in which the model will listen, without the phrase. A
    BANK.npz adds an earlier bank. Recordings are stored as mel energies of 8 bits, 14 MB an hour. Everything stays on
    this computer.
    """
    from edgernn.errors import EdgernnError, UsageError
    from edgernn.progress import Progress
    from edgernn.training.plan import configure
    from edgernn.training.tasks.mel_bank import load_bank, read_recordings
    from edgernn.training.tasks.wakewords import WakeWord

    if out.exists():
        raise UsageError(f"--out: expected a new file, got {out}, which exists; name another one")
    names = [folder.resolve().name for folder in (*sources, *noise) if folder.suffix != ".npz"]
    if len(set(names)) < len(names):
        raise UsageError(f"FOLDER: expected different names, got {', '.join(names)}; rename one, or join the folders")
    config = configure(WakeWord.defaults, {}, {})[1].frontend
    progress, banks = Progress(), []
    for folder, is_noise in [*((folder, False) for folder in sources), *((folder, True) for folder in noise)]:
        if folder.suffix == ".npz":
            banks.append(load_bank(folder, config))
            continue
        progress.begin(str(folder), None, line=f"{folder}: reading")
        banks.append(
            read_recordings(
                folder,
                config,
                pattern=None if is_noise else pattern,
                is_noise=is_noise,
                on_file=lambda done, total: progress.update(done),
            )
        )
        progress.close()
    whole = banks[0]
    for part in banks[1:]:
        whole = whole.joined(part)
    if whole.is_noise.all():
        raise EdgernnError(f"{out}: expected recordings of speech, got noise alone; name a folder with speech")
    whole.save(out)
    rows = []
    for name, is_noise in sorted({*zip(whole.source.tolist(), whole.is_noise.tolist(), strict=True)}):
        part = whole.chosen((whole.source == name) & (whole.is_noise == is_noise))
        count = len(set(part.name.tolist()))
        rows.append({"name": name, "is_noise": is_noise, "recordings": count, "minutes": part.minutes()})
    minutes = sum(row["minutes"] for row in rows if not row["is_noise"])
    return {"bank": str(out), "sources": rows, "minutes": minutes, "bytes": out.stat().st_size}


def _rate(figures: dict[str, Any], prefix: str = "") -> str:
    low, high = (figures[f"{prefix}false_alarms_an_hour_{end}"] for end in ("low", "high"))
    return f"{figures[f'{prefix}false_alarms_an_hour']:8.2f} ({low:.2f} to {high:.2f})"


def _train_text(result: dict[str, Any]) -> str:
    chosen = result["detector"]["threshold"]
    lines = [f"{'threshold':>9}  {'hits':>6}  false alarms an hour in {result['hours']:.3g} h of other speech (95 %)"]
    for point in result["table"]:
        is_chosen = point["threshold"] == chosen
        mark = (
            f"  chosen on the validation part: {100 * result['validation_hits']:.1f} % hits there" if is_chosen else ""
        )
        if mark or point["threshold"] in _PRINTED:
            lines.append(f"{point['threshold']:9g}  {100 * point['hits']:5.1f}%  {_rate(point)}{mark}")
    lines.append(f"at the threshold {chosen:g}, {counted(result['phrases'], 'phrase')} of the test part:")
    for name, minutes in result["minutes"].items():
        alarms, hours = result[f"{name}_false_alarms"], result[f"{name}_hours"]
        alarms = f"{counted(alarms, 'false alarm')} in {hours:.3g} h composed of {minutes:.1f} distinct minutes"
        lines.append(f"  {name}: {alarms}, an hour {_rate(result, f'{name}_').strip()}")
    work = (result["macs"] + result["frontend_macs"]) / result["step_seconds"]
    lines.append(f"{result['parameters']:,} parameters, {work:,.0f} multiply-adds a second with the front end")
    pictures = "detections.png, missed phrases over false alarms, and scores.png, probabilities over time"
    lines.append(f"run: {result['run']}, with {pictures}")
    lines.append(following("export", result["run"]))
    return "\n".join(lines)


def _front_settings(front: Path | None, cell: str = "gru", has_start: bool = False) -> dict[str, str]:
    """Return the settings of a training that begins with a front, by default that of the zoo for a gru."""
    from edgernn.errors import UsageError
    from edgernn.runtime.zoo import ENTRY, zoo_folder
    from edgernn.training.optim import read_start
    from edgernn.training.tasks.wake_front import FROM_FRONT, SIZES

    if front is None and cell == "gru" and not has_start and (zoo_folder() / _FRONT / ENTRY).is_file():
        front = Path(_FRONT)
    if front is None or front == Path("none"):
        return {}
    try:
        config = read_start(front)[1]
    except UsageError as error:
        raise UsageError(f"--front: {str(error).removeprefix('start_run: ')}") from error
    if config.get("layers", 1) < 2:
        raise UsageError(f"--front: expected a model of at least 2 layers, got {front} with 1; name a run of {_FRONT}")
    sizes = {name: config[name] for name in SIZES if config.get(name) is not None}
    return {"start_run": str(front), **{name: str(value) for name, value in {**sizes, **FROM_FRONT}.items()}}


@json_command(example="edgernn wakeword train takes --bank bank.npz --out runs/wake", text=_train_text)
@click.argument("takes", type=PATH)
@click.option("--bank", type=PATH, required=True, help="Bank of other speech, which `edgernn wakeword bank` made.")
@click.option(
    "--more", type=PATH, help="Folder with wav files of false alarms, such as `edgernn wakeword listen` keeps."
)
@click.option(
    "--front",
    type=PATH,
    help="Model of many words whose weights the training begins with: a run of the task wake-front, an exported file, "
    "or a name that `edgernn models` lists; none: random weights.  [default: wake-front, if it is listed, "
    "for the cell gru without start_run]",
)
@click.option("--phrase", help="Name of the phrase in the exported file.  [default: the name of the folder TAKES]")
@click.option("--cell", default="gru", show_default=True, help="Cell: a name that `edgernn cells` lists.")
@click.option("--rule", help="Update rule.  [default: that of the cell]")
@click.option("--out", type=PATH, help="Run directory to write.  [default: runs/wakeword-CELL]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
@click.option("--resume", is_flag=True, help="Resume the interrupted run in --out from its last checkpoint.")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def train(
    takes: Path,
    bank: Path,
    more: Path | None,
    front: Path | None,
    phrase: str | None,
    cell: str,
    rule: str | None,
    settings: tuple[str, ...],
    **options: Any,
) -> dict[str, Any]:
    """Train a model that hears one phrase, from TAKES: a folder with wav files of the phrase.

    Subfolders of TAKES, or the text before _nohash_ of a file's name, are the names of speakers, who are split into
    training, validation and test. The threshold is chosen on the validation part, and the figures are those of the
    test part. Settings are those of `edgernn train --task wakeword --help`, such as wanted_hits=0.9 or steps=4000.

    With a front, the training begins with its weights and has fewer steps. With start_frozen=1, the lower layer of the
    front stays as it is, and steps are faster. To go on from an earlier run with its false alarms: --more alarms
    start_run=RUN and another --out. Everything stays on this computer.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from edgernn.files import read_json
    from edgernn.progress import Progress
    from edgernn.settings import split_words
    from edgernn.store import read_config
    from edgernn.training import api
    from edgernn.training.run_directory import SERIES

    words = {"takes": str(takes.resolve()), "bank": str(bank.resolve())}
    words |= {} if more is None else {"more": str(more.resolve())}
    words |= {} if phrase is None else {"phrase": phrase}
    chosen = split_words(settings)
    words |= _front_settings(front, cell, "start_run" in chosen)
    run = api.train("wakeword", cell, rule, settings={**words, **chosen}, progress=Progress(), **options)
    series = read_json(run.path / SERIES)
    table = [dict(zip(series, values, strict=True)) for values in zip(*series.values(), strict=True)]
    audio = read_config(run.path)["model"]["frontend"]
    sources = [name.removesuffix("_minutes") for name in run if name.endswith("_minutes")]
    return {
        **run,
        "table": table,
        "minutes": {name: run[f"{name}_minutes"] for name in sources},
        "step_seconds": audio["stack"] * audio["hop"] / audio["sample_rate"],
    }
