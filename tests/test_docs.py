# SPDX-License-Identifier: Apache-2.0
"""The documents agree with the code: examples run, generated parts are current, commands parse, links work."""

import importlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import numpy as np
import pytest

from edgernn.cells import CELLS
from edgernn.cli.frame import group, main
from edgernn.errors import EdgernnError, UsageError
from edgernn.imputers import IMPUTERS
from edgernn.model import SequenceModel
from edgernn.rules import RULES
from tests.source_tree import ROOT
from tests.training_helpers import without_pictures

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*ROOT_PAGES, *sorted(str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md"))]
# pages whose commands were printed by the code, or are followed by other tests
GENERATED = ("docs/background/results.md", "docs/reference/cli.md")


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def test_readme_counts_cells_and_rules():
    counts = re.search(r"\*\*(\d+) cells\*\*.*?(\d+) \*\*update rules\*\*", README, re.DOTALL)
    assert counts.groups() == (str(len(CELLS)), str(len(RULES)))


@pytest.mark.filterwarnings("ignore:skip. :edgernn.errors.EdgernnWarning")
def test_readme_example_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    commands = re.findall(r"^    (edgernn [^\n#]*)", README, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    without_pictures(monkeypatch)
    assert len([line for line in code.splitlines() if line.strip()]) == 10
    Path("my_net.py").write_text(code)
    y = np.arange(40) % 2
    np.savez(
        "mine.npz",
        x=np.sin(np.arange(20) * (0.2 + 0.4 * y[:, None]) + 0.01 * np.arange(len(y))[:, None])[..., None].astype(
            np.float32
        ),
        y=y,
    )
    for command in commands:
        words = shlex.split(command)[1:]
        assert main([*words, "steps=3"] if words[0] == "train" else words) == 0, command
    assert "sequence  class  probability" in capsys.readouterr().out


def test_readme_names_no_model_that_validation_did_not_choose(monkeypatch):
    tables = importlib.import_module("benchmarks.tables.readme")
    # high on the test split, and on no front of the validation split
    monkeypatch.setattr(tables, "CHOSEN_MODELS", (("gru", "skip", {"hidden_size": 64, "skip": 0.9}),))
    with pytest.raises(EdgernnError, match=r"gru.*skip.*64.*: expected a model on a front of the validation split"):
        tables.activity()


@pytest.mark.parametrize(
    ("task", "chosen", "other"),
    [
        # on the front of another size only, of another learning rate, and of a rule that is on no front
        ("activity", "--cell gru hidden_size=32", "--cell gru --rule skip skip=0.9 hidden_size=64"),
        ("ecg", "hidden_size=32 lr=0.006", "hidden_size=32 lr=0.003"),
        ("keywords", "**`pru` next.**", "**`delta` next.**"),
        ("remaining-life", "**Low rank, too.**", "**`sru`, too.**"),
    ],
)
def test_signal_pages_recommend_no_model_that_validation_did_not_choose(task, chosen, other):
    tables = importlib.import_module("benchmarks.tables.sweeps")
    report = json.loads((ROOT / f"docs/results/sweep-{task}.json").read_text(encoding="utf-8"))
    page = read(f"docs/background/signals/{task}.md")
    tables.check_advice(page, report)
    # below the heading, models are named for comparison
    assert page.count("### For comparison") == page.count(chosen) == 1
    with pytest.raises(EdgernnError, match="expected advice on models on a front of the validation split, got"):
        tables.check_advice(page.replace(chosen, other), report)


@pytest.mark.parametrize(("part", "name"), [("activity", "sweep-activity"), ("adding", "sarnn-4")])
def test_tables_of_the_readme_have_the_trivial_baselines(part, name):
    report = json.loads((ROOT / f"docs/results/{name}.json").read_text(encoding="utf-8"))
    shown = getattr(importlib.import_module("benchmarks.tables.readme"), part)()
    names = [entry["name"] for entry in report["baselines"]]
    assert names
    assert all(f"| *{baseline}* |" in shown for baseline in names)


def generator():
    """Import the script docs/generate.py as a module."""
    return importlib.import_module("docs.generate")


def test_documents_agree_with_the_code():
    for path, text in generator().generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: make docs"


def test_every_cell_and_rule_has_its_section():
    script = generator()
    pages = "".join(script.page(name) for name in script.PAGES)
    for name in [*CELLS, *RULES, *IMPUTERS]:
        assert f"\n## {name}\n" in pages or name == "always", name


def test_equations_are_code():
    page = generator().page("rules")
    assert "\n```text\nx̂_t = x_t where |x_t - x̂_{t-1}| > Θ_x" in page
    # the first line of a paragraph may be an approximation
    assert "\n```text\nm ≈ σ(s (|Δ| - Θ_h))\n∂ĥ_t / ∂Θ_h = " in page


def test_the_page_of_cells_names_those_that_options_refuse():
    text = " ".join((DOCS / "reference" / "cells" / "index.md").read_text(encoding="utf-8").split())
    for option, pattern in (
        ({"rule": "topk"}, r"update gate: of these cells (.*?)\."),
        ({"rank": 2}, r"`density=0.25`\. (.*?) have no recurrent"),
        ({"density": 0.5}, r"`density=0.25`\. (.*?) have no recurrent"),
    ):
        refused = {name for name in CELLS if not _takes(name, 4, 6, **option)}
        named = set(re.findall(r"`(.*?)`", re.search(pattern, text)[1]))
        assert named == (set(CELLS) - refused if "rule" in option else refused)
    square = re.search(r"no recurrent weights, and (.*?) have none if I = H", text)[1]
    for name in re.findall(r"`(.*?)`", square):
        assert _takes(name, 4, 6, rank=2)
        assert not _takes(name, 6, 6, rank=2)


def _takes(cell, input_size, hidden_size, **options):
    """Return False if a model with these options is refused."""
    try:
        SequenceModel(cell, input_size, hidden_size, **options)
    except UsageError:
        return False
    return True


def test_every_function_of_c_has_its_section():
    reference = importlib.import_module("docs.reference_pages")
    names = re.findall(r"\b(edgernn_\w+)\(", re.sub(r"/\*.*?\*/", "", reference.c_header(), flags=re.DOTALL))
    assert len(names) >= 9
    assert all(f"\n## {name}\n" in reference.c_api() for name in names)


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_exist(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", read(page)):
        assert ((ROOT / page).parent / target).exists(), target


def commands_of(page):
    """The commands of an indented block or of a code span, each as one line."""
    text = read(page).replace("\\\n", "")
    spans = re.findall(r"`((?:edgernn|make) [^`]+)`", text)
    lines = re.findall(r"^ {4}(?:\.venv/bin/)?((?:edgernn|make) [^#\n]*)", text, re.MULTILINE)
    return [shlex.split(command) for command in [*lines, *(re.sub(r"\s+", " ", span) for span in spans)]]


def test_the_extras_that_pages_install_exist():
    extras = set(tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"])
    named = {
        name for page in PAGES for names in re.findall(r"'\.\[([\w,]+)\]'", read(page)) for name in names.split(",")
    }
    assert {"cpu", "train"} <= named <= extras


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ("CHANGELOG.md", *GENERATED)])
def test_commands_parse(page):
    targets = set(re.findall(r"^([\w-]+(?: [\w-]+)*):", read("Makefile"), re.MULTILINE))
    targets = {name for line in targets for name in line.split()}
    for program, *words in commands_of(page):
        if program == "make":
            wanted = [word for word in words if "=" not in word]
            assert targets.issuperset(wanted), words
        elif words[0] not in ("VERB", "|"):
            parse(words)


def test_the_head_of_the_makefile_names_every_check():
    text = read("Makefile")
    checks = re.search(r"^CHECKS := (.*?)\n\n", text, re.MULTILINE | re.DOTALL)[1].replace("\\", " ").split()
    assert sorted(re.findall(r"^#   make (check-[\w-]+) ", text, re.MULTILINE)) == sorted(checks)


def parse(words):
    """Fail for a command or an option that does not exist."""
    command = group
    while isinstance(command, click.Group):
        assert words[0] in command.list_commands(click.Context(command)), words
        command, words = command.get_command(click.Context(command), words[0]), words[1:]
    # a placeholder in place of a value, such as --rule NAME, is not converted here
    parser = command.make_parser(click.Context(command))
    parser.parse_args([word for word in words if word != "..."])


@pytest.mark.slow
def test_tutorials_lead_to_a_model_that_runs(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for page in ("first-model", "app"):
        text = read(f"docs/tutorials/{page}.md")
        for name, code in re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL):
            Path(name).write_text(code, encoding="utf-8")
        for command in re.findall(r"^ {4}((?:python|edgernn) .*)$", text, re.MULTILINE):
            program, *words = shlex.split(command)
            if program == "python":
                subprocess.run([sys.executable, *words], check=True, timeout=60)
            else:
                assert main(words) == 0, command
    printed = capfd.readouterr().out
    correct, answer = re.search(r"marked numbers: (\S+) model: \[(\S+)\]", printed).groups()
    assert abs(float(correct) - float(answer)) < 0.3
    assert printed.endswith("native\n")
    assert Path("plots").is_dir()


def test_version_has_a_changelog_entry():
    import edgernn

    assert f"## {edgernn.__version__}" in read("CHANGELOG.md")
