"""Make the book: lessons, problem sets, glossary and module, to read in a browser.

    build       the book in a folder; returns how many pages, and what was wrong
    collect     which file of the project becomes which page
    relink      the links of a text, made to lead from page to page
    contents    the order of the pages, as jupyter-book wants it

Lessons come with the outputs of the runs that are given, or else with those that are
stored: jupyter-book runs nothing. It works in a folder of its own beside the result,
which is put in its place when it is whole.
"""

import copy
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import yaml
from nbformat.v4 import new_markdown_cell
from stored import write_text

BOOK = Path(__file__).parents[1] / "book"
# the first lesson of each part
PARTS = {"start_here": "One process", "processes": "A process for each rank",
         "memory": "Memory and time", "resnet_cifar10": "Applications",
         "claims": "Claims and faults"}
# in the side bar, where a page's own title would not say what it is
TITLES = {"exercises/README.md": "About them", "module/index.md": "The module",
          "readme.md": "README"}
MAIN = "from jupyter_book.cli.main import main; main()"


class BookError(Exception):
    """No book was made, and why."""


def build(notebooks, out, runs=(), progress=lambda share: None):
    """Write the book of the folder `notebooks` to `out`; return pages and warnings.

    `runs` has the lessons that were run just now. `progress` is told shares from 0 to 1.
    Raises BookError; then `out` stays as it was.
    """
    if out.is_dir() and any(out.iterdir()) and not (out / "index.html").exists():
        raise BookError(f"{out} has other files in it, and no book")
    out.parent.mkdir(parents=True, exist_ok=True)
    files = collect(notebooks.resolve())
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as place:
        source = Path(place, "source")
        for page, text in _texts(files, {run.job.path.resolve(): run for run in runs}):
            (source / page).parent.mkdir(parents=True, exist_ok=True)
            write_text(source / page, text)
        (source / "_static").mkdir()
        shutil.copy(BOOK / "style.css", source / "_static")
        write_text(source / "_toc.yml", yaml.safe_dump(contents(files), sort_keys=False))
        shutil.copy(BOOK / "config.yml", source / "_config.yml")
        said = _run_jupyter_book(source, place, progress)
        if out.exists():  # the old book goes with `place`, when the new one is there
            out.rename(Path(place, "old"))
        Path(place, "_build", "html").rename(out)
    return len(files), [line.replace(f"{source}{os.sep}", "") for line in said]


def collect(notebooks):
    """Return {page: file} for the project around `notebooks`, in the book's order."""
    root, found = notebooks.parent, {"index.md": BOOK / "index.md"}
    for pattern in ("[0-9][0-9]_*.ipynb", "exercises/README.md",
                    "exercises/release/*/*.ipynb", "glossary.md", "clusters/README.md"):
        for file in sorted(notebooks.glob(pattern)):
            found[file.relative_to(notebooks).as_posix()] = file
    for pattern in ("*.py", "ranks/*.py", "models/*.py"):
        for file in sorted(root.glob(f"manual_dp/{pattern}")):
            folder = file.parent.relative_to(root / "manual_dp")
            name = {"__init__": "index"}.get(file.stem, file.stem)
            if name != "__main__":
                found[(Path("module") / folder / name).as_posix() + ".md"] = file
    found |= {name: BOOK / name for name in ("more.md", "instructors.md")}
    if (root / "README.md").exists():
        found["readme.md"] = root / "README.md"
    return found


def contents(pages):
    """Return the book's table of contents: parts, and what belongs to each."""
    parts, part = {}, PARTS["start_here"]
    for page in (page for page in pages if page != "index.md"):
        entry = {"file": page.rpartition(".")[0]}
        if lesson := re.match(r"\d\d_(\w+)", page):
            part = PARTS.get(lesson[1], part)
        else:
            part = "Problem sets" if page.startswith("exercises/") else "To look up"
        if page in TITLES:
            entry["title"] = TITLES[page]
        chapters = parts.setdefault(part, [])
        if page.startswith("module/") and page != "module/index.md":
            chapters[-1].setdefault("sections", []).append(entry)
        else:
            chapters.append(entry)
    return {"format": "jb-book", "root": "index",
            "parts": [{"caption": part, "chapters": chapters}
                      for part, chapters in parts.items()]}


def relink(text, page, files):
    """Return `text` with its links to files of the project leading to their pages.

    `page` is where the text will stand, `files` what collect returns. A link to a file
    that has no page leaves its words; a link to no file stays, and is a warning.
    JupyterLab keeps a heading's capitals in its anchor; the book's are all lower case.
    """
    pages = {file.resolve(): name for name, file in files.items()}

    def turn(link):
        path, mark, anchor = link[2].partition("#")
        if not path or ":" in path:
            return link[0]
        file = (files[page].parent / path).resolve()
        if file not in pages:
            return link[1] if file.exists() else link[0]
        target = os.path.relpath(pages[file], Path(page).parent)
        return f"[{link[1]}]({Path(target).as_posix()}{mark}{anchor.lower()})"
    return re.sub(r"(?<!!)\[([^\[\]]*)\]\(([^()\s]+)\)", turn, text)


def _texts(files, runs):
    for page, file in files.items():
        if file.suffix == ".ipynb":
            yield page, nbformat.writes(_lesson(page, files, runs.get(file)))
        elif file.suffix == ".py":
            yield page, _source(file)
        else:
            text = relink(file.read_text(encoding="utf-8"), page, files)
            yield page, _front(text, files, runs) if page == "index.md" else text


def _lesson(page, files, run):
    nb = copy.deepcopy(run.nb) if run else nbformat.read(files[page], 4)
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = relink(cell.source, page, files)
        elif any(output.output_type == "error" for output in cell.get("outputs", [])):
            cell.metadata.tags = []  # an error is not folded away
    if run and run.failure:
        nb.cells.insert(1, new_markdown_cell(
            f":::{{warning}}\n```none\n{run.failure}\n```\n:::", id="failure"))
    return nb


def _source(file):
    text = file.read_text(encoding="utf-8")
    name = file.parent.name if file.stem == "__init__" else file.name
    if file.parent.name in ("ranks", "models") and name == file.name:
        name = f"{file.parent.name}/{name}"
    return f"# {name}\n\n````python\n{text}````\n"


def _front(text, files, runs):
    """Put into the first page what is known only now: the lessons, which of them failed."""
    lessons, failed = [], []
    for part in contents(files)["parts"]:
        if part["caption"] in PARTS.values():
            lessons.append(f"### {part['caption']}\n")
            for page in (f"{chapter['file']}.ipynb" for chapter in part["chapters"]):
                run = runs.get(files[page])
                title, learn = _head(run.nb if run else nbformat.read(files[page], 4))
                lessons.append(f"- [{title}]({page})  \n  {learn}")
                if run and run.failure:
                    failed.append(f"- [{title}]({page})\n  ```none\n  {run.failure}\n  ```")
    warning = ":::{warning}\nThese lessons failed:\n\n" + "\n".join(failed) + "\n:::"
    text = text.replace("<!-- lessons -->", "\n".join(lessons))
    return text.replace("<!-- failures -->", warning if failed else "")


def _head(nb):
    text = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    title = re.search(r"^# +(.+)", text, re.M) or ["", "Untitled"]
    learn = re.search(r"\*You will(?: learn:?)?\*:? (.+?)(?: \*You need|$)", text, re.M
                      ) or ["", ""]
    return re.sub(r"[][]", "", title[1]), learn[1][:1].upper() + learn[1][1:]


def _run_jupyter_book(source, place, progress):
    """Build `source` into `place`; return the lines that warn."""
    command = [sys.executable, "-c", MAIN, "build", str(source), "--path-output", place]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, encoding="utf-8", start_new_session=True,
                          env=os.environ | {"PYTHONUNBUFFERED": "1"}) as process:
        try:
            for line in process.stdout:
                lines.append(re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", line).strip())  # no colours
                if step := re.match(r"(reading|writing) .*\[ *(\d+)%\]", lines[-1]):
                    progress(int(step[2]) / 200 + (step[1] == "writing") / 2)
        except BaseException:  # Ctrl-C: it is in a session of its own
            process.kill()
            raise
    if process.returncode:
        said = [line for line in lines if re.search("error|not import", line, re.I)]
        raise BookError("\n".join(said[:3]) or f"jupyter-book ended with {process.returncode}")
    return [line for line in lines if "WARNING" in line or "ERROR" in line]
