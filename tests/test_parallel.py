# SPDX-License-Identifier: Apache-2.0
"""Processes that share the batches of one training: the same results as one process, also after kills."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from edgernn.errors import EdgernnError, UsageError
from edgernn.progress import Silent
from edgernn.training import Interrupted, train
from edgernn.training.child_processes import launched
from edgernn.training.parallel import Group
from edgernn.training.tasks.sources import Batch
from tests.training_helpers import SMALL, command_line, without_pictures, words

pytestmark = pytest.mark.usefixtures("no_pictures")

ADDING = {**SMALL, "steps": 9, "eval_every": 3, "checkpoint_every": 3, "lambda": 0.05, "clip": 0.5}
# task, cell, rule, settings: batches of 10 sequences, of which the last of an epoch has 5 or 1
CASES = {
    "budget": ("adding", "gru", "selective", {**ADDING, "train_size": 25, "keep": "best"}),
    "steering": ("adding", "gru", "selective", {**ADDING, "train_size": 25, "skip": 0.7}),
    "background": (
        *("adding", "gru", "skip"),
        {**ADDING, "train_size": 25, "skip": 0.5, "silence": 0.5, "background": 3.0},
    ),
    "averages": ("adding", "gru", None, {**ADDING, "optimizer": "ntasgd", "nonmono": 1, "train_size": 21}),
    "batch-norm": ("adding", "lstm", None, {**ADDING, "norm": "recurrent-batch", "train_size": 21}),
    "imputer": ("brits", "gru", None, {"direction": "both", "hidden_size": 4, "batch_size": 8, "steps": 6}),
    "targets-a-step": ("char", "gru", None, {"window": 8, "hidden_size": 4, "batch_size": 8, "steps": 6}),
    "carried": ("ptb", "gru", "skip", {"bptt": 5, "ar": 2.0, "embedding": 8, "hidden_size": 8, "steps": 12}),
}
for _name in ("steering", "background"):
    del CASES[_name][3]["lambda"]
# both processes of a group run all cases, so that torch is loaded once
PAIR = """
import json, os, sys
from contextlib import contextmanager
from pathlib import Path
import torch, torch.distributed as dist
import edgernn.training.api as api
from edgernn.training.parallel import Group
rank, store, folder, data, cases = int(sys.argv[1]), *sys.argv[2:6]
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)

@contextmanager
def together(*_):
    yield Group(rank, 2)

api.together, api.size_of = together, lambda devices: 2
api.learning_curve = api.update_pattern = lambda path, *_: path.touch()
for name, (task, cell, rule, settings) in json.loads(cases).items():
    api.train(task, cell, rule, out=f"{folder}/{name}", data=data, settings=settings)
# no interpreter shutdown, as in edgernn.training.parallel.leave: it can abort in the threads of the process group
os._exit(0)
"""


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, small_data):
    """The folder with the runs of every case by two processes."""
    folder = tmp_path_factory.mktemp("pairs")
    arguments = [folder / "store", folder, small_data, json.dumps(CASES)]
    processes = [
        subprocess.Popen([sys.executable, "-c", PAIR, str(rank), *arguments], env=environment(), stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for process in processes:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error.decode()
    return folder


def lines(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in records]


def assert_same(run, other):
    """Assert that losses, metrics and weights are equal up to the order of float32 sums."""
    assert lines(run)
    for ours, theirs in zip(lines(run), lines(other), strict=True):
        assert ours == pytest.approx(theirs, rel=2e-4), run.name
    weights, expected = load_file(run / "model.safetensors"), load_file(other / "model.safetensors")
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-5, msg=f"{run.name}: {name}")


@pytest.mark.filterwarnings("ignore:skip. expected:edgernn.errors.EdgernnWarning")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_two_processes_do_what_one_does(pairs, tmp_path, small_data, name):
    task, cell, rule, settings = CASES[name]
    alone = train(task, cell, rule, out=tmp_path / "alone", data=small_data, settings=settings)
    assert_same(pairs / name, tmp_path / "alone")
    result = json.loads((pairs / name / "result.json").read_text())
    metric = result["metric"]
    assert result[metric] == pytest.approx(alone[metric], rel=2e-4)
    assert json.loads((pairs / name / "config.json").read_text())["processes"] == 2


def test_each_sequence_is_seen_once():
    x = torch.arange(7.0).expand(3, 7).unsqueeze(-1)
    for per_step in (False, True):
        batch = Batch(x, x[..., 0] if per_step else x[0], per_step=per_step)
        groups = [Group(rank, 3) for rank in range(3)]
        parts = [group.part(batch, 0, 0) for group in groups]
        seen = torch.cat([part.x[0, :, 0] for part in parts])
        assert sorted(seen.tolist()) == list(range(7))
        for part in parts:
            torch.testing.assert_close(part.target if per_step else part.target.T.expand(3, -1), part.x[..., 0])
        assert [group.weight for group in groups] == pytest.approx([9 / 7, 6 / 7, 6 / 7])
    # a process without sequences has weight 0
    group = Group(2, 3)
    assert group.part(Batch(x[:, :2], x[0, :2]), 0, 0).x.shape == (3, 1, 1)
    assert (group.weight, group.present) == (0.0, 0.0)


def test_every_process_draws_for_itself_and_again_the_same():
    drawn = set()
    for rank in (1, 2):
        for step in (0, 1):
            draws = []
            for _ in range(2):
                Group(rank, 3).part(Batch(torch.zeros(1, 3, 1), torch.zeros(3)), seed=0, step=step)
                draws.append(torch.rand(()).item())
            assert draws[0] == draws[1]
            drawn.add(draws[0])
    assert len(drawn) == 4


def run(out, devices=None, resume=False, progress=None, **changes):
    return train(
        "adding", "sarnn", out=out, devices=devices, resume=resume, progress=progress, settings={**ADDING, **changes}
    )


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)
        run(out)
    return out


class At(Silent):
    """Performs an action at a step."""

    def __init__(self, at, action):
        self.at, self.action = at, action

    def update(self, step, line="", **figures):
        if step == self.at and not line:
            self.action()


@contextmanager
def everything_put_back():
    variables, threads, before = dict(os.environ), torch.get_num_threads(), children()
    yield
    assert dict(os.environ) == variables
    assert torch.get_num_threads() == threads
    assert not dist.is_initialized()
    assert children() == before


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.slow
def test_an_interrupted_pair_is_resumed_by_one_and_by_two(tmp_path, one_process):
    # one of them receives SIGINT
    press = At(4, lambda: os.kill(os.getpid(), signal.SIGINT))
    with everything_put_back(), pytest.raises(Interrupted, match=r"interrupted at step 4 of 9.*--devices 2.*--resume"):
        run(tmp_path / "run", devices=2, progress=press)
    with pytest.raises(Interrupted, match="interrupted at step 6 of 9"):
        run(tmp_path / "run", resume=True, progress=At(6, press.action))
    run(tmp_path / "run", devices=2, resume=True)
    assert_same(tmp_path / "run", one_process)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.slow
def test_a_killed_process_is_named_and_its_run_goes_on(tmp_path, one_process):
    # a long-lived child of another test may exist
    before = children()
    kill = At(5, lambda: os.kill(next(int(child) for child in children() if child not in before), signal.SIGKILL))
    output = "one of the 2 training processes failed: process 1 was killed by signal 9; resume the run with --resume"
    with everything_put_back(), pytest.raises(EdgernnError, match=output):
        run(tmp_path / "run", devices=2, progress=kill)
    assert json.loads((tmp_path / "run/state.json").read_text())["step"] == 3
    run(tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", one_process)


def listening():
    """The addresses, as in /proc/net/tcp, at which this process waits for connections."""
    sockets = {str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{kind}").read_text().split("\n")
    ]
    return {words[1] for words in lines if words[3:4] == ["0A"] and f"socket:[{words[9]}]" in sockets}


def test_only_this_machine_can_connect_to_the_processes(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    before = listening()
    with everything_put_back(), launched(1, []):
        opened = listening() - before
        assert len(opened) == 1
        # 127.0.0.1
        assert all(address.startswith("0100007F:") for address in opened)
        assert {os.environ[name] for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")} == {"lo"}
        assert os.environ["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.slow
def test_torchrun_starts_what_devices_would(tmp_path, one_process):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "edgernn"]
    arguments = ["train", "--task", "adding", "--cell", "sarnn", "--out", "run", "--json", *words(ADDING)]
    process = subprocess.run(
        [*launch, *arguments], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    # only one process writes
    assert json.loads(process.stdout)["run"] == "run"
    assert process.stderr.count("training for at most 9 steps") == 1
    assert "Warning" not in process.stderr
    assert_same(tmp_path / "run", one_process)


@pytest.mark.parametrize(
    ("changes", "devices", "said"),
    [
        ({}, 3, "expected a multiple of the number of processes, 3, got 10, which would give some processes 4"),
        ({}, 4, "set batch_size to 8 or 12, or set the number of processes .--devices. to one of 1, 2, 5"),
        ({}, 20, "set batch_size to 20, or set the number of processes .--devices. to one of 1, 2, 5, 10"),
    ],
)
def test_batches_that_cannot_be_shared_are_refused(tmp_path, changes, devices, said):
    with pytest.raises(UsageError, match=said):
        run(tmp_path / "run", devices=devices, **changes)
    assert not (tmp_path / "run").exists()


def test_two_numbers_of_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(UsageError, match="expected 2, the number of processes of torchrun, got 5"):
        run(tmp_path / "run", devices=5)


def test_a_batch_of_one_network_cannot_be_shared(tmp_path, small_data):
    with pytest.raises(UsageError, match="expected 1, as l2l cannot divide its batches, got 2"):
        train("l2l", "lstm", out=tmp_path / "run", devices=2, data=small_data)


def test_a_process_that_cannot_start_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with everything_put_back(), pytest.raises(EdgernnError, match="process 1 ended with status 1"):
        run(tmp_path / "run", devices=2)
    assert not (tmp_path / "run").exists()


def test_the_other_processes_import_nothing_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("click", "json", "socket"):
        Path(f"{name}.py").write_text("open('imported', 'w')")
    message = r"process 1 ended with status 2 .edgernn: error: unknown command 'trian'"
    with pytest.raises(EdgernnError, match=message), launched(2, ["edgernn", "trian"]):
        pass
    assert not Path("imported").exists()


@pytest.mark.slow
def test_processes_of_other_settings_are_refused(tmp_path):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    arguments = ["train", "--task", "adding", "--cell", "gru", "--out", "run", *words(SMALL), "steps=3"]
    processes = [
        command_line(*arguments, f"lr={lr}", cwd=tmp_path, env={**shared, "RANK": str(rank)})
        for rank, lr in enumerate((0.1, 0.2))
    ]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert "lr: expected 0.1 as in process 0, got 0.2; start all processes with the same settings" in errors[1]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_process_that_has_trained_with_others_leaves_their_group_alone():
    # no cycle of objects, which a process that ends does not collect
    held = "type('Held', (), {'__del__': partial(print, 'let go of', flush=True)})()"
    for kept in ([], ["held"]):
        code = "from functools import partial; from edgernn.training import parallel; "
        code += f"held = {held}; parallel._kept += [{', '.join(kept)}]"
        code += "; import sys, edgernn.__main__ as m; sys.argv[1:] = ['cells', '--help']; m.run()"
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert process.returncode == 0, process.stderr
        assert ("let go of" in process.stdout) is (not kept)


def test_a_total_has_the_gradient_of_a_sum(monkeypatch):
    # two processes, the other of which has the same numbers
    monkeypatch.setattr(dist, "all_reduce", lambda x: x.mul_(2))
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    total = Group(0, 2).total(x)
    np.testing.assert_allclose(total.detach(), [2.0, 6.0])
    (total * torch.tensor([1.0, 10.0])).sum().backward()
    np.testing.assert_allclose(x.grad, [2.0, 20.0])
