# SPDX-License-Identifier: Apache-2.0
"""Addresses of clusters that sweeps refuse or do not reach, and machines of a cluster that cannot train."""

import os
import signal
import sys
import time

import pytest

import edgernn
from edgernn.errors import EdgernnError, MissingPackageError, UsageError
from edgernn.signals import Interrupted
from edgernn.training.sweep import cluster, sweep
from edgernn.training.sweep.cluster import interrupting
from tests.test_sweep import SWEEP, jobs_of


@pytest.fixture
def sweep_file(tmp_path):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path / "sweep.toml"


def test_without_ray_there_is_a_hint(sweep_file, monkeypatch):
    # a module set to None cannot be imported, as if it were not installed
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"edgernn sweep: needs ray; pip install 'ray>=2.50'"):
        sweep(sweep_file, out=sweep_file.parent / "runs")
    assert not (sweep_file.parent / "runs").exists()


@pytest.mark.parametrize("address", ["nowhere", "host:", ":1", "host:http", "host:99999"])
def test_what_is_no_address_is_refused(sweep_file, address):
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match="address: expected HOST:PORT, ray://HOST:PORT or auto, got"):
        sweep(sweep_file, out=sweep_file.parent / "runs", address=address)


def test_an_address_that_does_not_answer_says_how_long_it_was_given(sweep_file, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr(cluster, "ANSWER", 1.2)
    begun = time.monotonic()
    with pytest.raises(
        EdgernnError, match=r"address: no answer from 127.0.0.1:9 in 1 s .*is `ray start --head --port=9`"
    ):
        sweep(sweep_file, out=sweep_file.parent / "runs", address="127.0.0.1:9")
    assert time.monotonic() - begun < 4


def test_a_cluster_that_was_not_reached_leaves_rays_settings_as_it_was_imported(sweep_file, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("0123456789abcdef" * 4)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(UsageError, match="address: expected HOST:PORT"):
        sweep(sweep_file, out=sweep_file.parent / "runs", address="nowhere")
    assert "RAY_AUTH_MODE" not in os.environ


def test_a_machine_without_the_folder_or_of_another_version_says_so(tmp_path):
    (job,) = jobs_of(tmp_path, 1)
    arguments = (1, None, "cpu", tmp_path / "nowhere", edgernn.__version__)
    assert "cannot see the folder" in cluster._run_job(job, tmp_path, *arguments).error
    assert "expected edgernn 0.0.0, got" in cluster._run_job(job, tmp_path, *arguments[:-1], "0.0.0").error
    assert not job.out.exists()


def test_an_exit_of_rays_handler_is_an_interrupt():
    with pytest.raises(Interrupted, match="interrupted") as caught, interrupting():
        sys.exit(signal.SIGTERM)
    assert caught.value.number == signal.SIGTERM
