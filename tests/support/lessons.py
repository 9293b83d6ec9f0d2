"""What tests of lessons and of problem sets share: readers, rules, a small notebook.

A rule is a function from a notebook to the list of what breaks it; SHARED has those
that hold for both.
"""

import ast
import copy
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import nbformat
from count import count_tokens

FOLDER = Path(__file__).parents[2] / "notebooks"
LESSONS = [
    "00_start_here",
    "01_split_the_work",
    "02_replicas",
    "03_allreduce",
    "04_split_the_batch",
    "05_one_step",
    "06_train",
    "07_dataparallel",
    "08_processes",
    "09_ddp_by_hand",
    "10_buckets",
    "11_ddp_program",
    "12_together",
    "13_is_it_correct",
    "14_memory",
    "15_sixteen_bits",
    "16_keep_only_a_part",
    "17_how_often",
    "18_count_and_price",
    "19_overlap_and_decide",
    "20_many_machines",
    "21_resnet_cifar10",
    "22_lightning",
    "23_claims",
    "24_wrong_on_purpose",
    "25_your_own_script",
]
# pages with a number that are no lessons: they stand behind all of them
PAGES = ["26_symptoms"]
KERNEL = {
    "display_name": "Python 3 (ipykernel)",
    "language": "python",
    "name": "python3",
}


# readers


def code_cells(nb):
    return [cell for cell in nb["cells"] if cell["cell_type"] == "code"]


def tokens(text):
    """Return how many tokens a cell's code has, as `make count` counts them."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    return count_tokens("\n".join(lines))


def markdown_cells(nb):
    return [cell for cell in nb["cells"] if cell["cell_type"] == "markdown"]


def source(cell):
    return "".join(cell["source"])


def tags(cell):
    return cell["metadata"].get("tags", [])


def runs_on_ranks(cell):
    return source(cell).startswith("%%ranks")


def tree(cell):
    """Parse a code cell, its magics left out; of %%ranks, what the ranks run."""
    return ast.parse(re.sub(r"^\s*[%!].*$", "", source(cell), flags=re.M))


def texts(output):
    """Return what an output says, in the words that a reader or nbval sees."""
    data = output.get("data", {})
    return "".join(output.get("text", [])) + "".join(data.get("text/plain", []))


def everything(output):
    """Return all that an output holds, but for pictures."""
    values = [output.get("text", "")] + [
        value
        for kind, value in output.get("data", {}).items()
        if not kind.startswith("image/")
    ]
    return "\n".join("".join(map(str, value)) for value in values)


def words(text):
    """Count words of prose: no code, no tags, no tables, no addresses of links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"^\s*\|.*$", "", text, flags=re.M)
    text = re.sub(r"</?\w[^>]*>", " ", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def minutes(nb):
    """Return how many minutes a lesson says that it takes."""
    text = "\n\n".join(map(source, markdown_cells(nb)))
    return int(re.search(r"\*Time:\* about (\d+) minutes", text)[1])


def lost_links(folder):
    """Return the links of notebooks and texts to what is no file, or no anchor of one."""

    def prose(path):
        text = path.read_text(encoding="utf-8")
        return (
            text
            if path.suffix == ".md"
            else "\n".join(map(source, markdown_cells(json.loads(text))))
        )

    texts = {
        path.resolve(): re.sub("`[^`]*`", "x", prose(path))
        for suffix in ("md", "ipynb")
        for path in folder.rglob(f"*.{suffix}")
    }
    heads = {
        path: {
            re.sub(r"[^\w-]", "", head.lower().replace(" ", "-"))
            for head in re.findall(r"^#+ (.+)$", text, re.M)
        }
        | set(re.findall(r'<a id="([\w-]+)"></a>', text))
        for path, text in texts.items()
    }
    links = [
        (path, *link.partition("#")[::2])
        for path, text in texts.items()
        for link in re.findall(r"\[[^\[\]]*\]\((?!https?:|mailto:)([^()\s]+)\)", text)
    ]
    assert len(links) > 100
    return [
        (path.name, name, anchor)
        for path, name, anchor in links
        for target in [(path.parent / name).resolve() if name else path]
        if not target.exists() or anchor and anchor not in heads.get(target, [anchor])
    ]


# rules: how it is stored


def it_is_a_valid_notebook(nb):
    try:
        nbformat.validate(copy.deepcopy(nb))
    except nbformat.ValidationError as error:
        return [str(error).splitlines()[0]]
    return [] if (nb["nbformat"], nb["nbformat_minor"]) >= (4, 5) else ["no cell ids"]


def only_the_kernel_is_kept_as_metadata(nb):
    kept = nb["metadata"]
    return [] if kept == {"kernelspec": KERNEL} else sorted(kept)


def ids_are_words_and_differ(nb):
    ids = [cell["id"] for cell in nb["cells"]]
    return [
        i
        for i in ids
        if ids.count(i) > 1
        or re.fullmatch("[0-9a-f]{8}", i)
        or not re.fullmatch("[a-z]+[0-9]*(-[a-z0-9]+)*", i)
    ]


def cells_were_run_once_in_order(nb):
    counts = [cell["execution_count"] for cell in code_cells(nb)]
    shown = [
        output["execution_count"]
        for cell in code_cells(nb)
        for output in cell["outputs"]
        if output["output_type"] == "execute_result"
        if output["execution_count"] != cell["execution_count"]
    ]
    if counts == list(range(1, len(counts) + 1)) and not shown:
        return []
    return [f"execution counts are {counts}: run `make refresh LESSON=...` for it"]


def nothing_ends_in_an_error_or_on_stderr(nb):
    return [
        cell["id"]
        for cell in code_cells(nb)
        for output in cell["outputs"]
        if output["output_type"] == "error" or output.get("name") == "stderr"
    ]


def no_place_of_a_machine_is_named(nb):
    # a path below somebody's home, or this machine, if its name is no plain word
    here = r"/(?:home|Users|root|tmp)/\w|\b[A-Z]:\\\w"
    if re.search(r"\d", platform.node()):
        here += "|" + re.escape(platform.node())
    return [
        cell["id"]
        for cell in nb["cells"]
        if re.search(here, source(cell))
        or re.search(here, "".join(map(everything, cell.get("outputs", []))))
    ]


def no_device_is_printed(nb):
    # but in the source of a function that is shown
    found = r"(?m)device\(type=|device='|\bcuda\b|\bmps\b|^cpu$|NVIDIA|GeForce|Tesla"
    return [
        cell["id"]
        for cell in code_cells(nb)
        for output in cell["outputs"]
        if "text/markdown" not in output.get("data", {})
        and re.search(found, texts(output))
    ]


def nine_in_ten_outputs_are_compared(nb):
    shown = [cell for cell in code_cells(nb) if cell["outputs"]]
    loose = [
        cell["id"]
        for cell in shown
        if {"nbval-ignore-output", "nbval-skip"} & set(tags(cell))
    ]
    return loose if 10 * len(loose) > len(shown) else []


# rules: code and frame


def it_starts_with_the_set_up(nb):
    lines = source(code_cells(nb)[0]).splitlines()
    if lines[0] == "%matplotlib inline" and "_ = torch.manual_seed(0)" in lines:
        return []
    return lines


def no_cell_leaves_python_or_ends_it(nb):
    # a cell that ends a rank on purpose ends no kernel
    known = r"%matplotlib inline|%load_ext manual_dp\.ranks|%ranks( .*)?"
    magics = [
        line
        for cell in code_cells(nb)
        for line in source(cell).splitlines()[runs_on_ranks(cell) :]
        if re.match(r"\s*[%!]", line) and not re.fullmatch(known, line)
    ]
    ends = (
        r"\b(?:(?:sys\.|os\._)?exit|quit)\b\s*(?:\(|$)"
        r"|SystemExit|os\.(?:kill|abort)"
    )
    return magics + [
        cell["id"]
        for cell in code_cells(nb)
        if "get_ipython" in source(cell)
        or not runs_on_ranks(cell)
        and re.search(ends, source(cell), re.M)
    ]


def cells_on_ranks_are_clean(nb):
    """Ask ruff about the cells that it leaves out: for it, %%ranks hides Python."""
    cells = [cell for cell in code_cells(nb) if runs_on_ranks(cell)]
    if not cells:
        return []
    pushed = {
        word.arg
        for cell in code_cells(nb)
        if not runs_on_ranks(cell)
        for node in ast.walk(tree(cell))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "push"
        for word in node.keywords
    }
    there = "import torch\nimport torch.distributed as dist\ntorch, dist\n" + "".join(
        f"{name} = None\n" for name in sorted({"rank", "world_size", "store"} | pushed)
    )
    sources = {"names-of-ranks": there} | {
        cell["id"]: re.sub(r"\A%%.*", "", source(cell)) for cell in cells
    }
    script = {
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
        "cells": [
            {
                "cell_type": "code",
                "id": name,
                "metadata": {},
                "outputs": [],
                "execution_count": None,
                "source": text,
            }
            for name, text in sources.items()
        ],
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--output-format=concise",
            "--stdin-filename",
            "notebooks/on_ranks.ipynb",
            "-",
        ],
        input=json.dumps(script),
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return re.findall(r"^\S+:(cell \d+:\d+:\d+: .*)", done.stdout, re.M)


def a_picture_is_png_or_svg(nb):
    return [
        cell["id"]
        for cell in code_cells(nb)
        for output in cell["outputs"]
        if "image/jpeg" in output.get("data", {})
    ]


def every_fold_is_closed_and_has_a_title(nb):
    return [
        cell["id"]
        for cell in markdown_cells(nb)
        if not source(cell).count("<details>")
        == source(cell).count("</details>")
        == source(cell).count("<summary>")
        == source(cell).count("</summary>")
    ]


# rules of pages, lessons or not


def cells_keep_only_their_tags(nb):
    return [
        cell["id"]
        for cell in nb["cells"]
        if set(cell["metadata"]) - {"tags"} or cell.get("attachments")
    ]


def text_is_at_most_120_words_a_cell(nb):
    return [
        f"{cell['id']}: {words(source(cell))}"
        for cell in markdown_cells(nb)
        if words(source(cell)) > 120
    ]


def no_line_of_code_or_output_is_wider_than_78(nb):
    # the book's column holds 80; what is wider is cut off on the right
    printed = [
        (cell["id"], line)
        for cell in code_cells(nb)
        for output in cell["outputs"]
        if not re.search("markdown|image", str([*output.get("data", {})]))
        for line in texts(output).splitlines()
    ]
    return [
        (name, line)
        for name, line in printed
        + [
            (cell["id"], line)
            for cell in code_cells(nb)
            for line in source(cell).splitlines()
        ]
        if len(line) > 78
    ]


SHARED = [
    it_is_a_valid_notebook,
    only_the_kernel_is_kept_as_metadata,
    ids_are_words_and_differ,
    cells_were_run_once_in_order,
    nothing_ends_in_an_error_or_on_stderr,
    no_place_of_a_machine_is_named,
    no_device_is_printed,
    nine_in_ten_outputs_are_compared,
    it_starts_with_the_set_up,
    no_cell_leaves_python_or_ends_it,
    cells_on_ranks_are_clean,
    a_picture_is_png_or_svg,
    every_fold_is_closed_and_has_a_title,
]
