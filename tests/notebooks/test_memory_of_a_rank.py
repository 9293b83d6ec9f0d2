"""notebooks/programs/memory_of_a_rank.py: what a rank keeps, and sends."""

from functools import partial

import matplotlib.pyplot as plt
import pytest
import torch
import torch.distributed as dist
from programs import memory_of_a_rank as memory  # notebooks/programs
from torch import nn

from manual_dp.ranks import run_ranks
from manual_dp.ranks.collectives import ring_allreduce


def strip(sizes):
    """Return what a strip is like, and how many numbers of the tensors a chunk covers."""
    tensors = [1 + torch.rand(*size) for size in sizes]
    before = [t.clone() for t in tensors]
    flat = memory.flatten(tensors)
    same = all(map(torch.equal, tensors, before))
    memory.chunks(flat)[0].zero_()
    return same, len(flat), sum(int((t == 0).sum()) for t in tensors)


def strips(many):
    return [strip(sizes) for sizes in many]


@pytest.mark.parametrize(("ranks", "lengths"), [(2, [14, 14, 16]), (3, [15] * 3)])
def test_a_strip_holds_the_numbers_and_its_chunks_are_their_memory(ranks, lengths):
    found = run_ranks(strips, ranks, [[(3, 4), (last,)] for last in (1, 2, 3)])
    assert found == [[(True, n, n // ranks) for n in lengths]] * ranks


def test_the_meter_forgets_what_is_gone_counts_a_view_once_and_leaves_meta_out():
    levels = []
    with memory.metered(levels):
        a = torch.zeros(1000)
        part = a[:10]
        torch.empty(50, device="meta")
        b = part + 1
        del a, part
        b * 2  # for a moment, 40 bytes more
    assert levels == [4000, 4000, 4000, 4040, 80]


def test_the_meter_stops_above_its_limit():
    with (
        pytest.raises(MemoryError, match="out of memory"),
        memory.metered([], limit=90),
    ):
        _ = torch.zeros(10), torch.zeros(20)


def test_a_stage_that_is_ddp_is_right_keeps_sixteen_bytes_and_sends_two_passes(capsys):
    levels, phases = memory.report(memory.Stage0, 2)
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == (
        "keeps 16.00 bytes a weight: weights 4.00, gradients 4.00, Adam 8.00".split()
    )
    assert "sends 4.00;" in second
    assert float(second.split()[-4]) < 1e-12
    assert list(phases) == ["forward", "backward", "update"]
    assert levels[0] == pytest.approx(12, abs=0.1)  # no gradients yet


class Sum(memory.Stage0):  # it forgets to divide
    def step(self):
        for p in self.params:
            ring_allreduce(p.grad)
        self.optimizer.step()


def test_a_stage_that_is_wrong_is_seen():
    ranks = run_ranks(memory.train, 2, Sum, 2 * memory.ROWS)
    assert memory.apart(ranks) > 1e-5


class Whole:  # a layer that keeps everything, as `by_layer` wants it
    def __init__(self, layer):
        self.params = [*layer.parameters()]
        self.flat = memory.flatten(self.params)
        self.shard = nn.Parameter(self.flat)
        self.grads = []
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.ready)

    def ready(self, _):
        if all(p.grad is not None for p in self.params):
            self.shard.grad = memory.flatten([p.grad for p in self.params])
            ring_allreduce(self.shard.grad)
            self.shard.grad /= dist.get_world_size()

    def updated(self):
        pass


def test_a_stage_by_layers_takes_the_steps_of_one_device():
    stage = memory.by_layer(Whole)
    assert memory.apart(run_ranks(memory.train, 2, stage, 2 * memory.ROWS)) < 1e-12


def test_the_highest_is_what_is_there_for_a_moment(capsys):
    memory.highest(partial(memory.stack, torch.float64), 2)
    assert (
        capsys.readouterr().out == "8.50 bytes a weight at the peak, 8.00 at the end\n"
    )


def test_four_copies_are_too_few_whatever_the_number_of_ranks(capsys, monkeypatch):
    monkeypatch.setattr(plt, "show", lambda: None)
    memory.out_of_memory([1, 3])
    memory.draw_strip(3)
    plt.close("all")
    assert capsys.readouterr().out == "".join(
        f"out of memory on {n}, in Adam's step, at 4.0 copies of the weights\n"
        for n in ("1 rank", "3 ranks")
    )
