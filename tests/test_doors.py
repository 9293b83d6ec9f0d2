"""Every door opens: where only what pip brings is there, and on Windows, played."""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORK = "ranks need fork: Linux, macOS, or WSL on Windows"

# Every process that is started so finds this file: the nursery and torchrun's ranks too.
BARE = """
import sys
class Bare:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in REFUSED:
            return self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Bare, sys.meta_path)
"""
SCRIPT = """
import contextlib, io, sys
import torch, torch.distributed as dist
import manual_dp, manual_dp.audit, manual_dp.models, manual_dp.ranks
import course.__main__, manual_dp.__main__
from manual_dp.audit import check_ranks
from manual_dp.ranks import DDP, Ranks, run_ranks, save

def command(*arguments):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            package = manual_dp if arguments[0] in ("train", "audit") else course
            status = package.__main__.main(list(arguments))
        except SystemExit as end:
            status = end.code
    print(arguments[0], status, said.getvalue().strip().splitlines()[-1])
    return said.getvalue()

def door(function, *args):
    try:
        print(function(*args))
    except Exception as error:
        print(type(error).__name__, error)

def step():
    net = DDP(torch.nn.Linear(2, 1))
    net(torch.rand(3, 2)).sum().backward()
    return [found.code for found in check_ranks(net)]
"""


def closure(names):
    """Return these distributions and all that they need, without extras."""
    found, names = set(), list(names)
    while names:
        if (name := canonicalize_name(names.pop())) not in found:
            found.add(name)
            wanted = map(
                Requirement,
                PROJECT["dependencies"]
                if name == "manual-dp"
                else importlib.metadata.requires(name) or (),
            )
            names += [
                one.name
                for one in wanted
                if one.marker is None or one.marker.evaluate({"extra": ""})
            ]
    return found


@pytest.fixture
def bare(tmp_path):
    """Return a function that runs Python where only manual_dp's dependencies are."""
    needed = closure([PROJECT["name"]])
    refused = {
        top
        for top, names in importlib.metadata.packages_distributions().items()
        if not needed & set(map(canonicalize_name, names))
    }
    assert {"sklearn", "tqdm", "IPython"} <= refused and "numpy" not in refused
    (tmp_path / "sitecustomize.py").write_text(f"REFUSED = {sorted(refused)}\n{BARE}")
    return lambda *arguments: subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT}/notebooks"},
    )


WATCHED = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    X = torch.full((2, 3), step + dist.get_rank() / 2)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(net(X), torch.ones(2, 1)).backward()
    optimizer.step()
"""


def test_ranks_and_commands_need_no_more_than_pip_brings(bare, tmp_path):
    # half a minute of a processor: an import too much shows only in new Pythons, this
    # one, the nursery and the two that the audit starts. The audit comes before compare:
    # meanwhile the nursery imports what torch's DDP needs.
    (tmp_path / "train.py").write_text(WATCHED)
    done = bare(
        "-c",
        SCRIPT
        + """
for name in "train", "compare", "bench", "audit":
    command(name, "--help")
door(run_ranks, step, 2)
with Ranks(2) as ranks:
    print(ranks.run("rank"))
print("no finding" in command("audit", "--", "train.py"))
command("compare", "--steps", "1")
command("train", "--epochs", "1")
""",
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [
        [name, "0"] for name in ("train", "compare", "bench", "audit")
    ]
    assert lines[4:6] == ["[[], []]", "[0, 1]"]
    assert lines[6].startswith("audit 0 ") and lines[7] == "True", done.stdout
    assert lines[8].startswith("compare 0 ")
    assert lines[9] == (
        "train 2 python -m manual_dp: error: the digits come with "
        "scikit-learn: pip install 'manual_dp[course]'"
    )


# Windows, played: no real one was there


def test_on_windows_only_what_needs_fork_is_refused(tmp_path):
    # a new Python, 10 s of a processor: what Windows lacks is missed at the imports, too
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from tests.support import windows\n"
            + SCRIPT
            + f"""
door(run_ranks, step, 2)
door(Ranks, 2)
command("compare", "--steps", "1")
command("train", "--epochs", "1", "--world-size", "2")
from course import check
def allreduce(data):
    total = sum(data)
    for one in data:
        one.copy_(total)
check("allreduce/allreduce", allreduce)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
door(step)
import pathlib
from manual_dp.files import sealed
for n in 1, 2:  # beside what a killed one has left
    path = pathlib.Path({str(tmp_path / "a.pt")!r})
    path.with_name(f"{{sealed._mark(path)}}1-1").touch()
    save({str(tmp_path / "a.pt")!r}, {{"n": n}})
print(manual_dp.ranks.load({str(tmp_path / "a.pt")!r}))
""",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[:3] == [f"OSError {FORK}"] * 2 + [
        f"compare 2 python -m course: error: {FORK}"
    ]
    assert lines[3].startswith("train 0 ")
    assert lines[4].startswith("allreduce/allreduce: right")
    assert lines[5:] == ["[]", "{'n': 2}"]
