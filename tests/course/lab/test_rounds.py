"""Programs that run on all ranks, step by step: what arrives, is counted, is refused."""

from itertools import repeat

import pytest
import torch

from course.lab.rounds import RoundsError, run_rounds


def ranks(world_size):
    """Return a tensor for each rank: [1, 2], [10, 20], [100, 200] ..."""
    numbers = torch.tensor([1, 2], dtype=torch.float64)
    return [numbers * 10**rank for rank in range(world_size)]


def plain(value):
    """Return tensors, in lists too, as numbers."""
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def saying(wishes):
    """Return a program that yields what it wishes, one a step, and returns what arrived."""

    def program(rank, world_size, tensor):
        arrived = []
        for wish in wishes(rank, tensor):
            arrived.append((yield wish))
        return arrived

    return program


def one_by_one(rank, world_size, tensor):
    """Add everything up on rank 0, a rank a step."""
    for peer in range(1, world_size):
        arrived = yield (0, tensor) if rank == peer else None
        if arrived is not None:
            tensor.add_(arrived)


# what is delivered


def overwrite(rank, world_size, tensor):
    arrived = yield 1 - rank, tensor
    tensor.fill_(-1)
    yield
    return arrived


def twice(rank, world_size, tensor):
    yield from one_by_one(rank, world_size, tensor)
    yield from one_by_one(rank, world_size, tensor)


@pytest.mark.parametrize(
    "program, returned, tensors, sent",
    [
        (
            saying(lambda me, t: [(1 - me, [])]),  # an empty message is a message
            [[[]], [[]]],
            [[1, 2], [10, 20]],
            [0, 0],
        ),
        (
            saying(lambda me, t: [(1 - me, [t[:1], t.view(1, 2)])]),
            [[[[10], [[10, 20]]]], [[[1], [[1, 2]]]]],
            [[1, 2], [10, 20]],
            [3, 3],
        ),
        (overwrite, [[10, 20], [1, 2]], [[-1, -1]] * 2, [2, 2]),
        (twice, [None] * 2, [[21, 42], [10, 20]], [0, 4]),
    ],
)
def test_what_is_sent_arrives_as_it_was_when_the_step_began(
    program, returned, tensors, sent
):
    result = run_rounds(program, ranks(2))
    assert plain(result["returned"]) == returned and plain(result["tensors"]) == tensors
    assert result["sent"] == sent and result["steps"] == (2 if program is twice else 1)


# a rank's own tensor is its own


def test_the_tensors_handed_in_stay_as_they_are():
    def program(rank, world_size, params):
        params[0].zero_()
        params[1] = params[1] + 1  # which writes nothing
        yield

    tensors = [[t.requires_grad_(), t] for t in ranks(2)]
    result = run_rounds(program, tensors)["tensors"]
    assert plain(tensors) == [[[1, 2]] * 2, [[10, 20]] * 2]
    assert plain(result) == [[[0, 0], [1, 2]], [[0, 0], [10, 20]]]
    assert not any(t.requires_grad for own in result for t in own)


# what is counted


def test_steps_and_numbers_out_of_each_rank_are_counted():
    result = run_rounds(one_by_one, ranks(3))
    assert result["steps"] == 2 and result["sent"] == [0, 2, 2]
    assert result["messages"] == [[1, 1, 0, 2], [2, 2, 0, 2]]
    assert plain(result["tensors"][0]) == [111, 222]


# what is refused

SENDER = "step 2: rank 1 "


@pytest.mark.parametrize(
    "wish, message, kind",
    [
        (
            lambda t: t,
            "yields a Tensor; yield nothing, or a pair: peer, message",
            "no message",
        ),
        (lambda t: [0, t], "yields a list", "no message"),
        (lambda t: (0, t, t), "yields a tuple", "no message"),
        (lambda t: (t, 0), "yields a tuple", "no message"),
        (lambda t: one_by_one(0, 1, t), "yields a generator", "a program"),
        (lambda t: (3, t), "sends to rank 3; there are ranks 0 to 2", "no such rank"),
        (lambda t: (-1, t), "sends to rank -1; there are ranks", "no such rank"),
        (lambda t: (1, t), "sends to itself", "itself"),
        (
            lambda t: (0, [t, 1.5]),
            "sends a float; a message is a tensor or a list of tensors",
            "no message",
        ),
        (
            lambda t: (0, t.float()),
            "sends torch.float32, but holds torch.float64",
            "no message",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused(wish, message, kind):
    program = saying(lambda me, t: [None, wish(t) if me == 1 else None])
    with pytest.raises(RoundsError, match=SENDER + message) as caught:
        run_rounds(program, ranks(3))
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    "program, message, kind",
    [
        (
            saying(lambda me, t: [None, (0, t) if me else None]),
            "step 2: ranks 1 and 2 both send to rank 0; at most one message can arrive at a "
            "rank in a",
            "at once",
        ),
        (
            saying(lambda me, t: [None, (0, t)] if me == 1 else []),
            SENDER + "sends to rank 0, which has returned already",
            "has returned",
        ),
        (
            saying(lambda me, t: repeat(None) if me == 2 else []),
            "rank 2 is still at work after 1000 steps",
            "endless",
        ),
        (
            lambda rank, world_size, tensor: [tensor.zero_()].clear(),
            "rank 0's program is no generator, it returned a NoneType: it needs a yield",
            "no yield",
        ),
    ],
)
def test_what_ranks_cannot_do_together_is_refused(program, message, kind):
    tensors = ranks(3)
    with pytest.raises(RoundsError, match=message) as caught:
        run_rounds(program, tensors)
    assert caught.value.kind == kind and plain(tensors) == plain(ranks(3))


def test_a_programs_own_error_is_passed_on_and_says_where():
    def program(rank, world_size, tensor):
        arrived = yield
        tensor.add_(arrived if rank == 1 else 0)  # nothing arrived

    with pytest.raises(TypeError, match="add_") as caught:
        run_rounds(program, ranks(3))
    assert caught.value.__notes__ == ["(on rank 1 of 3, after step 1)"]
