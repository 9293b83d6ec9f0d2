"""Points for answers in words: handed to a person in a table, and read back.

No answer is run here: see tests/support/classroom.py.
"""

import csv

import pytest

from tests.support.classroom import STUB

WHY = "All ranks may hold the same wrong sum."


def graded(classroom, *paths, html=False):
    """Grade, with the table of words; return the status and what was said."""
    code, out, err = classroom.grade(*paths, "--words", "words.csv",
                                     *["--html", "pages"] * html)
    assert (code, "Traceback" in err) == (0, False), err
    return out


@pytest.fixture
def read(classroom):
    """Return a class of two whose texts wait in words.csv."""
    paths = [classroom.hand_in("anna", words=WHY), classroom.hand_in("ben", words="No."),
             classroom.hand_in("cleo")]
    graded(classroom, *paths)
    classroom.paths = paths
    return classroom


def write_rows(classroom, rows, head=("student", "problem_set", "question", "points"),
               encoding="utf-8", delimiter=","):
    with open(classroom.folder / "words.csv", "w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows([head, *rows])


# made by the run

def test_the_table_has_the_texts_to_read_and_no_other(read):
    assert [(row["student"], row["problem_set"], row["question"], row["points"],
             row["max"], row["text"]) for row in read.rows("words.csv")] == [
        ("anna", "ps1", "words", "", "4", WHY), ("ben", "ps1", "words", "", "4", "No.")]


def test_points_that_wait_for_a_person_are_empty_and_those_of_no_text_are_0(read):
    assert [row["ps1/words"] for row in read.table().values()] == ["", "", "0"]


def test_one_question_comes_after_the_other(classroom):
    graded(classroom, *[classroom.hand_in(student, name, words=WHY) for student in "ab"
                        for name in ("ps2", "ps1")])
    assert [(row["problem_set"], row["student"]) for row in classroom.rows("words.csv")
            ] == [("ps1", "a"), ("ps1", "b"), ("ps2", "a"), ("ps2", "b")]


def test_texts_to_read_counts_those_that_were_written(read):
    assert [row["texts_to_read"] for row in read.table().values()] == ["1", "1", "0"]


@pytest.mark.parametrize("text", ["", " \n", STUB, f"{STUB}\n", f"\n  {STUB}  ",
                                  ["YOUR ANSWER", "HERE"], [STUB, STUB], [STUB, ""]])
def test_an_untouched_text_is_none_to_read(classroom, text):
    classroom.grade(classroom.hand_in("anna", words=text))
    assert classroom.table()["anna"]["texts_to_read"] == "0"


@pytest.mark.parametrize("text", ["x", f"{STUB}: no", f"{STUB}\n\nWhy.", [STUB, "Why."]])
def test_a_text_with_the_stub_in_it_is_one_to_read(classroom, text):
    classroom.grade(classroom.hand_in("anna", words=text))
    assert classroom.table()["anna"]["texts_to_read"] == "1"


def test_texts_of_all_sets_are_in_one_table(classroom):
    graded(classroom, classroom.hand_in("anna", words="one"))
    graded(classroom, classroom.hand_in("anna", "ps5", words="five"))
    assert [(row["problem_set"], row["text"]) for row in classroom.rows("words.csv")] == [
        ("ps1", "one"), ("ps5", "five")]


def test_a_cell_that_is_no_question_of_the_set_is_none(classroom):
    path = classroom.hand_in("anna", words=WHY)
    text = open(path).read().replace('"grade_id": "words"', '"grade_id": "=mine"')
    graded(classroom, classroom.write(path, text))
    assert classroom.table()["anna"]["texts_to_read"] == "0"


# read back

def test_points_are_added_and_the_text_is_read(read):
    read.fill_in(points=lambda row: "3" if row["student"] == "anna" else "0")
    graded(read, *read.paths)
    table = read.table()
    assert [(row["ps1"], row["ps1/words"], row["texts_to_read"])
            for row in table.values()] == [("18", "3", "0"), ("15", "0", "0"),
                                           ("15", "0", "0")]


def test_points_count_when_another_set_is_graded_too(read):
    read.fill_in(points="4")
    graded(read, read.hand_in("anna", "ps2", words="Ring."))
    table = read.table()
    assert (table["anna"]["ps1"], table["anna"]["ps2"]) == ("19", "16")
    assert (table["anna"]["total"], table["ben"]["ps1"]) == ("35", "19")


def test_points_and_comment_are_on_the_page_beside_the_text(read):
    read.fill_in(points="2.5", comment="Which number gives it away? <b>")
    graded(read, *read.paths, html=True)
    page = read.pages()["anna.html"]
    assert WHY in page and "2.5 of\n4" in page or "2.5 of 4" in page
    assert "Which number gives it away? &lt;b&gt;" in page
    assert "17.5" in page and "No." not in page


def test_what_was_filled_in_is_never_overwritten(read):
    read.fill_in(points="3")
    before = (read.folder / "words.csv").read_bytes()
    graded(read, *read.paths)
    assert (read.folder / "words.csv").read_bytes() == before


def test_new_texts_come_below_those_that_were_filled_in(read):
    read.fill_in(points="3", comment="Good.", mine="private")
    graded(read, *read.paths, read.hand_in("dora", words="Mine."))
    rows = read.rows("words.csv")
    assert [(row["student"], row["points"], row["comment"], row["mine"])
            for row in rows] == [("anna", "3", "Good.", "private"),
                                 ("ben", "3", "Good.", "private"), ("dora", "", "", "")]


def test_a_text_that_changed_after_it_got_points_is_read_anew_and_keeps_them_until_then(
        read):
    read.fill_in(points="3")
    graded(read, read.hand_in("anna", words="Better."))
    rows = [row for row in read.rows("words.csv") if row["student"] == "anna"]
    assert [(row["points"], row["text"]) for row in rows] == [("3", WHY), ("", "Better.")]
    row = read.table()["anna"]
    assert (row["ps1"], row["texts_to_read"]) == ("18", "1") and "changed" in row["note"]
    read.fill_in(points=lambda row: row["points"] or "4")
    graded(read, *read.paths)
    row = read.table()["anna"]
    assert (row["ps1"], row["texts_to_read"], row["note"]) == ("19", "0", "")


def test_a_text_that_changed_before_it_got_points_stands_once(read):
    graded(read, read.hand_in("anna", words="Better."))
    rows = [row for row in read.rows("words.csv") if row["student"] == "anna"]
    assert [row["text"] for row in rows] == ["Better."]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_a_table_that_a_spreadsheet_saved_is_read(classroom, delimiter, encoding):
    path = classroom.hand_in("M\u00fcller, J\u00f6rg", words="Gr\u00fcn; \"ja\", nein")
    graded(classroom, path)
    rows = classroom.rows("words.csv")
    rows[0]["points"] = "2,5"
    write_rows(classroom, [row.values() for row in rows], rows[0], encoding, delimiter)
    graded(classroom, path)
    assert classroom.table()["M\u00fcller, J\u00f6rg"]["ps1"] == "17.5"


@pytest.mark.parametrize("name", ["=cmd()", "a\nb", "'x", "-1", "a,b", " x"])
def test_a_strange_name_is_found_again(classroom, name):
    path = classroom.hand_in(name, words="=cmd()|x\nline two")
    graded(classroom, path)
    assert not classroom.rows("words.csv")[0]["text"].startswith("=")
    assert not classroom.rows("words.csv")[0]["student"].startswith(("=", "-"))
    classroom.fill_in(points="4")
    graded(classroom, path)
    assert [row["ps1"] for row in classroom.rows("grades.csv")] == ["19"]


def test_a_row_that_an_instructor_adds_counts(read):
    write_rows(read, [["cleo", "ps1", "words", "2"]])
    graded(read, *read.paths)
    assert read.table()["cleo"]["ps1"] == "17"


def test_names_that_were_unique_when_points_were_given_are_asked_for(classroom):
    one = classroom.hand_in("group1/anna", words=WHY)
    graded(classroom, one)
    classroom.fill_in(points="4")
    line = classroom.refused(one, classroom.hand_in("group2/anna", words="x"),
                             "--words", "words.csv")
    assert "words.csv, line 2" in line
    assert "group1/anna" in line and "group2/anna" in line


def test_points_without_a_text_of_this_run_stay(read):
    """A journal that was lost does not cost what a person has filled in."""
    read.fill_in(points="3")
    (read.folder / "grades.csv.journal").unlink()
    before = (read.folder / "words.csv").read_bytes()
    graded(read, *read.paths)
    assert (read.folder / "words.csv").read_bytes() == before
    assert read.table()["anna"]["ps1"] == "18"


# refused, before any work

ROWS = {
    "unknown student": (["zoe", "ps1", "words", "3"], "'zoe'"),
    "no student": (["", "ps1", "words", "3"], "student"),
    "unknown set": (["anna", "ps99", "words", "3"], "'ps99'"),
    "set not handed in": (["anna", "ps2", "words", "3"], "ps2"),
    "unknown question": (["anna", "ps1", "why", "3"], "'why'"),
    "an exercise of code": (["anna", "ps1", "sgd", "3"], "'sgd'"),
    "too many": (["anna", "ps1", "words", "5"], "4"),
    "a little too many": (["anna", "ps1", "words", "4.01"], "4"),
    "negative": (["anna", "ps1", "words", "-1"], "-1"),
    "words": (["anna", "ps1", "words", "three"], "'three'"),
    "nan": (["anna", "ps1", "words", "nan"], "'nan'"),
    "infinite": (["anna", "ps1", "words", "inf"], "'inf'"),
    "a formula": (["anna", "ps1", "words", "=1+1"], "'=1+1'"),
    "huge": (["anna", "ps1", "words", "9" * 400], "4"),
    "underscore": (["anna", "ps1", "words", "1_0"], "'1_0'"),
}


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_that_cannot_be_is_named_by_its_line(read, kind):
    row, word = ROWS[kind]
    write_rows(read, [["ben", "ps1", "words", "1"], row])
    before = {path: path.read_bytes() for path in read.folder.glob("*.*")}
    line = read.refused(*read.paths, read.hand_in("zara"), "--words", "words.csv")
    assert "words.csv, line 3: " in line and word in line and len(line) < 300
    assert {path: path.read_bytes() for path in read.folder.glob("*.*")} == before


def test_points_twice_for_one_text_are_refused(read):
    write_rows(read, [["anna", "ps1", "words", "1"], ["ben", "ps1", "words", "1"],
                      ["anna", "ps1", "words", "2"]])
    line = read.refused(*read.paths, "--words", "words.csv")
    assert "line 4: " in line and "line 2" in line


def test_a_line_is_counted_as_an_editor_counts_it(read):
    write_rows(read, [["ben", "ps1", "words", "1", "two\nlines"],
                      ["anna", "ps1", "words", "9", ""]],
               ["student", "problem_set", "question", "points", "text"])
    assert "words.csv, line 4: " in read.refused(*read.paths, "--words", "words.csv")


@pytest.mark.parametrize("content, words", [
    (b"name,set\nx,y\n", "line 1: no column is called 'student'"),
    (b"student,problem_set,question\n", "line 1: no column is called 'points'"),
    (b"student,problem_set,question,points\nanna,ps1\n", "line 2"),
    (b'student,problem_set,question,points\n"anna,ps1,words,3\n', "line "),
    (b"PK\x03\x04" + b"\0" * 99, "line 1"), (b"\xff\xfe\xfa", "words.csv")])
def test_a_file_that_is_no_such_table_is_refused(read, content, words):
    (read.folder / "words.csv").write_bytes(content)
    line = read.refused(*read.paths, "--words", "words.csv")
    assert words in line and (read.folder / "words.csv").read_bytes() == content


def test_without_a_table_of_grades_points_have_no_place(read):
    line = read.refused(*read.paths, "--words", "words.csv", csv=None)
    assert "--words needs --csv" in line


def test_a_folder_in_its_place_is_refused(read):
    (read.folder / "here").mkdir()
    assert "'here'" in read.refused(*read.paths, "--words", "here")


def test_a_blank_row_costs_nothing(read):
    write_rows(read, [[], ["", "", "", ""], ["anna", "ps1", "words", " 3 "]])
    graded(read, *read.paths)
    assert read.table()["anna"]["ps1"] == "18"


def test_the_command_says_how_many_texts_wait_and_where(read):
    out = graded(read, *read.paths)
    assert "2 texts to read" in out and "words.csv" in out
