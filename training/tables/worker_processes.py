# SPDX-License-Identifier: Apache-2.0
"""Worker processes on this machine, which train several runs at the same time."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from edgernn.errors import UsageError
from edgernn.signals import blocking_interrupts, ignore_interrupts
from edgernn.training.plan import choose_device
from edgernn.training.tables.jobs import Job, Outcome, Workers, attempt

# Windows cannot fork
_START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


@contextmanager
def processes(
    count: int, jobs: int | None, threads: int, data: Path | None, device: str
) -> Iterator["_ProcessWorkers"]:
    """Open a pool of worker processes on this machine.

    Args:
        count: Number of jobs to train in all.
        jobs: Maximal number of jobs at the same time. None: 1 on a GPU, else the number of processors divided by
            `threads`.
        threads: Number of CPU threads of each job.
        data: The folder of data sets; None to use the environment variable EDGERNN_DATA.
        device: Device to train on: auto, cpu or cuda.

    Yields:
        The pool.

    Raises:
        UsageError: `jobs` is below 1, or there is no such device.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs: expected at least 1, got {jobs}; choose a larger number")
    most = 1 if choose_device(device) == "cuda" else max(1, (os.cpu_count() or 1) // threads)
    slots = min(count, jobs or most)
    others, context = multiprocessing.active_children(), multiprocessing.get_context(_START)
    # a server, which starts with the first worker, imports torch once and forks all of them
    context.set_forkserver_preload(["edgernn.training.api"])
    # the server would import modules from the working directory
    variables = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "PYTHONSAFEPATH": "1"}
    with _environment(variables):
        workers = _ProcessWorkers(
            partial(ProcessPoolExecutor, 1, context, _begin, (dict(os.environ), threads)), slots, data, device
        )
        try:
            yield workers
        except BaseException:
            # an interrupted worker saves its run; the signal may have reached only this process
            for worker in set(multiprocessing.active_children()) - set(others):
                worker.terminate()
            raise
        finally:
            workers.close()


class _ProcessWorkers(Workers):
    """Worker processes, each in a pool of its own, so that the death of one does not end the others."""

    def __init__(
        self, make_pool: Callable[[], ProcessPoolExecutor], slots: int, data: Path | None, device: str
    ) -> None:
        self.slots, self._make_pool, self._settings = slots, make_pool, (data, device)
        self._free = [make_pool() for _ in range(slots)]
        self._running: dict[Future[Outcome], tuple[Job, ProcessPoolExecutor]] = {}

    def start(self, job: Job) -> None:
        pool = self._free.pop()
        try:
            future = self._submit(job, pool)
        except BrokenProcessPool:
            # an idle process was killed
            pool.shutdown()
            pool = self._make_pool()
            future = self._submit(job, pool)
        self._running[future] = job, pool

    def ended(self, seconds: float) -> list[tuple[Job, Outcome]]:
        ended = []
        for future in wait(self._running, timeout=seconds, return_when=FIRST_COMPLETED).done:
            outcome = _outcome(future)
            job, pool = self._running.pop(future)
            if outcome.lost:
                pool.shutdown()
            self._free.append(self._make_pool() if outcome.lost else pool)
            ended.append((job, outcome))
        return ended

    def close(self) -> None:
        """Wait until all running trainings end, then end the worker processes."""
        for pool in [*self._free, *(pool for _, pool in self._running.values())]:
            pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, job: Job, pool: ProcessPoolExecutor) -> Future[Outcome]:
        # a submission may start a process
        with blocking_interrupts():
            return pool.submit(attempt, job, *self._settings)


def _outcome(future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        return Outcome("its process was killed; it may have run out of memory", lost=True)


def _begin(environment: dict[str, str], threads: int) -> None:
    """Prepare a worker process, which has the environment of the first pool of the program."""
    ignore_interrupts()
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    # the first signal lets a training save its checkpoint, and a later one ends the idle process
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0)


@contextmanager
def _environment(ours: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
