"""Folders of jobs: gone with the job, swept up after a crash, never another's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from manual_dp.school.grader import litter

ROOT = Path(__file__).parents[3]


def test_a_folder_is_there_for_the_block_and_gone_with_what_is_in_it(tmp_path):
    with litter.folder(str(tmp_path)) as path:
        deep = Path(path)
        for _ in range(3):
            deep = deep / "d"
            deep.mkdir()
        (deep / "file").write_text("x")
        deep.chmod(0)
        assert os.listdir(tmp_path) == [os.path.basename(path)]
    assert os.listdir(tmp_path) == []


def test_it_is_gone_when_the_block_raises(tmp_path):
    with pytest.raises(ZeroDivisionError), litter.folder(str(tmp_path)):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_what_a_killed_grader_left_is_swept_up_and_no_more(tmp_path):
    page = str(ROOT / "manual_dp" / "school" / "grader")
    script = ("import os, signal, sys\n"
              f"sys.path.insert(0, {page!r})\n"
              "import litter\n"
              f"with litter.folder({str(tmp_path)!r}) as path:\n"
              "    os.mkdir(path + '/in it')\n"
              "    os.kill(os.getpid(), signal.SIGKILL)\n")
    subprocess.run([sys.executable, "-c", script], timeout=100, check=False)
    [lost] = os.listdir(tmp_path)
    (tmp_path / "manual_dp-other").mkdir()
    (tmp_path / "manual_dp-grade-file").write_text("no folder")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "manual_dp-grade-link").symlink_to(tmp_path / "elsewhere")
    with litter.folder(str(tmp_path)) as held:
        litter.sweep(str(tmp_path))
        assert set(os.listdir(tmp_path)) == {
            os.path.basename(held), "manual_dp-other", "manual_dp-grade-file",
            "manual_dp-grade-link", "elsewhere"}
    assert lost.startswith(litter.PREFIX)
