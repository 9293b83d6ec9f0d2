import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lessons import LESSONS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BOOK = ROOT / "notebooks" / "book"
MORE = (BOOK / "more.md").read_text()
GITHUB = ROOT / ".github"
CONTRIBUTING = (GITHUB / "CONTRIBUTING.md").read_text()


EXAMPLES = re.findall(
    r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", README + MORE, re.S
)


def test_every_example_shows_what_it_prints():
    assert len(EXAMPLES) == (README + MORE).count("```python\n") == 3


def test_the_first_page_names_every_lesson():
    assert (
        re.findall(r"^\| .*\]\(notebooks/(\d\d_\w+)\.ipynb\)", README, re.M) == LESSONS
    )
    assert f"{len(LESSONS)} lessons as notebooks" in README


@pytest.mark.parametrize("code, printed", EXAMPLES, ids=["start", "ranks", "audit"])
def test_the_example_prints_what_stands_below_it(code, printed):
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert run.stdout.splitlines() == [line[4:] for line in printed.splitlines()]


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
