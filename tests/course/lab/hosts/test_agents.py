"""Training on two hosts for real: kills, losses, strangers, and what is said of them."""

import json
import sys
from pathlib import Path

import pytest
import torch

from course.lab.hosts import on_hosts, reason, saved, until_saved
from course.lab.hosts.kills import same_weights
from course.lab.torchrun import torchrun
from manual_dp import largest_difference
from manual_dp.__main__ import main
from manual_dp.ranks import RankError

pytestmark = pytest.mark.usefixtures("nothing_is_left")
LONG = 900  # seconds: several starts of torch on a machine that others keep busy
SETTINGS = ["--epochs", "1", "--batch-size", "120", "--lr", "0.05", "--float64"]
TRAIN = ["-m", "manual_dp", "train", *SETTINGS, "--method"]
PATIENT = ["--max-restarts=3"]
QUICK = ["join_timeout=20", "read_timeout=20"]  # of what must fail
# or a host that comes later waits for an address that nobody writes (torch 2.13)
NEWCOMERS = [("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")]


@pytest.fixture
def whole(tmp_path):
    """Train by a method on four ranks of one host, without a stop; return the end."""
    def train(method):
        path = tmp_path / f"{method}.pt"
        assert main(["train", *SETTINGS, "--method", method, "--world-size", "4",
                     "--checkpoint", str(path), "--every", "3"]) == 0
        return saved(path)
    return train


@pytest.mark.parametrize("method, host, which, steps, own", [
    ("ddp", 1, 0, 4, True), ("ddp-by-hand", 0, 1, 7, False)])
def test_a_killed_rank_comes_back_and_the_weights_end_as_without_a_kill(
        tmp_path, whole, method, host, which, steps, own):
    path, out = tmp_path / "killed.pt", tmp_path / "out.json"

    def kill(hosts):
        for number in (0, 1):
            hosts.start(number, *TRAIN, method, "--checkpoint", path, "--every", 1,
                        "--out", out, options=PATIENT)
        until_saved(path, steps, hosts)
        hosts.end_rank(host, which)
        return hosts.wait()
    first, second = on_hosts(2, kill, own=own, timeout=LONG)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    ended, expected = saved(path), whole(method)
    assert (ended["epoch"], ended["step"]) == (1, 0)
    assert same_weights(ended["model"], expected["model"])
    assert ended["history"]["loss"] == expected["history"]["loss"]
    # rank 0 alone prints, once, and writes
    assert [line.split()[:3] for line in first.out.splitlines()[1:]] == [
        ["lenet", method, "4"]]
    assert second.out == ""
    run, = json.loads(out.read_text())["runs"]
    assert (run["world_size"], run["of"], run["float64"]) == (4, 359, True)


def test_a_lost_host_is_replaced_and_a_stranger_does_not_get_in(tmp_path, whole):
    path = tmp_path / "lost.pt"

    def lose(hosts):
        words = [*TRAIN, "ddp-by-hand", "--checkpoint", path, "--every", 1]
        soon = ["keep_alive_interval=1", "keep_alive_max_attempt=3"]
        for number in (0, 1):
            hosts.start(number, *words, nnodes=2, conf=soon, options=PATIENT,
                        environ=NEWCOMERS)
        until_saved(path, 3, hosts)
        hosts.end_host(1)  # host 0 waits from here on, and so does the meeting place
        stranger = hosts.start(2, "true", nnodes=2, job="theirs", conf=QUICK,
                               options=["--no-python"])
        refused, = hosts.wait(stranger)
        new = hosts.start(2, *words, nnodes=2, conf=soon, options=PATIENT,
                          environ=NEWCOMERS)
        return *hosts.wait(0, new), refused
    kept, new, stranger = on_hosts(3, lose, timeout=LONG)
    assert (kept.code, new.code) == (0, 0), kept.err + new.err
    assert same_weights(saved(path)["model"], whole("ddp-by-hand")["model"])
    assert stranger.code != 0
    assert reason(stranger.err).startswith("not all hosts came in time")


def test_a_run_that_lost_a_host_goes_on_with_half_the_ranks(tmp_path, whole, capsys):
    path = tmp_path / "fewer.pt"

    def lose(hosts):
        hosts.start(0, *TRAIN, "ddp-by-hand", "--checkpoint", path, "--every", 1,
                    ranks=4, nnodes=1)
        until_saved(path, 4, hosts)
        hosts.end_host(0)
    on_hosts(1, lose, own=False, timeout=LONG)
    stopped = saved(path)
    assert 4 <= stopped["step"] < 11 and len(stopped["random"]) == 4
    words = ["train", *SETTINGS, "--method", "ddp-by-hand", "--world-size", "2",
             "--checkpoint", str(path)]
    for more, message in (
            ([], "holds a run of another job: add --resume to go on"),
            (["--resume", "--lr", "0.1"], "is of a run with lr 0.05, this one has 0.1")):
        with pytest.raises(SystemExit):
            main([*words, *more])
        assert message in capsys.readouterr().err
        assert saved(path)["step"] == stopped["step"]
    assert main([*words, "--resume"]) == 0
    ended, expected = saved(path), whole("ddp-by-hand")
    for name, weight in expected["model"].items():  # two ranks add in another order
        assert (ended["model"][name] - weight).abs().max() < 1e-9
    assert ended["history"]["loss"] == pytest.approx(expected["history"]["loss"])


PROGRAM = Path(__file__).parents[3] / "notebooks" / "programs" / "train_ddp.py"


def test_lesson_10s_program_ends_alike_on_one_host_and_on_two(tmp_path):
    words = [PROGRAM, "--float64", "--epochs", "1", "--checkpoint"]

    def train(hosts):
        gloo = [("GLOO_SOCKET_IFNAME", "eth0")] if hosts.own_networks else []
        for number in (0, 1):
            hosts.start(number, *words, tmp_path / "two.pt", ranks=1, environ=gloo)
        return hosts.wait()
    first, second = on_hosts(2, train, timeout=LONG)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    torchrun(*words, tmp_path / "one.pt", ranks=1, timeout=LONG)
    assert first.out.startswith("epoch 0: loss ") and second.out == ""
    one, two = (torch.load(tmp_path / name, weights_only=True)["model"]
                for name in ("one.pt", "two.pt"))
    assert largest_difference(list(one.values()), list(two.values())) < 1e-12


def test_two_hosts_with_other_numbers_of_ranks_are_refused_in_one_line():
    def uneven(hosts):
        for number, ranks in ((0, 1), (1, 2)):
            hosts.start(number, *TRAIN, "ddp", ranks=ranks)
        return hosts.wait()
    told = on_hosts(2, uneven, timeout=LONG)
    line = ("the hosts start different numbers of ranks: host 0 has 1, host 1 has 2; "
            "give each torchrun the same --nproc-per-node")
    texts = "".join(one.err for one in told)
    swapped = line.replace("0 has 1", "0 has 2").replace("1 has 2", "1 has 1")
    assert texts.count(line) + texts.count(swapped) == 1
    assert line in map(reason, (one.err for one in told)) or swapped in map(
        reason, (one.err for one in told))


def test_a_wrong_address_a_missing_host_and_a_busy_port_are_one_line_each():
    def fail(hosts):
        def start(host, **options):
            return hosts.start(host, "true", conf=QUICK, options=["--no-python"],
                               **options)
        return hosts.wait(start(1, endpoint=hosts.place()), start(0),
                          start(0, endpoint=hosts.taken()))
    wrong, missing, taken = on_hosts(2, fail, timeout=LONG)
    assert 0 not in (wrong.code, missing.code, taken.code)
    assert reason(wrong.err).startswith("nobody answered at the address"), wrong.err
    assert reason(missing.err).startswith("not all hosts came in time"), missing.err
    assert reason(taken.err).startswith("the port is taken"), taken.err


def test_two_hosts_that_each_name_themselves_wait_as_for_a_missing_one():
    def two(hosts):
        for host in (0, 1):
            hosts.start(host, "true", options=["--no-python"], endpoint=hosts.place(),
                        conf=["is_host=1", "join_timeout=2", "read_timeout=2"])
        return hosts.wait()
    assert [reason(told.err)[:30] for told in on_hosts(2, two, own=False, timeout=LONG)] == [
        "not all hosts came in time: st"] * 2


def test_hosts_are_numbered_by_their_addresses_as_texts():
    def meet(hosts):
        if not hosts.own_networks:
            return None
        for host in (8, 9):
            hosts.start(host, "sh", "-c", "echo $GROUP_RANK", nnodes=2, ranks=1,
                        options=["--no-python"], conf=[f"is_host={int(host == 8)}"],
                        endpoint=f"{hosts.hosts[8].address}:29400")
        return [told.out for told in hosts.wait()]
    said = on_hosts(10, meet, timeout=LONG)
    if said is None:
        pytest.skip("all hosts share one address here")
    assert said == ["1\n", "0\n"]  # 10.0.0.9, where they meet, and 10.0.0.10


@pytest.mark.parametrize("options, starts", [([], 1), (["--max-restarts=2"], 3)])
def test_ranks_start_again_only_if_torchrun_may_restart_them(tmp_path, options, starts):
    def die(hosts):
        hosts.start(0, "sh", "-c", "echo start; exit 3", ranks=1,
                    options=["--no-python", *options], environ=[("TMPDIR", str(tmp_path))])
        return hosts.wait()
    told, = on_hosts(1, die, own=False, timeout=LONG)
    assert told.code != 0 and told.out == "start\n" * starts
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("own", [True, False])
def test_each_meeting_place_is_free_and_a_new_one(own):
    def places(hosts):
        return [hosts.place(), hosts.place(), f"{hosts.hosts[0].address}:{hosts.port}"]
    assert len(set(on_hosts(1, places, own=own, timeout=LONG))) == 3


@pytest.mark.parametrize("given, seen", [((), ""), ([("CUDA_VISIBLE_DEVICES", "1")], "1")])
def test_hosts_of_one_machine_see_no_gpu_that_they_are_not_given(monkeypatch, given, seen):
    def look(hosts):
        hosts.run([sys.executable, "-c", "import os; print(os.environ"
                   "['CUDA_VISIBLE_DEVICES'])"], given)
        return [told.out.strip() for told in hosts.wait()]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert on_hosts(1, look, own=False, timeout=LONG) == [seen]


def test_no_rank_of_a_torchrun_that_has_ended_can_be_killed():
    def late(hosts):
        number = hosts.run([sys.executable, "-c", ""])
        hosts.wait(number)
        hosts.end_rank(number, 0)
    with pytest.raises(RankError, match="torchrun 0 has ended, it has no ranks"):
        on_hosts(1, late, own=False, timeout=LONG)
