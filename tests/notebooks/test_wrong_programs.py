"""programs/wrong_programs.py: one process takes the step that rank 0 of three takes."""

from functools import partial

import torch
import torch.distributed as dist
from programs.wrong_programs import (
    shares,
    small_blobs,
    small_unet,
    step,
    step_by_shares,
    watched,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import watch
from manual_dp.ranks import run_ranks


def weights_after(take, *args):
    net, (X, y) = small_unet(), small_blobs(10)
    take(net, torch.optim.SGD(net.parameters(), 5e-4), X, y, *args)
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_shares_make_the_step_that_rank_0_of_three_makes():
    programs = shares([4, 4, 2])

    def on_rank():
        return [weights_after(step, program) for program in programs]

    ranks, right = run_ranks(on_rank, 3)[0], None
    for (program, share), after in zip(programs.items(), ranks, strict=True):
        alone = weights_after(partial(step_by_shares, share))
        assert (after - alone).abs().max() < 1e-12, program
        right = alone if program == "right" else right
        assert ((after - right).abs().max() > 1e-5) == (program != "right")


def test_a_watched_function_runs_quietly_and_its_report_comes_back(capfd):
    def train(by):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        heard = watch(model, optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            X = torch.rand(3, 2)[by * dist.get_rank()].unsqueeze(0)
            model(X).sum().backward()
            optimizer.step()
        return heard

    assert [found.code for found in watched(train, 0).findings] == ["rows-same"]
    assert watched(train, 1).findings == []
    assert capfd.readouterr().out == ""
