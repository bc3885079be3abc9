# SPDX-License-Identifier: Apache-2.0
"""`make check-supply-chain`: licences, pinned versions, known vulnerabilities, and the bill of materials."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.list_dependencies import EXTRAS, NAME, allowed, bill, closure, licence
from tests.source_tree import ROOT

PACKAGES = sorted(closure(EXTRAS))


@pytest.mark.parametrize("name", PACKAGES)
def test_licence_allows_use_in_a_product(name):
    assert allowed(licence(name)), f"{name}: {licence(name)}"


@pytest.mark.parametrize(
    "text",
    [
        *("GPL-3.0-or-later", "GNU General Public License v2 (GPLv2)", "unknown", "SSPL-1.0"),
        *("Proprietary, limited use", "Redistribution not permitted", "Business Source License (BSL)"),
        *("See disclaimer", "Python code, all rights reserved"),
    ],
)
def test_other_licences_are_found(text):
    assert not allowed(text)


def test_installed_versions_are_the_pinned_ones():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(re.fullmatch(r"([\w.-]+)==(\S+)", line).groups() for line in lines if not line.startswith("#"))
    for name in PACKAGES:
        if name in pinned:
            assert importlib.metadata.version(name).partition("+")[0] == pinned[name], name


def test_bill_names_every_package_once():
    document = bill()
    names = [component["name"] for component in document["components"]]
    assert sorted([*names, NAME]) == PACKAGES
    references = {component["bom-ref"] for component in [document["metadata"]["component"], *document["components"]]}
    for entry in document["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= references
    assert {"numpy", "torch", "onnxruntime"} <= set(names)


def judged(output):
    """Return the vulnerabilities that pip-audit found, as text, and the packages that it could not look up.

    pip-audit ends with 0 and "No known vulnerabilities" even if it could look up no package at all.
    """
    packages = json.loads(output)["dependencies"]
    known = [f"{p['name']} {p['version']}: {v['id']}" for p in packages for v in p.get("vulns", [])]
    return known, [package["name"] for package in packages if "skip_reason" in package]


def test_an_answer_without_advisories_is_no_clean_bill():
    clean = {"name": "numpy", "version": "2.4.6", "vulns": []}
    bad = {"name": "click", "version": "8.0", "vulns": [{"id": "PYSEC-1", "fix_versions": []}]}
    absent = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.13.0)"}
    assert judged(json.dumps({"dependencies": [clean], "fixes": []})) == ([], [])
    answer = json.dumps({"dependencies": [clean, bad, absent], "fixes": []})
    assert judged(answer) == (["click 8.0: PYSEC-1"], ["torch"])


def test_no_known_vulnerability():
    tool = shutil.which("pip-audit", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if tool is None:
        pytest.skip("pip-audit is not installed: vulnerabilities are NOT checked; pipx install pip-audit")
    words = ["--requirement", ROOT / "constraints.txt", "--no-deps", "--disable-pip", "--format", "json"]
    words += ["--timeout", "10", "--progress-spinner", "off"]
    try:
        process = subprocess.run([tool, *words], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip("the service of advisories does not answer: vulnerabilities are NOT checked")
    if re.search(r"ConnectionError|ServiceError|Max retries|Timeout", process.stderr):
        pytest.skip("the service of advisories cannot be reached: vulnerabilities are NOT checked")
    assert process.stdout, process.stderr
    known, absent = judged(process.stdout)
    assert not known
    if absent:
        pytest.skip(f"the service of advisories does not know {len(absent)} packages, which are NOT checked: {absent}")
    assert process.returncode == 0, process.stderr
