"""Tables and pages: whatever strangers wrote is text in them, and stays in its place."""

import csv
import os
import re
from html.parser import HTMLParser

import pytest

from manual_dp.school.grader.feedback import write_csv, write_pages

STRANGE = ["=cmd()", "+1", "-1", "@x", "../../x", "/etc/passwd", "..", ".", "", " ",
           "<script>alert(1)</script>", "\"><img src=x onerror=y>", "' onclick='z",
           "a\nb", "a\r=1+1", "\t=1+1", "\n=1+1", "  =1+1", "\0=1+1", "a\0b", "\ud800",
           "a\udcff", "\u202egnp.exe", "\uff1d1+1", "{title}", "{0}", "%s", "a,b;c",
           'say "hi"', "</pre></details>", "&lt;b&gt;", "x" * 300, "\u5f20\u4f1f",
           "con", "index.html", "javascript:x", "\x1b[2J", "-rf", "<!--", "]]>"]
OPTIONAL = {"html", "meta", "tr", "td", "th"}  # HTML lets their ends be left out


def record(student="anna", file="anna/ps1/ps1.ipynb", **changes):
    return {"student": student, "problem_set": "ps1", "score": 2, "max_score": 5,
            "exercises": {"ps1/sgd": [2, ""], "ps1/allreduce": [0, "Not yet."]},
            "words": {"why": "Because."}, "code": {"sgd": "x = 1"}, "note": "",
            "file": file, **changes}


def everywhere(text):
    """Return a record that has `text` in every place that a stranger fills."""
    return record(text, text, note=text, words={text: text, "b": text},
                  exercises={"ps1/sgd": [0, text], "ps1/allreduce": [0, text]},
                  code={"sgd": text, text: text})


def rows(tmp_path, *records):
    write_csv(tmp_path / "grades.csv", records)
    with open(tmp_path / "grades.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def pages(tmp_path, *records):
    """Return {path in the folder: text} of what is written."""
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert write_pages(tmp_path / "class" / "fb", records) == (
        tmp_path / "class" / "fb" / "index.html")
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    return {str(path.relative_to(tmp_path / "class" / "fb")):
            path.read_text(encoding="utf-8") for path in new}


def parsed(page):
    """Return the tags with their attributes, and the text; see that tags are closed."""
    tags, text, stack, parser = [], [], [], HTMLParser()

    def start(tag, attributes):
        tags.append((tag, dict(attributes)))
        if tag not in OPTIONAL:
            stack.append(tag)

    def end(tag):
        if tag not in OPTIONAL:
            assert stack.pop() == tag
    parser.handle_starttag, parser.handle_endtag = start, end
    parser.handle_data = text.append
    parser.handle_comment = parser.unknown_decl = lambda data: pytest.fail(data)
    parser.feed(page)
    parser.close()
    assert stack == []
    return tags, "".join(text)


def shown(text):
    """Return `text` as it can stand in a page."""
    text = text.encode("utf-8", "replace").decode().replace("\0", "?")
    return text.replace("\r", "\n")  # as a file is read


# the table

def test_a_row_for_each_record_and_a_column_for_each_exercise(tmp_path):
    other = record("ben", "ben.ipynb", exercises={"ps2/tree": [4, ""]}, words={},
                   problem_set="ps2", score=4, max_score=6, note="odd")
    assert rows(tmp_path, record(), other) == [
        {"student": "anna", "problem_set": "ps1", "score": "2", "max_score": "5",
         "ps1/sgd": "2", "ps1/allreduce": "0", "ps2/tree": "", "texts_to_read": "1",
         "note": "", "file": "anna/ps1/ps1.ipynb"},
        {"student": "ben", "problem_set": "ps2", "score": "4", "max_score": "6",
         "ps1/sgd": "", "ps1/allreduce": "", "ps2/tree": "4", "texts_to_read": "0",
         "note": "odd", "file": "ben.ipynb"}]


def test_a_table_of_nobody_has_its_heads(tmp_path):
    assert rows(tmp_path) == []
    assert (tmp_path / "grades.csv").read_text().startswith('"student","problem_set"')


@pytest.mark.parametrize("text", STRANGE)
def test_a_strange_name_is_one_cell_of_one_row_and_no_formula(tmp_path, text):
    table = rows(tmp_path, record(text, text, note=text), record("ben"))
    assert [row["score"] for row in table] == ["2", "2"]
    assert table[1]["student"] == "ben" and None not in table[0]
    for column in ("student", "note", "file"):
        cell = table[0][column]
        assert not re.match(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]", cell)
        plain = re.sub(r"[\0-\x1f\x7f]", " ", shown(text))
        assert cell in (plain, "'" + plain)
    data = (tmp_path / "grades.csv").read_bytes()
    assert data.count(b"\n") == 3 and b"\r" not in data and b"\0" not in data
    # also where a spreadsheet takes ; for a comma, text cannot leave its quotes
    assert re.match(rb'"[^"]*(""[^"]*)*","ps1",2,5,', data.splitlines()[1])


@pytest.mark.parametrize("text", ["anna", "a b", "1-1", "x=1", "\u5f20\u4f1f", "'x"])
def test_a_name_that_is_no_formula_is_left_alone(tmp_path, text):
    assert rows(tmp_path, record(text))[0]["student"] == text


# the pages

def test_a_page_for_each_learner_and_one_for_the_instructor(tmp_path):
    written = pages(tmp_path, record(), record("ben", "ben/ps1/my_own.ipynb"))
    assert set(written) == {"index.html", "anna/ps1.html", "ben/my_own.html"}
    tags, text = parsed(written["index.html"])
    links = [attributes["href"] for tag, attributes in tags if tag == "a"]
    assert links == ["anna/ps1.html", "ben/my_own.html"]
    assert "2 of 5" in text and "ps1/sgd2 of 2" in text and "ps1/allreduce0 of 2" in text


def test_a_learners_page_says_points_messages_answers_and_words(tmp_path):
    tags, text = parsed(pages(tmp_path, record(note="Late."))["anna/ps1.html"])
    assert re.sub(r"\s+", " ", text.partition("}\n")[2].rpartition("}")[2]).strip() == (
        "ps1, anna 2 of 5 points for code. Late. ps1/sgd 2 of 2Right. The answer"
        "x = 1 ps1/allreduce 0 of 3Not yet. why read by a personBecause.")
    kinds = [attributes["class"] for tag, attributes in tags if tag == "span"]
    assert kinds == ["right", "wrong"]


def test_a_page_shows_its_own_learner_alone(tmp_path):
    written = pages(tmp_path, record(), record("ben", "ben/ps1/ps1.ipynb"))
    assert "ben" not in written["anna/ps1.html"]
    assert "anna" not in written["ben/ps1.html"]


@pytest.mark.parametrize("text", STRANGE)
def test_strange_text_is_text_and_its_page_stays_in_the_folder(tmp_path, text):
    written = pages(tmp_path, everywhere(text), record("ben", "ben.ipynb"))
    assert len(written) == 3 and not any(name.startswith("..") for name in written)
    for page in written.values():
        tags, content = parsed(page)
        assert {tag for tag, _ in tags} <= {
            "html", "meta", "title", "style", "h1", "h2", "p", "table", "tr", "td", "th",
            "a", "span", "pre", "details", "summary", "small"}
        assert {name for _, attributes in tags for name in attributes} <= {
            "lang", "charset", "class", "href"}
        for tag, attributes in tags:
            if tag == "a":
                assert attributes["href"] in written
        if "ben" not in page:
            assert content.count(shown(text)) >= 6
        assert "\0" not in page


@pytest.mark.parametrize("name", STRANGE)
def test_a_page_has_a_plain_name(tmp_path, name):
    for page in pages(tmp_path, record(name, f"{name}/ps1/{name}.ipynb")):
        assert re.fullmatch(r"[\w-]{1,90}/[\w-]{1,90}\.html|index\.html", page, re.A)


def test_no_page_needs_anything_from_elsewhere(tmp_path):
    for page in pages(tmp_path, record()).values():
        assert re.findall(r"https?:|//|url\(|@import|src=|<link|<script", page) == []


def test_learners_with_the_same_plain_name_have_pages_of_their_own(tmp_path):
    names = ["a b", "a_b", "a.b", "a/b", "anna", "Anna", "ANNA", "a\ud800b", "a\udc00b"]
    written = pages(tmp_path, *[record(name, f"{i}/ps1.ipynb", note=f"note {i}.")
                                for i, name in enumerate(names)])
    assert len({page.lower() for page in written}) == len(names) + 1
    assert len({page.partition("/")[0] for page in written}) == len(names) + 1
    links = [attributes["href"] for tag, attributes in
             parsed(written["index.html"])[0] if tag == "a"]
    for i, link in enumerate(links):
        assert f"note {i}." in written[link]


def test_many_notebooks_of_one_learner_have_pages_of_their_own(tmp_path):
    files = ["a/ps1/x.ipynb", "b/a/ps1/x.ipynb", "c/a/ps1/x.ipynb", "c/a/ps1/x.ipynb"]
    first = pages(tmp_path, *[record(file=file) for file in files])
    assert len(first) == 5
    # a file that is called as another one's page will be
    taken = next(re.fullmatch(r"anna/(x-\w+)\.html", page)[1] for page in sorted(first)
                 if page.startswith("anna/x-"))
    (tmp_path / "again").mkdir()
    files = [f"{taken}.ipynb", *files]
    assert len(pages(tmp_path / "again", *[record(file=file) for file in files])) == 6


# files

@pytest.mark.parametrize("write", [
    lambda folder, text: write_csv(folder / "x", [record(text)]),
    lambda folder, text: write_pages(folder, [record(note=text)])])
def test_an_old_file_is_replaced_as_a_whole_or_stays(tmp_path, monkeypatch, write):
    write(tmp_path, "old")
    names = sorted(tmp_path.rglob("*"))
    before = {path: path.read_bytes() for path in names if path.is_file()}

    def full(*_):
        raise OSError("no space left")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="no space left"):
            write(tmp_path, "new")
    assert sorted(tmp_path.rglob("*")) == names
    assert {path: path.read_bytes() for path in before} == before
    write(tmp_path, "new")
    assert sorted(tmp_path.rglob("*")) == names
    assert any(b"new" in path.read_bytes() for path in before)
