"""Programs in processes of their own: the same numbers and messages as in one."""

import pytest
import torch

from manual_dp.school.exercise import find
from manual_dp.school.grader.apart import pack, unpack
from manual_dp.school.grader.worker import grade
from tests.support.answers import HINTS, WRONG, cells_of
from tests.support.wrong import begins

# it finds nothing there, which is an error in its own cell
SHARED = "by a list that all ranks share"
MISTAKES = [(name, mistake) for name, wrong in WRONG.items() if name.startswith("ps2/")
            for mistake in wrong if mistake != SHARED]


@pytest.mark.parametrize("name, mistake", MISTAKES)
def test_a_wrong_program_is_told_the_same_as_by_its_check(worker, name, mistake):
    cells = cells_of("ps2") | {name.partition("/")[2]: WRONG[name][mistake]}
    message = grade(worker, find(name), cells)
    assert message.startswith("given ")
    assert begins(message.partition("\nperhaps ")[2], HINTS[name][mistake])


def test_what_ranks_share_in_one_process_they_do_not_share_here(worker):
    cell = WRONG["ps2/reduce_scatter"][SHARED]
    message = grade(worker, find("ps2/reduce_scatter"), {"reduce_scatter": cell})
    assert message.startswith("The answer raised KeyError")


@pytest.mark.parametrize("body, message", [
    ("raise NotImplementedError()\n    yield", "Not written yet"),
    ("yield\n    1 / 0", "ZeroDivisionError: division by zero\nline 3 of <cell "
                         "tree_allreduce>: 1 / 0"),
    ("return 3", "it returned a int: it needs a yield"),
    ("yield 3", "yields a int; yield nothing, or a pair"),
    ("yield tree_allreduce(rank, world_size, tensor)", "yields a generator"),
    ("yield 99, tensor", "sends to rank 99; there are ranks"),
    ("yield rank, tensor", "sends to itself"),
    ("yield (rank + 1) % world_size, 'text'", "sends a str; a message is a tensor"),
    ("yield (rank + 1) % world_size, tensor.float()", "sends torch.float32, but holds"),
    ("import os\n    os._exit(0)\n    yield", "EOFError"),
    ("while True: yield", "is still at work after 1000 steps")])
def test_what_a_program_does_wrong_is_said_as_in_one_process(worker, body, message):
    source = f"def tree_allreduce(rank, world_size, tensor):\n    {body}\n"
    said = grade(worker, find("ps2/tree_allreduce"), {"tree_allreduce": source})
    assert message in said


@pytest.mark.parametrize("tensor", [
    torch.rand(3, dtype=torch.float64), torch.rand(2, 3), torch.tensor(7),
    torch.zeros(0, 4), torch.tensor([float("nan"), float("inf"), -0.0]),
    torch.tensor([True, False])])
def test_a_tensor_arrives_as_it_was_sent(tensor):
    [arrived] = unpack(pack([tensor]))
    assert arrived.dtype == tensor.dtype and arrived.shape == tensor.shape
    assert torch.equal(arrived.nan_to_num(3.0), tensor.nan_to_num(3.0))
    assert arrived.data_ptr() != tensor.data_ptr() or not tensor.numel()
