import ast
import json
from pathlib import Path

import pytest

from manual_dp.lab.claims import CLAIMS, Verdicts

LESSON = Path(__file__).parents[2] / "notebooks" / "16_claims_tested.ipynb"
TWO = [("book", "one and one is two"), ("an article", "two is odd")]


def lesson_code():
    cells = json.loads(LESSON.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells
                     if cell["cell_type"] == "code")
    return ast.parse(text.replace("%matplotlib inline", ""))


def calls_of_verdict():
    """Return (number, holds, found) of each call in the lesson, as syntax."""
    return [node.args for node in ast.walk(lesson_code()) if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name) and node.func.id == "verdict"]


def test_a_verdict_is_printed_with_its_claim(capsys):
    Verdicts(TWO)(2, 2 % 2 == 1, "2 % 2 is 0")
    assert capsys.readouterr().out == "2. an article: two is odd\n   false: 2 % 2 is 0\n"


def test_the_table_shows_the_verdicts_that_there_are():
    verdict = Verdicts(TWO)
    assert [line.split()[:2] for line in verdict.table().splitlines()] == [
        ["verdict", "source"], ["1", "?"], ["2", "?"]]
    verdict(1, True, "1 + 1 is 2")
    assert verdict.table().splitlines()[1:] == [
        "  1 true     book        one and one is two",
        "  2 ?        an article  two is odd"]
    assert verdict.given == {1: True}


def test_a_claim_may_be_decided_twice_but_not_both_ways():
    verdict = Verdicts(TWO)
    verdict(1, True, "1 + 1 is 2")
    verdict(1, True, "once more")
    with pytest.raises(ValueError, match="claim 1 was decided before, as true; this "
                                         "run says false"):
        verdict(1, False, "1 + 1 is 3")
    assert verdict.given == {1: True}


@pytest.mark.parametrize("number", [0, 3, -1, "1", 1.0, True, None])
def test_an_unknown_claim_is_refused(number):
    verdict = Verdicts(TWO)
    with pytest.raises(ValueError, match="claims have numbers from 1 to 2, got"):
        verdict(number, True, "so")
    assert verdict.given == {}


@pytest.mark.parametrize("holds", [1, 0.0, None, "true", []])
def test_a_verdict_is_true_or_false(holds):
    verdict = Verdicts(TWO)
    with pytest.raises(TypeError, match="claim 1: holds must be True or False, got"):
        verdict(1, holds, "so")
    assert verdict.given == {}


@pytest.mark.parametrize("found", ["", "  ", None, 3])
def test_a_verdict_says_what_was_found(found):
    verdict = Verdicts(TWO)
    with pytest.raises(ValueError, match="claim 2: say what was found, got"):
        verdict(2, False, found)
    assert verdict.given == {}


# the lesson's claims

def test_claims_differ_and_fit_on_a_line():
    assert len({claim for _, claim in CLAIMS}) == len(CLAIMS)
    assert max(map(len, Verdicts().table().splitlines())) <= 100


def test_every_source_of_a_claim_is_explained():
    import manual_dp.lab.claims as page
    names = page.__doc__.split("Sources:")[1]
    assert [source for source, _ in CLAIMS if source not in names] == []


def test_the_lesson_decides_every_claim_once():
    numbers = [number.value for number, _, _ in calls_of_verdict()]
    assert numbers == list(range(1, len(CLAIMS) + 1))


def test_no_verdict_of_the_lesson_is_written_by_hand():
    # each is computed from something that has a name, and so are the words for it
    for number, holds, found in calls_of_verdict():
        for part in (holds, found):
            names = [node for node in ast.walk(part) if isinstance(node, ast.Name)]
            assert names, f"claim {number.value}"
