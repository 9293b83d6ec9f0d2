import ast
import json
import re
from pathlib import Path

import pytest
from torch.nn.parallel import DistributedDataParallel

from course.lab.claims import CLAIMS, PROMISES, Claim, Verdicts

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LESSONS = [("20_claims_tested", CLAIMS), ("21_promises_tested", PROMISES)]
of_each_lesson = pytest.mark.parametrize("lesson, claims", LESSONS,
                                         ids=[name for name, _ in LESSONS])
THREE = [Claim("Book", "page 1", "one and one is two", "Is it 2?"),
         Claim("Blog", "page 2", "two is odd", "Is the rest 1?"),
         Claim("Torch", "a note", "a row is a rank's", "Is it?", "there is one rank")]
YES, NO = (True, "it is"), (False, "it is not")


def cells(lesson, kind):
    nb = json.loads((NOTEBOOKS / f"{lesson}.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in nb["cells"] if cell["cell_type"] == kind]


def code_of(lesson):
    code = "\n".join(cells(lesson, "code"))
    return ast.parse(code.replace("%matplotlib inline", ""))


def calls_of_verdict(lesson):
    """Return (number, run, control) of each call in the lesson, as syntax."""
    return [node.args for node in ast.walk(code_of(lesson)) if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name) and node.func.id == "verdict"]


def test_a_verdict_is_printed_below_its_question_and_both_runs(capsys):
    Verdicts(THREE)(2, (2 % 2 == 1, "2 % 2 is 0"), (3 % 2 == 1, "3 % 2 is 1"))
    assert capsys.readouterr().out.splitlines() == [
        '2. Blog, page 2: "two is odd"', "   Is the rest 1?",
        "   run:     no   2 % 2 is 0", "   control: yes  3 % 2 is 1", "   FALSE"]


def test_a_claim_with_a_condition_is_true_if_and_says_it(capsys):
    Verdicts(THREE)(3, YES, NO)
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "   inside:  yes  it is", "   outside: no   it is not",
        "   TRUE IF there is one rank"]


def test_there_are_three_verdicts_and_they_follow_the_first_run():
    verdict = Verdicts(THREE)
    verdict(1, YES, NO)
    verdict(2, NO, YES)
    verdict(3, YES, NO)
    assert verdict.given == {1: "true", 2: "false", 3: "true if"}
    verdict(3, NO, YES)  # what does not hold inside its condition is false
    assert verdict.given[3] == "false"


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("both", [YES, NO])
def test_two_runs_that_answer_alike_decide_nothing(number, both):
    verdict = Verdicts(THREE)
    with pytest.raises(ValueError, match=f"claim {number}: both runs answer {both[0]}"):
        verdict(number, both, both)
    assert verdict.given == {}


def test_the_table_shows_verdicts_and_conditions_as_they_are_given():
    verdict = Verdicts(THREE)
    assert [line.split()[:2] for line in verdict.table().splitlines()] == [
        ["verdict", "source"], ["1", "?"], ["2", "?"], ["3", "?"]]
    verdict(1, YES, NO)
    verdict(3, YES, NO)
    assert verdict.table().splitlines()[1:] == [
        '  1 true     Book   "one and one is two"',
        '  2 ?        Blog   "two is odd"',
        '  3 true if  Torch  "a row is a rank\'s"',
        "                    if there is one rank"]


@pytest.mark.parametrize("number", [0, 4, -1, "1", 1.0, True, None])
def test_an_unknown_claim_is_refused(number):
    verdict = Verdicts(THREE)
    with pytest.raises(ValueError, match="claims have numbers from 1 to 3, got"):
        verdict(number, YES, NO)
    assert verdict.given == {}


@pytest.mark.parametrize("holds", [1, 0.0, None, "true", []])
def test_an_answer_is_true_or_false(holds):
    verdict = Verdicts(THREE)
    with pytest.raises(TypeError, match="claim 1, run: holds must be True or False"):
        verdict(1, (holds, "so"), NO)
    with pytest.raises(TypeError, match="claim 1, control: holds must be True or"):
        verdict(1, YES, (holds, "so"))
    assert verdict.given == {}


@pytest.mark.parametrize("found", ["", "  ", None, 3])
def test_a_run_says_what_was_found(found):
    verdict = Verdicts(THREE)
    with pytest.raises(ValueError, match="claim 2, control: say what was found, got"):
        verdict(2, NO, (True, found))
    assert verdict.given == {}


# the lessons' claims

@of_each_lesson
def test_claims_differ_and_fit_in_a_narrow_page(lesson, claims):
    assert len({claim.words for claim in claims}) == len(claims)
    assert max(map(len, Verdicts(claims).table().splitlines())) <= 100


def test_no_claim_is_decided_in_both_lessons():
    assert {claim.words for claim in CLAIMS} & {claim.words for claim in PROMISES} == set()


@of_each_lesson
def test_every_source_of_a_claim_is_explained(lesson, claims):
    import course.lab.claims as file
    names = file.__doc__.split("Sources:")[1]
    assert [claim.source for claim in claims if claim.source not in names] == []


@of_each_lesson
def test_every_claim_is_a_question_and_has_a_place(lesson, claims):
    assert [claim for claim in claims if not claim.place
            or not claim.question.endswith("?") or claim.condition.endswith(".")] == []


def plain(text):
    """Return text in one line, without the marks of code."""
    return re.sub(r"[\s`]+", " ", re.sub(r":\w+:", "", text)).strip()


def test_what_torch_says_it_says_in_these_words():
    page = plain(DistributedDataParallel.__doc__)
    assert [part for claim in CLAIMS if claim.source == "Torch"
            for part in claim.words.split(" [...] ") if plain(part) not in page] == []


@of_each_lesson
def test_every_claim_is_quoted_before_it_is_run(lesson, claims):
    text = plain(" ".join(cells(lesson, "markdown")))
    assert [claim.words for claim in claims if plain(claim.words) not in text] == []


@of_each_lesson
def test_the_lesson_decides_every_claim_once(lesson, claims):
    numbers = [number.value for number, *_ in calls_of_verdict(lesson)]
    assert sorted(numbers) == list(range(1, len(claims) + 1))


@of_each_lesson
def test_no_answer_of_the_lesson_is_written_by_hand(lesson, claims):
    # both runs of a claim are computed: a function's, or from something with a name
    for number, run, control in calls_of_verdict(lesson):
        for part in (run, control):
            holds = part.elts[0] if isinstance(part, ast.Tuple) else part
            names = [node for node in ast.walk(holds) if isinstance(node, ast.Name)]
            assert names, f"claim {number.value}"


@of_each_lesson
def test_no_function_of_the_lesson_answers_with_a_literal(lesson, claims):
    # `return True, "so"` would decide a claim without a run; whether ranks wait, in
    # `waits`, is said by the error that run_ranks raises or does not
    asked = {node.func.id for call in calls_of_verdict(lesson) for part in call[1:]
             for node in ast.walk(part) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Name)}
    for node in ast.walk(code_of(lesson)):
        if isinstance(node, ast.FunctionDef) and node.name in asked - {"waits"}:
            answers = [part.value.elts[0] for part in ast.walk(node)
                       if isinstance(part, ast.Return) and isinstance(part.value, ast.Tuple)]
            assert not any(isinstance(answer, ast.Constant) for answer in answers), node.name
