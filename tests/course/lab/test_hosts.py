"""Hosts made of one machine: torchruns that meet, die, and leave nothing behind.

The lesson many_machines shows the rest: a rank and a host killed, what mistakes say.
"""

import socket
import time

import pytest

from course.lab.hosts import Hosts, on_hosts
from manual_dp.ranks import RankError
from tests.support.loaded import PROGRAMS, loaded

SAY = "echo $GROUP_RANK $LOCAL_RANK $RANK $WORLD_SIZE, $CUDA_VISIBLE_DEVICES"


def typed(address, words, nnodes=1, ranks=1, more=""):
    return (
        f"NAME='a value' torchrun --no-python --nnodes {nnodes} --nproc-per-node "
        f"{ranks} --rdzv-backend c10d --rdzv-id test --rdzv-endpoint "
        f"127.0.0.9:29400 --local-addr 127.0.0.{address} {more} \\\n {words}"
    )


def test_ranks_are_told_their_places_and_hosts_are_numbered_by_addresses_as_texts():
    def say(hosts):
        runs = [
            hosts.type(
                typed(
                    address,
                    f"sh -c '{SAY} $NAME'",
                    2,
                    2,
                    f"--rdzv-conf is_host={int(address == 9)}",
                )
            )
            for address in (9, 10)
        ]
        return [sorted(hosts.printed(run).splitlines()) for run in runs]

    assert on_hosts(say) == [
        ["1 0 2 4, a value", "1 1 3 4, a value"],
        ["0 0 0 4, a value", "0 1 1 4, a value"],
    ]


def test_ranks_start_again_only_if_torchrun_may_restart_them(tmp_path):
    def die(hosts):
        runs = [
            hosts.type(
                f"TMPDIR={tmp_path} torchrun --no-python {more} --standalone "
                "sh -c 'echo start; exit 3'"
            )
            for more in ("", "--max-restarts=2")
        ]
        return [(hosts.printed(run), run.exitcode) for run in runs]

    once, again = on_hosts(die)
    assert once == ("start\n", 1) and again == ("start\n" * 3, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_killed_on_one_of_two_hosts_changes_no_bit(tmp_path, nothing_is_left):
    # what the lesson's five kills on record rest on; two runs of four ranks
    kills = loaded(PROGRAMS / "kills.py").kills
    (run,) = on_hosts(kills, str(tmp_path), 1, 0)
    assert (run["finished"], run["equal"]) == (True, True)
    assert 0 < run["epochs_saved"] < 6


def test_what_still_runs_ends_with_the_function_and_at_the_deadline(nothing_is_left):
    # only a torchrun that never ends shows who ends it
    def leave(hosts, wait):
        run = hosts.type(typed(9, "sleep 1000"))
        if wait:
            hosts.printed(run)
        time.sleep(1)
        return run.is_alive()

    assert on_hosts(leave, False) is True
    with pytest.raises(RankError) as error:
        on_hosts(leave, True, timeout=5)
    assert error.value.kind == "hung"


def test_an_address_s_port_is_a_free_one_and_the_same_for_all():
    hosts = Hosts("")
    one, other = hosts.with_free_ports("a:29400"), hosts.with_free_ports("a:29401")
    assert hosts.with_free_ports("a:29400 a:29401") == f"{one} {other}" and one != other
    assert hosts.with_free_ports("29400 a:2940 a:294000") == "29400 a:2940 a:294000"
    with socket.socket() as probe:
        probe.bind(("", int(one.partition(":")[2])))  # it is free
