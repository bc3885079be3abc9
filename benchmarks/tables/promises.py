# SPDX-License-Identifier: Apache-2.0
"""Tables of the page docs/background/promises.md, from the JSON files in docs/results."""

from typing import Any

from benchmarks.tables.measured import filled, read_report


def _measured(report: dict[str, Any]) -> str:
    """Return on what machine, on what day and by what command a report was made."""
    machine = report["machine"]
    return f"on {machine['cpu']}, {machine['cores']} cores, on {report['date']}: `{report['command']}`"


def promises() -> str:
    """Return the table of promises: what edgernn guarantees, the command that tests it, and the latest measurements."""
    faults, harden = read_report("faults"), read_report("hardening")
    damaged, models = read_report("damaged-files"), read_report("damaged-models")
    streams = read_report("long-run")["streams"]
    times, calls = read_report("step-times"), read_report("op-calls")
    slowest = max(times["rules"].values(), key=lambda rule: float(rule["p99.99"]))
    ratios = sorted(case["ratio"] for case in harden["cases"])
    total = sum(count for counts in faults["counts"].values() for count in counts.values())
    rows = [
        (
            "A step of the native library allocates nothing, takes no lock and makes no system call",
            "`pytest tests/test_bounded_step.py tests/test_bounded_op.py`",
            "0: in packed models for every cell and rule; in the op of ONNX Runtime for every rule, after the first "
            "step ([where not](#limits)); of "
            f"{times['steps']:,} steps 99.99 % took at most {slowest['p99.99'] / 1000:.0f} µs under the slowest rule",
        ),
        (
            "A long stream under `selective` or `delta`, which keep sums, accumulates no error, and memory stays flat",
            "`pytest tests/test_long_run.py`, `python -m tests.long_run 1000000000`",
            "; ".join(_longest(streams, rule) for rule in dict.fromkeys(map(_rule, streams))),
        ),
        (
            "Silence is as fast as sound in the native library: no step computes with subnormal numbers ([where not]"
            "(#limits))",
            "`pytest tests/test_subnormals.py`",
            "no subnormal number in at least 400 silent steps of nine cells, two of them also under `delta`, and of "
            "the audio front end",
        ),
        (
            "A bad sample is refused, held or answered with a reset, as you choose",
            "`pytest tests/test_bad_samples.py`, `make check-wasm`",
            "under every rule; bit for bit as with the sample that stands in",
        ),
        (
            "A saved state continues bit for bit, in Python, C and WebAssembly",
            "`pytest tests/test_saved_state.py`, `make check-wasm`",
            "under every rule",
        ),
        (
            "After any fault every file is the old or the new one, and the next command gives the same bits",
            "`make check-faults SECONDS=900`",
            f"{total:,} faults; failures: {len(faults['failures'])}",
        ),
        (
            "Two commands that train, export or calibrate never write to one place, and signals save a checkpoint",
            "`pytest tests/test_locks.py tests/test_signals.py`",
            "the second command is refused with an error message",
        ),
        (
            "No file crashes a reader, asks for much memory, or ends in a traceback",
            "`make check-readers`, `make check-models`, `make check-fuzz`, `make check-fuzz32`, `make check-programs`",
            f"{damaged['files']:,} damaged files of {damaged['kinds']} kinds: {damaged['faults']} faults; "
            f"{models['files']:,} damaged model files: {models['faults']} faults",
        ),
        (
            "No call of the op crashes or writes outside its memory, whatever its inputs are",
            "`make check-calls CALLS=1000000`",
            f"{calls['ran'] + calls['refused']:,} random calls under sanitizers: {calls['ran']:,} ran, "
            f"{calls['refused']:,} were refused with an error message",
        ),
        (
            "Streams on many threads and in forked processes do not disturb each other",
            "`make check-threads`",
            "no report of ThreadSanitizer, for packed models and for the op",
        ),
        (
            "Later versions read the files of earlier ones, or refuse them with an error message",
            "`pytest tests/test_golden.py`",
            "the same outputs to 1e-5",
        ),
        (
            "The library is hardened at no cost, and the bytes of wheels do not depend on folder, date or umask",
            "`pytest tests/test_packaging.py`, `make check-wheel`, `make check-wheels`",
            f"{ratios[len(ratios) // 2]:.3f} of the time of the same library without it, the median of {len(ratios)} "
            f"cases; {sum(ratio > 1.02 for ratio in ratios)} are above 1.02 ([why](#hardening))",
        ),
        (
            "Every dependency has a licence that allows use in a product, and each wheel names it",
            "`make check-supply-chain`, `make check-wheels`",
            "listed by `python -m tests.list_dependencies`",
        ),
    ]
    lines = ["| promise | command | last figures |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {promise} | {command} | {figures} |" for promise, command, figures in rows)])


def _rule(stream: dict[str, Any]) -> str:
    return str(stream["name"]).partition("+")[2]


def _longest(streams: list[dict[str, Any]], rule: str) -> str:
    """Return the steps, the largest error and the growth of memory of the longest stream under a rule."""
    stream = max((stream for stream in streams if _rule(stream) == rule), key=lambda stream: int(stream["steps"]))
    return (
        f"`{rule}`: {stream['steps']:,} steps, largest error {max(stream['errors']):.1e}, memory "
        f"{stream['memory_growth'] / 1000:+.0f} kB"
    )


def faults() -> str:
    """Return the counts of injected faults, such as a full disk, by command and kind, from `make check-faults`."""
    report = read_report("faults")
    kinds = sorted({kind for counts in report["counts"].values() for kind in counts})
    lines = [f"| command | all | {' | '.join(kinds)} |", "|---|---:|" + "---:|" * len(kinds)]
    for command, counts in report["counts"].items():
        numbers = [sum(counts.values()), *(counts.get(kind, 0) for kind in kinds)]
        lines.append(f"| {command} | {' | '.join(map(str, numbers))} |")
    total = sum(count for counts in report["counts"].values() for count in counts.values())
    failures = (f"Failure, fixed since: {_error(text)}." for text in report["failures"])
    ended = " ".join(failures) or "No failure."
    how = f"{total:,} faults in {report['seconds']:,} seconds, {_measured(report)}. {ended}"
    return "\n".join(lines) + "\n\n" + filled(how)


def _error(text: str) -> str:
    """Return the trial of a failure, and the last error message in it, or all of it if it has none."""
    lines = text.splitlines()
    errors = [line for line in lines[1:] if line.startswith("edgernn: error: ")]
    return f"{lines[0].split(': expected an error')[0]}: {errors[-1]}" if errors else " ".join(lines)


def longrun() -> str:
    """Return a table of the rounding errors of long streams, measured by `python -m tests.long_run`."""
    report = read_report("long-run")
    lines = [
        "| cell | rule | steps | error, first tenth | error, last tenth | memory, kB |",
        "|---|---|---:|---:|---:|---:|",
    ]
    sources: dict[str, list[str]] = {}
    for stream in report["streams"]:
        errors = stream["errors"]
        lines.append(
            f"| {stream['name'].replace('+', ' | ')} | {stream['steps']:,} | {errors[0]:.1e} | {errors[-1]:.1e} | "
            f"{stream['memory_growth'] / 1000:+.0f} |"
        )
        sources.setdefault(_measured(stream), []).append(stream["name"])
    sizes = report["sizes"]
    how = (
        "Largest difference from a float64 oracle that starts from the stream's state at every millionth step and runs "
        "beside it for 20 steps. A model that is opened anew and restores the state gives the same bits at each of "
        f"them. I = {sizes['inputs']}, H = {sizes['neurons']}, {100 * sizes['skipped']:.0f} % skipped. "
        + "; ".join(f"{', '.join(names)}: {source}" for source, names in sources.items())
        + "."
    )
    return "\n".join(lines) + "\n\n" + filled(how)


def steptimes() -> str:
    """Return a table of the time per step under each update rule, measured by `python -m benchmarks.step_times`."""
    report = read_report("step-times")
    lines = ["| rule | mean, µs | p50 | p99 | p99.99 | worst |", "|---|---:|---:|---:|---:|---:|"]
    for rule, times in report["rules"].items():
        figures = [times[name] / 1000 for name in ("mean", "p50", "p99", "p99.99", "worst")]
        lines.append(f"| {rule} | {' | '.join(f'{figure:,.2f}' for figure in figures)} |")
    how = (
        f"{report['model']}, one sequence, {report['steps']:,} steps of a packed model under each rule, with the time "
        f"of reading the clock, {_measured(report)}. random, skip, selective, delta and topk skip about 80 % of the "
        "updates; the others update every neuron, so compare a rule with itself. Beside these times: the [instructions "
        "of the worst step](performance.md#instructions-of-the-worst-step)."
    )
    return "\n".join(lines) + "\n\n" + filled(how)
