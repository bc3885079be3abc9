# SPDX-License-Identifier: Apache-2.0
"""Reads damaged files of every format but models: `python -m tests.read_damaged COUNT`.

Data sets, recordings, tables of users, recipes, sweeps, run directories, results and saved states. Each must be read,
or be refused with an EdgernnError, within limits of memory and time. File NUMBER is the same at every run.
"""

import contextlib
import io
import json
import random
import re
import shutil
import signal
import struct
import sys
import tempfile
import traceback
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.mutants import INTEGERS, VALUES, by_byte
from tests.use_mutants import TIMEOUT, limit_memory, main

# replacements for a word of a text
_WORDS = ("", "nan", "inf", "-1", "0", "1e999", "9" * 30, "9" * 5000, '"', "[", "{", "}", "]", "true", "x=", "é", "\0")
_TEXTS = {".csv", ".toml", ".txt", ".jsonl", ".hea"}
_ZIPPED = {".npz"}
_HEADER = 64


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    write: Writes a valid one to a folder. read: Reads it. damaged: Pattern of the names of the files to damage.
    """

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    damaged: str = "*"


def damage(name: str, content: bytes, draw: random.Random) -> bytes:
    """Change a file one to three times, by its kind of content or by byte."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        ways: list[Callable[[bytes, random.Random], bytes]] = [lambda c, d: by_byte(c, d)[1], _by_integer]
        suffix = Path(name).suffix
        if suffix in _TEXTS:
            ways += [_by_word] * 4
        elif suffix == ".json":
            ways += [_by_word, *[_by_value] * 4]
        elif suffix == ".safetensors":
            ways += [_by_tensor_header] * 4
        elif suffix in _ZIPPED:
            ways += [_by_member] * 4
        try:
            content = draw.choice(ways)(content, draw)
        # an earlier change made it unreadable
        except Exception:
            content = by_byte(content, draw)[1]
    if suffix == ".state":
        content = content[:24] + struct.pack("<I", zlib.crc32(content[_HEADER:])) + content[28:]
    return content


def _by_integer(content: bytes, draw: random.Random) -> bytes:
    """Replace an integer, most often one near the beginning."""
    size, order = draw.choice((1, 2, 4, 8)), draw.choice(("little", "big"))
    at = draw.randrange(1 + min(len(content), draw.choice((64, 256, 1 << 30))))
    value = draw.choice(INTEGERS) % (1 << 8 * size)
    return content[:at] + value.to_bytes(size, order) + content[at + size :]


def _by_word(content: bytes, draw: random.Random) -> bytes:
    """Replace a word, or remove, repeat or swap lines."""
    text = content.decode()
    if draw.random() < 0.3:
        lines = text.splitlines(keepends=True)
        at = draw.randrange(len(lines))
        lines[at : at + 1] = draw.choice(([], [lines[at]] * 2, [draw.choice(lines)]))
        return "".join(lines).encode()
    spans = [match.span() for match in re.finditer(r"[\w.+-]+|[^\w\s]", text)]
    begin, end = draw.choice(spans)
    word = draw.choice((*_WORDS, text[slice(*draw.choice(spans))]))
    return (text[:begin] + word + text[end:]).encode()


def _by_value(content: bytes, draw: random.Random) -> bytes:
    """Replace or remove a value of a JSON document, at any depth."""
    root = node = {"": json.loads(content)}
    while True:
        key: Any = draw.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[key], dict | list) or not node[key] or draw.random() < 0.15:
            break
        node = node[key]
    if draw.random() < 0.2 and node is not root:
        del node[key]
    else:
        node[key] = draw.choice(VALUES)
    return json.dumps(root[""]).encode()


def _by_tensor_header(content: bytes, draw: random.Random) -> bytes:
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    metadata = header.get("__metadata__", {})
    if "position" in metadata and draw.random() < 0.3:
        metadata["position"] = _by_value(metadata["position"].encode(), draw).decode()
        text = json.dumps(header).encode()
    else:
        text = _by_value(json.dumps(header).encode(), draw)
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _by_member(content: bytes, draw: random.Random) -> bytes:
    """Change a member of a zip file, whose checksum then is right."""
    members = zipfile.ZipFile(io.BytesIO(content))
    names, result = members.namelist(), io.BytesIO()
    chosen = draw.choice(names)
    with zipfile.ZipFile(result, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name in names:
            part = members.read(name)
            if name == chosen:
                if draw.random() < 0.1:
                    continue
                part = _by_array_header(part, draw) if part.startswith(b"\x93") else by_byte(part, draw)[1]
            archive.writestr(name, part)
    return result.getvalue()


def _by_array_header(part: bytes, draw: random.Random) -> bytes:
    """Change the text header of an npy file."""
    if draw.random() < 0.3:
        return by_byte(part, draw)[1]
    size = int.from_bytes(part[8:10], "little")
    text = _by_word(part[10 : 10 + size], draw)
    return part[:8] + (len(text) % (1 << 16)).to_bytes(2, "little") + text + part[10 + size :]


def is_refusal(error: BaseException) -> bool:
    """Return whether the command line prints this error as a sentence."""
    from edgernn.errors import EdgernnError

    return isinstance(error, EdgernnError) or (
        isinstance(error, OSError) and bool(error.strerror) and bool(error.filename)
    )


# writers and readers


def _read_with(*readers: Callable[[], Any], agree: bool = False) -> None:
    """Read a file with each reader, then raise the first error, preferably one that is no refusal.

    agree: Whether all readers must refuse the file, or none.
    """
    errors = []
    for read in readers:
        try:
            read()
        except Exception as error:
            errors.append(error)
    for error in sorted(errors, key=is_refusal):
        if agree and is_refusal(error):
            assert len(errors) == len(readers), f"{len(errors)} of {len(readers)} readers refuse: {error}"
        raise error


def _task(name: str, file: str = "") -> Callable[[Path], None]:
    """Return a reader of the data of a task MODULE:CLASS, which may be in a file of the folder."""

    def read_data(folder: Path) -> None:
        from tests.task_helpers import opened

        module, _, task = name.partition(":")
        opened(getattr(import_module(f"edgernn.training.{module}"), task)(), folder / file)

    return read_data


def _npz(folder: Path) -> None:
    random_numbers = np.random.default_rng(0)
    np.savez(folder / "own.npz", x=random_numbers.standard_normal((40, 5, 2)), y=random_numbers.integers(3, size=40))


def _csv_folder(folder: Path) -> None:
    from tests.test_task_tables import write_files

    names = write_files(folder, 12)
    (folder / "labels.csv").write_text("".join(f"{name},{'ab'[i % 2]}\n" for i, name in enumerate(names)))


def _table(folder: Path, suffix: str) -> None:
    import polars

    x = np.random.default_rng(0).standard_normal(48)
    label = [("left", "right")[i // 4 % 2] for i in range(48)]
    columns = {"time": [i / 10 for i in range(48)], "x": x, "label": label, "recording": [i // 4 for i in range(48)]}
    table = polars.DataFrame(columns)
    if suffix == "parquet":
        table.write_parquet(folder / "own.parquet")
    else:
        table.write_csv(folder / "own.csv", separator=";", decimal_comma=True)


def _words(folder: Path) -> None:
    from tests.words import tone, write_wav

    for word in ("left", "right"):
        for speaker in range(12):
            write_wav(folder / word / f"{speaker:08x}_nohash_0.wav", tone(word, speaker)[:2000])


def _mnist(folder: Path) -> None:
    from tests.training_helpers import write_mnist

    write_mnist(folder)


def _read_idx(folder: Path) -> None:
    from edgernn.training.formats.idx import read_idx

    for path in sorted(folder.iterdir()):
        read_idx(path, (None, 28, 28) if "images" in path.name else (None,))


def _svhn(folder: Path) -> None:
    from tests.format_files import X, Y, svhn_bytes

    (folder / "a.mat").write_bytes(svhn_bytes(X, Y))
    (folder / "b.mat").write_bytes(svhn_bytes(X, Y, packed=False))


def _read_svhn(folder: Path) -> None:
    from edgernn.training.papers.formats import read_svhn

    for path in sorted(folder.iterdir()):
        read_svhn(path)


def _physionet(folder: Path) -> None:
    from tests.stays import write_stays

    write_stays(folder)


def _heart(folder: Path) -> None:
    from tests.test_task_ecg import write_heart

    write_heart(folder)


def _read_heart(folder: Path) -> None:
    from edgernn.training.tasks.heartbeats import read_records

    read_records(folder / "mit-bih-mlii.npz")


def _read_input(folder: Path) -> None:
    from edgernn.runtime.run_file import read

    for path in sorted(folder.iterdir()):
        read(path)


def _inputs(folder: Path) -> None:
    x = np.random.default_rng(0).standard_normal((6, 3))
    np.save(folder / "x.npy", x)
    np.savez(folder / "x.npz", x=x)
    np.savetxt(folder / "x.csv", x, delimiter=",", header="a,b,c", comments="")


def _recipe(folder: Path) -> None:
    from tests.test_reproduce import TABLE

    (folder / "t.toml").write_text(TABLE)


def _read_recipe(folder: Path) -> None:
    from edgernn.training.papers.recipe import load_recipe

    load_recipe(f"{folder / 't.toml'}:gru")


def _sweep(folder: Path) -> None:
    from tests.checks.fault_commands import SWEEP

    (folder / "s.toml").write_text(SWEEP + "[vary]\nlambda = [0, 1e-3]\n[search]\nlr = [1e-2, 1e-3]\n")


def _read_sweep(folder: Path) -> None:
    from edgernn.training.sweep.plan import load_sweep

    load_sweep(folder / "s.toml", folder / "out")


def _run(folder: Path) -> None:
    from edgernn.training import train
    from tests.training_helpers import SMALL, Stop

    settings = {**SMALL, "steps": 4, "eval_every": 2, "checkpoint_every": 1}
    with contextlib.suppress(RuntimeError):
        train("adding", "gru", out=folder / "run", settings=settings, progress=Stop(3))


def _read_run(folder: Path) -> None:
    from edgernn.store import load_model
    from edgernn.training import api, train
    from tests.training_helpers import SMALL

    api.learning_curve = api.update_pattern = lambda path, *_: path.touch()
    settings = {**SMALL, "steps": 4, "eval_every": 2, "checkpoint_every": 1}
    _read_with(
        lambda: load_model(folder / "run"),
        lambda: train("adding", "gru", out=folder / "run", settings=settings, resume=True),
    )


def _model(folder: Path) -> None:
    from edgernn.runtime import Session
    from tests.use_mutants import MODELS

    shutil.copy2(MODELS / "layers.onnx", folder / "model.onnx")
    session = Session(folder / "model.onnx", backend="native")
    session.step(np.zeros((2, *session.channels), np.float32))
    (folder / "s.state").write_bytes(session.save_state())


def _read_state(folder: Path) -> None:
    from edgernn.runtime import Session
    from edgernn.runtime.stepper import Stepper

    saved = (folder / "s.state").read_bytes()
    native = Session(folder / "model.onnx", backend="native")
    steppers = [session.restore_state for session in (native, Session(folder / "model.onnx", backend="portable"))]
    steppers.append(Stepper(native._packed_model(), 2).restore_state)
    _read_with(*(partial(restore, saved) for restore in steppers), agree=True)


KINDS = {
    "npz": Kind(_npz, _task("tasks.arrays:Arrays", "own.npz")),
    "inputs of run": Kind(_inputs, _read_input),
    "csv files": Kind(_csv_folder, _task("tasks.tables:Tables")),
    "csv table": Kind(partial(_table, suffix="csv"), _task("tasks.tables:Tables", "own.csv")),
    "parquet table": Kind(partial(_table, suffix="parquet"), _task("tasks.tables:Tables", "own.parquet")),
    "wav files": Kind(_words, _task("tasks.keywords:OwnWords")),
    "idx": Kind(_mnist, _read_idx),
    "mat": Kind(_svhn, _read_svhn),
    "stays": Kind(_physionet, _task("papers.tasks.brits:Mortality")),
    "ECG": Kind(_heart, _read_heart),
    "recipe": Kind(_recipe, _read_recipe),
    "sweep": Kind(_sweep, _read_sweep),
    "run directory": Kind(_run, _read_run, "*.*[lns]"),
    "saved state": Kind(_model, _read_state, "*.state"),
}


def run_range(first: int, last: int) -> None:
    """Print a line of JSON for each damaged file, with its faults."""
    limit_memory()
    with tempfile.TemporaryDirectory() as name:
        originals = Path(name) / "originals"
        for number in range(first, last):
            signal.alarm(TIMEOUT)
            draw = random.Random(number)
            title = draw.choice(list(KINDS))
            kind, source, folder = KINDS[title], originals / title, Path(name) / "damaged"
            if not source.exists():
                source.mkdir(parents=True)
                kind.write(source)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, folder)
            path = draw.choice([path for path in sorted(folder.rglob(kind.damaged)) if path.is_file()])
            path.write_bytes(damage(path.name, path.read_bytes(), draw))
            faults = []
            try:
                kind.read(folder)
            except BaseException as error:
                if not is_refusal(error):
                    faults.append(re.sub("9{30,}", "9...", traceback.format_exc())[-3000:])
            change = f"{title}: {path.relative_to(folder)}"
            print(json.dumps({"number": number, "change": change, "faults": faults}), flush=True)


if __name__ == "__main__":
    sys.exit(main("tests.read_damaged", run_range, "make check-readers READS", kinds=len(KINDS)))
