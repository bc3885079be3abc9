# SPDX-License-Identifier: Apache-2.0
"""Write the parts of the documentation that follow from the code: `python docs/generate.py`, or `make docs`.

Each page, and its source:

README.md                   results on the adding task, from docs/results/sarnn-4.json and models/adding-sarnn
reference/cells, rules, imputers, weights
                            docstrings of the modules and classes, with the cost of each cell at one size; a paragraph
                            of a class docstring with " = " in its first line is an equation
reference/tasks.md          docstrings of the tasks
reference/cli.md            help texts of the commands, from Click
reference/c-api.md          the comments of runtime/csrc/include/edgernn.h
reference/recipes.md, reference/files.md
                            the module docstrings of recipes and run directories
background/results.md       reports of `edgernn reproduce`, docs/results/TABLE.json, and their pictures
background/performance.md   reports of `edgernn bench --suite`, docs/results/performance.json and others
how-to/*.md                 tables measured by `python -m tests.measure_apps`, docs/results/apps.json
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
from reference_pages import c_api, cli, described, escaped

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# a generated part of a page that is otherwise written by hand
PART = re.compile(r"(<!-- ([a-z]+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)
RESULTS = DOCS / "results"
APPS = RESULTS / "apps.json"
ADDING_MODEL = ROOT / "models" / "adding-sarnn" / "bench.json"
# rows of docs/results/sarnn-4.json in the README, and what each is called there
ADDING_ROWS = {
    "gru": "GRU",
    "random-90": "GRU, 90 % of the updates left out at random",
    "skiprnn-0": "`skiprnn`, λ = 0",
    "sarnn-1e-5": "`sarnn`, λ = 1e-5",
    "sarnn-1e-4": "`sarnn`, λ = 1e-4",
}
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
    "weights": ("Normalised, low-rank and sparse weights", ["edgernn.cells.norm"]),
}
# the size that the pages show costs at: I < H, as where most cells save
SIZE = (64, 256)


def adding() -> str:
    """The README's table: what skipping costs and saves on the adding task, from `edgernn reproduce sarnn-4`."""
    report = json.loads((RESULTS / "sarnn-4.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in report["rows"]}
    lines = ["| model | MSE | solved | neurons updated | FLOPs a sequence |", "|---|---:|---|---:|---:|"]
    for name, title in ADDING_ROWS.items():
        columns = {column: value["mean"] for column, value in rows[name]["columns"].items()}
        solved = "yes" if columns["solved"] == 100 else "no"
        updated = 100 - columns["skip_percent"]
        lines.append(
            f"| {title} | {columns['mse']:.1e} | {solved} | {updated:.0f} % | {columns['flops'] / 1e6:.2f} M |"
        )
    model = json.loads(ADDING_MODEL.read_text(encoding="utf-8"))
    times, machine = model["timings"], model["machine"]
    text = (
        f"Adding task with T = 100, 128 neurons, one seed: `{report['command']}`. It counts as solved at an MSE of at "
        f"most 1.67e-3. In microseconds: the model in `models/adding-sarnn` (T = {model['settings']['steps']}, "
        f"{model['skip_percent']:.0f} % skipped) takes {times['edgernn native']['us_per_step']:.2f} µs a step where "
        f"ONNX Runtime's GRU operator of the same size takes {times['ONNX Runtime GRU']['us_per_step']:.2f}, on one "
        f"core of {machine['cpu']}: `edgernn bench models/adding-sarnn/model.onnx`."
    )
    return "\n".join(lines) + "\n\n" + _filled(text)


def cells() -> str:
    """The page of all cells with their costs."""
    parts = ["# Cells", "<!-- generated by docs/generate.py -->"]
    parts += [
        "Any [update rule](../rules.md) goes with any cell (`--rule`), and so do the [imputers](../imputers.md) and "
        "[normalised, low-rank and sparse weights](../weights.md): `imputer=rits`, `norm=layer`, `rank=16`, "
        "`density=0.25`. `edgernn.from_torch` and `to_torch` convert torch.nn.RNN, GRU and LSTM both ways.",
        "With 2 inputs and 128 neurons; `edgernn cells --input I --hidden H` prints the table for other sizes:",
        table(cell_costs(2, 128)),
        "`macs` counts the multiply-adds of a step that skips nothing; `edgernn bench` also prints those that the "
        "kernel executed. `flops_paper` follows the convention of the SA-RNN paper: "
        "[How cost is counted](../../background/cost.md).",
        "The pages have each family's equations, what it saves, and when to choose it:",
        "\n".join(
            f"- [{title}]({name.removeprefix('cells/')}.md)" for name, (title, _) in PAGES.items() if "cells/" in name
        ),
    ]
    return "\n\n".join(_filled_page(parts)) + "\n"


def tables() -> str:
    """The tables that recipes reproduce, with their papers."""
    rows = [f"| `{name}` | {(t := load_table(name)).title} | {t.paper} |" for name in table_names()]
    return "\n".join(["| table | title | paper |", "|---|---|---|", *rows])


def _filled_page(parts: list[str]) -> list[str]:
    """Paragraphs at the width of the other pages; headings, tables, lists and code as they are."""
    return [part if re.match(r"[#|<`-]", part) and not re.match(r"`[^`]", part) else _filled(part) for part in parts]


def with_parts(path: Path, parts: dict[str, str]) -> str:
    """A page written by hand, with its generated parts.

    Args:
        path: The page.
        parts: Text by the name of its part.
    """
    return PART.sub(lambda m: m[1] + parts[m[2]] + "\n" + m[3], path.read_text(encoding="utf-8"))


def packed() -> str:
    """Sizes of packed models and the library, measured by `python -m tests.measure_apps`."""
    report = json.loads(APPS.read_text(encoding="utf-8"))
    rows = "\n".join(
        f"| {row['model']} | {row['packed']['float32']:,} | {row['memory']['float32']:,} | {row['packed']['int8']:,} | "
        f"{row['memory']['int8']:,} |"
        for row in report["models"]
    )
    arm = report["bytes"]["arm"]
    how = (
        f"Memory for one sequence with {report['machine']['instruction_set']}. For 64-bit Arm, stripped, the library "
        f"takes {mb(arm['library'])} MB and the program, which needs no other file but the model, "
        f"{mb(arm['program'])} MB; both have every cell under every rule."
    )
    head = "| model | file, bytes | memory, bytes | file with int8 | memory with int8 |\n|---|---:|---:|---:|---:|"
    return f"{head}\n{rows}\n\n{_filled(how)}"


def sizes() -> str:
    """Sizes of ONNX files with smaller weights, measured by `python -m tests.measure_apps`."""
    rows = []
    for row in json.loads(APPS.read_text(encoding="utf-8"))["models"]:
        whole = row["file"]["float32"]
        small = (f"{row['file'][kind]:,} | {row['file'][kind] / whole:.3f}" for kind in ("bfloat16", "int8"))
        rows.append(f"| {row['model']} | {whole:,} | {' | '.join(small)} |")
    head = "| model | float32, bytes | bfloat16, bytes | of float32 | int8, bytes | of float32 |\n"
    head += "|---|---:|---:|---:|---:|---:|"
    return "\n".join([head, *rows])


def mb(count: int) -> str:
    """Bytes in MB."""
    return f"{count / 1e6:.{1 if count > 1e6 else 2}f}"


def apps() -> str:
    """Sizes and times of the example apps, measured by `python -m tests.measure_apps`."""
    report = json.loads(APPS.read_text(encoding="utf-8"))
    time, size, machine = report["microseconds"], report["bytes"], report["machine"]
    cpp, c, node, browser = size["cpp"], size["c"], size["node"], size["browser"]
    versions = report["versions"]
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
        f"Medians of {report['steps']:,} steps, calls included, timed by the apps themselves on {machine['cpu']}, "
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
    parts = [f"# {title}", "<!-- generated by docs/generate.py from the docstrings -->"]
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
    parts = ["# Tasks", "<!-- generated by docs/generate.py from the docstrings -->"]
    parts += [
        "`edgernn train --task NAME KEY=VALUE ...` trains on a task with its settings. "
        "[Your own data](../tutorials/own-data.md) are a task, too."
    ]
    for name, task in TASKS.items():
        parts += [f"## {name}", *_class(task)]
        fields = dataclasses.fields(task)  # type: ignore[arg-type]
        if settings := ", ".join(f"`{field.name}={as_word(field.default)}`" for field in fields):
            parts.append(f"Settings: {settings}.")
    return "\n\n".join(parts) + "\n"


def results() -> str:
    """The page of the papers' tables beside ours."""
    parts = [
        "# The papers' tables beside ours",
        "<!-- generated by docs/generate.py from docs/results -->",
        "The command under its title makes each table, from the recipes in `training/recipes`. Figures are of the "
        "test split, with the weights of the last step unless the recipe or the task keeps the best (`keep`). If a "
        "paper has no validation split, ours is taken from the training split.",
        "All tables, as `edgernn reproduce --list` prints them. A table is measured if every row has as many seeds as "
        "its recipe asks for. Hours are those of all trainings on one core. The last columns count the paper's figures "
        "by how ours compare with them.",
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
                parts += [f"![{file.stem}](../results/{file.name})", picture.text]
    return "\n\n".join(parts) + "\n"


def draw() -> None:
    """Draw the pictures of the papers' tables from docs/results/TABLE.json, except those that need run directories."""
    for name in table_names():
        path = RESULTS / f"{name}.json"
        report = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": []}
        pictures = [picture for picture in load_table(name).pictures if not picture.of_runs]
        draw_pictures(pictures, report, RESULTS, {}, prefix=f"{name}-")


def performance(folder: Path = RESULTS) -> str:
    """The page of benchmarks beside other runtimes, from performance.json and performance-notes.md in a folder."""
    measured, notes = folder / "performance.json", folder / "performance-notes.md"
    parts = ["# Performance", "<!-- generated by docs/generate.py from docs/results/performance.json and -notes.md -->"]
    if measured.is_file():
        parts.append(performance_page(json.loads(measured.read_text(encoding="utf-8"))).rstrip())
    else:
        parts.append("Not measured yet: `edgernn bench --suite --out docs/results`")
    own = folder / "own-cell.json"
    if own.is_file():
        text = (
            "The equations of gru as a user's own cell, whose program the library interprets. Beside it: the library's "
            "cell with the same weights, and the portable function. Measured by `edgernn bench --suite --only "
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
        "The command is `edgernn bench --suite --device cuda --out docs/results`. The targets, beside the GRU of ONNX "
        "Runtime's CUDA provider, at T = 500 and H = 128: half of its time for one sequence, and at most its time for "
        "256 sequences."
    ]
    if measured.is_file():
        # its headings belong below this one
        page = gpu_page(json.loads(measured.read_text(encoding="utf-8")))
        return [*parts, re.sub(r"(?m)^## ", "### ", page).rstrip()]
    return [
        *parts,
        "None of it is measured yet: neither target is known to be met or missed. The tests check what a machine "
        "without a GPU can check: the kernels' results where a CPU emulates the GPU, that nvcc compiles them, and that "
        "`Session` and `bench` ask ONNX Runtime for the right things.",
    ]


def _training(folder: Path) -> list[str]:
    cpu, gpu = folder / "training.json", folder / "gpu.json"
    command = "python -m edgernn.bench.training_steps --out docs/results/training.json"
    parts = [f"On a CPU: `{command}`. The target for gru, pru and sarnn is half of torch.nn.GRU's time."]
    parts.append(training_table(json.loads(cpu.read_text(encoding="utf-8"))) if cpu.is_file() else "Not measured yet.")
    command = "python -m edgernn.bench.gpu_suite --out docs/results/gpu.json"
    parts.append(
        f"On a GPU: `{command}`. The targets, at B = 128, T = 500, H = 128, forward and backward: every cell 10 times "
        "faster than its loop, gru as fast as torch.nn.GRU, and sarnn at most 1.3 times as slow. Gradients are to be "
        "within 1e-3 of the loop's with tf32 products and 1e-5 with exact ones, and the adding task of 500 steps is to "
        "be solved in minutes."
    )
    if gpu.is_file():
        parts.append(f"```text\n{gpu_table(json.loads(gpu.read_text(encoding='utf-8')))}\n```")
    else:
        parts.append(
            "None of it is measured yet. The tests check what a machine without a GPU can check: the kernels' results "
            "and gradients in Triton's interpreter, and that they compile for sm_90."
        )
    return parts


def _public(module: ModuleType) -> list[type]:
    """The classes with a name for users that a module defines, such as cells and rules, in its order."""
    classes = [v for v in vars(module).values() if inspect.isclass(v) and v.__module__ == module.__name__]
    return [item for item in classes if "name" in vars(item)]


def _class(item: type) -> list[str]:
    summary, *parts = re.split(r"\n\s*\n", inspect.getdoc(item) or "")
    return [escaped(summary), *(f"```text\n{part}\n```" if _is_equation(part) else _lines(part) for part in parts)]


def _is_equation(part: str) -> bool:
    first = part.splitlines()[0]
    return " = " in first and not first.startswith("Shapes:")


def _prose(doc: str) -> list[str]:
    return [_lines(part) for part in re.split(r"\n\s*\n", doc)]


def _lines(part: str) -> str:
    """A paragraph; one that begins with `Source:` or the like stands on lines of its own."""
    return re.sub(r"\n(?=(Source|Shapes|Options|Gates|Saves|Choose it)\b)", "\n\n", escaped(part))


def generated() -> dict[Path, str]:
    """Every file with generated text, and its whole text."""
    pages = {f"reference/{name}": page(name) for name in PAGES}
    pages |= {"reference/cells/index": cells(), "reference/tasks": tasks(), "reference/cli": cli()}
    pages |= {"reference/c-api": c_api()}
    pages |= {"background/results": results(), "background/performance": performance()}
    texts = {DOCS / f"{name}.md": text for name, text in pages.items()}
    parts = {
        ROOT / "README.md": {"adding": adding()},
        DOCS / "how-to" / "deploy-c.md": {"packed": packed()},
        DOCS / "how-to" / "quantise.md": {"sizes": sizes()},
        DOCS / "how-to" / "stream.md": {"apps": apps()},
        DOCS / "reference" / "files.md": {"run": described("edgernn.training.run_directory")},
        DOCS / "reference" / "recipes.md": {"recipe": described("edgernn.training.recipe"), "tables": tables()},
    }
    return texts | {path: with_parts(path, text) for path, text in parts.items()}


def main() -> None:
    """Draw the pictures and write the pages."""
    draw()
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
