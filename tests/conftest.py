# SPDX-License-Identifier: Apache-2.0
"""What all tests share."""

import os

# before torch and numpy are imported: small tensors are faster on one thread, and threads would only disturb timings
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from tests.tolerances import POISON


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: minutes rather than seconds; `make quick` leaves them out")


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is not initialised is NaN, so that an element nobody wrote cannot pass by luck."""
    if POISON:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = True
    torch.manual_seed(0)
