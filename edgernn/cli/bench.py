# SPDX-License-Identifier: Apache-2.0
"""`edgernn bench`."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import verb
from edgernn.errors import UsageError


def _text(result: dict[str, Any]) -> str:
    from edgernn.runtime.bench import markdown
    from edgernn.runtime.bench.page import page

    if result.get("device") == "cuda":
        from edgernn.runtime.bench.gpu_cases import gpu_page as page
    return (page if "cases" in result else markdown)(result) + f"\nsaved: {', '.join(result['files'])}"


@verb(example="edgernn bench --cell sarnn --hidden 128 --input 2 --steps 500 --skip 0.9", text=_text)
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences in a call.")
@click.option("--steps", type=click.IntRange(min=1), help="T of a call.  [as the example input, or 500]")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="Visits to each contender.")
@click.option(
    "--warmup", type=click.IntRange(min=0), default=3, show_default=True, help="Calls before the first round."
)
@click.option("--example", type=click.Path(path_type=Path), help="npz with x (N, T, I).  [example.npz beside MODEL]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for bench.json and bench.md.  [that of MODEL]")
@click.option("--cell", help="Without MODEL: a cell with random weights ...")
@click.option("--rule", help="... under this rule ...")
@click.option("--input", "input_size", type=click.IntRange(min=1), default=2, show_default=True, help="... of this I,")
@click.option("--hidden", "hidden_size", type=click.IntRange(min=1), default=128, show_default=True, help="this H,")
@click.option("--layers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--rank", type=click.IntRange(min=1), help="... with recurrent weights of this rank ...")
@click.option(
    "--density", type=click.FloatRange(0, 1, min_open=True), help="... or with this share of their blocks ..."
)
@click.option("--skip", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="and this share skipped.")
@click.option("--peers", is_flag=True, help="Beside all runtimes installed; with --cell gru or lstm.")
@click.option("--suite", is_flag=True, help="All cases of docs/performance.md instead.")
@click.option("--quick", is_flag=True, help="Of --suite: a short version that says that it is one.")
@click.option("--only", metavar="TEXT", help="Of --suite: the cases with this in their names.")
def command(
    model: Path | None,
    device: str,
    example: Path | None,
    out: Path | None,
    cell: str | None,
    rule: str | None,
    input_size: int,
    hidden_size: int,
    layers: int,
    rank: int | None,
    density: float | None,
    skip: float,
    peers: bool,
    suite: bool,
    quick: bool,
    only: str | None,
    **settings: Any,
) -> dict[str, Any]:
    """Verify MODEL, then time it beside ONNX Runtime's GRU and LSTM of the same size and its own portable function.

    All are timed in one run, interleaved; figures are medians, ratios are taken within a round. Instead of MODEL,
    --cell and a size measure a cell with random weights. --peers takes every runtime that the extra `bench` installs,
    in a process of its own, and the roofline of this machine; T=1 with --steps 1 is a call a step.
    --device cuda times the model on a GPU, beside cuDNN and our own kernel on the CPU; --suite has its cases, too.
    """
    import tempfile

    from edgernn.runtime.bench import Settings, bench, read_example, save

    if (quick or only) and not suite:
        raise UsageError("--quick and --only are of --suite")
    if suite:
        if model is not None or cell is not None or peers:
            raise UsageError("--suite goes with none of MODEL, --cell and --peers")
        return (_suite_on_gpu if device == "cuda" else _suite)(out, quick, only)
    if peers:
        plain = rule is None and layers == 1 and rank is None and density is None and not skip and example is None
        if model is not None or cell not in ("gru", "lstm") or not plain or device != "cpu":
            raise UsageError("--peers: expected --cell gru or lstm, one layer, nothing skipped, no MODEL and the CPU")
        return _peers(out, cell, input_size, hidden_size, settings)
    if (model is None) == (cell is None):
        raise UsageError("give either a MODEL file or --cell NAME")
    if device == "cuda":
        from edgernn.runtime.bench.gpu import require

        # before a model is made
        require()
    x = None if example is None else read_example(example)
    target = out or (model.parent if model is not None else Path("bench"))
    with tempfile.TemporaryDirectory() as folder:
        if cell is not None:
            from edgernn.export import to_onnx
            from edgernn.synthetic import random_model

            model = Path(folder) / f"{cell}.onnx"
            made = random_model(
                cell, input_size, hidden_size, rule=rule, skip=skip, layers=layers, rank=rank, density=density
            )
            to_onnx(made, model)
        assert model is not None
        if device == "cuda":
            from edgernn.runtime.bench.gpu_cases import bench_on_gpu

            return bench_on_gpu(model, target, Settings(**settings), x=x, progress=_progress())
        report = bench(model, Settings(**settings), x=x, progress=_progress())
    return {**report, "files": [str(path) for path in save(report, target)]}


def _suite(out: Path | None, quick: bool, only: str | None) -> dict[str, Any]:
    from edgernn.runtime.bench.suite import FULL, QUICK, chosen, run_suite

    path = (out or Path("bench")) / "performance.json"
    settings = QUICK if quick else FULL
    report = run_suite(path, chosen(only), settings, command=_suite_words(quick, only), progress=_lines)
    return {**report, "files": [str(path)]}


def _suite_on_gpu(out: Path | None, quick: bool, only: str | None) -> dict[str, Any]:
    from edgernn.runtime.bench.gpu_cases import cases, run_cases
    from edgernn.runtime.bench.suite import FULL, QUICK

    path, settings = (out or Path("bench")) / "cuda.json", QUICK if quick else FULL
    report = run_cases(path, cases(only), settings, command=_suite_words(quick, only, "cuda"), progress=_lines)
    return {**report, "files": [str(path)]}


def _suite_words(quick: bool, only: str | None, device: str = "cpu") -> str:
    words = ["edgernn bench --suite", *(["--device cuda"] * (device == "cuda")), *(["--quick"] * quick)]
    return " ".join([*words, *([] if only is None else [f"--only {only!r}"])])


def _peers(out: Path | None, cell: str, input_size: int, hidden_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import replace

    from edgernn.runtime.bench.case import Case
    from edgernn.runtime.bench.suite import FULL, run_suite

    steps, batch, threads = settings["steps"] or 500, settings["batch"], settings["threads"]
    case = Case("Peers", cell, input_size, hidden_size, steps, batch, threads)
    path = (out or Path("bench")) / "peers.json"
    plan = replace(FULL, rounds=settings["rounds"], warmup=settings["warmup"])
    return {**run_suite(path, [case], plan, progress=_lines), "files": [str(path)]}


def _lines(done: int, total: int, line: str) -> None:
    """A line a case on standard error."""
    import sys

    print(f"[{done}/{total}] {line}", file=sys.stderr, flush=True)


def _progress() -> Any:
    """A line on a terminal's standard error that counts the rounds."""
    import sys

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\rround {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show
