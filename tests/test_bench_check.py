# SPDX-License-Identifier: Apache-2.0
"""The check before a benchmark: it refuses wrong kernels, and accepts what the check of an export accepts."""

import numpy as np
import pytest
import torch

import edgernn
from edgernn.bench.measure import tolerance_of, verify
from edgernn.export import to_onnx
from edgernn.runtime import Session
from edgernn.tolerance import allowed_error
from tests.models import contractive, exported


class OtherDecisions(Session):
    """A session that updates one neuron more than it should, and returns another y."""

    @property
    def updates(self):
        return super().updates + 1

    def run_from(self, x, state, lengths=None):
        y, last = super().run_from(x, state, lengths)
        return y + 0.5, last


class Shifted(Session):
    """A session whose y has the error `shift`."""

    shift = 0.0

    def run_from(self, x, state, lengths=None):
        y, last = super().run_from(x, state, lengths)
        return y + self.shift, last


def draw(steps: int, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((steps, batch, 3)).astype(np.float32)


@pytest.mark.parametrize(("bidirectional", "steps"), [(False, 1), (True, 30)], ids=["one step", "both directions"])
def test_a_check_that_compares_nothing_fails(bidirectional, steps):
    path = exported("gru", "selective", bidirectional=bidirectional)[1]
    portable, x = Session(path, backend="portable"), draw(steps)
    assert verify(Session(path, backend="native"), portable, x) < 1e-5
    with pytest.raises(edgernn.EdgernnError, match="not timed: the outputs of the native library cannot be checked"):
        verify(OtherDecisions(path, backend="native"), portable, x)
    with pytest.raises(edgernn.EdgernnError, match="the numbers of updated neurons differ in 40 of 40 chunks"):
        verify(OtherDecisions(path, backend="native"), portable, draw(1, 40))


def test_one_decision_that_rounding_flips_is_accepted():
    path = exported("gru", "selective")[1]

    class FirstStep(OtherDecisions):
        calls = 0

        @property
        def updates(self):
            return Session.updates.fget(self) + (self.calls == 1)

        def run_from(self, x, state, lengths=None):
            self.calls += 1
            return Session.run_from(self, x, state, lengths)

    assert verify(FirstStep(path, backend="native"), Session(path, backend="portable"), draw(30)) < 1e-5


def test_nan_is_not_timed():
    path = exported("gru")[1]
    session = Shifted(path, backend="native")
    session.shift = np.nan
    with pytest.raises(edgernn.EdgernnError, match=r"error of y is nan, expected at most 0\.0001"):
        verify(session, Session(path, backend="portable"), draw(5))


def test_errors_are_relative_to_large_outputs(tmp_path):
    model = contractive("gru")
    with torch.no_grad():
        model.head.weight.mul_(1e5)
    to_onnx(model, tmp_path / "m.onnx")
    session, portable = Shifted(tmp_path / "m.onnx", backend="native"), Session(tmp_path / "m.onnx", backend="portable")
    x = draw(9)
    largest = float(np.abs(portable.run(x)).max())
    assert largest > 1e3
    session.shift = 2e-5 * largest
    assert 1e-4 < verify(session, portable, x, len(x)) < 1e-4 * largest
    session.shift = 2e-4 * largest
    with pytest.raises(edgernn.EdgernnError, match="the largest error of y"):
        verify(session, portable, x, len(x))


def test_int8_has_the_tolerance_of_its_export(tmp_path):
    model, path = exported("gru")
    assert tolerance_of(path) == 1e-4
    for weights, tolerance in (("bfloat16", 1e-4), ("int8", 1e-3)):
        path = tmp_path / f"{weights}.onnx"
        to_onnx(model, path, weights=weights)
        assert tolerance_of(path) == tolerance
        session, portable = Shifted(path, backend="native"), Session(path, backend="portable")
        session.shift = 0.7 * tolerance
        assert 0.5 * tolerance < verify(session, portable, draw(5), tolerance=tolerance_of(path)) < tolerance
        session.shift = 1.5 * tolerance
        with pytest.raises(edgernn.EdgernnError, match=f"expected at most {tolerance:g}"):
            verify(session, portable, draw(5), tolerance=tolerance_of(path))


def test_allowed_errors_grow_with_values_and_steps():
    small, large = np.array([0.5, -0.9]), np.array([[1.0, -30.0]])
    assert [allowed_error(small, steps) for steps in (1, 24)] == [1e-4, 1e-4]
    assert allowed_error(small, 240) == pytest.approx(1e-3)
    assert allowed_error(large, 1) == pytest.approx(3e-3)
    assert allowed_error(large, 48, 1e-3) == pytest.approx(6e-2)
    assert allowed_error(np.zeros((0, 2)), 1) == 1e-4
