# SPDX-License-Identifier: Apache-2.0
"""Mortality task: predict death from measurements in intensive care, and impute missing measurements."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from edgernn.cells.base import State
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, UsageError
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.training.datasets.find import find_either
from edgernn.training.papers.formats import read_physionet
from edgernn.training.papers.gaps import with_gaps
from edgernn.training.papers.networks.brits import BRITS, filled_by
from edgernn.training.papers.tasks.stays import FEATURES, died, hold_out, hourly, stratified_parts
from edgernn.training.tasks.base import Means, Score, Task, work
from edgernn.training.tasks.parts import standardisation
from edgernn.training.tasks.sources import Batch, Sequences, Split

DIRECTIONS = ("forward", "both")
# least number of stays of each class: one for each of training, validation and test
_LEAST = 3


@dataclass
class Mortality(Task):
    """Mortality task: impute 48 hours of measurements in intensive care and predict death in the hospital.

    x (48, B, 105): for each hour the values of 35 features, the observation masks, and the hours since each feature was
    last observed. A value is the last one measured in its hour, or 0 if none was. The model standardises the values by
    mean and standard deviation of the observed values of the training part.
    target (48, B, 36): the held-out values, NaN elsewhere; and the label, 1 for death, at every step.
    A tenth of the observed values of each stay is held out of x, to measure the imputation. Stays without a measurement
    are dropped. The stays of each class (death, survival) are split: 70 % for training, 10 % for validation and 20 %
    for the test. The seed chooses the split and the held-out values.

    The loss is `label_weight` times the binary cross entropy, plus the training setting `imputation` times the
    imputer's loss. With two directions (forward and backward in time), each of these losses is the sum of the two
    directions, and `consistency` times the mean absolute difference of their imputed values is added. Metrics, each
    over a whole split: auc, the area under the ROC curve of death; mae, the mean absolute error of the imputed values
    at held-out places, in standard deviations; mre, mae divided by the mean absolute standardised held-out value;
    accuracy; cross_entropy.

    Settings:

    - `direction`: forward: one model with an imputer (by default rits), whose last output is the logit. both: BRITS,
      one such model per direction, with imputed values and probabilities averaged. Only a run with
      direction=forward can be exported.
    - `consistency`: Weight of the consistency loss of two directions.
    - `label_weight`: Weight of the binary cross entropy.
    - `positive_weight`: Weight of the deaths in the binary cross entropy.

    Differences from the authors' code: the metrics are over the split alone, not over all stays; values are held out
    without replacement; the hours since the last observation start at 0, not 1, and follow from the mask of the
    previous step; the backward direction counts these hours in the reversed sequence. The imputer rits mixes two
    estimates of a missing value with a weight β, which is the output of a sigmoid, as in the paper; the authors' code
    has no sigmoid.

    Source: Cao et al., "BRITS: Bidirectional Recurrent Imputation for Time Series", NeurIPS 2018, arXiv:1805.10572.
    Anonymous authors, "EINS: Long Short-Term Memory with Extrapolated Input Network Simplification", section 5.3 and
    appendix C, which trains for 150 epochs. Data: Silva et al., "Predicting In-Hospital Mortality of ICU Patients",
    Computing in Cardiology, 2012; the 35 features are those of Cao et al.
    """

    direction: str = "forward"
    consistency: Annotated[float, Field(ge=0)] = 0.1
    label_weight: Annotated[float, Field(ge=0)] = 1.0
    positive_weight: Annotated[float, Field(gt=0)] = 1.0

    name = "brits"
    help = "Impute 48 hours of intensive care and predict death (needs PhysioNet 2012, set a)."
    defaults = {  # noqa: RUF012
        "epochs": 30,
        "hidden_size": 100,
        "batch_size": 32,
        "lr": 1e-3,
        "clip": None,
        "imputation": 0.3,
    }
    without = frozenset({"bidirectional"})
    objective = Score("auc", True)
    input_size, output_size = 3 * len(FEATURES), 1

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise UsageError(f"direction: expected {' or '.join(DIRECTIONS)}, got {self.direction!r}")
        self.network = BRITS if self.direction == "both" else SequenceModel  # type: ignore[misc]

    def open(self, source: Path | None, seed: int) -> None:
        files = find_either(self.name, "physionet2012", [["set-a.npz"], ["set-a/", "Outcomes-a.txt"]], source)
        stays = read_physionet(files)
        values, label = hourly(stays), died(stays)
        measured = ~np.isnan(values).all((1, 2))
        values, label = values[measured], label[measured]
        for value, outcome in enumerate(("survival", "death")):
            if (count := int((label == value).sum())) < _LEAST:
                raise EdgernnError(
                    f"{files[0]}: expected at least {_LEAST} hospital stays with the outcome {outcome}, got {count} "
                    "stays; download the data set again"
                )
        held = hold_out(values, seed)
        labels = torch.from_numpy(label.astype(np.float32))
        inputs = torch.from_numpy(np.where(held, np.float32(np.nan), values))
        truth = torch.from_numpy(np.where(held, values, np.float32(np.nan)))
        parts = stratified_parts(labels, seed)
        mean, std = standardisation(inputs[parts[0]])
        # masks and times are not standardised
        unscaled = 2 * len(FEATURES)
        self.mean, self.std = [*mean, *[0.0] * unscaled], [*std, *[1.0] * unscaled]
        x = with_gaps(inputs.transpose(0, 1), torch.arange(inputs.shape[1])[:, None, None].float()).transpose(0, 1)
        target = torch.cat([truth, labels[:, None, None].expand(-1, truth.shape[1], 1)], -1)
        self.train, self.validation, self.test = (
            Sequences(x[part], target[part], seed=seed, per_step=True) for part in parts
        )
        for name, part in (("validation", self.validation), ("test", self.test)):
            if part.y[..., :-1].isnan().all():
                raise EdgernnError(
                    f"{files[0]}: expected a hospital stay with 10 or more measurements in the {name} part, got none; "
                    "download the data set again"
                )

    def adapted(self, model: ModelConfig) -> ModelConfig:
        return replace(model, layer=replace(model.layer, imputer=model.layer.imputer or "rits"))

    def build_network(self, model: ModelConfig) -> RecurrentModel:
        return BRITS(model) if self.direction == "both" else SequenceModel(model)

    def loss(self, model: RecurrentModel, batch: Batch, carry: State | None) -> tuple[Tensor, State | None]:
        logits, filled = _model_outputs(model, batch.x)
        label = batch.target[0, :, -1].expand_as(logits)
        weight = logits.new_tensor(self.positive_weight)
        entropy = functional.binary_cross_entropy_with_logits(logits, label, pos_weight=weight)
        loss = self.label_weight * len(logits) * entropy
        if len(filled) == 2:
            loss = loss + self.consistency * (filled[0] - filled[1]).abs().mean()
        return loss, None

    def evaluate(self, model: RecurrentModel, split: Split, device: str) -> dict[str, float]:
        costs = Means()

        def outputs(batch: Batch) -> tuple[Tensor, Tensor]:
            logits, filled = _model_outputs(model, batch.x.to(device))
            costs.add(batch.x.shape[1], work(model))
            return logits.double().cpu(), filled.double().mean(0).cpu()

        return self._metrics(outputs, split) | costs.result()

    def baselines(self) -> dict[str, dict[str, float]]:
        """Impute the mean or the last value of each feature; the probability of death is the share of deaths."""
        assert isinstance(self.train, Sequences)
        logit = self.train.y[:, 0, -1].double().mean().logit()

        def mean(batch: Batch) -> tuple[Tensor, Tensor]:
            return logit.expand(1, batch.x.shape[1]), torch.zeros(*batch.x.shape[:2], len(FEATURES))

        def last(batch: Batch) -> tuple[Tensor, Tensor]:
            values, masks, _ = batch.x.double().chunk(3, -1)
            steps = torch.where(masks > 0, torch.arange(1, 1 + len(masks))[:, None, None], 0).cummax(0).values
            # before the first value of a feature, its mean
            means = torch.zeros_like(values[:1])
            return mean(batch)[0], torch.cat([means, self._standardised(values)]).gather(0, steps)

        outputs = {"mean of each feature": mean, "last value of each feature": last}
        return {name: self._metrics(function, self.test) for name, function in outputs.items()}

    def _standardised(self, values: Tensor) -> Tensor:
        """Standardise values (T, B, F) as the model does, in float64."""
        mean, std = (torch.tensor(numbers[: len(FEATURES)], dtype=torch.float64) for numbers in (self.mean, self.std))
        return (values.double() - mean) / std

    def _metrics(self, outputs: Callable[[Batch], tuple[Tensor, Tensor]], split: Split) -> dict[str, float]:
        """Compute the metrics of imputed values and logits of death over a split."""
        scores, entropies, labels, truths, errors = [], [], [], [], []
        for batch in split.chunks():
            logits, filled = outputs(batch)
            dies, survives = _log_probabilities(logits)
            label = batch.target[0, :, -1].double()
            scores.append(dies - survives)
            entropies.append(-label * dies - (1 - label) * survives)
            labels.append(label)
            truth = self._standardised(batch.target[..., :-1])
            held = ~truth.isnan()
            truths.append(truth[held])
            errors.append((filled - truth)[held])
        score, positive = torch.cat(scores), torch.cat(labels) > 0
        error, size = torch.cat(errors).abs(), torch.cat(truths).abs()
        return {
            "auc": roc_auc(score.numpy(), positive.numpy()),
            "mae": float(error.mean()),
            "mre": float(error.sum() / size.sum()),
            "accuracy": float(((score > 0) == positive).double().mean()),
            "cross_entropy": float(torch.cat(entropies).mean()),
        }


def roc_auc(score: Any, positive: Any) -> float:
    """Compute the area under the ROC curve exactly, from ranks; ties count half.

    Args:
        score: Numbers (N,).
        positive: Booleans (N,), at least one true and one false.

    Returns:
        The probability that a random positive has a higher score than a random negative.
    """
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    # the mean rank of equal scores, counted from 1
    ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]
    positives = int(positive.sum())
    statistic = ranks[positive].sum() - positives * (positives + 1) / 2
    return float(statistic / (positives * (len(positive) - positives)))


def _model_outputs(model: RecurrentModel, x: Tensor) -> tuple[Tensor, Tensor]:
    """Run a model on the inputs of a batch."""
    if isinstance(model, BRITS):
        y, filled = model(x)
        return y[..., 0], filled
    assert isinstance(model, SequenceModel)
    y, _ = model(x)
    return y[None, :, 0], filled_by(model)[None]


def _log_probabilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log probabilities of label 1 and of label 0, (B,) each, from the logits (D, B)."""
    log_count = np.log(len(logits))
    positive, negative = functional.logsigmoid(logits), functional.logsigmoid(-logits)
    return positive.logsumexp(0) - log_count, negative.logsumexp(0) - log_count
