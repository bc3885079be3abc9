# SPDX-License-Identifier: Apache-2.0
"""The training loop: optimiser steps, evaluations and checkpoints."""

import math
import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.errors import EdgernnError, counted
from edgernn.model import RecurrentModel
from edgernn.progress import Progress, in_words
from edgernn.signals import Interrupted, noting
from edgernn.steering import Steering
from edgernn.training.config import TrainConfig
from edgernn.training.evaluate import evaluate
from edgernn.training.optim import averaged, course, schedule, settle, watch
from edgernn.training.parallel import Group
from edgernn.training.plan import Plan
from edgernn.training.run_directory import Position, RunDirectory
from edgernn.training.tasks.base import FOREGROUND, Score, Task
from edgernn.training.tasks.sources import Batch


class TrainingLoss(nn.Module):
    """Training loss of a batch: loss of the task + λ · penalty on updates (`UpdateRule.budget`) + imputation loss.

    λ is the attribute `weight`, whose initial value is the setting lambda. The imputation loss is present only if the
    model fills in missing values: its error on values that are known, times the setting imputation.

    forward(batch, carry) returns the loss (scalar) and the last state. `carry` is the last state of the previous batch
    if this batch continues its sequences, else None. The returned state is None if the task carries no state. In
    data-parallel training, the mean of the losses over the processes is the loss of the whole batch.
    """

    def __init__(self, model: RecurrentModel, task: Task, config: TrainConfig, group: Group) -> None:
        super().__init__()
        self.model, self._task, self._config, self._group = model, task, config, group
        self.weight = config.lambda_

    def forward(self, batch: Batch, carry: State | None) -> tuple[Tensor, State | None]:
        model, config, group = self.model, self._config, self._group
        background = None if config.background is None else self._task.background(batch)
        # a negative λ rewards updates, but not at background steps
        with model.marked(background, (config.background or 0.0) if self.weight >= 0 else 0.0):
            loss, carry = self._task.loss(model, batch, carry)
        if self.weight:
            loss = loss + self.weight * model.budget
        if group.size > 1:
            loss = loss * group.weight
        if model.imputation_loss is not None:
            # the processes' imputation losses add up to that of the whole batch
            loss = loss + config.imputation * group.size * group.present * model.imputation_loss
        return loss, carry


def train_step(
    model: RecurrentModel,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    task: Task,
    config: TrainConfig,
    carry: State | None = None,
    group: Group | None = None,
    loss_of: nn.Module | None = None,
) -> tuple[float, State | None]:
    """Take one optimiser step on the `TrainingLoss` of a batch.

    Args:
        model: The network.
        optimizer: Optimiser of its parameters.
        batch: The batch, or this process's part of it.
        task: The task, which computes its loss of the batch.
        config: Training configuration.
        carry: Last state of the previous batch if this one continues its sequences, else None.
        group: Processes that train together. Default: this process alone.
        loss_of: The `TrainingLoss`, wrapped by `Group.wrap`. Default: a new one.

    Returns:
        The loss of the whole batch, and the last state, for a next batch that continues the sequences. The state is
        None if the task carries none.

    Raises:
        FloatingPointError: The loss or the gradient is not finite; the weights are unchanged.
    """
    group = group or Group()
    loss, carry = (loss_of or TrainingLoss(model, task, config, group))(batch, carry)
    optimizer.zero_grad()
    loss.backward()
    # read here, so that a GPU need not wait between forward and backward
    value = group.mean(loss.item())
    if not math.isfinite(value):
        raise FloatingPointError(f"expected a finite loss, got {value}: the training diverged; lower lr or clip")
    if config.optimizer.clip_value is not None:
        torch.nn.utils.clip_grad_value_(model.parameters(), config.optimizer.clip_value)
    norm = gradient_norm([p.grad for p in model.parameters() if p.grad is not None])
    if not math.isfinite(norm):
        raise FloatingPointError(
            f"expected a finite norm of the gradient, got {norm:g}: the training diverged; lower lr or clip"
        )
    if config.optimizer.clip is not None:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), config.optimizer.clip, norm)
    optimizer.step()
    for rule in model.rules():
        rule.constrain()
    return value, carry


def gradient_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Compute the Euclidean norm of the concatenation of all gradients, a scalar.

    It is computed in float64 if it is not finite in float32, where squares overflow from 1.8e19 on. Gradients of this
    size occur when a straight-through estimator is applied at every step.
    """
    norm = torch.nn.utils.get_total_norm(gradients)
    if norm.isfinite():
        return norm
    norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
    return torch.nn.utils.get_total_norm(norms)


def fit(
    plan: Plan,
    model: RecurrentModel,
    optimizer: torch.optim.Optimizer,
    run: RunDirectory,
    progress: Progress,
    group: Group,
) -> Position:
    """Run the training loop to its end, from the run's checkpoint if there is one.

    A step depends on seed, step number and checkpointed state alone, so that a resumed run equals an uninterrupted one.
    At the end, the model has the last weights, or their averages if the optimiser averages weights. With the setting
    keep="best", it has the weights of the best evaluation.

    Args:
        plan: Task, configuration and sizes of the run.
        model: The network, trained in place.
        optimizer: Optimiser of its parameters.
        run: Directory of checkpoints and metrics.
        progress: Progress bar.
        group: Processes that train together, each with its own model; only the first writes to `run`.

    Returns:
        The final position of the run: its number of steps, best metric, reason of the end, and so on.

    Raises:
        EdgernnError: The training diverged.
        Interrupted: SIGINT (Ctrl-C), SIGTERM or SIGHUP was received. A checkpoint of the last step is saved.
    """
    task, config = plan.task, plan.config
    per_epoch = plan.steps_per_epoch
    total = config.steps or per_epoch * (config.epochs or 1)
    eval_every = config.eval_every or per_epoch
    position, carry = run.load(model, optimizer, plan.device, group.send, task)
    carry = group.share(carry)
    if group.leads:
        run.cut_metrics(position.step)
    criterion = TrainingLoss(model, task, config, group)
    loss_of = group.wrap(criterion, model)
    steering = None if config.skip is None else Steering(config.skip, total, position.steering)
    before, started = position.seconds, time.perf_counter()
    title, at = f"{plan.task_name} {plan.cell}", position.step
    begins = f"resumed at step {at} of" if at else "training for at most"
    progress.begin(title, total, at, line=f"{title}: {begins} {counted(total, 'step')}")
    model.train()
    epoch = -1
    with noting() as signalled:
        while position.stopped is None:
            step = position.step
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                if config.anneal:
                    model.anneal(epoch)
            scale = task.train.lr_scale(step, config.batch_size) * course(config, step, total)
            schedule(optimizer, config, epoch, scale)
            model.prune(step, total)
            model.rounding.ramp(step, total)
            task.before_step(model, step, total, plan.device)
            batch = group.part(task.train.batch(step, config.batch_size), plan.seed, step).to(plan.device)
            if not task.train.continues(step, config.batch_size):
                carry = None
            if steering is not None:
                criterion.weight = steering.weight
            try:
                loss, carry = train_step(model, optimizer, batch, task, config, carry, group, loss_of)
            except FloatingPointError as error:
                lr, clip = config.optimizer.lr, config.optimizer.clip
                remedies = {layer.rule.remedy(): None for layer in model.recurrent_layers()}
                words = "".join(f", or {remedy}" for remedy in remedies if remedy is not None)
                raise EdgernnError(f"training step {step + 1}: {error} (now lr={lr:g}, clip={clip}){words}") from None
            position.step += 1
            position.loss_sum += loss
            position.loss_count += 1
            position.seconds = before + time.perf_counter() - started
            figures: dict[str, float | str] = {"loss": loss}
            if steering is not None:
                budget, share = _measured(model, group)
                if share is not None:
                    steering.follow(position.step, loss, budget, share)
                position.steering = steering.state
                figures |= {"lambda": steering.weight, "skip": _of_wanted(steering.skipped, steering)}
            progress.update(position.step, "", **figures)
            if position.step % eval_every == 0 or position.step == total:
                with averaged(optimizer):
                    _validate(plan, model, run, position, steering, total, progress, group)
                if config.optimizer.nonmono is not None:
                    values = group.first(lambda: [line[task.objective.metric] for line in run.metrics()])
                    watch(optimizer, config, task.objective, values)
                if position.stopped is None and position.step == total:
                    position.stopped = "steps"
            stop = group.any(signalled() > 0)
            if position.stopped or stop or position.step % config.checkpoint_every == 0:
                carried = group.whole(carry)
                if group.leads:
                    run.save(model, optimizer, position, carried, task)
            if stop and position.stopped is None:
                # the signal may have reached another process of the group
                number = signalled() or Interrupted.number
                raise Interrupted.by(number, f"interrupted at step {position.step} of {total}; a checkpoint is saved")
    settle(optimizer)
    if config.keep == "best" and group.leads:
        run.load_best(model)
    return position


def _validate(
    plan: Plan,
    model: RecurrentModel,
    run: RunDirectory,
    position: Position,
    steering: Steering | None,
    total: int,
    progress: Progress,
    group: Group,
) -> None:
    task, config = plan.task, plan.config
    objective = task.objective
    metrics = group.first(lambda: evaluate(model, task, task.validation, plan.device))
    value = metrics[objective.metric]
    line = {
        "step": position.step,
        "epoch": position.step // plan.steps_per_epoch,
        "loss": position.loss_sum / position.loss_count,
        # readers take the first metric for the main one
        objective.metric: value,
        **metrics,
        "seconds": round(position.seconds, 3),
    }
    if steering is not None:
        line |= {"lambda": steering.weight, "skip_percent_training": steering.skipped}
    if group.leads:
        run.log(line)
    figures: dict[str, float | str] = {"loss": line["loss"], objective.metric: value}
    if steering is not None:
        figures |= {"lambda": steering.weight, "skip": _of_wanted(steered_percent(plan, metrics), steering)}
    elif plan.can_skip:
        figures["skip"] = f"{metrics['skip_percent']:.1f} %"
    left = f"{progress.seconds_left:.0f} s left at most"
    progress.update(position.step, f"step {position.step}/{total}  {in_words(figures)}  {left}", **figures)
    position.loss_sum, position.loss_count = 0.0, 0
    # before pruning ends, the weights do not have the run's final sparsity
    if not model.pruned(position.step, total):
        return
    # a sum of a share, as of hits, and of percentage points of skipped updates: 0 if both are reached
    missed, target = objective.missed(metrics), config.stop.skip_target
    if steering is not None:
        if not steering.warm(position.step):
            return
        missed += steering.missed(steered_percent(plan, metrics))
    elif plan.can_skip and target is not None:
        missed += float(metrics["skip_percent"] < target)
    # evaluations with the wanted share compete; before the first one, the closest is the best
    closer, as_close = missed < position.missed, missed == position.missed
    tie = None if objective.tie is None else metrics[objective.tie]
    still_falls = tie is not None and (position.lowest is None or tie < position.lowest)
    if still_falls:
        position.lowest = tie
    if position.best is None or closer or (as_close and _is_better(objective, value, tie, position)):
        position.best, position.tie, position.missed, position.stale = value, tie, missed, 0
        if config.keep == "best" and group.leads:
            run.save_best(model)
    elif model.rounding.is_full(position.step, total):
        position.stale = 0 if still_falls else position.stale + 1
    if config.stop.solved and missed == 0 and task.is_solved(value):
        position.stopped = "solved"
    elif config.stop.patience is not None and position.stale >= config.stop.patience:
        position.stopped = "patience"


def _is_better(objective: Score, value: float, tie: float | None, position: Position) -> bool:
    assert position.best is not None
    if value == position.best and tie is not None and position.tie is not None:
        return tie < position.tie
    return objective.better(value, position.best)


def steered_percent(plan: Plan, metrics: Mapping[str, float]) -> float:
    """Return the percentage of skipped neuron updates in an evaluation, for the comparison with the setting skip.

    The setting skip is the wanted share of skipped updates. If the setting background is used, steps that the task
    marks as background (nothing happens) do not count.

    Args:
        plan: The plan of the run.
        metrics: Result of `evaluate`, a dict from the name of a metric to its value.

    Returns:
        The percentage, 0 to 100.
    """
    weighted = plan.config.background is not None and FOREGROUND in metrics
    return metrics[FOREGROUND if weighted else "skip_percent"]


def _measured(model: RecurrentModel, group: Group) -> tuple[float, float | None]:
    """Return the penalty on updates of the last batch, and the share of neurons updated at its foreground steps.

    Foreground steps are those that the task does not mark as background (`Task.background`). If the batch has no such
    steps, the share is None. If several processes train together, each has a part of the batch; both values are means
    over all parts.
    """
    foreground = model.foreground
    counted = group.mean(group.weight * foreground)
    budget = group.mean(group.weight * model.budget.item())
    updated = group.mean(group.weight * foreground * model.foreground_rate if foreground else 0.0)
    return budget, updated / counted if counted else None


def _of_wanted(percent: float, steering: Steering) -> str:
    """Format the reached and the wanted percentage of skipped updates, such as "48.3 of 50 %", for the progress bar."""
    return f"{percent:.1f} of {100 * steering.skip:.4g} %"
