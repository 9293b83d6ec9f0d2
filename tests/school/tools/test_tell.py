import torch

from manual_dp.school.tools.tell import about, unequal

ONE = torch.tensor([1.0, 2.0])


def test_tensors_are_compared_with_lists_also_in_hints():
    say = about("two ranks")
    assert say("the sum", [[1.0, 2.0]] * 2, [ONE] * 2) is None
    assert say("the sum", [2.0, 4.0], ONE, [("halved", ONE / 2), ("doubled", 2 * ONE)]
               ) == ("given   two ranks; the sum\ngot     [2, 4]\nwanted  [1, 2]\n"
                     "perhaps doubled")


def test_a_hint_can_be_a_truth_value():
    said = about("a")("b", 1, 2, [("not this", False), ("this", True)])
    assert said.endswith("perhaps this")


def test_a_rank_that_differs_from_the_first_is_noticed():
    assert not unequal([[1.0], [1.0]]) and not unequal([[1.0]])
    assert unequal([[1.0], [1.0], [1.1]]) and unequal([[1.0], None])
