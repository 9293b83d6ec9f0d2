"""notebooks/tools: lessons that run, fail, hang, are stopped; compared, stored, varied.

Small lessons are planted; the program runs here, as `make` calls it, and forks.
"""

import base64
import io
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import forks  # notebooks/tools, which pyproject.toml puts on the path
import lessons as program
import links
import nbformat
import psutil
import pytest
import settings
import stored
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from manual_dp.ranks.launch.launch import borrow_nursery, lend_nursery
from tests.support.launches import until

FIGURE = """%matplotlib inline
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.show()
print("below")"""
VARY = {"c1": "nbval-ignore-output", "c2": "draws-seconds"}
STREAMS = """import sys
print("one")
print("warned", file=sys.stderr)
print("two")
sys.stdout.write("three")
6 * 7"""


def lesson(path, *cells, tags=None, outputs=None):
    """Write a lesson whose code cells have the ids c0, c1, ... and `tags[id]`."""
    code = [
        new_code_cell(source, id=f"c{i}", execution_count=i + 1)
        for i, source in enumerate(cells)
    ]
    for cell in code:
        cell.outputs = (outputs or {}).get(cell.id, [])
        if cell.id in (tags or {}):
            cell.metadata.tags = [tags[cell.id]]
    path.parent.mkdir(parents=True, exist_ok=True)
    head = new_markdown_cell("# 0. A lesson", id="title")
    nbformat.write(new_notebook(cells=[head, *code]), path)
    return path


def run(folder, capsys, *words):
    """Run the program; return its exit status, and {lesson: result} of its table."""
    status = program.main([*words, "--notebooks", str(folder)])
    out, err = capsys.readouterr()
    assert err == ""
    rows = [line.split(maxsplit=3) for line in out.splitlines()[1:]]
    return status, [(row[0], row[3]) for row in rows if len(row) == 4], out


def ran(path):
    [done] = forks.run_all([(path, nbformat.read(path, 4))])
    return done


def code(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


# run


def test_a_lesson_that_fails_is_named_with_its_cell_and_the_next_one_runs(
    tmp_path, capsys
):
    folder = tmp_path / "notebooks"
    lesson(folder / "00_fine.ipynb", "1", "")
    lesson(
        folder / "01_raises.ipynb",
        "'before'",
        "raise ValueError('bad\\nand more')",
        "2",
    )
    lesson(folder / "02_dies.ipynb", "'before'", "import os; os._exit(0)", "1")
    lesson(folder / "03_exits.ipynb", "'before'", "exit()", "1")
    lesson(folder / "04_no_python.ipynb", "'before'", "a b")
    lesson(folder / "notes.ipynb", "raise ValueError('not a lesson')")
    status, rows, _ = run(folder, capsys, "refresh")
    assert status == 1
    assert rows == [
        ("00_fine", "refreshed"),
        ("01_raises", "FAILED in cell c1: ValueError: bad"),
        ("02_dies", "FAILED in cell c1: its process ended"),
        *rows[3:],
    ]
    assert [row[1].split()[:4] for row in rows[3:]] == 2 * [
        "FAILED in cell c1:".split()
    ]
    assert [cell.execution_count for cell in code(folder / "00_fine.ipynb")] == [
        1,
        None,
    ]
    assert (
        code(folder / "01_raises.ipynb")[0].outputs == []
    )  # a failed one stays as it was


def test_the_book_gets_what_ran_and_its_warnings_are_said(
    tmp_path, capsys, monkeypatch
):
    folder, given = tmp_path / "notebooks", []
    monkeypatch.setattr(
        program.book,
        "build",
        lambda notebooks, out, runs: (
            given.extend([notebooks, out, *runs]) or ["page.md: WARNING: no link"]
        ),
    )
    lesson(folder / "00_raises.ipynb", "1 / 0")
    lesson(folder / "01_fine.ipynb", "print(1)", tags={"c0": "seconds"})  # alone, last
    status, rows, out = run(folder, capsys)
    assert status == 1 and rows[1] == ("01_fine", "ok")
    assert given[:2] == [folder, tmp_path / "build" / "course"]
    assert [(run.path.stem, run.failure[:6]) for run in given[2:]] == [
        ("00_raises", "FAILED"),
        ("01_fine", ""),
    ]
    assert "ok\npage.md: WARNING: no link\nOpen " in out


def test_a_page_without_settings_is_not_run_at_their_extremes(tmp_path, capsys):
    folder = tmp_path / "notebooks"
    lesson(folder / "26_page.ipynb", "raise ValueError('it ran')")
    assert run(folder, capsys, "settings")[:2] == (0, [])


def test_an_endless_cell_fails_by_its_time_limit(tmp_path, capsys):
    folder = tmp_path / "notebooks"
    lesson(folder / "00_endless.ipynb", "while True: pass")
    assert run(folder, capsys, "refresh", "--timeout", "2")[:2] == (
        1,
        [("00_endless", "FAILED in cell c0: it took longer than 2 s")],
    )


def test_cells_say_what_they_say_in_a_kernel_in_the_same_order(tmp_path):
    path = lesson(
        tmp_path / "00.ipynb",
        STREAMS,
        FIGURE,
        "import os\nos.getcwd()",
        "6 * 7;",
        "def f():\n    return 1",
        "import inspect\nprint(inspect.getsource(f))",
    )
    done = ran(path)
    assert done.failure == ""
    said = [
        [output.get("text", output.get("data")) for output in cell.outputs]
        for cell in stored.code_cells(done.nb)
    ]
    assert said[0] == ["one\n", "warned\n", "two\nthree", {"text/plain": "42"}]
    assert [output.output_type for output in stored.code_cells(done.nb)[1].outputs] == [
        "display_data",
        "stream",
    ]
    assert "image/png" in said[1][0] and said[1][1] == "below\n"
    assert said[2:] == [
        [{"text/plain": repr(str(tmp_path))}],
        [],
        [],
        ["def f():\n    return 1\n\n"],
    ]


def test_a_lesson_starts_ranks_and_leaves_none_and_no_file(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(forks.tempfile, "tempdir", str(tmp_path / "tmp"))
    path = lesson(
        tmp_path / "00.ipynb",
        "from manual_dp.ranks import run_ranks\nimport torch.distributed as dist",
        "def f():\n    return dist.get_rank()\nrun_ranks(f, 2)",
        "from tempfile import TemporaryDirectory\nfolder = TemporaryDirectory()",
    )
    done = ran(path)
    assert done.failure == "" and done.nb.cells[2].outputs[0].data == {
        "text/plain": "[0, 1]"
    }
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_stopped_course_leaves_no_process_and_runs_no_further_lesson(tmp_path):
    folder = tmp_path / "notebooks"
    lesson(
        folder / "00_long.ipynb",
        "import subprocess, time\nsleeper = subprocess.Popen(['sleep', '60'])",
        "open('started', 'w').close(); time.sleep(60)",
        tags={"c1": "seconds"},
    )
    lesson(
        folder / "01_next.ipynb",
        "open('next', 'w').close()",
        tags={"c0": "seconds"},
    )
    (tmp_path / "tmp").mkdir()

    nursery = lend_nursery()

    def course():  # in a process of its own: what it gets is a signal
        borrow_nursery(nursery)
        tempfile.tempdir = str(tmp_path / "tmp")
        os._exit(program.main(["--notebooks", str(folder)]))

    running = multiprocessing.get_context("fork").Process(target=course)
    running.start()
    until((folder / "started").exists)
    os.kill(running.pid, signal.SIGTERM)
    running.join(20)
    running.kill()
    assert running.exitcode == 130
    assert not (folder / "next").exists() and not (tmp_path / "build").exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert [
        process
        for process in psutil.process_iter(["cwd"])
        if process.info["cwd"] == str(folder)
    ] == []


@pytest.mark.parametrize("words", [["--lesson", "0", "seven"], []])
def test_a_lesson_that_does_not_exist_is_an_error_of_one_line(tmp_path, capsys, words):
    if words:
        lesson(tmp_path / "00_fine.ipynb", "1")
    with pytest.raises(SystemExit) as ended:
        program.main(["--notebooks", str(tmp_path), *words])
    assert ended.value.code == 2
    assert "error: no such lesson in " in capsys.readouterr().err.splitlines()[-1]


# compare


def said(*outputs, count=1, tags=()):
    cell = new_code_cell("x", id="c0", execution_count=count, outputs=list(outputs))
    cell.metadata.tags = list(tags)
    return new_notebook(cells=[cell])


def stream(text):
    return new_output("stream", text=text)


def shown(**data):
    return new_output(
        "display_data", {f"image/{name}": text for name, text in data.items()}
    )


@pytest.mark.parametrize(
    "old, new, same",
    [
        (said(stream("apart 3.1e-16\n")), said(stream("apart 2e-17\n")), True),
        (said(stream("apart 3.1e-11\n")), said(stream("apart 3.2e-11\n")), False),
        (said(stream("a\n"), stream("b\n")), said(stream("a\nb\n")), True),
        (said(stream("a\n")), said(stream("a")), False),
        (
            said(stream("a\n")),
            said(new_output("stream", name="stderr", text="a\n")),
            False,
        ),
        (said(), said(new_output("stream", name="stderr", text="a warning\n")), False),
        (said(shown(png="x")), said(shown(png="y")), True),
        (said(shown(**{"svg+xml": "x"})), said(shown(**{"svg+xml": "y"})), False),
        (said(stream("1"), tags=["nbval-ignore-output"]), said(stream("2")), True),
        (said(stream("1"), count=2), said(stream("1")), False),
    ],
)
def test_what_differs_from_what_is_stored_is_seen(old, new, same):
    assert (stored.differences(old, new) == {}) == same


def test_a_cell_that_says_something_else_is_shown_and_the_status_is_1(tmp_path, capsys):
    folder = tmp_path / "notebooks"
    lesson(folder / "00_fine.ipynb", "print(1)", outputs={"c0": [stream("1\n")]})
    lesson(folder / "01_other.ipynb", "print(1)", outputs={"c0": [stream("2\n")]})
    lesson(
        folder / "exercises/source/ps1/ps1.ipynb",
        "import os; print(os.getcwd()[-3:])",
        outputs={"c0": [stream("ps1\n")]},
    )
    before = {path: path.read_bytes() for path in folder.rglob("*.ipynb")}
    status, rows, out = run(folder, capsys, "check")
    assert status == 1
    results = dict(rows)
    assert results["01_other"] == "DIFFERS in c0"
    assert results["00_fine"] == results["ps1"] == "as stored"
    assert "c0, stored:\nstdout: 2\n" in out and "c0, now:\nstdout: 1\n" in out
    assert {path: path.read_bytes() for path in folder.rglob("*.ipynb")} == before
    assert run(folder, capsys, "check", "--lesson", "0", "ps1")[0] == 0


# store


def test_the_stored_form_has_nothing_of_the_machine_or_the_run(tmp_path, capsys):
    path = lesson(
        tmp_path / "notebooks" / "00_all.ipynb",
        FIGURE,
        "import time\ntime.perf_counter()",
        "6 * 7",
        tags={"c1": "nbval-ignore-output"},
    )
    nb = nbformat.read(path, 4)
    nb.metadata = {"language_info": {"name": "python", "version": "3.8"}}
    nb.cells[1].metadata["execution"] = {"iopub.status.busy": "2020-01-01T00:00:00Z"}
    nb.cells[3].metadata["nbgrader"] = {"points": 2}
    nbformat.write(nb, path)
    assert run(path.parent, capsys, "refresh")[:2] == (0, [("00_all", "refreshed")])
    nb = nbformat.read(path, 4)
    assert nb.metadata == {
        "kernelspec": {
            "name": "python3",
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
        }
    }
    assert [cell.metadata for cell in nb.cells] == [
        {},
        {},
        {"tags": ["nbval-ignore-output"]},
        {"nbgrader": {"points": 2}},
    ]
    assert [cell.execution_count for cell in nb.cells[1:]] == [1, 2, 3]
    assert nb.cells[3].outputs[0].data == {"text/plain": "42"}
    chart = Image.open(
        io.BytesIO(base64.b64decode(nb.cells[1].outputs[0].data["image/png"]))
    )
    assert (chart.mode, chart.convert("RGB").getpixel((0, 0))) == ("P", (255, 255, 255))
    before = path.read_bytes()
    assert before.startswith(b'{\n "cells": [\n  {\n') and before.endswith(b"}\n")
    # a second run, with another time, leaves the same bytes
    assert run(path.parent, capsys, "refresh")[:2] == (0, [("00_all", "unchanged")])
    assert path.read_bytes() == before
    # another source is stored though it says the same
    nb.cells[3].source = "7 * 6"
    nbformat.write(nb, path)
    run(path.parent, capsys, "refresh")
    assert code(path)[2].source == "7 * 6"


def test_a_chart_with_other_pixels_is_named_and_stored_if_that_is_asked_for(
    tmp_path, capsys
):
    cells = FIGURE, "import time\ntime.time()", FIGURE
    path = lesson(tmp_path / "00_chart.ipynb", *cells, tags=VARY)
    run(tmp_path, capsys, "refresh")
    right = path.read_bytes()
    nb = nbformat.read(path, 4)
    white = io.BytesIO()
    Image.new("RGB", (9, 9), "white").save(white, "png")
    for cell in nb.cells[1], nb.cells[3]:
        cell.outputs[0].data["image/png"] = base64.b64encode(white.getvalue()).decode()
    nbformat.write(stored.tidy(nb), path)
    old = path.read_bytes()
    other = (
        " other pixels in the charts of c0: make refresh LESSON=00 REDRAW=1 stores them"
    )
    for what, words in (
        ("refresh", "NOT STORED: it has"),
        ("check", "as stored, but now with"),
    ):
        assert run(tmp_path, capsys, what)[:2] == (0, [("00_chart", words + other)])
    assert path.read_bytes() == old
    redrawn = run(tmp_path, capsys, "refresh", "--redraw")
    assert redrawn[:2] == (0, [("00_chart", "refreshed")])
    assert path.read_bytes() == right  # the time stayed, too
    assert run(tmp_path, capsys, "check")[1] == [("00_chart", "as stored")]


def test_texts_that_quote_a_number_which_is_gone_are_named(tmp_path, capsys):
    old = "loss 0.931 after 1,204 steps of 64 rows, rate 0.05, float32, then 88 more\n"
    new = "loss 0.877 after 1,204 steps of 96 rows, rate 0.07, float16, then 8 more\n"
    picture = "<svg width='75'><text x='31'>46 MB</text></svg>"
    path = lesson(
        tmp_path / "00_loss.ipynb",
        f"print({new!r})",
        "from IPython.display import SVG\nSVG('<svg><text>45 MB</text></svg>')",
        outputs={"c0": [stream(old)], "c1": [shown(**{"svg+xml": picture})]},
    )
    nb = nbformat.read(path, 4)
    for name, text in {
        "gone": "It ends at **0.931**, with 64 rows; 0.931 is high. See [88](88_x.ipynb).",
        "stays": "1204 steps at a rate of 0.05 are not 0.9310, nor 75 or 31; float32.",
        "drawn": "They are 46 MB.",
    }.items():
        nb.cells.append(new_markdown_cell(text, id=name))
    nbformat.write(nb, path)
    status, _, out = run(tmp_path, capsys, "refresh")
    assert status == 0
    assert [line for line in out.splitlines() if line.startswith("read")] == [
        "read gone again: it says 0.931, 64, 88; no output does now",
        "read drawn again: it says 46; no output does now",
    ]
    assert "read" not in run(tmp_path, capsys, "refresh")[2]


def test_words_are_found_over_line_breaks_and_in_pictures(tmp_path, capsys):
    report = "  x1  each rank\n      drew its own weights\n"
    picture = "<svg><text>each rank</text> <text>drew &amp; sent</text></svg>"
    lesson(
        tmp_path / "00_report.ipynb",
        "print(each)  # rank drew",
        "1",
        outputs={"c0": [stream(report)], "c1": [shown(**{"svg+xml": picture})]},
    )
    lesson(tmp_path / "exercises/source/ps1/ps1.ipynb", "'each rank  drew'")

    def find(*words):
        status = program.main([*words, "--notebooks", str(tmp_path)])
        return status, [
            " ".join(row.split()) for row in capsys.readouterr()[0].splitlines()
        ]

    assert find("find", "each rank drew") == (
        0,
        [
            "ps1 c0",
            "00_report output of c0, output of c1",
            'To store them anew: make refresh LESSON="00"',
        ],
    )
    assert find("find", "drew & sent")[1][0] == "00_report output of c1"
    assert find("find", "no such words") == (
        1,
        ["No lesson and no set has these words."],
    )
    for words in (["find"], ["check", "some words"]):
        with pytest.raises(SystemExit):
            find(*words)
        assert 'find "three words"' in capsys.readouterr().err


def test_a_file_that_is_no_notebook_is_named(tmp_path, capsys):
    lesson(tmp_path / "00_all.ipynb", "6 * 7")
    (tmp_path / "01_torn.ipynb").write_text('{"cells": [')
    assert program.main(["check", "--notebooks", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("01_torn.ipynb: Notebook does not appear")


def test_the_sets_for_learners_are_made_where_a_set_was_refreshed_or_renumbered(
    tmp_path, capsys, monkeypatch
):
    asked = []
    monkeypatch.setattr(program.release, "release", lambda at: asked.append(at) or 3)
    path = lesson(tmp_path / "02_sum.ipynb", "6 * 7")
    source = lesson(tmp_path / "exercises/source/ps1/ps1.ipynb", "6 * 7")
    (tmp_path / "exercises" / "README.md").touch()
    assert run(tmp_path, capsys, "refresh", "--lesson", "02")[0] == 0 and asked == []
    assert run(tmp_path, capsys, "refresh", "--lesson", "ps1")[0] == 1
    assert asked == [tmp_path / "exercises"]
    text = source.read_text()
    source.write_text(text.replace("A lesson", "A [lesson 3](../../03_sum.ipynb)"))
    run(tmp_path, capsys, "refresh", "--lesson", "02")
    assert len(asked) == 2
    lesson(path, "1 / 0")
    run(tmp_path, capsys, "refresh")
    assert len(asked) == 2  # after a failure, what was released stays


def test_a_page_whose_number_is_written_anew_is_named_though_its_outputs_stay(
    tmp_path, capsys
):
    path = lesson(tmp_path / "03_all.ipynb", "6 * 7")
    run(tmp_path, capsys, "refresh")
    path.write_text(path.read_text().replace("# 3. A lesson", "# 0. A lesson"))
    status, rows, out = run(tmp_path, capsys, "refresh")
    assert (status, rows[-1]) == (0, ("03_all", "unchanged"))
    assert "03_all.ipynb: numbers rewritten" in out


# settings


def parameters(text):
    cell = new_code_cell(text, id="parameters")
    cell.metadata.tags = ["parameters"]
    return new_notebook(cells=[cell])


@pytest.mark.parametrize(
    "line, value, values",
    [
        ("x = 4   # 2 to 8, the ranks of all, or so", 4, [2, 8]),
        ("x = 1.0  # -2 to 1e3", 1.0, [-2.0, 1000.0]),
        ("x = 'b'  # \"a\", 'b' or \"c\", a letter", "b", ["a", "b", "c"]),
        ("x = True  # True or False", True, [True, False]),
    ],
)
def test_a_range_is_read(line, value, values):
    (read,) = settings.read_settings(Path("07_try.ipynb"), parameters(line))
    assert read[:3] == ("x", value, values)


@pytest.mark.parametrize(
    "line",
    [
        "x = 4  # 2 to",
        "x = 4  # 2 to 8: ranks",
        "x = 4  # 2 to 8,",
        "x = '# 2 to 8'",
        "x = 9  # 2 to 8",
        "x = 5  # 4 or 6",
        "x = 'a'  # 2 to 8",
        "x = 4  # 1..2 to 8",
        "print(4)  # 2 to 8",
        "x = [1, 2]  # 1 to 8",
    ],
)
def test_a_setting_that_has_no_readable_range_is_named(line):
    with pytest.raises(ValueError) as caught:
        settings.read_settings(
            Path("07_try.ipynb"), parameters(f"a = 1  # 1 to 2\n\n{line}")
        )
    assert f"07_try.ipynb, cell parameters, line 3: {line}\n" in str(caught.value)


def test_each_extreme_is_run_alone_and_all_together_and_nothing_twice():
    read = settings.read_settings(
        Path("07"), parameters("a = 2  # 1 to 3\nb = 'x'  # 'x' or 'y'")
    )
    assert [tuple(values.values()) for values in settings.plan(read)] == [
        (1, "x"),
        (3, "x"),
        (2, "y"),
        (3, "y"),
    ]  # all least is the first again


@pytest.mark.parametrize(
    "before, after, line",
    [
        ("4 ranks, 1.5e-16: True", "8 ranks, 0: True", ""),
        ("[True, True]", "[True, True, True]", ""),
        ("broken: False", "broken: False", ""),
        ("broken: False", "broken: True", ""),
        ("four: False", "eight: False", ""),
        ("Falsely said", "Falsely Falsely", ""),
        ("4 ranks, 1e-16: True", "8 ranks, 0.2: False", "8 ranks, 0.2: False"),
        ("[True, True]", "[True, False, True]", "[True, False, True]"),
        ("rank 0 True\nrank 1 True", "rank 0 True\nrank 1 False", "rank 1 False"),
    ],
)
def test_a_check_that_does_not_hold_any_more_is_told(before, after, line):
    failure = settings.broken(said(stream(before)), said(stream(after)))
    assert failure == (line and f"FAILED in cell c0: it prints {line!r}")


def test_lessons_run_at_their_extremes(tmp_path, capsys):
    folder = tmp_path / "notebooks"
    for name, source, text in (
        ("02_raises", "print(1 / n)", "0.25"),
        ("03_false", "print('small', n > 0)", "small True"),
    ):
        lesson(
            folder / f"{name}.ipynb",
            "n = 4  # 0 to 8",
            source,
            tags={"c0": "parameters"},
            outputs={"c1": [stream(text)]},
        )
    status, rows, _ = run(folder, capsys, "settings")
    assert status == 1 and sorted(rows) == [
        ("02_raises", "FAILED in cell c1: ZeroDivisionError: division by zero  n = 0"),
        ("02_raises", "ok  n = 8"),
        ("03_false", "FAILED in cell c1: it prints 'small False'  n = 0"),
        ("03_false", "ok  n = 8"),
    ]
    lesson(folder / "04_old.ipynb", "n = 4  # any", tags={"c0": "parameters"})
    assert program.main(["settings", "--notebooks", str(folder)]) == 1
    assert "04_old.ipynb, cell c0, line 1: n = 4  # any" in capsys.readouterr().err


# numbers


def test_a_lesson_that_was_moved_is_renumbered_wherever_it_is_named(tmp_path):
    folder = tmp_path / "notebooks"
    way = "[Before: 7. Old](07_old.ipynb) | [Next: 9. Gone](09_gone.ipynb)"
    for name, text in (
        ("00_start", "# 0. Start\n[lesson 3](03_sum.ipynb), lessons [2](02_sum.ipynb)"),
        ("04_sum", f"# 3. The sum\n{way}\n[Map](00_start.ipynb)\n{links.LAST}"),
        ("10_end", f"# 10. End\n{way}\n{links.LAST}"),
    ):
        folder.mkdir(exist_ok=True)
        nbformat.write(
            new_notebook(cells=[new_markdown_cell(text)]), folder / f"{name}.ipynb"
        )
    (tmp_path / "README.md").write_text(
        "| [03 The sum](notebooks/03_sum.ipynb) | [3](3.md)\n"
    )
    links.mend(folder)
    said = [nbformat.read(path, 4).cells[0].source for path in sorted(folder.glob("*"))]
    assert said == [
        "# 0. Start\n[lesson 4](04_sum.ipynb), lessons [4](04_sum.ipynb)",
        "# 4. The sum\n[Before: 0. Start](00_start.ipynb) | [Next: 10. End](10_end.ipynb)\n"
        "[Map](00_start.ipynb)\n[Next: 10. End](10_end.ipynb)",
        "# 10. End\n[Before: 4. The sum](04_sum.ipynb) | [Next: 9. Gone](09_gone.ipynb)\n"
        "Next: your own programs",
    ]
    assert (tmp_path / "README.md").read_text() == (
        "| [04 The sum](notebooks/04_sum.ipynb) | [3](3.md)\n"
    )
    assert links.mend(folder) == []
