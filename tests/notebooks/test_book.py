"""notebooks/tools/book.py: the book as a reader meets it, in a browser and without one.

The book is built once, in half a minute, and once more to fail; pages open in a second
or more. Only Sphinx and a browser can say what a reader sees.
"""

import re
import shutil
from pathlib import Path

import book  # notebooks/tools, which pyproject.toml puts on the path
import nbformat
import pytest
import yaml
from forks import Run
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.support.browser import open_browser, watched
from tests.support.lessons import KERNEL, LESSONS, PAGES

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
TOC = yaml.safe_load((NOTEBOOKS / "book" / "toc.yml").read_text())
MOVING = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 60" width="800" height="60">
<rect width="800" height="60" fill="white"/><rect width="60" height="60" fill="red">
<animate attributeName="x" from="0" to="740" dur="2s" repeatCount="indefinite"/></rect></svg>"""


def said(text):
    return new_output("stream", name="stdout", text=text)


FIRST = [
    new_markdown_cell(
        "# 0. First\n\nRead a [rank](glossary.md#rank), then [the second]"
        "(01_split_the_work.ipynb), [a program](programs/larger.py).",
        id="title",
    ),
    new_code_cell("import torch", id="setup", metadata={"tags": ["hide-input"]}),
    new_code_cell(
        "print('the answer')",
        id="guess",
        outputs=[said("the answer\n")],
        metadata={"tags": ["hide-output"]},
    ),
    new_markdown_cell(
        "<details><summary>Why</summary>\n\nThe *reason*.\n</details>", id="why"
    ),
    new_code_cell(
        "draw()",
        id="moving",
        outputs=[
            new_output(
                "display_data", {"image/svg+xml": MOVING, "text/plain": "a picture"}
            )
        ],
    ),
    new_markdown_cell(
        "|"
        + " a wide column |" * 12
        + "\n|"
        + "---|" * 12
        + "\n|"
        + " 123456789 |" * 12,
        id="table",
    ),
    new_code_cell(
        "x = '" + 200 * "wide " + "'", id="wide", outputs=[said(90 * "wide " + "\n")]
    ),
    new_markdown_cell("Costs $5, or $6, in split.py.", id="plain"),
    new_markdown_cell(
        '<a id="a-row"></a>\n\n## It hangs\n\n`RuntimeError: Expected to have finished '
        "reduction in the prior iteration`. See [it](#a-row).",
        id="a-row",
    ),
]
SECOND = [
    new_markdown_cell(
        "# 1. Second\n\nChunks travel around a ring. "
        "If [it hangs](00_start_here.ipynb#a-row), wait.",
        id="title",
    ),
    new_code_cell(f"'{76 * 'c'}'", id="full", outputs=[said(78 * "o" + "\n")]),
]  # the most
FAILED = [
    new_markdown_cell("# 2. Third", id="title"),
    new_code_cell(
        "1 / 0",
        id="run",
        metadata={"tags": ["hide-output"]},
        outputs=[
            new_output(
                "error", ename="ZeroDivisionError", evalue="", traceback=["by zero"]
            )
        ],
    ),
]


def plant(root):
    """Write a project of three small lessons and one real page of each kind."""
    for name in (
        "notebooks/claims.md",
        "notebooks/glossary.md",
        "notebooks/exercises/README.md",
        "README.md",
        "notebooks/exercises/release/ps1/ps1.ipynb",
        "manual_dp/__init__.py",
        "manual_dp/allreduce.py",
        "manual_dp/ranks/ddp.py",
        "manual_dp/models/lenet.py",
        "notebooks/clusters/README.md",
        "notebooks/clusters/errors.md",
        "notebooks/programs/larger.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(NOTEBOOKS / "book", root / "notebooks" / "book")
    toc = root / "notebooks" / "book" / "toc.yml"
    few = re.sub(r"  - file: notebooks/(0[3-9]|[12]\d)_.*\n", "", toc.read_text())
    toc.write_text(re.sub(r"- caption: .*\n  chapters:\n(?=-)", "", few))
    for name, cells in zip(LESSONS, (FIRST, SECOND, FAILED)):
        nb = new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
        nbformat.write(nb, root / "notebooks" / f"{name}.ipynb")
    return root / "notebooks"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    notebooks = plant(tmp_path_factory.mktemp("book"))
    run = Run(
        notebooks / f"{LESSONS[2]}.ipynb",
        new_notebook(cells=FAILED),
        1.0,
        "FAILED in run",
    )
    warnings = book.build(notebooks, notebooks.parent / "out", [run])
    return notebooks.parent / "out", warnings


def pages_of(out):
    return sorted(path for path in out.rglob("*.html") if "_static" not in path.parts)


def test_every_file_has_its_page_and_nothing_is_left_beside_the_book(made):
    out, _ = made
    assert {path.relative_to(out).as_posix() for path in pages_of(out)} == {
        *(f"notebooks/{name}.html" for name in LESSONS[:3]),
        "index.html",
        "search.html",
        *(
            f"notebooks/{name}.html"
            for name in (
                "exercises/README",
                "exercises/release/ps1/ps1",
                "claims",
                "glossary",
                "clusters/README",
                "clusters/errors",
                "book/index",
                "book/more",
                "book/instructors",
            )
        ),
        "README.html",
        *(
            f"manual_dp/{name}.html"
            for name in ("__init__", "allreduce", "ranks/ddp", "models/lenet")
        ),
    }
    assert sum(path.stat().st_size for path in out.rglob("*")) < 15e6
    assert sorted(path.name for path in out.parent.iterdir()) == [
        "README.md",
        "manual_dp",
        "notebooks",
        "out",
    ]


def test_no_page_tells_where_answers_stand(made):
    page = (made[0] / "notebooks" / "book" / "instructors.html").read_text()
    assert "The same matter in two places" in page
    assert "_buckets" not in page and "What the students" not in page


def test_only_what_is_not_there_is_warned_of(made):
    missing = [line for line in made[1] if "cross-reference target not found" in line]
    assert missing and len(missing) == len(made[1])
    gone = f"{'|'.join(LESSONS[3:] + PAGES)}|LICENSE|ps[2-9]|train.py|two_hosts|slurm|kubernetes"
    assert [line for line in missing if not re.search(gone, line)] == []


def test_an_explicit_anchor_is_found_from_its_page_and_from_another(made):
    first, second = (
        (made[0] / "notebooks" / f"{name}.html").read_text() for name in LESSONS[:2]
    )
    assert 'id="a-row"' in first and 'href="#a-row"' in first
    assert f'href="{LESSONS[0]}.html#a-row"' in second


def test_no_page_names_another_host_or_leads_away(made):
    for path in pages_of(made[0]):
        text = path.read_text()
        scripts = "".join(re.findall(r"<script\b[^>]*>(.*?)</script>", text, re.S))
        assert re.findall(r"https?://[^\s\"']+", scripts) == []
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", text)
        assert [
            tag for tag in tags if re.search('(?:src|href)="?(?:https?:)?//', tag)
        ] == []
        assert not re.search("mybinder|colab.research", text) or "more" in path.name


def test_a_book_that_cannot_be_built_leaves_the_old_one(tmp_path):
    notebooks = plant(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "index.html").write_text("old")
    with open(notebooks / "book" / "config.yml", "a") as config:
        config.write(
            "    extensions: [no_such_extension]\n"
        )  # the last of a key counts
    with pytest.raises(book.BookError, match="no_such_extension"):
        book.build(notebooks, tmp_path / "out")
    assert (tmp_path / "out" / "index.html").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 4


def test_each_page_leads_to_symptoms_and_glossary_by_one_click(made):
    for path in pages_of(made[0]):
        if path.name in ("index.html", "search.html"):
            continue
        links = re.findall(
            r'<nav class="look-up".*?</nav>', path.read_text(), re.DOTALL
        )[0]
        found = [
            (path.parent / href).resolve().relative_to(made[0].resolve()).as_posix()
            for href in re.findall('href="([^"]+)"', links)
            if href != "#"  # the page itself
        ]
        asked = ["notebooks/26_symptoms.html", "notebooks/glossary.html"]
        asked = [name for name in asked if path != made[0] / name]
        assert (path.name, found) == (path.name, asked)


# what is written


def test_the_glossary_is_in_order_and_says_each_word_once():
    text = (NOTEBOOKS / "glossary.md").read_text()
    words = re.findall(r"^## (.+)$", text, re.M)
    assert words == sorted(set(words), key=lambda word: word.lower().replace("-", " "))


def test_the_contents_have_every_lesson_once_in_parts():
    named = [
        chapter["file"]
        for part in TOC["parts"]
        for chapter in part["chapters"]
        if "file" in chapter
    ]
    assert named[: len(LESSONS)] == [f"notebooks/{lesson}.ipynb" for lesson in LESSONS]
    readme = re.findall(
        r"^\| (.*?) +\| \[\d\d ", (ROOT / "README.md").read_text(), re.M
    )
    assert [part["caption"] for part in TOC["parts"]] == [
        *filter(None, readme),
        "Problem sets",
        "To look up",
    ]


# in a browser


@pytest.fixture(scope="module")
def chromium(made):
    with open_browser() as browser:
        yield browser


@pytest.fixture
def first(made, chromium):
    """The first lesson's page, and the list of its faults."""
    with watched(chromium) as (page, faults):
        page.goto((made[0] / "notebooks" / f"{LESSONS[0]}.html").as_uri())
        yield page, faults


@pytest.fixture
def phone(chromium):
    with watched(chromium, viewport={"width": 390, "height": 844}) as (page, faults):
        yield page, faults


def test_every_page_opens_without_an_error_and_is_no_wider_than_a_phone(made, phone):
    page, faults = phone
    for path in pages_of(made[0]):
        if path != made[0] / "index.html":  # which leads to another at once
            page.goto(path.as_uri())
            width = page.evaluate("document.documentElement.scrollWidth")
            assert (path.name, faults, width) == (path.name, [], 390)
    page.wait_for_load_state("networkidle")
    assert faults == []


@pytest.mark.parametrize("width, kinds", [(1200, ["ccc", "ooo"]), (400, ["ooo"])])
def test_the_widest_line_of_a_lesson_is_seen_to_its_end(made, chromium, width, kinds):
    with watched(chromium, viewport={"width": width, "height": 844}) as (page, _):
        page.goto((made[0] / "notebooks" / f"{LESSONS[1]}.html").as_uri())
        for kind in kinds:
            block = page.locator("pre", has_text=kind)
            assert block.evaluate("e => e.scrollWidth - e.clientWidth") <= 0


def test_a_picture_keeps_within_a_phone_and_wide_code_has_its_own_scroll_bar(
    made, phone
):
    page, _ = phone
    page.goto((made[0] / "notebooks" / f"{LESSONS[0]}.html").as_uri())
    assert page.locator("img[src$='.svg']").bounding_box()["width"] <= 390
    scrolls = "e => getComputedStyle(e).overflowX + (e.scrollWidth > e.clientWidth)"
    assert page.locator("pre", has_text="x = 'wide").evaluate(scrolls) == "autotrue"
    assert page.locator("table").first.evaluate(scrolls) == "autotrue"


@pytest.mark.parametrize(
    "shown, click",
    [
        ("The reason.", "Why"),
        ("the answer", "Show code cell output"),
        ("import torch", "Show code cell source"),
    ],
)
def test_what_is_folded_unfolds(first, shown, click):
    place = first[0].locator("details", has_text=shown).locator("p, pre").last
    assert not place.is_visible()
    first[0].get_by_text(click, exact=True).first.click()
    place.wait_for(state="visible")


def test_a_lesson_that_failed_says_so_and_its_error_is_not_folded(made, chromium):
    with watched(chromium) as (page, _):
        page.goto((made[0] / "notebooks" / f"{LESSONS[2]}.html").as_uri())
        assert page.get_by_text("FAILED in run").is_visible()
        assert page.get_by_text("by zero").is_visible()


@pytest.mark.parametrize(
    "words, pages",
    [
        ("ring", ["1. Second", "Glossary"]),
        ("Expected to have finished reduction", ["0. First"]),
        ("RuntimeError: Expected to have finished reduction in the", ["0. First"]),
    ],
)
def test_search_finds_a_word_and_the_words_of_an_error(first, words, pages):
    page, faults = first
    page.locator(".search-button-field:visible, .search-button:visible").first.click()
    page.locator("input[name=q]:visible").fill(words)
    page.keyboard.press("Enter")
    found = page.locator("#search-results a")
    for title in pages:
        found.filter(has_text=title).first.wait_for()
    assert faults == []
