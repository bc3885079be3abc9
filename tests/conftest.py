# SPDX-License-Identifier: Apache-2.0
"""Options, hooks and fixtures shared by all tests."""

import copy
import functools
import gc
import os
import random
import signal
import sys

# set before torch and numpy are imported: small tensors are faster on one thread, and timings are steadier
os.environ.setdefault("OMP_NUM_THREADS", "1")
# set before onnxruntime is imported: it would write to the home folder
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# set before triton is imported: run GPU kernels in its interpreter
os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.tolerances import POISON


def pytest_configure(config: pytest.Config) -> None:
    # background jobs of a shell ignore SIGINT, which some tests send
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "slow: takes seconds, compiles or starts a process: excluded from `make quick`")
    config.addinivalue_line("markers", "check(name): run by `make check-NAME`, not by `make test`")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--check", metavar="NAME", help="Run only the tests of `make check-NAME`.")
    parser.addoption("--sample", type=int, metavar="N", help="Run no slow tests, and at most N cases of each test.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    check, count = config.getoption("check"), config.getoption("sample")
    chosen = [item for item in items if _check_of(item) == check]
    if count is not None:
        chosen = _sample(chosen, count)
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep modules and tests, which stay until the end, out of the collections of garbage: each takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    # as at the end of a command
    gc.freeze()


def _check_of(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("check")
    return None if marker is None else marker.args[0]


def _sample(items: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Sample at most `count` cases of each test that is not slow, in the original order."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    # random, because evenly spaced cases may share one value of a parameter
    kept = {item for test, group in cases.items() for item in random.Random(test).sample(group, min(count, len(group)))}
    return [item for item in items if item in kept]


@pytest.fixture
def add_summary_line(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """A function that adds a line to the summary at the end of the run, without failing the test."""
    return lambda text: record_property("note", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for group in terminalreporter.stats.values() for report in group]
    output = [value for report in reports for name, value in getattr(report, "user_properties", ()) if name == "note"]
    if output:
        terminalreporter.section("notes of tests")
        # every report of a test repeats its lines
        for line in dict.fromkeys(output):
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _poison() -> None:
    """Fill uninitialised memory with NaN, so that an unwritten element fails the test."""
    if POISON:
        # torch.use_deterministic_algorithms would import torch's compiler, which takes seconds
        torch.set_deterministic_debug_mode("error")
        torch.utils.deterministic.fill_uninitialized_memory = True
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _exporter_is_read_once() -> None:
    """Cache data that torch.onnx recomputes at each export, which takes half of the export time.

    Cached are the source of its 500 functions, the list of torch's operators, and its registry.
    """
    if "onnxscript" in sys.modules:
        from onnxscript._internal.values import TracedOnnxFunction
        from torch.export import decomp_utils, exported_program
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        read = TracedOnnxFunction.function_ir.fget
        TracedOnnxFunction.function_ir = property(functools.cache(read))
        list_operators = functools.cache(exported_program._collect_all_valid_cia_ops)
        exported_program._collect_all_valid_cia_ops = decomp_utils._collect_all_valid_cia_ops = list_operators
        known = functools.cache(ONNXRegistry.from_torchlib)

        def copied(**options: object) -> ONNXRegistry:
            # every export adds its own functions
            registry = copy.copy(known(**options))
            registry.functions = {name: list(functions) for name, functions in registry.functions.items()}
            return registry

        ONNXRegistry.from_torchlib = staticmethod(copied)


@pytest.fixture(autouse=True, scope="session")
def _traces_are_shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Trace each built-in layer for an export once in all workers."""
    if "edgernn.export.layer_functions" in sys.modules:
        from edgernn.export import layer_functions
        from tests.shared_traces import SharedTraces

        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "traces"
        folder.mkdir(exist_ok=True)
        layer_functions._CACHE, layer_functions._CACHE_SIZE = SharedTraces(folder), sys.maxsize


@pytest.fixture
def _double() -> Iterator[None]:
    """Make float64 the type of new tensors."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def training_library() -> Iterator[None]:
    """Use the training library in the same folder as the library under test."""
    from tests.fused import train_library

    with train_library():
        yield


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write empty pictures: drawing takes longer than a small run."""
    from tests.training_helpers import without_pictures

    without_pictures(monkeypatch)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with small files of every data set."""
    from tests.small_data import write_all

    return write_all(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True, scope="session")
def _no_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use an empty cache folder, so that tests of missing data do not find the user's downloads."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def fake(tmp_path_factory):
    """The CUDA library for a machine with a fake GPU: see tests/fake_gpu.py."""
    # imported here because few tests need it
    from tests import fake_gpu

    return fake_gpu.build_library(tmp_path_factory.mktemp("cuda"))
