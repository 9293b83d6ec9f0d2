"""When a checkpoint is written, what it holds, which file a run goes on from."""

import io

import pytest
import torch

from course.lab.trainer.keeper import Keeper
from manual_dp.__main__ import main
from manual_dp.files.sealed import unseal
from manual_dp.ranks import run_ranks, save
from manual_dp.ranks.checkpoint import MAGIC

SETTINGS = ["train", "--epochs", "1", "--batch-size", "480", "--lr", "0.05",
            "--world-size", "1", "--method"]
SOON = 120


@pytest.mark.parametrize("every, due", [(None, [11, 22]), (4, [4, 8, 12, 16, 20]),
                                        (100, [])])
def test_a_checkpoint_is_due_every_so_many_steps_of_the_run(every, due):
    keeper = Keeper("run.pt", every)
    assert [step for step in range(1, 23) if keeper.due(step, 11)] == due


def state(path):
    return torch.load(io.BytesIO(unseal(path, MAGIC)[0]), weights_only=True)


def refuses(capsys, *arguments):
    with pytest.raises(SystemExit):
        main([*SETTINGS, *map(str, arguments)])
    return capsys.readouterr().err.splitlines()[-1]


def test_the_file_says_whose_run_it_is_and_names_no_folder(tmp_path):
    path = tmp_path / "run.pt"
    assert main([*SETTINGS, "ddp", "--checkpoint", str(path)]) == 0
    kept = state(path)
    assert (kept["epoch"], kept["step"], kept["job"]) == (1, 0, None)
    assert kept["plan"]["lr"] == 0.05 and "data_dir" not in kept["plan"]
    assert len(kept["history"]["loss"]) == 1 and kept["history"]["seconds"]


@pytest.mark.parametrize("arguments, message", [
    (["ddp", "--resume"], "--resume is for a run with --checkpoint FILE"),
    (["ddp", "--every", "3"], "--every is for a run with --checkpoint FILE"),
    (["ddp", "--lr", "0.1", "0.2", "--checkpoint", "run.pt"],
     "--checkpoint is for one run, these are 2"),
    (["ddp", "--float64", "--amp"], "--float64 wants all digits and --amp few"),
    (["by-hand", "--checkpoint", "run.pt"], "--checkpoint is not for --method by-hand"),
    (["by-hand", "--float64"], "--float64 is not for --method by-hand"),
])
def test_what_does_not_go_together_is_one_line(capsys, monkeypatch, tmp_path, arguments,
                                               message):
    monkeypatch.chdir(tmp_path)
    assert message in refuses(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_cannot_be_used_is_one_line_and_stays(capsys, tmp_path):
    path = tmp_path / "run.pt"
    save(path, {"W": torch.ones(2), "epoch": 0, "step": 0})
    other = path.read_bytes()
    assert "is a checkpoint, but not of this command" in refuses(
        capsys, "ddp", "--checkpoint", path, "--resume")
    path.write_bytes(other[:-1])
    assert "run.pt should have" in refuses(capsys, "ddp", "--checkpoint", path)
    assert path.read_bytes() == other[:-1]


def test_other_settings_than_the_files_are_named_and_the_file_stays(capsys, tmp_path):
    path = tmp_path / "run.pt"
    assert main([*SETTINGS, "ddp", "--checkpoint", str(path)]) == 0
    before = path.read_bytes()
    for options, said in ((["--lr", 0], "lr 0.05, this one has 0.0"),
                          (["--accumulate", 2], "accumulate 1, this one has 2"),
                          (["--float64"], "float64 None, this one has True")):
        assert f"run.pt is of a run with {said}" in refuses(
            capsys, "ddp", "--checkpoint", path, "--resume", *options)
    assert path.read_bytes() == before


def newest(folder, epochs):
    """Return the epoch at which each rank, with a disk of its own, goes on."""
    def on_rank():
        import torch
        import torch.distributed as dist

        from course.lab.trainer.keeper import Keeper
        from manual_dp.ranks.checkpoint import gather
        rank, net = dist.get_rank(), torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        keeper = Keeper(f"{folder}/{rank}.pt", job="a")
        for owner, epoch in epochs:
            with torch.no_grad():
                net.weight.fill_(epoch)
            keeper.path = keeper.path.with_name(f"{owner}.pt")
            keeper.keep({"lr": 1}, net, optimizer, scaler, (epoch, 0), rank + 1.0, {})
        keeper.path = keeper.path.with_name(f"{rank}.pt")
        with torch.no_grad():
            net.weight.fill_(-1)
        found = keeper.go_on({"lr": 1}, net, optimizer, scaler)
        assert len(gather(rank)) == 3
        return found and (found[0], found[1], net.weight[0, 0].item())
    return run_ranks(on_rank, 3, timeout=SOON)


def test_hosts_with_their_own_disks_go_on_from_the_newest_file(tmp_path):
    assert newest(tmp_path, [(0, 2), (1, 5)]) == [
        ((5, 0), rank + 1.0, 5.0) for rank in range(3)]


def test_without_a_file_a_run_begins_at_the_beginning(tmp_path):
    assert newest(tmp_path, []) == [None] * 3


def test_fewer_ranks_take_over_the_losses_of_all(tmp_path):
    def on_rank(path, go_on):
        import torch
        import torch.distributed as dist

        from course.lab.trainer.keeper import Keeper
        net = torch.nn.Linear(2, 2)
        given = ({}, net, torch.optim.SGD(net.parameters(), 0.1),
                 torch.amp.GradScaler("cpu", enabled=False))
        keeper = Keeper(path, job="a")
        if go_on:
            return keeper.go_on(*given)[1]
        keeper.keep(*given, (0, 1), 10.0**dist.get_rank(), {})
    path = str(tmp_path / "run.pt")
    run_ranks(on_rank, 4, path, False, timeout=SOON)
    assert run_ranks(on_rank, 2, path, True, timeout=SOON) == [101.0, 1010.0]
    assert run_ranks(on_rank, 3, path, True, timeout=SOON) == [1001.0, 10.0, 100.0]


def test_a_checkpoint_of_a_gpu_goes_on_where_there_is_none(tmp_path):
    def on_rank(path):
        import torch

        from course.lab.trainer.keeper import Keeper
        from manual_dp.ranks import load, save
        net = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        given = {}, net, optimizer, torch.amp.GradScaler("cpu", enabled=False)
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        keeper = Keeper(path, job="a")
        keeper.keep(*given, (0, 1), 3.0, {})
        state = load(path)
        # now the file says of every tensor that it was on the first GPU
        torch.serialization.register_package(0, lambda storage: "cuda:0", lambda *_: None)
        save(path, state)
        kept = net.weight.detach().clone()
        with torch.no_grad():
            net.weight.fill_(-1)
        return keeper.go_on(*given)[:2], torch.equal(net.weight, kept)
    path = tmp_path / "run.pt"
    assert run_ranks(on_rank, 1, str(path), timeout=SOON) == [(((0, 1), 3.0), True)]
    assert b"cuda:0" in path.read_bytes()


@pytest.mark.parametrize("batch_norm", [False, True])
def test_torchs_buckets_are_chosen_before_the_first_step(batch_norm):
    def packings(batch_norm):
        import torch
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
            allreduce_hook,
        )
        from torch.nn.parallel import DistributedDataParallel

        from course.lab.trainer.keeper import settle
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        if batch_norm:
            net.append(torch.nn.BatchNorm1d(2))
        model, seen = DistributedDataParallel(net), []
        names = {p: name for name, p in net.named_parameters()}

        def note(state, bucket):
            seen.append([names[p] for p in bucket.parameters()])
            return allreduce_hook(None, bucket)
        model.register_comm_hook(None, note)
        before = {name: t.clone() for name, t in net.state_dict().items()}
        X = torch.rand(4, 3)
        settle(model, [(X, None)])
        same = all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
        none = all(p.grad is None for p in net.parameters())
        del seen[:]
        for _ in range(2):
            model(X).sum().backward()
        return same, none, seen[0] == seen[1], seen[0][0] != "0.weight"
    assert run_ranks(packings, 2, batch_norm, timeout=SOON) == [(True,) * 4] * 2
