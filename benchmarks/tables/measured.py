# SPDX-License-Identifier: Apache-2.0
"""Markdown tables of measured figures, for pages that are otherwise written by hand."""

import json
import statistics
import textwrap
from collections.abc import Mapping
from typing import Any

from benchmarks import ROOT
from benchmarks.tables import table
from edgernn.cli.models import model_rows, notes
from edgernn.runtime.zoo import entries
from edgernn.settings import as_word
from edgernn.training.statistics import Difference, mean_difference
from edgernn.training.tables.table_text import shown_baselines

RESULTS = ROOT / "docs" / "results"
ADDING_MODEL = ROOT / "models" / "adding-sarnn" / "bench.json"
# cases and groups of docs/results/performance.json in the table of light cells
BASELINES = tuple(f"{cell} {sizes}, T=500" for cell in ("gru", "lstm") for sizes in ("(2, 128)", "(64, 128)"))
LIGHT_GROUPS = ("Skipping", "Cells with fewer macs")
# from tables of groups of neurons to the title of their score, its column, and the factor to the title's unit
GROUP_TABLES = {
    "groups-adding": ("adding, MSE × 10⁴", "mse", 1e4),
    "groups-seizures": ("Seizures, accuracy, %", "accuracy", 1.0),
    "groups-char": ("char, nats × 100", "cross_entropy", 100.0),
    "groups-keywords": ("words, accuracy, %", "accuracy_words", 1.0),
}
# numbers of neurons that share a decision
GROUP_SIZES = ("4", "8", "16", "32")


def read_report(name: str) -> dict[str, Any]:
    """Read the JSON report docs/results/NAME.json."""
    report: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return report


def light() -> str:
    """Return a table of the times of light cells beside ONNX Runtime's GRU or LSTM, measured by benchmarks/suite.py."""
    report = read_report("performance")
    cases = {case["name"]: case for case in report["cases"]}
    chosen = [cases[name] for name in BASELINES]
    chosen += [case for group in LIGHT_GROUPS for case in report["cases"] if case["group"] == group]
    rows = []
    for case in chosen:
        times = case["contenders"]
        ratios = (times.get(name, {}).get("ratio") for name in ("ONNX Runtime", "edgernn gru"))
        faster = [f"{1 / ratio:.1f}" if ratio else "" for ratio in ratios]
        rows.append([case["name"], f"{case['macs']:,}", f"{times['edgernn']['us']:.2f}", *faster])
    head = ["model, sizes (I, H)", "multiply-adds a step", "µs a step"]
    shown = table([*head, "times faster than ONNX Runtime", "times faster than our dense gru"], rows)
    machine, model = report["machine"], json.loads(ADDING_MODEL.read_text(encoding="utf-8"))
    how = (
        f"One sequence, one thread, float32, random weights. ONNX Runtime {machine['versions']['onnxruntime']} runs "
        "its LSTM operator in the rows of lstm, and its GRU operator in all others. All are called from Python, once a "
        "sequence, in the same process and in turns. "
        "The multiply-adds are those of a step that skips nothing. "
        f"Measured on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['instruction_set']}: `{report['command']}`."
    )
    int8, step = cases["gru (2, 128), T=500, int8"]["contenders"], cases["gru (2, 128), T=1"]
    best = step["best_peer"]
    more = (
        f"`gru (2, 128)` with int8 weights takes {int8['edgernn float32']['ratio']:.2f} of its float32 time. "
        f"Called from Python for each step, it takes {step['contenders'][best]['ratio']:.2f} of the time of {best}, "
        "which is called so, too, and is the fastest of the other runtimes in that case. The trained model in "
        "`models/adding-sarnn` skips "
        f"{model['skip_percent']:.0f} %. It runs sequences of {model['settings']['steps']} steps "
        f"{model['timings']['edgernn native']['times_faster_than_gru']:.1f} times faster than ONNX Runtime's GRU, and "
        "without the native library at "
        f"{model['timings']['edgernn portable']['times_faster_than_gru']:.2f} of the GRU's speed, all in one call a "
        f"sequence from Python, on one core of {model['machine']['cpu']}: `edgernn bench "
        "models/adding-sarnn/model.onnx`."
    )
    return f"{shown}\n\n{filled(how)}\n\n{filled(more)}"


def groups() -> str:
    """Return tables of scores and times of models that skip neurons in groups, by `edgernn reproduce groups-NAME`."""
    reports = {name: read_report(name) for name in GROUP_TABLES}
    scores, times, timed, trivial = [], [], [], []
    for name, (title, column, factor) in GROUP_TABLES.items():
        rows = reports[name]["rows"]
        for skip in dict.fromkeys(row["variant"]["skip"] for row in rows):
            by_size = {row["name"].rpartition("-")[2]: row for row in rows if row["variant"]["skip"] == skip}
            values = {
                size: {
                    seed: factor * value
                    for seed, value in zip(row["seeds"], row["columns"][column]["values"], strict=True)
                }
                for size, row in by_size.items()
            }
            single = values["1"]
            cells = [compared(values[size], single) if size in values else "-" for size in GROUP_SIZES]
            scores.append([title, f"{100 * skip:.0f} %", f"{statistics.fmean(single.values()):.1f}", *cells])
            ratios = {size: f"{row['latency']['ratio']['mean']:.2f}" for size, row in by_size.items()}
            shown = [ratios.get(size, "-") for size in ("1", *GROUP_SIZES)]
            times.append([title.partition(",")[0], f"{100 * skip:.0f} %", *shown])
            timed += [row["latency"] for row in by_size.values()]
        baselines = (
            f"{entry['name']} {factor * entry['columns'][column]['mean']:.1f}"
            for entry in shown_baselines(reports[name])
        )
        trivial.append(f"{title}: {', '.join(baselines)}")
    head = ["skipped", "single neurons", *(f"groups of {size}" for size in GROUP_SIZES)]
    commands = [f"`{report['command']}`" for report in reports.values()]
    how = filled(
        "Means over seeds; after them the difference from single neurons ± half the width of its 95 % confidence "
        f"interval, paired by seed, bold if the interval excludes 0. By {', '.join(commands[:-1])} and {commands[-1]}. "
        f"Trivial baselines, which need no network: {'; '.join(trivial)}."
    )
    score_table = table(["score", *head], scores)
    time_table = table(["time, as a share of a dense gru's", *head], times)
    counts = " or ".join(sorted({str(count) for row in timed for count in row["sequences"]}))
    machines = "; ".join(sorted({machine for row in timed for machine in row["machines"]}))
    how_timed = filled(
        "Each figure is the time of a sequence divided by that of a dense gru of the same sizes with random weights, "
        f"timed in the same rounds: {counts} test sequences, streamed step by step from C, batch 1, one thread, on "
        f"{machines}."
    )
    return f"{score_table}\n\n{how}\n\n{time_table}\n\n{how_timed}"


def with_margin(difference: Difference, digits: int) -> str:
    """Format a difference with half the width of its confidence interval, such as "−0.2 ± 1.1"."""
    low, high = difference.interval or (0.0, 0.0)
    return f"{difference.value:+.{digits}f} ± {(high - low) / 2:.{digits}f}".replace("-", "−")


def compared(values: Mapping[int, float], base: Mapping[int, float]) -> str:
    """Format a mean and its difference from the mean of `base`, with the interval of a paired t-test over seeds."""
    mean = f"{statistics.fmean(values.values()):.1f}"
    seeds = sorted(values.keys() & base.keys())
    if len(seeds) < 2:
        return mean
    difference = mean_difference([values[seed] for seed in seeds], [base[seed] for seed in seeds], paired=True)
    low, high = difference.interval or (0.0, 0.0)
    text = with_margin(difference, 1)
    return f"{mean}, {f'**{text}**' if low * high > 0 else text}"


def packed() -> str:
    """Return a table of sizes of packed models and the native library, measured by `python -m benchmarks.apps`."""
    report = read_report("apps")
    rows = [
        [row["model"], *(f"{row[size][weights]:,}" for weights in ("float32", "int8") for size in ("packed", "memory"))]
        for row in report["models"]
    ]
    arm = report["bytes"]["arm"]
    how = (
        f"Memory for one sequence with {report['machine']['instruction_set']}. For 64-bit Arm, stripped, the library "
        f"takes {mb(arm['library'])} MB and the program, which needs no other file but the model, "
        f"{mb(arm['program'])} MB; both run every cell under every rule that it goes with."
    )
    head = ["model", "file, bytes", "memory, bytes", "file with int8", "memory with int8"]
    return f"{table(head, rows)}\n\n{filled(how)}"


def sizes() -> str:
    """Return a table of the sizes of ONNX files for each weight type, measured by `python -m benchmarks.apps`."""
    rows = []
    for row in read_report("apps")["models"]:
        whole = row["file"]["float32"]
        small = [row["file"][kind] for kind in ("bfloat16", "int8")]
        rows.append([row["model"], f"{whole:,}", *(t for size in small for t in (f"{size:,}", f"{size / whole:.3f}"))])
    return table(["model", "float32, bytes", "bfloat16, bytes", "of float32", "int8, bytes", "of float32"], rows)


def rounding() -> str:
    """Return a table of metrics with int8 weights, measured by `python -m benchmarks.rounding`."""
    report = read_report("rounding")
    rows = []
    commands: dict[str, str] = {}
    for row in report["rows"]:
        runs = row["runs"]
        metric, higher = runs[0]["metric"], runs[0]["higher_is_better"]
        # a score from 0 to 1 in percent, as its losses are given in points
        unit = 100 if higher else 1
        columns = [[unit * run[key] for run in runs] for key in ("float32", "rounded", "trained")]
        cells = (_mean_and_deviation(values, ".2f" if higher else ".3g") for values in columns)
        rows.append([row["task"], row["cell"], str(len(runs)), metric + ", %" * higher, *cells])
        settings = " ".join(f"{key}={as_word(value)}" for key, value in row["settings"].items())
        commands[row["task"]] = f"    edgernn train --task {row['task']} --cell {row['cell']} weights=int8 {settings}"
    how = (
        f"Test split, mean ± standard deviation over the seeds, on {report['machine']['cpu']}: "
        "`python -m benchmarks.rounding FOLDER --out FILE`. The trainings are these, also with weights=float32, and "
        "for adding with both cells:"
    )
    head = ["task", "cell", "seeds", "metric", "float32", "rounded to int8 after training", "trained for int8"]
    return "\n".join([table(head, rows, 4), "", filled(how), "", *commands.values()])


def _mean_and_deviation(values: list[float], form: str) -> str:
    """Format the mean and the standard deviation of values in the number format `form`; one value has no deviation."""
    mean = f"{statistics.mean(values):{form}}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2g}"


def apps() -> str:
    """Return a table of the sizes and times of the example apps, measured by `python -m benchmarks.apps`."""
    report = read_report("apps")
    time, size, machine = report["microseconds"], report["bytes"], report["machine"]
    cpp, c, node, browser = size["cpp"], size["c"], size["node"], size["browser"]
    versions = report["versions"]
    wasm = read_report("wasm")
    module = wasm["bytes"]["module"]
    step = {name: times["adding-sarnn"] for name, times in wasm["microseconds"].items()}
    rows = f"""\
| app | command | what it needs, MB | a step, µs |
|---|---|---|---:|
| C++ | `make example-cpp` | {mb(sum(cpp.values()))}: ONNX Runtime {mb(cpp["runtime"])}, our library \
{mb(cpp["library"])}, the model {mb(cpp["model"])}, the program {mb(cpp["program"])} | {time["cpp"]:.1f}; \
{time["cpp_portable"]:.0f} without our library |
| C | `make example-c` | {mb(sum(c.values()))}: our library {mb(c["library"])}, the model {mb(c["model"])}, \
the program {mb(c["program"])}, memory {mb(c["memory"])} | {time["c"]:.2f} |
| Node | `make example-node` | {mb(module + c["model"])}: the module {mb(module)}, the model {mb(c["model"])} | \
{step["node"]:.2f} |
| browser | `make example-browser` | {mb(wasm["bytes"]["page_gzipped"])} to load, gzipped, with an int8 model | \
{step["chromium"]:.1f} |
| Node, ONNX Runtime | `node examples/node/stream.mjs` | {mb(node["used"])} of the {mb(node["installed"])} that npm \
installs for all platforms | {time["node"]:.0f} |
| browser, ONNX Runtime | `node examples/browser/serve.mjs` | {mb(browser["loaded"])} to load, \
{mb(browser["gzipped"])} gzipped | {time["browser"]:.0f} |"""
    how = (
        f"Medians of {report['steps']:,} steps, calls included, timed by the apps themselves on {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['instruction_set']}; onnxruntime {machine['versions']['onnxruntime']}, "
        f"onnxruntime-node and -web {versions['onnxruntime-node']}, Node {versions['node'].lstrip('v')}, Chromium "
        f"{versions['chromium'].split('.')[0]}. Made by `python -m benchmarks.apps --out docs/results/apps.json`. "
        "Node and browser without ONNX Runtime: [Deploy in Node or a browser](deploy-browser.md)."
    )
    return f"{rows}\n\n{filled(how)}"


def wasm_times() -> str:
    """Return a table of the times of edgernn.wasm, measured by `python -m benchmarks.wasm`."""
    report = read_report("wasm")
    times, size, machine, versions = (report[name] for name in ("microseconds", "bytes", "machine", "versions"))
    columns = ("node", "node_relaxed", "chromium", "sse2", "native")
    rows = [[model, *(f"{times[column][model]:.2f}" for column in columns)] for model in times["node"]]
    head = ["a step, µs", "Node", "Node, relaxed SIMD", "Chromium, relaxed SIMD", "native, SSE2", "native, best"]
    how = (
        f"Medians of {report['rounds']} alternating rounds on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['instruction_set']}; Node {versions['node']}, Chromium {versions['chromium'].split('.')[0]}, clang "
        f"{versions['clang']}. Each step is called from JavaScript, in the native library from C. The module has "
        f"{size['module'] / 1000:.0f} kB, {size['module_gzipped'] / 1000:.0f} kB gzipped; the page with the int8 model "
        f"loads {size['page_gzipped'] / 1000:.0f} kB gzipped. The largest difference from "
        f"`Session` is {report['worst_error']:.1e}. Made by `python -m benchmarks.wasm --out docs/results/wasm.json`."
    )
    return f"{table(head, rows)}\n\n{filled(how)}"


def wheels() -> str:
    """Return tables of the sizes and times of wheels and the kit, measured by `python -m benchmarks.wheels`."""
    report = read_report("wheels")
    machine, versions = report["machine"], report["versions"]
    sizes = [
        [f"`{target}`", *(f"{size[name]:,}" for name in ("wheel", "library", "shared", "static"))]
        for target, size in report["bytes"].items()
    ]
    rows = []
    for model, times in report["microseconds"].items():
        linux, windows = (times[target] for target in ("x86_64-linux-gnu", "x86_64-w64-mingw32"))
        rows.append([model, f"{linux:.2f}", f"{windows:.2f}", f"{windows / linux:.2f}"])
    tables = [
        table(["bytes", "wheel", "its library", "kit, shared library", "kit, static library"], sizes),
        table(["a step, µs", "Linux", "Windows, in wine", "ratio"], rows),
    ]
    how = (
        f"Best of {report['rounds']} alternating rounds on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['instruction_set']}; GCC {versions['gcc']}, MinGW GCC {versions['mingw']}, wine {versions['wine']}. "
        "A program in C steps a packed model with the library of a wheel. Arm is not timed. Made by "
        "`python -m benchmarks.wheels --out docs/results/wheels.json`."
    )
    return "\n\n".join([*tables, filled(how)])


def microcontrollers() -> str:
    """Return a table of instructions and memory on microcontrollers, measured by `python -m benchmarks.firmware`."""
    report = read_report("microcontrollers")
    titles, models = report["titles"], report["models"]
    first = next(iter(titles))
    rows = []
    for name, by_target in models.items():
        figures = [by_target[target]["instructions"] for target in titles]
        figures += [by_target[first][key] for key in ("weights", "code", "state")]
        rows.append([name, *(f"{figure:,}" for figure in figures)])
    shown = table(["instructions a step", *titles.values(), "weights, bytes", "code, bytes", "memory, bytes"], rows)
    every = [figures for by_target in models.values() for figures in by_target.values()]
    trained, dense = (by_target[first] for by_target in list(models.values())[:2])
    skipped = 100 * (1 - trained["updates"] / dense["updates"])
    moved = 100 * models["gru (2, 128), delta, float32"][first]["updates"] / dense["updates"]
    ratio = dense["instructions"] / trained["instructions"]
    how = (
        f"Means of {report['steps']} steps. Weights and code are in flash, and memory is the state of a stream; these "
        f"three are those of the {titles[first]}. A step takes at most {max(row['stack'] for row in every)} bytes of "
        f"stack. The trained adding-sarnn skips {skipped:.0f} % of its updates, and takes {ratio:.1f} times fewer "
        "instructions than its dense twin in the next "
        f"row. The two rows with delta have random weights, and {moved:.0f} % of the values of h move by more than "
        "their threshold at a step. The largest difference from `Session` is "
        f"{max(row['worst_error'] for row in every):.1e}. GCC "
        f"{report['versions']['arm-none-eabi-gcc'].split()[-2]} and QEMU "
        f"{report['versions']['qemu-system-arm'].split()[3]}: `python -m benchmarks.firmware`."
    )
    return f"{shown}\n\n{filled(how)}"


def trained() -> str:
    """Return the table of the trained models in models/ that `edgernn models` prints."""
    models = entries(ROOT / "models")
    heading, *rows = model_rows(models)
    return "\n".join([table(heading, rows, 3), "", *(filled(f"- {note}") for note in notes(models))])


def mb(count: int) -> str:
    """Format a number of bytes in MB."""
    return f"{count / 1e6:.{1 if count > 1e6 else 2}f}"


def filled(text: str) -> str:
    """Wrap a paragraph at 120 characters, the width of the pages."""
    return textwrap.fill(text, 120, break_on_hyphens=False)
