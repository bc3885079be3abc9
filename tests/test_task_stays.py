# SPDX-License-Identifier: Apache-2.0
"""The data of the task brits: stays in intensive care, as tables with held-out values."""

import numpy as np
import pytest
import torch

from edgernn.errors import EdgernnError
from edgernn.training.papers.tasks.brits import Mortality
from tests.stays import FEATURES, STAYS, F, T, deltas, records, write_stays
from tests.task_helpers import opened
from tests.training_helpers import data_folder


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


def rebuilt_table(x, y):
    """Rebuild the table of a stay from its input (T, 3F) and target (T, F + 1)."""
    table = np.where(x[:, F : 2 * F] > 0, x[:, :F], y[:, :F])
    return table.astype(np.float32)


def parts(task):
    return {name: getattr(task, name) for name in ("train", "validation", "test")}


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
        (
            lambda place: keep_records(place, 4),
            r"set-a: expected at least 3 hospital stays with the outcome death, got 1",
        ),
        (
            lambda place: keep_rows(place, 9),
            r"set-a: expected a hospital stay with 10 or more measurements in the validation part, got none",
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
