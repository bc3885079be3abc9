# SPDX-License-Identifier: Apache-2.0
"""The suite of cases, the verdicts on their times, and the page generated from its report."""

import json
from concurrent.futures import Future

import numpy as np
import pytest
from click.testing import CliRunner

import edgernn
from benchmarks.one_cell import main as one_cell
from benchmarks.page import page
from benchmarks.suite import CASES, QUICK, chosen, run_suite
from edgernn.bench.case import BEST, Case, Target, described
from edgernn.cli.frame import main
from edgernn.config import CellConfig, InputConfig, LayerConfig, ModelConfig
from edgernn.progress import Silent
from edgernn.runtime.timing import Rounds
from tests.test_docs import generator

SHORT = Rounds(rounds=1, warmup=0, block_ms=0.1)
SMALL = Case("Small", ModelConfig.of("gru", 2, 8), 4, targets=(Target("roofline", 0.0), Target("ONNX Runtime", 1e9)))


def figures(case, **times):
    peers = {"ONNX Runtime", "JAX", "PyTorch", "OpenVINO", "ncnn"}
    return described(case, {name: np.array(values, float) for name, values in times.items()}, {"edgernn": 1e-7}, peers)


@pytest.mark.slow
def test_one_cell_beside_its_peers(tmp_path):
    """Runs in a separate process, and first, before it is replaced."""
    words = ["lstm", "--hidden", "8", "--steps", "1", "--rounds", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(one_cell, words)
    assert "| roofline |" in result.stdout
    assert "[1/1] lstm (2, 8), T=1: " in result.stderr
    (case,) = json.loads((tmp_path / "peers.json").read_text())["cases"]
    assert case["name"] == "lstm (2, 8), T=1"


class Inline:
    """Replaces the process pool, which takes seconds to start for each case."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, work, *arguments):
        process = Future()
        try:
            process.set_result(work(*arguments))
        except Exception as error:
            process.set_exception(error)
        return process


@pytest.fixture(scope="module")
def inline():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.suite.ProcessPoolExecutor", Inline)
        yield


@pytest.fixture(scope="module")
def report(tmp_path_factory, inline):
    path = tmp_path_factory.mktemp("suite") / "performance.json"
    nonesuch = ModelConfig(layer=LayerConfig(cell=CellConfig("nonesuch")), hidden_size=8, input=InputConfig(size=2))
    cases = [SMALL, Case("Small", nonesuch, 4), Case("Few", ModelConfig.of("fastgrnn", 2, 16, rank=2), 4)]
    lines = []
    progress = Silent()
    progress.note = lines.append
    suite = run_suite(path, cases, SHORT, command="a command", progress=progress)
    assert json.loads(path.read_text()) == suite
    assert [line.split()[0] for line in lines] == ["[1/3]", "[2/3]", "[3/3]"]
    return suite


def test_ratios_are_taken_within_a_round():
    """A machine that is slower in one round slows all peers, and changes no ratio."""
    case = Case(
        "g", ModelConfig.of("gru", 2, 8), targets=(Target("roofline", 1.5), Target(BEST, 1.0), Target("absent", 1.0))
    )
    times = {"edgernn": [1, 2, 8], "ONNX Runtime": [2, 4, 4], "JAX": [0.5, 1.5, 10], "roofline": [1, 1, 4]}
    described_case = figures(case, **times)
    ratios = {name: each["ratio"] for name, each in described_case["contenders"].items()}
    assert ratios == {"edgernn": 1, "ONNX Runtime": 0.5, "JAX": pytest.approx(4 / 3), "roofline": 2}
    assert described_case["contenders"]["ONNX Runtime"]["us"] == 4
    assert described_case["contenders"]["edgernn"]["us_q3"] == 5
    assert described_case["best_peer"] == "JAX"
    assert [target["met"] for target in described_case["targets"]] == [False, False, None]
    assert [target["value"] for target in described_case["targets"]] == [2, pytest.approx(4 / 3), None]


def test_a_report_holds_every_case_with_its_contenders(report):
    small, failed, few = report["cases"]
    assert {"edgernn", "ONNX Runtime", "PyTorch", "roofline"} <= set(small["contenders"])
    assert small["contenders"]["edgernn"]["error"] < 1e-5
    assert small["macs"] == 3 * 8 * (2 + 8)
    assert [target["met"] for target in small["targets"]] == [False, True]
    assert failed["failed"].startswith("unknown cell 'nonesuch'")
    assert set(few["contenders"]) == {"edgernn", "edgernn gru", "ONNX Runtime", "roofline"}
    # W, and R as a product of rank 2
    assert few["macs_executed"] == few["macs"] == 16 * 2 + 2 * 16 * 2
    assert set(report["peers"]) >= {"ONNX Runtime", "LiteRT", "JAX"}


@pytest.mark.slow
def test_a_case_of_delta_skips_columns(inline, tmp_path):
    targets = (Target("edgernn gru", 1.1),)
    cases = [
        Case("Skipping", ModelConfig.of("gru", 4, 32, rule="delta"), 500, skip=s, targets=targets) for s in (0.0, 0.9)
    ]
    dense, sparse = run_suite(tmp_path / "performance.json", cases, SHORT)["cases"]
    assert dense["skip_percent"] == 0
    assert dense["macs_executed"] == dense["macs"] == 3 * 32 * (4 + 32)
    assert sparse["skip_percent"] == pytest.approx(90, abs=5)
    assert 0.05 < sparse["macs_executed"] / sparse["macs"] < 0.2
    assert [case["targets"][0]["met"] is None for case in (dense, sparse)] == [False, False]
    assert f"| updates skipped | 0.0 % | {sparse['skip_percent']:.1f} % |" in page(
        {**run_nothing(tmp_path), "cases": [dense, sparse]}
    )


def test_page_says_where_we_lose(report):
    text = page(report)
    (roofline,) = (target["value"] for target in report["cases"][0]["targets"] if target["against"] == "roofline")
    assert f"| gru (2, 8), T=4 | roofline | {roofline:.3g} | 0 | **no** |" in text
    assert f"- gru (2, 8), T=4: {roofline:.3g} x roofline, not 0" in text
    assert "- nonesuch (2, 8), T=4: unknown cell 'nonesuch'" in text
    assert "`a command`" in text
    assert "quick" not in text
    targets = (Target(BEST, 1.0), Target("PyTorch", 0.5))
    faster = figures(Case("g", ModelConfig.of("lstm", 2, 8), targets=targets), edgernn=[3], PyTorch=[2], roofline=[1])
    faster |= {"left_out": {"JAX": "no"}}
    text = page({**report, "quick": True, "cases": [faster, faster]})
    assert "**A quick run" in text
    assert "- lstm (2, 8), T=500: PyTorch is 1.50 x as fast" in text
    assert "roofline is" not in text.split("## Where we lose")[1]
    # a target has a line of its own only if it asks for more than being ahead
    assert "1.5 x PyTorch, not 0.5" in text
    assert "best peer, not" not in text
    assert "- JAX: no (2 cases)" in text
    assert "within the spread |" not in text
    assert "| PyTorch | 2 (2-2), 1.50 | 2 (2-2), 1.50 |" in text
    assert text.count("PyTorch is 1.50") == 2


def test_a_limit_between_the_quartiles_is_within_the_spread(report):
    targets = (Target(BEST, 1.0), Target("PyTorch", 0.8), Target("PyTorch", 0.4))
    case = figures(Case("g", ModelConfig.of("gru", 2, 8), targets=targets), edgernn=[2, 3, 5], PyTorch=[4, 4, 4])
    text = page({**report, "cases": [case]})
    assert "| best peer | 0.75 | 1 | yes, within the spread |" in text
    assert "| PyTorch | 0.75 | 0.8 | yes, within the spread |" in text
    assert "| PyTorch | 0.75 | 0.4 | **no** |" in text
    case = figures(Case("g", ModelConfig.of("gru", 2, 8), targets=targets[1:2]), edgernn=[2, 4, 5], PyTorch=[4, 4, 4])
    assert "| PyTorch | 1 | 0.8 | no, within the spread |" in page({**report, "cases": [case]})


def test_reasons_that_differ_in_the_error_share_a_line(report):
    case = figures(Case("g", ModelConfig.of("gru", 2, 8)), edgernn=[3])
    reasons = [
        f"not timed: y differs by {error}, expected at most 0.001" for error in ("4.2e-03", "1.1e-02", "4.2e-03")
    ]
    text = page({**report, "cases": [case | {"left_out": {"OpenVINO": why}} for why in (*reasons, "no {}")]})
    assert "- OpenVINO: y differs by 4.2e-03 to 1.1e-02, expected at most 0.001 (3 cases)\n" in text
    assert "- OpenVINO: no {} (1 case)\n" in text
    text = page({**report, "cases": [case | {"left_out": {"JAX": reasons[0]}}]})
    assert "- JAX: y differs by 4.2e-03, expected at most 0.001 (1 case)\n" in text


def test_generated_page_has_the_notes(report, tmp_path):
    make = generator().performance
    assert "Not measured yet: `python -m benchmarks.suite --out docs/results`" in make(tmp_path)
    (tmp_path / "performance.json").write_text(json.dumps(report))
    (tmp_path / "performance-notes.md").write_text("What was tried.\n")
    text = make(tmp_path)
    assert page(report).rstrip() in text
    assert text.endswith("## Notes\n\nWhat was tried.\n")


def test_suite_has_every_case_that_was_aimed_at():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    for cell in ("gru", "lstm"):
        for sizes in ((2, 128), (64, 128), (128, 256), (400, 1150)):
            assert {f"{cell} {sizes}, T=500", f"{cell} {sizes}, T=1"} <= set(names)
            assert (f"{cell} {sizes}, T=1, from C" in names) == (sizes[1] < 1150)
        assert {f"{cell} (64, 128), T=100, B=32", f"{cell} (64, 128), T=100, B=32, 2 threads"} <= set(names)
    assert len([case for case in CASES if case.model.layer.name == "sarnn"]) == 6
    delta = [case for case in CASES if case.model.layer.rule.name == "delta"]
    assert {(case.sizes, case.skip) for case in delta} == {((i, 128), skip) for i in (2, 64) for skip in (0.0, 0.9)}
    for part in ("skiprnn", "irc-gru", "irc-lstm", "ihc-lstm", "eins", "fastgrnn", "load"):
        assert len(chosen(part)) == 1, part
    # the largest lstm and gru sequences do not target the roofline: their weights exceed the cache
    assert [c.name for c in CASES if not c.targets] == []
    with pytest.raises(edgernn.UsageError, match="only: expected a part of a benchmark case's name, such as 'gru"):
        chosen("nonesuch")


@pytest.mark.slow
def test_load_case_has_the_size_of_the_library(tmp_path, inline):
    (case,) = run_suite(tmp_path / "p.json", chosen("load"), SHORT)["cases"]
    assert case["library_bytes"] > 10_000
    assert [(t["against"], t["limit"]) for t in case["targets"]] == [("20 ms", 1.0), ("1.3 MB", 1.0)]
    ratio = case["contenders"]["edgernn"]["us"] / 20_000
    assert case["targets"][0]["value"] == pytest.approx(ratio)
    assert f"{case['library_bytes']:,} bytes" in page({**run_nothing(tmp_path), "cases": [case]})


def run_nothing(folder):
    return run_suite(folder / "none.json", [], QUICK)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("m.onnx --skip 0.9 --rule selective --input 7", "--rule, --input, --skip: not allowed without"),
        ("--cell gru --target cortex-m4 --batch 2", "--batch: not allowed with --target"),
        ("m.onnx --target cortex-m4 --threads 2 --warmup 0", "--threads, --warmup: not allowed with"),
    ],
)
def test_words_that_do_not_go_together(words, message, capsys):
    assert main(["bench", *words.split()]) == 2
    assert message in capsys.readouterr().err
