"""notebooks/programs/one_line.py: a step's bars, how long it sends, which loss is right."""

import matplotlib.pyplot as plt
import pytest
import torch
from programs import one_line  # notebooks/programs
from torch import nn
from torch.nn import functional as F

from course.lab.figures import plot
from manual_dp import init_params, scatter, try_devices
from manual_dp.models.lenet import LeNet
from manual_dp.parallel import DataParallel


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("forward", [0.2, 1, 10])
def test_a_step_ends_when_all_that_it_computes_and_sends_is_over(n, forward):
    steps = {
        2: one_line.dataparallel(n, forward, nccl=True),
        2 * (n - 1) / n: one_line.ring(n, forward),
        2 * (n - 1): one_line.dataparallel(n, forward, nccl=False),
    }
    for ticks, bars in steps.items():
        assert one_line.end(bars) == pytest.approx(3 * forward + ticks)


def test_with_two_devices_the_ring_saves_most():
    # sending takes 2 ticks against 1, and 2 against 1.75
    assert one_line.ratio(2, 1.0) == pytest.approx(5 / 4)
    assert one_line.ratio(8, 1.0) == pytest.approx(5 / 4.75)


def test_bars_of_a_device_do_not_overlap():
    for nccl in True, False:
        bars = one_line.dataparallel(4, 1.0, nccl)
        for device in range(4):
            own = sorted(bar for bar in bars if bar.device == device)
            for one, other in zip(own, own[1:]):
                assert one.start + one.length <= other.start


def test_each_step_is_drawn_with_its_ticks():
    axes = one_line.draw(
        {"a": one_line.ring(4, 1.0), "b": one_line.dataparallel(4, 1.0, False)}
    )
    assert [ax.get_title("left") for ax in axes] == ["a: 4.5 ticks", "b: 9 ticks"]
    words = {text.get_text() for text in axes[1].texts}
    assert words == {"weights", "forward", "backward", "gradients"}
    first = axes[0].patches[0].get_facecolor()
    assert first[:3] == pytest.approx(plt.matplotlib.colors.to_rgb(plot.COLOURS[0]))
    plt.close("all")


def lenet():
    generator = torch.Generator().manual_seed(0)
    return LeNet(init_params("he", generator, torch.float64))


@pytest.mark.parametrize("n", [2, 4, 8])
def test_all_steps_send_equally_many_bytes(n):
    for bars in (
        one_line.dataparallel(n, 0.5, nccl=True),
        one_line.ring(n, 0.5),
        one_line.dataparallel(n, 0.5, nccl=False),
    ):
        total = sum(bar.length for bar in bars if bar.sent)
        assert total == pytest.approx(2 * (n - 1))


def test_sending_takes_as_long_as_the_formulas_say():
    X = torch.rand(8, 1, 28, 28, dtype=torch.float64)
    sending = one_line.sending(lenet(), X, torch.arange(8))
    for n, without, nccl, ring in zip(range(2, 9), *sending.values(), strict=True):
        assert (without, nccl) == (2 * (n - 1), 2)
        assert ring == pytest.approx(2 * (n - 1) / n, rel=1e-4)


class Counter(nn.Module):
    """Count rows in a buffer, a number and a list."""

    def __init__(self):
        super().__init__()
        self.register_buffer("buffer", torch.tensor(0))
        self.number, self.list = 0, []
        self.p = nn.Parameter(torch.ones(1))

    def forward(self, X):
        """Return X, times a parameter."""
        self.buffer += len(X)
        self.number += len(X)
        self.list.append(len(X))
        return X * self.p


def test_torchs_replicas_keep_a_buffer_of_device_0_no_number_and_each_entry_of_a_list():
    module = Counter()
    replicas = one_line.replicas(module, 2)
    outputs = [replica(X) for replica, X in zip(replicas, torch.ones(6, 1).split(3))]
    assert (module.buffer.item(), module.number, module.list) == (3, 0, [3, 3])
    torch.cat(outputs).sum().backward()
    assert module.p.grad == 6


def test_copies_are_those_of_all_weights_from_the_module_itself():
    module, devices = lenet(), try_devices(4)
    X = torch.rand(8, 1, 28, 28, dtype=torch.float64)
    assert one_line.copies(DataParallel(module, devices)(X), module) == 4
    assert one_line.copies(module(X), module) == 0

    def chain():
        outputs, weights = [], dict(module.named_parameters())
        for shard, device in zip(scatter(X, devices), devices):
            weights = {name: p.to(device, copy=True) for name, p in weights.items()}
            outputs.append(torch.func.functional_call(module, weights, (shard,)))
        return torch.cat(outputs)

    assert one_line.copies(chain(), module) == 1


def test_a_sentence_has_its_tokens_and_what_was_filled_in_does_not_count():
    model, words, targets = one_line.sentences(seed=3)
    sums, counts = one_line.losses(model, words, targets)
    assert words.shape == (32, 20) and counts.min() >= 3 and counts.max() <= 20
    whole = F.cross_entropy(
        model(words).transpose(1, 2), targets, ignore_index=one_line.PAD
    )
    assert torch.allclose(sums.sum() / counts.sum(), whole)


def test_only_a_sum_and_a_count_give_the_gradient_of_one_device():
    def join(sums, counts):
        return {
            "mean": torch.stack(
                [s.sum() / c.sum() for s, c in zip(sums, counts)]
            ).mean(),
            "right": sum(s.sum() for s in sums) / sum(c.sum() for c in counts),
        }

    off = one_line.off(join, 4, seeds=3)
    assert len(off["right"]) == 3 and max(off["right"]) < 1e-12
    assert min(off["mean"]) > 0.01
