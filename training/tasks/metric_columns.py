# SPDX-License-Identifier: Apache-2.0
"""Names and units of the metrics of a run, for tables and pictures."""

# heading of a column, and factor from a value in result.json to the column's unit; other columns have factor 1
COLUMNS = {
    "accuracy": ("accuracy, %", 100.0),
    "bit_accuracy": ("bit accuracy, %", 100.0),
    "auc": ("AUC", 1.0),
    "gmean": ("√(accuracy · skip), %", 1.0),
    "skip_percent": ("skip, %", 1.0),
    "flops": ("FLOPs a sequence", 1.0),
    "cross_entropy": ("cross entropy, nats", 1.0),
    "accuracy_words": ("accuracy on words, %", 100.0),
    "mse": ("MSE", 1.0),
    "mae": ("MAE", 1.0),
    "mre": ("MRE", 1.0),
    "solved": ("solved, % of the seeds", 100.0),
    "seconds_per_epoch": ("s an epoch", 1.0),
    "neurons_updated": ("neurons updated a step", 1.0),
    "mse_over_delta2": ("MSE / δ²", 1.0),
    # in the latency of a row
    "microseconds": ("µs a sequence", 1.0),
}
