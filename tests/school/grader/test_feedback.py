"""Pages: whatever strangers wrote is text in them, and stays in its place."""

import html
import os
import re
from html.parser import HTMLParser

import pytest

from manual_dp.school.grader import titles as titles_page
from manual_dp.school.grader.feedback import write_pages
from manual_dp.school.grader.gradebook import Gradebook
from manual_dp.school.grader.titles import titles
from tests.support.browser import open_browser, watched

STRANGE = ["=cmd()", "+1", "-1", "@x", "../../x", "/etc/passwd", "..", ".", "", " ",
           "<script>alert(1)</script>", "\"><img src=x onerror=y>", "' onclick='z",
           "a\nb", "a\r=1+1", "\t=1+1", "\n=1+1", "  =1+1", "\0=1+1", "a\0b", "\ud800",
           "a\udcff", "\u202egnp.exe", "\uff1d1+1", "{title}", "{0}", "%s", "a,b;c",
           'say "hi"', "</pre></details>", "&lt;b&gt;", "x" * 300, "\u5f20\u4f1f",
           "con", "index.html", "javascript:x", "\x1b[2J", "-rf", "<!--", "]]>"]
TAGS = {"html", "head", "body", "meta", "title", "style", "h1", "h2", "h3", "p", "div",
        "table", "tr", "td", "th", "a", "span", "pre", "details", "summary", "ul", "li"}


TASK = " ".join(titles("ps1")["ps1/words"][1].split())


def record(student="anna", name="ps1", **changes):
    return {"student": student, "problem_set": name, "score": 2, "max_score": 15,
            "exercises": {"ps1/sgd": [2, ""], "ps1/allreduce": [0, "Not yet."]},
            "words": {"words": "Because."}, "code": {"sgd": "x = 1"}, "note": "",
            "edited": [], "file": f"{student.replace('/', '')}/{name}/{name}.ipynb",
            **changes}


def everywhere(text):
    """Return a record that has `text` in every place that a stranger fills."""
    return record(text, words={"words": text, "b": text}, edited=[text],
                  exercises={"ps1/sgd": [0, text], "ps1/allreduce": [0, text]},
                  code={"sgd": text, text: text})


def pages(tmp_path, *records):
    """Return {path in the folder: text} of what is written."""
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert write_pages(tmp_path / "class" / "fb", Gradebook(records)) == (
        tmp_path / "class" / "fb" / "index.html")
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    return {str(path.relative_to(tmp_path / "class" / "fb")):
            path.read_text(encoding="utf-8") for path in new}


def parsed(page):
    """Return the tags with their attributes, and the text; see that tags are closed."""
    tags, text, stack, parser = [], [], [], HTMLParser()

    def start(tag, attributes):
        tags.append((tag, dict(attributes)))
        if tag != "meta":
            stack.append(tag)

    def end(tag):
        if tag != "meta":
            assert stack.pop() == tag
    parser.handle_starttag, parser.handle_endtag = start, end
    parser.handle_data = text.append
    parser.handle_comment = parser.unknown_decl = lambda data: pytest.fail(data)
    parser.feed(page)
    parser.close()
    assert stack == []
    return tags, "".join(text)


def said(page):
    """Return the text of a page's body, on one line, a word between two tags alone."""
    body = page.partition("<body>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def shown(text):
    """Return `text` as it can stand in a page."""
    text = text.encode("utf-8", "replace").decode().replace("\0", "?")
    return text.replace("\r", "\n")  # as a file is read


# a page a student

def test_a_page_for_each_student_and_one_for_the_instructor(tmp_path):
    written = pages(tmp_path, record(), record("ben"), record("ben", "ps2", exercises={}))
    assert set(written) == {"index.html", "anna.html", "ben.html"}
    tags, text = parsed(written["index.html"])
    links = [attributes["href"] for tag, attributes in tags if tag == "a"]
    assert links == ["anna.html", "ben.html"]


def test_a_students_page_says_points_messages_answers_and_words(tmp_path):
    page = pages(tmp_path, record())["anna.html"]
    assert said(page) == (
        "anna problem set code words points of ps1 2 to be read 2 19 ps1: 2 of 19 points "
        "1.4 A step ps1/sgd 2 of 2 Right. The answer x = 1 "
        "1.3 The sum, everywhere ps1/allreduce 0 of 3 Not yet. 1.7 In words ps1/words "
        f"4 points, to be read by a person {TASK} Because.")
    kinds = [attributes["class"] for tag, attributes in parsed(page)[0] if tag == "span"]
    assert kinds == ["quiet", "right", "quiet", "wrong", "quiet", "quiet"]


def test_parts_of_a_point_are_short_numbers(tmp_path):
    page = said(pages(tmp_path, record(score=0.1 + 0.2, exercises={
        "ps1/sgd": [1.2 / 4, "Half of it."], "ps1/allreduce": [3.0, ""]}))["anna.html"])
    assert "ps1 0.3 to be read 0.3 19" in page and "ps1/sgd 0.3 of 2" in page
    assert "ps1/allreduce 3 of 3" in page


def test_a_text_with_points_and_one_that_was_not_written(tmp_path):
    book = Gradebook([record(), record("ben", words={})])
    text = book.works[book.students.find("anna")]["ps1"].texts["words"]
    text.points, text.comment = 2.5, "Which number?"
    write_pages(tmp_path, book)
    page = said((tmp_path / "anna.html").read_text())
    assert page.endswith(f"ps1/words 2.5 of 4 {TASK} Because. Which number?")
    assert "ps1: 4.5 of 19 points" in page
    assert said((tmp_path / "ben.html").read_text()).endswith(
        f"ps1/words 0 of 4 {TASK} No answer.")


def test_a_notebook_that_was_not_graded_says_why(tmp_path):
    open_file = tmp_path / "ben" / "ps1" / "ps1.ipynb"
    open_file.parent.mkdir(parents=True)
    open_file.touch()
    page = pages(tmp_path, record("ben", note="this is no file", score=0,
                                  file=str(open_file)))["ben.html"]
    assert said(page).endswith("0 of 19 points Not graded: this is no file.")


def test_a_locked_cell_that_was_edited_is_named_and_costs_nothing(tmp_path):
    page = said(pages(tmp_path, record(edited=["check_sgd", "title"]))["anna.html"])
    assert "check_sgd, title" in page and "checksum has changed" in page
    assert "costs no points" in page and "ps1: 2 of 19" in page
    assert "checksum" not in said(pages(tmp_path / "b", record())["anna.html"])


def test_an_exercise_that_there_is_no_more_is_shown_as_it_was(tmp_path):
    page = said(pages(tmp_path, record(exercises={"ps1/old": [3, ""]}))["anna.html"])
    assert "ps1/old 3 of ? Right." in page


def test_without_the_notebooks_a_page_has_no_titles(tmp_path, monkeypatch):
    monkeypatch.setattr(titles_page, "FOLDER", tmp_path)
    titles.cache_clear()
    try:
        page = said(pages(tmp_path, record())["anna.html"])
    finally:
        titles.cache_clear()
    assert "ps1/sgd 2 of 2" in page and "1.4" not in page


def test_a_page_shows_its_own_student_alone(tmp_path):
    written = pages(tmp_path, record(), record("ben"))
    assert "ben" not in written["anna.html"]
    assert "anna" not in written["ben.html"]


@pytest.mark.parametrize("text", STRANGE)
def test_strange_text_is_text_and_its_page_stays_in_the_folder(tmp_path, text):
    mine = everywhere(text) | {"student": "x", "file": "x/ps1/ps1.ipynb"}
    written = pages(tmp_path, mine, record("ben"))
    assert set(written) == {"index.html", "x.html", "ben.html"}
    for page in written.values():
        tags, content = parsed(page)
        assert {tag for tag, _ in tags} <= TAGS
        assert {name for _, attributes in tags for name in attributes} <= {
            "lang", "charset", "class", "href", "id", "name", "content"}
        for tag, attributes in tags:
            if tag == "a":
                assert attributes["href"] in (*written, "#ps1")
        assert "\0" not in page
    if text.strip():
        content = parsed(written["x.html"])[1]
        assert content.count(shown(text)) >= 4
        if len(text) <= 200 and text.isprintable():
            assert " ".join(text.split()) in said(written["index.html"])


@pytest.mark.parametrize("name", STRANGE)
def test_a_page_has_a_plain_name(tmp_path, name):
    for page in pages(tmp_path, record("x", file=f"{name}/ps1/ps1.ipynb")):
        assert re.fullmatch(r"[\w-]{1,90}\.html", page, re.A)


def test_no_page_needs_anything_from_elsewhere(tmp_path):
    for page in pages(tmp_path, record()).values():
        assert re.findall(r"https?:|//|url\(|@import|src=|<link|<script", page) == []


def test_students_with_the_same_plain_name_have_pages_of_their_own(tmp_path):
    names = ["a b", "a_b", "a.b", "anna", "Anna", "ANNA", "a\ud800b", "a\udc00b", "index",
             "Index", "g1/anna", "g2/anna"]
    written = pages(tmp_path, *[record(name, file=f"{name}/ps1/ps1.ipynb",
                                       words={"words": f"text {i}."})
                                for i, name in enumerate(names)])
    assert len({page.lower() for page in written}) == len(names) + 1
    links = [attributes["href"] for tag, attributes in
             parsed(written["index.html"])[0] if tag == "a"]
    assert sorted(said(written[link])[-8:].strip(" t") for link in links) == sorted(
        f"text {i}."[-8:].strip(" t") for i in range(len(names)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_pages_fit_a_screen_wide_or_narrow_light_or_dark(tmp_path, scheme, width):
    mine = everywhere("x" * 300 + " <b> " + "word " * 100)
    write_pages(tmp_path, Gradebook([
        mine | {"file": f"{'y' * 90}/ps1/ps1.ipynb"}, *a_class()]))
    with open_browser() as browser, watched(
            browser, color_scheme=scheme, viewport={"width": width, "height": 800},
    ) as (page, faults):
        for path in sorted(tmp_path.glob("*.html")):
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            text, ground = page.evaluate("(s => [s.color, s.backgroundColor])"
                                         "(getComputedStyle(document.body))")
            assert (sum(channels(text)) < sum(channels(ground))) == (scheme == "light")
        assert faults == []


def channels(color):
    """Return red, green and blue of a color such as rgb(1, 2, 3)."""
    return list(map(int, re.findall(r"\d+", color)[:3]))


# the class

def hint(text):
    return f"given   rows {text}\ngot     [1]\nwanted  [2]\nperhaps {text}"


def a_class():
    """Return records of 8: `split_batch` is hardest, `sgd` tried by half of them."""
    messages = [hint("a row is lost"), hint("a row is lost"), "", "",
                "The answer raised NameError: x\nline 3 of <cell split_batch>: x",
                "Not written yet: the cell still raises NotImplementedError.", "",
                "given   1\ngot     2\nwanted  3"]
    return [record(f"s{i}", exercises={
        "ps1/split_batch": [0 if message else 3, message], "ps1/allreduce": [3, ""]} | (
            {"ps1/sgd": [0, hint("uphill")] if i == 0 else [2, ""]} if i < 2 else {}))
            for i, message in enumerate(messages)]


def test_the_class_page_says_what_to_teach_again_the_worst_first(tmp_path):
    text = said(pages(tmp_path, *a_class())["index.html"])
    again = text.partition("What to teach again")[2].partition("Students")[0]
    assert again.strip() == (
        "1.2 Shards ps1/split_batch not solved by 5 of 8 "
        "2 \u00d7 a row is lost 1 \u00d7 The answer raised NameError: x "
        "1 \u00d7 Not written yet. "
        "1 \u00d7 Other numbers, for a reason that the checks do not know. "
        "1.4 A step ps1/sgd not solved by 1 of 2 1 \u00d7 uphill")


def test_messages_that_differ_in_a_number_are_one(tmp_path):
    text = said(pages(tmp_path, *[record(f"s{i}", exercises={
        "ps1/sgd": [0, hint(f"rank {i} holds rank {i + 1}'s")]}) for i in range(3)])[
            "index.html"])
    assert "3 \u00d7 rank 0 holds rank 1's" in text and text.count("\u00d7") == 1


def test_what_could_not_be_graded_teaches_nothing(tmp_path):
    file = tmp_path / "x" / "ps1" / "ps1.ipynb"  # one that is gone would be left out
    file.mkdir(parents=True)
    bad = record("x", note="this is no file", exercises={"ps1/sgd": [0, "Not graded."]},
                 file=str(file))
    text = said(pages(tmp_path, bad, record(exercises={"ps1/sgd": [2, ""]}))["index.html"])
    assert "2 students" in text and "ps1: not graded: this is no file" in text
    assert "Nothing: all that was handed in is right." in text


def test_many_messages_are_counted(tmp_path):
    text = said(pages(tmp_path, *[record(f"s{i}", exercises={
        "ps1/sgd": [0, f"The answer raised {'abcdefghi'[i]}"]}) for i in range(9)])[
            "index.html"])
    assert text.count("\u00d7 The answer raised") == 6 and "and 3 other messages" in text


def test_the_class_page_has_points_by_student_and_set_and_texts_to_read(tmp_path):
    text = said(pages(tmp_path, record(), record("ben", "ps2", score=7, words={}))[
        "index.html"])
    assert text.startswith("Grades 2 students. 1 text to read.")
    assert text.endswith("student ps1 ps2 total note anna 2 2 ben 7 7 of 19 20 39")


# files

def test_a_page_under_a_name_that_a_student_had_is_gone(tmp_path):
    here, there = (record(file=f"{group}/anna/ps1/ps1.ipynb") for group in "ab")
    carl = record("carl")
    folder = tmp_path / "class" / "fb"
    assert set(pages(tmp_path, here, carl)) == {"index.html", "anna.html", "carl.html"}
    for name in ("notes.html", "anna.css"):  # somebody else's
        (folder / name).write_text('<meta name="student">')
    new = set(pages(tmp_path, here, there))
    assert len(new) == 2 and not new & {"anna.html", "carl.html"}
    assert {path.name for path in folder.iterdir()} == {
        *new, "index.html", "carl.html", "notes.html", "anna.css"}


def test_a_page_stays_where_its_name_goes_to_another_student(tmp_path):
    folder = tmp_path / "class" / "fb"
    pages(tmp_path, record(file="a/anna/ps1/ps1.ipynb"))
    pages(tmp_path, record(file="b/anna/ps1/ps1.ipynb", words={"words": "Other."}))
    assert {path.name for path in folder.iterdir()} == {"index.html", "anna.html"}
    assert "Other." in (folder / "anna.html").read_text()


def test_an_old_page_is_replaced_as_a_whole_or_stays(tmp_path, monkeypatch):
    def write(text):
        write_pages(tmp_path, Gradebook([record(words={"words": text})]))

    write("old")
    names = sorted(tmp_path.rglob("*"))
    before = {path: path.read_bytes() for path in names if path.is_file()}

    def full(*_):
        raise OSError("no space left")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="no space left"):
            write("new")
    assert sorted(tmp_path.rglob("*")) == names
    assert {path: path.read_bytes() for path in before} == before
    write("new")
    assert sorted(tmp_path.rglob("*")) == names
    assert any(b"new" in path.read_bytes() for path in before)
