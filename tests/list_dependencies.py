# SPDX-License-Identifier: Apache-2.0
"""Lists the dependencies of an installation: `python -m tests.list_dependencies [EXTRA...] [--sbom FILE]`.

A line has a package, its version and its licence. --sbom writes a software bill of materials in the CycloneDX format,
to lie beside the wheel.
"""

import argparse
import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME, EXTRAS = "edgernn", ("cpu", "train")
# licences that allow use in a product without publishing its source; MPL-2.0 applies to its own files only
ALLOWED = re.compile(
    r"MIT|BSD|Apache|ISC|HPND|PSF|Python|MPL-2\.0|Mozilla Public License 2\.0|Unlicense|CC0|Zlib|BSL",
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


def bill(extras: tuple[str, ...] = EXTRAS) -> dict[str, Any]:
    """Return the software bill of materials, a CycloneDX document."""
    needs = closure(extras)

    def reference(name: str) -> str:
        return f"pkg:pypi/{name}@{quote(importlib.metadata.version(name))}"

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
        "components": [component(name) for name in sorted(needs) if name != NAME],
        "dependencies": [
            {"ref": reference(name), "dependsOn": sorted(map(reference, others))}
            for name, others in sorted(needs.items())
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", default=EXTRAS, help="Extras of edgernn.  [default: cpu train]")
    parser.add_argument("--sbom", type=Path, help="Write a CycloneDX document to this file.")
    arguments = parser.parse_args()
    for name in sorted(closure(tuple(arguments.extras))):
        print(f"{name:24} {importlib.metadata.version(name):16} {licence(name)}")
    if arguments.sbom is not None:
        arguments.sbom.parent.mkdir(parents=True, exist_ok=True)
        arguments.sbom.write_text(json.dumps(bill(tuple(arguments.extras)), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
