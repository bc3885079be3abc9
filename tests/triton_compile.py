# SPDX-License-Identifier: Apache-2.0
"""Compiles GPU kernels without a GPU: python -m tests.triton_compile [--hidden H] [--option KEY=VALUE] CELL+RULE...

Layers run forward and backward as on a GPU, but kernels are compiled instead of launched. Prints a line of JSON for
each kernel: registers per thread, stack, spills and shared memory in bytes. Run it without TRITON_INTERPRET.
"""

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from edgernn.kernels import gpu, send
from tests.fused import inputs, make, whole_loss

_TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class _Driver:
    """The device properties that triton reads before a launch."""

    def __init__(self, arch: int) -> None:
        self.get_current_target = lambda: GPUTarget("cuda", arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class _Compiled:
    """Replaces a kernel: a launch compiles it and records the required resources."""

    def __init__(self, kernel: Any, form: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self._kernel, self._form, self._tell = kernel, form, tell

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            begun = time.perf_counter()
            kernel = self._kernel.warmup(*arguments, grid=grid, **options)
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(kernel.asm["cubin"])
                file.flush()
                words = [_TOOL, "-res-usage", file.name]
                usage = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            resources = {key.lower(): int(value) for key, value in re.findall(r"(REG|STACK):(\d+)", usage)}
            self._tell(
                {
                    "direction": self._kernel.fn.__name__,
                    "form": self._form,
                    **resources,
                    "shared": kernel.metadata.shared,
                    "seconds": round(time.perf_counter() - begun, 2),
                }
            )

        return launch


@click.command()
@click.argument("layers", nargs=-1)
@click.option("--hidden", default=128)
@click.option("--inputs", "inputs_", default=2)
@click.option("--steps", default=3)
@click.option("--batch", default=2)
@click.option("--precision", type=click.Choice(["ieee", "tf32", "bf16"]), default="tf32")
@click.option("options", "--option", multiple=True, help="KEY=VALUE, an option of the rule; VALUE is JSON.")
@click.option("--arch", default=90)
def main(
    layers: tuple[str, ...],
    hidden: int,
    inputs_: int,
    steps: int,
    batch: int,
    precision: str,
    options: tuple[str, ...],
    arch: int,
) -> None:
    driver.set_active(_Driver(arch))
    named, real, real_send = "", gpu.kernels, send.kernels()

    def tell(report: dict[str, Any]) -> None:
        print(json.dumps({"layer": named, **report}), flush=True)

    def kernels(key: str, resident: bool, held: int) -> SimpleNamespace:
        module, form = real(key, resident, held), f"resident, {held} held" if resident else "streamed"
        return SimpleNamespace(**{way: _Compiled(getattr(module, way), form, tell) for way in ("forward", "backward")})

    gpu.kernels = kernels
    send.kernels = lambda: SimpleNamespace(send=_Compiled(real_send.send, "values of x", tell))
    gpu.precision = lambda: precision
    gpu._runs = lambda tensor: tensor.dtype == torch.float32
    for named in layers:
        cell, rule = named.split("+")
        pairs = (option.split("=") for option in options)
        layer = make(cell, rule, inputs_, hidden, **{key: json.loads(value) for key, value in pairs})
        layer.unroller = gpu.GpuUnroller(layer)
        x, state = inputs(layer, steps, batch)
        whole_loss(*layer(x.requires_grad_(), tuple(s.requires_grad_() for s in state))).backward()


if __name__ == "__main__":
    main()
