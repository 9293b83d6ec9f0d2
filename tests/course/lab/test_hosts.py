"""Hosts made of one machine: their networks, torchruns that die on them, what is left.

The lesson many_machines shows the rest: a rank and a host killed, what mistakes say.
"""

import socket
import subprocess
import time
from types import SimpleNamespace

import pytest

from course.lab import hosts as made
from course.lab.hosts import on_hosts, until_saved
from manual_dp.ranks import RankError, load, save

SHELL = {"options": ["--no-python"]}
NO_NETWORKS = "this machine does not allow network namespaces"


def say(hosts, first):
    """Let two hosts meet at the first of them; return their addresses, what they said."""
    for host in (first, first + 1):
        given = {} if first == 0 else {"conf": [f"is_host={int(host == first)}"],
                                       "endpoint": f"{hosts.hosts[first].address}:29500"}
        hosts.start(host, "sh", "-c", "echo $GROUP_RANK $LOCAL_RANK $RANK $WORLD_SIZE, "
                    "$CUDA_VISIBLE_DEVICES $(grep -c eth0: /proc/net/dev)", nnodes=2,
                    **SHELL, **given)
    return [host.address for host in hosts.hosts], [
        sorted(told.out.splitlines()) for told in hosts.wait()]


def test_each_host_has_a_network_of_its_own_and_each_rank_is_told_its_place():
    before = socket.if_nameindex()
    addresses, said = on_hosts(2, say, 0)
    if addresses[0] == addresses[1]:
        pytest.skip(NO_NETWORKS)
    assert addresses == ["10.0.0.1", "10.0.0.2"]
    assert said == [["0 0 0 4, 1", "0 1 1 4, 1"], ["1 0 2 4, 1", "1 1 3 4, 1"]]
    assert socket.if_nameindex() == before


def test_hosts_are_numbered_by_their_addresses_as_texts():
    addresses, said = on_hosts(10, say, 8)  # 10.0.0.9, where they meet, and 10.0.0.10
    if addresses[8] == addresses[9]:
        pytest.skip(NO_NETWORKS)
    assert [lines[0] for lines in said] == ["1 0 2 4, 1", "0 0 0 4, 1"]


def test_where_networks_are_refused_all_hosts_share_loopback(monkeypatch):
    def refused(host, *lines):
        raise subprocess.CalledProcessError(1, lines, stderr="Operation not permitted")

    def places(hosts):
        return [host.address for host in hosts.hosts], {
            hosts.meeting, hosts.place(), hosts.place()}
    monkeypatch.setattr(made, "_ip", refused)
    monkeypatch.setattr(made.dist, "destroy_process_group", lambda: None)
    addresses, free = made._call(2, places, (), own=True)
    assert addresses == ["127.0.0.1"] * 2 and len(free) == 3


@pytest.mark.parametrize("options, starts", [([], 1), (["--max-restarts=2"], 3)])
def test_ranks_start_again_only_if_torchrun_may_restart_them(tmp_path, options, starts):
    def die(hosts):
        hosts.start(0, "sh", "-c", "echo start; exit 3", ranks=1,
                    options=[*SHELL["options"], *options],
                    environ=[("TMPDIR", str(tmp_path))])
        return hosts.wait()
    told, = on_hosts(1, die, own=False)
    assert told.code != 0 and told.out == "start\n" * starts
    assert list(tmp_path.iterdir()) == []


# counts to 8; each step adds 1 for rank 0, 10 for rank 1, as far as the file goes
COUNT = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
from manual_dp.ranks import load, save
dist.init_process_group("gloo")
path = Path(sys.argv[1])
state = load(path) if path.exists() else {"epoch": 0, "step": 0, "sum": torch.zeros(1)}
while state["step"] < 8:
    one = torch.tensor([10.0 ** dist.get_rank()])
    dist.all_reduce(one)
    state["step"] += 1
    state["sum"] += one
    save(path, state)
    time.sleep(0.05)
print(state["sum"].item(), flush=True)
"""


def test_a_killed_rank_comes_back_on_loopback_with_all_others_and_goes_on(tmp_path):
    # ranks that are forks, restarted where all hosts share one address: nothing else
    # has them. It takes three starts of torch's agents.
    program, path = tmp_path / "count.py", tmp_path / "count.pt"
    program.write_text(COUNT)

    def kill(hosts):
        for host in (0, 1):
            hosts.start(host, str(program), path, ranks=1, options=["--max-restarts=1"],
                        environ=[("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")])
        until_saved(path, 3, hosts)
        before = [hosts.ranks(host) for host in (0, 1)]
        hosts.end_rank(1, 0)
        until_saved(path, load(path)["step"] + 2, hosts)
        return before, [hosts.ranks(host) for host in (0, 1)], hosts.wait()
    before, after, told = on_hosts(2, kill, own=False, timeout=300)
    assert [one.code for one in told] == [0, 0], told
    assert [one.out for one in told] == ["88.0\n", "88.0\n"]
    assert all(len(ranks) == 1 for ranks in before) and before[0] != after[0]


def test_a_lost_host_has_no_ranks_and_what_still_runs_ends_with_the_function():
    def lose(hosts):
        for host in (0, 1):
            hosts.start(host, "sleep", 1000, **SHELL)
        while not all(len(hosts.ranks(host)) == 2 for host in (0, 1)):
            time.sleep(0.05)
        hosts.end_host(1)
        lost, = hosts.wait(1)
        return lost.code, hosts.ranks(1), hosts.running[0].is_alive()
    assert on_hosts(2, lose) == (-9, [], True)


def test_the_deadline_ends_hosts_and_all_that_runs_on_them(nothing_is_left):
    def hang(hosts):
        hosts.start(0, "sleep", 1000, nnodes=1, **SHELL)
        hosts.wait()
    with pytest.raises(RankError) as error:
        on_hosts(2, hang, timeout=5)
    assert error.value.kind == "hung"


@pytest.mark.parametrize("epoch, step, there", [
    (0, 3, False), (0, 4, True), (0, 5, True), (1, 0, True), (None, 0, False)])
def test_a_step_or_a_later_one_is_waited_for_while_all_run(tmp_path, epoch, step, there):
    path, looks = tmp_path / "run.pt", []
    if epoch is not None:
        save(path, {"epoch": epoch, "step": step})

    def alive():
        looks.append(1)
        return len(looks) < 3
    until_saved(path, 4, SimpleNamespace(running=[SimpleNamespace(is_alive=alive)]))
    assert len(looks) == (1 if there else 3)
