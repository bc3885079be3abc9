# SPDX-License-Identifier: Apache-2.0
"""Lists the dependencies of an installation: `python -m tests.list_dependencies [EXTRA...] [--sbom FILE]`.

A line has a package, its version and its licence. --sbom writes a software bill of materials in the CycloneDX format.
`make wheels` puts one into each wheel, which with --compiler also names the libraries that are linked into its own.
"""

import argparse
import importlib.metadata
import json
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME, EXTRAS = "edgernn", ("cpu", "train")
# licences that allow use in a product without publishing its source; MPL-2.0 applies to its own files only
ALLOWED = re.compile(
    r"\b(MIT|0?BSD|Apache|ISC|HPND|PSF|Python Software Foundation|MPL-2\.0|Mozilla Public License 2\.0|Unlicense|CC0"
    r"|Zlib|BSL-1\.0|Boost)\b",
    re.IGNORECASE,
)
COPYLEFT = re.compile(r"(?<!L)(?<!Lesser )GPL|AGPL|SSPL|Commons Clause", re.IGNORECASE)


def closure(extras: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the installed packages that edgernn needs with these extras, and the packages that each needs."""
    needs: dict[str, list[str]] = {}
    waiting = [(NAME, extras)]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        direct = needs.setdefault(name, [])
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in (*wanted, "")):
                continue
            other = canonicalize_name(requirement.name)
            # edgernn[train] names edgernn itself
            if other not in direct and other != name:
                direct.append(other)
            waiting.append((other, tuple(sorted(requirement.extras))))
    return needs


def licence(name: str) -> str:
    """Return the licence of a package as its metadata name it, or "unknown"."""
    metadata = importlib.metadata.metadata(name)
    if expression := metadata.get("License-Expression"):
        return str(expression)
    kinds = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    kinds = [kind for kind in kinds if kind != "OSI Approved"]
    lines = (metadata.get("License") or "unknown").strip().splitlines()
    return " OR ".join(kinds) or lines[0]


def allowed(text: str) -> bool:
    return bool(ALLOWED.search(text)) and not COPYLEFT.search(text)


def linked(compiler: str) -> list[dict[str, Any]]:
    """Return the components that a C++ compiler links into the native libraries.

    Args:
        compiler: GCC for one of the targets of `make wheels`.

    Returns:
        CycloneDX components, without their dependencies.
    """

    def output(*words: str) -> str:
        return subprocess.run([compiler, *words], input="", capture_output=True, text=True, check=True).stdout

    gcc = output("-dumpfullversion").strip()
    exception = "GPL-3.0-or-later WITH GCC-exception-3.1"
    parts = [("libgcc", gcc, exception), ("libstdc++", gcc, exception)]
    numbers = dict(
        re.findall(r"__MINGW64_VERSION_(\w+) (\d+)", output("-E", "-dM", "-x", "c++", "-include", "cstddef", "-"))
    )
    if numbers:
        version = ".".join(numbers[name] for name in ("MAJOR", "MINOR", "BUGFIX"))
        parts += [("mingw-w64", version, "ZPL-2.1"), ("winpthreads", version, "MIT AND BSD-3-Clause")]
    references = [f"pkg:generic/{quote(name)}@{version}" for name, version, _ in parts]
    return [
        {
            "type": "library",
            "bom-ref": reference,
            "name": name,
            "version": version,
            "purl": reference,
            "licenses": [{"expression": expression}],
        }
        for reference, (name, version, expression) in zip(references, parts, strict=True)
    ]


def bill(extras: tuple[str, ...] = EXTRAS, compiler: str | None = None) -> dict[str, Any]:
    """Return the software bill of materials.

    Args:
        extras: The extras whose packages it names.
        compiler: C++ compiler whose libraries it names, too.

    Returns:
        A CycloneDX document without a date, so that it has the same bytes at every build.
    """
    needs = closure(extras)
    inside = linked(compiler) if compiler else []

    def reference(name: str) -> str:
        return f"pkg:pypi/{name}@{quote(importlib.metadata.version(name))}"

    def library_references(name: str) -> list[str]:
        return [part["bom-ref"] for part in inside] if name == NAME else []

    def component(name: str) -> dict[str, Any]:
        return {
            "type": "library",
            "bom-ref": reference(name),
            "name": name,
            "version": importlib.metadata.version(name),
            "purl": reference(name),
            "licenses": [{"license": {"name": licence(name)}}],
        }

    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(NAME)},
        "components": [*(component(name) for name in sorted(needs) if name != NAME), *inside],
        "dependencies": [
            {"ref": reference(name), "dependsOn": sorted([*map(reference, others), *library_references(name)])}
            for name, others in sorted(needs.items())
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", default=EXTRAS, help="Extras of edgernn.  [default: cpu train]")
    parser.add_argument("--sbom", type=Path, help="Write a CycloneDX document to this file.")
    parser.add_argument("--compiler", help="C++ compiler whose libraries the document names, too.")
    arguments = parser.parse_args()
    for name in sorted(closure(tuple(arguments.extras))):
        print(f"{name:24} {importlib.metadata.version(name):16} {licence(name)}")
    if arguments.sbom is not None:
        text = json.dumps(bill(tuple(arguments.extras), arguments.compiler), indent=2) + "\n"
        arguments.sbom.parent.mkdir(parents=True, exist_ok=True)
        arguments.sbom.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
