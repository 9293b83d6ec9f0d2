import pytest
import torch

from course.school.rounds import RoundsError, run_rounds
from manual_dp import ring_allreduce
from manual_dp.lab.cost import traffic

WORLD_SIZES = [1, 2, 3, 4, 7]


def ranks(world_size, numbers=4):
    """Return float64 tensors: element j of rank r is (j + 1) * 10^r."""
    return [torch.arange(1.0, numbers + 1, dtype=torch.float64) * 10**rank
            for rank in range(world_size)]


def to_the_right(rank, world_size, tensor):
    """Send the tensor to the next rank; return what arrived."""
    arrived = None
    if world_size > 1:
        arrived = yield (rank + 1) % world_size, tensor
    return arrived


def silent(rank, world_size, tensor):
    return rank
    yield


def one_by_one(rank, world_size, tensor):
    """Add everything up on rank 0, a rank a step."""
    for peer in range(1, world_size):
        if rank == peer:
            yield 0, tensor
        else:
            arrived = yield
            if arrived is not None:
                tensor.add_(arrived)


# what is delivered

@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_what_is_sent_to_a_rank_arrives_in_the_same_step(world_size):
    result = run_rounds(to_the_right, ranks(world_size))
    for rank, arrived in enumerate(result["returned"]):
        if world_size > 1:
            assert torch.equal(arrived, ranks(world_size)[rank - 1])



def test_nothing_arrives_where_nothing_was_sent():
    def program(rank, world_size, tensor):
        first = yield (1, tensor) if rank == 0 else None
        second = yield
        return first, second
    (first, second), (other, last) = run_rounds(program, ranks(2))["returned"]
    assert (first, second, last) == (None, None, None)
    assert other.tolist() == [1, 2, 3, 4]


def test_a_rank_can_send_and_receive_in_one_step():
    def swap(rank, world_size, tensor):
        arrived = yield 1 - rank, tensor
        tensor.copy_(arrived)
    assert [t.tolist() for t in run_rounds(swap, ranks(2, 2))["tensors"]] == [
        [10, 20], [1, 2]]


def test_a_copy_is_delivered_of_what_was_there_when_the_step_began():
    def program(rank, world_size, tensor):
        arrived = yield 1 - rank, tensor
        tensor.fill_(-1)
        yield
        return arrived.tolist()
    result = run_rounds(program, ranks(2, 2))
    assert result["returned"] == [[10, 20], [1, 2]]
    assert [t.tolist() for t in result["tensors"]] == [[-1, -1]] * 2


def test_a_message_may_be_a_list_of_tensors():
    def program(rank, world_size, params):
        arrived = yield 1 - rank, params
        for p, addend in zip(params, arrived):
            p.add_(addend)
    params = [[torch.ones(2) * 10**rank, torch.ones(1, 3) * 2 * 10**rank]
              for rank in range(2)]
    result = run_rounds(program, params)
    assert [[p.tolist() for p in own] for own in result["tensors"]] == [
        [[11, 11], [[22, 22, 22]]]] * 2
    assert result["sent"] == [5, 5]


def test_an_empty_message_is_a_message():
    def program(rank, world_size, tensor):
        return (yield 1 - rank, [])
    result = run_rounds(program, ranks(2))
    assert result["returned"] == [[], []]
    assert (result["steps"], result["sent"]) == (1, [0, 0])


def test_a_program_can_run_another_from_within():
    def twice(rank, world_size, tensor):
        yield from one_by_one(rank, world_size, tensor)
        yield from one_by_one(rank, world_size, tensor)
    assert run_rounds(twice, ranks(3, 1))["tensors"][0].item() == 111 + 110
    assert run_rounds(twice, ranks(3, 1))["steps"] == 4


# a rank's own tensor is its own

@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_tensors_handed_in_stay_as_they_are(world_size):
    def program(rank, world_size, tensor):
        tensor.zero_()
        yield
    tensors = ranks(world_size)
    result = run_rounds(program, tensors)
    assert all(torch.equal(t, old) for t, old in zip(tensors, ranks(world_size)))
    assert all(t.abs().sum() == 0 for t in result["tensors"])



def test_putting_another_tensor_into_the_list_writes_nothing():
    def program(rank, world_size, params):
        params[0] = params[0] + 1
        yield
    assert run_rounds(program, [[torch.ones(1)]])["tensors"][0][0].item() == 1


def test_what_wants_a_gradient_is_handed_over_as_numbers():
    tensors = [torch.ones(2, requires_grad=True) for _ in range(2)]
    result = run_rounds(one_by_one, tensors)
    assert [t.tolist() for t in result["tensors"]] == [[2, 2], [1, 1]]
    assert not any(t.requires_grad for t in result["tensors"])


# what is counted

@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_steps_and_numbers_out_of_each_rank_are_counted(world_size):
    result = run_rounds(one_by_one, ranks(world_size, 5))
    assert result["steps"] == world_size - 1
    assert result["sent"] == [0] + [5] * (world_size - 1)
    assert result["messages"] == [[step, step, 0, 5] for step in range(1, world_size)]
    assert result["tensors"][0][0] == int("1" * world_size)


def test_a_step_in_which_nothing_is_sent_is_not_counted():
    def program(rank, world_size, tensor):
        yield
        yield
        yield from to_the_right(rank, world_size, tensor)
        yield
    result = run_rounds(program, ranks(3))
    assert result["steps"] == 1
    assert [step for step, *_ in result["messages"]] == [3, 3, 3]



@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_ring_is_counted_as_the_meter_of_lesson_3_counts_it(world_size):
    def ring(rank, world_size, tensor):
        chunks = tensor.tensor_split(world_size)
        right = (rank + 1) % world_size
        for step in range(world_size - 1):
            arrived = yield right, chunks[(rank - 1 - step) % world_size]
            chunks[(rank - 2 - step) % world_size].add_(arrived)
        for step in range(world_size - 1):
            arrived = yield right, chunks[(rank - step) % world_size]
            chunks[(rank - 1 - step) % world_size].copy_(arrived)
    result = run_rounds(ring, ranks(world_size, 10))
    tensors = ranks(world_size, 10)
    metered = traffic(ring_allreduce, tensors)
    assert result["sent"] == [sum(row) // 8 for row in metered]
    assert all(torch.equal(t, other) for t, other in zip(result["tensors"], tensors))


# what is refused

def only(rank, wish):
    """Return a program in which one rank of three yields `wish` in the second step."""
    def program(me, world_size, tensor):
        yield
        yield wish(tensor) if me == rank else None
    return program


@pytest.mark.parametrize("wish, message", [
    (lambda tensor: tensor, r"step 2: rank 1 yields a Tensor; yield nothing, or a "
                            r"pair: peer, message"),
    (lambda tensor: [0, tensor], "rank 1 yields a list"),
    (lambda tensor: (0, tensor, tensor), "rank 1 yields a tuple"),
    (lambda tensor: (tensor, 0), "rank 1 yields a tuple"),
    (lambda tensor: (3, tensor), "step 2: rank 1 sends to rank 3; there are ranks 0 "
                                 "to 2"),
    (lambda tensor: (-1, tensor), "step 2: rank 1 sends to rank -1; there are ranks"),
    (lambda tensor: (1, tensor), "step 2: rank 1 sends to itself"),
    (lambda tensor: (0, None), "step 2: rank 1 sends a NoneType; a message is a tensor "
                               "or a list of tensors"),
    (lambda tensor: (0, 1.5), "rank 1 sends a float; a message is a tensor"),
    (lambda tensor: (0, [tensor, 1.5]), "rank 1 sends a float; a message is a tensor"),
    (lambda tensor: (0, tensor.float()), "step 2: rank 1 sends torch.float32, but "
                                         "holds torch.float64"),
    (lambda tensor: (0, torch.complex(tensor, tensor)), "rank 1 sends "
                                                        "torch.complex128, but holds"),
])
def test_what_cannot_be_sent_is_refused(wish, message):
    with pytest.raises(RoundsError, match=message):
        run_rounds(only(1, wish), ranks(3))



@pytest.mark.parametrize("world_size", [3, 4, 7])
def test_two_messages_for_one_rank_in_a_step_are_refused(world_size):
    def program(rank, world_size, tensor):
        yield
        yield (0, tensor) if rank > 0 else None
    with pytest.raises(ValueError, match="step 2: ranks 1 and 2 both send to rank 0; at "
                                         "most one message can arrive at a rank in a") as caught:
        run_rounds(program, ranks(world_size))
    assert caught.value.kind == "at once"


def test_a_rank_that_has_returned_receives_nothing():
    def program(rank, world_size, tensor):
        if rank == 1:
            yield
            yield 0, tensor
    with pytest.raises(RoundsError, match="step 2: rank 1 sends to rank 0, which has "
                                          "returned already") as caught:
        run_rounds(program, ranks(2))
    assert caught.value.kind == "has returned"


def test_a_program_that_does_not_end_is_stopped():
    def program(rank, world_size, tensor):
        while rank == 2:
            yield
    with pytest.raises(RoundsError, match="rank 2 is still at work after 1000 steps") as caught:
        run_rounds(program, ranks(3))
    assert caught.value.kind == "endless"


def test_as_many_steps_as_the_limit_are_allowed():
    def program(rank, world_size, tensor):
        for _ in range(5):
            yield
    assert run_rounds(program, ranks(1), limit=5)["steps"] == 0
    with pytest.raises(RoundsError, match="still at work after 4 steps"):
        run_rounds(program, ranks(1), limit=4)


def test_a_function_without_yield_is_no_program():
    def program(rank, world_size, tensor):
        tensor.zero_()
    tensors = ranks(2)
    with pytest.raises(RoundsError, match="rank 0's program is no generator, it returned "
                                          "a NoneType: it needs a yield") as caught:
        run_rounds(program, tensors)
    assert caught.value.kind == "no yield"
    assert torch.equal(tensors[0], ranks(2)[0])


@pytest.mark.parametrize("tensors, error, message", [
    ([], ValueError, "need a tensor for each rank, got an empty list"),
    (torch.ones(2, 2), TypeError, "need a list with the tensors of each rank, got "
                                  "Tensor"),
    ([torch.ones(2), 1.5], TypeError, "rank 1 holds a float, not a tensor"),
    ([[torch.ones(2), None]], TypeError, "rank 0 holds a NoneType, not a tensor"),
])
def test_what_is_no_list_of_tensors_is_refused(tensors, error, message):
    with pytest.raises(error, match=message):
        run_rounds(silent, tensors)


def test_a_programs_own_error_is_passed_on_and_says_where():
    def program(rank, world_size, tensor):
        arrived = yield
        if rank == 1:
            tensor.add_(arrived)  # nothing arrived
    with pytest.raises(TypeError, match="add_") as caught:
        run_rounds(program, ranks(3))
    assert caught.value.__notes__ == ["(on rank 1 of 3, after step 1)"]
