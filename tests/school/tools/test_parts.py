"""The course's own parts in place of a learner's, for as long as a check runs."""

import functools

import pytest

from manual_dp.school.tools.parts import placed


def cell(source, space, file):
    exec(compile(source, file, "exec"), space)


@pytest.fixture
def space():
    names = {"functools": functools}
    cell("def part():\n    return 'other cell'", names, "<cell 1>")
    return names


ANSWERS = {"a function": "def answer():\n    return part()",
           "decorated": "def run(f):\n    return functools.wraps(f)(lambda *a: f(*a))\n"
                        "@run\ndef answer():\n    return part()",
           "cached": "@functools.lru_cache\ndef answer():\n    return part()",
           "an object": "class A:\n    def __call__(self):\n        return part()\nanswer = A()"}


@pytest.mark.parametrize("form", ANSWERS)
def test_an_answer_finds_the_courses_part_and_then_the_learners(space, form):
    cell(ANSWERS[form], space, "<cell 2>")
    before = space["part"]
    with placed({"part": lambda: "the course's"}, [space["answer"]]):
        found = space["answer"]()
    assert found == "the course's" and space["part"] is before


def test_a_part_of_the_same_cell_stays(space):
    cell("def part():\n    return 'same cell'\ndef answer():\n    return part()", space,
         "<cell 2>")
    with placed({"part": lambda: "the course's"}, [space["answer"]]):
        assert space["answer"]() == "same cell"


def test_a_part_that_was_not_there_is_gone_afterwards(space):
    del space["part"]
    cell("class Answer:\n    def call(self):\n        return part()", space, "<cell 2>")
    with pytest.raises(KeyError), placed({"part": lambda: "the course's"},
                                         [space["Answer"]]):
        assert space["Answer"]().call() == "the course's"
        raise KeyError
    assert "part" not in space


def test_what_has_no_names_of_its_own_is_left_alone():
    with placed({"part": print}, [len, 3]):
        pass
