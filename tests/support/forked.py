"""Ranks that have imported torch, in the place of new Pythons, which take 5 s of a core each.

forked_audit      audit_script runs its scripts in the ranks of run_ranks
forked_torchrun   these are the torchruns
forked_ranks      and the programs' ranks are their forks
"""

import os
import sys

import pytest
import torch.distributed as dist

import course.lab.torchrun
from manual_dp.audit import command, script


@pytest.fixture
def forked_audit(monkeypatch):
    def start_python(words, environ, out):
        dist.destroy_process_group()
        os.environ.update(environ)
        dist.set_debug_level_from_env()  # a new torch asks for it
        sys.argv = ["-c", *words]
        sys.path.insert(0, "")
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        try:
            script.main()
        except SystemExit as end:
            return int(bool(end.code))

    monkeypatch.setattr(command, "start_python", start_python)


@pytest.fixture
def forked_torchrun(monkeypatch):
    def start(commands):
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.run import main

        words = commands[dist.get_rank()][3:]
        dist.destroy_process_group()  # its threads would not be in a fork
        try:
            main(words)
        except ChildFailedError as error:
            return 1, str(error)
        return 0, ""

    monkeypatch.setattr(sys.modules[course.lab.torchrun.__name__], "_start", start)


@pytest.fixture
def forked_ranks(forked_torchrun, monkeypatch):
    monkeypatch.setenv("PET_START_METHOD", "fork")
    monkeypatch.setenv("PET_RUN_PATH", "1")
