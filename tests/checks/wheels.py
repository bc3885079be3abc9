# SPDX-License-Identifier: Apache-2.0
"""`make check-wheels`: the wheels for Linux, 64-bit Arm and Windows install without a compiler and give right results.

Each library must select the best instruction set of the processor. Arm runs in qemu and Windows in wine.
"""

import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from edgernn.export.rounding import rounded
from tests.apps import ROOT, need, run
from tests.checks.arm import DOTS, PLAIN, SAME
from tests.foreign import ARM, COMPILERS, INCLUDE, LINUX, WINDOWS, compiled, instruction_sets, output
from tests.models import contractive, packed_alone
from tests.pairs import pairwise
from tests.source_tree import first_sequence, load_script
from tests.test_packed import random_input, steps

BUILD = ROOT / "cmake" / "build.py"
MODEL = ROOT / "models" / "adding-sarnn" / "model.onnx"
TAGS = {LINUX: "manylinux_2_28_x86_64", ARM: "manylinux_2_28_aarch64", WINDOWS: "win_amd64"}
# a command that prints the library's instruction set, without onnxruntime
ISA = "from edgernn.runtime.library import instruction_set; print(instruction_set())"
# difference from the installed library: the int8 steps of two compilers may round an input to different integers
ATOL = 1e-5
_FOLDER = tempfile.TemporaryDirectory()


@functools.cache
def wheels() -> dict[str, Path]:
    """Build the wheels; return them by platform tag."""
    process = run("make", "--silent", "wheels", "-C", ROOT, timeout=1800)
    if process.returncode != 0:
        pytest.exit(f"make wheels: {process.stdout}{process.stderr}", returncode=1)
    return {path.stem.split("-", 4)[-1]: path for path in map(Path, process.stdout.split())}


def wheel(target: str) -> Path:
    need(COMPILERS[target][1])
    return wheels()[TAGS[target]]


@functools.cache
def second_wheels() -> Path:
    """Build the wheels again from the same object files, with new links; return their folder."""
    wheels()
    for target in load_script(BUILD).TARGETS:
        for library in target.folder.glob("libedgernn_*"):
            library.unlink()
    dist = Path(_FOLDER.name, "second")
    process = run(sys.executable, BUILD, "wheels", "--dist", dist, timeout=1800)
    assert process.returncode == 0, process.stdout + process.stderr
    return dist


@functools.cache
def libraries(target: str) -> Path:
    """Unpack a wheel; return the folder with its libraries."""
    folder = Path(_FOLDER.name, target)
    with zipfile.ZipFile(wheel(target)) as archive:
        archive.extractall(folder)
    return folder / "edgernn" / "runtime"


@functools.cache
def program(target: str, source: str) -> Path:
    """Compile a program of tests/ that is linked with the libraries of a wheel; return it, beside them."""
    folder = libraries(target)
    linked = sorted(folder.glob("libedgernn_*"))
    return compiled(target, ROOT / "tests" / source, folder, "-I", INCLUDE, "-I", INCLUDE.parent, *linked)


def printed(target: str, processor: str, source: str, *words: object, isa: str = "", data: bytes = b"") -> bytes:
    """Return what a program of tests/ prints with the libraries of a wheel; see tests.foreign.output."""
    options = {"libraries": libraries(target), "processor": processor, "isa": isa, "data": data}
    return output(target, program(target, source), *words, **options)


# (target, processor, instruction sets): all of this processor, and those of two Arm processors
CASES = [
    (LINUX, "", instruction_sets()),
    (ARM, PLAIN, ["native"]),
    (ARM, DOTS, ["native", "nativedotprod"]),
    (WINDOWS, "", instruction_sets()),
]
cases = pytest.mark.parametrize(("target", "processor", "names"), CASES, ids=["linux", "arm", "arm-dots", "windows"])


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """The environment variables of a shell whose only programs are those of a fresh environment with the wheel."""
    folder = tmp_path_factory.mktemp("light") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    variables = {"PATH": str(folder / "bin"), "HOME": str(folder), "PYTHONPATH": ""}
    words = ["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--constraint", ROOT / "constraints.txt"]
    process = run(folder / "bin" / "python", *words, f"{wheel(LINUX)}[cpu]", timeout=600, environment=variables)
    assert process.returncode == 0, process.stderr
    return variables


@pytest.mark.parametrize("target", TAGS)
def test_a_wheel_has_the_libraries_of_its_target(target):
    suffix = ".dll" if target == WINDOWS else ".so"
    names = {path.name for path in libraries(target).glob("*edgernn*")}
    assert names == {"edgernn.h", f"libedgernn_ops{suffix}", f"libedgernn_train{suffix}"}


@pytest.mark.parametrize("target", TAGS)
def test_a_second_build_has_the_same_bytes(target):
    """`make check-wheel` compares the wheel for this machine with one that is compiled in another folder."""
    file = wheel(target)
    assert (second_wheels() / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("target", TAGS)
def test_a_wheel_has_a_bill_of_its_materials(target):
    (metadata,) = libraries(target).parent.parent.glob("edgernn-*.dist-info")
    bill = json.loads((metadata / "sboms" / "edgernn.cdx.json").read_text(encoding="utf-8"))
    names = {component["name"] for component in bill["components"]}
    assert bill["metadata"]["component"]["version"] == metadata.name.removesuffix(".dist-info").partition("-")[2]
    assert {"libgcc", "libstdc++"} <= names
    assert ("winpthreads" in names) == (target == WINDOWS)
    # every requirement of the wheel itself, and of its extras for running and training
    requirements = map(Requirement, Parser().parsestr((metadata / "METADATA").read_text()).get_all("Requires-Dist"))
    wanted = {
        canonicalize_name(requirement.name)
        for requirement in requirements
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("cpu", "train"))
    }
    assert {"numpy", "onnxruntime", "torch"} <= wanted <= names


def test_an_installation_keeps_the_bill_of_materials(light):
    code = "from importlib.metadata import files; print(*[f for f in files('edgernn') if 'sboms' in f.parts])"
    process = run("python", "-P", "-c", code, environment=light)
    assert process.stdout.strip().endswith(".dist-info/sboms/edgernn.cdx.json"), process.stderr


def test_the_wheel_installs_and_runs_a_model_without_a_compiler(light, tmp_path):
    assert not [
        tool for tool in ("cc", "gcc", "g++", "clang", "ld", "cmake", "make") if shutil.which(tool, path=light["PATH"])
    ]
    source, target = first_sequence(tmp_path), tmp_path / "y.csv"
    words = [Path(light["PATH"], "edgernn"), "run", MODEL, "--input", source, "--output", target]
    process = run(*words, environment=light)
    assert process.returncode == 0, process.stderr
    assert "native backend" in process.stdout + process.stderr
    expected = tmp_path / "expected.csv"
    process = run(sys.executable, "-m", "edgernn", "run", MODEL, "--input", source, "--output", expected)
    assert process.returncode == 0, process.stderr
    y, truth = (np.loadtxt(path, delimiter=",") for path in (target, expected))
    np.testing.assert_allclose(y, truth, rtol=0, atol=SAME)


def test_the_installed_wheel_selects_the_best_instruction_set(light):
    names = instruction_sets()
    for isa in ("", *names):
        process = run("python", "-P", "-c", ISA, environment=light | {"EDGERNN_ISA": isa})
        assert process.stdout.strip() == (isa or names[-1]), process.stderr


@pytest.mark.parametrize("target", [LINUX, ARM])
def test_auditwheel_grades_the_wheel(target):
    report = " ".join(run(sys.executable, "-m", "auditwheel", "show", wheel(target)).stdout.split())
    grade = re.search(r'consistent with the following platform tag: "manylinux_2_(\d+)_', report)
    assert grade, report
    assert int(grade[1]) <= 28, report


def test_a_library_that_needs_a_newer_glibc_is_not_built(tmp_path):
    """A library that is linked without old_glibc.cc takes dlsym from the glibc of this machine."""
    source, library = tmp_path / "newer.c", tmp_path / "newer.so"
    source.write_text('void* dlsym(void*, const char*);\nvoid* f(void) { return dlsym(0, "f"); }\n', encoding="utf-8")
    assert run("gcc", "-shared", "-fPIC", source, "-o", library).returncode == 0
    build = load_script(BUILD)
    with pytest.raises(SystemExit, match=r"expected symbols of glibc 2\.28 or older, got dlsym of glibc 2\.34"):
        build.check_glibc(library)


@cases
def test_every_library_selects_the_best_instruction_set(target, processor, names):
    line, _, _ = printed(target, processor, "train_step.cc").partition(b"\n")
    assert line.split() == 2 * [names[-1].encode()]


@cases
def test_training_equals_that_of_the_installed_library(target, processor, names):
    def results(*arguments, **options):
        return np.frombuffer(printed(*arguments, "train_step.cc", **options).partition(b"\n")[2], np.float32)

    expected = results(LINUX, "")
    assert len(expected) > 10_000
    for isa in names:
        np.testing.assert_allclose(results(target, processor, isa=isa), expected, rtol=1e-4, atol=1e-5)


@functools.cache
def stepped(cell: str, rule: str, weights: str) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return a packed model, x (T, B, I), and y of the installed library."""
    content = packed_alone(rounded(contractive(cell, rule, input_size=17), weights), weights)
    x = random_input(9, 3, 17)
    return content, x, steps(content, x)[0]


@pytest.mark.parametrize(
    ("case", "cell", "rule", "weights"),
    pairwise(
        CASES,
        ["rnn", "gru", "lstm", "irc-gru", "eins", "sru", "fastgrnn"],
        ["always", "skip", "selective"],
        ["float32", "bfloat16", "int8"],
    ),
)
def test_steps_equal_those_of_the_installed_library(case, cell, rule, weights, tmp_path):
    target, processor, names = case
    content, x, expected = stepped(cell, rule, weights)
    path = tmp_path / "model.edgernn"
    path.write_bytes(content)
    for isa in names:
        data = printed(target, processor, "side_by_side.c", path, x.shape[1], isa=isa, data=x.tobytes())
        y = np.frombuffer(data, np.float32).reshape(expected.shape)
        np.testing.assert_allclose(y, expected, rtol=0, atol=ATOL)


@cases
def test_a_damaged_model_is_refused(target, processor, names, tmp_path):
    path = tmp_path / "model.edgernn"
    path.write_bytes(packed_alone(contractive("gru"))[:-1])
    with pytest.raises(AssertionError, match="packed model: expected "):
        printed(target, processor, "side_by_side.c", path, 1)


def test_the_python_code_runs_without_what_windows_lacks(light, tmp_path):
    """A stand-in for a test of the wheel on Windows, whose Python has neither these modules nor SIGHUP."""
    code = "import signal, sys; del signal.SIGHUP; sys.modules.update(dict.fromkeys(['termios', 'fcntl', 'resource']))"
    words = ["run", MODEL, "--input", first_sequence(tmp_path), "--output", tmp_path / "y.csv"]
    process = run("python", "-P", "-c", f"{code}; from edgernn.__main__ import run; run()", *words, environment=light)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "y.csv").is_file()
