"""notebooks/26_symptoms: a page to look things up in, and the list of its rules.

A row is a text and, if it can be run, a program: wrong, cured, and a test of both.
"""

import copy
import json
import mmap
import re
from pathlib import Path

import pytest
import torch

from manual_dp.audit.report import ENTRIES, WORDS
from tests.support.lessons import (
    FOLDER,
    PAGES,
    SHARED,
    cells_keep_only_their_tags,
    code_cells,
    lost_links,
    markdown_cells,
    no_line_of_code_or_output_is_wider_than_78,
    source,
    tags,
    text_is_at_most_120_words_a_cell,
    texts,
    tokens,
)

[PAGE] = [json.loads((FOLDER / f"{name}.ipynb").read_text()) for name in PAGES]
TORCH = Path(torch.__file__).parent


# readers


def text_rows(nb):
    return [c for c in markdown_cells(nb) if re.search("^### ", source(c), re.M)]


def programs(nb):
    """Return the programs by the name of their row."""
    cells = [cell for cell in code_cells(nb) if cell["id"].endswith("-run")]
    return {cell["id"].removesuffix("-run"): cell for cell in cells}


def is_run(row):
    return "\n*Not run here.*" not in source(row)


def printed(cell):
    return "".join(map(texts, cell["outputs"]))


def verdicts(cell):
    """Return what the tests said, of the wrong and of the cured program."""
    text = " ".join(printed(cell).split())
    return re.findall(r"-> ((?:not )?this entry)", text)


# rules


def each_row_has_its_parts(nb):
    wrong = []
    for row in text_rows(nb):
        parts = {
            "anchor": f'^<a id="{row["id"]}"></a>\n\n### ',
            "test": r"^\*\*Test in a minute\.\*\* .+\n\n```(python|sh)\n",
            "cure": r"^\*\*Cure\.\*\* \S",
            "mark": r"^\*(Runs|Counted|Staged|Not run here)\b.*\.\* ",
            "lesson": r"\[[Ll]esson \d+\]\(\d\d_\w+\.ipynb\)",
            "thread": r"Asked in \[.+\]\(https://github\.com/.+/(issues|pull)/\d+\)",
        }
        wrong += [
            f"{row['id']}: no {part}; its form is {form}"
            for part, form in parts.items()
            if not re.search(form, source(row), re.M)
        ]
    return wrong


def each_test_tells_the_wrong_program_from_the_cured_one(nb):
    cells = programs(nb)
    run = [row["id"] for row in text_rows(nb) if is_run(row)]
    wrong = [f"{name}: no program" for name in run if name not in cells]
    wrong += [f"{name}: no row" for name in cells if name not in run]
    return wrong + [
        f"{name}: {verdicts(cell)} of wrong and cured; make refresh LESSON=26 runs it"
        for name, cell in cells.items()
        if verdicts(cell) != ["this entry", "not this entry"]
    ]


def what_a_row_advises_stands_in_its_program(nb):
    cells = programs(nb)
    return [
        f"{row['id']}: {line}"
        for row in text_rows(nb)
        if row["id"] in cells
        for block in re.findall(r"```python\n(.*?)\n```", source(row), re.S)
        for line in block.splitlines()
        if line.strip() not in map(str.strip, source(cells[row["id"]]).splitlines())
    ]


def programs_are_short_and_folded(nb):
    return [
        f"{name}: at most 20 lines, 300 tokens, and the one tag hide-input"
        for name, cell in programs(nb).items()
        if len([line for line in source(cell).splitlines() if line]) > 20
        or tokens(source(cell)) > 300
        or tags(cell) != ["hide-input"]
    ]


def tables_and_links_lead_to_rows(nb):
    text = "\n".join(map(source, markdown_cells(nb)))
    names = re.findall(r'<a id="([\w-]+)"></a>', text)
    links = re.findall(r"\]\(#([\w-]+)\)", text)
    tables = re.findall(r"^\| \[.*?\]\(#([\w-]+)\) \|", text, re.M)
    rows = [row["id"] for row in text_rows(nb)]
    return (
        [f"#{link}" for link in links if link not in names]
        + [f"twice: {name}" for name in names if names.count(name) > 1]
        + [f"in no table: {name}" for name in rows if name not in tables]
    )


RULES = [
    *SHARED,
    cells_keep_only_their_tags,
    no_line_of_code_or_output_is_wider_than_78,
    each_row_has_its_parts,
    each_test_tells_the_wrong_program_from_the_cured_one,
    what_a_row_advises_stands_in_its_program,
    programs_are_short_and_folded,
    text_is_at_most_120_words_a_cell,
    tables_and_links_lead_to_rows,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_page_keeps_its_rules(rule):
    found = rule(PAGE)
    assert not found, "\n".join(map(str, found))


def test_the_page_is_not_too_long():
    assert len(text_rows(PAGE)) >= 40
    assert (FOLDER / f"{PAGES[0]}.ipynb").stat().st_size <= 200_000


def test_links_of_other_pages_to_a_row_are_found():
    for suffix in ("md", "ipynb"):
        assert list(FOLDER.glob(f"*.{suffix}"))
    lost = [link for link in lost_links(FOLDER) if link[1].endswith("symptoms.ipynb")]
    assert lost == []


# what is wrong is seen


def change(nb, cell_id, old, new):
    nb = copy.deepcopy(nb)
    [cell] = [cell for cell in nb["cells"] if cell["id"] == cell_id]
    for holder, key in [(cell, "source")] + [
        (o, "text") for o in cell.get("outputs", [])
    ]:
        holder[key] = "".join(holder[key]).replace(old, new)
    return nb


def new(rule, nb):
    """Return what a rule finds here, and not in the page as it is stored."""
    return [one for one in rule(nb) if one not in rule(PAGE)]


def test_a_test_that_says_the_same_of_both_programs_is_named():
    for said in "this entry", "not this entry":
        nb = change(PAGE, "starved-run", "-> not this entry", f"-> {said}")
        nb = change(nb, "starved-run", "-> this entry", f"-> {said}")
        [found] = new(each_test_tells_the_wrong_program_from_the_cured_one, nb)
        assert found.startswith(f"starved: {[said, said]} of wrong and cured")


def test_a_row_without_a_program_or_a_test_is_named():
    nb = copy.deepcopy(PAGE)
    nb["cells"] = [c for c in nb["cells"] if c["id"] != "starved-run"]
    rule = each_test_tells_the_wrong_program_from_the_cured_one
    assert new(rule, nb) == ["starved: no program"]
    nb = change(PAGE, "starved", "**Test in a minute.**", "")
    [found] = new(each_row_has_its_parts, nb)
    assert found.startswith("starved: no test; its form is ")


def test_advice_that_the_program_does_not_take_is_named():
    nb = change(PAGE, "loss-of-rank-0-run", ".detach().clone()", ".detach()")
    assert what_a_row_advises_stands_in_its_program(nb) == [
        "loss-of-rank-0: shown = loss.detach().clone()"
    ]


# the words of errors


def strings():
    """Return (words, who says them) of each row."""
    return re.findall(r"^\| `(.+)` \| \[.*\), (.+) \|$", table("error-strings"), re.M)


def codes():
    """Return {code: its first entry}."""
    rows = re.findall(
        r"^\| `(.+)` \| \[[\w-]+\]\(#([\w-]+)\)", table("audit-codes"), re.M
    )
    return dict(rows)


def table(name):
    [cell] = [cell for cell in PAGE["cells"] if cell["id"] == name]
    return source(cell)


def found_in_torch(strings):
    """Return those strings that stand in torch's files, Python's or the linker's."""
    left = {text.encode() for text in strings}
    for path in [*TORCH.glob("lib/*.so*"), *TORCH.rglob("*.py")]:
        if path.stat().st_size:
            with path.open("rb") as file:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    left -= {text for text in left if data.find(text) >= 0}
    return set(strings) - {text.decode() for text in left}


def test_words_stand_to_the_letter_in_torch_and_in_order():
    said = [text for text, _ in strings()]
    assert said == sorted(said, key=lambda text: re.sub(r"\W", "", text.lower()))
    assert len(said) == len(set(said)) >= 40
    of_torch = [text for text, whose in strings() if whose == "torch"]
    assert set(of_torch) - found_in_torch(of_torch) == set()


def test_the_codes_of_the_audit_and_their_entries_are_those_of_its_reports():
    assert [*codes()] == sorted(codes())
    assert codes() == ENTRIES
    alone = set(WORDS) - set(ENTRIES)
    assert alone == {"stale"}, "name its row in ENTRIES of report.py and in this table"
