"""Titles: every exercise and question of the course has its own."""

import pytest

from manual_dp.school.exercise import exercises, questions
from manual_dp.school.grader.titles import titles
from tests.support.answers import READY


@pytest.mark.parametrize("name", READY)
def test_every_exercise_and_question_has_a_title_of_its_own_and_a_task(name):
    found = titles(name)
    assert set(found) == {*exercises(name), *(f"{name}/{q}" for q in questions(name))}
    assert len({title for title, _ in found.values()}) == len(found)
    for title, task in found.values():
        assert title.startswith(f"{name.removeprefix('ps')}.") and len(task) > 40


def test_titles_are_in_the_words_of_the_notebook():
    title, task = titles("ps1")["ps1/sgd"]
    assert title == "1.4 A step" and "**Goal.** A replica moves down" in task


def test_a_set_that_there_is_not_has_none():
    assert titles("ps99") == {}
