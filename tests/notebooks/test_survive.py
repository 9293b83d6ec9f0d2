"""programs/survive.py, night.py, no_meeting.py: what lesson 20 and errors.md rest on.

The lesson itself runs the night: ranks killed, a host lost, another that comes.
"""

import os
import re
import signal
from pathlib import Path
from unittest import mock

import matplotlib.pyplot as plt
import pytest
import torch
import torch.distributed as dist
from programs import night, no_meeting, survive  # notebooks/programs

from course.lab.hosts import on_hosts
from manual_dp.ranks import run_ranks


def some_rows():
    generator = torch.Generator().manual_seed(1)
    X = torch.rand(survive.ROWS, 64, generator=generator, dtype=torch.float64)
    return X, torch.arange(survive.ROWS) % 10


def trained(path, epochs, tell=None):
    """Train on this rank; rank `tell` is sent SIGTERM when it reaches its second step."""
    survive.digits = some_rows  # to import scikit-learn takes long
    os.environ |= {"GROUP_RANK": "0", "LOCAL_RANK": str(dist.get_rank())}
    if dist.get_rank() == tell:
        step = torch.optim.SGD.step

        def told(optimizer):
            if not told.steps:
                os.kill(os.getpid(), signal.SIGTERM)
            told.steps += 1
            return step(optimizer)

        told.steps = 0
        torch.optim.SGD.step = told
    try:
        survive.train(path, epochs, every=5)
    except SystemExit as end:
        return end.code
    return 0


def apart(path, epochs):
    net = torch.load(path)["net"]
    with mock.patch.object(survive, "digits", some_rows):
        alone = survive.alone(epochs)
    return max(
        (net[name] - weight).abs().max().item() for name, weight in alone.items()
    )


# Some seconds, five launches: only here does a signal come between two saves for certain.
def test_a_run_that_is_told_to_end_saves_and_goes_on_and_no_row_is_read_again(tmp_path):
    path = str(tmp_path / "run.pt")
    assert run_ranks(trained, 2, path, 2, 1) == [143, 143]
    state = torch.load(path)
    assert (state["epoch"], state["ranks"]) == (0, 2)
    assert 0 < state["seen"] < 5 * survive.BATCH  # before the first save of its own
    for ranks in (3, 1):
        assert run_ranks(trained, ranks, path, 2, 0)[0] == 143
    for _ in range(2):  # then once more, after the last step of an epoch
        assert run_ranks(trained, 2, path, 2) == [0, 0]
        assert torch.load(path)["seen"] == survive.ROWS
        assert apart(path, 2) < 1e-12


def test_both_hosts_are_typed_the_same_but_for_their_place():
    one, other = (night.typed(host, 2).split() for host in (0, 1))
    assert [pair for pair in zip(one, other) if pair[0] != pair[1]] == [
        ("127.0.0.1", "127.0.0.2"),
        (one[one.index("--rdzv-conf") + 1], other[other.index("--rdzv-conf") + 1]),
    ]
    assert len(one) == len(other)


def a_night():
    """Return a night of two starts: ranks 0 and 1 on two hosts, then rank 0 alone."""
    return {
        "lives": {(0, 7): [1, 3], (1, 8): [1.5, 3], (0, 9): [5, 6]},
        "moments": [(3.5, "host 1 is lost")],
        "ports": [[1, 2], [0, 1]],
        "said": [
            (0, "0 0 0 2 0 0 7\nepoch 0: loss 2.0\n0 0 0 1 1 96 9\n"),
            (1, "1 0 1 2 0 0 8\n"),
        ],
    }


def test_ranks_that_printed_are_sorted_into_starts():
    first, second = night.starts(a_night())
    assert [(one["typed"], one["host"], one["rank"]) for one in first] == [
        (0, 0, 0),
        (1, 1, 1),
    ]
    assert [(one["ranks"], one["epoch"], one["seen"]) for one in second] == [(1, 1, 96)]
    assert night.rows(second[0]) == survive.ROWS + 96


def test_a_bar_is_as_long_as_its_rank_lived():
    night.draw(a_night())
    try:
        bars = [(bar.get_x(), bar.get_width()) for bar in plt.gca().patches]
        assert sorted(bars) == [(0, 2), (0.5, 1.5), (4, 1)]
    finally:
        plt.close("all")


# Five torchruns of 2 seconds: the words in errors.md are torchrun's.
def test_torchruns_that_do_not_meet_say_what_the_page_of_errors_says():
    found = on_hosts(no_meeting.mistakes)
    assert found.pop("the first torchrun") == "waits"
    page = Path(no_meeting.__file__).parents[1] / "clusters" / "errors.md"
    rows = page.read_text().partition("## Made to happen")[2].partition("\n\nThese")[0]
    said = re.findall(r"^\| `(\w+Error(?:: [\w ]+)?)`", rows, re.M)
    assert sorted(found.values()) == sorted(said)


@pytest.mark.parametrize(
    "text, error", [("", "no error"), ("x\nOSError: a b\n", "OSError: a b")]
)
def test_the_first_error_is_named(text, error):
    assert no_meeting.first_error(text) == error
