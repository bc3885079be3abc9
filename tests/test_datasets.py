# SPDX-License-Identifier: Apache-2.0
"""The table of data sets, and `edgernn data`."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, UsageError
from edgernn.training import TASKS
from edgernn.training.datasets import SETS, fetch, list_sets
from edgernn.training.datasets.registry import File
from tests.file_server import home

__all__ = ["home"]
ROOT = Path(__file__).resolve().parent.parent


# names, agreements and the list


def test_unknown_set_suggests_the_nearest(capsys):
    with pytest.raises(UsageError, match="unknown data set 'minst': did you mean 'mnist'"):
        fetch("minst")
    assert main(["data", "fetch", "minst"]) == 2
    assert main(["data", "fetsh"]) == 2
    assert "unknown command 'fetsh': did you mean 'fetch'?" in capsys.readouterr().err


def test_set_behind_an_agreement_says_what_to_do(tmp_path, capsys):
    assert main(["data", "fetch", "yahoo-s5", "--data", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("edgernn: error: yahoo-s5 cannot be downloaded: ask for the data set S5 at https://")
    assert error.endswith(f"put A1Benchmark/ into {tmp_path}/yahoo\n")
    assert not list(tmp_path.iterdir())


def test_a_set_to_unpack_yourself_is_checked_where_it_lies(tmp_path, monkeypatch, capsys):
    entry = replace(SETS["hapt"], others=(File("hapt.npz", 3, hashlib.sha256(b"abc").hexdigest()),))
    monkeypatch.setitem(SETS, "hapt", entry)
    file = tmp_path / "hapt" / "hapt.npz"
    file.parent.mkdir()
    file.write_bytes(b"abc")
    assert main(["data", "fetch", "hapt", "--data", str(tmp_path)]) == 0
    assert "hapt.npz: 3 bytes" in (out := capsys.readouterr().out)
    assert "(as expected)" in out
    file.write_bytes(b"abd")
    assert main(["data", "fetch", "hapt", "--data", str(tmp_path)]) == 1
    assert "hapt.npz: expected SHA-256" in capsys.readouterr().err
    assert file.read_bytes() == b"abd"


def test_what_no_sum_is_known_for_is_said(tmp_path, capsys):
    folder = tmp_path / "arabic-speech-commands"
    (folder / "dataset").mkdir(parents=True)
    for name in ("train", "val", "test"):
        (folder / f"{name}.csv").write_text("file,class\n")
    assert main(["data", "fetch", "arabic-speech-commands", "--data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("no expected value is known: not verified") == 3
    assert "  dataset/: the files in this folder are not verified\n" in out
    assert main(["data", "list", "--data", str(tmp_path)]) == 0
    listed = {part.partition(":")[0]: part for part in capsys.readouterr().out.split("\n\n")}
    assert "  SHA-256: unknown; no file is verified\n" in listed["arabic-speech-commands"]
    assert "  SHA-256: known for mit-bih-mlii.npz alone\n" in listed["mit-bih"]
    assert "SHA-256" not in listed["mnist"]


def test_list_says_what_is_here(tmp_path, home, capsys):
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt.xz").touch()
    (home / "cifar10").mkdir(parents=True)
    (home / "cifar10" / "cifar10_subset_train2500_test1000.npz").touch()
    (tmp_path / "ptb.train.txt").touch()
    assert main(["data", "list", "--data", str(tmp_path), "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(entries) == list(SETS)
    assert {name: entry["here"] for name, entry in entries.items() if entry["here"]} == {
        "tinyshakespeare": [str(tmp_path / "tinyshakespeare" / "input.txt.xz")],
        "cifar10": [str(home / "cifar10" / "cifar10_subset_train2500_test1000.npz")],
    }
    assert main(["data", "list", "--data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for name, entry in SETS.items():
        assert f"{name}: {entry.title}\n" in out
        assert f"  from: {entry.origin}\n  terms: {entry.terms}\n" in out
    assert f"  here: {tmp_path}/tinyshakespeare\n" in out
    assert "  not here: edgernn data fetch mnist\n" in out
    assert "  SHA-256: unknown for data.csv; the first download is trusted\n" in out


@pytest.mark.parametrize("name", SETS)
def test_entry_of_the_table(name):
    entry = SETS[name]
    assert entry.title
    assert entry.origin
    assert entry.terms
    assert bool(entry.downloads) != bool(entry.agreement)
    if entry.downloads:
        assert {file.name for download in entry.downloads for file in download.gives} in map(set, entry.forms)
    for download in entry.downloads:
        names = {url.rpartition("/")[2] for url in download.urls}
        assert all(url.startswith(("https://", "http://")) for url in download.urls)
        assert download.sha256 is None or len(names) == 1
    sums = [d.sha256 for d in entry.downloads] + [f.sha256 for f in entry.files.values()]
    assert all(re.fullmatch("[0-9a-f]{64}", sum_) for sum_ in sums if sum_)


def test_unchecked_sums_are_the_two_of_uci():
    assert [entry["name"] for entry in list_sets() if entry["unchecked"]] == ["seizures", "twitterbuzz"]


def test_page_names_every_set():
    page = (ROOT / "docs" / "how-to" / "data-sets.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| `([\w-]+)/` \| ([^|]*) \|", page, re.MULTILINE)
    expected = [(name, entry.folder, ", ".join(f"`{task}`" for task in entry.tasks)) for name, entry in SETS.items()]
    assert rows == expected


@pytest.mark.parametrize("name", [name for name in TASKS if any(name in entry.tasks for entry in SETS.values())])
def test_folder_is_the_one_that_the_task_looks_in(name, tmp_path):
    with pytest.raises(EdgernnError) as caught:
        TASKS[name]().open(tmp_path, 0)
    folders = [entry.folder for entry in SETS.values() if name in entry.tasks]
    assert any(str(tmp_path / folder) in str(caught.value) for folder in folders)


def test_examples_end_each_help(capsys):
    for words in (["data"], ["data", "list"], ["data", "fetch"]):
        assert main([*words, "--help"]) == 0
        example = re.search(r"\nExample:\n  edgernn (data .*)\n\Z", capsys.readouterr().out)[1].split()
        assert example[: len(words)] == words
        if example[1] == "list":
            assert main(example) == 0
            capsys.readouterr()
        else:
            assert example[2] in SETS
