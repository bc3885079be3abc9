# SPDX-License-Identifier: Apache-2.0
"""Build wheels, or the kit for C and C++, for each target whose compiler is installed: `make wheels`, `make sdk`.

Wheels are written to dist, and the kit to build/sdk. A target without a compiler is named on standard error and left
out. Two builds of a wheel have the same bytes. `make check-wheels` and `make check-sdk` test the products.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
SDK = ROOT / "build" / "sdk"
# licences of wasi-libc, of which the WebAssembly modules contain parts; Debian's package installs this file
WASI_LIBC = Path("/usr/share/doc/wasi-libc/copyright")
# the newest glibc that a library may need, as the tags of the wheels say
NEWEST_GLIBC = (2, 28)
JOBS = "2"
# the date of all files in a wheel, unless the environment sets one: the earliest that a zip file can have
SOURCE_DATE_EPOCH = "315532800"


@dataclass(frozen=True)
class Target:
    """A system and processor.

    Attributes:
        name: GNU name, which is also the name of the CMake toolchain file of a foreign target.
        tag: Platform tag of the wheel.
        compiler: Name of the C++ compiler.
        package: Debian's package with the compiler.
    """

    name: str
    tag: str
    compiler: str
    package: str

    @property
    def folder(self) -> Path:
        """The CMake build folder; that of the native target is the one of `pip install`."""
        return ROOT / "build" / ("py3-none-linux_x86_64" if self == NATIVE else self.name)


NATIVE = Target("x86_64-linux-gnu", "manylinux_2_28_x86_64", "g++", "g++")
TARGETS = (
    NATIVE,
    Target("aarch64-linux-gnu", "manylinux_2_28_aarch64", "aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"),
    Target("x86_64-w64-mingw32", "win_amd64", "x86_64-w64-mingw32-g++-posix", "g++-mingw-w64-x86-64-posix"),
)


def run(*words: object, **options: str) -> str:
    """Run a command; return its standard output.

    Args:
        *words: Command and arguments.
        **options: Variables that are added to the environment.

    Returns:
        The standard output.

    Raises:
        SystemExit: The command failed.
    """
    process = subprocess.run(
        list(map(str, words)), cwd=ROOT, env=os.environ | options, stdout=subprocess.PIPE, text=True
    )
    if process.returncode != 0:
        raise SystemExit(f"{process.stdout}build: failed: {' '.join(map(str, words))}")
    return process.stdout


def buildable(names: list[str]) -> list[Target]:
    """Return the targets of these names whose compilers are installed; print the others."""
    installed = []
    for target in TARGETS:
        if target.name not in names:
            continue
        if shutil.which(target.compiler):
            installed.append(target)
        else:
            print(
                f"{target.name}: skipped, {target.compiler} is not installed; run: apt-get install {target.package}",
                file=sys.stderr,
            )
    return installed


def build(target: Target, *libraries: str) -> None:
    """Compile libraries, which are CMake targets."""
    toolchain = [] if target == NATIVE else ["--toolchain", ROOT / "cmake" / f"{target.name}.cmake"]
    ninja = f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}"
    run("cmake", "-G", "Ninja", ninja, *toolchain, "-S", ROOT, "-B", target.folder)
    run("cmake", "--build", target.folder, "--parallel", JOBS, "--target", *libraries)


def check_glibc(library: Path) -> None:
    """Check that a library for Linux loads with the oldest supported glibc.

    Args:
        library: The library.

    Raises:
        SystemExit: It needs a newer one.
    """
    for name, version in re.findall(r"(\S+)@GLIBC_([\d.]+)", run("readelf", "--dyn-syms", "--wide", library)):
        if tuple(map(int, version.split("."))) > NEWEST_GLIBC:
            raise SystemExit(
                f"{library}: expected symbols of glibc 2.28 or older, got {name} of glibc {version}; add it to "
                "runtime/csrc/common/old_glibc.cc"
            )


def clean_modes(folder: Path) -> None:
    """Set the permissions of files, which follow the umask of whoever copied the source."""
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.suffix in (".so", ".dll") else 0o644)


def wheels(targets: list[Target], dist: Path) -> None:
    """Build a wheel of the Python files, and add each target's libraries and bill of materials to a copy of it.

    Args:
        targets: Targets with a compiler.
        dist: Folder for the wheels.
    """
    os.environ.setdefault("SOURCE_DATE_EPOCH", SOURCE_DATE_EPOCH)
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pip = sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"
        settings = "-C", "wheel.cmake=false", "-C", "wheel.platlib=true"
        run(*pip, *settings, "-w", folder, ROOT, PIP_CONSTRAINT=str(ROOT / "constraints.txt"))
        (files,) = folder.glob("*.whl")
        for target in targets:
            place = folder / target.name
            run(sys.executable, "-m", "wheel", "unpack", "--dest", place, files)
            (content,) = place.iterdir()
            build(target, "edgernn_ops", "edgernn_train")
            run("cmake", "--install", target.folder, "--component", "wheel", "--prefix", content)
            for library in content.rglob("*.so"):
                check_glibc(library)
            (metadata,) = content.glob("*.dist-info")
            words = "--sbom", metadata / "sboms" / "edgernn.cdx.json", "--compiler", target.compiler
            run(sys.executable, "-m", "tests.list_dependencies", *words)
            clean_modes(content)
            run(sys.executable, "-m", "wheel", "pack", "--dest", place, content)
            words = "--platform-tag", target.tag, place / files.name
            tagged = run(sys.executable, "-m", "wheel", "tags", *words).strip()
            print(shutil.move(place / tagged, dist / tagged))


def sdk(targets: list[Target]) -> None:
    """Write the kit for each target, and the npm package where its module is built."""
    shutil.rmtree(SDK, ignore_errors=True)
    for target in targets:
        build(target, "edgernn", "edgernn_shared")
        run("cmake", "--install", target.folder, "--component", "sdk", "--prefix", SDK / target.name)
        print(SDK / target.name)
    if (ROOT / "runtime" / "js" / "edgernn.wasm").is_file():
        print(npm_package(SDK / "wasm"))
    else:
        print("wasm: skipped, runtime/js/edgernn.wasm is not built; run: make wasm", file=sys.stderr)
    print("microcontrollers: edgernn pack MODEL --target c writes the C source of a model")


def npm_package(folder: Path) -> Path:
    """Write the npm package with its licence and that of wasi-libc.

    Args:
        folder: The folder to create.

    Returns:
        The folder.

    Raises:
        SystemExit: The file with the licence of wasi-libc is missing.
    """
    if not WASI_LIBC.is_file():
        raise SystemExit(
            f"{WASI_LIBC}: no such file; it has the licence of parts of edgernn.wasm; run: apt-get install wasi-libc"
        )
    shutil.copytree(ROOT / "runtime" / "js", folder)
    shutil.copy(ROOT / "LICENSE", folder)
    shutil.copy(WASI_LIBC, folder / "LICENSE.wasi-libc")
    return folder


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("product", choices=("wheels", "sdk"))
    names = [target.name for target in TARGETS]
    parser.add_argument("--target", action="append", choices=names, help="Build for this target only; may be repeated.")
    parser.add_argument("--dist", type=Path, default=DIST, help="Folder for the wheels.  [default: dist]")
    system = f"{platform.machine()}-{platform.system()}".lower()
    if system != "x86_64-linux":
        raise SystemExit(f"build: expected a machine with x86_64-linux, got {system}")
    arguments = parser.parse_args()
    # tools that pip installed, such as ninja
    os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)
    targets = buildable(arguments.target or names)
    if arguments.product == "wheels":
        wheels(targets, arguments.dist)
    else:
        sdk(targets)


if __name__ == "__main__":
    main()
