# SPDX-License-Identifier: Apache-2.0
"""Write what the documents take from the code: `python docs/generate.py`, or `make docs`.

The README's table of cells, and that of the apps, of what `python -m tests.measure_apps` measured,
docs/results/apps.json, as are the tables in docs/apps.md; a page a family under docs/: the docstrings of its module
and classes, with the cost of each cell at one size (a paragraph of a class docstring with " = " in its first line is
an equation); docs/tasks.md, of the tasks' docstrings; docs/results.md, of what `edgernn reproduce` measured,
docs/results/TABLE.json, with the pictures docs/results/TABLE-NAME.png; docs/performance.md, of what `edgernn bench
--suite` measured, docs/results/performance.json and own-cell.json, and the notes beside it.
"""

import dataclasses
import importlib
import inspect
import json
import re
import textwrap
from pathlib import Path
from types import ModuleType

from edgernn.bench.gpu_cases import gpu_page
from edgernn.bench.gpu_suite import table as gpu_table
from edgernn.bench.page import page as performance_page
from edgernn.bench.page import section as performance_section
from edgernn.bench.training_steps import table as training_table
from edgernn.cells import CELLS
from edgernn.cli.cell_costs import cell_costs, table
from edgernn.rules import RULES
from edgernn.settings import as_word
from edgernn.training.overview import overview, overview_table
from edgernn.training.paper_table import markdown
from edgernn.training.recipe import load_table, table_names
from edgernn.training.table_pictures import draw_pictures
from edgernn.training.tasks import TASKS

ROOT = Path(__file__).resolve().parent.parent
# what of a page written by hand is made
PART = re.compile(r"(<!-- (cells|apps|packed|sizes) -->\n).*?(<!-- /\2 -->)", re.DOTALL)
RESULTS = ROOT / "docs" / "results"
APPS = RESULTS / "apps.json"
# page: (title, modules)
PAGES = {
    "rnn": ("Simple recurrent network", ["edgernn.cells.rnn"]),
    "gru": ("GRU", ["edgernn.cells.gru"]),
    "lstm": ("LSTM", ["edgernn.cells.lstm"]),
    "pru": ("PRU", ["edgernn.cells.pru"]),
    "eins": ("EINS", ["edgernn.cells.eins"]),
    "decaynet": ("DecayNet", ["edgernn.cells.decaynet"]),
    "irc": ("IRC and IHC cells", ["edgernn.cells.irc"]),
    "sru": ("SRU", ["edgernn.cells.sru"]),
    "t-lstm": ("T-LSTM", ["edgernn.cells.tlstm"]),
    "fastgrnn": ("FastGRNN", ["edgernn.cells.fastgrnn"]),
    "rules": (
        "Update rules",
        [
            "edgernn.rules",
            *dict.fromkeys(rule.__module__ for rule in RULES.values()),
        ],
    ),
    "imputers": ("GRU-D and RITS", ["edgernn.imputers"]),
    "weights": ("Normalised, low-rank and sparse weights", ["edgernn.cells.norm"]),
}
# the size that the pages show costs at: I < H, as where most cells save
SIZE = (64, 256)


def readme() -> str:
    """The README with its tables."""
    return with_parts(ROOT / "README.md", {"cells": table(cell_costs(2, 128)), "apps": apps()})


def with_parts(path: Path, parts: dict[str, str]) -> str:
    """A page written by hand with what is made in it."""
    return PART.sub(lambda m: m[1] + parts[m[2]] + "\n" + m[3], path.read_text(encoding="utf-8"))


def packed() -> str:
    """What packed models and the library weigh, of what `python -m tests.measure_apps` measured."""
    found = json.loads(APPS.read_text(encoding="utf-8"))
    rows = "\n".join(
        f"| {row['model']} | {row['packed']['float32']:,} | {row['memory']['float32']:,} | {row['packed']['int8']:,} | "
        f"{row['memory']['int8']:,} |"
        for row in found["models"]
    )
    arm = found["bytes"]["arm"]
    how = (
        f"Memory for one sequence with {found['machine']['instruction_set']}. For 64-bit Arm, stripped, the library "
        f"takes {mb(arm['library'])} MB and the program, which needs no other file but the model, "
        f"{mb(arm['program'])} MB; both have every cell under every rule."
    )
    head = "| model | file, bytes | memory, bytes | file with int8 | memory with int8 |\n|---|---:|---:|---:|---:|"
    return f"{head}\n{rows}\n\n{_filled(how)}"


def sizes() -> str:
    """What smaller weights leave of the ONNX file, of what `python -m tests.measure_apps` measured."""
    rows = []
    for row in json.loads(APPS.read_text(encoding="utf-8"))["models"]:
        whole = row["file"]["float32"]
        small = (f"{row['file'][kind]:,} | {row['file'][kind] / whole:.3f}" for kind in ("bfloat16", "int8"))
        rows.append(f"| {row['model']} | {whole:,} | {' | '.join(small)} |")
    head = "| model | float32, bytes | bfloat16 | of it | int8 | of it |\n|---|---:|---:|---:|---:|---:|"
    return "\n".join([head, *rows])


def mb(count: int) -> str:
    return f"{count / 1e6:.{1 if count > 1e6 else 2}f}"


def apps() -> str:
    """What the examples need and take, of what `python -m tests.measure_apps` measured."""
    found = json.loads(APPS.read_text(encoding="utf-8"))
    time, size, machine = found["microseconds"], found["bytes"], found["machine"]
    cpp, c, node, browser = size["cpp"], size["c"], size["node"], size["browser"]
    versions = found["versions"]
    rows = f"""\
| app | command | what it needs, MB | a step, µs |
|---|---|---|---:|
| C++ | `make example-cpp` | {mb(sum(cpp.values()))}: ONNX Runtime {mb(cpp["runtime"])}, our library \
{mb(cpp["library"])}, the model {mb(cpp["model"])}, the program {mb(cpp["program"])} | {time["cpp"]:.1f}; \
{time["cpp_portable"]:.0f} without our library |
| C | `make example-c` | {mb(sum(c.values()))}: our library {mb(c["library"])}, the model {mb(c["model"])}, \
the program {mb(c["program"])}, memory {mb(c["memory"])} | {time["c"]:.2f} |
| Node | `make example-node` | {mb(node["used"])} of the {mb(node["installed"])} that npm installs for all platforms | \
{time["node"]:.0f} |
| browser | `make example-browser` | {mb(browser["loaded"])} to load, {mb(browser["gzipped"])} gzipped | \
{time["browser"]:.0f} |"""
    how = (
        f"Medians of {found['steps']:,} steps, calls included, timed by the apps themselves on {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['instruction_set']}; onnxruntime {machine['versions']['onnxruntime']}, "
        f"onnxruntime-node and -web {versions['onnxruntime-node']}, Node {versions['node'].lstrip('v')}, Chromium "
        f"{versions['chromium'].split('.')[0]}. Made by `python -m tests.measure_apps --out docs/results/apps.json`."
    )
    return f"{rows}\n\n{_filled(how)}"


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def page(name: str) -> str:
    """One page as Markdown."""
    title, modules = PAGES[name]
    loaded = [importlib.import_module(module) for module in modules]
    parts = [f"# {title}", "<!-- made by docs/generate.py from the docstrings -->"]
    for module in loaded:
        parts += _prose(inspect.getdoc(module) or "")
    names = [cell for cell, kind in CELLS.items() if kind.__module__ in modules]
    if names:
        entries = [entry for entry in cell_costs(*SIZE) if entry["name"] in names]
        parts += [f"At I = {SIZE[0]}, H = {SIZE[1]}:", table(entries)]
    for module in loaded:
        for item in _public(module):
            parts += [f"## {getattr(item, 'name', item.__name__)}", *_class(item)]
    return "\n\n".join(parts) + "\n"


def tasks() -> str:
    """The page of the tasks."""
    parts = ["# Tasks", "<!-- made by docs/generate.py from the docstrings -->"]
    parts += ["`edgernn train --task NAME`; settings are words KEY=VALUE. Your own data: [own-data](own-data.md)."]
    for name, task in TASKS.items():
        parts += [f"## {name}", *_class(task)]
        fields = dataclasses.fields(task)  # type: ignore[arg-type]
        if settings := ", ".join(f"`{field.name}={as_word(field.default)}`" for field in fields):
            parts.append(f"Defaults: {settings}.")
    return "\n\n".join(parts) + "\n"


def results() -> str:
    """The page of the papers' tables beside ours."""
    parts = [
        "# The papers' tables beside ours",
        "<!-- made by docs/generate.py from docs/results -->",
        "Each table is made by the command under its title, from the recipes in `training/recipes`. A figure is of the "
        "test split, with the weights of the last step unless the recipe or the task keeps the best (`keep`). Where a "
        "paper has no validation part, ours is taken from the training part.",
        "All tables, as `edgernn reproduce --list` shows them: a table is measured when every row has as many seeds as "
        "its recipe asks for; hours are those of all trainings on one core; the last columns count the paper's figures "
        "by how ours lie beside them.",
    ]
    parts += ["\n".join(overview_table(overview([ROOT / "docs" / "results"])))]
    for name in table_names():
        table = load_table(name)
        path = RESULTS / f"{name}.json"
        if path.is_file():
            report = json.loads(path.read_text(encoding="utf-8"))
            # a report that is older than the table's wish for times has none
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
                parts += [f"![{file.stem}](results/{file.name})", picture.text]
    return "\n\n".join(parts) + "\n"


def draw() -> None:
    """The pictures of the papers' tables, but for those that need run directories, of docs/results/TABLE.json."""
    for name in table_names():
        path = RESULTS / f"{name}.json"
        report = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": []}
        pictures = [picture for picture in load_table(name).pictures if not picture.of_runs]
        draw_pictures(pictures, report, RESULTS, {}, prefix=f"{name}-")


def performance(folder: Path = ROOT / "docs" / "results") -> str:
    """The page of what is measured beside other runtimes, of performance.json and performance-notes.md in a folder."""
    measured, notes = folder / "performance.json", folder / "performance-notes.md"
    parts = ["# Performance", "<!-- made by docs/generate.py from docs/results/performance.json and -notes.md -->"]
    if measured.is_file():
        parts.append(performance_page(json.loads(measured.read_text(encoding="utf-8"))).rstrip())
    else:
        parts.append("Not measured yet: `edgernn bench --suite --out docs/results`")
    own = folder / "own-cell.json"
    if own.is_file():
        text = (
            "The equations of gru as a user's own cell, which the library runs by its program. Beside it: the "
            "library's cell with the same weights, and the portable function. By `edgernn bench --suite --only "
            "own-gru`; the report is docs/results/own-cell.json."
        )
        parts += ["## A cell of your own", text, performance_section(json.loads(own.read_text(encoding="utf-8")))]
    parts += ["## On a GPU", *_on_a_gpu(folder), "## Training", *_training(folder)]
    if notes.is_file():
        parts += ["## Notes", notes.read_text(encoding="utf-8").strip()]
    return "\n\n".join(parts) + "\n"


def _on_a_gpu(folder: Path) -> list[str]:
    measured = folder / "cuda.json"
    parts = [
        "By `edgernn bench --suite --device cuda --out docs/results`; the targets, beside the GRU of ONNX Runtime's "
        "CUDA provider: at T = 500 and H = 128 half of its time for one sequence, and no more than its time for 256."
    ]
    if measured.is_file():
        # its headings belong below this one
        page = gpu_page(json.loads(measured.read_text(encoding="utf-8")))
        return [*parts, re.sub(r"(?m)^## ", "### ", page).rstrip()]
    return [
        *parts,
        "None of it is measured yet: neither target is known to be met or missed. What a machine without a GPU can "
        "tell is in the tests: the kernels' results where a processor plays the GPU, that nvcc compiles them, and that "
        "`Session` and `bench` ask ONNX Runtime for the right things.",
    ]


def _training(folder: Path) -> list[str]:
    cpu, gpu = folder / "training.json", folder / "gpu.json"
    command = "python -m edgernn.bench.training_steps --out docs/results/training.json"
    parts = [f"On a CPU, by `{command}`; the target for gru, pru and sarnn is half of torch.nn.GRU's time."]
    parts.append(training_table(json.loads(cpu.read_text(encoding="utf-8"))) if cpu.is_file() else "Not measured yet.")
    command = "python -m edgernn.bench.gpu_suite --out docs/results/gpu.json"
    parts.append(
        f"On a GPU, by `{command}`; the targets, at B = 128, T = 500, H = 128, forward and backward: every cell 10 "
        "times faster than its loop, gru as fast as torch.nn.GRU, sarnn at most 1.3 times as slow, gradients within "
        "1e-3 of the loop's with tf32 products and 1e-5 with exact ones, and the adding task of 500 steps solved in "
        "minutes."
    )
    if gpu.is_file():
        parts.append(f"```text\n{gpu_table(json.loads(gpu.read_text(encoding='utf-8')))}\n```")
    else:
        parts.append(
            "None of it is measured yet. What a machine without a GPU can tell is in the tests: the kernels' results "
            "and gradients in Triton's interpreter, and that they compile for sm_90."
        )
    return parts


def _public(module: ModuleType) -> list[type]:
    """The cells, rules and so on that a module defines, in its order: the classes with a name for users."""
    own = [v for v in vars(module).values() if inspect.isclass(v) and v.__module__ == module.__name__]
    return [item for item in own if "name" in vars(item)]


def _class(item: type) -> list[str]:
    summary, *rest = re.split(r"\n\s*\n", inspect.getdoc(item) or "")
    return [_escaped(summary), *(f"```text\n{part}\n```" if _is_equation(part) else _lines(part) for part in rest)]


def _is_equation(part: str) -> bool:
    first = part.splitlines()[0]
    return " = " in first and not first.startswith("Shapes:")


def _prose(doc: str) -> list[str]:
    return [_lines(part) for part in re.split(r"\n\s*\n", doc)]


def _lines(part: str) -> str:
    """A paragraph; one that begins with `Source:` or the like stands on lines of its own."""
    return re.sub(r"\n(?=(Source|Shapes|Options|Gates|Saves|Choose it)\b)", "\n\n", _escaped(part))


def _escaped(text: str) -> str:
    return text.replace("*", r"\*").replace("<", "&lt;")


def generated() -> dict[Path, str]:
    """Every file that is made, with its content."""
    pages = {name: page(name) for name in PAGES}
    pages |= {"tasks": tasks(), "results": results(), "performance": performance()}
    pages |= {"apps": with_parts(ROOT / "docs" / "apps.md", {"packed": packed(), "sizes": sizes()})}
    return {ROOT / "README.md": readme()} | {ROOT / "docs" / f"{name}.md": text for name, text in pages.items()}


def main() -> None:
    draw()
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
