"""notebooks/programs/one_rank_alone.py: how runs end, who hung, who met whom, the cures."""

import time

import matplotlib.pyplot as plt
import pytest
import torch
import torch.distributed as dist
from programs import one_rank_alone as program  # notebooks/programs

from manual_dp.ranks import RankError


@pytest.mark.parametrize("cure", program.CURES)
def test_with_each_cure_all_ranks_end_with_the_same_weights(cure):
    _, (zero, one), error = program.run(program.mended, 2, cure)
    assert error is None
    assert zero == one
    assert 0 < sum(zero) < 1


def test_of_each_rank_the_last_step_is_told(capsys):
    def steps():
        for step in range(3 + dist.get_rank()):
            print("step", step)
        print("at the end")
        return 7

    program.told("a label", steps)
    assert capsys.readouterr().out == (
        "a label\n"
        "    rank 0: at the end\n"
        "    rank 1: at the end\n"
        "    rank 0 began step 2, rank 1 began step 3\n"
        "    7, 7\n"
    )


@pytest.mark.parametrize(
    "error, said",
    [
        (
            RankError("rank 1 was killed by SIGABRT", kind="killed"),
            "gloo ended a rank",
        ),
        (
            RankError(
                "rank 0 was killed by SIGABRT",
                kind="killed",
                details="312 vs 4. Received data size is wrong. Is it your code?\nAborted",
            ),
            "gloo ended a rank: Received data size is wrong. Is it your code?",
        ),
        (
            RankError("time was up after 4 s and each was waiting: rank 0 in recv"),
            "all wait: rank 0 in recv",
        ),
        (
            RankError("rank 1 raised RuntimeError: No  gradient. You can do\nthat"),
            "rank 1 raised RuntimeError: No gradient",
        ),
    ],
)
def test_an_end_is_a_sentence(error, said):
    assert program.how(error) == said


def test_places_name_the_call_in_which_ranks_wait_and_the_line_of_the_late_one(capsys):
    def late():
        if dist.get_rank() == 1:
            time.sleep(60)
        dist.all_reduce(torch.ones(1))

    program.places(late, 3, timeout=4)
    first = late.__code__.co_firstlineno
    waits = f"all_reduce, called in late, line {first + 3}"
    assert capsys.readouterr().out.splitlines() == [
        f"rank 0: {waits}",
        f"rank 1: late, line {first + 2}",
        f"rank 2: {waits}",
    ]


def test_the_first_call_that_differs_is_the_one_that_a_rank_made_alone(capsys):
    def train():
        net = torch.nn.Linear(2, 1, bias=False)
        model = torch.nn.parallel.DistributedDataParallel(net)
        try:
            for step in range(4):
                if step == 2 and dist.get_rank() == 0:
                    dist.all_reduce(torch.ones(2))
                model(torch.ones(1, 2)).sum().backward()
        except RuntimeError:  # rank 1 has gone
            pass
        return program.calls("train")

    program.compare(train, start=0)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["call", "rank", "0", "rank", "1"]
    pairs = [(line[6:32].strip(), line[34:]) for line in lines]
    differ = [i for i, (zero, one) in enumerate(pairs) if zero != one]
    line = train.__code__.co_firstlineno + 6
    assert pairs[differ[0]] == (
        f"all_reduce of 2, line {line}",
        "all_reduce of 2, backward",
    )
    assert differ[1:] == [len(pairs) - 1]
    assert pairs[-1] == ("all_reduce of 2, backward", "-")


# Fourteen launches, some of which wait for a second: nothing else sees what DETAIL sees.
def test_detail_sees_four_of_seven_mistakes(capsys):
    program.mistakes()
    head, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, [head, *lines])) <= 78
    assert [(line[27:47].strip(), line[47:]) for line in lines] == [
        ("error: parameter 1", "error: b.weight"),
        ("waits", "error: 2 vs 3"),
        ("a rank is killed", "error: float vs long"),
        ("waits", "error: broadcast vs allreduce"),
        ("waits", "waits"),
        ("no error: 51", "no error: 51"),
        ("no error: 51", "no error: 51"),
    ]


def test_messages_that_do_not_belong_together_are_red(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda: None)
    program.draw(10)
    ax = plt.gca()
    try:
        assert [line.get_color() == "#c0392b" for line in ax.lines] == [False] + [
            True
        ] * 4
        assert [text.get_text() for text in ax.texts][-2:] == ["step 9", "waits"]
    finally:
        plt.close("all")
