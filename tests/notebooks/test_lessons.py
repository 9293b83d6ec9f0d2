"""notebooks/tools/lessons.py: what a newcomer sees when lessons run, fail, or are stopped.

A test runs the program as `make course` does, on lessons of a few cells.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import lessons as program  # notebooks/tools, which pyproject.toml puts on the path
import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

COURSE = Path(__file__).parents[2] / "notebooks" / "tools" / "lessons.py"


def write_lesson(path, *cells, tags=None, metadata=None):
    """Write a lesson whose code cells have the ids c0, c1, ... and `tags[id]`.

    They have a number of an earlier run, which none may keep.
    """
    code = [new_code_cell(source, id=f"c{i}", execution_count=9)
            for i, source in enumerate(cells)]
    for cell in code:
        if cell.id in (tags or {}):
            cell.metadata.tags = [tags[cell.id]]
    head = new_markdown_cell(
        f"# Lesson <{path.stem}>\n\n*You will learn:* to count.\n\n"
        "and `a[0](b)`", id="title")
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=[head, *code], metadata=metadata or {}), path)


def command(folder, *flags):
    return [sys.executable, str(COURSE), "--notebooks", str(folder),
            "--out", str(folder.parent / "out"), *flags]


def course(folder, *flags, **env):
    return subprocess.run(command(folder, *flags), capture_output=True, text=True,
                          timeout=60, env=os.environ | env)


def processes_in(folder):
    """Return the processes whose working directory is `folder`: kernels, children."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != "zombie":
                found.append(process)
        except psutil.Error:
            pass
    return found


def code_cells(path):
    return [c for c in nbformat.read(path, 4).cells if c.cell_type == "code"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Five lessons, three of which fail, after one run of the course."""
    root = tmp_path_factory.mktemp("course")
    foreign = root / "jupyter" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    (foreign / "kernel.json").write_text(json.dumps(
        {"argv": ["no-such-python"], "display_name": "x", "language": "python"}))
    folder = root / "notebooks"
    write_lesson(folder / "00_fine.ipynb", "import os, sys", "",
                 "print(sys.executable, os.getcwd())",
                 metadata={"kernelspec": {"name": "conda-env-x", "display_name": "x"}})
    write_lesson(folder / "01_raises.ipynb", "'before'",
                 "raise ValueError('bad <news>\\nand more')", "'after'")
    write_lesson(folder / "02_dies.ipynb", "'before'", "import os; os._exit(0)", "1")
    write_lesson(folder / "03_exits.ipynb", "'before'", "exit()")
    write_lesson(folder / "04_last.ipynb", "import psutil",
                 "print(len(psutil.Process().net_connections('tcp')))")
    write_lesson(folder / "notes.ipynb", "raise ValueError('not a lesson')")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    (root / "tmp").mkdir()
    done = course(folder, JUPYTER_PATH=str(root / "jupyter"), TMPDIR=str(root / "tmp"),
                  JUPYTER_RUNTIME_DIR=str(root / "runtime"))
    return folder, root / "out", done, before


def test_the_table_has_a_row_for_every_lesson_in_order(mixed):
    rows = mixed[2].stdout.splitlines()[1:6]
    assert [row.split()[0] for row in rows] == [
        "00_fine", "01_raises", "02_dies", "03_exits", "04_last"]
    assert all(float(row.split()[1]) > 0 for row in rows)


def test_a_failed_lesson_names_its_cell_and_the_error_and_the_next_runs(mixed):
    results = [row.split(maxsplit=2)[2] for row in mixed[2].stdout.splitlines()[1:6]]
    assert results == ["ok", "FAILED in cell c1: ValueError: bad <news>",
                       "FAILED in cell c1: Kernel died",
                       "FAILED in cell c1: exit() ends the kernel", "ok"]


def test_the_exit_status_is_1_if_a_lesson_failed(mixed):
    assert mixed[2].returncode == 1


def test_nothing_is_said_but_the_table_and_where_the_book_is(mixed):
    assert mixed[2].stderr == ""
    lines = mixed[2].stdout.splitlines()
    assert len(lines) == 8
    assert re.fullmatch(r"the book +\d+\.\d  7 pages", lines[6])
    assert lines[7] == f"Open {mixed[1] / 'index.html'}"


def test_the_kernel_is_this_python_in_the_folder_of_the_lessons(mixed):
    # though the lesson names another, and another of the same name is installed
    folder, out, _, _ = mixed
    assert code_cells(out / "_sources" / "00_fine.ipynb")[-1].outputs[0].text == (
        f"{sys.executable} {folder}\n")


def test_execution_counts_run_from_1_and_leave_out_empty_cells(mixed):
    counts = [cell.execution_count for cell in code_cells(mixed[1] / "_sources" / "00_fine.ipynb")]
    assert counts == [1, None, 2]


def test_a_failed_lesson_is_kept_as_far_as_it_ran(mixed):
    cells = code_cells(mixed[1] / "_sources" / "01_raises.ipynb")
    assert [cell.execution_count for cell in cells] == [1, 2, None]
    assert cells[1].outputs[0].ename == "ValueError"
    assert "ValueError" in (mixed[1] / "01_raises.html").read_text()


def test_the_lessons_themselves_stay_as_they_were(mixed):
    assert {path: path.read_bytes() for path in mixed[0].iterdir()} == mixed[3]


def test_the_first_page_shows_every_lesson_with_title_and_seconds(mixed):
    index = (mixed[1] / "index.html").read_text()
    for name in ("00_fine", "01_raises", "02_dies", "03_exits", "04_last"):
        assert f'href="{name}.html"' in index and f"Lesson &lt;{name}&gt;" in index
        assert (mixed[1] / f"{name}.html").exists()
    assert index.count("To count.") == 5
    assert "notes" not in index


def test_a_failure_stands_on_the_first_page_and_on_its_own(mixed):
    for page in ("index.html", "01_raises.html"):
        assert "FAILED in cell c1: ValueError: bad &lt;news&gt;" in (mixed[1] / page).read_text()
    assert "FAILED" not in (mixed[1] / "00_fine.html").read_text()


def test_no_kernel_is_left_behind(mixed):
    assert processes_in(mixed[0]) == []


def test_a_kernel_is_spoken_to_through_files_and_leaves_none(mixed):
    # neither one that ended well nor one that died
    folder, out, _, _ = mixed
    # one port is ipykernel's own, which draws and binds it at once, for what children print
    assert int(code_cells(out / "_sources" / "04_last.ipynb")[1].outputs[0].text) <= 1
    assert list((folder.parent / "tmp").iterdir()) == []
    assert list(folder.parent.glob("runtime/*")) == []


def test_where_a_sockets_path_would_be_too_long_a_kernel_has_ports(tmp_path):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    folder = tmp_path / "notebooks"
    write_lesson(folder / "00_fine.ipynb", "import psutil",
                 "print(len(psutil.Process().net_connections('tcp')))")
    done = course(folder, "--refresh", TMPDIR=str(long))
    assert done.returncode == 0
    assert int(code_cells(folder / "00_fine.ipynb")[1].outputs[0].text) >= 5
    assert list(long.iterdir()) == []


def test_one_lesson_can_be_chosen_and_the_others_are_in_the_book_as_stored(tmp_path):
    folder = tmp_path / "notebooks"
    python = {"kernelspec": program.KERNEL}
    write_lesson(folder / "02_raises.ipynb", "1 / 0", metadata=python)
    write_lesson(folder / "03_fine.ipynb", "6 * 7")
    done = course(folder, "--lesson", "3")
    assert done.returncode == 0
    assert first_words(done) == ["03_fine", "the", "Open"]
    sources = tmp_path / "out" / "_sources"
    assert code_cells(sources / "03_fine.ipynb")[0].outputs[0].data == {"text/plain": "42"}
    assert code_cells(sources / "02_raises.ipynb")[0].execution_count == 9
    assert "as stored" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize("flags", [["--lesson", "07"], ["--lesson", "seven"], []])
def test_a_lesson_that_does_not_exist_is_an_error_of_one_line(tmp_path, capsys, flags):
    with pytest.raises(SystemExit) as ended:
        program.main(["--notebooks", str(tmp_path), *flags])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == "" and "error: no such lesson in " in err.splitlines()[-1]


def test_an_endless_cell_fails_by_its_time_limit(tmp_path):
    folder = tmp_path / "notebooks"
    write_lesson(folder / "00_endless.ipynb", "1", "while True: pass")
    done = course(folder, "--refresh", "--timeout", "1")
    assert done.returncode == 1
    assert "FAILED in cell c1: " in done.stdout and "timed out" in done.stdout
    assert processes_in(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_course_leaves_no_process_and_runs_no_further_lesson(
        tmp_path, number):
    folder = tmp_path / "notebooks"
    write_lesson(folder / "00_long.ipynb",
                 "import subprocess, time\nsleeper = subprocess.Popen(['sleep', '60'])",
                 "open('started', 'w').close(); time.sleep(60)")
    write_lesson(folder / "01_next.ipynb", "open('next', 'w').close()")
    (tmp_path / "tmp").mkdir()
    # a shell's background job ignores Ctrl-C, and so would what it starts
    running = subprocess.Popen(
        command(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    deadline = time.monotonic() + 30
    try:
        while not (folder / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(processes_in(folder)) == 2
        running.send_signal(number)
        _, errors = running.communicate(timeout=20)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130
    assert errors == ""
    assert processes_in(folder) == [] == list((tmp_path / "tmp").iterdir())
    assert not (folder / "next").exists() and not (tmp_path / "out").exists()


def test_a_course_that_is_stopped_in_the_book_leaves_the_old_one(tmp_path):
    folder, out = tmp_path / "notebooks", tmp_path / "out"
    write_lesson(folder / "00_fine.ipynb", "1")
    out.mkdir()
    (out / "index.html").write_text("the old one")
    running = subprocess.Popen(command(folder), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout.readline() and "ok" in running.stdout.readline()
        deadline, children = time.monotonic() + 30, []
        while not children and time.monotonic() < deadline:
            children = psutil.Process(running.pid).children()
        assert list(tmp_path.glob(".out-*/said"))
        running.terminate()
        _, errors = running.communicate(timeout=20)
    finally:
        running.kill()
        running.wait()
    assert (running.returncode, errors) == (130, "")
    assert psutil.wait_procs(children, timeout=1)[1] == []  # it waits for them itself
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["notebooks", "out"]
    assert (out / "index.html").read_text() == "the old one"


@pytest.mark.parametrize("address", ["mine", "http://github.com/a/b",
                                     "https://github.com/a"])
def test_an_address_that_is_none_is_an_error_of_one_line(tmp_path, capsys, address):
    with pytest.raises(SystemExit) as ended:
        program.main(["--notebooks", str(tmp_path), "--repository", address])
    assert ended.value.code == 2
    assert "--repository is no https://" in capsys.readouterr().err.splitlines()[-1]


FIGURE = """%matplotlib inline
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.show()"""
STREAMS = """import sys
for word in ("one", "two"):
    print(word, flush=True)
    print("warned", file=sys.stderr, flush=True)"""


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory):
    """A lesson full of what changes from run to run, refreshed once."""
    path = tmp_path_factory.mktemp("refresh") / "notebooks" / "00_all.ipynb"
    write_lesson(path, STREAMS, FIGURE, "import time\ntime.perf_counter()", "6 * 7",
                 tags={"c2": "nbval-ignore-output"},
                 metadata={"language_info": {"name": "python", "version": "3.8"},
                           "kernelspec": {"name": "x", "display_name": "x"}})
    nb = nbformat.read(path, 4)
    nb.cells[1].metadata["execution"] = {"iopub.status.busy": "2020-01-01T00:00:00Z"}
    nbformat.write(nb, path)
    return path, course(path.parent, "--refresh")


def test_refresh_says_what_it_did_and_writes_no_pages(refreshed):
    path, done = refreshed
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].endswith("  refreshed")
    assert not (path.parents[1] / "out").exists()
    assert [file.name for file in path.parent.iterdir()] == ["00_all.ipynb"]


def test_the_stored_form_has_nothing_of_the_machine_or_the_run(refreshed):
    nb = nbformat.read(refreshed[0], 4)
    assert nb.metadata == {"kernelspec": {
        "name": "python3", "display_name": "Python 3 (ipykernel)",
        "language": "python"}}
    assert [cell.id for cell in nb.cells] == ["title", "c0", "c1", "c2", "c3"]
    assert [cell.metadata for cell in nb.cells] == [
        {}, {}, {}, {"tags": ["nbval-ignore-output"]}, {}]
    assert [cell.execution_count for cell in nb.cells[1:]] == [1, 2, 3, 4]


def test_the_stored_form_keeps_outputs_and_merges_streams(refreshed):
    streams, figure, _, value = code_cells(refreshed[0])
    assert [(o.name, o.text) for o in streams.outputs] == [
        ("stdout", "one\ntwo\n"), ("stderr", "warned\nwarned\n")]
    assert "image/png" in figure.outputs[0].data
    assert value.outputs[0].data == {"text/plain": "42"}


def test_the_stored_file_is_written_as_git_likes_it(refreshed):
    text = refreshed[0].read_bytes().decode()
    assert text.startswith('{\n "cells": [\n  {\n')
    assert text.endswith("}\n") and not text.endswith("\n\n")


def test_refresh_of_an_unchanged_lesson_leaves_the_same_bytes(refreshed):
    path, _ = refreshed
    before, written = path.read_bytes(), path.stat().st_mtime_ns
    done = course(path.parent, "--refresh")
    assert done.stdout.splitlines()[1].endswith("  unchanged")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, written)


def test_refresh_stores_new_timings_beside_a_new_output(tmp_path):
    path = tmp_path / "notebooks" / "00_timed.ipynb"
    write_lesson(path, "1", "'new'", tags={"c1": "nbval-ignore-output"})
    nb = nbformat.read(path, 4)
    for cell, text in zip(nb.cells[1:], ("0", "'old'")):
        cell.outputs = [nbformat.v4.new_output(
            "execute_result", {"text/plain": text}, execution_count=1)]
    nbformat.write(nb, path)
    course(path.parent, "--refresh")
    assert [cell.outputs[0].data["text/plain"] for cell in code_cells(path)] == [
        "1", "'new'"]


def test_a_refresh_that_fails_leaves_the_stored_lesson_alone(tmp_path):
    folder = tmp_path / "notebooks"
    write_lesson(folder / "00_raises.ipynb", "print(1)", "1 / 0")
    before = (folder / "00_raises.ipynb").read_bytes()
    write_lesson(folder / "01_fine.ipynb", "1")
    done = course(folder, "--refresh")
    assert done.returncode == 1
    assert "FAILED in cell c1: ZeroDivisionError: division by zero" in done.stdout
    assert (folder / "00_raises.ipynb").read_bytes() == before
    assert code_cells(folder / "01_fine.ipynb")[0].execution_count == 1


@pytest.fixture(scope="module")
def with_sets(tmp_path_factory):
    """A lesson and two problem sets, one of them refreshed, then all of them run."""
    folder = tmp_path_factory.mktemp("sets") / "notebooks"
    write_lesson(folder / "01_fine.ipynb", "1")
    for name in ("ps1", "ps2"):
        path = folder / "exercises" / "source" / name / f"{name}.ipynb"
        write_lesson(path, "import os; os.path.basename(os.getcwd())")
        nb = nbformat.read(path, 4)
        nb.cells[1].metadata = {"nbgrader": {"grade_id": "c0", "points": 2},
                                "deletable": False}
        nbformat.write(nb, path)
    one = course(folder, "--refresh", "--lesson", "ps1")
    return folder, one, course(folder), course(folder, "--refresh")


def first_words(done):
    return [line.split()[0] for line in done.stdout.splitlines()[1:]]


def test_problem_sets_are_refreshed_and_one_can_be_chosen(with_sets):
    _, one, _, all_of_them = with_sets
    assert first_words(one) == ["ps1"]
    assert first_words(all_of_them) == ["01_fine", "ps1", "ps2"]
    assert [line.split()[2] for line in all_of_them.stdout.splitlines()[1:]] == [
        "refreshed", "unchanged", "refreshed"]


def test_a_problem_set_is_stored_with_what_nbgrader_knows_of_its_cells(with_sets):
    path = with_sets[0] / "exercises" / "source" / "ps1" / "ps1.ipynb"
    [cell] = code_cells(path)
    assert cell.metadata == {"nbgrader": {"grade_id": "c0", "points": 2}}
    assert cell.execution_count == 1
    assert cell.outputs[0].data == {"text/plain": "'ps1'"}  # its own folder


def test_the_pages_of_the_course_have_no_solutions(with_sets):
    folder, _, pages, _ = with_sets
    assert first_words(pages)[0] == "01_fine" and "ps1" not in pages.stdout
    assert [path.name for path in (folder.parent / "out").glob("**/*.ipynb")] == [
        "01_fine.ipynb"]


def test_it_says_what_it_takes():
    done = subprocess.run([sys.executable, COURSE, "--help"],
                          capture_output=True, text=True, timeout=60,
                          cwd=COURSE.parents[2])
    assert done.returncode == 0 and "--refresh" in done.stdout
