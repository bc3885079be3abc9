# SPDX-License-Identifier: Apache-2.0
"""Training: tasks, data sets, the training loop, run directories, sweeps, and reproduction of papers' tables."""

from edgernn.extras import needed_by

with needed_by("edgernn.training"):
    from edgernn.signals import Interrupted
    from edgernn.training.api import Prediction, TrainedRun, train
    from edgernn.training.evaluate import evaluate
    from edgernn.training.tasks import TASKS, find_task
    from edgernn.training.tasks.base import Task

__all__ = ["TASKS", "Interrupted", "Prediction", "Task", "TrainedRun", "evaluate", "find_task", "train"]
