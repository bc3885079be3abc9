# SPDX-License-Identifier: Apache-2.0
"""A session on a GPU, and the C functions of the CUDA library, on a machine with a fake GPU."""

import threading

import numpy as np
import pytest

import edgernn
from benchmarks.cuda_calls import CudaCalls, Sizes
from edgernn.runtime import Session, library
from edgernn.runtime.run_file import run_file
from tests import fake_gpu
from tests.models import assert_threads_get_the_same, exported

backends = pytest.mark.parametrize("backend", ["portable", "native"])
STACK = {"layers": 2, "output": "all", "mean": 0.5, "std": 2.0}


@pytest.fixture
def gpu(fake, monkeypatch):
    fake_gpu.install(monkeypatch, fake)
    return fake


def random_input(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@backends
@pytest.mark.parametrize("batch", [None, 1, 5], ids=["no batch axis", "B=1", "B=5"])
def test_runs_and_steps_equal_those_of_the_cpu(gpu, backend, batch):
    _, path = exported("lstm", "selective", **STACK)
    x = random_input(9, 3) if batch is None else random_input(9, batch, 3)
    cpu, session = (Session(path, backend=backend, device=device) for device in ("cpu", "cuda"))
    assert (session.device, session.backend) == ("cuda", backend)
    for _ in range(2):
        np.testing.assert_array_equal(session.run(x), cpu.run(x))
        np.testing.assert_array_equal(session.updates, cpu.updates)
        np.testing.assert_array_equal(session.macs, cpu.macs)
    whole = cpu.run(x)
    for _ in range(2):
        np.testing.assert_allclose(np.stack([session.step(x_t) for x_t in x]), whole, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(session.updates, cpu.updates[-1:])
        session.reset()


def test_only_x_is_copied_in(gpu):
    _, path = exported("gru", "selective")
    session = Session(path, device="cuda")
    for _ in range(3):
        session.run(random_input(4, 2, 3))
    # the initial state is on the device already
    assert session.onnx.copied == ["x"] * 3
    session.step(random_input(2, 3))
    session.step(random_input(2, 3))
    assert session.onnx.copied == ["x"] * 3
    assert len(session.onnx.runs) == 5


def test_the_state_kept_is_that_of_the_last_step(gpu):
    _, path = exported("gru")
    x = random_input(7, 2, 3)
    session = Session(path, device="cuda")
    first = session.step(x[0])
    session.run(x)
    later = [session.step(x_t) for x_t in x[1:]]
    np.testing.assert_allclose(later[-1], Session(path, device="cpu").run(x), rtol=0, atol=1e-6)
    # returned arrays belong to the caller
    session.reset()
    np.testing.assert_array_equal(session.step(x[0]), first)


def test_run_from_takes_and_gives_a_state(gpu):
    _, path = exported("lstm")
    x = random_input(6, 2, 3)
    session = Session(path, device="cuda")
    _, state = session.run_from(x[:3], session.initial_state(2))
    y, last = session.run_from(x[3:], state)
    np.testing.assert_allclose(y, session.run(x), rtol=0, atol=1e-6)
    assert {name: value.shape for name, value in last.items()} == {"layer0.h": (2, 33), "layer0.c": (2, 33)}
    assert all(type(value) is np.ndarray for value in last.values())


@backends
def test_rows_start_anew_and_batches_may_be_padded(gpu, backend):
    path = exported("lstm", "selective", **STACK)[1]
    cpu, session = (Session(path, backend=backend, device=device) for device in ("cpu", "cuda"))
    x = random_input(8, 3, 3)
    for t, x_t in enumerate(x):
        for each in (cpu, session):
            each.reset(rows=[t % 3])
        np.testing.assert_allclose(session.step(x_t), cpu.step(x_t), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(session.run(x, [5, 0, 8]), cpu.run(x, [5, 0, 8]))
    np.testing.assert_array_equal(session.updates, cpu.updates)


@backends
def test_a_state_passes_between_a_gpu_and_the_cpu(gpu, backend):
    path = exported("lstm", "selective", **STACK)[1]
    x = random_input(8, 2, 3)
    x[3, 1, 2] = np.nan
    cpu, session, other = (
        Session(path, backend=backend, device=device, on_nonfinite="hold") for device in ("cpu", "cuda", "cuda")
    )
    for x_t in x[:4]:
        session.step(x_t)
    saved = session.save_state()
    for each in (cpu, other):
        each.restore_state(saved)
        np.testing.assert_array_equal(each.nonfinite, [0, 1])
    for x_t in x[4:]:
        expected = session.step(x_t)
        np.testing.assert_array_equal(other.step(x_t), expected)
        np.testing.assert_allclose(cpu.step(x_t), expected, rtol=0, atol=1e-6)


def test_threads_share_a_session(gpu):
    session = Session(exported("gru", "selective", layers=2)[1], device="cuda")
    assert_threads_get_the_same(session, [random_input(10, b, 3) for b in (1, 2, 1, 3)], repeats=10)


@backends
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((0, 2, 3)), r"x: expected shape \(T, B, 3\) with no empty axis, got \(0, 2, 3\)"),
        (np.zeros((4, 2, 5)), r"x: expected shape \(T, B, 3\), or without B, got \(4, 2, 5\)"),
        (np.array([[0, np.nan, 0]]), r"x: expected finite numbers, got nan at index \(0, 1\)"),
    ],
    ids=["T=0", "wrong I", "NaN"],
)
def test_wrong_input_is_named_and_nothing_runs(gpu, backend, x, message):
    session = Session(exported("gru")[1], backend=backend, device="cuda")
    with pytest.raises(edgernn.UsageError, match=message):
        session.run(x)
    with pytest.raises(edgernn.UsageError, match=r"state: expected"):
        session.run_from(random_input(2, 1, 3), {"layer0.h": np.zeros((2, 33))})
    with pytest.raises(edgernn.UsageError, match=r"x: expected shape \(B, 3\)"):
        session.step(np.zeros((2, 4)))
    assert session.onnx.runs == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("bad", [-1, 11])
def test_words_that_are_none_are_named_at_a_step(gpu, device, bad):
    path = exported("gru", vocabulary=11, input_size=4, output="all", tied=False)[1]
    session = Session(path, backend="portable", device=device)
    first = session.step(np.array([3]))
    with pytest.raises(edgernn.UsageError, match=f"x: expected word indices from 0 to 10, got {bad}"):
        session.step(np.array([bad]))
    session.reset()
    np.testing.assert_array_equal(session.step(np.array([3])), first)


def test_refused_steps_change_nothing(gpu):
    session = Session(exported("gru", "selective")[1], device="cuda")
    x = random_input(4, 3)
    expected = [session.step(x_t) for x_t in x]
    session.reset()
    for x_t, y in zip(x, expected, strict=True):
        with pytest.raises(edgernn.UsageError, match="expected finite numbers"):
            session.step(np.full(3, np.inf, np.float32))
        np.testing.assert_array_equal(session.step(x_t), y)


def test_a_session_asks_for_float32_and_the_stream_it_is_given(gpu):
    path = exported("gru")[1]
    assert Session(path, device="cuda").onnx.settings == {"device_id": "0", "use_tf32": "0"}
    assert Session(path, device="cuda", stream=1234).onnx.settings["user_compute_stream"] == "1234"


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {"provides": False},
            r"CUDA provider; pip uninstall onnxruntime onnxruntime-gpu, and then pip install 'onnxruntime-gpu>=1\.19'$",
        ),
        ({"starts": False}, r"cannot start its CUDA provider, .* pip install 'onnxruntime-gpu\[cuda,cudnn\]'$"),
    ],
    ids=["no provider", "it does not start"],
)
@pytest.mark.parametrize("backend", ["auto", "portable", "native"])
def test_a_provider_that_is_missing_is_one_sentence(fake, monkeypatch, capsys, facts, message, backend):
    fake_gpu.install(monkeypatch, fake, **facts)
    with pytest.raises(edgernn.EdgernnError, match=message):
        Session(exported("gru")[1], backend=backend, device="cuda")
    assert capsys.readouterr().out == ""


def test_a_driver_that_is_missing_is_one_sentence(gpu, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_MISSING", "no NVIDIA driver is installed")
    with pytest.raises(
        edgernn.EdgernnError,
        match=r"^device cuda: edgernn's CUDA library cannot use a GPU: no NVIDIA driver is installed; mend that, or "
        r"use device cpu$",
    ):
        Session(exported("gru")[1], device="cuda")


@pytest.mark.parametrize(
    ("installed", "kernels", "takes", "message"),
    [
        (False, "gru", "CUDAExecutionProvider", "CUDA library libedgernn_cuda is not installed"),
        (True, "lstm", "CUDAExecutionProvider", "the CUDA library has no kernel for gru"),
        (True, "gru", "CPUExecutionProvider", "ONNX Runtime's CUDA provider does not run Recurrent"),
    ],
    ids=["no library", "no such op", "op not taken"],
)
def test_without_a_kernel_auto_warns_and_native_refuses(fake, monkeypatch, installed, kernels, takes, message):
    monkeypatch.setenv("FAKE_CUDA_KERNELS", kernels)
    fake_gpu.install(monkeypatch, fake if installed else None, takes=takes)
    path, x = exported("gru")[1], random_input(5, 2, 3)
    with pytest.warns(RuntimeWarning, match=f"{message}.*; running the portable operators"):
        session = Session(path, device="cuda")
    assert session.backend == "portable"
    np.testing.assert_allclose(session.run(x), Session(path, backend="portable").run(x), rtol=0, atol=1e-6)
    with pytest.raises(edgernn.EdgernnError, match=message):
        Session(path, backend="native", device="cuda")


def test_here_it_is_said_what_to_do():
    with pytest.raises(edgernn.UsageError, match="device: expected cpu or cuda, got 'tpu'"):
        Session(exported("gru")[1], device="tpu")


def test_the_cuda_library_is_looked_for_beside_the_other(monkeypatch):
    monkeypatch.setattr(library, "_CUDA", "libnone")
    with pytest.raises(
        edgernn.EdgernnError, match=r"on a machine with nvcc, .* pip install \. -C cmake\.define\.EDGERNN_CUDA=ON"
    ):
        library.cuda_library_path()
    assert library.native_kernels("cuda") == set()


def test_a_file_is_run(gpu, tmp_path):
    np.savez(tmp_path / "x.npz", x=random_input(2, 5, 3))
    reports = [
        run_file(exported("gru")[1], tmp_path / "x.npz", tmp_path / f"{d}.npy", device=d) for d in ("cpu", "cuda")
    ]
    assert [report["backend"] for report in reports] == ["native", "native"]
    np.testing.assert_array_equal(np.load(tmp_path / "cpu.npy"), np.load(tmp_path / "cuda.npy"))


def addresses(*arrays):
    return [array.ctypes.data for array in arrays]


def test_the_library_gets_what_it_is_given(fake):
    cuda, sizes = CudaCalls(fake), Sizes(3, 5, 2)
    assert cuda.kernels() == {"gru", "lstm", "gru+selective", "lstm+selective"}
    assert cuda.missing() is None
    assert cuda.packed_bytes("gru", sizes) == 30502
    weights = [np.full(4, value, np.float32) for value in (2, 3, 5)]
    packed = np.full(4, -1, np.float32)
    cuda.pack("gru", sizes, addresses(*weights), packed.ctypes.data)
    np.testing.assert_array_equal(packed, [2, 3, 5, -1])
    x, states = random_input(4, 2, 3), [random_input(2, 5), random_input(2, 5)]
    y, last = np.empty((4, 2, 5), np.float32), [np.empty((2, 5), np.float32) for _ in range(2)]
    updates, macs = np.zeros((4, 2), np.int64), np.zeros(2, np.int64)
    arguments = (packed.ctypes.data, 4, 2, x.ctypes.data, addresses(*states), y.ctypes.data, addresses(*last))
    cuda.run("gru", sizes, *arguments, updates.ctypes.data, macs.ctypes.data)
    np.testing.assert_array_equal(y, np.broadcast_to(x[..., :1] + np.float32(2), y.shape))
    for got, state in zip(last, states, strict=True):
        np.testing.assert_array_equal(got, 10 * state)
    np.testing.assert_array_equal(updates, np.arange(8).reshape(4, 2))
    np.testing.assert_array_equal(macs, [7, 7])
    cuda.run("gru", sizes, *arguments[:5], 0, addresses(*last))


def test_the_library_refuses_in_its_own_words(fake):
    cuda, sizes = CudaCalls(fake), Sizes(3, 5)
    with pytest.raises(edgernn.EdgernnError, match=r"^CUDA: no such stream$"):
        cuda.pack("gru", sizes, [], 0, stream=13)
    other: list[str] = []

    def elsewhere():
        try:
            cuda.pack("lstm", sizes, [], 0)
        except edgernn.EdgernnError as error:
            other.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert other == ["the CUDA library failed"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.packed_bytes("gru", Sizes(0, 5)), "input: expected at least 1, got 0"),
        (lambda c: c.packed_bytes("gru", Sizes(3, 5, -1)), "rank: expected at least 0, got -1"),
        (lambda c: c.packed_bytes("gru", Sizes(3, 5, group_size=0)), "group_size: expected at least 1, got 0"),
        (lambda c: c.packed_bytes("gruu", Sizes(3, 5)), "unknown kind 'gruu': did you mean 'gru'"),
        (lambda c: c.run("gru", Sizes(3, 5), 1, 0, 1, 1, [1], 1, [1]), "steps: expected at least 1, got 0"),
        (
            lambda c: c.run("gru", Sizes(3, 5), 1, 1, 1, 1, [1], 1, []),
            "new_states: expected 1 addresses, as many as in states, got 0",
        ),
    ],
    ids=["I", "rank", "groups", "op", "T", "states"],
)
def test_wrong_arguments_are_named(fake, call, message):
    with pytest.raises(edgernn.UsageError, match=message):
        call(CudaCalls(fake))


def test_another_library_is_named(tmp_path):
    for path in (library.library_path(), tmp_path / "none.so"):
        with pytest.raises(edgernn.EdgernnError, match="expected the CUDA library of this version"):
            CudaCalls(path)
