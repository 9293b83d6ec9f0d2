"""notebooks/programs/memory_of_a_step.py: who is alive during a step of training."""

import matplotlib.pyplot as plt
import pytest
import torch
from programs import memory_of_a_step as memory  # notebooks/programs
from torch import nn

MB = 1_000_000


def four_lines():
    a = torch.zeros(1000)  # 1,000 numbers of 4 bytes
    b = a[:10]
    c = b + 1
    del a, c
    return b * 2


def test_the_meter_counts_memory_that_is_alive_and_that_of_a_view_once():
    with memory.Record() as record:
        four_lines()
    assert record.levels == [4000, 4000, 4040, 4040]
    assert {name: size for name, size in record.rows[-1].items() if size} == {
        "zeros": 4000,
        "mul": 40,
    }
    assert (record.peak, record.when) == (4040, "forward")


def test_what_is_smaller_has_one_name():
    with memory.Record(least=100) as record:
        four_lines()
    assert record.rows[-1] == {"zeros": 4000, memory.SMALL: 40}


@pytest.fixture
def record():
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 10))
    return memory.watch(net, memory.usual, *memory.minibatch(1000, 8))


def test_a_step_has_three_phases_and_knows_weights_and_the_state_of_adam(record):
    assert list(record.marks) == ["forward", "backward", "update"]
    assert 0 < record.marks["backward"] < record.marks["update"] < len(record.rows)
    numbers = 8 * 4 + 4 + 4 * 10 + 10
    state = 2 * 4 * numbers + 4 * 4  # and a step counter for each of four weights
    assert {row[memory.FIXED] for row in record.rows} == {4 * numbers + state}
    assert record.when == "backward"


def test_forward_keeps_what_backward_asks_for(record):
    images, hidden, scores = 8 * 4000, 4 * 4000, 10 * 4000
    labels = 8000
    kept = images + labels + hidden + scores  # in place of these, their log softmax
    assert record.after_forward == pytest.approx(kept, abs=100)


def test_the_peak_is_a_fixed_part_and_a_part_of_each_row():
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 10))
    fixed, each = memory.line(net, 1000, 8)
    peak = memory.watch(net, memory.usual, *memory.minibatch(5000, 8)).peak
    assert fixed + 5000 * each == pytest.approx(peak)


def test_a_unets_activations_grow_with_the_pixels():
    assert memory.an_image(128, 4) == pytest.approx(4 * memory.an_image(64, 4), 1e-3)
    assert memory.an_image(64, 8) == pytest.approx(2 * memory.an_image(64, 4), 0.1)


def test_segments_give_the_same_gradient_for_less_memory():
    batch, grads, peaks = memory.minibatch(320, 16), [], []
    for step in memory.usual, memory.segments(1):
        net = memory.layers(memory.Block, 4, 16)
        peaks.append(memory.watch(net, step, *batch).peak)
        grads.append([p.grad for p in net.parameters()])
    assert peaks[1] < 0.6 * peaks[0]
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other)


def test_thin_layers_are_best_by_the_square_root():
    assert memory.best(memory.Thin, 16, 256, 16)[0] == 4


def test_words_of_a_text_see_one_another_and_no_other_text():
    net = memory.Block(16, words=4)
    X = torch.rand(8, 16, requires_grad=True)
    net(X)[0].sum().backward()
    assert [bool(row.any()) for row in X.grad] == [True] * 4 + [False] * 4


def test_a_backward_costs_two_forwards():
    net, batch = memory.layers(memory.Block, 2, 16), memory.minibatch(32, 16)
    usual = memory.flop(memory.usual, net, *batch)
    assert memory.flop(memory.segments(1), net, *batch) / usual == pytest.approx(11 / 9)


def test_pictures_have_a_slab_for_each_name_and_a_line_for_each_way(
    record, monkeypatch
):
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    memory.draw(record)
    memory.draw_ways({"one": record, "two": record})
    names = {name for row in record.rows for name in row}
    assert len(shown[0].axes[0].collections) == len(names | {memory.SMALL})
    assert len(shown[1].axes[0].lines) == 4  # and a dot each


def test_all_that_the_lesson_says_of_other_sizes_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(memory, "line", lambda *_, **__: (2 * MB, 3 * MB))
    monkeypatch.setattr(memory, "an_image", lambda size: size * MB)
    monkeypatch.setattr(memory, "best", lambda *_: (1, {1: MB}))
    monkeypatch.setattr(memory, "kept", lambda *_: 16.0)
    memory.main(1, [32])
    said = capsys.readouterr().out
    assert "   1 LeNet: 2.000 3.0000\n" in said
    assert "  512: 512 x 512\n" in said
    assert ", in update and update\n" in said
    assert "  12.1 14.8: LeNet, 128 images, gradients on\n" in said
    assert "  0.9 14.8: LeNet, 128 images, gradients off\n" in said
