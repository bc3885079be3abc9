# SPDX-License-Identifier: Apache-2.0
"""The size and latency on the card of an exported model."""

import re
import time

import numpy as np
import pytest

from edgernn.cli.frame import main
from edgernn.export.latency import latency, microseconds
from edgernn.machine import processor
from edgernn.runtime import Session
from tests.models import exported

TRAIN = ["train", "--task", "adding", "--cell", "sarnn", "--out", "run", "T=10", "hidden_size=16", "steps=1"]


def slowed(monkeypatch, name, seconds):
    """Slow down calls of a session's method."""
    call = getattr(Session, name)

    def slow(self, x):
        time.sleep(seconds)
        return call(self, x)

    monkeypatch.setattr(Session, name, slow)


def test_what_is_said_is_what_was_measured(monkeypatch):
    _, path = exported("gru", "selective")
    x = np.zeros((7, 2, 3), np.float32)
    fast = latency(path, x)
    assert (fast.backend, fast.steps, fast.processor) == ("native", 7, processor())
    slowed(monkeypatch, "run", 0.004)
    slowed(monkeypatch, "step", 0.002)
    slow = latency(path, x)
    assert slow.sequence > 4000 > fast.sequence
    assert slow.step > 2000 > fast.step
    # one step, not seven
    assert slow.step < 7 * 2000


def test_a_model_that_needs_whole_sequences_has_no_step():
    measured = latency(exported("gru", bidirectional=True)[1], np.zeros((7, 2, 3), np.float32))
    assert measured.step is None
    assert measured.sequence > 0


def test_words_are_timed_too():
    measured = latency(exported("lstm", vocabulary=11, output="all")[1], np.zeros((7, 2), np.int64))
    assert measured.step > 0


def test_without_a_kernel_the_standard_operators_are_timed():
    measured = latency(exported("gru", norm="layer")[1], np.zeros((7, 2, 3), np.float32))
    assert (measured.backend, measured.instruction_set) == ("portable", None)


@pytest.mark.parametrize(("value", "text"), [(0.61234, "0.612 µs"), (43.56, "43.6 µs"), (12345.6, "12,346 µs")])
def test_three_digits_are_said(value, text):
    assert microseconds(value) == text


def test_a_card_says_what_delta_skips(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, "--rule", "delta"]) == 0
    assert main(["export", "run", "--out", "model.onnx"]) == 0
    card = (tmp_path / "model.md").read_text()
    assert "| values of h not sent | " in card
    assert "`updates` (T, B), values of h sent; " in card
    assert "neurons" not in card


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_a_card_has_the_size_of_its_file_and_its_latency(weights, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(TRAIN) == 0
    assert main(["export", "run", "--weights", weights, "--out", "model.onnx"]) == 0
    card = (tmp_path / "model.md").read_text()
    assert f"| matrices | {weights} |\n| file | {(tmp_path / 'model.onnx').stat().st_size:,} bytes |\n" in card
    whole = re.search(r"\| a call with a sequence, T=10 \| ([\d.]+ µs), [\d.]+ µs a step \|", card)
    step = re.search(r"\| a call with a step, T=1 \| ([\d.]+ µs) \|", card)
    assert whole, card
    assert step, card
    assert f"| measured on | {processor()}, one thread, the native library (" in card
    output = capsys.readouterr().out
    assert whole[1] in output
    assert step[1] in output
    assert f"from Python, caches warm, one thread of {processor()}" in output
