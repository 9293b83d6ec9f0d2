"""notebooks/tools/book.py: the book as a reader meets it, in a browser and without one."""

import re
import shutil
from pathlib import Path

import book  # notebooks/tools, which pyproject.toml puts on the path
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.support.browser import open_browser, watched
from tests.support.lessons import KERNEL

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
MOVING = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 60" width="800" height="60">
<rect width="800" height="60" fill="white"/><rect width="60" height="60" fill="red">
<animate attributeName="x" from="0" to="740" dur="2s" repeatCount="indefinite"/></rect></svg>"""


def said(text):
    return new_output("stream", name="stdout", text=text)


def write_lessons(folder):
    """Write two lessons with what a page can hold, as they are stored."""
    cells = [
        new_markdown_cell("# 0. First\n\n*You will learn:* to read a [rank](glossary.md#rank).\n\n"
                          "Then [the second](01_second.ipynb).", id="title"),
        new_code_cell("import torch", id="setup", metadata={"tags": ["hide-input"]}),
        new_code_cell("print('the answer')", id="guess", outputs=[said("the answer\n")],
                      metadata={"tags": ["hide-output"]}),
        new_markdown_cell("<details><summary>Why</summary>\n\nThe *reason*.\n</details>", id="why"),
        new_code_cell("draw()", id="moving", outputs=[new_output(
            "display_data", {"image/svg+xml": MOVING, "text/plain": "a picture"})]),
        new_markdown_cell("|" + " a wide column |" * 12 + "\n|" + "---|" * 12 + "\n|"
                          + " 123456789 |" * 12, id="table"),
        new_code_cell("x = '" + 200 * "wide " + "'", id="wide",
                      outputs=[said(90 * "wide " + "\n")]),
        new_markdown_cell("Costs $5, or $6, in split.py.", id="plain"),
    ]
    second = [new_markdown_cell("# 1. Second\n\n*You will learn:* little.\n\n"
                                "Chunks travel around a ring.", id="title"),
              new_code_cell(f"'{76 * 'c'}'", id="full", execution_count=1,
                            outputs=[said(78 * "o" + "\n")]),  # as wide as a lesson may
              new_code_cell("6 * 7", id="run", execution_count=1, outputs=[new_output(
                  "execute_result", {"text/plain": "42"}, execution_count=1)])]
    folder.mkdir(parents=True)
    for name, content in (("00_first", cells), ("01_second", second)):
        nb = new_notebook(cells=content, metadata={"kernelspec": KERNEL})
        nbformat.write(nb, folder / f"{name}.ipynb")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A book of two small lessons, the real glossary, and one real page of each kind."""
    root = tmp_path_factory.mktemp("book")
    write_lessons(root / "notebooks")
    for name in ("notebooks/glossary.md", "notebooks/exercises/README.md", "README.md",
                 "notebooks/exercises/release/ps1/ps1.ipynb", "manual_dp/__init__.py",
                 "manual_dp/allreduce.py", "manual_dp/ranks/ddp.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    pages, warnings = book.build(root / "notebooks", root / "out")
    return root / "out", pages, warnings


@pytest.fixture(scope="module")
def chromium(made):
    with open_browser() as browser:
        yield browser


def pages_of(out):
    return sorted(path for path in out.rglob("*.html") if "_static" not in path.parts)


def test_every_file_has_its_page(made):
    out, pages, _ = made
    names = {path.relative_to(out).as_posix() for path in pages_of(out)}
    assert names == {
        "00_first.html", "01_second.html", "exercises/README.html", "glossary.html",
        "exercises/release/ps1/ps1.html", "index.html", "instructors.html",
        "module/allreduce.html", "module/index.html",
        "module/ranks/ddp.html", "more.html", "readme.html", "search.html"}
    assert pages == len(names) - 1


def test_only_what_is_not_there_is_warned_of(made):
    missing = [line for line in made[2] if "cross-reference target not found" in line]
    assert missing and len(missing) == len(made[2])
    assert not any(re.search("00_first|01_second|index.md", line) for line in missing)


def test_no_page_names_another_host_as_its_source_or_in_a_script(made):
    for path in pages_of(made[0]):
        text = path.read_text()
        scripts = "".join(re.findall(r"<script\b[^>]*>(.*?)</script>", text, re.S))
        assert re.findall(r"https?://[^\s\"']+", scripts) == []
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", text)
        assert [tag for tag in tags if re.search("(?:src|href)=\"?(?:https?:)?//", tag)] == []


def test_there_is_no_button_that_leads_away_without_an_address(made):
    assert not re.search("mybinder|colab", (made[0] / "00_first.html").read_text())


def test_a_book_is_small_and_leaves_nothing_beside_it(made):
    out = made[0]
    assert sum(path.stat().st_size for path in out.rglob("*")) < 15e6
    assert sorted(path.name for path in out.parent.iterdir()) == [
        "README.md", "manual_dp", "notebooks", "out"]


def test_a_folder_of_other_files_is_not_replaced(tmp_path):
    write_lessons(tmp_path / "notebooks")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(book.BookError, match="has other files in it"):
        book.build(tmp_path / "notebooks", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_book_that_cannot_be_built_leaves_the_old_one(tmp_path, monkeypatch):
    write_lessons(tmp_path / "notebooks")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "index.html").write_text("old")
    monkeypatch.setattr(book, "BOOK", tmp_path / "book")
    shutil.copytree(ROOT / "notebooks/book", tmp_path / "book")
    with open(tmp_path / "book/config.yml", "a") as config:
        config.write("    extensions: [no_such_extension]\n")  # the last of a key counts
    with pytest.raises(book.BookError, match="no_such_extension"):
        book.build(tmp_path / "notebooks", tmp_path / "out")
    assert (tmp_path / "out" / "index.html").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 3


def test_progress_goes_from_reading_to_the_end(tmp_path):
    write_lessons(tmp_path / "notebooks")
    shares = []
    book.build(tmp_path / "notebooks", tmp_path / "out", progress=shares.append)
    assert shares == sorted(shares) and shares[0] < 0.5 and shares[-1] == 1


# links

FILES = {"index.md": book.BOOK / "index.md", "glossary.md": NOTEBOOKS / "glossary.md",
         "exercises/README.md": NOTEBOOKS / "exercises" / "README.md",
         "module/params.md": ROOT / "manual_dp" / "params.py",
         "readme.md": ROOT / "README.md"}


@pytest.mark.parametrize("page, text, wanted", [
    ("index.md", "[a](../glossary.md#rank)", "[a](glossary.md#rank)"),
    ("index.md", "[a](../glossary.md#The-rank)", "[a](glossary.md#the-rank)"),
    ("readme.md", "[a](notebooks/glossary.md), [b](manual_dp/params.py)",
     "[a](glossary.md), [b](module/params.md)"),
    ("exercises/README.md", "[a](../glossary.md)", "[a](../glossary.md)"),
    ("readme.md", "[MIT](LICENSE)", "MIT"),  # has no page
    ("readme.md", "[gone](no/such.md)", "[gone](no/such.md)"),
    ("readme.md", "[a](https://d2l.ai/x.md), [b](#here), `x[0](y)`",
     "[a](https://d2l.ai/x.md), [b](#here), `x[0](y)`"),
    ("readme.md", "![a](LICENSE)", "![a](LICENSE)")])
def test_links_are_turned_to_pages(page, text, wanted):
    assert book.relink(text, page, FILES) == wanted


def anchors(path):
    """Return the anchors of a text's headings, as the book makes them."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w-]", "", head.lower().replace(" ", "-")) for head in heads}


def links(path):
    if path.suffix == ".ipynb":
        text = "\n".join(cell.source for cell in nbformat.read(path, 4).cells
                         if cell.cell_type == "markdown")
    else:
        text = path.read_text()
    return re.findall(r"(?<!`)\[[^\[\]]*\]\(([^()\s]+)\)", re.sub("`[^`]*`", "x", text))


def test_every_link_of_the_course_leads_to_a_file_and_to_a_heading_in_it():
    lost, count = [], 0
    for file in book.collect(NOTEBOOKS).values():
        for link in links(file) if file.suffix != ".py" else []:
            path, _, anchor = link.partition("#")
            target = file.parent / path if path else file
            count += 1
            if ":" not in path and (not target.exists() or anchor and target.suffix == ".md"
                                    and anchor not in anchors(target)):
                lost.append(f"{file.name}: {link}")
    assert lost == [] and count > 100


def test_the_glossary_is_in_order_and_says_each_word_once():
    text = (NOTEBOOKS / "glossary.md").read_text()
    words = re.findall(r"^## (.+)$", text, re.M)
    assert words == sorted(set(words), key=lambda word: word.lower().replace("-", " "))
    assert len(words) >= 40
    entries = re.split(r"^## .+$", text, flags=re.M)[1:]
    assert all(5 <= len(entry.split()) <= 60 for entry in entries)


def test_the_book_has_parts_and_every_file_of_the_course_once():
    files = book.collect(NOTEBOOKS)
    toc = book.contents(files)
    assert [part["caption"] for part in toc["parts"]] == [
        *book.PARTS.values(), "Problem sets", "To look up"]
    named = [entry["file"] for part in toc["parts"] for chapter in part["chapters"]
             for entry in [chapter, *chapter.get("sections", [])]]
    assert sorted(["index", *named]) == sorted(page.rpartition(".")[0] for page in files)
    assert "module/ranks/ddp" in named and not any("source" in name for name in named)


# in a browser

def test_every_page_opens_without_an_error_or_a_request_to_a_host(made, chromium):
    for path in pages_of(made[0]):
        with watched(chromium) as (page, faults):
            page.goto(path.as_uri())
            page.wait_for_load_state("networkidle")
            assert (path.name, faults) == (path.name, [])


def test_no_page_is_wider_than_a_phone(made, chromium):
    with watched(chromium, viewport={"width": 390, "height": 844}) as (page, _):
        for path in pages_of(made[0]):
            page.goto(path.as_uri())
            width = page.evaluate("document.documentElement.scrollWidth")
            assert (path.name, width) == (path.name, 390)


@pytest.mark.parametrize("width, kinds", [(1200, ["ccc", "ooo"]), (400, ["ooo"])])
def test_the_widest_line_of_a_lesson_is_seen_to_its_end(made, chromium, width, kinds):
    with watched(chromium, viewport={"width": width, "height": 844}) as (page, _):
        page.goto((made[0] / "01_second.html").as_uri())
        for kind in kinds:
            block = page.locator("pre", has_text=kind)
            assert block.evaluate("e => e.scrollWidth - e.clientWidth") <= 0


def test_a_picture_keeps_within_a_phone_and_wide_code_has_its_own_scroll_bar(made, chromium):
    with watched(chromium, viewport={"width": 390, "height": 844}) as (page, _):
        page.goto((made[0] / "00_first.html").as_uri())
        assert page.locator("img[src$='.svg']").bounding_box()["width"] <= 390
        scrolls = "e => getComputedStyle(e).overflowX + (e.scrollWidth > e.clientWidth)"
        code = page.locator("pre", has_text="x = 'wide")
        assert code.evaluate(scrolls) == "autotrue"
        assert page.locator("table").first.evaluate(scrolls) == "autotrue"


def test_an_answer_unfolds(made, chromium):
    with watched(chromium) as (page, _):
        page.goto((made[0] / "00_first.html").as_uri())
        answer = page.get_by_text("The reason.")
        assert not answer.is_visible()
        page.get_by_text("Why", exact=True).click()
        answer.wait_for(state="visible")


@pytest.mark.parametrize("words, folded", [("output", "the answer"), ("source", "import torch")])
def test_what_is_tagged_as_hidden_unfolds(made, chromium, words, folded):
    with watched(chromium) as (page, _):
        page.goto((made[0] / "00_first.html").as_uri())
        place = page.locator("details.hide pre", has_text=folded)
        assert not place.is_visible()
        page.get_by_text(f"Show code cell {words}").click()
        place.wait_for(state="visible")


def test_search_finds_the_ring(made, chromium):
    with watched(chromium) as (page, faults):
        page.goto((made[0] / "00_first.html").as_uri())
        page.locator(".search-button-field:visible, .search-button:visible").first.click()
        page.locator("input[name=q]:visible").fill("ring")
        page.keyboard.press("Enter")
        found = page.locator("#search-results a")
        found.filter(has_text="1. Second").first.wait_for()
        found.filter(has_text="Glossary").first.wait_for()
        assert faults == []


def test_a_moving_picture_moves(made, chromium):
    with watched(chromium) as (page, _):
        page.goto((made[0] / "00_first.html").as_uri())
        picture = page.locator("img[src$='.svg']")
        looks = {picture.screenshot()}
        for _ in range(50):
            page.wait_for_timeout(100)
            looks.add(picture.screenshot())
            if len(looks) > 2:
                break
        assert len(looks) > 2


def test_the_page_can_be_dark(made, chromium):
    with watched(chromium, color_scheme="light") as (page, _):
        page.goto((made[0] / "00_first.html").as_uri())
        colour = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(colour)
        for _ in range(3):  # as the system, light, dark
            if page.evaluate("document.documentElement.dataset.theme") == "dark":
                break
            page.locator(".theme-switch-button:visible").first.click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert page.evaluate(colour) != light


def test_a_lesson_leads_to_another_and_a_word_to_its_place_in_the_glossary(made, chromium):
    with watched(chromium) as (page, _):
        page.goto((made[0] / "00_first.html").as_uri())
        page.get_by_role("link", name="the second", exact=True).click()
        page.wait_for_url("**/01_second.html")
        page.go_back()
        page.get_by_role("link", name="rank", exact=True).click()
        page.wait_for_url("**/glossary.html#rank")
        assert page.locator("#rank").count() == 1
