# SPDX-License-Identifier: Apache-2.0
"""One training in several processes, each with its part of every batch.

The gradient is that of the whole batch: each process takes that of the mean over its own sequences, weighted with their
number, and DistributedDataParallel averages. What is normalised over a batch (`norm=recurrent-batch`, the loss of an
imputer) is so over the whole one. Process 0 alone reads and writes the run directory and evaluates; the others are told
what it found. What a network draws in training (dropout, samples) every process draws for itself.

`torchrun` starts the processes, or `launch` does; either way they find each other by torchrun's variables.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.cells.norm import RecurrentBatchNorm
from edgernn.errors import EdgernnError, UsageError
from edgernn.imputers import Imputer
from edgernn.training.plan import Plan
from edgernn.training.tasks import Batch

T = TypeVar("T")
# how long processes wait for another: as long as the longest evaluation, which process 0 makes alone
_PATIENCE = timedelta(hours=6)
_LAUNCHED = "EDGERNN_LAUNCHED"
# process groups, for good: whoever is the last to hold one, DistributedDataParallel after an error, waits for threads,
# with Python's lock, that may be waiting for that lock
_kept: list[Any] = []
# what a process draws has a number of its own
_NOISE = 21


@dataclass
class Group:
    """The processes of a training, of which this is `rank` of `size`. All methods are called by all of them at once.

    weight: of the mean over this process's sequences of the batch, where the mean over processes is that of the batch.
    there: 0 where a batch has fewer sequences than there are processes and this one has none of them, else 1.
    """

    rank: int = 0
    size: int = 1
    weight: float = 1.0
    there: float = 1.0

    @property
    def leads(self) -> bool:
        return self.rank == 0

    # what is trained

    def wrap(self, loss: nn.Module, model: nn.Module) -> nn.Module:
        """A module that gives the loss of this process's part of a batch; its backward averages the gradients.

        model: the one in it. All processes get the weights of process 0.
        """
        if self.size == 1:
            return loss
        for module in model.modules():
            if isinstance(module, RecurrentBatchNorm | Imputer):
                module.total = self.total
        # a start that is learned is not reached by the loss of a batch that goes on with another
        return nn.parallel.DistributedDataParallel(loss, find_unused_parameters=True)

    def part(self, batch: Batch, seed: int, step: int) -> Batch:
        """This process's sequences of a batch, where it has none some that weigh nothing; and its random numbers."""
        if self.size == 1:
            return batch
        count = batch.x.shape[1]
        own = len(range(self.rank, count, self.size))
        self.weight, self.there = own * self.size / count, float(own > 0)
        if not self.leads:
            torch.manual_seed(int(np.random.default_rng([_NOISE, seed, step, self.rank]).integers(2**62)))
        return batch.part(self.rank if own else 0, self.size)

    def total(self, x: Tensor) -> Tensor:
        """The sum over the processes of what each has of a batch, differentiable."""
        total: Tensor = _Total.apply(x * self.there)  # type: ignore[no-untyped-call]
        return total

    def share(self, carry: State | None) -> State | None:
        """This process's part of what the whole batch carries, the sequences along the first axis."""
        return carry if carry is None or self.size == 1 else tuple(t[self.rank :: self.size].clone() for t in carry)

    def whole(self, carry: State | None) -> State | None:
        """What the whole batch carries, from the parts."""
        if carry is None or self.size == 1:
            return carry
        made = []
        for tensor in carry:
            parts = [torch.empty_like(tensor) for _ in range(self.size)]
            dist.all_gather(parts, tensor.contiguous())
            made.append(torch.stack(parts, 1).flatten(0, 1))
        return tuple(made)

    # what all are told

    def mean(self, value: float) -> float:
        if self.size == 1:
            return value
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found)
        return found.item() / self.size

    def any(self, flag: bool) -> bool:
        return self.mean(float(flag)) > 0

    def first(self, make: Callable[[], T]) -> T:
        """What process 0 makes, something that JSON can hold; an EdgernnError that it raises is raised by all."""
        if self.size == 1:
            return make()
        error = made = None
        if self.leads:
            try:
                made = make()
            except EdgernnError as caught:
                error = caught
        said = {"made": made, "error": None if error is None else str(error), "usage": isinstance(error, UsageError)}
        content = self.send(json.dumps(said).encode())
        if error is not None:
            raise error
        if self.leads:
            return made  # type: ignore[return-value]
        assert content is not None
        told = json.loads(content)
        if told["error"] is not None:
            raise (UsageError if told["usage"] else EdgernnError)(told["error"])
        value: T = told["made"]
        return value

    def send(self, content: bytes | None) -> bytes | None:
        """What process 0 has; what the others give is not looked at."""
        if self.size == 1:
            return content
        length = torch.tensor(-1 if content is None else len(content))
        dist.broadcast(length, 0)
        if length < 0:
            return None
        data = torch.empty(int(length), dtype=torch.uint8)
        if self.leads and content:
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return data.numpy().tobytes()


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _Total.forward(ctx, grads[0].contiguous())


def leads() -> bool:
    """Whether this process is the one of its group that speaks."""
    return os.environ.get("RANK", "0") == "0"


def leave(status: int) -> None:
    """End this process, if it has trained with others, without the end of the interpreter.

    That would let go of the groups, and abort threads of theirs that still hold a tensor which Python has dropped.
    """
    if _kept:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(status)


def size_of(devices: int | None) -> int:
    """How many processes train: those that torchrun has started, else `devices`. Raises UsageError for two numbers."""
    started = int(os.environ.get("WORLD_SIZE", "1")) if "MASTER_ADDR" in os.environ else 1
    if devices is not None and started > 1 and devices != started:
        raise UsageError(f"devices: torchrun has started {started} processes, got --devices {devices}; leave it out")
    return started if started > 1 else devices or 1


def check_size(plan: Plan, size: int) -> None:
    """Raises UsageError where so many processes cannot share the batches of a training, or the GPUs of this machine."""
    if size == 1:
        return
    if not plan.task.divides:
        raise UsageError(f"devices: a batch of the task {plan.task.name} cannot be shared out, got {size} devices")
    batch = plan.config.batch_size
    if batch % size:
        most, least = -(-batch // size), batch // size
        others = ", ".join(str(n) for n in range(1, batch + 1) if batch % n == 0 and n <= 2 * size)
        nearby = " or ".join(str(n * size) for n in (least, most) if n)
        raise UsageError(
            f"batch_size: {size} processes cannot share {batch} sequences equally: {batch % size} of them would train "
            f"on {most} while the others, with {least}, wait at every step; give batch_size={nearby}, or {others} "
            "devices"
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    if plan.device == "cuda" and local > torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise UsageError(f"devices: {local} processes on this machine need a GPU each, torch finds {there}")


@contextmanager
def together(plan: Plan, size: int, command: list[str]) -> Iterator[Group]:
    """Inside, this is one of the processes that train together; the first one starts the others unless torchrun has.

    command: the words of `edgernn train` that start another. Raises EdgernnError where one of them is lost.
    """
    if size == 1:
        yield Group()
        return
    children: list[_Child] = []
    with ExitStack() as stack:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            children = stack.enter_context(_launched(size, command))
        elif _LAUNCHED in os.environ:
            _report_ready()
        rank = int(os.environ["RANK"])
        if plan.device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        try:
            dist.init_process_group("cpu:gloo,cuda:nccl" if plan.device == "cuda" else "gloo", timeout=_PATIENCE)
            stack.callback(dist.destroy_process_group)
            _kept.append(dist.group.WORLD)
            yield Group(rank, size)
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error):
                raise
            lost = next(filter(None, (child.complaint() for child in children)), "the connection to one was lost")
            raise EdgernnError(f"of {size} processes that train together {lost}; go on with --resume") from None


class _Child:
    """A process that this one has started."""

    def __init__(self, rank: int, words: list[str], environment: dict[str, str]) -> None:
        self.rank = rank
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=self._stderr)

    def complaint(self, patience: float = 5.0) -> str | None:
        """How it failed, if it has, or does within some seconds."""
        try:
            status = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        if status == 0:
            return None
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip().splitlines()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"process {self.rank} {how}" + (f" ({said[-1]})" if said else "")

    def end(self, patience: float) -> None:
        """Wait for its end; what has not ended after so many seconds is killed."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()


@contextmanager
def _launched(size: int, command: list[str]) -> Iterator[list[_Child]]:
    """Inside, the other processes of a group are there, and the variables say that this one is process 0."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, (os.cpu_count() or 1) // size))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        # as torchrun does: the store is there already
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "OMP_NUM_THREADS": str(threads),
    }
    before, threads_before = dict(os.environ), torch.get_num_threads()
    children: list[_Child] = []
    patience = 0.0
    try:
        for rank in range(1, size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), _LAUNCHED: "1"}
            children.append(_Child(rank, [sys.executable, "-m", *command], {**before, **shared, **own}))
        while not store.check([_ready(child.rank) for child in children]):
            for child in children:
                if why := child.complaint(0):
                    raise EdgernnError(f"of {size} processes that should train together {why}")
            time.sleep(0.02)
        os.environ.update({**shared, "RANK": "0", "LOCAL_RANK": "0"})
        torch.set_num_threads(threads)
        yield children
        patience = 60.0
    finally:
        torch.set_num_threads(threads_before)
        for name in {*shared, "RANK", "LOCAL_RANK"}:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
        for child in children:
            # what was interrupted ends as this process does; after another error it may wait for this one
            child.end(patience or 3.0)


def _report_ready() -> None:
    """Tell the process that has `_launched` this one that all is well so far."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
    store.set(_ready(int(os.environ["RANK"])), "")


def _ready(rank: int) -> str:
    return f"ready {rank}"
