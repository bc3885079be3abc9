# SPDX-License-Identifier: Apache-2.0
"""Worker processes for trainings on Ray, on this machine or on a cluster.

All machines of a cluster need a shared file system, mounted at the same path.
"""

import logging
import os
import secrets
import signal
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
from edgernn.signals import Interrupted, raising
from edgernn.training.tables.jobs import Job, Outcome, Workers, attempt
from edgernn.training.tables.worker_processes import environment, thread_variables

# timeouts in seconds: for a cluster's answer, for joining it, and for interrupted jobs to save their checkpoints
ANSWER, JOIN, SAVE = 10.0, 60.0, 60.0
_JOIN = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False)"
_REFUSED = "InvalidAuthToken"
# bytes of Ray's object store, which is not used here: near Ray's minimum
_STORE = 80 * 2**20
# file of `ray get-auth-token --generate` in the home folder
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
    """Open a pool of Ray workers for trainings, on a cluster or on this machine, until the `with` block ends.

    Args:
        count: Number of trainings (jobs).
        out: Folder of the runs.
        address: Address of the cluster; None: start Ray on this machine, until the block ends.
        jobs: Maximal number of jobs at once. Default: as many as the processors, or the cluster, allow.
        threads: Threads of each job.
        gpus: GPUs of each job.
        data: The user's folder of data sets. None: the folder in the environment variable EDGERNN_DATA.

    Yields:
        The pool.

    Raises:
        UsageError: `jobs` is below 1.
        MissingPackageError: Ray is not installed.
        EdgernnError: The cluster cannot be reached.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs: expected at least 1, got {jobs}; give a larger number or leave it out")
    ray = load(address)
    processors = max(threads, jobs * threads if jobs else os.cpu_count() or 1)
    # local workers inherit these variables; Ray sets the threads on other machines
    variables = thread_variables(threads) | (_token_variables() if address is None else {})
    with environment(variables), interrupting():
        _connect(ray, address, processors)
        workers = RayWorkers(ray, min(count, jobs or count), out, threads, gpus, data)
        try:
            # restore our SIGTERM handler, which Ray has replaced
            with raising():
                yield workers
        except BaseException:
            workers.interrupt()
            raise
        finally:
            ray.shutdown()


@contextmanager
def interrupting() -> Iterator[None]:
    """Convert a SystemExit that is raised in the `with` block to Interrupted.

    While Ray starts or shuts down, its own SIGTERM handler is active, and this handler raises SystemExit.
    """
    try:
        yield
    except SystemExit:
        raise Interrupted.by(signal.SIGTERM, "interrupted") from None


def load(address: str | None) -> ModuleType:
    """Import Ray, reduce its log output, and let it use the cluster's authentication token.

    Args:
        address: Address of the cluster. If the user's home folder has a file with a token for the cluster, Ray uses
            it. None: Ray runs on this machine alone and does not use that file.

    Returns:
        The module ray.

    Raises:
        MissingPackageError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    # use the token of `ray start`; Ray reads this variable at import, and its processes inherit it
    if address is not None and "ray" not in sys.modules and (Path.home() / _TOKEN).is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    # silences a warning about the GPUs of tasks that ask for none
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with needed_by("edgernn sweep"):
        import ray
    logging.getLogger("ray").setLevel(logging.ERROR)
    module: ModuleType = ray
    return module


@cache
def _token_variables() -> dict[str, str]:
    """Return a dict of environment variables with a new random authentication token for Ray on this machine."""
    has_token = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    needs_token = os.environ.get("RAY_AUTH_MODE", "token").lower() == "token"
    return {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if needs_token and not has_token else {}


def _connect(ray: ModuleType, address: str | None, processors: int) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    if address is None:
        ray.init("local", num_cpus=processors, include_dashboard=False, object_store_memory=_STORE, **quiet)
        return
    if address != "auto":
        _wait_for_answer(address, ANSWER)
    _try_to_join(address)
    ray.init(address, **quiet)


def _try_to_join(address: str) -> None:
    """Raise EdgernnError if this machine cannot join the Ray cluster at `address`."""
    started, why = time.monotonic(), "no Ray cluster"
    try:
        done = subprocess.run([sys.executable, "-c", _JOIN, address], capture_output=True, text=True, timeout=JOIN)
        if done.returncode == 0:
            return
        if lines := done.stderr.strip().splitlines():
            why = (
                "the token of this machine is missing or differs from the cluster's"
                if _REFUSED in done.stderr
                else lines[-1]
            )
    except subprocess.TimeoutExpired:
        pass
    waited = f"{time.monotonic() - started:.0f} s"
    hint = "all machines need the same Python and Ray, and the cluster's token"
    raise EdgernnError(f"address: {address} could not be joined in {waited}: {why}; {hint}")


def _wait_for_answer(address: str, seconds: float) -> None:
    """Wait until the address of a Ray cluster accepts a TCP connection."""
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
    """Pool of worker processes on Ray, whose scheduler runs as many trainings at once as processors and GPUs allow.

    Args:
        ray: The module ray.
        slots: Number of jobs submitted to Ray at once.
        out: Folder of the runs.
        threads: Threads of each job.
        gpus: GPUs of each job.
        data: The user's folder of data sets. None: the folder in the environment variable EDGERNN_DATA.
    """

    def __init__(self, ray: ModuleType, slots: int, out: Path, threads: int, gpus: float, data: Path | None) -> None:
        self.slots, self._ray = slots, ray
        self._arguments = (out, threads, data, device_of(gpus), Path.cwd(), edgernn.__version__)
        # no retries: Ray would silently repeat lost jobs
        self._run_job = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_run_job)
        self._running: dict[Any, Job] = {}

    def start(self, job: Job) -> None:
        self._running[self._run_job.remote(job, *self._arguments)] = job

    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        done, _ = self._ray.wait(list(self._running), timeout=seconds)
        return [(self._running.pop(ref), self._outcome(ref)) for ref in done]

    def _outcome(self, ref: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(ref)
            return outcome
        except errors.RayTaskError as error:
            return Outcome(f"{type(error.cause).__name__}: {error.cause}")
        except errors.OutOfMemoryError:
            return Outcome("its worker ran out of memory and was killed", lost=True)
        except errors.RayError:
            return Outcome("its worker died", lost=True)

    def interrupt(self) -> None:
        """Interrupt the running trainings, as Ctrl-C does, and wait up to 60 s (SAVE) for them to save checkpoints."""
        refs = list(self._running)
        # the connection to the cluster may be lost
        with suppress(Exception):
            for ref in refs:
                self._ray.cancel(ref)
            self._ray.wait(refs, num_returns=len(refs), timeout=SAVE)


def _run_job(job: Job, out: Path, threads: int, data: Path | None, device: str, folder: Path, version: str) -> Outcome:
    """Run a training in a Ray worker, after a check of the version of edgernn and the shared folder on its machine."""
    where = socket.gethostname()
    if edgernn.__version__ != version:
        return Outcome(f"{where}: expected edgernn {version}, got {edgernn.__version__}; install {version} there")
    with suppress(OSError):
        os.chdir(folder)
    if Path.cwd() != folder or not (out / LOCK).exists():
        return Outcome(
            f"{where} cannot see the folder {folder / out}; mount it at the same path on all machines of the cluster"
        )
    import torch

    torch.set_num_threads(threads)
    return attempt(job, data, device)


def device_of(gpus: float) -> str:
    """Return the device of a training with `gpus` GPUs: cpu for 0, else cuda."""
    return "cuda" if gpus else "cpu"
