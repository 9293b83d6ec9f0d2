"""What the grader remembers: whole lines, of this notebook, of these checks."""

import json
import os

import pytest

from manual_dp.school.grader import journal
from manual_dp.school.grader.journal import Journal


@pytest.fixture
def path(tmp_path):
    """Return the path of a notebook; the journal will be beside it."""
    path = tmp_path / "anna.ipynb"
    path.write_text("one")
    return path


def opened(path):
    return Journal(path.with_name("journal"))


def lines(path):
    return path.with_name("journal").read_bytes().splitlines()


def remember(path, **record):
    memory = opened(path)
    memory.add(path, record)
    memory.close()


def found(path):
    memory = opened(path)
    try:
        return memory.find(path)
    finally:
        memory.close()


def test_what_was_added_is_found_again(path):
    remember(path, score=3, note="\ud800 \u00e5\n")
    record = found(path)
    assert (record["score"], record["note"]) == (3, "\ud800 \u00e5\n")


def test_what_was_added_is_found_at_once_and_is_on_the_disk(path):
    memory = opened(path)
    assert memory.find(path) is None
    memory.add(path, {"score": 3})
    assert memory.find(path)["score"] == json.loads(lines(path)[0])["score"] == 3
    memory.close()


def test_a_journal_only_grows(path):
    remember(path, score=1)
    first = path.with_name("journal").read_bytes()
    remember(path.with_name("ben.ipynb"), score=2)
    assert path.with_name("journal").read_bytes().startswith(first)
    assert len(lines(path)) == 2 and found(path)["score"] == 1


def test_of_two_lines_for_one_notebook_the_last_counts(path):
    remember(path, score=1)
    remember(path, score=2)
    assert found(path)["score"] == 2


def test_a_changed_notebook_is_not_found(path):
    remember(path, score=3)
    path.write_text("two")
    assert found(path) is None
    path.write_text("one")
    assert found(path)["score"] == 3


def test_the_same_notebook_of_another_learner_is_not_found(path):
    remember(path, score=3)
    (path.parent / "ben.ipynb").write_text("one")
    assert found(path.parent / "ben.ipynb") is None


def test_one_notebook_under_two_spellings_of_its_path_is_one(path, monkeypatch):
    remember(path, score=3)
    monkeypatch.chdir(path.parent)
    memory = Journal("journal")
    again = f"../{path.parent.name}/./anna.ipynb"
    assert memory.find("anna.ipynb") == memory.find(again) is not None
    memory.close()


def test_a_large_notebook_that_grows_is_told_by_its_first_bytes(path, monkeypatch):
    monkeypatch.setattr(journal, "LARGEST", 2)
    remember(path, score=0)
    path.write_text("one more")  # both are too large to be graded
    assert found(path)["score"] == 0
    path.write_text("on")
    assert found(path) is None


@pytest.mark.parametrize("make", [
    lambda path: None, lambda path: path.mkdir(), lambda path: os.mkfifo(path),
    lambda path: path.symlink_to("gone"), lambda path: path.symlink_to(path)])
def test_what_cannot_be_read_is_remembered_too(path, make):
    odd = path.with_name("odd.ipynb")
    make(odd)
    memory = opened(path)
    memory.add(odd, {"note": "no file"})
    assert memory.find(odd)["note"] == "no file"
    memory.close()


def test_names_that_are_no_text_have_records_of_their_own(path):
    memory = opened(path)
    names = ["a\udcff.ipynb", "a\udcfe.ipynb", "a\0.ipynb", "a\n.ipynb", ""]
    for i, name in enumerate(names):
        memory.add(name, {"score": i})
    memory.close()
    memory = opened(path)
    assert [memory.find(name)["score"] for name in names] == [0, 1, 2, 3, 4]
    memory.close()


@pytest.mark.parametrize("cut", [1, 20, 60, -2])
def test_a_line_that_was_cut_off_is_forgotten_and_the_next_is_whole(path, cut):
    other = path.with_name("ben.ipynb")
    remember(path, score=3)
    remember(other, score=4)
    file = path.with_name("journal")
    whole = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(whole[0] + whole[1][:cut])
    assert (found(path)["score"], found(other)) == (3, None)
    remember(other, score=5)
    assert (found(path)["score"], found(other)["score"]) == (3, 5)


def test_a_last_line_without_its_end_is_whole(path):
    remember(path, score=3)
    file = path.with_name("journal")
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    remember(path.with_name("ben.ipynb"), score=4)
    assert found(path)["score"] == 3 and len(lines(path)) == 2


@pytest.mark.parametrize("line", [
    b"", b"nonsense", b"\xff\xfe", b"null", b"7", b'"text"', b"[]", b"{}", b"[[]]",
    b'{"checks": 1}', b'{"checks": "CHECKS"}', b'{"checks": "CHECKS", "key": []}',
    b'{"key": "KEY"}', b'{"checks": "older", "key": "KEY", "file": "a", "score": 9}',
    b'{"checks": "CHECKS", "key": "KEY", "score": 9}', b"\0" * 40])
def test_a_line_of_another_form_is_passed_over(path, line):
    line = line.replace(b"CHECKS", journal._checks().encode())
    memory = opened(path)
    line = line.replace(b"KEY", memory.key(path).encode())
    memory.close()
    path.with_name("journal").write_bytes(line + b"\n")
    assert found(path) is None
    remember(path, score=3)
    assert found(path)["score"] == 3 and lines(path)[0] == line


def test_grades_of_other_checks_are_not_found(path, monkeypatch):
    remember(path, score=3)
    monkeypatch.setattr(journal, "_checks", lambda: "new")
    assert found(path) is None
    remember(path, score=4)
    assert found(path)["score"] == 4
    monkeypatch.undo()
    assert found(path)["score"] == 3


def test_the_checks_are_others_when_a_file_of_the_course_is(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "PACKAGE", tmp_path)
    (tmp_path / "school" / "ps1").mkdir(parents=True)
    seen = {journal._checks()}
    for name in ["lenet.py", "school/ps1/judge.py", "school/checks.py", "school/ps1/run.py"]:
        (tmp_path / name).write_text("new")
        seen.add(journal._checks())
    (tmp_path / "notes.txt").write_text("new")
    assert len(seen) == 5 and journal._checks() in seen


def test_the_checks_are_those_of_this_course():
    assert sorted(journal.PACKAGE.glob("school/grader/journal.py")) != []
    assert journal._checks() == journal._checks()


def test_two_graders_cannot_write_one_journal(path):
    memory = opened(path)
    memory.add(path, {"score": 3})
    before = lines(path)
    with pytest.raises(RuntimeError, match=f"another grader is writing "
                                           f"{path.with_name('journal')}$"):
        opened(path)
    assert lines(path) == before
    memory.close()
    assert found(path)["score"] == 3


def test_without_a_path_it_remembers_in_memory_alone(path):
    memory, other = Journal(None), Journal(None)
    memory.add(path, {"score": 3})
    assert memory.find(path)["score"] == 3 and other.find(path) is None
    memory.close()
    other.close()
    assert sorted(path.parent.iterdir()) == [path]


def test_a_journal_in_a_missing_folder_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError, match="no/journal"):
        Journal(tmp_path / "no" / "journal")
