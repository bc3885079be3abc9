# SPDX-License-Identifier: Apache-2.0
"""Trainings on Ray: on this machine, or on a cluster whose machines see the same folders at the same paths."""

import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import edgernn
from edgernn.errors import EdgernnError, UsageError
from edgernn.extras import needed_by
from edgernn.locks import LOCK
from edgernn.signals import raising
from edgernn.training.jobs import Job, Outcome, Workers, attempt, environment, thread_variables

# how long a cluster may take to answer and to be joined, and what is interrupted to save its checkpoint, in seconds
ANSWER, JOIN, SAVE = 10.0, 60.0, 60.0
_JOIN = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False)"
_REFUSED = "InvalidAuthToken"
# Ray's store of objects, for which we have no use, in bytes: near the least that it takes
_STORE = 80 * 2**20
# where `ray get-auth-token --generate` leaves it in a home folder
_TOKEN = ".ray/auth_token"


@contextmanager
def on_ray(
    count: int,
    *,
    out: Path,
    address: str | None,
    jobs: int | None,
    threads: int,
    gpus: float,
    data: Path | None,
) -> Iterator["RayWorkers"]:
    """Workers on Ray for `count` jobs: on the cluster at an address, else on this machine until this is left.

    out: the folder of the runs. jobs: at once; else what the processors, or the machines, can bear. threads, gpus: of
    each. Raises UsageError for a bad number, MissingPackageError where Ray is not installed, and EdgernnError where the
    cluster cannot be reached.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs: expected at least 1, got {jobs}")
    ray = load(address)
    processors = max(threads, jobs * threads if jobs else os.cpu_count() or 1)
    # what is started here inherits it; on other machines Ray sets it
    variables = thread_variables(threads) | (_private() if address is None else {})
    with environment(variables):
        _connect(ray, address, processors)
        workers = RayWorkers(ray, min(count, jobs or count), out, threads, gpus, data)
        try:
            # Ray has put a handler of SIGTERM in place of ours
            with raising():
                yield workers
        except BaseException:
            workers.interrupt()
            raise
        finally:
            ray.shutdown()


def load(address: str | None) -> ModuleType:
    """Ray, told to be quiet. Raises MissingPackageError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    # as `ray start` does, which finds the same token; Ray reads this when it is imported, what it starts reads it later
    if address is not None and "ray" not in sys.modules and (Path.home() / _TOKEN).is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    # it warns of what it is going to do with the GPUs of tasks that ask for none
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with needed_by("edgernn sweep"):
        import ray
    logging.getLogger("ray").setLevel(logging.ERROR)
    module: ModuleType = ray
    return module


@cache
def _private() -> dict[str, str]:
    """What keeps others out of a cluster of this process, unless the user has chosen.

    Ray's own way is a token in the home folder, and processes that find none there at the same time make one each. It
    reads a token once in a process, and leaves in the environment that there is one.
    """
    given = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    wanted = os.environ.get("RAY_AUTH_MODE", "token").lower() == "token"
    return {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if wanted and not given else {}


def _connect(ray: ModuleType, address: str | None, processors: int) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    if address is None:
        ray.init("local", num_cpus=processors, include_dashboard=False, object_store_memory=_STORE, **quiet)
        return
    if address != "auto":
        _reach(address, ANSWER)
    _try_to_join(address)
    ray.init(address, **quiet)


def _try_to_join(address: str) -> None:
    """Raises EdgernnError where what answers is no cluster that this machine can join.

    In a process of its own, since Ray ends the one that waited for a cluster in vain.
    """
    started, why = time.monotonic(), "no Ray cluster"
    try:
        done = subprocess.run([sys.executable, "-c", _JOIN, address], capture_output=True, text=True, timeout=JOIN)
        if done.returncode == 0:
            return
        if said := done.stderr.strip().splitlines():
            why = "the cluster's token is another one, or missing here" if _REFUSED in done.stderr else said[-1]
    except subprocess.TimeoutExpired:
        pass
    waited = f"{time.monotonic() - started:.0f} s"
    hint = "all machines need the same Python and Ray, and the cluster's token"
    raise EdgernnError(f"address: {address} could not be joined in {waited}: {why}; {hint}")


def _reach(address: str, seconds: float) -> None:
    """Raises UsageError for what is not HOST:PORT, EdgernnError where nothing answers there for so long."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"address: expected HOST:PORT, ray://HOST:PORT or auto, got {address!r}")
    started = time.monotonic()
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=seconds).close()
            return
        except OSError as error:
            waited = time.monotonic() - started
            if waited < seconds:
                time.sleep(min(0.5, seconds - waited))
                continue
            hint = f"is `ray start --head --port={port}` running there?"
            raise EdgernnError(f"address: no answer from {address} in {waited:.0f} s ({error}); {hint}") from None


class RayWorkers(Workers):
    """Ray's own scheduler takes what fits; `slots` is how many jobs it is given at once."""

    def __init__(self, ray: ModuleType, slots: int, out: Path, threads: int, gpus: float, data: Path | None) -> None:
        self.slots, self._ray = slots, ray
        self._rest = (out, threads, data, device_of(gpus), Path.cwd(), edgernn.__version__)
        # Ray would repeat what it lost without a word
        self._try = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_try)
        self._running: dict[Any, Job] = {}

    def start(self, job: Job) -> None:
        self._running[self._try.remote(job, *self._rest)] = job

    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        done, _ = self._ray.wait(list(self._running), timeout=seconds)
        return [(self._running.pop(ref), self._outcome(ref)) for ref in done]

    def _outcome(self, ref: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            found: Outcome = self._ray.get(ref)
            return found
        except errors.RayTaskError as error:
            return Outcome(f"{type(error.cause).__name__}: {error.cause}")
        except errors.OutOfMemoryError:
            return Outcome("its worker was killed for want of memory", lost=True)
        except errors.RayError:
            return Outcome("its worker died", lost=True)

    def interrupt(self) -> None:
        """Let what runs save its checkpoint, as after Ctrl-C."""
        refs = list(self._running)
        # the cluster may be what was lost
        with suppress(Exception):
            for ref in refs:
                self._ray.cancel(ref)
            self._ray.wait(refs, num_returns=len(refs), timeout=SAVE)


def _try(job: Job, out: Path, threads: int, data: Path | None, device: str, folder: Path, version: str) -> Outcome:
    """In a worker, on whatever machine: an `attempt`, where that machine has what the first one has."""
    where = socket.gethostname()
    if edgernn.__version__ != version:
        return Outcome(f"edgernn {edgernn.__version__} is installed on {where}, expected {version}")
    with suppress(OSError):
        os.chdir(folder)
    if Path.cwd() != folder or not (out / LOCK).exists():
        return Outcome(f"{where} does not see the folder {folder / out}: all machines must, at the same path")
    import torch

    torch.set_num_threads(threads)
    return attempt(job, data, device)


def device_of(gpus: float) -> str:
    """Where a training with so many GPUs runs."""
    return "cuda" if gpus else "cpu"
