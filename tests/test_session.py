# SPDX-License-Identifier: Apache-2.0
"""The session: whole sequences, single steps, and errors for invalid input."""

import copy
import json
import pathlib
import pickle
import threading
from functools import partial
from itertools import product

import numpy as np
import onnx
import polars
import pytest
import torch

import edgernn
from edgernn.export import to_onnx
from edgernn.random_models import random_model
from edgernn.runtime import Session, library, library_path
from edgernn.runtime.library import onnxruntime
from edgernn.runtime.packed import pack_file
from edgernn.runtime.run_file import run_file
from tests.models import assert_threads_get_the_same, exported, written
from tests.test_step_graph import Net, small_file

STACK = {"layers": 2, "output": "all", "mean": 0.5, "std": 2.0}
backends = pytest.mark.parametrize("backend", ["portable", "native"])


def random_input(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@backends
@pytest.mark.parametrize("batch", [None, 1, 5], ids=["no batch axis", "B=1", "B=5"])
def test_steps_equal_the_whole_sequence(backend, batch):
    _, path = exported("lstm", "selective", **STACK)
    session = Session(path, backend=backend)
    x = random_input(9, 3) if batch is None else random_input(9, batch, 3)
    whole = session.run(x)
    steps = np.stack([session.step(x_t) for x_t in x])
    np.testing.assert_allclose(steps, whole, rtol=0, atol=1e-6)
    assert steps.shape == whole.shape
    session.reset()
    np.testing.assert_array_equal(session.step(x[0]), steps[0])


@backends
def test_run_leaves_the_kept_state_alone(backend):
    _, path = exported("gru")
    session = Session(path, backend=backend)
    x = random_input(4, 3)
    expected = [session.step(x_t) for x_t in x]
    session.reset()
    for x_t, y in zip(x, expected, strict=True):
        np.testing.assert_array_equal(session.step(x_t), y)
        session.run(x)


def test_native_counts_equal_the_updates_of_torch_and_the_work_follows_them(tmp_path):
    # skips so many updates that the kernel computes the others row by row
    model = random_model("gru", 3, 33, rule="selective", layers=2, skip=0.9)
    path = tmp_path / "model.onnx"
    to_onnx(model, path)
    session = Session(path, backend="native")
    x = random_input(12, 4, 3)
    session.run(x)
    import torch

    with torch.no_grad():
        model(torch.from_numpy(x))
    counts = [t.decisions.sum(-1).numpy() for t in model.traces]
    assert (session.updates == sum(counts)).all()
    macs = np.zeros(4, np.int64)
    for layer, count in zip(model.recurrent_layers(), counts, strict=True):
        _, per_layer = layer.cell.macs()
        macs += 12 * layer.rule.macs() + count.sum(0) * (per_layer // 33)
    assert (session.macs == macs).all()
    portable = Session(path, backend="portable")
    portable.run(x)
    assert (portable.macs == 12 * sum(layer.macs() for layer in model.recurrent_layers())).all()


def test_always_reports_no_updates():
    _, path = exported("gru")
    session = Session(path)
    session.run(random_input(2, 3))
    assert session.updates is None
    assert session.macs is None


@backends
def test_threads_share_one_session(backend):
    _, path = exported("gru", "selective", layers=2)
    session = Session(path, backend=backend)
    assert_threads_get_the_same(session, [random_input(30, 2, 3) + i for i in range(8)], repeats=20)


@backends
def test_a_session_in_a_step_of_one_thread_refuses_others_but_runs_sequences(backend):
    _, path = exported("gru", "selective", layers=2)
    session = Session(path, backend=backend)
    x = random_input(5, 2, 3)
    whole, first = session.run(x), session.step(x[0])
    saved = session.save_state()
    inside, leave, step = threading.Event(), threading.Event(), session._stream.step

    def wait():
        inside.set()
        leave.wait()
        return step()

    session._stream.step = wait
    outputs = []
    thread = threading.Thread(target=lambda: outputs.append(session.step(x[1])))
    thread.start()
    inside.wait()
    calls = {
        "step": lambda: session.step(x[2]),
        "reset": session.reset,
        "save_state": session.save_state,
        "restore_state": lambda: session.restore_state(saved),
    }
    for name, call in calls.items():
        with pytest.raises(edgernn.EdgernnError, match=f"{name}: expected one thread at a time.*open a session for"):
            call()
    np.testing.assert_array_equal(session.run(x), whole)
    leave.set()
    thread.join()
    del session._stream.step
    # none of the refused calls changed the state, and the lock is free again
    alone = Session(path, backend=backend)
    np.testing.assert_array_equal([alone.step(x_t) for x_t in x[:3]], [first, *outputs, session.step(x[2])])


@backends
def test_steps_of_one_session_on_two_threads_are_those_of_one_thread_or_refused(backend):
    _, path = exported("gru", "selective", layers=2)
    session = Session(path, backend=backend)
    x_t, outputs, refused = random_input(2, 3), [], []

    def work():
        for _ in range(300):
            try:
                outputs.append(session.step(x_t))
            except edgernn.EdgernnError:
                refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outputs) + len(refused) == 600
    alone = Session(path, backend=backend)
    expected = np.array([alone.step(x_t) for _ in outputs])
    # a thread may add its output after the next step
    np.testing.assert_array_equal(np.sort(outputs, 0), np.sort(expected, 0))


@backends
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((0, 2, 3)), r"x: expected shape \(T, B, 3\) with no empty axis, got \(0, 2, 3\)"),
        (np.zeros((4, 2, 5)), r"x: expected shape \(T, B, 3\), or without B, got \(4, 2, 5\)"),
        (np.zeros(3), r"x: expected shape \(T, B, 3\), or without B, got \(3,\)"),
        (np.array([["a", "b", "c"]]), "x: expected numbers of shape .* got dtype <U1"),
        (np.array([[0, np.nan, 0]]), r"x: expected finite numbers, got nan at index \(0, 1\)"),
    ],
    ids=["T=0", "wrong I", "wrong rank", "dtype", "NaN"],
)
def test_wrong_input_is_named(backend, x, message):
    _, path = exported("gru")
    with pytest.raises(edgernn.UsageError, match=message):
        Session(path, backend=backend).run(x)


def test_masked_entries_are_refused_and_an_unused_mask_is_not():
    session, x = Session(exported("gru")[1]), random_input(4, 2, 3)
    y, y_0 = session.run(x), session.step(x[0])
    masked = np.ma.masked_greater(x, 1.0)
    state = {name: np.ma.masked_equal(value, 0) for name, value in session.initial_state(2).items()}
    calls = {
        "x": (lambda: session.run(masked), lambda: session.run(list(masked)), lambda: session.step(masked[1])),
        "lengths": (lambda: session.run(x, lengths=np.ma.masked_equal([4, 0], 0)),),
        "rows": (lambda: session.reset(rows=np.ma.masked_equal([0, 1], 1)),),
        "layer0.h": (lambda: session.run_from(x, state),),
    }
    assert masked.mask.any(axis=(1, 2)).all()
    for name, each in calls.items():
        for call in each:
            with pytest.raises(edgernn.UsageError, match=f"{name}: expected no masked entries, got a masked array"):
                call()
    np.testing.assert_array_equal(session.run(np.ma.array(x)), y)
    session.reset()
    np.testing.assert_array_equal(session.step(np.ma.array(x[0])), y_0)


def test_wrong_steps_are_named():
    session = Session(exported("gru")[1])
    session.step(np.zeros((2, 3)))
    with pytest.raises(edgernn.UsageError, match=r"batch size of the kept state, 2, got 3; call reset\(\) first"):
        session.step(np.zeros((3, 3)))
    both = Session(exported("gru", bidirectional=True)[1])
    with pytest.raises(edgernn.UsageError, match="got one that needs the whole sequence"):
        both.step(np.zeros(3))


@backends
@pytest.mark.parametrize(
    "state",
    [{"layer0.h": np.zeros(shape)} for shape in ((2, 33), (1, 32), (33,))] + [{}, {"h": np.zeros((1, 33))}],
    ids=["wrong B", "wrong H", "wrong rank", "missing", "wrong name"],
)
def test_wrong_state_is_named(backend, state):
    session = Session(exported("gru")[1], backend=backend)
    with pytest.raises(edgernn.UsageError, match=r"state: expected \{'layer0\.h': \(1, 33\)\}, got "):
        session.run_from(random_input(2, 1, 3), state)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(edgernn.EdgernnError, match=r"none\.onnx: no such file"):
        Session(tmp_path / "none.onnx")
    good = exported("gru")[1].read_bytes()
    bad = tmp_path / "bad.onnx"
    for content in (b"", b"not a model", good[: len(good) // 2]):
        bad.write_bytes(content)
        with pytest.raises(edgernn.EdgernnError, match=r"bad\.onnx: "):
            Session(bad)
    proto = onnx.load_from_string(good)
    onnx.helper.set_model_props(proto, {})
    del proto.metadata_props[:]
    onnx.save(proto, bad)
    # a step of a file without metadata is that of its layers alone
    x_t = random_input(2, 3)
    np.testing.assert_array_equal(Session(bad).step(x_t), Session(exported("gru")[1]).step(x_t))
    for text, message in (
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"schema": 2}', "metadata lacks the value kernels"),
    ):
        onnx.helper.set_model_props(proto, {"edgernn": text})
        onnx.save(proto, bad)
        with pytest.raises(edgernn.EdgernnError, match=message):
            Session(bad)
    info = json.loads(onnx.load_from_string(good).metadata_props[0].value)
    for name in ("frontend_macs", "block_macs"):
        text = json.dumps({**info, "cost": {**info["cost"], name: None}})
        onnx.helper.set_model_props(proto, {"edgernn": text})
        onnx.save(proto, bad)
        with pytest.raises(edgernn.EdgernnError, match=rf"value cost\.{name} in its .*: expected a number, got None"):
            Session(bad)
    for schema, remedy in ((1, "export the model again"), (3, "update edgernn")):
        onnx.helper.set_model_props(proto, {"edgernn": f'{{"schema": {schema}}}'})
        onnx.save(proto, bad)
        with pytest.raises(edgernn.EdgernnError, match=rf"metadata of version 2, got {schema}; {remedy}"):
            Session(bad)


def opened(form, folder):
    """Open a session of a packed model or of the file of another tool, and return the outputs that it is to have."""
    if form == "own":
        _, path = exported("lstm", "selective", **STACK)
        packed = folder / "own.edgernn"
        pack_file(path, packed)
        return packed, Session(path).run
    path = small_file(folder)
    if form == "packed":
        pack_file(path, folder / "small.edgernn")
    runtime = onnxruntime().InferenceSession(path.read_bytes())

    def run(x):
        outputs = []
        for row in range(x.shape[1]):
            h = c = np.zeros((1, 1, 4), np.float32)
            for x_t in x[:, row]:
                y, h, c = runtime.run(None, {"x": x_t[None, None], "h": h, "c": c})
                outputs.append(y.ravel())
        return np.reshape(outputs, (x.shape[1], len(x), -1)).swapaxes(0, 1)

    return path.with_suffix(".edgernn") if form == "packed" else path, run


@pytest.mark.parametrize("form", ["own", "packed", "foreign"])
def test_packed_models_and_files_of_other_tools_have_sessions(form, tmp_path):
    path, expected = opened(form, tmp_path)
    session, x = Session(path), random_input(6, 2, 3)
    assert (session.backend, session.onnx, session.shape("B")) == ("native", None, "(B, 3)")
    y = session.run(x)
    np.testing.assert_allclose(y, expected(x), rtol=0, atol=1e-5)
    work = session.updates, session.macs
    cut = session.run(x, lengths=[6, 2])
    np.testing.assert_array_equal(cut[:2], y[:2])
    np.testing.assert_array_equal(cut[2:, 0], y[2:, 0])
    assert not cut[2:, 1].any()
    if form == "own":
        assert (session.updates == np.where(np.arange(6)[:, None] < [6, 2], work[0], 0)).all()
        assert session.macs[0] == work[1][0] > 2 * session.macs[1] > 0
    else:
        assert work == (None, None)
    steps = [session.step(x_t) for x_t in x[:3]]
    saved = session.save_state()
    np.testing.assert_array_equal([*steps, *map(session.step, x[3:])], y)
    other = Session(path, on_nonfinite="hold")
    other.restore_state(saved)
    np.testing.assert_array_equal(other.step(x[3]), y[3])
    other.reset(rows=[1])
    gap = x[4].copy()
    gap[1, 0] = np.nan
    alone = Session(path)
    gap_y, gap[1, 0] = other.step(gap), 0.5 if form == "own" else 0
    np.testing.assert_array_equal(gap_y, [y[4, 0], alone.step(gap[1])])
    assert other.nonfinite.tolist() == [0, 1]
    assert_threads_get_the_same(session, [x + i for i in range(4)], repeats=5)
    x[2, 1, 1] = np.inf
    for call in (lambda: session.run(x), lambda: session.step(x[2])):
        with pytest.raises(edgernn.UsageError, match="x: expected finite numbers, got inf at index 4"):
            call()
    for settings, message in (({"backend": "portable"}, "backend: expected native"), ({"device": "cuda"}, "device: ")):
        with pytest.raises(edgernn.UsageError, match=message):
            Session(path, **settings)
    with pytest.raises(edgernn.UsageError, match="states have no names; keep them with save_state"):
        session.run_from(x, {})


def test_a_session_says_which_command_converts_a_file_of_another_tool(tmp_path):
    net = Net(x=["T", 1, 3])
    path = tmp_path / "net.onnx"
    y = net("GRU", "x", random_input(1, 12, 3), random_input(1, 12, 4), hidden_size=4)
    path.write_bytes(net.model(y).SerializeToString())
    with pytest.raises(edgernn.UsageError, match="edgernn stream; a session opens the file that edgernn stream"):
        Session(path)


@pytest.mark.parametrize("form", ["own", "packed"])
def test_run_file_takes_a_packed_model(form, tmp_path):
    path, expected = opened(form, tmp_path)
    x = random_input(6, 2, 3)
    np.savez(tmp_path / "x.npz", x=x.swapaxes(0, 1))
    result = run_file(path, tmp_path / "x.npz", tmp_path / "y.npy")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy").swapaxes(0, 1), expected(x), rtol=0, atol=1e-5)
    assert (result["skip_percent"] is None) == (form != "own")


def test_missing_library_is_said(monkeypatch):
    def missing():
        raise edgernn.EdgernnError("the native library libedgernn_ops is not installed")

    monkeypatch.setattr("edgernn.runtime.library.library_path", missing)
    path = exported("gru")[1]
    with pytest.warns(RuntimeWarning, match="not installed; running the portable operators"):
        assert Session(path).backend == "portable"
    with pytest.raises(edgernn.EdgernnError, match="not installed"):
        Session(path, backend="native")


def test_missing_or_damaged_runtime_is_one_sentence(monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "onnxruntime":
            raise ImportError("undefined symbol")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    # as after pip install of onnxruntime over onnxruntime-gpu
    words = "ONNX Runtime cannot be imported: undefined symbol; pip uninstall onnxruntime onnxruntime-gpu, and then"
    with pytest.raises(edgernn.EdgernnError, match=words):
        library.onnxruntime()
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(edgernn.EdgernnError, match=r"ONNX Runtime is not installed: pip install 'onnxruntime>=1\.19'"):
        library.onnxruntime()


def test_an_app_can_register_the_library_itself():
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library_path())
    session = onnxruntime.InferenceSession(exported("gru")[1], options, providers=["CPUExecutionProvider"])
    x = random_input(5, 2, 3)
    (y,) = session.run(["y"], {"x": x, "layer0.h": np.zeros((2, 33), np.float32)})
    np.testing.assert_array_equal(y, Session(exported("gru")[1], backend="native").run(x))


@pytest.mark.slow
def test_native_kernels_are_those_that_export_expects():
    """The exporter names the library's layers without calling the library."""
    from edgernn.cells import CELLS
    from edgernn.cells.recurrent import DENSE, LowRank
    from edgernn.export.native_kernels import find_kernel
    from edgernn.imputers import IMPUTERS
    from edgernn.layer import RecurrentLayer
    from edgernn.rules import RULES

    makers = [*CELLS.values(), partial(CELLS["eins"], a="x")]
    expected = set()
    for make, hidden, recurrent in product(makers, (4, 6), (DENSE, LowRank(2))):
        if recurrent is not DENSE and not hasattr(make(4, hidden), "R"):
            continue
        for rule, imputer in product(RULES.values(), (None, *IMPUTERS.values())):
            if rule.refusal(make.func if isinstance(make, partial) else make) is not None:
                continue
            if rule.name in ("clockwork", "delta", "topk") and recurrent is not DENSE:
                continue
            before = None if imputer is None else imputer(6, hidden)
            layer = RecurrentLayer(make(4, hidden, recurrent=recurrent), rule(4, hidden), before)
            if imputer is None or recurrent is DENSE:
                expected.add(find_kernel(layer).name)
    # `*` for cells in files, with weights of all kinds
    own = {"+".join("*" if part == "gru" else part for part in name.split("+")) for name in expected}
    expected |= {name for name in own if "topk" not in name}
    assert library.native_kernels() == expected


def test_a_file_without_kernels_loads_beside_the_library(tmp_path):
    import onnxruntime

    from edgernn.export import to_onnx

    to_onnx(edgernn.SequenceModel("gru", 3, 4, norm="layer"), tmp_path / "m.onnx")
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library_path())
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    x = random_input(5, 2, 3)
    (y,) = session.run(["y"], {"x": x, "layer0.h": np.zeros((2, 4), np.float32)})
    np.testing.assert_array_equal(y, Session(tmp_path / "m.onnx", backend="portable").run(x))


@pytest.mark.parametrize("suffix", ["npz", "npy", "csv"])
def test_run_file_reads_and_writes_every_format(suffix, tmp_path):
    path = exported("gru", "selective", layers=2)[1]
    x = random_input(6, 3)
    source, target = tmp_path / f"x.{suffix}", tmp_path / f"y.{suffix}"
    if suffix == "npz":
        np.savez(source, x=x)
    elif suffix == "npy":
        np.save(source, x)
    else:
        np.savetxt(source, x, delimiter=",", header="a,b,c", comments="")
    report = run_file(path, source, target)
    if suffix == "csv":
        y = np.loadtxt(target, delimiter=",")
    else:
        y = np.load(target) if suffix == "npy" else np.load(target)["y"]
    np.testing.assert_allclose(y, Session(path).run(x), rtol=0, atol=1e-5)
    assert report["shape"] == [2]
    assert 0 < report["skip_percent"] < 100


def test_run_file_counts_no_padding_as_skipped(tmp_path):
    path, lengths = exported("gru", "selective", layers=2)[1], np.array([6, 2, 3])
    x = random_input(3, 6, 3)
    np.savez(tmp_path / "x.npz", x=x, lengths=lengths)
    session, updates = Session(path), 0
    for sequence, steps in zip(x, lengths, strict=True):
        session.run(sequence[:steps])
        updates += session.updates.sum()
    skipped = 100 * (1 - updates / (lengths.sum() * session.neurons))
    assert run_file(path, tmp_path / "x.npz")["skip_percent"] == pytest.approx(skipped)


def test_run_file_does_not_replace_its_input_or_its_model(tmp_path):
    path = exported("gru")[1]
    np.savetxt(tmp_path / "x.csv", random_input(6, 3), delimiter=",")
    (tmp_path / "y.csv").symlink_to("x.csv")
    (tmp_path / "z.csv").symlink_to(path)
    before = (tmp_path / "x.csv").read_bytes(), path.read_bytes()
    for target in ("x.csv", "y.csv", "z.csv"):
        with pytest.raises(edgernn.UsageError, match="--output: expected a file other than the input"):
            run_file(path, tmp_path / "x.csv", tmp_path / target)
    assert ((tmp_path / "x.csv").read_bytes(), path.read_bytes()) == before


def test_run_file_takes_many_sequences(tmp_path):
    path = exported("lstm", "selective", **STACK)[1]
    x = random_input(300, 4, 3)
    np.savez(tmp_path / "x.npz", x=x)
    assert run_file(path, tmp_path / "x.npz", tmp_path / "y.npy")["shape"] == [300, 4, 2]
    y = np.load(tmp_path / "y.npy")
    np.testing.assert_allclose(y[299], Session(path).run(x[299]), rtol=0, atol=1e-5)
    with pytest.raises(edgernn.UsageError, match="expected a table or one sequence for csv"):
        run_file(path, tmp_path / "x.npz", tmp_path / "y.csv")
    assert not (tmp_path / "y.csv").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"1", "expected a file whose name ends in .npz, .npy, .csv"),
        ("x.csv", b"", "expected rows of numbers, got none"),
        ("x.CSV", b"1,2,3\n1,b,3\n", "line 2, column 2: expected a number, got 'b'"),
        ("x.csv", b"1,,3\n1,2,3\n", "line 1, column 2: expected a number, got ''"),
        ("x.csv", b"#1,2,3\n1,2,3\n", "line 1, column 1: expected a number, got '#1'"),
        ("x.npy", b"junk", "expected an array in the npy format, got another format"),
        ("x.npz", b"junk", "expected an npz archive, got a truncated one or another format"),
        ("x.csv", b"1,2\n", r"expected x of shape \(T, 3\) or \(N, T, 3\), got \(1, 2\)"),
        ("none.npz", None, "no such file"),
    ],
)
def test_run_file_names_what_is_wrong(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(edgernn.EdgernnError, match=message):
        run_file(exported("gru")[1], tmp_path / name, tmp_path / "y.npz")
    assert not (tmp_path / "y.npz").exists()


def test_run_file_gives_the_index_of_an_invalid_value_in_the_file(tmp_path):
    x = np.zeros((300, 4, 3), np.float32)
    x[290, 2, 1] = np.inf
    np.savez(tmp_path / "x.npz", x=x)
    with pytest.raises(edgernn.UsageError, match=r"got inf at index \(290, 2, 1\)"):
        run_file(exported("gru")[1], tmp_path / "x.npz")


def test_an_array_without_a_name_is_refused(tmp_path):
    with (tmp_path / "x.npz").open("wb") as file:
        np.save(file, np.zeros((2, 3), np.float32))
    message = (
        r"x\.npz: expected an npz archive, got one array without a name; write it with numpy\.savez\(PATH, NAME=array\)"
    )
    with pytest.raises(edgernn.EdgernnError, match=message):
        run_file(exported("gru")[1], tmp_path / "x.npz", tmp_path / "y.npz")


def test_no_pickle_is_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([{"a": 1}], object))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(edgernn.EdgernnError, match="arrays of Python objects, which are never read"):
            run_file(exported("gru")[1], tmp_path / name, tmp_path / "y.npz")


@backends
def test_steps_take_any_kind_of_array_in_any_order(backend):
    _, path = exported("gru", "selective")
    session = Session(path, backend=backend)
    x = random_input(6, 1, 3)
    whole = Session(path, backend=backend)
    expected = [whole.step(x_t) for x_t in x]
    arrays = [x[0], x[1].astype(np.float64), x[2][0], x[3].tolist(), x[4], np.asfortranarray(x[5])]
    for x_t, y in zip(arrays, expected, strict=True):
        got = session.step(x_t)
        assert got.shape == (y.shape[1:] if np.ndim(x_t) == 1 else y.shape)
        np.testing.assert_array_equal(got.reshape(y.shape), y)


@backends
def test_what_a_step_returns_is_the_callers(backend):
    _, path = exported("gru", "selective")
    session = Session(path, backend=backend)
    x = random_input(2, 3)
    first = session.step(x[0])
    updates, macs = session.updates, session.macs
    before = updates.copy(), macs.copy()
    first[...] = 7
    again = Session(path, backend=backend)
    again.step(x[0])
    np.testing.assert_array_equal(session.step(x[1]), again.step(x[1]))
    assert (first == 7).all()
    np.testing.assert_array_equal(updates, before[0])
    np.testing.assert_array_equal(macs, before[1])


@backends
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_refused_steps_change_nothing(backend, bad):
    _, path = exported("lstm")
    session, other = (Session(path, backend=backend) for _ in range(2))
    x = random_input(3, 3)
    for one in (session, other):
        one.step(x[0])
    with pytest.raises(edgernn.UsageError, match=f"x: expected finite numbers, got {bad}"):
        session.step(np.array([0, bad, 0], np.float32))
    with pytest.raises(edgernn.UsageError, match="x: expected shape"):
        session.step(np.zeros(4, np.float32))
    np.testing.assert_array_equal(session.step(x[1]), other.step(x[1]))
    # finite numbers with an infinite sum
    assert np.isfinite(session.step(np.full(3, 3e38, np.float32))).all()


@backends
def test_reset_starts_another_sequence_of_any_batch(backend):
    _, path = exported("lstm", "skip")
    session = Session(path, backend=backend)
    x = random_input(4, 2, 3)
    expected = [session.step(x_t) for x_t in x]
    session.reset()
    session.step(x[0, :1])
    session.reset()
    for x_t, y in zip(x, expected, strict=True):
        np.testing.assert_array_equal(session.step(x_t), y)


@pytest.mark.parametrize(("cell", "rule"), [("gru", "always"), ("lstm", "selective"), ("t-lstm", "skip")])
@pytest.mark.parametrize("batch", [15, 16, 37])
def test_threads_of_a_session_share_a_batch(cell, rule, batch):
    path = written(cell, rule, layers=2, output="all")
    x = random_input(9, batch, 3)
    one, several = (Session(path, backend="native", threads=threads) for threads in (1, 3))
    np.testing.assert_array_equal(several.run(x), one.run(x))
    if rule != "always":
        np.testing.assert_array_equal(several.updates, one.updates)
    if rule == "skip":
        # under other rules, samples of a thread share the decision whether W x is computed ahead
        np.testing.assert_array_equal(several.macs, one.macs)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_is_neither_copied_nor_pickled(duplicate, tmp_path):
    for path in (exported("gru")[1], small_file(tmp_path)):
        with pytest.raises(edgernn.UsageError, match="expected no copy; open the file in another session"):
            duplicate(Session(path))


def test_ragged_lists_and_complex_states_are_refused(tmp_path: pathlib.Path) -> None:
    edgernn.export.to_onnx(edgernn.SequenceModel("gru", 3, 4), tmp_path / "model.onnx")
    session = Session(tmp_path / "model.onnx")
    with pytest.raises(edgernn.UsageError, match="x: expected an array, got list"):
        session.run([[1.0, 2.0, 3.0], [1.0, 2.0]])
    for x in (torch.ones(2, 3, requires_grad=True), torch.ones(2, 3).bfloat16(), torch.ones(2, 3).to_sparse()):
        with pytest.raises(edgernn.UsageError, match="x: expected an array, got Tensor "):
            session.run(x)
    with pytest.raises(edgernn.UsageError, match="h: expected real numbers, got dtype complex128"):
        session.run_from(np.ones((2, 1, 3)), {session.state_names[0]: np.ones((1, 4)) * 1j})


def test_the_columns_of_a_data_frame_are_taken_by_name(tmp_path: pathlib.Path) -> None:
    names = ["ax", "ay", "az"]
    to_onnx(edgernn.SequenceModel("gru", 3, 4, 2), tmp_path / "m.onnx", metadata={"channels": names})
    x = np.random.default_rng(4).standard_normal((6, 3), np.float32)
    frame = polars.DataFrame(x, schema=names)
    swapped = frame.with_columns(label=1).select("label", "az", "ax", "ay")
    session = Session(tmp_path / "m.onnx")
    expected = session.run(x)
    np.testing.assert_array_equal(session.run(swapped), expected)
    np.testing.assert_array_equal(session.run(swapped, [4]), session.run(x, [4]))
    np.testing.assert_array_equal(session.step(swapped[:2]), Session(tmp_path / "m.onnx").step(x[:2]))
    with pytest.raises(edgernn.UsageError, match="x: expected each of the columns ax, ay, az once, got ax, az; add"):
        session.run(frame.select("ax", "az"))
