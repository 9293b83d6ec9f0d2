import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.support.lessons import LESSONS, PAGES, markdown_cells, minutes, source

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BOOK = ROOT / "notebooks" / "book"
MORE = (BOOK / "more.md").read_text()
INDEX = (BOOK / "index.md").read_text()
GITHUB = ROOT / ".github"
CONTRIBUTING = (GITHUB / "CONTRIBUTING.md").read_text()


def stored(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def lessons_that_a_lesson_needs(name):
    """Return the numbers of the lessons that are linked; "2 to 4" means 3 as well."""
    text = "\n".join(map(source, markdown_cells(stored(name))))
    needs = re.search(r"\*You need\*(.*?)\*Time", text, re.S)[1]
    found = set(re.findall(r"\((\d\d)_", needs))
    if ") to [" in needs:
        found |= {f"{n:02}" for n in range(int(min(found)), int(max(found)))}
    return found


EXAMPLES = re.findall(
    r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", README + MORE, re.S
)


def test_every_example_shows_what_it_prints():
    assert len(EXAMPLES) == (README + MORE).count("```python\n") == 3


def test_the_first_page_names_every_lesson_and_page():
    rows = re.findall(r"^\| .*\]\(notebooks/(\d\d_\w+)\.ipynb\)", README, re.M)
    assert rows == [*LESSONS, *PAGES]
    assert f"{len(LESSONS) + len(PAGES)} notebooks" in README


def test_the_hours_are_the_sum_of_the_lessons_own_minutes():
    said = [minutes(stored(name)) for name in LESSONS]
    assert f"about {round(sum(said) / 60)} hours for all lessons" in README
    assert f"about {round(sum(said[:14]) / 60)} hours" in INDEX


def test_the_evening_reads_each_lesson_after_those_that_it_needs():
    evening = re.findall(r"\d\d", re.search(r"read (00[^\n]*?), in this", README)[1])
    read = set()
    for number in evening:
        (name,) = [name for name in LESSONS if name.startswith(number)]
        assert lessons_that_a_lesson_needs(name) <= read, name
        read.add(number)
    links = re.findall(
        r"\.\./(\d\d)_", re.search(r"\*\*One evening.*?\n\n", INDEX, re.S)[0]
    )
    assert links == evening


def without_rounding(text):
    """Return text with each number of float64's rounding, 1e-13 or less, as one."""
    return re.sub(r"\b\de-1[3-9]\b", "(rounding)", text)


RUN = """
import sys
for code in sys.argv[1:]:
    exec(code, {"__name__": "__main__"})
    print("end of an example")
"""


def test_each_example_prints_what_stands_below_it():
    # 7 s of a processor: a new Python and its nursery, in which an import that an
    # example lacks is missed. One that needs more comes later.
    start, audit, ranks = EXAMPLES
    examples = [start, ranks, audit]
    run = subprocess.run(
        [sys.executable, "-c", RUN, *(code for code, _ in examples)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=360,
    )
    printed = without_rounding(run.stdout).split("end of an example\n")
    shown = [re.sub("^    ", "", text, flags=re.M) for _, text in examples]
    assert printed == [*map(without_rounding, shown), ""]


@pytest.mark.parametrize(
    "text, folder",
    [(README, ROOT), (MORE, BOOK), (CONTRIBUTING, GITHUB)],
    ids=["README", "more", "CONTRIBUTING"],
)
def test_every_link_leads_to_a_file(text, folder):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links
    assert [link for link in links if not (folder / link.split("#")[0]).exists()] == []


def test_every_make_target_that_is_named_exists():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    named = re.findall(r"(?:`|    )make (\w+)", README + CONTRIBUTING)
    assert {"course", "test", "count"} <= set(named) <= set(targets)


def test_every_file_that_contributing_names_exists():
    # a path alone, or the last word of a command
    named = re.findall(
        r"`(?:[^`]* )?((?:manual_dp|notebooks|tests)/[\w./]*)", CONTRIBUTING
    )
    named.remove("notebooks/NN_name.ipynb")
    assert len(named) > 15
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_command_of_the_book_is_understood():
    from manual_dp.__main__ import _parser

    line = re.search(r"python -m manual_dp (train .*)", MORE)[1]
    args = _parser().parse_args(line.split())
    assert args.world_size == [1, 2, 4] and args.epochs == 10
