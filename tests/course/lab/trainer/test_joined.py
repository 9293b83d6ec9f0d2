"""What the command does as one of the ranks that torchrun has started."""

import os
import socket

import pytest

from course.lab.trainer import joined
from course.lab.trainer.meeting import _interface_to
from manual_dp.__main__ import main


@pytest.fixture
def torchrun(monkeypatch):
    """Put into the environment what torchrun would, for rank 3 of 4 on two hosts."""
    for name, value in (("RANK", 3), ("LOCAL_RANK", 1), ("WORLD_SIZE", 4),
                        ("LOCAL_WORLD_SIZE", 2), ("MASTER_ADDR", "127.0.0.1"),
                        ("MASTER_PORT", 1), ("TORCHELASTIC_RUN_ID", "job-7")):
        monkeypatch.setenv(name, str(value))
    return monkeypatch


def test_a_process_is_inside_only_if_torchrun_has_told_it_everything(torchrun):
    assert joined.inside()
    for name in joined.SET:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(name)
            assert not joined.inside()


def test_a_job_is_known_by_its_name_or_by_the_process_that_starts_its_ranks(torchrun):
    assert joined.job() == "job-7"
    torchrun.setenv("TORCHELASTIC_RUN_ID", "none")
    assert joined.job() == joined.job() != "none"
    assert joined.job().split()[1].startswith(f"{os.getppid()}-")


@pytest.mark.parametrize("arguments, message", [
    (["--method", "by-hand"], "--method by-hand is one process for all devices, and "
     "torchrun has started 4: take ddp or ddp-by-hand"),
    (["--method", "ddp", "dataparallel"], "--method dataparallel is one process"),
    (["--method", "ddp", "--world-size", "1", "2"],
     "--world-size 1 2 is not the 4 ranks that torchrun has started: leave it out"),
])
def test_what_torchrun_decides_cannot_be_asked_for_otherwise(torchrun, capsys, arguments,
                                                             message):
    torchrun.setattr(joined, "train", lambda args: pytest.fail("trains"))
    with pytest.raises(SystemExit):
        main(["train", *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments, method", [([], ["ddp-by-hand"]),
                                               (["--world-size", "4"], ["ddp-by-hand"]),
                                               (["--method", "ddp"], ["ddp"])])
def test_the_number_of_ranks_is_torchruns_and_only_rank_0_prints(torchrun, capsys,
                                                                 arguments, method):
    asked = []
    torchrun.setattr(joined, "train", lambda args: asked.append(args) or [])
    assert main(["train", *arguments]) == 0
    assert (asked[0].world_size, asked[0].method) == ([4], method)
    assert capsys.readouterr().out == ""
    torchrun.setenv("RANK", "0")
    assert main(["train", *arguments]) == 0
    assert capsys.readouterr().out.startswith("network")


def test_ranks_that_nobody_answers_say_where_they_called(torchrun, capsys):
    with socket.socket() as taken:  # bound, not listening: it refuses
        taken.bind(("127.0.0.1", 0))
        torchrun.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        torchrun.setattr(joined, "PATIENCE", joined.datetime.timedelta(seconds=2))
        torchrun.setenv("GLOO_SOCKET_IFNAME", "lo")
        with pytest.raises(SystemExit):
            main(["train", "--method", "ddp"])
        where = f"127.0.0.1:{taken.getsockname()[1]}"
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"error: rank 3 could not meet the others at {where}: " in line


def test_gloo_is_given_the_interface_that_leads_to_the_others():
    names = [name for _, name in socket.if_nameindex()]
    assert _interface_to("127.0.0.1") in names
    assert _interface_to("127.0.1.1") is None  # this host's own name: leads nowhere
    assert _interface_to("no.such.host.invalid") is None
