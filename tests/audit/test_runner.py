"""A script is run as python would run it, and what it raises is written down."""

import os
import subprocess
import sys

from manual_dp.audit import script

SOURCE = """
import sys, beside
from manual_dp.audit import script
from torch.nn.parallel import DistributedDataParallel
print(__name__, sys.argv, beside.__name__, script.FOLLOWED)
raise SystemExit(int(sys.argv[1])) if sys.argv[1] != "raise" else KeyError("so")
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
    assert done.stdout == (
        f"__main__ ['{tmp_path}/train.py', 'raise'] beside []\n")
    assert done.returncode == 1 and files["raised-1"].endswith("KeyError: 'so'\n")
    assert files.keys() == {"stands-1", "pid-1", "raised-1"} and files["pid-1"].isdigit()


def test_a_script_that_says_it_is_done_has_raised_nothing(tmp_path):
    done, files = run(tmp_path, "0")
    assert done.returncode == 0 and files.keys() == {"stands-1", "pid-1"}
