"""A script is run as python would run it, and what it raises is written down."""

import json
import os
import subprocess
import sys

import pytest

from manual_dp.audit import audit_script, script

SOURCE = """
import sys, beside
from manual_dp.audit import script
from torch.nn.parallel import DistributedDataParallel
print(__name__, sys.argv, beside.__name__, script.FOLLOWED)
if sys.argv[1] == "raise":
    raise OSError("the first line\\nand another")
raise SystemExit(int(sys.argv[1]))
"""


def run(tmp_path, word):
    """Run SOURCE with this argument; return what it printed, and the files."""
    folder = tmp_path / word
    folder.mkdir()
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "beside.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "manual_dp.audit.runner", str(tmp_path / "train.py"), word],
        env=os.environ | {script.FOLDER: str(folder), "RANK": "1",
                          "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=90)
    return done, {path.name: path.read_text() for path in folder.iterdir()}


def test_a_script_sees_what_python_would_show_it(tmp_path):
    done, files = run(tmp_path, "raise")
    assert done.stdout == done.stderr == "" and done.returncode == 1
    assert files["out-1"] == f"__main__ ['{tmp_path}/train.py', 'raise'] beside []\n"
    assert "OSError: the first line\nand another" in files["err-1"]
    assert files.keys() == {"stands-1", "pid-1", "end-1", "out-1", "err-1"}
    assert files["pid-1"].isdigit()


def test_the_first_line_of_what_is_raised_is_kept_with_its_type(tmp_path):
    end = json.loads(run(tmp_path, "raise")[1]["end-1"])
    assert (end["kind"], end["text"], end["peer"]) == (
        "raised", "OSError: the first line", False)
    assert end["traceback"].startswith("Traceback") and "runner.py" not in end["traceback"]


@pytest.mark.parametrize("status", [0, 2])
def test_the_status_that_a_script_leaves_with_is_no_error(tmp_path, status):
    done, files = run(tmp_path, str(status))
    assert done.returncode == status
    assert json.loads(files["end-1"]) == {"kind": "exit", "status": status}


TWO = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
first, second = nn.Linear(3, 4), nn.Linear(4, 1)
early = torch.optim.SGD(first.parameters(), lr=0.1)
if sys.argv[2] == "before":
    late, unused = (torch.optim.SGD(second.parameters(), lr=0.1) for _ in range(2))
first = DDP(first)
if sys.argv[1] != "bare":
    second = DDP(second)
if sys.argv[2] == "after":
    late, unused = (torch.optim.SGD(second.parameters(), lr=0.1) for _ in range(2))
torch.manual_seed(1 + dist.get_rank())
for _ in range(6):
    X = torch.rand(4, 3)
    for optimizer, model in ((early, lambda: first(X)), (late, lambda: second(first(X).detach()))):
        early.zero_grad(), late.zero_grad()
        if sys.argv[1] == "held back" and optimizer is late:
            with second.no_sync():
                mse_loss(model(), torch.zeros(4, 1)).backward()
        else:
            mse_loss(model().mean(1, True), torch.zeros(4, 1)).backward()
        optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how, optimizers, codes, other", [
    ("right", "before", [], False), ("right", "after", [], False),
    ("held back", "before", ["not-synchronised"], False),
    ("held back", "after", ["not-synchronised"], False),
    ("bare", "before", ["not-synchronised"], True)])
def test_all_that_a_script_wraps_is_watched(tmp_path, how, optimizers, codes, other):
    (tmp_path / "two.py").write_text(TWO)
    report = audit_script([tmp_path / "two.py", how, optimizers])
    assert [f.code for f in report.findings][:1] == codes
    assert any(words.startswith("an optimizer of other tensors: no model")
               for words in report.unchecked) == other


def test_a_script_that_fails_before_anything_is_watched_cannot_be_run(tmp_path):
    (tmp_path / "fails.py").write_text("import no_such_module")
    with pytest.raises(RuntimeError, match="no_such_module"):
        audit_script([tmp_path / "fails.py"])


ONE = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD([model.weight], lr=0.1)
later = torch.optim.SGD([model.bias], lr=0.1)  # takes no step in this stage
model = DDP(model)
torch.manual_seed(1 + dist.get_rank())
for _ in range(6):
    optimizer.zero_grad()
    mse_loss(model(torch.rand(4, 3)), torch.zeros(4, 2)).backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_an_optimizer_that_takes_no_step_is_not_waited_for(tmp_path):
    (tmp_path / "one.py").write_text(ONE)
    assert audit_script([tmp_path / "one.py"]).steps == 3
