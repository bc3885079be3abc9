# SPDX-License-Identifier: Apache-2.0
"""Tables and picture of the measurements on a GPU, for the page docs/background/gpu-measured.md.

`python -m benchmarks.gpu_suite` writes such reports to docs/results/gpu/*.jsonl. The two reports of the H200 come
from an earlier form of the suite: its stages have numbers, and it timed forward alone as a contender of its own.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.gpu_suite import Report, latest
from benchmarks.tables import table
from benchmarks.tables.measured import RESULTS, filled

# the step of all predictions: T, B, I, H
_STEP = [500, 128, 2, 128]
_SIZES = ([500, 1, 128], [100, 256, 128], [500, 16, 128], [500, 1, 256])
# kernels of the CUDA library that the page shows
_OPS = ("torch.nn.GRU", "torch.nn.LSTM", "gru", "lstm", "pru", "gru+skip", "gru+selective", "gru+topk", "gru+delta")
_PROTOTYPE = "registers, float32 (prototype)"

Entry = dict[str, Any]


def _entries() -> list[Entry]:
    return [entry for path in sorted((RESULTS / "gpu").glob("*.jsonl")) for entry in Report(path).entries]


def _items(do: str) -> list[Entry]:
    return [entry for entry in _entries() if (entry.get("item") or {}).get("do") == do]


def _first(entries: Iterable[Entry], **item: Any) -> Entry:
    """Return the first entry whose item has these values."""
    return next(entry for entry in entries if item.items() <= entry["item"].items() and "times" in entry)


def _last(entries: Iterable[Entry], **item: Any) -> Entry:
    return _first(reversed(list(entries)), **item)


def _ms(times: Entry, name: str) -> str:
    return f"{times[name]['ms']:.3g}" if "ms" in times.get(name, {}) else ""


def gpu() -> dict[str, str]:
    """Return the generated parts of the page, as a dict from the names of their markers to their texts."""
    return {
        "machine": _machine(),
        "checks": _checks(),
        "predictions": _predictions(),
        "layers": _layers(),
        "batches": _batches(),
        "widths": _widths(),
        "inference": _inference(),
        "trainings": _trainings(),
    }


def _machine() -> str:
    facts: Entry = {}
    for entry in _entries():
        if "item" not in entry:
            facts = {**entry, **facts}
    versions = ", ".join(f"{name} {facts['versions'][name]}" for name in ("torch", "triton", "onnxruntime-gpu"))
    driver = facts["gpu"].splitlines()[-1].split(", ")[2]
    cudnn = facts["cudnn"]
    return filled(
        f"One {facts['device']}, driver {driver}, CUDA {facts['torch_cuda']}, cuDNN {cudnn // 10000}."
        f"{cudnn % 10000 // 100}, {versions}, {facts['cores']} processor cores. Every figure of this page is of this "
        "card. A copy in its memory reads and writes "
        f"{facts['copy_tb_per_s']} TB/s, a launch from torch takes {facts['launch_us']} µs."
    )


def _checks() -> str:
    rows = []
    for do, how, title, allowed in (
        ("op", None, "CUDA kernels of exported layers, y and states", "1e-4"),
        ("grad", "ieee", "training kernels, gradients, float32 products", "1e-5"),
        ("grad", "tf32", "training kernels, gradients, tf32 products", "1e-3"),
    ):
        checks = [entry for entry in latest(_items(do)) if entry["item"].get("how") == how]
        passed = [entry for entry in checks if entry.get("passed")]
        worst = max(entry["error"] for entry in passed)
        rows.append([title, f"{len(passed)} of {len(checks)}", f"{worst:.1e}", allowed])
    return table(["", "passed", "largest error", "allowed"], rows)


def _predictions() -> str:
    steps, protos, infers = _items("step"), _items("proto"), _items("infer")
    gradients = [entry for entry in _items("grad") if entry["item"].get("how") == "tf32"]
    rnn = [e["error"] for e in gradients if (e["item"]["cell"], e["item"]["rule"]) == ("rnn", "always")]
    step = _first(steps, name="gru", size=_STEP)["times"]
    rounded = _last(steps, name="gru", size=_STEP)["times"]["gru, fused"]["ms"]
    proto = _first(protos, size=[500, 128, 128])["times"]
    registers = proto["proto forward, 1 rows"]["ms"] + proto["proto backward, 1 rows"]["ms"]
    alone, many = (_first(infers, size=size)["times"] for size in _SIZES[:2])
    fused, cudnn = step["gru, fused"]["ms"], step["torch.nn.GRU"]["ms"]
    rows = [
        ["gradient error of rnn, tf32 operands cut off", "1.2e-3", f"{rnn[0]:.2e}", "right"],
        ["gradient error of rnn, tf32 operands rounded", "below 7.2e-4", f"{rnn[-1]:.2e}", "right"],
        ["training step of gru, fused, tf32", "3.4 to 4.0 ms", f"{fused:.2f} ms; rounded {rounded:.2f} ms", "too low"],
        ["training step of gru, cuDNN", "1.8 to 2.5 ms", f"{cudnn:.2f} ms", "too low"],
        ["recurrence of gru, weights in registers", "1.0 ms", f"{registers:.2f} ms", "right within a quarter"],
        ["inference of gru, T=500, B=1", "0.33 ms", f"{alone['gru']['ms']:.2f} ms", "missed by a factor of 3"],
        ["inference of gru, T=100, B=256", "0.10 ms", f"{many['gru']['ms']:.2f} ms", "missed by a factor of 5"],
    ]
    return table(["", "predicted", "measured", "the prediction was"], rows)


def _layers() -> str:
    rows, steps = [], [entry for entry in _items("step") if entry["item"]["size"] == _STEP and "times" in entry]
    for name in dict.fromkeys(entry["item"]["name"] for entry in steps):
        times = _first(steps, name=name)["times"]
        peer = next(iter(times))
        ratios = [
            f"{times[f'{name}, {how}']['ms'] / times[peer]['ms']:.2f}" if f"{name}, {how}" in times else ""
            for how in ("fused", "fused bf16")
        ]
        shown = [_ms(times, key) for key in (peer, f"{name}, fused", f"{name}, fused bf16", f"{name}, loop")]
        rows.append([f"`{name}` beside {peer}", *shown, *ratios])
    return table(["", "cuDNN ms", "fused ms", "fused bf16 ms", "loop ms", "fused / cuDNN", "bf16 / cuDNN"], rows)


def _prototype(batch: int) -> tuple[float, str] | None:
    """Return the fastest time of the prototype at a batch size, and what it consists of, or None if it was not run."""
    for entry in _items("proto"):
        if entry["size"][1] == batch:
            times = entry["times"]
            pairs = [
                [times[f"proto {way}, {rows} rows"]["ms"] for way in ("forward", "backward")] for rows in (1, 2, 4)
            ]
            forward, backward = min(pairs, key=sum)
            return forward + backward, f"{forward:.2f} + {backward:.2f}"
    return None


def _by_batch() -> dict[int, Entry]:
    steps = [entry for entry in _items("step") if entry["item"]["name"] == "gru" and "times" in entry]
    alike = [entry for entry in steps if [*entry["size"][:1], *entry["size"][2:]] == [500, 2, 128]]
    # of equal sizes, the first call, from which the other figures of the page come
    first = {entry["size"][1]: entry["times"] for entry in reversed(alike)}
    return dict(sorted(first.items()))


def _batches() -> str:
    rows = []
    for batch, times in _by_batch().items():
        cudnn, fused = times["torch.nn.GRU"]["ms"], times["gru, fused"]["ms"]
        prototype = _prototype(batch)
        shown = [_ms(times, name) for name in ("torch.nn.GRU", "gru, fused", "gru, fused bf16")]
        rows.append([str(batch), *shown, f"{fused / cudnn:.2f}", prototype[1] if prototype else ""])
    return table(["B", "cuDNN ms", "fused ms", "fused bf16 ms", "fused / cuDNN", f"{_PROTOTYPE} ms"], rows)


def _widths() -> str:
    rows = []
    for entry in _items("step"):
        T, B, I, H = entry["item"]["size"]
        if "times" not in entry or entry["item"]["name"] != "gru" or H == 128:
            continue
        names = ("torch.nn.GRU", "gru, fused", "gru, fused bf16", "gru, graphs")
        rows.append([f"T={T} B={B} I={I} H={H}", *(_ms(entry["times"], name) for name in names)])
    return table(["", "cuDNN ms", "fused ms", "fused bf16 ms", "CUDA graphs of the loop ms"], rows)


def _inference() -> str:
    infers = _items("infer")
    columns = [_first(infers, size=size)["times"] for size in _SIZES]
    rows = [[name, *(_ms(times, name) for times in columns)] for name in _OPS]
    return table(["ms", *(f"T={T} B={B} H={H}" for T, B, H in _SIZES)], rows)


def _trainings() -> str:
    rows = []
    for entry in _entries():
        if "train" not in entry:
            continue
        steps = f"{entry['last']['step']:,}" if "last" in entry else "0"
        speed = f"{entry['ms_per_step']:.1f}" if "ms_per_step" in entry else "no evaluation in this time"
        rows.append([entry["train"], f"{entry['wall']:.0f}", steps, speed])
    return table(["", "seconds", "steps up to the last evaluation", "ms per step"], rows)


def draw_training_steps(path: Path) -> None:
    """Draw the time of a training step of gru over the batch size into an image file."""
    by_batch = _by_batch()
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name, label in (("torch.nn.GRU", "cuDNN"), ("gru, fused", "fused, tf32"), ("gru, fused bf16", "fused, bf16")):
        axes.plot(list(by_batch), [times[name]["ms"] for times in by_batch.values()], "o-", label=label)
    prototypes = {batch: found[0] for batch in by_batch if (found := _prototype(batch))}
    axes.plot(list(prototypes), list(prototypes.values()), "s", label=f"{_PROTOTYPE}, recurrence alone")
    axes.set(xscale="log", yscale="log", xlabel="batch size B", ylabel="ms per training step")
    axes.set_xticks(list(by_batch), [str(batch) for batch in by_batch], minor=False)
    axes.set_yticks([1, 2, 5, 10, 20, 30], ["1", "2", "5", "10", "20", "30"], minor=False)
    axes.minorticks_off()
    axes.set_title("gru, T=500, H=128, NVIDIA H200", fontsize="medium")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)
