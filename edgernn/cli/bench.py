# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn bench`: time a model and compare it with other runtimes."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgernn.cli.fixed_inputs import graph_options, shape_option, state_option, value_option, weights_option
from edgernn.cli.frame import json_command
from edgernn.cli.options import COUNT, PATH, inference_device
from edgernn.errors import UsageError
from edgernn.progress import Progress
from edgernn.weight_types import WeightType


def _text(result: dict[str, Any]) -> str:
    if "target" in result:
        from edgernn.bench.microcontroller import target_text

        return target_text(result)
    if "cases" in result:
        from edgernn.bench.gpu_cases import gpu_page as page
    elif "operations" in result:
        from edgernn.bench.step_graphs import graph_page as page
    else:
        from edgernn.bench import markdown as page
    return page(result) + f"\nsaved: {', '.join(result['files'])}"


# options that are read only with --cell
_OF_CELL = ("rule", "input_size", "skip")
# options that are not read with --target
_OF_TIMES = ("batch", "threads", "rounds", "warmup", "rate", "by_node", "from_c")
# options that are read only for a file of another tool
_OF_FOREIGN = ("by_node", "from_c", "weights", "values", "shapes", "states")


def _refuse(where: str, names: tuple[str, ...]) -> None:
    """Raise UsageError if the user gave one of the options `names`, which have no effect `where`."""
    context = click.get_current_context()
    useless = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    if useless:
        raise UsageError(f"{', '.join(useless)}: not allowed {where}, where it has no effect; leave it out")


def _bench_foreign(model: Path, folder: Path, settings: dict[str, Any], **options: Any) -> dict[str, Any]:
    from edgernn.bench.step_graphs import bench_graph, graph_page
    from edgernn.files import write_json, write_text
    from edgernn.runtime.timing import Rounds

    rounds = Rounds(settings["rounds"], settings["warmup"])
    report = bench_graph(model, rounds, threads=settings["threads"], progress=Progress(), **options)
    files = [folder / "bench.json", folder / "bench.md"]
    write_json(files[0], report)
    write_text(files[1], graph_page(report) + "\n")
    return {**report, "files": [str(path) for path in files]}


def _sections(cell: str | None = None, rule: str | None = None) -> Any:
    from edgernn.cli.settings_help import model_sections

    return model_sections(cell, rule)


@json_command(
    example="edgernn bench --cell sarnn --input 2 hidden_size=128 --steps 500 --skip 0.9",
    text=_text,
    sections=_sections,
)
@click.argument("words", nargs=-1, metavar="[MODEL | KEY=VALUE...]")
@inference_device
@click.option("--batch", type=COUNT, default=1, show_default=True, help="Number of sequences in a batch (B).")
@click.option(
    "--steps",
    type=COUNT,
    help="Number of time steps in a timed call (T).  [default: the number in the example input, else 500; with "
    "--target, the number in --example, else 50]",
)
@click.option(
    "--threads", type=COUNT, default=1, show_default=True, help="Number of threads that each runtime may use."
)
@click.option(
    "--rounds",
    type=COUNT,
    default=15,
    show_default=True,
    help="Number of timing rounds; each round times every runtime, in random order.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Number of untimed calls before the first round.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=1),
    help="Calls of a step per second, as a sensor gives them, for the time with cold caches.  [default: the rate of "
    "the steps of an audio model, else 50]",
)
@click.option(
    "--example",
    type=PATH,
    help="Input to run the model on: an npz file with the array x (N, T, I), N sequences of T steps.  [default: "
    "example.npz beside MODEL; if there is none, random numbers]",
)
@click.option("--out", type=PATH, help="Folder for the report.  [default: the folder of the file MODEL, else bench]")
@click.option(
    "--cell",
    metavar="NAME|FILE.py:CLASS",
    is_eager=True,
    help="Time a model of this cell with random weights, instead of a MODEL file.",
)
@click.option(
    "--rule",
    metavar="NAME",
    is_eager=True,
    help="Update rule of the model of --cell, such as selective.  [default: the rule that the cell's name "
    "implies, as sarnn implies selective; if none, the rule 'always']",
)
@click.option(
    "--input", "input_size", type=COUNT, default=2, show_default=True, help="Input size I of the model of --cell."
)
@click.option(
    "--skip",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of neuron updates that the model of --cell skips, from 0 to 1.",
)
@click.option(
    "--target",
    type=click.Choice(["cortex-m4", "cortex-m7", "cortex-m55", "riscv32"]),
    help="Microcontroller to emulate with qemu, to count the instructions, flash and RAM of the model; nothing is "
    "timed.",
)
@click.option(
    "--by-node", is_flag=True, help="Show the share of each operation in a step of a streaming file of another tool."
)
@click.option(
    "--from-c",
    is_flag=True,
    help="Also time the steps of a streaming file of another tool in loops in C, which the program cc compiles.",
)
@weights_option
@value_option
@shape_option
@state_option
def command(
    words: tuple[str, ...],
    device: str,
    example: Path | None,
    out: Path | None,
    cell: str | None,
    rule: str | None,
    input_size: int,
    skip: float,
    target: str | None,
    by_node: bool,
    from_c: bool,
    weights: WeightType | None,
    values: tuple[str, ...],
    shapes: tuple[str, ...],
    states: tuple[str, ...],
    **settings: Any,
) -> dict[str, Any]:
    """Check the outputs of MODEL, then time it beside ONNX Runtime's GRU and LSTM of the same size.

    MODEL is a file, or a name that `edgernn models` lists. It is timed twice: in the native library and as standard
    ONNX operators. The check compares the outputs of these two implementations. A streaming file of another tool is
    packed, and timed beside ONNX Runtime; --value, --shape, --state and --weights are those of `edgernn pack`.

    Each round times every implementation, in random order. The report shows medians over the rounds; each ratio
    compares times of the same round. The time of a step is that of a call with --steps steps, divided by them. The
    report also has the time of one call of one step: with warm caches, and with cold ones at the --rate of a sensor.

    With --cell, a model with random weights takes the place of MODEL. KEY=VALUE words set its size and options; the
    list below shows them with their defaults.

    With --device cuda, the model runs on the GPU and is compared with cuDNN and with the native library on the CPU.

    With --target, nothing is timed: one sequence runs on an emulated microcontroller, which counts instructions. The
    C files of `edgernn pack --target c` are compiled for it.
    """
    import tempfile

    from edgernn.bench import Settings, bench, read_example, save
    from edgernn.files import default_output
    from edgernn.runtime.info import read_model
    from edgernn.runtime.open_model import is_foreign
    from edgernn.runtime.zoo import find_model

    if target is not None and (device != "cpu" or out is not None):
        raise UsageError("--target: expected neither --device cuda nor --out; leave them out")
    if cell is None and len(words) != 1:
        raise UsageError(
            f"MODEL: expected one file or name, or --cell NAME, got {len(words)} words; edgernn models lists names"
        )
    if cell is None:
        _refuse("without --cell", _OF_CELL)
    if target is not None:
        _refuse("with --target", _OF_TIMES)
    if device == "cuda":
        _refuse("with --device cuda", ("rate", *_OF_FOREIGN))
    model = find_model(Path(words[0])) if cell is None else None
    options = graph_options(values, shapes, states, weights)
    if cell is not None:
        from edgernn.cell_files import label
        from edgernn.config import ModelConfig
        from edgernn.config_checks import check_effects
        from edgernn.settings import split_words

        # FILE.py:CLASS is not a file name
        name = f"{label(cell)}.onnx"
        config = ModelConfig.from_words(split_words(words), cell, rule, input_size)
        check_effects(config)
    if device == "cuda":
        if model is not None and is_foreign(read_model(model), model):
            raise UsageError(f"{model}: expected a file that edgernn exported with --device cuda; leave the option out")
        from edgernn.bench.gpu_times import require

        # fail before the model is built
        require()
    x = None if example is None else read_example(example)
    # a model of the zoo keeps the report of its card
    named = model is not None and model != Path(words[0])
    report_folder = out or (model.parent if model is not None and not named else Path("bench"))
    if out is None:
        for file in ("bench.json", "bench.md", "cuda.json", "cuda.md"):
            default_output(report_folder / file)
    with tempfile.TemporaryDirectory() as folder:
        if model is None:
            from edgernn.export import to_onnx
            from edgernn.random_models import random_model

            model = Path(folder) / name
            to_onnx(random_model(config, skip=skip), model)
        if target is not None:
            from edgernn.bench.microcontroller import bench_on_target

            return bench_on_target(model, target, x=x, steps=settings["steps"], options=options)
        if device == "cuda":
            from edgernn.bench.gpu_cases import bench_on_gpu

            return bench_on_gpu(model, report_folder, Settings(**settings), x=x, progress=Progress())
        if is_foreign(read_model(model), model):
            _refuse("for a file of another tool", ("batch", "steps", "rate", "example"))
            return _bench_foreign(model, report_folder, settings, options=options, by_node=by_node, from_c=from_c)
        _refuse("for a model that edgernn exported", _OF_FOREIGN)
        report = bench(model, Settings(**settings), x=x, progress=Progress())
    return {**report, "files": [str(path) for path in save(report, report_folder)]}
