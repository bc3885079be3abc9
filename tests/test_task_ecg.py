# SPDX-License-Identifier: Apache-2.0
"""The task ecg: records, targets, matching of beats, both variants, errors, and a training."""

import lzma

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from edgernn.errors import EdgernnError, UsageError
from edgernn.training.tasks.ecg import Ecg
from edgernn.training.tasks.heartbeats import OTHER, HeartRecord, count_beats, detect, match, read_records, step_targets
from edgernn.training.tasks.windows import UNCOUNTED
from tests.task_helpers import Trained, opened, parts
from tests.training_helpers import data_folder, without_pictures

S = 16_000
DS1, DS2 = ["101", "106", "108"], ["100", "103"]
SMALL = {"window": 300, "lead": 30}


def beats(rng):
    """N beats every 0.8 s, one in four S (early) and one in four V (wide and negative)."""
    sample, symbol, at = [], [], 200
    while at < S - 400:
        kind = rng.choice(list("NNAV"))
        at += -90 if kind == "A" else 0
        sample.append(at)
        symbol.append(kind)
        at += 288
    return sample, symbol


def heart(seed=0, flutter=()):
    """The arrays of mit-bih-mlii.npz."""
    rng = np.random.default_rng(seed)
    names, signals, samples, symbols, offset = sorted(DS1 + DS2), [], [], [], [0]
    for name in names:
        sample, symbol = beats(rng)
        signal = rng.normal(1024, 4, S)
        for at, kind in zip(sample, symbol, strict=True):
            width, height = (20, -200) if kind == "V" else (6, 250)
            signal[at - width : at + width] += height * np.hanning(2 * width)
        if name in flutter:
            sample, symbol = [*sample[:10], *sample[10:12], *sample[14:]], [*symbol[:10], "[", "]", *symbol[14:]]
        sample, symbol = [20, *sample], ["+", *symbol]
        signals.append(signal.round().astype(np.int16))
        samples += sample
        symbols += symbol
        offset.append(len(samples))
    signals = np.stack(signals)
    return {
        "record": np.array(names),
        "first": signals[:, 0],
        "difference": np.diff(signals, axis=1).astype(np.int16),
        "ann_sample": np.array(samples, np.int32),
        "ann_symbol": np.array(symbols),
        "ann_offset": np.array(offset),
        "ds1": np.array(DS1),
        "ds2": np.array(DS2),
    }


def write_heart(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mit-bih-mlii.npz"
    np.savez(path, **{**heart(), **changes})
    return path


def test_records_are_those_of_the_file(tmp_path):
    data = heart(flutter=("100",))
    np.savez(tmp_path / "a.npz", **data)
    packed = tmp_path / "a.npz.xz"
    packed.write_bytes(lzma.compress((tmp_path / "a.npz").read_bytes()))
    for path in (tmp_path / "a.npz", packed):
        ds1, ds2 = read_records(path)
        assert [record.name for record in ds1] == DS1
        assert [record.name for record in ds2] == DS2
    record = ds2[0]
    raw = np.concatenate([data["first"][:1], data["difference"][0]]).cumsum()
    assert np.allclose(record.signal, (raw - 1024) / 200, atol=1e-6)
    rows = slice(data["ann_offset"][0], data["ann_offset"][1])
    symbols, samples = data["ann_symbol"][rows], data["ann_sample"][rows]
    assert record.sample.tolist() == [s for s, c in zip(samples, symbols, strict=True) if c in "NAV"]
    assert record.label.tolist() == ["NAV".index(c) for c in symbols if c in "NAV"]
    assert record.flutter == [(samples[symbols == "["][0], samples[symbols == "]"][0])]


def record_of(sample, label, flutter=(), length=6000):
    return HeartRecord("1", np.zeros(length, np.float32), np.array(sample), np.array(label), list(flutter))


def test_targets_of_steps():
    record = record_of([60, 600, 1200], [0, 2, -1], [(3000, 3600)], 6000)
    target = step_targets(record, 6, 0.1, 5)
    expected = np.zeros(1000, int)
    expected[14:19], expected[104:109], expected[204:209] = 1, 3, OTHER
    expected[506:607] = OTHER
    assert target.tolist() == expected.tolist()
    assert step_targets(record_of([2], [1]), 6, 0.0, 5)[:5].tolist() == [2, 2, 2, 0, 0]


def test_detected_beats():
    scores = np.full((40, 4), 0.1)
    scores[:, 0] = 0.7
    # two runs with a gap of 3 steps are one beat; the class has the largest sum
    scores[5:8] = [0.1, 0.5, 0.2, 0.2]
    scores[10:12] = [0.1, 0.0, 0.0, 0.9]
    scores[30] = [0.2, 0.1, 0.4, 0.3]
    middles, labels = detect(scores, 6)
    assert middles.tolist() == [8.5, 30.5]
    assert labels.tolist() == [2, 1]
    assert len(detect(scores[:5], 6)[0]) == 0


def test_matching_is_one_to_one_and_within_the_tolerance():
    assert match([1.0, 2.0, 3.0], [1.1, 2.2, 2.95], 0.15) == [(0, 0), (1, None), (None, 1), (2, 2)]
    assert match([1.0], [0.9, 1.01], 0.15) == [(0, 0), (None, 1)]
    assert match([1.0, 1.1], [1.09], 0.15) == [(0, 0), (1, None)]
    assert match([], [1.0], 0.15) == [(None, 0)]
    assert match([1.0], [], 0.15) == [(0, None)]


@pytest.mark.parametrize("seed", range(5))
def test_matching_has_as_many_pairs_as_any(seed):
    rng = np.random.default_rng(seed)
    truth = np.sort(rng.uniform(0, 20, 25)).tolist()
    times = np.sort(rng.uniform(0, 20, 25)).tolist()
    pairs = match(truth, times, 0.15)
    assert sorted(i for i, _ in pairs if i is not None) == list(range(25))
    assert sorted(j for _, j in pairs if j is not None) == list(range(25))
    assert all(abs(truth[i] - times[j]) <= 0.15 for i, j in pairs if None not in (i, j))
    near = np.abs(np.subtract.outer(truth, times)) <= 0.15
    most = (maximum_bipartite_matching(csr_array(near)) >= 0).sum()
    assert sum(None not in pair for pair in pairs) == most > 0


def test_counts_of_beats():
    # beats of N, V, a fusion beat; flutter; one missed, one additional, one additional within flutter
    record = record_of([360, 1080, 1800, 2520], [0, 2, -1, 1], [(4000, 4600)])
    target = step_targets(record, 6, 0.1, 5)
    scores = np.tile([0.9, 0.04, 0.03, 0.03], (1000, 1))
    for sample, label in ((360, 0), (1080, 0), (1800, 2), (3240, 2), (4300, 2)):
        step = (sample + 36) // 6
        scores[step - 2 : step + 3] = 0.02
        scores[step - 2 : step + 3, 1 + label] = 0.94
    counts = count_beats(record, target, scores, 6, 0.1)
    expected = np.zeros((4, 4), int)
    # N as N, V as N, S missed, additional V; neither the fusion beat nor the one in flutter
    expected[1, 1] = expected[3, 1] = expected[2, 0] = expected[0, 3] = 1
    assert counts.tolist() == expected.tolist()


def test_perfect_scores_have_perfect_figures(tmp_path):
    write_heart(tmp_path)
    task = opened(Ecg(**SMALL), tmp_path)
    for part in parts(task)[1:]:
        tally = task.tally(part)
        for batch in part.chunks(7):
            tally.add(20 * torch.nn.functional.one_hot(batch.target.clamp(min=0), 4).float(), batch)
        figures = tally.result()
        assert set(figures.values()) == {1.0}
        # no step is a beat
        tally = task.tally(part)
        for batch in part.chunks():
            tally.add(torch.tensor([1.0, 0, 0, 0]).expand(*batch.target.shape, 4), batch)
        assert set(tally.result().values()) == {0.0}


def test_parts_have_records_of_their_own(tmp_path):
    write_heart(tmp_path)
    task = opened(Ecg(**SMALL), tmp_path)
    train, validation, test = ({record.name for record in part.records} for part in parts(task))
    assert test == set(DS2)
    assert len(train) == 2
    assert train | validation == set(DS1)
    signal = np.concatenate([record.signal[: S // 6 * 6].reshape(-1, 6) for record in task.test.records])
    counted = task.test.y != UNCOUNTED
    assert np.array_equal(task.test.x[counted].numpy(), signal)
    assert task.marks_background
    batch = next(task.test.chunks())
    background, windows = task.background(batch), task.test.x.shape[0]
    # a lead-in, whose steps are not counted, has the marks of the same steps in the window before it
    assert torch.equal(background[batch.target != UNCOUNTED], batch.target[batch.target != UNCOUNTED] == 0)
    marks = {}
    for i in range(windows):
        for step, mark in zip(batch.x[:, i], background[:, i], strict=True):
            assert marks.setdefault(tuple(step.tolist()), bool(mark)) == mark
    assert len(marks) < background.numel()


def test_beats_with_positions(tmp_path):
    write_heart(tmp_path)
    task = opened(Ecg(positions=True), tmp_path)
    assert (task.input_size, task.output_size, task.output) == (10, 3, "last")
    rows = []
    for record in task.test.records:
        seconds = record.sample / 360
        for i in range(1, len(seconds) - 1):
            piece = record.signal[record.sample[i] - 108 : record.sample[i] - 108 + 252]
            mean = np.mean([seconds[j + 1] - seconds[j] for j in range(max(0, i - 10), i)])
            before = seconds[i] - seconds[i - 1]
            numbers = [before, seconds[i + 1] - seconds[i], mean, before / mean]
            rows.append((record.label[i], np.concatenate([piece.reshape(42, 6), np.tile(numbers, (42, 1))], 1)))
    assert task.test.y.tolist() == [label for label, _ in rows]
    assert np.allclose(task.test.x.numpy(), np.stack([x for _, x in rows]), atol=1e-5)
    assert not task.marks_background
    assert task.background(next(task.test.chunks())) is None
    tally, y = task.tally(task.test), torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(0))
    tally.add(y, next(task.test.chunks(len(rows))))
    figures, predicted, truth = tally.result(), y.argmax(1), task.test.y
    for i, name in enumerate("NSV"):
        hits = int(((predicted == i) & (truth == i)).sum())
        assert figures[f"sensitivity_{name}"] == pytest.approx(hits / int((truth == i).sum()))
        assert figures[f"precision_{name}"] == pytest.approx(hits / int((predicted == i).sum()))


def test_weights_of_classes(tmp_path):
    write_heart(tmp_path)
    for balance in (0.0, 0.5, 1.0):
        task = opened(Ecg(balance=balance, **SMALL), tmp_path)
        labels = task.train.y[task.train.y >= 0]
        share = torch.bincount(labels).double() / len(labels)
        weight = share**-balance
        weight /= (weight * share).sum()
        y = torch.zeros(1, 1, 4)
        for i in range(4):
            loss = task.objective.loss(y, torch.tensor([[i]]))
            assert loss.item() == pytest.approx(float(weight[i]) * np.log(4), rel=1e-5)


CHANGES = {
    "ann_symbol": (
        lambda d: np.where(np.arange(len(d["ann_symbol"])) < d["ann_offset"][1], "+", d["ann_symbol"]),
        "record 100: expected annotated beats, got none; leave it out of ds1 and ds2",
    ),
    "ann_sample": (lambda d: d["ann_sample"] + 9000, "expected ascending sample numbers below 16000 in ann_sample"),
    "ann_offset": (lambda d: d["ann_offset"][:-1], "ann_offset: expected 6 row numbers in ascending order"),
    "ds1": (
        lambda d: np.array(["101", "100"]),
        "ds2: expected each record once, in one part of the data, got record 100 in .*ds1, too",
    ),
    "ds2": (lambda d: np.array(["999"]), "ds2: expected only names that are in the array 'record', got '999'"),
    "first": (lambda d: d["first"].astype(float), "first: expected whole numbers with 1 axes, got float64"),
    "difference": (lambda d: d["difference"][:2], "expected 5 rows in the arrays first and difference"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_bad_files(tmp_path, name):
    change, message = CHANGES[name]
    path = write_heart(tmp_path, **{name: change(heart())})
    with pytest.raises(EdgernnError, match=message) as caught:
        opened(Ecg(**SMALL), tmp_path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("code", [0x110000, 0xD800])
def test_words_of_characters_that_do_not_exist(tmp_path, code, order):
    symbols = heart()["ann_symbol"].astype(f"{order}U1")
    symbols.view(f"{order}u4")[7] = code
    write_heart(tmp_path, ann_symbol=symbols)
    with pytest.raises(
        EdgernnError, match="ann_symbol: expected words, got characters that do not exist; get the file"
    ):
        opened(Ecg(**SMALL), tmp_path)


def test_other_bad_input(tmp_path):
    write_heart(tmp_path)
    with pytest.raises(
        EdgernnError, match=r"expected at least window=9000 steps of 6 samples, got 2666 steps; lower window"
    ):
        opened(Ecg(window=9000), tmp_path)
    with pytest.raises(UsageError, match="lead: expected fewer steps than window=100, got 200"):
        Ecg(window=100)
    data = heart()
    write_heart(tmp_path, ann_symbol=np.where(data["ann_symbol"] == "A", "N", data["ann_symbol"]))
    with pytest.raises(EdgernnError, match="expected beats of each class in the training part, got none of S"):
        opened(Ecg(**SMALL), tmp_path)


@pytest.mark.parametrize("positions", [False, True], ids=["running", "positions"])
@pytest.mark.slow
def test_beats_are_learnt(tmp_path, monkeypatch, positions):
    without_pictures(monkeypatch)
    write_heart(tmp_path / "data")
    sizes = {"steps": 100} if positions else {"steps": 200, **SMALL}
    settings = {"positions": str(positions).lower(), "hidden_size": 24, "lr": 0.02, **sizes}
    trained = Trained(tmp_path / "run", "ecg", tmp_path / "data", **settings)
    assert trained.result["sensitivity_V"] > 0.8
    assert trained.result["precision_V"] > 0.8
    assert trained.result["macro_f1"] > 0.6


def mit_bih():
    folder = data_folder()
    return folder is not None and any((folder / "mit-bih").glob("mit-bih-mlii.npz*"))


@pytest.mark.skipif(not mit_bih(), reason="EDGERNN_DATA has no mit-bih/mit-bih-mlii.npz")
def test_mit_bih():
    task = opened(Ecg(positions=True), data_folder())
    names = [{record.name for record in part.records} for part in parts(task)]
    assert [len(part) for part in names] == [18, 4, 22]
    assert not names[2] & (names[0] | names[1])
    # the beats of DS2 as de Chazal counts them, without the first or last of some records
    counts = torch.bincount(task.test.y).tolist()
    assert counts == pytest.approx([44_259, 1_837, 3_221], abs=44)
