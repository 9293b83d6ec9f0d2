import ast
import re
from pathlib import Path

import nbformat
import pytest
from torch.nn.parallel import DistributedDataParallel

from course.lab.claims import CLAIMS, PROMISES, STORED, Claim, Verdicts

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
LESSONS = {"22_claims_tested": CLAIMS, "23_promises_tested": PROMISES}
THREE = [Claim("Book", "page 1", "one and one is two", "Is it 2?"),
         Claim("Blog", "page 2", "two is odd", "Is the rest 1?"),
         Claim("Torch", "a note", "a row is a rank's", "Is it?", "there is one rank")]
YES, NO = (True, "it is"), (False, "it is not")


def test_a_verdict_follows_the_first_run_and_says_both(capsys):
    verdict = Verdicts(THREE)
    verdict(2, (2 % 2 == 1, "2 % 2 is 0"), (3 % 2 == 1, "3 % 2 is 1"))
    verdict(3, YES, NO)
    assert capsys.readouterr().out.splitlines() == [
        '2. Blog, page 2: "two is odd"', "   Is the rest 1?",
        "   run:     no   2 % 2 is 0", "   control: yes  3 % 2 is 1", "   FALSE",
        '3. Torch, a note: "a row is a rank\'s"', "   Is it?",
        "   inside:  yes  it is", "   outside: no   it is not",
        "   TRUE IF there is one rank"]
    assert verdict.given == {2: "false", 3: "true if"}
    assert verdict.table().splitlines() == [
        "    verdict  source  words", '  1 ?        Book   "one and one is two"',
        '  2 false    Blog   "two is odd"', '  3 true if  Torch  "a row is a rank\'s"',
        "                    if there is one rank"]
    verdict(1, YES, NO)
    verdict(3, NO, YES)  # what does not hold inside its condition is false
    assert verdict.given == {1: "true", 2: "false", 3: "false"}


@pytest.mark.parametrize("both", [YES, NO])
def test_two_runs_that_answer_alike_decide_nothing(both):
    verdict = Verdicts(THREE)
    with pytest.raises(ValueError, match=f"claim 3: both runs answer {both[0]}"):
        verdict(3, both, both)
    assert verdict.given == {}


def plain(text):
    """Return text in one line, without the marks of code."""
    return re.sub(r"[\s`]+", " ", re.sub(r":\w+:", "", text)).strip()


def test_claims_are_questions_with_a_known_source_and_torch_says_its_own():
    page = plain(DistributedDataParallel.__doc__)
    for claim in CLAIMS + PROMISES:
        assert claim.source in STORED["sources"] and claim.place, claim
        assert claim.question.endswith("?") and not claim.condition.endswith("."), claim
        assert claim.source != "Torch" or all(
            plain(part) in page for part in claim.words.split(" [...] ")), claim
    assert len({claim.words for claim in CLAIMS + PROMISES}) == len(CLAIMS + PROMISES)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_quotes_each_claim_and_decides_it_once_and_never_by_hand(lesson):
    cells = nbformat.read(NOTEBOOKS / f"{lesson}.ipynb", 4).cells
    text = plain(" ".join(cell.source for cell in cells if cell.cell_type == "markdown"))
    assert [c.words for c in LESSONS[lesson] if plain(c.words) not in text] == []
    code = ast.parse("\n".join(cell.source for cell in cells if cell.cell_type == "code")
                     .replace("%matplotlib inline", ""))
    calls = [node.args for node in ast.walk(code) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Name) and node.func.id == "verdict"]
    assert sorted(number.value for number, *_ in calls) == [
        *range(1, len(LESSONS[lesson]) + 1)]
    for number, *runs in calls:  # an answer is computed, so a name stands in it
        for run in runs:
            holds = run.elts[0] if isinstance(run, ast.Tuple) else run
            assert any(isinstance(node, ast.Name) for node in ast.walk(holds)), number.value
