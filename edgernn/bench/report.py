# SPDX-License-Identifier: Apache-2.0
"""Reports of `edgernn bench MODEL` as Markdown and as files."""

from pathlib import Path
from typing import Any

from edgernn.bench.measure import FASTER_THAN_GRU, FASTER_THAN_PORTABLE
from edgernn.files import write_json, write_text
from edgernn.runtime.firmware.equations import kind_of_rule
from edgernn.runtime.info import block, is_network, layer_sizes, update_words
from edgernn.runtime.timing import OVERWRITTEN


def markdown(report: dict[str, Any]) -> str:
    """Format a report, the dict that `edgernn.bench.measure.bench` returns, as Markdown."""
    info, settings, costs, machine = report["info"], report["settings"], report["costs"], report["machine"]
    rule = None if is_network(info) else kind_of_rule(info["model"]["layer"]["rule"]["name"])
    words, faster = update_words(rule), FASTER_THAN_PORTABLE if is_network(info) else FASTER_THAN_GRU
    lines = [
        f"### {_title(info)}",
        "",
        f"T={settings['steps']}, batch {settings['batch']}, {settings['threads']} thread(s), {settings['rounds']} "
        f"interleaved rounds; input: {report['input']}. {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['instruction_set'] or 'no native library'}, onnxruntime "
        f"{machine['versions'].get('onnxruntime') or machine['versions'].get('onnxruntime-gpu')}.",
        "",
    ]
    if report["native_missing"]:
        lines += [f"**Not native**: {report['native_missing']}", ""]
    lines += [
        "| | µs/step | quartiles | call p50 µs | p90 | p99 | steps/s | faster than "
        f"{'portable' if is_network(info) else 'GRU'} |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, t in report["timings"].items():
        lines.append(
            f"| {name} | {t['us_per_step']:.3g} | {t['us_per_step_q1']:.3g}-{t['us_per_step_q3']:.3g} "
            f"| {t['call_p50_us']:.4g} | {t['call_p90_us']:.4g} | {t['call_p99_us']:.4g} "
            f"| {t['steps_per_second']:,.0f} | {t[faster]:.2f} x |"
        )
    lines += ["", "µs/step: a call with all T steps, divided by T. Calls follow one another: caches are warm."]
    # reports of earlier versions lack it
    if step := report.get("step"):
        written = f"{OVERWRITTEN >> 20} MB of other memory are written before each: caches are cold"
        lines += ["", "| one call of `Session.step` | µs, median |", "|---|---:|"]
        lines += [f"| one after the other: caches are warm | {step['warm_us']:.3g} |"]
        lines += [f"| {step['rate']:g} calls a second; {written} | {step['cold_us']:.3g} |"]
    if block(info):
        lines += ["", "ONNX Runtime's GRU and LSTM are timed without the blocks around the layers."]
    lines += ["", "| cost of a step | |", "|---|---:|"]
    lines += [
        f"| parameters (recurrent) | {costs['parameters']:,}{_against(costs)} |",
        f"| macs | {costs['macs']:,} |",
        f"| macs_executed ({costs['macs_executed_by']}) | {costs['macs_executed']:,.0f} |",
        *([f"| macs of the front end | {costs['frontend_macs']:,} |"] if costs["frontend_macs"] else []),
        *([f"| macs of the blocks | {costs['block_macs']:,} |"] if costs["block_macs"] else []),
        f"| flops_paper | {costs['flops_paper']:,.0f} |",
        f"| {words.skipped} | {report['skip_percent']:.1f} % |",
    ]
    checks = ", ".join(f"{name} {error:.1e}" for name, error in report["verified"].items())
    return "\n".join([*lines, "", f"Verified before timing (worst error): {checks or 'one backend only'}."]) + "\n"


def _title(info: dict[str, Any]) -> str:
    if is_network(info):
        return f"{info['network']}, recurrent layers of {' and '.join(map(str, layer_sizes(info)))} neurons"
    model = info["model"]
    sizes = f"{model['input']['vocabulary']:,} words, " if model["input"]["vocabulary"] else ""
    sizes += (
        f"I={model['input']['size']}, H={model['hidden_size']}, {model['layers']} layer{'s' * (model['layers'] > 1)}"
    )
    last = layer_sizes(info)[-1]
    sizes += f", the last one of {last}" * (last != model["hidden_size"])
    sizes += ", bidirectional" * model["bidirectional"]
    sizes += f", {block(info)} blocks" if block(info) else ""
    return f"{model['layer']['cell']['name']} + {model['layer']['rule']['name']}, {sizes}"


def _against(costs: dict[str, Any]) -> str:
    """Return the difference of the parameters from an LSTM and a GRU, or "" for a network of one's own."""
    if "parameters_gru" not in costs:
        return ""
    lstm, gru = (f"{-costs[f'parameters_saved_percent_{kind}']:+.1f} %" for kind in ("lstm", "gru"))
    return f" ({lstm} against LSTM, {gru} against GRU)"


def save(report: dict[str, Any], folder: Path, name: str = "bench") -> list[Path]:
    """Write a report as NAME.json and NAME.md in a folder.

    Args:
        report: The dict that `edgernn.bench.measure.bench` returns.
        folder: The folder to write to.
        name: Name of both files without suffix.

    Returns:
        The paths of the JSON and the Markdown file.
    """
    paths = [folder / f"{name}.json", folder / f"{name}.md"]
    write_json(paths[0], report)
    write_text(paths[1], markdown(report))
    return paths
