# SPDX-License-Identifier: Apache-2.0
"""Child processes of a data-parallel training: processes 1, 2, ..., which process 0 starts on the same machine."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import torch
import torch.distributed as dist

from edgernn.errors import EdgernnError

LAUNCHED = "EDGERNN_LAUNCHED"
_HOST = "127.0.0.1"


class Child:
    """Child process: a process of a data-parallel training that process 0 has started on the same machine."""

    def __init__(self, rank: int, words: list[str], environment: dict[str, str]) -> None:
        self.rank = rank
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=self._stderr)

    def failure(self, timeout: float = 5.0) -> str | None:
        """Wait up to `timeout` seconds for the process to end, and describe its failure in a phrase.

        Return None if it still runs or has ended with status 0.
        """
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        if status == 0:
            return None
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"process {self.rank} {how}" + (f" ({lines[-1]})" if lines else "")

    def end(self, timeout: float) -> None:
        """Wait for the process to end, and kill it if it still runs after `timeout` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()


@contextmanager
def launched(size: int, command: list[str]) -> Iterator[list[Child]]:
    """Start the child processes of a data-parallel training, and end them after the block; this process has rank 0.

    In the block, this process also has the environment variables that torchrun sets for its processes. All connections
    use the loopback interface.

    Args:
        size: Number of processes, including this one.
        command: Module and arguments for `python -P -m`, which starts a child process.

    Yields:
        The child processes, in the order of their ranks 1, 2, ...

    Raises:
        EdgernnError: A child process failed before all of them were running.
    """
    threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, (os.cpu_count() or 1) // size))
    # a store that opens its own socket listens on all interfaces, without a password
    listener = socket.create_server((_HOST, 0))
    store = dist.TCPStore(  # type: ignore[attr-defined]
        _HOST,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    shared = {
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        # like torchrun: the store already exists
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(threads),
    }
    before, threads_before = dict(os.environ), torch.get_num_threads()
    children: list[Child] = []
    # after an error, a child may be waiting for this process
    timeout = 3.0
    try:
        for rank in range(1, size):
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), LAUNCHED: "1"}
            children.append(Child(rank, [sys.executable, "-P", "-m", *command], {**before, **shared, **ranks}))
        while not store.check([_ready(child.rank) for child in children]):
            for child in children:
                if why := child.failure(0):
                    raise EdgernnError(
                        f"devices: {size} processes should train together, but {why}; run the command again"
                    )
            time.sleep(0.02)
        os.environ.update({**shared, "RANK": "0", "LOCAL_RANK": "0"})
        torch.set_num_threads(threads)
        yield children
        timeout = 60.0
    finally:
        torch.set_num_threads(threads_before)
        for name in {*shared, "RANK", "LOCAL_RANK"}:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
        for child in children:
            child.end(timeout)


def report_ready() -> None:
    """Report from a child process to process 0, which waits in `launched`, that this process is running."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
    store.set(_ready(int(os.environ["RANK"])), "")


def _ready(rank: int) -> str:
    return f"ready {rank}"
