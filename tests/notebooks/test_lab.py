"""notebooks/tools/lab.py: a learner's copies, and JupyterLab itself in a browser."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import lab  # notebooks/tools, which pyproject.toml puts on the path
import nbformat
import psutil
import pytest
from grading import JoinCells  # notebooks/exercises
from nbgrader.utils import compute_checksum

from tests.support.browser import open_browser, watched
from tests.support.launches import until
from tests.support.lessons import lost_links

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LATE = 240  # seconds, for what takes ten


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copies") / "build" / "lab"
    return folder, lab.copy_lessons(folder)


def test_every_lesson_and_what_it_links_to_is_copied(copies):
    folder, (new, kept) = copies
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    assert {
        "00_start_here.ipynb",
        "exercises/release/ps1/ps1.ipynb",
        "claims.md",
        "glossary.md",
        "exercises/README.md",
        "results/fashion-mnist.json",
        "programs/train_ddp.py",
        "config/lightning.yaml",
    } <= names
    assert new == len(names) > 15 and kept == 0
    programs = {name for name in names if name.endswith(".py")}
    assert programs == {
        path.relative_to(NOTEBOOKS).as_posix()
        for path in NOTEBOOKS.glob("programs/**/*.py")
    }
    assert not any("source" in name for name in names)


def test_no_link_of_a_copy_leads_to_a_file_that_is_missing(copies):
    assert lost_links(copies[0]) == []


def test_a_copy_has_no_output_and_is_the_lesson_but_for_that(copies):
    for copy in copies[0].glob("*.ipynb"):
        cells, stored = (
            nbformat.read(path, 4).cells for path in (copy, NOTEBOOKS / copy.name)
        )
        assert cells.pop(1).source == lab.RUN
        code = [cell for cell in cells if cell.cell_type == "code"]
        assert code and not any(cell.outputs or cell.execution_count for cell in code)
        folded = [cell.metadata.pop("jupyter", {}) for cell in cells]
        assert folded == [
            {"source_hidden": True}
            if "hide-input" in cell.metadata.get("tags", [])
            else {}
            for cell in stored
        ]
        assert [(c.id, c.source, c.metadata) for c in cells] == [
            (c.id, c.source.replace(lab.ALL, ""), c.metadata) for c in stored
        ]


def test_what_nbgrader_compares_in_a_copy_of_a_set_is_as_it_was_handed_out(copies):
    for copy in copies[0].glob("exercises/release/*/*.ipynb"):
        locked = [
            cell
            for cell in nbformat.read(copy, 4).cells
            if cell.metadata.get("nbgrader", {}).get("locked")
        ]
        assert locked and all(
            cell.metadata.nbgrader.checksum == compute_checksum(cell) for cell in locked
        )


def test_what_a_learner_wrote_stays_what_was_deleted_comes_back_and_it_is_said(
    copies, tmp_path, monkeypatch, capsys
):
    folder, (new, _) = copies
    shutil.copytree(folder, tmp_path / lab.FOLDER)
    mine = [
        tmp_path / lab.FOLDER / name
        for name in ("03_allreduce.ipynb", "programs/train.py", "glossary.md")
    ]
    gone = tmp_path / lab.FOLDER / "04_split_the_batch.ipynb"
    for path in mine:
        path.write_text("mine")
    gone.unlink()
    called = []
    monkeypatch.setattr(os, "execve", lambda *words: called.append(words))
    monkeypatch.chdir(tmp_path)
    lab.main(["--no-browser"])
    assert [path.read_text() for path in mine] == ["mine"] * 3 and gone.exists()
    [line] = capsys.readouterr().out.splitlines()
    assert f"build/lab: 1 new, {new - 1} kept" in line and "afresh" in line
    [(program, command, environ)] = called
    assert program == sys.executable and command[:3] == [
        sys.executable,
        "-m",
        "jupyterlab",
    ]
    assert "--LabApp.default_url=lab/tree/00_start_here.ipynb" in command
    assert command[-1] == "--no-browser"
    assert environ["PATH"].startswith(os.path.dirname(sys.executable))


# JupyterLab


@pytest.fixture
def server(tmp_path):
    """JupyterLab as `make lab` starts it, in a home of its own; yields folder, address."""
    home, runtime = tmp_path / "home", tmp_path / "runtime"
    home.mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "PYTEST"))
    }
    running = subprocess.Popen(
        [
            sys.executable,
            str(NOTEBOOKS / "tools" / "lab.py"),
            "--no-browser",
            "--ServerApp.port=0",
            "--ServerApp.ip=127.0.0.1",
            *["--allow-root"] * (os.geteuid() == 0),
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=kept
        | {
            "HOME": str(home),
            "JUPYTER_RUNTIME_DIR": str(runtime),
            "OMP_NUM_THREADS": "1",
        },
    )
    try:
        [said] = until(lambda: list(runtime.glob("jpserver-*.json")), LATE)
        yield tmp_path / lab.FOLDER, json.loads(until(said.read_text, LATE))
    finally:
        kernels = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(signal.SIGTERM)
        running.wait(LATE)
        _, left = psutil.wait_procs(kernels, timeout=LATE)
    assert left == [] == list(runtime.glob("*.json"))


def ready(page):
    """Wait until a notebook is open and has a kernel."""
    page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=LATE * 1000)
    # the status bar's; the toolbar says "Idle" before there is a kernel, and cells
    # that are run then open a dialog that asks for one
    page.get_by_text("Python 3 (ipykernel) | Idle").first.wait_for(
        state="attached", timeout=LATE * 1000
    )


ANSWER = """\
def spread_of(held):
    return (torch.stack(held).amax(0) - torch.stack(held).amin(0)).max().item()


def largest_difference(device_params):
    return max(spread_of(held) for held in zip(*device_params))
"""


def marked_so(path, grade_id):
    """Return the sources of the cells that carry a grade id in a stored notebook."""
    try:
        cells = nbformat.read(path, 4).cells
    except nbformat.reader.NotJSONError:  # JupyterLab is writing it: ask again
        return []
    return [
        cell.source
        for cell in cells
        if cell.metadata.get("nbgrader", {}).get("grade_id") == grade_id
    ]


def test_python_in_the_lab_is_the_one_that_has_the_course(server):
    _, said = server
    begun = psutil.Process(said["pid"])
    assert shutil.which("python", path=begun.environ()["PATH"]) == str(
        Path(sys.executable).with_name("python")
    )


def test_a_learner_solves_1_1_splits_the_cell_saves_and_it_is_joined_again(server):
    folder, said = server
    notebook = folder / "exercises/release/ps1/ps1.ipynb"
    with (
        open_browser() as browser,
        watched(browser, [said["url"], "ws:"]) as (page, faults),
    ):
        page.goto(
            f"{said['url']}lab/tree/exercises/release/ps1/ps1.ipynb"
            f"?token={said['token']}",
            wait_until="commit",
        )
        ready(page)
        page.locator(".jp-CodeCell", has_text="import torch").first.click()
        page.keyboard.press("Shift+Enter")
        cell = page.locator(
            ".jp-CodeCell", has_text="def largest_difference(device_params)"
        )
        cell.locator(".cm-content").click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text(ANSWER)
        page.keyboard.press("Control+Home")
        for _ in range(4):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("Control+Shift+Minus")
        page.locator(".jp-CodeCell", has_text="def spread_of").locator(
            ".cm-content"
        ).click()
        for _ in range(3):  # both halves and the check
            page.keyboard.press("Shift+Enter")
        page.get_by_text("ps1/largest_difference: right, on").first.wait_for(
            timeout=LATE * 1000
        )
        page.keyboard.press("Control+s")
        assert until(lambda: len(marked_so(notebook, "largest_difference")) == 2, LATE)
        assert faults == []
    assert [
        text.split("(")[0] for text in marked_so(notebook, "largest_difference")
    ] == ["def spread_of", "def largest_difference"]
    joined, _ = JoinCells().preprocess(nbformat.read(notebook, 4), {})
    [answer] = [
        cell.source
        for cell in joined.cells
        if cell.metadata.get("nbgrader", {}).get("grade_id") == "largest_difference"
    ]
    assert answer.split() == ANSWER.split()
