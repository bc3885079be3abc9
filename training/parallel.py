# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training: several processes share every batch.

The gradient equals that of the whole batch: each process weights the mean loss of its sequences by their number, and
DistributedDataParallel averages the gradients. Statistics over a batch (`norm=recurrent-batch`, the loss of an imputer)
are summed over all processes. Process 0 alone evaluates, and reads and writes the run directory; it broadcasts its
results. Random numbers in training (dropout, masks, samples, the rule `random`) differ from process to process.

The processes are started by torchrun or by `together`, and connect through torchrun's environment variables.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.cells.norm import RecurrentBatchNorm
from edgernn.errors import EdgernnError, UsageError
from edgernn.imputers import Imputer
from edgernn.training.child_processes import LAUNCHED, Child, launched, report_ready
from edgernn.training.plan import Plan
from edgernn.training.tasks.sources import Batch

T = TypeVar("T")
# timeout of collectives: longer than the longest evaluation, in which all others wait for process 0
_PATIENCE = timedelta(hours=6)
# keeps process groups alive: destroying the last reference joins threads with the GIL held, which can deadlock
_kept: list[Any] = []
# first word of the seed of a process's random generator; it differs from those of all other generators
_NOISE = 21


@dataclass
class Group:
    """The processes of a data-parallel training. Every method is collective: all processes must call it.

    Attributes:
        rank: Rank of this process.
        size: Number of processes.
        weight: Factor by which this process multiplies its loss, the mean over its own sequences. The mean of the
            products over the processes is the mean loss over the whole batch.
        present: 1 if this process has sequences of the current batch; 0 if the batch has too few for all processes.
    """

    rank: int = 0
    size: int = 1
    weight: float = 1.0
    present: float = 1.0

    @property
    def leads(self) -> bool:
        return self.rank == 0

    # batches and gradients

    def wrap(self, loss: nn.Module, model: nn.Module) -> nn.Module:
        """Wrap a loss module by DistributedDataParallel, so that backward averages gradients over the processes.

        All processes get the weights of process 0. A group of one process returns the module unchanged.

        Args:
            loss: Module that computes the loss of this process's part of a batch.
            model: The network that this module contains.

        Returns:
            The wrapped module.
        """
        if self.size == 1:
            return loss
        for module in model.modules():
            if isinstance(module, RecurrentBatchNorm | Imputer):
                module.total = self.total
        # a learned initial state has no gradient in batches that continue others
        return nn.parallel.DistributedDataParallel(loss, find_unused_parameters=True)

    def part(self, batch: Batch, seed: int, step: int) -> Batch:
        """Select the sequences of a batch that this process trains on; seed the random generator, except in process 0.

        The sequences have the indices rank, rank + size, ... A process without a sequence of its own gets those of
        process 0, and its loss has the weight 0. The method sets the attributes `weight` and `present` for this batch.

        Args:
            batch: The whole batch.
            seed: Seed of the run.
            step: Number of the training step, from 0.

        Returns:
            A batch of these sequences.
        """
        if self.size == 1:
            return batch
        count = batch.x.shape[1]
        local_count = len(range(self.rank, count, self.size))
        self.weight, self.present = local_count * self.size / count, float(local_count > 0)
        if not self.leads:
            torch.manual_seed(int(np.random.default_rng([_NOISE, seed, step, self.rank]).integers(2**62)))
        return batch.part(self.rank if local_count else 0, self.size)

    def total(self, x: Tensor) -> Tensor:
        """Sum a tensor over the processes, differentiably; a process without sequences of the batch adds zero."""
        total: Tensor = _Total.apply(x * self.present)  # type: ignore[no-untyped-call]
        return total

    def share(self, carry: State | None) -> State | None:
        """Select this process's part of the state of the whole batch.

        The part has the sequences with the numbers rank, rank + size, rank + 2 size and so on. `carry` is a tuple of
        tensors whose first axis is the batch: the state after the last step, from which the next batch continues. The
        result is None if `carry` is None.
        """
        return carry if carry is None or self.size == 1 else tuple(t[self.rank :: self.size].clone() for t in carry)

    def whole(self, carry: State | None) -> State | None:
        """Gather the state of the whole batch from the processes' parts of it; the inverse of `share`.

        `carry` is the part of this process: the last state of its sequences. The result is None if `carry` is None.
        """
        if carry is None or self.size == 1:
            return carry
        states = []
        for tensor in carry:
            parts = [torch.empty_like(tensor) for _ in range(self.size)]
            dist.all_gather(parts, tensor.contiguous())
            states.append(torch.stack(parts, 1).flatten(0, 1))
        return tuple(states)

    # communication

    def mean(self, value: float) -> float:
        if self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / self.size

    def any(self, flag: bool) -> bool:
        return self.mean(float(flag)) > 0

    def first(self, make: Callable[[], T]) -> T:
        """Call a function in process 0 alone and broadcast its result, which JSON can represent, to all processes.

        An EdgernnError of the function is raised in all processes.
        """
        if self.size == 1:
            return make()
        error = result = None
        if self.leads:
            try:
                result = make()
            except EdgernnError as caught:
                error = caught
        message = {
            "result": result,
            "error": None if error is None else str(error),
            "usage": isinstance(error, UsageError),
        }
        content = self.send(json.dumps(message).encode())
        if error is not None:
            raise error
        if self.leads:
            return result  # type: ignore[return-value]
        assert content is not None
        received = json.loads(content)
        if received["error"] is not None:
            raise (UsageError if received["usage"] else EdgernnError)(received["error"])
        value: T = received["result"]
        return value

    def send(self, content: bytes | None) -> bytes | None:
        """Broadcast the bytes `content`, or None, from process 0; return them in all processes.

        The argument of every other process is ignored.
        """
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
    """Return True in process 0 of a data-parallel training, or in the only process; this process prints."""
    return os.environ.get("RANK", "0") == "0"


def leave(status: int) -> None:
    """Exit at once, without interpreter shutdown, if this process has joined a process group; else do nothing.

    A shutdown would destroy torch's process groups and could abort in their threads.
    """
    if _kept:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(status)


def size_of(devices: int | None) -> int:
    """Return the number of processes of a training: that of torchrun, else of the option `--devices`, else 1.

    UsageError is raised if torchrun has started several processes, but not as many as `devices`.
    """
    started = int(os.environ.get("WORLD_SIZE", "1")) if "MASTER_ADDR" in os.environ else 1
    if devices is not None and started > 1 and devices != started:
        raise UsageError(
            f"devices: expected {started}, the number of processes of torchrun, got {devices}; leave out --devices"
        )
    return started if started > 1 else devices or 1


def check_size(plan: Plan, size: int) -> None:
    """Check that a number of processes can share the batches of a training, and that each can have a GPU of its own.

    Args:
        plan: The training.
        size: Number of processes.

    Raises:
        UsageError: The task's batches cannot be divided, the batch size is no multiple of `size`, or the training is on
            GPUs and this machine has too few.
    """
    if size == 1:
        return
    if not plan.task.divides:
        raise UsageError(
            f"devices: expected 1, as {plan.task.name} cannot divide its batches, got {size}; leave out --devices"
        )
    batch = plan.config.batch_size
    if batch % size:
        most, least = -(-batch // size), batch // size
        others = ", ".join(str(n) for n in range(1, batch + 1) if batch % n == 0 and n <= 2 * size)
        nearby = " or ".join(str(n * size) for n in (least, most) if n)
        raise UsageError(
            f"batch_size: expected a multiple of the number of processes, {size}, got {batch}, which would give some "
            f"processes {most} sequences of a batch and others {least}; set batch_size to {nearby}, or set the number "
            f"of processes (--devices) to one of {others}"
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    gpus = torch.cuda.device_count()
    if plan.device == "cuda" and local > gpus:
        raise UsageError(
            f"devices: {local} processes on this machine need a GPU each, torch finds {gpus}; lower --devices"
        )


@contextmanager
def together(plan: Plan, size: int, command: list[str]) -> Iterator[Group]:
    """Connect the processes of a data-parallel training while the `with` block runs.

    Process 0 starts the other processes, unless torchrun has started them.

    Args:
        plan: The training.
        size: Number of processes.
        command: The command line of `edgernn train` that starts another process.

    Yields:
        The group of processes.

    Raises:
        EdgernnError: Another process has failed, or the connection to it was lost.
    """
    if size == 1:
        yield Group()
        return
    children: list[Child] = []
    with ExitStack() as stack:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            children = stack.enter_context(launched(size, command))
        elif LAUNCHED in os.environ:
            report_ready()
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
            lost = next(filter(None, (child.failure() for child in children)), "the connection to it was lost")
            raise EdgernnError(
                f"devices: one of the {size} training processes failed: {lost}; resume the run with --resume"
            ) from None
