# SPDX-License-Identifier: Apache-2.0
"""The fuzzing corpus (`make check-fuzz`, `make check-models`) consists of models that run."""

import numpy as np
import pytest

from edgernn.runtime import Session
from edgernn.runtime.stepper import Stepper
from tests.make_corpus import FOLDER, models
from tests.use_mutants import MODELS


@pytest.mark.parametrize("name", models())
def test_the_fuzzer_starts_from_models(name):
    stepper = Stepper((FOLDER / name).read_bytes(), 2)
    assert stepper.step(), stepper.refusal()


@pytest.mark.parametrize("name", ["blocks", "both-directions", "imputer", "layers", "words"])
@pytest.mark.parametrize("backend", ["native", "portable"])
def test_mutants_are_made_of_models(name, backend):
    session = Session(MODELS / f"{name}.onnx", backend=backend)
    frame = np.ones((3, 2, *session.channels), int)
    assert np.isfinite(session.run(frame)).all()
