"""The tree's rules, read from the source: who imports whom, sizes, docstrings."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import manual_dp

PACKAGE = Path(manual_dp.__file__).parent
FILES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
PROGRAM = "__main__.py"  # stands above all floors
CORE = [name for name in FILES if "/" not in name and name != PROGRAM]

PAGES = ["core", "ranks", "models"]
MAY_IMPORT = {"core": ["core"],
              "ranks": ["core", "ranks"],
              "models": ["core", "models"],
              "lab": [*PAGES, "lab"],
              "audit": [*PAGES, "audit"],
              "school": [*PAGES, "school"]}
LAUNCHER = [f"ranks/launch/{name}.py" for name in ("__init__", "nursery", "rank")]
TOOLS = ("files/", "lab/", "audit/", "school/", "ranks/launch/", "__main__.py")
ONLY_WHERE_NEEDED = ["matplotlib", "sklearn", "torchvision", "d2l", "lightning"]


def floor(name):
    """Return the floor of a file ("lab/show.py") or a module ("manual_dp.lab.show")."""
    parts = re.split(r"[/.]", name.removeprefix("manual_dp."))
    return parts[0] if parts[0] in MAY_IMPORT else "core"


def imports(tree):
    """Yield (module, at_import_time) for every import in `tree`."""
    inside = {node for function in ast.walk(tree)
              if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
              for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write manual_dp in full"
            yield node.module, node not in inside
            if node.module == "manual_dp":  # from manual_dp import ranks
                for alias in node.names:
                    yield f"manual_dp.{alias.name}", node not in inside
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node not in inside


def misplaced(name, source):
    """Return the imports that the file called `name` may not have."""
    wrong = []
    for module, at_import_time in imports(ast.parse(source)):
        top = module.split(".")[0]
        if top == "manual_dp":
            if name != PROGRAM and floor(module) not in MAY_IMPORT[floor(name)]:
                wrong.append(module)
        elif top in ONLY_WHERE_NEEDED:
            if at_import_time:
                wrong.append(module)
        elif floor(name) == "core" and at_import_time:
            if top != "torch" and top not in sys.stdlib_module_names:
                wrong.append(module)
    return wrong


@pytest.mark.parametrize("name", FILES)
def test_imports_go_down_only(name):
    assert misplaced(name, FILES[name].read_text()) == []


@pytest.mark.parametrize("name, source, wrong", [
    ("train.py", "import manual_dp.lab.show", ["manual_dp.lab.show"]),
    ("train.py", "from manual_dp import lab", ["manual_dp.lab"]),
    ("train.py", "def f():\n    from manual_dp.lab.book import train",
     ["manual_dp.lab.book"]),
    ("train.py", "import numpy as np", ["numpy"]),
    ("train.py", "import sklearn.datasets", ["sklearn.datasets"]),
    ("train.py", "import math, torch.nn\nfrom manual_dp.split import scatter", []),
    ("train.py", "def f():\n    import sklearn", []),
    ("__main__.py", "def f():\n    from manual_dp.school import grade", []),
    ("__main__.py", "import tqdm", ["tqdm"]),
    ("ranks/ddp.py", "from manual_dp.lab import cost", ["manual_dp.lab"]),
    ("lab/figures/plot.py", "import matplotlib.pyplot", ["matplotlib.pyplot"]),
    ("lab/figures/plot.py", "from manual_dp.school.checks import f", ["manual_dp.school.checks"]),
    ("lab/figures/plot.py", "from manual_dp.ranks import ddp\nimport nbformat", []),
    ("school/grader/grade.py", "from manual_dp.lab import show", ["manual_dp.lab"]),
])
def test_a_misplaced_import_is_seen(name, source, wrong):
    assert misplaced(name, source) == wrong


def test_import_manual_dp_loads_torch_and_nothing_else_of_weight():
    # and the core trains where nothing else can be had
    script = """
import sys
heavy = "torchvision d2l matplotlib sklearn lightning scipy pandas IPython".split()
import manual_dp
print(sorted(name for name in heavy if name in sys.modules))
sys.modules.update(dict.fromkeys(heavy))  # importing one now raises ImportError
import torch
import manual_dp.lab.cost, manual_dp.lab.show, manual_dp.lab.book
devices = manual_dp.try_devices(2)
params = manual_dp.init_params("he")
device_params = [manual_dp.get_params(params, device) for device in devices]
data = [(torch.rand(3, 1, 28, 28), torch.tensor([0, 1, 2]))]
history = manual_dp.train(devices, 3, 0.1, 1, (data, data), verbose=False)
print(len(history["loss"]))
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, timeout=300,
                         capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[]\n1\n", "")


@pytest.mark.parametrize("name", FILES)
def test_a_page_is_short_plain_text(name):
    text = FILES[name].read_text()
    lines = text.splitlines()
    assert len(lines) <= (300 if name.startswith(TOOLS) else 200)
    assert text.isascii() and "\t" not in text
    assert [line for line in lines if len(line) > 88] == []


@pytest.mark.parametrize("name", FILES)
def test_no_file_can_make_the_module_run_code(name):
    words = r"weights_only *= *False|\bpickle\.load|\bjit\.load|\beval\(|\bexec\("
    found = re.findall(words, FILES[name].read_text())
    if name in LAUNCHER:  # it runs the caller's own function, sent by the caller
        found = [word for word in found if word != "pickle.load"]
    if name == "school/grader/answer.py":  # it runs learners' cells, in a process with limits
        found = [word for word in found if word != "exec("]
    assert found == []


@pytest.mark.parametrize("name", FILES)
def test_the_module_raises_and_does_not_assert(name):
    # `python -O` takes assertions out
    tree = ast.parse(FILES[name].read_text())
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert [node.lineno for node in asserts] == []


@pytest.mark.parametrize("name", CORE)
def test_the_core_prints_in_train_alone(name):
    tree = ast.parse(FILES[name].read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Name) and node.func.id == "print"]
    assert len(calls) == (1 if name == "train.py" else 0)


def definitions(tree):
    """Yield the functions and classes that the file offers to others."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not node.name.startswith("_"):
                yield node


@pytest.mark.parametrize("name", FILES)
def test_what_a_page_offers_says_first_what_it_does(name):
    tree = ast.parse(FILES[name].read_text())
    assert ast.get_docstring(tree), "the file has no docstring"
    for node in definitions(tree):
        first = (ast.get_docstring(node) or "").split("\n")[0]
        assert re.match(r"[A-Z].*[.:;]$", first), node.name


@pytest.mark.parametrize("name", FILES)
def test_shapes_are_said_in_words(name):
    tree = ast.parse(FILES[name].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            assert node.annotation is None, node.arg
        if isinstance(node, ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            headings = r"^\s*(Args|Arguments|Parameters|Returns|Raises):?\s*$"
            assert not re.search(headings, text, re.M), node.name


def test_the_public_names_are_the_functions_of_the_package():
    functions = [name for name, value in vars(manual_dp).items()
                 if inspect.isfunction(value)]
    assert sorted(functions) == sorted(manual_dp.__all__)
    assert len(set(manual_dp.__all__)) == len(manual_dp.__all__)


def test_the_public_functions_are_those_that_the_course_teaches():
    assert sorted(manual_dp.__all__) == sorted("""
        try_devices init_params lenet loss get_params pack_grads check_replicas
        largest_difference
        allreduce ring_allreduce tree_allreduce reduce_scatter allgather
        scatter split_batch load_data sgd train_batch train evaluate_accuracy
        """.split())


def test_the_books_functions_keep_the_books_arguments():
    def arguments(function):
        return list(inspect.signature(function).parameters)
    assert arguments(manual_dp.get_params) == ["params", "device"]
    assert len(arguments(manual_dp.allreduce)) == 1
    assert arguments(manual_dp.split_batch) == ["X", "y", "devices"]
    assert arguments(manual_dp.train_batch)[:5] == ["X", "y", "device_params",
                                                    "devices", "lr"]
    assert arguments(manual_dp.train)[1:3] == ["batch_size", "lr"]
    assert arguments(manual_dp.sgd) == ["params", "lr", "batch_size"]
