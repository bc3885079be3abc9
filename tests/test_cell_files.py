# SPDX-License-Identifier: Apache-2.0
"""User-defined cells as FILE.py:CLASS: refusals, and runs that need only their own copy of the file."""

import hashlib
import json
import re
import shutil
import warnings
from pathlib import Path

import pytest

from edgernn.cell_files import KEPT, load_cell
from edgernn.cli.frame import main
from edgernn.errors import CodeError, EdgernnError, EdgernnWarning, UsageError
from edgernn.export import to_onnx
from edgernn.export.run import export_run
from edgernn.files import write_bytes
from edgernn.model import SequenceModel
from edgernn.runtime import Session
from edgernn.store import load_model
from edgernn.training import train
from edgernn.training.evaluate import open_task
from edgernn.training.plot import plot
from edgernn.training.sweep import sweep
from edgernn.training.sweep.plan import load_sweep
from edgernn.training.tables.jobs import attempt
from edgernn.training.tables.table_latency import exported
from tests.training_helpers import SMALL, Stop, snapshot, without_pictures, words

CELL = """
import torch
from edgernn import Cell, Gate

class Mine(Cell):
    name = "mine"
    gates = (Gate("f"), Gate("n"))

    def update(self, p, state):
        (h,) = state
        f = torch.sigmoid(p.f)
        return (torch.lerp(h, torch.tanh(p.n), f),)
"""
CHANGED = CELL.replace("torch.lerp(h, torch.tanh(p.n), f)", "torch.lerp(h, torch.tanh(p.n), 0 * f)")
STEPS = {**SMALL, "steps": 6, "eval_every": 3, "checkpoint_every": 2}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    without_pictures(monkeypatch)
    Path("my_cells.py").write_text(CELL)


def cell_source(update, gates='Gate("f"), Gate("n")', more=""):
    """Return a file with a cell of this update and gates."""
    head = 'import torch\nfrom edgernn import Cell, Gate, Vector\nclass Mine(Cell):\n    name = "mine"\n'
    body = f"    def update(self, p, state):\n        (h,) = state\n        return {update}\n"
    return f"{head}    gates = ({gates},)\n{more}{body}"


WRONG = {
    "file missing": (None, "absent.py:Mine", 2, "no such file: absent.py"),
    "folder": (None, "folder.py:Mine", 1, "folder.py: expected a Python file, got a folder; give a regular file"),
    "class missing": (CELL, "f.py:Mien", 2, "f.py: unknown class 'Mien': did you mean 'Mine'"),
    "no cell": ("x = 1", "f.py:Mine", 2, "unknown class 'Mine': the file has no subclass of edgernn.Cell"),
    "no cell, no class": ("x = 1", "f.py", 2, "expected one subclass of edgernn.Cell, got none"),
    "two cells": (
        CELL + "\nclass Two(Mine):\n    name = 'two'\n",
        "f.py",
        2,
        "expected one subclass of edgernn.Cell, got Mine, Two; write f.py:CLASS",
    ),
    "function": ("def Mine(): pass", "f.py:Mine", 2, "Mine: expected a subclass of edgernn.Cell, got a function"),
    "other class": ("class Mine: pass", "f.py:Mine", 2, "Mine: expected a subclass of edgernn.Cell, got another class"),
    "imported": ("from edgernn.cells import GRU", "f.py:GRU", 2, "got one imported from edgernn.cells.gru"),
    "built-in name": (CELL.replace('"mine"', '"gru"'), "f.py:Mine", 2, "name: 'gru' is the name of a built-in"),
    "paper's name": (CELL.replace('"mine"', '"sarnn"'), "f.py:Mine", 2, "'sarnn' is the name of a built-in cell"),
    "no name": (CELL.replace('name = "mine"', "pass"), "f.py:Mine", 2, "name: expected letters, .* got None"),
    "path for a name": (
        CELL.replace('"mine"', '"../mine"'),
        "f.py:Mine",
        2,
        "name: expected letters, .* '../mine'",
    ),
    "no update": (
        CELL.replace("def update", "def other"),
        "f.py:Mine",
        2,
        r"Mine: expected a method update\(p, state\)",
    ),
    "no gates": (CELL.replace("gates =", "gatse ="), "f.py:Mine", 2, "gates: expected a tuple"),
    "empty gates": (cell_source("(h,)", more="    gates = ()\n"), "f.py:Mine", 2, "gates: expected a tuple"),
    "gates of one name": (cell_source("(h,)", 'Gate("a"), Gate("a")'), "f.py:Mine", 2, "gates: .* different names"),
    "gates of text": (cell_source("(h,)", '"a", "b"'), "f.py:Mine", 2, r"gates: .*, got \('a', 'b'\)"),
    "neighbour": ("import my_cells\n" + CELL, "f.py:Mine", 2, "line 1: imports my_cells from its own folder"),
    "relative import": ("from . import other", "f.py:Mine", 2, "line 1: imports from its own folder"),
    "syntax": ("class Mine(:", "f.py:Mine", 1, "f.py: cannot be executed: line 1: SyntaxError: "),
    "null byte": ("x = 1\0", "f.py:Mine", 1, "f.py: .*null bytes"),
    "import": ("x = 1\nimport not_there", "f.py:Mine", 1, "line 2: ModuleNotFoundError: No module named 'not_there'"),
    "raises": ("\n\nraise ValueError('why')", "f.py:Mine", 1, "f.py: cannot be executed: line 3: ValueError: why"),
    "exits": ("import sys\nsys.exit(3)", "f.py:Mine", 1, "line 2: SystemExit: 3"),
    "unknown gate": (
        cell_source("(p.z,)"),
        "f.py:Mine",
        1,
        "Mine: a test step fails: line 8: AttributeError: p has no 'z'; it has .*f, n",
    ),
    "mistake in a step": (cell_source("(h.nothing(),)"), "f.py:Mine", 1, "line 8: AttributeError: .*nothing"),
    "no tuple": (
        cell_source("p.f"),
        "f.py:Mine",
        1,
        r"expected a tuple of one state of shape \(B, H\) in float32, got \(3,\) in float32, ",
    ),
    "too many states": (cell_source("(h, h)"), "f.py:Mine", 1, "expected a tuple of one state"),
    "wrong shape": (
        cell_source("(h.sum(-1, keepdim=True),)"),
        "f.py:Mine",
        1,
        r"got \(2, 1\) in float32 with B=2, H=3",
    ),
    "wrong type": (cell_source("(h.double(),)"), "f.py:Mine", 1, r"in float32, got \(2, 3\) in float64 with"),
    "nothing": (cell_source("None"), "f.py:Mine", 1, r"in float32, got NoneType with"),
    "exits in a step": (cell_source("exit(3)"), "f.py:Mine", 1, "line 8: SystemExit: 3"),
    "key": (cell_source("({}['a'],)"), "f.py:Mine", 1, "line 8: KeyError: 'a'"),
}


@pytest.mark.parametrize(("text", "word", "status", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_in_a_line(capsys, text, word, status, message):
    Path("folder.py").mkdir()
    if text is not None:
        Path("f.py").write_text(text)
    assert main(["train", "--task", "adding", "--cell", word, *words(STEPS)]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert re.match(f"edgernn: error: .*{message}", err), err
    assert not Path("runs").exists()


def test_one_file_is_one_class_and_one_module():
    shutil.copy("my_cells.py", "copy.py")
    assert load_cell("my_cells.py:Mine") is load_cell("copy.py")
    Path("copy.py").write_text(CHANGED)
    assert load_cell("my_cells.py:Mine") is not load_cell("copy.py")


def test_a_cell_of_equal_sizes_alone_and_one_with_options_are_loaded():
    Path("highway.py").write_text(cell_source("(torch.lerp(h, p.x, torch.sigmoid(p.f)),)"))
    assert load_cell("highway.py:Mine").name == "mine"
    more = "    def __init__(self, I, H, *, depth: int, **parts):\n        super().__init__(I, H, **parts)\n"
    Path("options.py").write_text(cell_source("(torch.tanh(p.f),)", more=more))
    assert load_cell("options.py:Mine").name == "mine"


def test_loading_leaves_random_numbers_alone():
    import torch

    torch.manual_seed(3)
    first = torch.rand(1)
    torch.manual_seed(3)
    load_cell("my_cells.py:Mine")
    assert torch.equal(torch.rand(1), first)


def test_a_run_is_used_without_the_file(tmp_path, capsys):
    status = main(["train", "--task", "adding", "--cell", "my_cells.py:Mine", "--rule", "selective", *words(STEPS)])
    assert status == 0
    run = tmp_path / "runs" / "adding-Mine-selective"
    assert "adding, mine: " in capsys.readouterr().out
    assert (run / KEPT).read_text() == CELL
    assert json.loads((run / "result.json").read_text())["cell"] == "mine"
    Path("my_cells.py").unlink()
    assert main(["export", str(run)]) == 0
    # the exported file needs no user code
    (run / KEPT).unlink()
    session = Session(run / "model.onnx")
    assert session.backend == "native"
    assert session.run([[[0.0, 1.0]]]).shape == (1, 1)
    with pytest.raises(EdgernnError, match=r"cell.py: no such file; restore it: it defines the cell"):
        load_model(run, allow_code=True)


def test_a_run_executes_no_other_file_than_its_copy(tmp_path):
    train("adding", "gru", out="run", settings=STEPS)
    Path("other.py").write_text("open('executed', 'w').close()\n")
    config = json.loads(Path("run/config.json").read_text())
    config["model"]["layer"]["cell"]["name"] = "other.py:A"
    Path("run/config.json").write_text(json.dumps(config))
    with pytest.raises(EdgernnError, match=r"expected a cell of edgernn, got the Python file 'other\.py:A'"):
        load_model(Path("run"))
    with pytest.raises(EdgernnError, match="expected a cell of edgernn"):
        open_task(Path("run"))
    assert main(["evaluate", "run"]) == 1
    # the command that a resumed run repeats
    config["model"]["layer"]["cell"]["name"] = "gru"
    config["command"][config["command"].index("gru")] = "other.py:A"
    Path("run/config.json").write_text(json.dumps(config))
    assert main(["train", "--resume", "--out", "run"]) == 1
    assert not Path("executed").exists()


def test_a_plot_executes_no_code_unless_told():
    train("adding", "my_cells.py:Mine", "skip", out="run", settings=STEPS)
    marker = Path("executed").resolve()
    Path("run", KEPT).write_text(f"{CELL}\nopen({str(marker)!r}, 'w').close()\n")
    config = json.loads(Path("run/config.json").read_text())
    config["cell_file"]["sha256"] = hashlib.sha256(Path("run", KEPT).read_bytes()).hexdigest()
    Path("run/config.json").write_text(json.dumps(config))
    with pytest.warns(EdgernnWarning, match=r"not plotted: pattern: run/cell.py: the run's cell is Python"):
        assert [file.stem for file in plot([Path("run")])] == ["learning", "learning"]
    with pytest.raises(CodeError, match=r"add --allow-code \(in Python, allow_code=True\) if"):
        plot([Path("run")], kinds=["pattern"])
    with pytest.raises(CodeError, match="is not executed"):
        exported(Path("run"))
    assert not marker.exists()
    assert main(["plot", "run", "--kind", "pattern", "--allow-code"]) == 0
    assert marker.exists()


@pytest.mark.parametrize("where", ["cells", "parts"])
def test_a_sweep_executes_no_code_unless_told(where, capsys):
    Path("my_cells.py").write_text("open('executed', 'w')")
    part = 'cells = ["my_cells.py"]\n'
    start = 'task = "adding"\nseeds = 1\n'
    Path("sweep.toml").write_text(start + (part if where == "cells" else f'cells = ["gru"]\n[[parts]]\n{part}'))
    for options in ([], ["--table-only"]):
        assert main(["sweep", "sweep.toml", *options]) == 2
        message = (
            "sweep.toml: cells: my_cells.py is Python code, which is not executed; add --allow-code if you trust it"
        )
        assert capsys.readouterr().err == f"edgernn: error: {message}\n"
    assert not Path("executed").exists()


def test_a_changed_copy_is_not_executed(tmp_path):
    train("adding", "my_cells.py:Mine", out="run", settings=STEPS)
    marker = tmp_path / "executed"
    Path("run", KEPT).write_text(CELL + f"open({str(marker)!r}, 'w')\n")
    for use in (
        lambda: load_model(Path("run"), allow_code=True),
        lambda: train("adding", "my_cells.py:Mine", out="run", resume=True),
    ):
        with pytest.raises(EdgernnError, match=r"run/cell.py: changed since the run began \(its SHA-256"):
            use()
    assert not marker.exists()


@pytest.mark.parametrize("end", ["moved", "changed"])
def test_a_run_goes_on_with_its_copy(end):
    arguments = {"task": "adding", "cell": "my_cells.py:Mine", "settings": STEPS}
    train(**arguments, out="whole")
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train(**arguments, out="part", progress=Stop(5))
    if end == "moved":
        Path("my_cells.py").rename("elsewhere.py")
        train(**arguments, out="part", resume=True)
    else:
        Path("my_cells.py").write_text(CHANGED)
        with pytest.warns(
            RuntimeWarning, match="cell: .*my_cells.py:Mine differs from the copy in part, which the resumed run uses"
        ):
            train(**arguments, out="part", resume=True)
    assert snapshot(Path("part")) == snapshot(Path("whole"))


@pytest.mark.filterwarnings("ignore:cell. .* differs from the copy:RuntimeWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("end", ["moved", "changed"])
@pytest.mark.slow
def test_several_processes_go_on_with_the_copy(end):
    arguments = {"task": "adding", "cell": "my_cells.py:Mine", "settings": STEPS}
    whole = train(**arguments, out="whole")
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train(**arguments, out="part", progress=Stop(5))
    if end == "moved":
        Path("my_cells.py").rename("elsewhere.py")
    else:
        Path("my_cells.py").write_text(CHANGED)
    result = train(**arguments, out="part", resume=True, devices=2)
    assert result["mse"] == pytest.approx(whole["mse"], rel=1e-4)
    command = json.loads(Path("part/config.json").read_text())["command"]
    assert command[command.index("--cell") + 1] == "my_cells.py:Mine"


def test_a_run_of_another_cell_is_not_gone_on_with():
    Path("my_cells.py").write_text(CELL + '\nclass Two(Mine):\n    name = "two"\n')
    train("adding", "my_cells.py:Mine", out="run", settings=STEPS)
    for cell, got in (("my_cells.py:Two", "two"), ("gru", "gru")):
        with pytest.raises(UsageError, match=f"cell: the run in run has 'mine', got '{got}'"):
            train("adding", cell, out="run", settings=STEPS, resume=True)


def test_a_kill_before_config_json_can_be_resumed():
    # as after a kill: the copy is written first
    write_bytes(Path("run", KEPT), CELL.encode())
    train("adding", "my_cells.py:Mine", out="run", settings=STEPS)
    write_bytes(Path("other", KEPT), b"something else")
    with pytest.raises(UsageError, match="expected a new or empty directory"):
        train("adding", "my_cells.py:Mine", out="other", settings=STEPS)


@pytest.mark.parametrize(
    ("new_state", "message"),
    [
        ("(torch.tanh(p.n) if p.f.sum() > 0 else h,)", "a layer cannot be exported (Could not guard"),
        ("(torch.tanh(p.n) * torch.rand_like(p.n),)", "check: a second run in torch gives other results"),
    ],
    ids=["branch", "random"],
)
def test_a_cell_that_no_file_can_repeat_is_not_exported(new_state, message, capfd):
    Path("odd.py").write_text(cell_source(new_state))
    model = SequenceModel(load_cell("odd.py:Mine"), 2, 4, 1)
    with pytest.raises(EdgernnError, match=re.escape(message)):
        to_onnx(model, Path("odd.onnx"))
    assert not Path("odd.onnx").exists()
    # torch prints the graph of a trace that failed
    assert "def forward" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("new_state", "message"),
    [
        ("(torch.tanh(p.n) if p.f.sum() > 0 else h,)", "mine: a layer cannot be exported (Could not guard"),
        ("(torch.tanh(p.n) + torch.randn_like(h),)", "mine: two runs on the same inputs differ"),
    ],
    ids=["branch", "random"],
)
def test_a_cell_that_cannot_be_exported_is_named_before_the_training(new_state, message, capfd):
    Path("odd.py").write_text(cell_source(new_state))
    with pytest.warns(EdgernnWarning) as caught:
        train("adding", "odd.py:Mine", out="run", settings=STEPS)
    (warning,) = (str(w.message) for w in caught if issubclass(w.category, EdgernnWarning))
    assert warning.startswith(message)
    assert warning.endswith("it can be trained and tested, but `edgernn export` refuses it")
    assert "def forward" not in "".join(capfd.readouterr())
    with pytest.raises(EdgernnError):
        export_run(Path("run"))


def test_a_cell_without_a_program_trains_with_a_warning():
    Path("sums.py").write_text(cell_source("(torch.tanh(p.f - h.mean(-1, keepdim=True)),)"))
    with pytest.warns(RuntimeWarning, match="mine: update: .*mean.*; it can be trained, but an exported file runs it"):
        train("adding", "sums.py:Mine", out="run", settings=STEPS)


def test_a_recipe_may_name_a_file(capsys):
    Path("mine.toml").write_text('[rows.one]\ntask = "adding"\ncell = "my_cells.py:Mine"\n')
    command = ["train", "--recipe", "mine.toml", *words(STEPS)]
    assert main(command) == 2
    assert "mine.toml: cell: my_cells.py:Mine is Python code, which is not executed" in capsys.readouterr().err
    assert main([*command, "--allow-code"]) == 0
    assert Path("runs/mine/one", KEPT).read_text() == CELL
    assert main(["train", "--task", "adding", "--cell", "gru", "--allow-code"]) == 2
    assert "--allow-code: expected together with --recipe" in capsys.readouterr().err


def test_bench_cells_and_help_take_a_file(capsys):
    assert main(["bench", "--cell", "my_cells.py:Mine", "--steps", "5", "--rounds", "1", "hidden_size=8"]) == 0
    assert "mine" in capsys.readouterr().out
    assert main(["cells", "my_cells.py:Mine", "--json"]) == 0
    (entry,) = [e for e in json.loads(capsys.readouterr().out) if e["name"] == "mine"]
    assert entry["native"]
    assert entry["macs"] == 2 * 128 * (2 + 128)
    assert main(["train", "--cell", "my_cells.py:Mine", "--help"]) == 0
    assert "Settings of the cell mine" in capsys.readouterr().out


# sweeps

SWEEP = (
    'task = "adding"\ncells = ["gru", "my_cells.py:Mine"]\nseeds = 1\n[settings]\nT = 10\nhidden_size = 8\nsteps = 4\n'
)


def no_workers(count, **options):
    raise EdgernnError("no workers")


def test_a_sweep_goes_on_with_its_copy(monkeypatch):
    Path("sweep.toml").write_text(SWEEP)
    out = Path("out")
    plan = load_sweep(Path("sweep.toml"), out, allow_code=True)
    assert [row.name for row in plan.rows] == ["gru", "mine"]
    assert [job.cell for row in plan.rows for job in row.jobs] == ["gru", "out/cells/my_cells.py:Mine"]
    monkeypatch.setattr("edgernn.training.sweep.run.processes", no_workers)
    with pytest.raises(EdgernnError, match="no workers"):
        sweep(Path("sweep.toml"), out=out, allow_code=True)
    Path("my_cells.py").unlink()
    (job,) = load_sweep(Path("sweep.toml"), out, allow_code=True).rows[1].jobs
    job.check()
    assert attempt(job, None, "cpu").error is None
    job.check()
    Path("my_cells.py").write_text(CHANGED)
    with pytest.warns(RuntimeWarning, match="cells: my_cells.py differs from the copy in out"):
        again = load_sweep(Path("sweep.toml"), out, allow_code=True)
    (job,) = again.rows[1].jobs
    assert job.result()["cell"] == "mine"
    Path("my_cells.py").unlink()
    report = sweep(Path("sweep.toml"), out=out, run=False, allow_code=True)
    assert report["command"] == "edgernn sweep sweep.toml --allow-code"
    assert report["rows"][1]["cell"] == "mine"
    assert "--cell out/cells/my_cells.py:Mine" in report["rows"][1]["command"]


def test_a_sweep_refuses_two_of_a_name():
    Path("more").mkdir()
    shutil.copy("my_cells.py", "more/my_cells.py")
    Path("other.py").write_text(CHANGED)
    for other, output in (("more/my_cells.py:Mine", "are copied to one folder"), ("other.py", "have the name 'mine'")):
        Path("sweep.toml").write_text(SWEEP.replace('"gru"', f'"{other}"'))
        with pytest.raises(UsageError, match=output), warnings.catch_warnings():
            load_sweep(Path("sweep.toml"), Path("out"), allow_code=True)
