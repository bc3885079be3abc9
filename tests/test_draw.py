# SPDX-License-Identifier: Apache-2.0
"""DRAW: its window, bound and gradients compared with NumPy, and runs of the task."""

import json
import math

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from edgernn.cli.frame import main
from edgernn.config import LayerConfig
from edgernn.errors import EdgernnError, UsageError
from edgernn.training import evaluate
from edgernn.training.config import TrainConfig
from edgernn.training.loop import train_step
from edgernn.training.papers.networks.draw import Draw, gaussian_divergence, window
from edgernn.training.papers.tasks.draw import DrawImages, mosaic
from edgernn.training.plan import make_plan
from edgernn.training.tasks.sources import Batch
from tests import oracle_cells
from tests.format_files import svhn_bytes
from tests.task_helpers import opened
from tests.training_helpers import data_folder, linear, without_pictures, words, write_mnist

SIZES = {"channels": 2, "height": 6, "width": 9, "glimpses": 3, "latent": 4, "hidden_size": 5}
SMALL = {"hidden_size": 8, "glimpses": 3, "latent": 4, "batch_size": 10, "steps": 3}


def layer(cell="lstm", rule=None, **changes):
    return LayerConfig.of(cell, rule, **changes)


def draw(cell="lstm", rule=None, **changes):
    torch.manual_seed(0)
    return Draw(layer(cell, rule), **{**SIZES, "read_size": 3, "write_size": 4, **changes})


def images(count=3, seed=1):
    return torch.rand(count, 2, 6, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.get_default_dtype())


# reference equations, pixel by pixel


def filterbank(numbers, N, A, B):
    """Return F_X (N, A), F_Y (N, B) and γ of section 3.2 of the paper, for width A and height B."""
    g_x, g_y, log_variance, log_stride, log_gamma = numbers
    g_x, g_y = (A + 1) / 2 * (g_x + 1), (B + 1) / 2 * (g_y + 1)
    stride = (max(A, B) - 1) / (N - 1) * np.exp(log_stride)
    F_x, F_y = np.zeros((N, A)), np.zeros((N, B))
    for F, g in ((F_x, g_x), (F_y, g_y)):
        for i in range(1, N + 1):
            mean = g + (i - N / 2 - 0.5) * stride
            for a in range(1, F.shape[1] + 1):
                F[i - 1, a - 1] = np.exp(-((a - mean) ** 2) / (2 * np.exp(log_variance)))
    return F_x / F_x.sum(1, keepdims=True), F_y / F_y.sum(1, keepdims=True), np.exp(log_gamma)


def recurrent(module, kind, x, state):
    weights = {name: value.detach().numpy() for name, value in module.cell.named_parameters()}
    return kind(weights, x, state)


def forward(model, x, noise, kind):
    """Return the last canvas and the divergence of one image x (C, B, A)."""
    C, B, A = x.shape
    H, N, M = SIZES["hidden_size"], model.read_size, model.write_size
    canvas, divergence = np.zeros(x.shape), 0.0
    encoding, decoding = ((np.zeros(H), np.zeros(H)) for _ in range(2))
    for e in noise:
        error = x - 1 / (1 + np.exp(-canvas))
        F_x, F_y, gamma = filterbank(linear(model.read_window, decoding[0]), N, A, B)
        glimpse = [gamma * F_y @ image[c] @ F_x.T for image in (x, error) for c in range(C)]
        seen = np.concatenate([np.ravel(glimpse), decoding[0]])
        encoding = recurrent(model.encoder, oracle_cells.lstm, seen, encoding)
        mean, log_deviation = np.split(linear(model.posterior, encoding[0]), 2)
        deviation = np.exp(log_deviation)
        divergence += 0.5 * np.sum(mean**2 + deviation**2 - np.log(deviation**2) - 1)
        decoding = recurrent(model.decoder, kind, mean + deviation * e, decoding)
        F_x, F_y, gamma = filterbank(linear(model.write_window, decoding[0]), M, A, B)
        patch = linear(model.patch, decoding[0]).reshape(C, M, M)
        canvas = canvas + np.stack([F_y.T @ patch[c] @ F_x / gamma for c in range(C)])
    return canvas, divergence


@pytest.mark.usefixtures("_double")
def test_the_filters_are_those_of_the_equations():
    numbers = np.random.default_rng(0).normal(size=(20, 5))
    filters = window(torch.tensor(numbers), 4, height=6, width=9)
    for b in range(20):
        F_x, F_y, gamma = filterbank(numbers[b], 4, A=9, B=6)
        np.testing.assert_allclose(filters.columns[b], F_x, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(filters.rows[b], F_y, rtol=1e-9, atol=1e-12)
        assert filters.intensity[b].item() == pytest.approx(gamma)


def test_a_filter_far_outside_is_finite():
    patch = window(torch.tensor([[50.0, -50.0, -6.0, 0.0, 0.0]]), 3, 28, 28)
    for filters in (patch.rows, patch.columns):
        assert torch.isfinite(filters).all()
        torch.testing.assert_close(filters.sum(-1), torch.ones(1, 3))


def test_a_fine_window_in_the_middle_reads_and_writes_the_pixels_there():
    # 3 x 3 filters one pixel apart, around the middle of 7 x 7
    numbers = torch.tensor([[0.0, 0.0, -8.0, math.log(2 / 6), math.log(2.0)]])
    filters = window(numbers, 3, 7, 7)
    x = torch.arange(49.0).view(1, 1, 7, 7)
    torch.testing.assert_close(filters.read(x), 2 * x[:, :, 2:5, 2:5])
    patch = torch.arange(9.0).view(1, 1, 3, 3)
    expected = torch.zeros(1, 1, 7, 7)
    expected[:, :, 2:5, 2:5] = patch / 2
    torch.testing.assert_close(filters.write(patch), expected)


def test_the_divergence_is_an_integral():
    grid = np.linspace(-30, 30, 200_001)
    means, deviations = [0.0, 1.5, -0.3], [1.0, 0.4, 2.0]
    expected = 0.0
    for mean, deviation in zip(means, deviations, strict=True):
        log_q = -0.5 * ((grid - mean) / deviation) ** 2 - np.log(deviation)
        log_p = -0.5 * grid**2
        expected += (np.exp(log_q) / np.sqrt(2 * np.pi) * (log_q - log_p)).sum() * (grid[1] - grid[0])
    divergence = gaussian_divergence(torch.tensor(means), 2 * torch.tensor(deviations).log())
    assert divergence.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize(("cell", "kind"), [("lstm", oracle_cells.lstm), ("eins", oracle_cells.eins)])
def test_a_forward_is_that_of_the_equations(cell, kind):
    model, x = draw(cell), images()
    torch.manual_seed(5)
    noise = torch.stack([torch.randn(3, 4) for _ in range(3)])
    torch.manual_seed(5)
    canvas, divergence = model(x)
    for b in range(3):
        expected, kl = forward(model, x[b].numpy(), noise[:, b].numpy(), kind)
        np.testing.assert_allclose(canvas[b].detach(), expected, rtol=1e-9, atol=1e-10)
        assert divergence[b].item() == pytest.approx(kl)


# the network


@pytest.mark.parametrize(("cell", "expected"), [("eins", 420_100), ("lstm", 2_883_200)])
def test_parameters_of_the_papers_decoder(cell, expected):
    sizes = {"channels": 3, "height": 32, "width": 32, "glimpses": 32, "latent": 100, "hidden_size": 800}
    with torch.device("meta"):
        model = Draw(layer(cell), **sizes, read_size=12, write_size=12)
    assert sum(p.numel() for p in model.decoder.parameters()) == expected
    assert model.recurrent_layers() == [model.decoder]


def test_forget_gates_start_open():
    model = draw("eins", hidden_size=5)
    assert (model.encoder.cell.b.detach()[5:10] == 1).all()
    # the papers' cells have such a bias only as an option; that of another gate, of size I, comes before it
    assert model.decoder.cell.b.shape == (4,)
    for cell in ("eins", "ihc-lstm"):
        biased = Draw(layer(cell, cell_options={"forget_bias": 0.5}), **SIZES, read_size=3, write_size=3)
        assert (biased.decoder.cell.b.detach()[4:] == 0.5).all()
        assert not (biased.decoder.cell.b.detach()[:4] == 1).any()


@pytest.mark.parametrize("encoder", ["lstm", "same"])
@pytest.mark.parametrize("cell", ["eins", "ihc-lstm", "sru", "gru"])
def test_gradients_reach_every_parameter(cell, encoder):
    model = draw(cell, encoder=encoder)
    canvas, divergence = model(images())
    (canvas.square().sum() + divergence.sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("encoder", ["lstm", "same"])
@pytest.mark.parametrize("rule", ["selective", "skip"])
def test_the_budget_is_that_of_the_layers_asked_for(rule, encoder):
    model = draw("gru", rule, encoder=encoder)
    seen = []
    for recurrent_layer in model.recurrent_layers():
        recurrent_layer.register_forward_hook(
            lambda _, inputs, outputs: seen.append(outputs[2].decisions[0].double().numpy())
        )
    model(images())
    assert len(seen) == SIZES["glimpses"] * len(model.recurrent_layers())
    assert model.budget.item() == pytest.approx(sum(u.mean() for u in seen))
    assert model.update_rate == pytest.approx(np.mean(seen))
    assert [len(trace.decisions) for trace in model.traces] == [SIZES["glimpses"]] * len(model.recurrent_layers())


def test_the_budget_reaches_the_loss():
    losses = []
    task = DrawImages(glimpses=3)
    task.shape = (2, 6, 9)
    batch = Batch(255 * images().flatten(1)[None], torch.empty(3, 0))
    for weight in (0.0, 10.0):
        model = draw("gru", "selective")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        torch.manual_seed(0)
        losses.append(train_step(model, optimizer, batch, task, TrainConfig(steps=1, lambda_=weight))[0])
    assert losses[1] - losses[0] == pytest.approx(10 * model.budget.item(), rel=1e-4)
    assert model.budget.item() > 0


def test_images_come_from_the_decoder_alone():
    model = draw()
    torch.manual_seed(2)
    images = model.generate(7)
    assert images.shape == (3, 7, 2, 6, 9)
    assert ((images > 0) & (images < 1)).all()
    for parameter in (*model.encoder.parameters(), *model.posterior.parameters()):
        parameter.data.fill_(torch.nan)
    torch.manual_seed(2)
    assert torch.equal(model.generate(7), images)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "gru"}, "encoder: expected one of lstm, same, got 'gru'"),
        ({"read_size": 1}, "read_size: expected at least 2, got 1"),
        ({"write_size": 1}, "write_size: expected at least 2, got 1"),
    ],
)
def test_a_bad_size_is_named(changes, message):
    with pytest.raises(UsageError, match=message):
        draw(**changes)


def test_images_of_another_size_are_refused():
    with pytest.raises(UsageError, match=r"x: expected shape \(B, 2, 6, 9\), got \(3, 6, 9\)"):
        draw()(images()[:, 0])


# the task


def write_svhn(folder, train=24, test=3):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        arrays[part] = rng.integers(256, size=(32, 32, 3, count), dtype=np.uint8)
        y = rng.integers(1, 11, size=(count, 1), dtype=np.uint8)
        (folder / f"{part}_32x32.mat").write_bytes(svhn_bytes(arrays[part], y))
    return arrays


def test_digits_are_made_binary_once_for_all_runs(tmp_path):
    arrays = write_mnist(tmp_path, train=240, test=60)
    grey = arrays["t10k-images-idx3-ubyte"].reshape(60, -1).astype(float)
    task, again = (opened(DrawImages(), tmp_path, seed) for seed in (0, 1))
    assert (len(task.train), len(task.validation), len(task.test)) == (220, 20, 60)
    x = next(task.test.chunks()).x
    assert x.shape == (1, 60, 784)
    assert torch.equal(x, next(again.test.chunks()).x)
    assert set(x.unique().tolist()) == {0.0, 255.0}
    white = x[0].numpy() == 255
    assert not white[grey == 0].any()
    assert white[grey == 255].all()
    # binarisation: a grey value is the fraction of white pixels
    for low in range(0, 256, 64):
        chosen = (grey >= low) & (grey < low + 64)
        assert white[chosen].mean() == pytest.approx(grey[chosen].mean() / 255, abs=0.02)


def test_house_numbers_keep_colours_and_places(tmp_path):
    arrays = write_svhn(tmp_path / "svhn")
    task = opened(DrawImages(images="svhn"), tmp_path)
    assert (len(task.train), len(task.validation), len(task.test)) == (22, 2, 3)
    x = next(task.test.chunks()).x[0].view(-1, *task.shape).numpy()
    np.testing.assert_array_equal(x, arrays["test"].transpose(3, 2, 0, 1))


def test_metrics_are_those_of_the_canvas(tmp_path):
    write_mnist(tmp_path)
    plan = make_plan("draw", "gru", None, {"glimpses": 2, "hidden_size": 6}, data=tmp_path)
    model, batch = plan.network(), plan.task.train.batch(0, 7)
    torch.manual_seed(3)
    metrics = plan.task.figures(model, batch)
    x = batch.x[0].view(7, 1, 28, 28) / 255
    torch.manual_seed(3)
    canvas, divergence = model(x)
    p = 1 / (1 + np.exp(-canvas.detach().double().numpy()))
    surprise = -np.where(x.numpy() == 1, np.log(p), np.log(1 - p)).sum((1, 2, 3))
    assert metrics["reconstruction"].item() == pytest.approx(surprise.mean(), rel=1e-5)
    assert metrics["kl"].item() == pytest.approx(divergence.mean().item(), rel=1e-5)
    assert metrics["nll_bound"].item() == pytest.approx((surprise.mean() + divergence.mean().item()), rel=1e-5)


def test_evaluation_is_deterministic(tmp_path):
    write_mnist(tmp_path)
    plan = make_plan("draw", "sarnn", None, {"glimpses": 2, "hidden_size": 6}, data=tmp_path)
    model = plan.network()
    first = evaluate(model, plan.task, plan.task.test)
    torch.randn(5)
    assert evaluate(model, plan.task, plan.task.test) == first
    assert first["nll_bound"] == pytest.approx(first["reconstruction"] + first["kl"])
    assert 0 < first["skip_percent"] < 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"images": "cats"}, "images: expected mnist or svhn, got 'cats'"),
        ({"encoder": "gru"}, "encoder: expected one of lstm, same, got 'gru'"),
        ({"write_size": 1}, "write_size: expected a whole number of at least 2, got 1"),
        ({"layers": 2}, "layers: the network of the task draw has no such setting"),
        ({"imputer": "rits"}, "imputer: the network of the task draw has no such setting"),
    ],
)
def test_a_bad_setting_is_named(tmp_path, words, message):
    write_mnist(tmp_path)
    with pytest.raises(UsageError, match=message):
        make_plan("draw", "gru", None, words, data=tmp_path)


def test_a_cell_that_imputes_is_refused(tmp_path):
    write_mnist(tmp_path)
    with pytest.raises(UsageError, match=r"cell: expected one that implies no imputer, .* with the imputer gru-d"):
        make_plan("draw", "gru-d", None, {}, data=tmp_path)


def test_a_cell_that_is_run_in_parts_must_know_its_length(tmp_path):
    write_mnist(tmp_path)
    with pytest.raises(
        UsageError,
        match="length: expected the number of steps of a whole sequence, as decaynet depends on it",
    ):
        make_plan("draw", "decaynet", None, {}, data=tmp_path)
    make_plan("draw", "decaynet", None, {"length": 10}, data=tmp_path)


@pytest.mark.parametrize(("train", "test"), [(11, 6), (24, 0)])
def test_too_few_images_are_an_error(tmp_path, train, test):
    write_mnist(tmp_path, train=train, test=test)
    with pytest.raises(
        EdgernnError, match=f"expected at least 12 training images and 1 test image, got {train} and {test}"
    ):
        opened(DrawImages(), tmp_path)


def test_a_run_leaves_pictures_and_cannot_be_exported(tmp_path, monkeypatch, capsys):
    without_pictures(monkeypatch)
    write_mnist(tmp_path / "data")
    run = tmp_path / "run"
    where = ["--out", str(run), "--data", str(tmp_path / "data")]
    assert main(["train", "--task", "draw", "--cell", "sarnn", *where, *words(SMALL), "encoder=same"]) == 0
    result = json.loads((run / "result.json").read_text())
    assert result["metric"] == "nll_bound"
    # 784 pixels, all unknown
    assert result["nll_bound"] == pytest.approx(784 * np.log(2), rel=0.05)
    picture = imread(run / "samples.png")
    assert picture.std() > 0.05
    capsys.readouterr()
    assert main(["export", str(run)]) != 0
    assert "network: expected a SequenceModel, got a Draw" in capsys.readouterr().err


def test_colour_images_are_drawn_too(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    write_svhn(tmp_path / "data" / "svhn")
    run = tmp_path / "run"
    where = ["--out", str(run), "--data", str(tmp_path / "data")]
    assert main(["train", "--task", "draw", "--cell", "eins", *where, *words({**SMALL, "images": "svhn"})]) == 0
    assert (run / "samples.png").stat().st_size > 0


def test_a_mosaic_keeps_each_image_in_its_place():
    tiles = torch.arange(2 * 3 * 3 * 4 * 5.0).view(2, 3, 3, 4, 5) + 1
    picture = mosaic(tiles, gap=2)
    assert picture.shape == (2 * 4 + 2, 3 * 5 + 2 * 2, 3)
    for r in range(2):
        for c in range(3):
            tile = picture[r * 6 : r * 6 + 4, c * 7 : c * 7 + 5]
            np.testing.assert_array_equal(tile, tiles[r, c].permute(1, 2, 0))
    assert (picture[4:6] == 1).all()


@pytest.mark.skipif(data_folder() is None, reason="EDGERNN_DATA is not set")
@pytest.mark.slow
def test_the_digits_of_mnist():
    task = opened(DrawImages())
    assert (len(task.train), len(task.validation), len(task.test)) == (55_000, 5_000, 10_000)
    # the mean grey value of the test images is 0.1325
    x = torch.cat([batch.x[0] for batch in task.test.chunks()])
    assert x.mean().item() / 255 == pytest.approx(0.1325, abs=1e-3)
