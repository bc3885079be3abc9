# SPDX-License-Identifier: Apache-2.0
"""`make check-supply-chain`: licences, pinned versions, known vulnerabilities, and the bill of materials."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys

import pytest

from tests.list_dependencies import EXTRAS, NAME, allowed, bill, closure, licence
from tests.source_tree import ROOT

PACKAGES = sorted(closure(EXTRAS))


@pytest.mark.parametrize("name", PACKAGES)
def test_licence_allows_use_in_a_product(name):
    assert allowed(licence(name)), f"{name}: {licence(name)}"


@pytest.mark.parametrize("text", ["GPL-3.0-or-later", "GNU General Public License v2 (GPLv2)", "unknown", "SSPL-1.0"])
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


def test_no_known_vulnerability():
    if importlib.util.find_spec("pip_audit") is None:
        pytest.skip("pip-audit is not installed: vulnerabilities are NOT checked; pip install pip-audit")
    words = ["-m", "pip_audit", "--requirement", ROOT / "constraints.txt", "--no-deps", "--disable-pip"]
    process = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    if "ConnectionError" in process.stderr or "ServiceError" in process.stderr or "Max retries" in process.stderr:
        pytest.skip("the service of vulnerabilities cannot be reached: they are NOT checked")
    assert process.returncode == 0, process.stdout + process.stderr
