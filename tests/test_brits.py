# SPDX-License-Identifier: Apache-2.0
"""Intensive care stays, imputation and mortality, compared with plain loops over small files of the real format."""

import json
import math

import numpy as np
import pytest
import torch

from edgernn import SequenceModel
from edgernn.cli.frame import main
from edgernn.config import ModelConfig
from edgernn.errors import EdgernnError, UsageError
from edgernn.export.export_run import export_run
from edgernn.runtime import Session
from edgernn.store import load_model
from edgernn.training.config import TrainConfig
from edgernn.training.evaluate import evaluate
from edgernn.training.gaps import backwards, with_gaps
from edgernn.training.loop import train_step
from edgernn.training.networks.brits import BRITS
from edgernn.training.tasks import Mortality
from edgernn.training.tasks.brits import roc_auc
from tests.task_helpers import opened
from tests.tolerances import FLOAT32, FLOAT64
from tests.training_helpers import data_folder, without_pictures, words

# the 35 variables of the authors of BRITS, in the order of the challenge's description
NAMES = """
GCS HR NIDiasABP NIMAP NISysABP RespRate Temp Urine HCT BUN Creatinine Glucose HCO3 Mg Platelets K Na WBC pH PaCO2 PaO2
DiasABP FiO2 MAP SysABP SaO2 Albumin ALP ALT AST Bilirubin Lactate Cholesterol TroponinI TroponinT
"""
FEATURES = NAMES.split()
F, T = 35, 48
STAYS = 40
TINY = {"hidden_size": 6, "batch_size": 8, "steps": 3}
both = pytest.mark.parametrize("direction", ["forward", "both"])


def records():
    """Draw the rows (minute, name, value) of each stay by number, and its outcome (True: in-hospital death).

    The last stay has no measurement of the 35 variables; one variable is never measured, one is constant.
    """
    rng = np.random.default_rng(0)
    rows, dead = {}, {}
    for i in range(STAYS):
        number = 132539 + i
        dead[number] = int(i % 4 == 0)
        minutes = sorted(rng.integers(0, 2881, 160).tolist()) if i < STAYS - 1 else [7]
        names = [*FEATURES[:30], "Weight", "MechVent", "HR", "HR"] if i < STAYS - 1 else ["Weight"]
        rows[number] = [(0, "RecordID", number), (0, "Age", 50), (0, "Gender", 1), (0, "Height", -1), (0, "ICUType", 2)]
        for minute in minutes:
            name = str(rng.choice(names))
            # different scales and offsets, and larger values for stays that end in death
            value = 7.5 if name == "GCS" else round(float(rng.normal(10 * len(name) + dead[number], len(name))), 2)
            rows[number].append((minute, name, value))
        if i == 0:
            # twice in the same hour, twice at the same minute, and at the very end
            rows[number] += [(2820, "Na", 1.0), (2830, "Na", 2.0), (2830, "Na", 3.0), (2880, "Na", 4.0)]
            rows[number].sort(key=lambda row: row[0])
    return rows, dead


def write_stays(place):
    """Write records and outcomes in PhysioNet's format."""
    (place / "set-a").mkdir(parents=True)
    rows, dead = records()
    for number, lines in rows.items():
        text = [f"{minute // 60:02d}:{minute % 60:02d},{name},{value}" for minute, name, value in lines]
        (place / "set-a" / f"{number}.txt").write_text("\n".join(["Time,Parameter,Value", *text]) + "\n")
    outcomes = [f"{number},6,1,5,-1,{dead[number]}" for number in rows]
    header = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"
    (place / "Outcomes-a.txt").write_text("\n".join([header, *outcomes]) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_stays(folder / "physionet2012")
    return folder


def hours(lines):
    """Return a stay's table (48, 35), NaN where nothing was measured."""
    table = np.full((T, F), np.nan, np.float32)
    for minute, name, value in lines:
        if name in FEATURES and minute // 60 < T:
            table[minute // 60, FEATURES.index(name)] = value
    return table


def deltas(masks, times):
    """The recurrence of Cao et al., section 3, for masks (T, F) and times (T,)."""
    gaps = np.zeros(masks.shape)
    for t in range(1, len(masks)):
        for f in range(masks.shape[1]):
            gaps[t, f] = times[t] - times[t - 1] + (0 if masks[t - 1, f] else gaps[t - 1, f])
    return gaps


def rebuilt_table(x, y):
    """Rebuild the table of a stay from its input (T, 3F) and target (T, F + 1)."""
    table = np.where(x[:, F : 2 * F] > 0, x[:, :F], y[:, :F])
    return table.astype(np.float32)


def parts(task):
    return {name: getattr(task, name) for name in ("train", "validation", "test")}


# data


def test_every_stay_with_a_measurement_is_in_one_part(data):
    task = opened(Mortality(), data)
    rows, dead = records()
    known = {hours(lines).tobytes(): dead[number] for number, lines in rows.items()}
    assert len(known) == STAYS
    # the last of several values in an hour
    assert hours(rows[132539])[47, FEATURES.index("Na")] == 3
    seen = []
    sizes = {}
    for name, part in parts(task).items():
        labels = part.y[:, :, -1].numpy()
        assert (labels == labels[:, :1]).all()
        for x, y, label in zip(part.x.numpy(), part.y.numpy(), labels[:, 0], strict=True):
            key = rebuilt_table(x, y).tobytes()
            assert known[key] == label
            seen.append(key)
        sizes[name] = (len(part), int(labels[:, 0].sum()))
    assert len(set(seen)) == len(seen) == STAYS - 1
    assert hours(rows[132539 + STAYS - 1]).tobytes() not in seen
    # of 10 stays that end in death and 29 others, 10 % are for validation and 20 % for test
    assert sizes == {"train": (29 - 2 - 5 + 7, 7), "validation": (3, 1), "test": (7, 2)}


def test_a_tenth_of_the_values_is_held_out_of_the_input(data):
    for part in parts(opened(Mortality(), data)).values():
        for x, y in zip(part.x.numpy(), part.y.numpy(), strict=True):
            values, masks, held = x[:, :F], x[:, F : 2 * F], ~np.isnan(y[:, :F])
            assert set(np.unique(masks)) <= {0, 1}
            assert not (masks[held] != 0).any()
            assert not (values[masks == 0] != 0).any()
            assert held.sum() == int(held.sum() + masks.sum()) // 10


def test_times_follow_the_recurrence_of_the_masks_that_are_left(data):
    for part in parts(opened(Mortality(), data)).values():
        for x in part.x.numpy():
            np.testing.assert_array_equal(x[:, 2 * F :], deltas(x[:, F : 2 * F], np.arange(T)))


def test_statistics_are_those_of_what_the_model_sees_of_the_training_part(data):
    task = opened(Mortality(), data)
    x = task.train.x.double().numpy().reshape(-1, 3 * F)
    mean, std = np.zeros(F), np.ones(F)
    for f in range(F):
        seen = x[x[:, F + f] == 1, f]
        if len(seen):
            mean[f], std[f] = seen.mean(), seen.std() or 1
    assert std[FEATURES.index("GCS")] == 1
    np.testing.assert_allclose(task.mean, [*mean, *[0] * 2 * F], rtol=1e-6)
    np.testing.assert_allclose(task.std, [*std, *[1] * 2 * F], rtol=1e-6)


def test_the_seed_decides_parts_and_what_is_held_out(data):
    one, again, other = (opened(Mortality(), data, seed) for seed in (0, 0, 1))
    assert torch.equal(one.test.x, again.test.x)
    assert torch.equal(one.test.y.nan_to_num(-1e9), again.test.y.nan_to_num(-1e9))
    assert not torch.equal(one.test.x, other.test.x)


@pytest.mark.slow
def test_real_stays():
    if (folder := data_folder()) is None or not (folder / "physionet2012").is_dir():
        pytest.skip("EDGERNN_DATA has no physionet2012")
    task = opened(Mortality(), folder)
    sizes = [len(part) for part in parts(task).values()]
    # 4,000 stays, three of which have none of the 35 variables
    assert sizes == [2800, 399, 798]
    assert sum(int(part.y[:, 0, -1].sum()) for part in parts(task).values()) == 554
    observed = sum(float(part.x[..., F : 2 * F].sum()) for part in parts(task).values())
    held = sum(int((~part.y[..., :F].isnan()).sum()) for part in parts(task).values())
    # four fifths of all values are missing; a tenth of the others is held out
    assert 1 - (observed + held) / (3997 * T * F) == pytest.approx(0.805, abs=5e-4)
    assert held / (observed + held) == pytest.approx(0.1, abs=5e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda place: (place / "Outcomes-a.txt").unlink(), "brits: no set-a.npz or set-a/, Outcomes-a.txt"),
        (lambda place: keep_records(place, 4), r"set-a: expected at least 3 stays that end in death, got 1"),
        (
            lambda place: keep_rows(place, 9),
            r"set-a: expected a stay with 10 measurements in the validation part, got none",
        ),
    ],
    ids=["no outcomes", "too few", "nothing to hold out"],
)
def test_data_that_cannot_serve_is_refused(data, tmp_path, change, message):
    place = tmp_path / "physionet2012"
    (place / "set-a").mkdir(parents=True)
    for path in (data / "physionet2012").rglob("*.txt"):
        (place / path.relative_to(data / "physionet2012")).write_bytes(path.read_bytes())
    change(place)
    with pytest.raises(EdgernnError, match=message):
        opened(Mortality(), tmp_path)


def keep_records(place, count):
    for path in sorted((place / "set-a").iterdir())[count:]:
        path.unlink()


def keep_rows(place, count):
    """Keep only this many measurements in a record."""
    for path in (place / "set-a").iterdir():
        path.write_text("\n".join(path.read_text().splitlines()[: 6 + count]) + "\n")


def test_another_direction_is_refused():
    with pytest.raises(UsageError, match="direction: expected forward or both, got 'backward'"):
        Mortality(direction="backward")


# series with gaps


def series(T, B, F, seed=0):
    """Draw values with gaps (T, B, F) in float64, and uneven times (T,)."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(T, B, F))
    values[rng.random((T, B, F)) < 0.5] = np.nan
    return values, np.cumsum(rng.uniform(0.1, 3, T))


@pytest.mark.parametrize(("T", "B", "F"), [(1, 1, 1), (2, 1, 3), (33, 3, 5)], ids=str)
def test_times_of_either_direction_follow_the_recurrence(T, B, F):
    values, times = series(T, B, F)
    x = with_gaps(torch.from_numpy(values), torch.from_numpy(times)[:, None, None])
    for direction, table, clock in (
        (x, values, times),
        # masks and values reversed in time; the clock runs from the end
        (backwards(x), values[::-1], times[-1] - times[::-1]),
    ):
        masks = ~np.isnan(table)
        expected = np.stack([deltas(masks[:, b], clock) for b in range(B)], 1)
        np.testing.assert_array_equal(direction[..., :F], np.where(masks, table, 0))
        np.testing.assert_array_equal(direction[..., F : 2 * F], masks)
        np.testing.assert_allclose(direction[..., 2 * F :], expected, rtol=0, atol=FLOAT64)
    torch.testing.assert_close(backwards(backwards(x)), x, rtol=0, atol=FLOAT64)


def brits_of(cell="lstm", F=3, **options):
    return BRITS(cell=cell, input_size=3 * F, hidden_size=5, output_size=1, imputer="rits", **options).double()


@pytest.mark.parametrize("cell", ["lstm", "eins", "sarnn"])
def test_reversed_time_swaps_the_two_models(cell):
    values, times = series(9, 4, 3)
    model = brits_of(cell, mean=0.5, std=2.0)
    other = brits_of(cell)
    other.ahead.load_state_dict(model.behind.state_dict())
    other.behind.load_state_dict(model.ahead.state_dict())
    x = with_gaps(torch.from_numpy(values), torch.from_numpy(times)[:, None, None])
    y, filled = model(x)
    swapped, refilled = other(backwards(x))
    assert not torch.allclose(y[0], y[1])
    torch.testing.assert_close(swapped, y.flip(0), rtol=0, atol=FLOAT64)
    torch.testing.assert_close(refilled, filled.flip(0, 1), rtol=0, atol=FLOAT64)
    torch.testing.assert_close(other.imputation_loss, model.imputation_loss, rtol=0, atol=FLOAT64)


def test_both_models_are_those_that_run_alone():
    values, times = series(9, 4, 3)
    model = brits_of()
    x = with_gaps(torch.from_numpy(values), torch.from_numpy(times)[:, None, None])
    back = with_gaps(torch.from_numpy(values[::-1].copy()), torch.from_numpy(times[-1] - times[::-1])[:, None, None])
    y, filled = model(x)
    # the forward model cannot know later values, the backward model earlier ones
    alone = model.ahead(x)[0], model.behind(back)[0]
    torch.testing.assert_close(y, torch.stack(alone), rtol=0, atol=FLOAT64)
    seen = torch.from_numpy(values)
    for one in filled:
        torch.testing.assert_close(one[~seen.isnan()], seen[~seen.isnan()])


def test_a_network_without_an_imputer_is_refused():
    with pytest.raises(UsageError, match="imputer: expected gru-d or rits, got none"):
        BRITS(cell="lstm", input_size=9, hidden_size=5)


# loss and metrics


def network(task, cell="lstm", **options):
    options = {"hidden_size": 6, "mean": task.mean, "std": task.std, **options}
    model = ModelConfig.of(cell, task.input_size, output_size=1, **options)
    return task.build_network(task.adapted(model))


def models_in(model):
    return [model] if isinstance(model, SequenceModel) else [model.ahead, model.behind]


def draw_answers(model, x):
    """Draw logits (D, B), imputed values (D, T, B, F), imputation loss and budget, as a network returns them."""
    logits, filled, loss, budget = [], [], 0.0, 0.0
    with torch.no_grad():
        for i, (one, series) in enumerate(zip(models_in(model), (x, backwards(x)), strict=False)):
            y, _ = one(series)
            imputed = one.traces[0].imputed
            logits.append(y[:, 0].double().numpy())
            filled.append((imputed.flip(0) if i else imputed).double().numpy())
            loss += float(one.traces[0].imputation_loss)
            budget += float(one.traces[0].budget)
    return np.stack(logits), np.stack(filled), loss, budget


@both
@pytest.mark.parametrize("cell", ["lstm", "sarnn"])
def test_a_step_adds_every_part_of_the_loss_once(data, cell, direction):
    task = opened(Mortality(direction=direction, consistency=0.7, label_weight=1.3, positive_weight=4.0), data)
    model = network(task, cell)
    batch = task.train.batch(0, 11)
    logits, filled, imputation, budget = draw_answers(model, batch.x)
    label = batch.target[0, :, -1].numpy()
    p = 1 / (1 + np.exp(-logits))
    entropy = -(4.0 * label * np.log(p) + (1 - label) * np.log(1 - p)).mean(1).sum()
    distance = np.abs(filled[0] - filled[-1]).mean()
    config = TrainConfig(imputation=0.3, lambda_=0.01)
    value, _ = train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), batch, task, config)
    assert imputation > 1
    assert (distance > 0.01) == (direction == "both")
    assert (budget > 0) == (cell == "sarnn")
    assert value == pytest.approx(1.3 * entropy + 0.3 * imputation + 0.7 * distance + 0.01 * budget, rel=1e-5)


@both
@pytest.mark.parametrize(("cell", "chunk"), [("lstm", 250), ("sarnn", 13)])
def test_metrics_are_those_of_the_whole_split(data, monkeypatch, direction, cell, chunk):
    task = opened(Mortality(direction=direction), data)
    model = network(task, cell)
    split = task.train
    chunks = split.chunks
    monkeypatch.setattr(split, "chunks", lambda: chunks(chunk))
    metrics = evaluate(model, task, split)
    logits, filled, *_ = draw_answers(model, split.x.transpose(0, 1))
    updates = [layer.decisions.double().mean() for one in models_in(model) for layer in one.traces if cell == "sarnn"]
    p = (1 / (1 + np.exp(-logits))).mean(0)
    label = split.y[:, 0, -1].numpy()
    errors, sizes = [], []
    for n, t, f in np.argwhere(~np.isnan(split.y[..., :F].numpy())):
        truth = (float(split.y[n, t, f]) - task.mean[f]) / task.std[f]
        errors.append(abs(filled[:, t, n, f].mean() - truth))
        sizes.append(abs(truth))
    expected = {
        "auc": pairs(p, label),
        "mae": sum(errors) / len(errors),
        "mre": sum(errors) / sum(sizes),
        "accuracy": ((p > 0.5) == label).mean(),
        "cross_entropy": -np.where(label > 0, np.log(p), np.log(1 - p)).mean(),
        "skip_percent": 100 * (1 - np.mean(updates or [1.0])),
    }
    assert metrics.keys() == expected.keys()
    assert metrics == pytest.approx(expected, rel=1e-5)


def pairs(score, label):
    """AUC by definition: the fraction of pairs in which the positive is scored above the negative; ties count half."""
    total = [(a > b) + (a == b) / 2 for a in score[label > 0] for b in score[label == 0]]
    return sum(total) / len(total)


@pytest.mark.parametrize("levels", [1, 2, 7, 10**9], ids="{} levels".format)
@pytest.mark.parametrize(("count", "positives"), [(2, 1), (60, 1), (60, 59), (90, 20)])
def test_auc_equals_the_count_of_pairs(levels, count, positives):
    rng = np.random.default_rng(levels + count)
    score = rng.integers(levels, size=count) / levels
    label = rng.permutation(np.arange(count) < positives)
    assert roc_auc(score, label) == pytest.approx(pairs(score, label), abs=1e-12)


def test_a_sure_model_has_finite_metrics(data):
    task = opened(Mortality(direction="both"), data)
    model = network(task)
    with torch.no_grad():
        model.ahead.head.bias.fill_(1e4)
        model.behind.head.bias.fill_(1e4)
    metrics = evaluate(model, task, task.test)
    assert metrics["cross_entropy"] == pytest.approx(5 / 7 * 1e4, rel=1e-3)
    assert 0 <= metrics["auc"] <= 1


# runs


def test_the_imputer_is_rits_unless_another_is_named():
    task = Mortality()
    for cell, imputer, expected in (
        ("lstm", None, "rits"),
        ("eins", "gru-d", "gru-d"),
        ("gru-d", None, "gru-d"),
        ("rits", None, "rits"),
    ):
        model = ModelConfig.of(cell, task.input_size, imputer=imputer)
        assert task.adapted(model).layer.imputer == expected


# the rows of the paper's tables 3 and 5: the parameters are those of the cells
@pytest.mark.parametrize(("direction", "count"), [("forward", 1), ("both", 2)])
@pytest.mark.parametrize(("cell", "parameters"), [("lstm", 68_400), ("eins", 44_870)])
def test_the_papers_rows(direction, count, cell, parameters):
    task = Mortality(direction=direction)
    task.mean, task.std = (0.0,), (1.0,)
    model = network(task, cell, mean=0.0, std=1.0, hidden_size=task.defaults["hidden_size"])
    cells = [layer.cell for layer in model.recurrent_layers()]
    assert [sum(p.numel() for p in c.parameters()) for c in cells] == [parameters] * count


def run(data, out, *args, **settings):
    command = ["train", "--task", "brits", "--out", str(out), "--data", str(data), "--device", "cpu", *args]
    return main([*command, *words({**TINY, **settings})])


@both
@pytest.mark.parametrize("cell", ["sarnn", "gru-d"])
def test_any_cell_trains_from_the_command_line(data, tmp_path, monkeypatch, cell, direction):
    without_pictures(monkeypatch)
    assert run(data, tmp_path / "run", "--cell", cell, direction=direction) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metric"] == "auc"
    assert result["steps"] == 3
    assert all(math.isfinite(result[name]) for name in ("auc", "mae", "mre", "cross_entropy"))
    assert (result["skip_percent"] > 0) == (cell == "sarnn")


def test_a_layer_both_ways_is_refused(data, tmp_path, capsys):
    assert run(data, tmp_path / "run", "--cell", "lstm", bidirectional="true") != 0
    assert "bidirectional: the network of the task brits has no such setting" in capsys.readouterr().err


@pytest.mark.slow
def test_a_rits_run_becomes_a_file_that_equals_torch(data, tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    assert run(data, tmp_path / "run", "--cell", "eins") == 0
    process = export_run(tmp_path / "run", tmp_path / "m.onnx")
    assert [check["backend"] for check in process["checks"]] == ["portable", "native"]
    model, _ = load_model(tmp_path / "run")
    x = opened(Mortality(), data).test.x.transpose(0, 1).contiguous()
    with torch.no_grad():
        y = model(x)[0].numpy()
    for backend in ("portable", "native"):
        np.testing.assert_allclose(
            Session(tmp_path / "m.onnx", backend=backend).run(x.numpy()), y, rtol=0, atol=FLOAT32
        )


def test_a_run_both_ways_cannot_become_a_file(data, tmp_path, monkeypatch, capsys):
    without_pictures(monkeypatch)
    assert run(data, tmp_path / "run", "--cell", "lstm", direction="both") == 0
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "m.onnx")]) != 0
    assert "network: expected a SequenceModel, got a BRITS" in capsys.readouterr().err
    assert not (tmp_path / "m.onnx").exists()
