# SPDX-License-Identifier: Apache-2.0
"""Write the generated parts of the documentation: `python -m docs.generate`, or `make docs`.

Each page, and its source:

README.md                   results on the tasks activity and adding, from docs/results/sweep-activity.json and
                            sarnn-4.json, and from models/adding-sarnn
reference/cells, rules, imputers, frontends, weights, blocks
                            docstrings of the modules and classes, with the cost of each cell at one size; a paragraph
                            of a class docstring with " = " or " ≈ " in its first line is an equation
reference/tasks.md          docstrings of the tasks and of their base classes
reference/cli.md            help texts of the commands, from Click
reference/c-api.md          the comments of runtime/csrc/include/edgernn.h
reference/recipes.md, reference/files.md
                            the module docstrings of recipes and run directories
background/results.md       reports of `edgernn reproduce`, docs/results/TABLE.json, and their pictures
background/performance.md   reports of `python -m benchmarks.suite`, docs/results/performance.json and others
background/gpu-measured.md  reports of `python -m benchmarks.gpu_suite`, docs/results/gpu/*.jsonl
background/signals/*.md     the Pareto front of a sweep, docs/results/sweep-TASK.json
background/rivals.md        the cheapest models of other sweeps, docs/results/rivals-TASK.json and sweep-keywords.json
background/light-cells.md   rows of docs/results/performance.json
background/when-skipping-pays.md
                            sweeps and benchmarks, by benchmarks/tables/skipping.py
background/other-networks.md
                            the report of `python -m benchmarks.step_graphs`, docs/results/step-graphs.json
background/promises.md      tables of the promises, injected faults, long streams and times of steps
how-to/detect-words.md      tables and a picture measured by `python -m benchmarks.rooms` and `benchmarks.room_times`
how-to/wake-word.md         table measured by `python -m benchmarks.wake_words`
how-to/calibrate.md         tables measured by `python -m benchmarks.calibration` and `benchmarks.rooms`
how-to/trained-models.md    the entries of models/, and tables measured by `python -m benchmarks.heart_beats`
how-to/*.md                 tables measured by `python -m benchmarks.apps`, `benchmarks.wasm`, `benchmarks.wheels` and
                            `benchmarks.firmware`
"""

import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.page import page as performance_page
from benchmarks.page import section as performance_section
from benchmarks.skip_curve import table as skip_table
from benchmarks.skip_streams import table as skip_streams_table
from benchmarks.skip_work import table as skip_work_table
from benchmarks.step_graphs import table as step_graphs_table
from benchmarks.tables.gpu import draw_training_steps, gpu
from benchmarks.tables.heart_beats import heart_beats
from benchmarks.tables.measured import (
    apps,
    groups,
    light,
    microcontrollers,
    packed,
    read_report,
    rounding,
    sizes,
    trained,
    wasm_times,
    wheels,
)
from benchmarks.tables.promises import faults, longrun, promises, steptimes
from benchmarks.tables.readme import activity, adding
from benchmarks.tables.rooms import calibrated, draw_detections, rooms
from benchmarks.tables.skipping import draw_costs, draw_skipping, skipping
from benchmarks.tables.sweeps import check_signal_pages, draw_sweeps, int8_pairs, rivals, signals, skip_rnn
from benchmarks.tables.targets import targets
from benchmarks.tables.wake_words import wake_words
from benchmarks.training_steps import table as training_table
from benchmarks.worst_steps import table as worst_steps_table
from docs.reference_pages import c_api, cells, cli, described, escaped
from edgernn.bench.gpu_cases import gpu_page
from edgernn.cells import CELLS, Cell
from edgernn.cli.cell_costs import cell_costs, table
from edgernn.cli.settings_help import task_doc
from edgernn.imputers import Imputer
from edgernn.rules import RULES, UpdateRule
from edgernn.settings import as_word, options_of
from edgernn.training.papers.overview import overview, overview_table
from edgernn.training.papers.paper_table import markdown
from edgernn.training.papers.recipe import load_table, table_names
from edgernn.training.papers.table_pictures import draw_pictures
from edgernn.training.tasks import TASKS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_RIVALS = {
    "adding": "rivals-adding",
    "mnist-rows": "rivals-mnist-rows",
    "seizures": "rivals-seizures",
    "keywords": "sweep-keywords",
}
# a generated part of a page that is otherwise written by hand, between <!-- NAME --> and <!-- /NAME -->
PART = re.compile(r"(<!-- ([a-z-]+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)
RESULTS = DOCS / "results"
# a page of reference/: (title, modules)
PAGES = {
    "cells/rnn": ("Simple recurrent network", ["edgernn.cells.rnn"]),
    "cells/gru": ("GRU", ["edgernn.cells.gru"]),
    "cells/lstm": ("LSTM", ["edgernn.cells.lstm"]),
    "cells/pru": ("PRU", ["edgernn.cells.pru"]),
    "cells/eins": ("EINS", ["edgernn.cells.eins"]),
    "cells/decaynet": ("DecayNet", ["edgernn.cells.decaynet"]),
    "cells/irc": ("IRC and IHC cells", ["edgernn.cells.irc"]),
    "cells/sru": ("SRU", ["edgernn.cells.sru"]),
    "cells/minimal": ("minGRU and minLSTM", ["edgernn.cells.minimal"]),
    "cells/lru": ("LRU", ["edgernn.cells.lru"]),
    "cells/egru": ("EGRU", ["edgernn.cells.egru"]),
    "cells/t-lstm": ("T-LSTM", ["edgernn.cells.tlstm"]),
    "cells/fastgrnn": ("FastGRNN", ["edgernn.cells.fastgrnn"]),
    "rules": (
        "Update rules",
        [
            "edgernn.rules",
            *dict.fromkeys(rule.__module__ for rule in RULES.values()),
        ],
    ),
    "imputers": ("GRU-D and RITS", ["edgernn.imputers"]),
    "frontends": ("Audio front end", ["edgernn.frontends"]),
    "weights": ("Normalised products, low-rank and sparse weights", ["edgernn.cells.norm"]),
    "blocks": ("Residual blocks", ["edgernn.blocks"]),
}
# tables of skipped updates: (title, name of the report, module of benchmarks, function that formats the report)
SKIP_TABLES = (
    ("Time over skipped updates", "skip-curve", "skip_curve", skip_table),
    ("Many streams", "skip-streams", "skip_streams", skip_streams_table),
    ("Instructions and bytes over skipped updates", "skip-work", "skip_work", skip_work_table),
    ("Instructions of the worst step", "worst-steps", "worst_steps", worst_steps_table),
)
# (I, H) for the costs on the pages; most cells save work where I < H
SIZE = (64, 256)


def tables() -> str:
    """Return a Markdown table of the papers' tables that recipes reproduce."""
    rows = [f"| `{name}` | {(t := load_table(name)).title} | {t.paper} |" for name in table_names()]
    return "\n".join(["| table | title | paper |", "|---|---|---|", *rows])


def with_parts(path: Path, parts: dict[str, str]) -> str:
    """Replace the generated parts of a page that is otherwise written by hand.

    Args:
        path: The page.
        parts: Dict from the name of each generated part to its text.

    Returns:
        The whole text of the page.

    Raises:
        ValueError: The page lacks one of the parts.
    """
    text = path.read_text(encoding="utf-8")
    missing = parts.keys() - {match[2] for match in PART.finditer(text)}
    if missing:
        raise ValueError(f"{path.name}: expected the markers <!-- NAME --> of {', '.join(sorted(missing))}; add them")
    return PART.sub(lambda m: m[1] + parts[m[2]] + "\n" + m[3], text)


def page(name: str) -> str:
    """Return a page of PAGES as Markdown: the docstrings of its first module and of the classes of all."""
    title, modules = PAGES[name]
    loaded = [importlib.import_module(module) for module in modules]
    parts = [f"# {title}", "<!-- generated by docs/generate.py from the docstrings -->"]
    parts += _prose(inspect.getdoc(loaded[0]) or "")
    names = [cell for cell, kind in CELLS.items() if kind.__module__ in modules]
    if names:
        entries = [entry for entry in cell_costs(*SIZE) if entry["name"] in names]
        parts += [f"At I = {SIZE[0]}, H = {SIZE[1]}:", table(entries)]
    for module in loaded:
        for item in _public(module):
            parts += [f"## {getattr(item, 'name', item.__name__)}", *_class(inspect.getdoc(item) or "")]
            if issubclass(item, Cell | UpdateRule | Imputer):
                parts += _defaults({name: option.default for name, option in options_of(item).items()})
    return "\n\n".join(parts) + "\n"


def tasks() -> str:
    """Return the page of the tasks, as Markdown."""
    parts = ["# Tasks", "<!-- generated by docs/generate.py from the docstrings -->"]
    parts += [
        "`edgernn train --task NAME KEY=VALUE ...` trains on a task with its settings. "
        "[Your own data](../tutorials/own-data.md) are a task, too."
    ]
    for name, task in TASKS.items():
        parts += [f"## {name}", *_class(task_doc(task))]
        parts += [f"Limits of use: {task.limits}"] if task.limits else []
        fields = dataclasses.fields(task)  # type: ignore[arg-type]
        parts += _defaults({field.name: field.default for field in fields})
    return "\n\n".join(parts) + "\n"


def _defaults(settings: Mapping[str, Any]) -> list[str]:
    """Return the paragraph that lists the defaults of settings, or none without settings."""
    words = ", ".join(f"`{name}={as_word(value)}`" for name, value in settings.items())
    return [f"Defaults: {words}."] if words else []


def results() -> str:
    """Return the page of the papers' tables beside our figures, as Markdown."""
    parts = [
        "# The papers' tables beside ours",
        "<!-- generated by docs/generate.py from docs/results -->",
        "The command under its title makes each table, from the recipes in `training/papers/recipes`. A table that was "
        "trained with an earlier recipe says so. Figures are of the test split, with the weights of the last step "
        "unless the recipe or the task keeps the best (`keep`). If a paper has no validation split, ours is taken from "
        "the training split.",
        "All tables, as `edgernn reproduce --list` prints them. A table is measured if every row has as many seeds as "
        "its recipe asks for. Hours are estimates of the time of all trainings on one core. The last columns count the "
        "paper's figures by how ours compare with them.",
        "*within*: the 95 % interval of our mean overlaps the printed number ± its printed interval, or ± half a unit "
        "of its last digit if that is more. *above* or *below*: our interval lies beyond. Few seeds have a wide "
        "interval, which overlaps easily, so *within* does not show that two figures are equal.",
        "Bars in the pictures are 95 % confidence intervals over the seeds, cut at the limits of a figure: 0 and "
        "100 %.",
    ]
    parts += ['<div class="overview" markdown>', "\n".join(overview_table(overview([RESULTS]))), "</div>"]
    for name in table_names():
        table = load_table(name)
        path = RESULTS / f"{name}.json"
        if path.is_file():
            report = json.loads(path.read_text(encoding="utf-8"))
            # reports from before the table asked for latency lack this key
            parts.append(markdown({"latency": table.latency, **report}).rstrip())
            known = {row["name"] for row in report["rows"]}
            if missing := [recipe.row for recipe in table.rows if recipe.row not in known]:
                parts.append(f"Not run yet: {', '.join(missing)}.")
        else:
            hours = "" if table.hours is None else f", about {table.hours:g} h of one CPU core"
            needs = f", which needs {table.needs}" if table.needs else ""
            parts += [f"## {table.title}", f"{table.paper}. Not run yet: `edgernn reproduce {name}`{hours}{needs}."]
        for picture in table.pictures:
            file = RESULTS / f"{name}-{picture.name}.png"
            if file.is_file():
                parts += [f"![{file.stem}](../results/{file.name})", picture.text]
    return "\n\n".join(parts) + "\n"


def draw() -> None:
    """Draw the plots of the papers' tables, except those that need run directories, and those of other pages."""
    for name in table_names():
        path = RESULTS / f"{name}.json"
        report = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": []}
        pictures = [picture for picture in load_table(name).pictures if not picture.of_runs]
        draw_pictures(pictures, report, RESULTS, {}, prefix=f"{name}-")
    draw_detections(DOCS / "images" / "detections.png")
    draw_sweeps()
    draw_skipping()
    draw_costs()
    draw_training_steps(RESULTS / "gpu" / "training-step.png")


def performance(folder: Path = RESULTS) -> str:
    """Return the page of benchmarks as Markdown, from the reports and performance-notes.md in a folder."""
    measured, notes = folder / "performance.json", folder / "performance-notes.md"
    parts = ["# Performance", "<!-- generated by docs/generate.py from docs/results/performance.json and -notes.md -->"]
    if measured.is_file():
        parts.append(performance_page(json.loads(measured.read_text(encoding="utf-8"))).rstrip())
    else:
        parts.append("Not measured yet: `python -m benchmarks.suite --out docs/results`")
    user_cell = folder / "own-cell.json"
    if user_cell.is_file():
        text = (
            "The equations of gru as a user's own cell, whose program the library interprets. Beside it: the library's "
            "cell with the same weights, and the portable function. Measured by `python -m benchmarks.suite --only "
            "own-gru`; the report is docs/results/own-cell.json."
        )
        parts += ["## A cell of your own", text, performance_section(json.loads(user_cell.read_text(encoding="utf-8")))]
    for title, name, module, format_table in SKIP_TABLES:
        parts += [f"## {title}", *_over_skips(folder, name, module, title, format_table)]
    parts += ["## On a GPU", *_on_a_gpu(folder), "## Training", *_training(folder)]
    if notes.is_file():
        parts += ["## Notes", notes.read_text(encoding="utf-8").strip()]
    return "\n\n".join(parts) + "\n"


def _over_skips(
    folder: Path, name: str, module: str, title: str, format_table: Callable[[dict[str, Any]], str]
) -> list[str]:
    """Return the Markdown section of a benchmark whose results depend on the percentage of skipped updates."""
    measured, plot = folder / f"{name}.json", folder / f"{name}.png"
    parts = [f"The command is `python -m benchmarks.{module} --out docs/results`."]
    if not measured.is_file():
        return [*parts, "Not measured yet."]
    parts.append(format_table(json.loads(measured.read_text(encoding="utf-8"))))
    return [*parts, *([f"![{title}](../results/{plot.name})"] if plot.is_file() else [])]


def _on_a_gpu(folder: Path) -> list[str]:
    measured = folder / "cuda.json"
    parts = [
        "The command is `python -m benchmarks.suite --device cuda --out docs/results`. The targets, beside the GRU of "
        "ONNX Runtime's CUDA provider, at T = 500 and H = 128: half of its time for one sequence, and at most its time "
        "for 256 sequences."
    ]
    if measured.is_file():
        # the report's headings become one level lower
        page = gpu_page(json.loads(measured.read_text(encoding="utf-8")))
        return [*parts, re.sub(r"(?m)^## ", "### ", page).rstrip()]
    return [
        *parts,
        "None of it is measured yet: neither target is known to be met or missed. [Measured on a GPU](gpu-measured.md) "
        "has the times of the kernels themselves, beside cuDNN, and says why ONNX Runtime could not be timed.",
    ]


def _training(folder: Path) -> list[str]:
    cpu = folder / "training.json"
    command = "python -m benchmarks.training_steps --out docs/results/training.json"
    parts = [f"On a CPU: `{command}`. The target for gru, pru and sarnn is half of torch.nn.GRU's time."]
    parts.append(training_table(json.loads(cpu.read_text(encoding="utf-8"))) if cpu.is_file() else "Not measured yet.")
    parts.append(
        "On a GPU: [Measured on a GPU](gpu-measured.md). The targets, at B = 128, T = 500, H = 128, forward and "
        "backward: every cell 10 times faster than its loop, gru as fast as torch.nn.GRU, and sarnn at most 1.3 times "
        "as slow. Gradients are to be within 1e-3 of the loop's with tf32 products and 1e-5 with exact ones, and the "
        "adding task of 500 steps is to be solved in minutes."
    )
    return parts


def _public(module: ModuleType) -> list[type]:
    """Return the classes with an attribute `name`, such as cells and rules, in the order of the module."""
    classes = [v for v in vars(module).values() if inspect.isclass(v) and v.__module__ == module.__name__]
    return [item for item in classes if isinstance(vars(item).get("name"), str)]


def _class(doc: str) -> list[str]:
    summary, *parts = re.split(r"\n\s*\n", doc)
    # the reader sets options by their words, and not by arguments
    parts = [part for part in parts if not part.startswith(("Args:", "Attributes:"))]
    return [escaped(summary), *(f"```text\n{part}\n```" if _is_equation(part) else _lines(part) for part in parts)]


def _is_equation(part: str) -> bool:
    first = part.splitlines()[0]
    return re.search(" [=≈] ", first) is not None and not first.startswith("Shapes:")


def _prose(doc: str) -> list[str]:
    return [_lines(part) for part in re.split(r"\n\s*\n", doc)]


def _lines(part: str) -> str:
    """Escape a paragraph, and begin a new paragraph at each line that starts with `Source`, `Shapes` or the like."""
    return re.sub(r"\n(?=(Source|Shapes|Options|Gates|Saves|Choose it)\b)", "\n\n", escaped(part))


def generated() -> dict[Path, str]:
    """Return a dict from the path of each file with generated parts to its whole text."""
    pages = {f"reference/{name}": page(name) for name in PAGES}
    titles = {name.removeprefix("cells/"): title for name, (title, _) in PAGES.items() if "cells/" in name}
    pages |= {"reference/cells/index": cells(titles), "reference/tasks": tasks(), "reference/cli": cli()}
    pages |= {"reference/c-api": c_api(), "background/results": results(), "background/performance": performance()}
    how_to = DOCS / "how-to"
    texts = {DOCS / f"{name}.md": text for name, text in pages.items()}
    parts = {
        ROOT / "README.md": {"activity": activity(), "adding": adding()},
        DOCS / "background" / "light-cells.md": {"light": light()},
        DOCS / "background" / "gpu-measured.md": gpu(),
        DOCS / "background" / "promises.md": {
            "promises": promises(),
            "faults": faults(),
            "longrun": longrun(),
            "steptimes": steptimes(),
        },
        **{DOCS / "background" / "signals" / f"{task}.md": tables for task, tables in signals().items()},
        DOCS / "background" / "when-skipping-pays.md": skipping(),
        DOCS / "background" / "other-networks.md": {"step-graphs": step_graphs_table(read_report("step-graphs"))},
        DOCS / "background" / "rivals.md": {
            **{task: rivals(name) for task, name in _RIVALS.items()},
            "skip-rnn": skip_rnn(),
        },
        how_to / "skip-a-share.md": {"groups": groups()},
        how_to / "deploy-c.md": {"packed": packed()},
        how_to / "detect-words.md": rooms(),
        how_to / "wake-word.md": wake_words(),
        how_to / "calibrate.md": calibrated(),
        how_to / "deploy-browser.md": {"wasm": wasm_times()},
        how_to / "wheels.md": {"wheels": wheels()},
        how_to / "deploy-microcontroller.md": {"microcontrollers": microcontrollers()},
        how_to / "quantise.md": {"sizes": sizes(), "rounding": rounding(), "pairs": int8_pairs()},
        how_to / "trained-models.md": {"trained": trained(), "targets": targets(), **heart_beats()},
        how_to / "stream.md": {"apps": apps()},
        DOCS / "reference" / "files.md": {"run": described("edgernn.training.run_directory")},
        DOCS / "reference" / "recipes.md": {"recipe": described("edgernn.training.papers.recipe"), "tables": tables()},
    }
    check_signal_pages()
    return texts | {path: with_parts(path, text) for path, text in parts.items()}


def main() -> None:
    """Draw the pictures and write the pages."""
    draw()
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
