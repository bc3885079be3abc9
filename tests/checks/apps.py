# SPDX-License-Identifier: Apache-2.0
"""`make check-apps`: the C++, C, Node and browser examples stream the same outputs as the Python session."""

import functools
import gzip
import json
import re
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgernn.export import to_onnx
from edgernn.runtime import Session
from edgernn.runtime.packed import pack_file
from edgernn.tolerance import WHOLE_NUMBERS
from tests.apps import (
    CHROMIUM,
    EXAMPLES,
    ROOT,
    c_program,
    cpp_program,
    csv_of,
    figures,
    need,
    need_chromium,
    need_node,
    need_wasm,
    on_the_page,
    run,
    serving,
    stream_in_c,
    stream_in_chromium,
    stream_in_cpp,
    stream_in_node,
    stream_in_python,
    stream_packed_in_chromium,
    stream_packed_in_node,
)
from tests.models import contractive, exported
from tests.tolerances import FLOAT32

TRAINED = ROOT / "models" / "adding-sarnn" / "model.onnx"
APPS = {
    "cpp": stream_in_cpp,
    "cpp without the library": lambda model, x: stream_in_cpp(model, x, ""),
    "c": stream_in_c,
    "node": stream_packed_in_node,
    "node with ONNX Runtime": stream_in_node,
    "chromium": stream_packed_in_chromium,
    "chromium with ONNX Runtime": stream_in_chromium,
}
apps = pytest.mark.parametrize("app", APPS)


def adding():
    """The trained model with examples/adding.csv; every decision is at least 4e-6 away from its threshold."""
    text = (EXAMPLES / "adding.csv").read_text(encoding="utf-8")
    _, *lines = text.split()
    return TRAINED, np.array([line.split(",") for line in lines], np.float32).reshape(8, 50, 2)


def layers():
    """Two layers with a learned initial state and a rule's memory as state, y at every step, and standardised x."""
    options = {"layers": 2, "output": "all", "mean": 0.5, "std": 2.0}
    return exported("gru", "skip", **options)[1], np.random.default_rng(0).standard_normal((3, 20, 3), np.float32)


def words():
    return exported("lstm", vocabulary=11, output="all")[1], np.random.default_rng(0).integers(11, size=(2, 12))


@functools.cache
def small():
    """int8 weights: integer arithmetic in the library, rounded float32 in the portable function."""
    path = Path(_FOLDER.name) / "small.onnx"
    to_onnx(contractive("lstm", layers=2, output="all"), path, weights="int8")
    return path, np.random.default_rng(0).standard_normal((3, 20, 3), np.float32)


_FOLDER = tempfile.TemporaryDirectory()
MODELS = {"adding": adding, "layers": layers, "words": words, "int8": small}
PORTABLE = ("cpp without the library", "node with ONNX Runtime", "chromium with ONNX Runtime")


@apps
@pytest.mark.parametrize("model", MODELS)
def test_streams_equal_the_session(app, model):
    path, x = MODELS[model]()
    expected, streamed = stream_in_python(path, x), APPS[app](path, x)
    rounds = model == "int8" and app in PORTABLE
    np.testing.assert_allclose(streamed.y, expected.y, rtol=0, atol=WHOLE_NUMBERS if rounds else FLOAT32)
    if streamed.updates is not None:
        np.testing.assert_array_equal(streamed.updates, expected.updates)
    median, updated = figures(streamed.report)
    assert median > 0
    if updated is not None:
        assert updated == pytest.approx(expected.updates.mean(), abs=0.051)


@pytest.mark.parametrize("model", MODELS)
def test_a_lost_state_would_show(model):
    path, x = MODELS[model]()
    session = Session(path)
    y = stream_in_python(path, x).y
    without = []
    for x_t in x[0]:
        session.reset()
        without.append(session.step(x_t))
    # sequences in one stream agree too, except in their first steps
    assert np.abs(np.array(without)[1:] - y[0, 1:]).max(-1).min() > 0
    assert np.abs(np.array(without) - y[0]).max() > 100 * FLOAT32
    joined = stream_in_python(path, x.reshape(1, -1, *x.shape[2:])).y.reshape(y.shape)
    assert np.abs(joined[1:] - y[1:]).max() > 100 * FLOAT32


@pytest.mark.parametrize("app", ["cpp", "c", "node"])
def test_a_line_comes_out_before_the_next_goes_in(app, tmp_path):
    words = [*program(app), packed(TRAINED, tmp_path) if app == "c" else TRAINED]
    expected = stream_in_python(*adding()).y[0, :3]
    with subprocess.Popen(list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for x_t, y in zip(adding()[1][0, :3], expected, strict=True):
            process.stdin.write(",".join(map(str, x_t)) + "\n")
            process.stdin.flush()
            assert float(process.stdout.readline()) == pytest.approx(y, abs=FLOAT32)


@pytest.mark.parametrize("app", ["cpp", "c", "node"])
def test_all_apps_read_the_same_numbers(app, tmp_path):
    words = [*program(app), packed(TRAINED, tmp_path) if app == "c" else TRAINED]
    expected = run(*words, text="1,2\n3,-4\n")
    for text in ('\ufeff1,2\n"3","-4"\n', '\ufeff"value","marker, set"\r\n1 , 2\r\n 3,-.4e1\r\n', "# a,b\n1,2\n3,-4\n"):
        process = run(*words, text=text)
        assert (process.returncode, process.stdout) == (0, expected.stdout), process.stderr


def program(app):
    """The command of an app that streams from standard input to standard output."""
    if app in ("cpp", "c"):
        return [cpp_program() if app == "cpp" else c_program()]
    if app == "node packed":
        need_node("node")
        need_wasm()
    else:
        need_node("node", "onnxruntime-node")
    return ["node", EXAMPLES / "node" / "stream.mjs"]


def packed(model, tmp_path):
    return pack_file(model, tmp_path / "model.edgernn")["packed"]


def altered(tmp_path, **description):
    """Write a model with a changed description and return its path."""
    proto = onnx.load(exported("gru")[1])
    info = json.loads(proto.metadata_props[0].value)
    onnx.helper.set_model_props(proto, {"edgernn": json.dumps(info | description, separators=(",", ":"))})
    onnx.save(proto, tmp_path / "altered.onnx")
    return tmp_path / "altered.onnx"


def truncated(tmp_path):
    path = tmp_path / "truncated.onnx"
    path.write_bytes(TRAINED.read_bytes()[:100_000])
    return path


def foreign(tmp_path):
    proto = onnx.load(TRAINED)
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "foreign.onnx")
    return tmp_path / "foreign.onnx"


STEPS = "1,2\n" * 3
# lines that no app reads, and takes for no header
BAD_LINES = {
    "no number": ("a,b\n1,2\n1,\n", r"line 3, column 2: expected a finite number, got ''$"),
    "nan": ("1,nan\n", r"line 1, column 2: expected a finite number, got 'nan'$"),
    "nan first": ("nan,1\n", r"line 1, column 1: expected a finite number, got 'nan'$"),
    "gap": (",2\n1,2\n", r"line 1, column 1: expected a finite number, got ''$"),
    "minus": ("−1,−2\n1,2\n", r"line 1, column 1: expected a finite number, got '−1'$"),
    "comment": ("1,2\n#3,4\n", r"line 2, column 1: expected a finite number, got '#3'$"),
    "hexadecimal": ("1,0x10\n", r"line 1, column 2: expected a finite number, got '0x10'$"),
    "quotes": ('1,"2"3\n', r"line 1, column 2: expected a finite number, got '\"2\"3'$"),
}
BAD = {
    "no file": (lambda _: ROOT / "none.onnx", STEPS, r"none\.onnx: no such file"),
    "a folder": (lambda _: ROOT / "tests", STEPS, r"tests: "),
    "another file": (lambda _: ROOT / "README.md", STEPS, r"README\.md: (not |expected a file that)"),
    "half a file": (truncated, STEPS, r"truncated\.onnx: (not |expected a file that)"),
    "another's model": (foreign, STEPS, r"foreign\.onnx: expected a file that `edgernn export` wrote"),
    "another schema": (lambda p: altered(p, schema=3), STEPS, r"altered\.onnx: schema: expected 2, got 3"),
    "no streaming": (lambda p: altered(p, streaming=False), STEPS, r"altered\.onnx: .* cannot be streamed"),
    "too many": (lambda _: TRAINED, "1,2\n1,2,3\n", r"line 2: expected 2 finite numbers, got 1,2,3"),
    "header": (lambda _: TRAINED, "a,b,c\n1,2\n", r"line 1: expected a header of 2 columns, got a,b,c; correct"),
} | {name: (lambda _: TRAINED, text, message) for name, (text, message) in BAD_LINES.items()}


@pytest.mark.parametrize("app", ["cpp", "node"])
@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_one_sentence(app, bad, tmp_path):
    make, text, message = BAD[bad]
    process = run(*program(app), make(tmp_path), text=text)
    assert process.returncode == 1
    (line,) = process.stderr.splitlines()
    assert line.startswith("stream: ")
    assert re.search(message, line), line


def part(tmp_path):
    path = tmp_path / "part.edgernn"
    path.write_bytes(Path(packed(TRAINED, tmp_path)).read_bytes()[:100_000])
    return path


def empty(tmp_path):
    (tmp_path / "empty.edgernn").touch()
    return tmp_path / "empty.edgernn"


BAD_PACKED = {
    "no file": (lambda _: ROOT / "none.edgernn", STEPS, r"none\.edgernn: no such file$"),
    "a folder": (lambda _: ROOT / "tests", STEPS, r"tests: not a file$"),
    "an empty file": (empty, STEPS, r"empty\.edgernn: an empty file$"),
    "not packed": (
        lambda _: TRAINED,
        STEPS,
        r"model\.onnx: packed model: expected a file that starts with EDGERNN, got another format; pack .*$",
    ),
    "half a file": (part, STEPS, r"part\.edgernn: packed model: expected \d+ bytes, got 100000$"),
    "too many": (lambda p: packed(TRAINED, p), "1,2\n1,2,3\n", r"line 2: expected 2 finite numbers, got 1,2,3$"),
    "too few": (lambda p: packed(TRAINED, p), "1,2\n1\n", r"line 2: expected 2 finite numbers, got 1$"),
    "header": (lambda p: packed(TRAINED, p), "a\n1,2\n", r"line 1: expected a header of 2 columns, got a; correct"),
    "half a word": (lambda p: packed(words()[0], p), "3\n1.5\n", r"line 2: expected 1 word, got 1\.5$"),
    "not a word": (
        lambda p: packed(words()[0], p),
        "3\n11\n",
        r"line 2: x: expected word indices from 0 to 10, got 11 at",
    ),
} | {name: (lambda p: packed(TRAINED, p), text, message) for name, (text, message) in BAD_LINES.items()}


@pytest.mark.parametrize("bad", BAD_PACKED)
def test_a_bad_packed_model_or_line_is_one_sentence(bad, tmp_path):
    make, text, message = BAD_PACKED[bad]
    process = run(c_program(), make(tmp_path), text=text)
    assert process.returncode == 1
    (line,) = process.stderr.splitlines()
    assert line.startswith("stream: ")
    assert re.search(message, line), line


def flipped(tmp_path):
    path = tmp_path / "flipped.edgernn"
    content = bytearray(Path(packed(TRAINED, tmp_path)).read_bytes())
    content[50_000] ^= 1
    path.write_bytes(content)
    return path


BAD_IN_NODE = {
    "flipped": (flipped, STEPS, r"flipped\.edgernn: packed model: the checksum does not match the content"),
    "not a word": (BAD_PACKED["not a word"][0], "3\n11\n", r"x: word 0: expected 0 to 10, got 11$"),
} | {name: BAD_PACKED[name] for name in ("half a file", "too many", *BAD_LINES)}


@pytest.mark.parametrize("bad", BAD_IN_NODE)
def test_a_bad_packed_model_or_line_is_one_sentence_in_node(bad, tmp_path):
    need("node")
    need_wasm()
    make, text, message = BAD_IN_NODE[bad]
    process = run("node", EXAMPLES / "node" / "stream.mjs", make(tmp_path), text=text)
    assert process.returncode == 1
    (line,) = process.stderr.splitlines()
    assert line.startswith("stream: ")
    assert re.search(message, line), line


def test_a_closed_output_ends_the_app_in_node_without_a_stack_trace(tmp_path):
    need("node")
    need_wasm()
    words = ["node", EXAMPLES / "node" / "stream.mjs", packed(TRAINED, tmp_path)]
    (tmp_path / "x.csv").write_text("0.5,1\n" * 20_000)
    with (tmp_path / "x.csv").open() as steps:
        process = subprocess.Popen(words, stdin=steps, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert float(process.stdout.readline()) != 0
        process.stdout.close()
        assert process.stderr.read() == ""
        process.stderr.close()
        assert process.wait() == 1


def test_the_page_refuses_a_damaged_packed_model(tmp_path):
    need_chromium()
    need_wasm()
    (tmp_path / "x.csv").write_text(STEPS, encoding="utf-8")
    process = on_the_page(flipped(tmp_path), tmp_path / "x.csv", tmp_path / "y.csv")
    assert process.returncode == 1
    assert "model: packed model: the checksum does not match the content" in process.stderr
    assert not (tmp_path / "y.csv").exists()


def test_a_page_with_a_packed_model_loads_little(tmp_path):
    """With an int8 model, less than 300 kB of gzipped files; ONNX Runtime is not loaded."""
    need_chromium()
    need_wasm()
    to_onnx(contractive("gru", "selective", input_size=2, hidden_size=128), tmp_path / "model.onnx", weights="int8")
    model = packed(tmp_path / "model.onnx", tmp_path)
    with serving(model, EXAMPLES / "adding.csv") as address:
        process = run("node", EXAMPLES / "browser" / "headless.mjs", address, tmp_path / "y.csv")
        assert process.returncode == 0, process.stderr
        loaded = json.loads(process.stdout)["loaded"]
        size = sum(len(gzip.compress(urllib.request.urlopen(url).read())) for url in loaded)
    assert not any("/ort/" in url for url in loaded)
    assert size < 300_000


def test_the_memory_of_a_packed_model_is_said(tmp_path):
    packed = pack_file(TRAINED, tmp_path / "model.edgernn")
    output = run(c_program(), packed["packed"], text=STEPS).stderr
    assert output.endswith(f"model.edgernn: {packed['bytes']} bytes, {packed['memory']} bytes of memory\n")


@pytest.mark.parametrize(
    ("library", "message"),
    [("none.so", "none.so: cannot open"), ("libm.so.6", "libm.so.6: undefined symbol: RegisterCustomOps")],
)
def test_a_wrong_library_is_one_sentence(library, message):
    process = run(cpp_program(), TRAINED, library, text=STEPS)
    assert process.returncode == 1
    (line,) = process.stderr.splitlines()
    assert message in line


@pytest.mark.parametrize("bad", ["another's model", "too many"])
def test_the_page_says_what_is_wrong(bad, tmp_path):
    need_chromium()
    make, text, message = BAD[bad]
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    process = on_the_page(make(tmp_path), tmp_path / "x.csv", tmp_path / "y.csv")
    assert process.returncode == 1
    assert re.search(message.replace(r"foreign\.onnx", "model"), process.stderr), process.stderr
    assert not (tmp_path / "y.csv").exists()


def test_the_server_says_what_is_wrong():
    need_node("browser", "onnxruntime-web")
    server = EXAMPLES / "browser" / "serve.mjs"
    with serving(TRAINED, EXAMPLES / "adding.csv") as address:
        port = address.split(":")[-1].rstrip("/")
        for words, message in (
            ([ROOT / "none.onnx"], "none.onnx: no such file"),
            ([TRAINED, EXAMPLES / "adding.csv", "x"], "port: expected a number below 65536, got x"),
            ([TRAINED, EXAMPLES / "adding.csv", port], f"port {port}: in use"),
        ):
            process = run("node", server, *words)
            assert (process.returncode, message in process.stderr) == (1, True), process.stderr


def test_the_server_answers_after_a_request_that_fails():
    need_node("browser", "onnxruntime-web")
    with serving(TRAINED, EXAMPLES / "adding.csv") as address:
        for path in ("nothing", "/", "%"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address + path)
        assert urllib.request.urlopen(address + "x.csv").read() == (EXAMPLES / "adding.csv").read_bytes()


@pytest.mark.parametrize("app", ["cpp", "c", "node"])
@pytest.mark.parametrize("word", ["-1", "11", "1.5", "1e30"])
def test_a_word_outside_the_vocabulary_is_refused(app, word, tmp_path):
    path, _ = words()
    model = packed(path, tmp_path) if app == "c" else path
    process = run(*program(app), model, text=f"3\n{word}\n")
    assert process.returncode == 1
    assert len(process.stdout.splitlines()) <= 1
    (line,) = process.stderr.splitlines()
    assert re.search(r"expected ((a whole number|word indices) from 0 to 10|1 word), got", line), line


@pytest.mark.parametrize("app", ["cpp", "c", "node"])
def test_a_header_may_begin_as_a_number(app, tmp_path):
    model = packed(TRAINED, tmp_path) if app == "c" else TRAINED
    outputs = [run(*program(app), model, text=head + STEPS) for head in ("", "nanoseconds,value\n", "inf_x,y\n")]
    assert [process.returncode for process in outputs] == [0, 0, 0], outputs
    assert len({process.stdout for process in outputs}) == 1


CHANNELS = ["ax", "höhe, 😀", "x/y"]
NAMED_APPS = ["cpp", "c", "node", "node packed"]


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """Write a model whose file has the names of its channels, and pack it; return both paths."""
    folder = tmp_path_factory.mktemp("named")
    to_onnx(contractive("gru", output="all"), folder / "m.onnx", metadata={"channels": CHANNELS})
    return folder / "m.onnx", packed(folder / "m.onnx", folder)


@pytest.mark.parametrize("app", NAMED_APPS)
def test_columns_are_read_by_the_names_of_the_channels(app, named):
    words = [*program(app), named[app in ("c", "node packed")]]
    expected = run(*words, text="1,2,-3\n0,1,5\n")
    assert expected.returncode == 0, expected.stderr
    for text in (
        'ax,"höhe, 😀",x/y\n1,2,-3\n0,1,5\n',
        '\ufeff# x/y , ax,"höhe, 😀"\r\n-3,1,2\r\n5,0,1\r\n',
        '"höhe, 😀",x/y,ax\n2,-3,1\n1,5,0\n',
    ):
        process = run(*words, text=text)
        assert (process.returncode, process.stdout) == (0, expected.stdout), process.stderr


@pytest.mark.parametrize("app", NAMED_APPS)
@pytest.mark.parametrize("header", ['ax,x/y,"höhe"', "ax,ax,x/y", "ax,x/y", 'ax,"höhe, 😀",x/y,t'])
def test_other_columns_than_those_of_the_training_are_refused(app, header, named):
    process = run(*program(app), named[app in ("c", "node packed")], text=f"{header}\n1,2,-3\n")
    assert (process.returncode, process.stdout) == (1, "")
    (line,) = process.stderr.splitlines()
    assert line.startswith("stream: line 1: expected the columns ax,höhe, 😀,x/y of the training, got ax,"), line


@pytest.mark.parametrize("app", ["cpp", "c", "node"])
def test_the_report_counts_all_steps_of_a_long_stream(app, tmp_path):
    """More steps than those whose times are kept."""
    model = packed(TRAINED, tmp_path) if app == "c" else TRAINED
    process = run(*program(app), model, text="1,0\n" * 100_007)
    assert process.returncode == 0, process.stderr
    assert process.stderr.startswith("100007 steps: median ")
    assert figures(process.stderr)[0] > 0


def test_the_parts_of_the_apps():
    need("node")
    process = run("node", "--test", ROOT / "tests" / "apps.test.mjs")
    assert process.returncode == 0, process.stdout + process.stderr


def test_the_pages_answer_to_a_user(tmp_path):
    need_chromium()
    for name in ("small", "other"):
        to_onnx(contractive("gru", "selective", input_size=2), tmp_path / f"{name}.onnx")
    (tmp_path / "bad.onnx").write_text("no model", encoding="utf-8")
    with serving(TRAINED, EXAMPLES / "adding.csv") as address:
        environment = {"ADDRESS": address, "FOLDER": str(tmp_path), "CHROMIUM": CHROMIUM}
        process = run("node", "--test", ROOT / "tests" / "pages.test.mjs", environment=environment)
    assert process.returncode == 0, process.stdout + process.stderr


def test_lockfiles_name_no_registry():
    paths = list(EXAMPLES.glob("*/package-lock.json"))
    assert paths
    for path in paths:
        assert '"resolved"' not in path.read_text(encoding="utf-8"), path


def test_the_file_of_steps_is_written_as_it_is_read():
    _, x = adding()
    assert "value,marker\n" + csv_of(x) == (EXAMPLES / "adding.csv").read_text(encoding="utf-8")
