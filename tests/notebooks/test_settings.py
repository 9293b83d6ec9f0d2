"""notebooks/tools/settings.py: lessons at the extremes of their settings.

The program runs on planted lessons of two or three cells.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import settings as program  # notebooks/tools, which pyproject.toml puts on the path
from nbformat.v4 import new_code_cell, new_notebook, new_output

SETTINGS = Path(__file__).parents[2] / "notebooks" / "tools" / "settings.py"


def lesson(parameters, *cells):
    """Return a lesson; each cell is a pair of its source and what it printed."""
    code = [new_code_cell(parameters, id="parameters")]
    code[0].metadata.tags = ["parameters"]
    for i, (source, said) in enumerate(cells):
        outputs = [new_output("stream", text=said)] if said else []
        code.append(new_code_cell(source, id=f"c{i}", outputs=outputs))
    return new_notebook(cells=code)


def planted(tmp_path, **lessons):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name, nb in lessons.items():
        nbformat.write(nb, folder / f"{name.strip('n')}.ipynb")
    (tmp_path / "tmp").mkdir()
    return folder


def command(folder, *flags):
    return [sys.executable, str(SETTINGS), "--notebooks", str(folder), *flags]


def run(folder, *flags):
    return subprocess.run(command(folder, *flags), capture_output=True, text=True,
                          timeout=100,
                          env=os.environ | {"TMPDIR": str(folder.parent / "tmp")})


def read(parameters):
    return program.read(Path("07_try.ipynb"), lesson(parameters))


# ranges

@pytest.mark.parametrize("line, stored, values", [
    ("x = 4  # 2 to 8", 4, [2, 8]),
    ("x = 4   # 2 to 8, the ranks of all, or so", 4, [2, 8]),
    ("x = 0.1  # 0.01 to 0.3", 0.1, [0.01, 0.3]),
    ("x = 0.5  # 0 to 1", 0.5, [0.0, 1.0]),
    ("x = 1.0  # -2 to 1e3", 1.0, [-2.0, 1000.0]),
    ('x = "digits"  # "digits" or "blobs"', "digits", ["digits", "blobs"]),
    ("x = 'b'  # \"a\", 'b' or \"c\", a letter", "b", ["a", "b", "c"]),
    ("x = 12  # 12 or 24", 12, [12, 24]),
    ("x = True  # True or False", True, [True, False])])
def test_a_range_is_read(line, stored, values):
    [setting] = read(line)
    assert setting == ("x", stored, values)
    assert [type(value) for value in setting.values] == [type(stored)] * len(values)


@pytest.mark.parametrize("line, why", [
    ("x = 4", "no range"), ("x = 4  # any", "no range"), ("x = 4  # 2 to", "no range"),
    ("x = 4  # from 2 to 8", "no range"), ("x = 4  # 2 to 8: ranks", "no range"),
    ("x = 4  # 2 to 8 ranks", "no range"), ("x = 4  # 2, 4", "no range"),
    ("x = 4  # 2 to 8,", "no range"), ("x = '# 2 to 8'", "no range"),
    ("x = 9  # 2 to 8", "not in its range"), ("x = 4  # 8 to 2", "not in its range"),
    ("x = 5  # 4 or 6", "not in its range"), ("x = 4  # 0.5 to 8", "another kind"),
    ("x = 'a'  # 2 to 8", "another kind"), ("x = 4  # 1..2 to 8", "no number"),
    ("print(4)  # 2 to 8", "a name and its value"),
    ("x = [1, 2]  # 1 to 8", "another kind"), ("x = f(4)  # 1 to 8", "malformed")])
def test_a_setting_that_has_no_readable_range_is_named(line, why):
    with pytest.raises(ValueError) as caught:
        read(f"a = 1  # 1 to 2\n\n{line}")
    assert f"07_try.ipynb, cell parameters, line 3: {line}\n" in str(caught.value)
    assert why in str(caught.value)


def test_a_lesson_without_settings_is_named():
    with pytest.raises(ValueError, match="07_try.ipynb: no cell is tagged parameters"):
        program.read(Path("07_try.ipynb"), new_notebook())


# runs

def test_each_extreme_is_run_alone_and_all_together_and_nothing_twice():
    runs = program.plan(read("a = 2  # 1 to 3\nb = 'x'  # 'x' or 'y'"))
    assert [tuple(run.values()) for run in runs] == [
        (1, "x"), (3, "x"), (2, "y"), (3, "y")]  # all least is the first again


def test_a_single_setting_is_run_at_both_ends():
    assert program.plan(read("a = 2  # 1 to 3")) == [{"a": 1}, {"a": 3}]
    assert program.plan(read("a = 1  # 1 to 3")) == [{"a": 3}]


# checks

@pytest.mark.parametrize("before, after", [
    ("equal: True", "equal: True"),
    ("4 ranks, 1.5e-16: True", "8 ranks, 0: True"),
    ("[True, True]", "[True, True, True]"),
    ("broken: False", "broken: False"), ("broken: False", "broken: True"),
    ("a True b False", "a True b False"), ("a True b False", "a True b True"),
    ("[1, 2] True", "[1, 2, 3] True"), ("four: False", "eight: False"),
    ("[False, True]", "[False, True, True]"), ("Falsely said", "Falsely Falsely"),
    ("rank 0 True\nrank 1 True", "rank 0 True")])
def test_checks_that_hold_are_accepted(before, after):
    assert program.broken(lesson("", ("", before)), lesson("", ("", after))) == ""


@pytest.mark.parametrize("before, after, line", [
    ("equal: True", "equal: False", "equal: False"),
    ("4 ranks, 1.5e-16: True", "8 ranks, 0.25: False", "8 ranks, 0.25: False"),
    ("[True, True]", "[True, False, True]", "[True, False, True]"),
    ("a True b False", "a False b True", "a False b True"),
    ("rank 0 True\nrank 1 True", "rank 0 True\nrank 1 False", "rank 1 False"),
    ("four: True", "eight: False", "eight: False"),
    ("4 ranks True\nfour: False", "8 ranks False", "8 ranks False"),
    ("[False, True]", "[False, False, True]", "[False, False, True]"),
    ("x: False\ny: True", "z: False\ny: False", "y: False")])
def test_a_check_that_does_not_hold_any_more_is_told(before, after, line):
    failure = program.broken(lesson("", ("", before)), lesson("", ("", after)))
    assert failure == f"FAILED in cell c0: it prints {line!r}"


def test_the_value_that_a_cell_ends_in_is_a_check_too():
    before, after = (lesson("", ("", "")) for _ in range(2))
    for nb, value in ((before, "True"), (after, "False")):
        nb.cells[1].outputs = [new_output("execute_result", {"text/plain": value})]
    assert program.broken(before, after) == "FAILED in cell c0: it prints 'False'"


# the program

@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Three lessons after one run: right, raising, and printing False at an extreme."""
    folder = planted(
        tmp_path_factory.mktemp("settings"),
        n01_right=lesson("n = 4  # 2 to 8\nword = 'a'  # 'a' or 'b', a letter",
                         ("print(n, word, n < 9)", "4 a True\n"),
                         ("open('left', 'w').close()", "")),
        n02_raises=lesson("n = 4  # 0 to 8", ("print(1 / n)", "0.25\n")),
        n03_false=lesson("n = 4  # 2 to 8", ("print('small', n < 8)", "small True\n")))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    return folder, run(folder), before


def test_every_run_has_a_line_with_its_settings_and_its_result(mixed):
    rows = [line.split(maxsplit=1) for line in mixed[1].stdout.splitlines()]
    assert [row[0] for row in rows] == 4 * ["01_right"] + 2 * ["02_raises"] + 2 * ["03_false"]
    said = ["n=2, word='a'", "n=8, word='a'", "n=4, word='b'", "n=8, word='b'",
            "n=0", "n=8", "n=2", "n=8"]
    assert [row[1].startswith(text + " ") for row, text in zip(rows, said)] == [True] * 8
    results = [row[1].split("  ")[-1] for row in rows]
    assert results == 4 * ["ok"] + [
        "FAILED in cell c0: ZeroDivisionError: division by zero", "ok", "ok",
        "FAILED in cell c0: it prints 'small False'"]
    assert mixed[1].stderr == "" and mixed[1].returncode == 1


def test_nothing_is_written_beside_the_lessons_or_left_in_the_temporary_folder(mixed):
    folder, _, before = mixed
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert list((folder.parent / "tmp").iterdir()) == []


def test_lessons_can_be_chosen_and_success_is_0(tmp_path):
    folder = planted(tmp_path, n01_fine=lesson("n = 1  # 1 to 2", ("n", "")),
                     n02_raises=lesson("n = 0  # 0 to 1", ("1 / n", "")),
                     n11_unreadable=lesson("n = 4  # any"))
    done = run(folder, "--lesson", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["01_fine"]


def test_an_unreadable_range_is_told_before_anything_runs(tmp_path, capsys):
    folder = planted(tmp_path, n01_fine=lesson("n = 1  # 1 to 2", ("n", "")),
                     n02_old=lesson("n = 4  # any"), n03_old=lesson("m = 4"))
    assert program.main(["--notebooks", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "02_old.ipynb, cell parameters, line 1: n = 4  # any" in err
    assert "03_old.ipynb, cell parameters, line 1: m = 4" in err


def test_a_lesson_that_does_not_exist_is_an_error_of_one_line(tmp_path, capsys):
    folder = planted(tmp_path, n01_fine=lesson("n = 1  # 1 to 2"))
    with pytest.raises(SystemExit) as ended:
        program.main(["--notebooks", str(folder), "--lesson", "01", "07"])
    assert ended.value.code == 2
    assert "error: no such lesson" in capsys.readouterr().err.splitlines()[-1]


def test_a_run_that_is_stopped_leaves_nothing(tmp_path):
    started = tmp_path / "started"
    folder = planted(tmp_path, n01_long=lesson(
        "n = 1  # 1 to 2",
        (f"import os, time\nopen({str(started)!r}, 'w').write(str(os.getpid()))", ""),
        ("time.sleep(60)", "")))
    # a shell's background job ignores Ctrl-C, and so would what it starts
    running = subprocess.Popen(
        command(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    deadline = time.monotonic() + 30
    try:
        while not (started.exists() and started.read_text()) and (
                time.monotonic() < deadline):
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, errors = running.communicate(timeout=100)
    finally:
        running.kill()
        running.wait()
    assert (running.returncode, out, errors) == (130, "", "")
    assert list((tmp_path / "tmp").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
