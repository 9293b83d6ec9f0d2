"""The tree's rules: those that no linter knows, and that the linters see theirs broken.

pyproject.toml holds what ruff and import-linter check in `make lint`: who imports whom,
prints, asserts, docstrings, widths, branches.
"""

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import manual_dp
from tests.conftest import TOGETHER, together

PACKAGE = Path(manual_dp.__file__).parent
ROOT = PACKAGE.parent
FILES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
PROGRAM = "__main__.py"
CORE = [name for name in FILES if "/" not in name and name != PROGRAM]


def lines(name):
    return FILES[name].read_text().splitlines()


# size

@pytest.mark.parametrize("name", FILES)
def test_a_file_is_short_plain_text(name):
    assert FILES[name].read_text().isascii()
    assert len(lines(name)) <= 300


def test_what_is_taught_is_at_most_4500_lines():
    # pages, launcher, models and files: without tools that stand around them
    taught = [name for name in FILES
              if not name.startswith(("audit/", "lab/"))]
    assert sum(len(lines(name)) for name in taught) <= 4_500


def long_functions(source):
    return [node.name for node in ast.walk(ast.parse(source))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.end_lineno - node.lineno >= 60]


@pytest.mark.parametrize("name", FILES)
def test_no_function_is_longer_than_60_lines(name):
    assert long_functions(FILES[name].read_text()) == []


def test_a_function_of_61_lines_is_seen():
    short, long = ("    def f():\n" + "        pass\n" * n for n in (59, 60))
    assert long_functions("class A:\n" + short) == []
    assert long_functions("class A:\n" + long) == ["f"]


# names

def too_alike(stems):
    """Return the pairs of names that differ by a plural or a suffix alone."""
    return [(short, long) for short in stems for long in stems
            if long in (short + "s", short + "es") or long.startswith(short + "_")]


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES.values()}),
                         ids=lambda folder: str(folder.relative_to(ROOT)))
def test_no_two_names_in_a_folder_differ_by_a_plural_or_a_suffix(folder):
    assert too_alike({path.stem for path in folder.iterdir()}) == []


def test_names_that_are_too_alike_are_seen():
    assert too_alike(["rank", "launch", "ranks"]) == [("rank", "ranks")]
    assert too_alike(["loss", "audit_rank", "audit"]) == [("audit", "audit_rank")]
    assert too_alike(["pass", "passes", "s"]) == [("pass", "passes")]
    assert too_alike(["step", "stepper", "__init__", "__main__"]) == []


def test_the_files_that_are_kept_together_are_there():
    assert [name for name in TOGETHER if not (ROOT / f"tests/{name}.py").exists()] == []


def test_a_file_of_those_stays_together_and_any_other_test_goes_alone():
    assert together("tests/notebooks/test_lab.py::test_a[b::c]") == "tests/notebooks/test_lab.py"
    assert together("tests/test_split.py::test_a[1]") == "tests/test_split.py::test_a[1]"


# text

def annotations_and_headings(source):
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg) and node.annotation:
            found.append(node.arg)
        if isinstance(node, ast.FunctionDef):
            headings = r"^ *(?:Args|Arguments|Parameters|Returns|Raises):? *$"
            found += re.findall(headings, ast.get_docstring(node) or "", re.M)
    return found


@pytest.mark.parametrize("name", FILES)
def test_shapes_are_said_in_words(name):
    assert annotations_and_headings(FILES[name].read_text()) == []


def test_annotations_and_headings_are_seen():
    assert annotations_and_headings("def f(x: int): pass") == ["x"]
    assert annotations_and_headings(
        'def f(x):\n    """Return x.\n\n    Args:\n    """') == ["Args:"]
    assert annotations_and_headings('def f(x):\n    """Returns: a word."""') == []


@pytest.mark.parametrize("name", FILES)
def test_no_file_lets_torch_load_run_code(name):
    # ruff sees exec, eval, pickle.load and torch.jit.load, not this
    assert not re.search(r"weights_only *= *False", FILES[name].read_text())


# imports

def imports_of(tree):
    """Return the top names of what a file imports when it is imported."""
    inside = {node for function in ast.walk(tree) if isinstance(function, ast.FunctionDef)
              for node in ast.walk(function)}
    nodes = [node for node in ast.walk(tree) if node not in inside]
    return ({alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import)
             for alias in node.names}
            | {node.module.split(".")[0] for node in nodes
               if isinstance(node, ast.ImportFrom)})


@pytest.mark.parametrize("name", [*CORE, *(n for n in FILES if n.startswith("files/"))])
def test_the_core_needs_torch_alone(name):
    tree = ast.parse(FILES[name].read_text())
    assert imports_of(tree) <= {"manual_dp", "torch", *sys.stdlib_module_names}


def test_what_a_file_imports_is_seen():
    assert imports_of(ast.parse(
        "import math, numpy.linalg\nfrom torch.nn import functional\n"
        "try:\n    import a\nexcept ImportError:\n    pass\n"
        "def f():\n    import sklearn")) == {"math", "numpy", "torch", "a"}


def test_import_manual_dp_loads_torch_and_nothing_else_of_weight():
    # and the core trains where nothing else can be had
    script = """
import sys
heavy = "torchvision d2l drawsvg matplotlib sklearn lightning scipy pandas IPython".split()
import manual_dp
print(sorted(name for name in heavy if name in sys.modules))
sys.modules.update(dict.fromkeys(heavy))  # importing one now raises ImportError
import torch
import course.lab.show, course.lab.book, course.lab.sends, course.lab.figures.svg
devices = manual_dp.try_devices(2)
params = manual_dp.init_params("he")
device_params = [manual_dp.get_params(params, device) for device in devices]
data = [(torch.rand(3, 1, 28, 28), torch.tensor([0, 1, 2]))]
history = manual_dp.train(devices, 3, 0.1, 1, (data, data), verbose=False)
print(len(history["loss"]))
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=300,
                         capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[]\n1\n", "")


def test_no_test_imports_another():
    # what tests share lies in tests/support
    found = re.compile(r"^\s*(?:from|import)\s.*\btest_", re.M)
    assert found.search("x\nfrom tests.audit import test_audit")
    assert [path.name for path in (ROOT / "tests").rglob("*.py")
            if found.search(path.read_text())] == []


# the linters, tried

def lint_imports(folder):
    command = [sys.executable, Path(sys.executable).with_name("lint-imports"),
               "--no-cache", "--no-logo"]
    roots = os.pathsep.join(map(str, (folder, folder / "notebooks")))
    return subprocess.run(command, cwd=folder, capture_output=True, text=True,
                          timeout=300, env={**os.environ, "PYTHONPATH": roots})


def copy_of_the_module(folder):
    shutil.copy(ROOT / "pyproject.toml", folder)
    for package in ("manual_dp", "notebooks/course"):
        shutil.copytree(ROOT / package, folder / package,
                        ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "manual_dp"


def test_imports_go_down_only():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


MISPLACED = [
    ("parallel.py", "import course.school.checks", "course.school.checks"),
    ("train.py", "import course.lab.show", "course.lab.show"),
    ("split.py", "from manual_dp import lab", "course.lab"),
    ("data.py", "def f():\n    from manual_dp.models.blobs import blobs",
     "manual_dp.models.blobs"),
    ("files/sealed.py", "import manual_dp.data", "manual_dp.data"),
    ("models/unet.py", "from manual_dp.ranks import ddp", "manual_dp.ranks.ddp"),
    ("ranks/ddp.py", "from course.lab import same", "course.lab.same"),
    ("ranks/launch/verdict.py", "import manual_dp.audit", "manual_dp.audit"),
    ("ranks/launch/rank.py", "import manual_dp.ranks.bucket", "manual_dp.ranks.bucket"),
    ("ranks/launch/nursery.py", "import manual_dp.ranks.live.warden",
     "manual_dp.ranks.live.warden"),
    ("ranks/live/rank.py", "import manual_dp.ranks.ddp", "manual_dp.ranks.ddp"),
    ("lab/same.py", "from course.school.checks import f", "course.school.checks"),
    ("audit/rules.py", "from course.lab import show", "course.lab.show"),
    ("lab/show.py", "import manual_dp.audit.rules", "manual_dp.audit.rules"),
    ("__init__.py", "from manual_dp.ranks import run_ranks", "manual_dp.ranks"),
]


def test_misplaced_imports_are_seen(tmp_path):
    copy = copy_of_the_module(tmp_path)
    for name, source, _ in MISPLACED:
        with (copy / name).open("a") as file:
            file.write(f"\n{source}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    for name, _, imported in MISPLACED:
        importer = "manual_dp." + name.removesuffix(".py").replace("/", ".")
        edge = f"{importer.removesuffix('.__init__')} -> {imported} (l."
        assert edge in done.stdout, edge


def test_a_file_without_a_floor_is_seen(tmp_path):
    (copy_of_the_module(tmp_path) / "extra.py").touch()
    done = lint_imports(tmp_path)
    assert done.returncode == 1 and "extra" in done.stdout


PAGE = '"""Count to three."""\n\n'
LONG = "x = 1  # " + "x" * 80 + "\n"
BRANCHES = "def _f(x):\n" + "    if x:\n        x += 1\n" * 15


def ruff(name, source):
    """Return the codes that ruff finds in `source`, were it the file `name`."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--output-format=concise",
         "--stdin-filename", name, "-"], input=source, cwd=ROOT, capture_output=True,
        text=True, timeout=60)
    return re.findall(r"^\S+:\d+:\d+: (\w+)", done.stdout, re.M)


@pytest.mark.parametrize("name, source, codes", [
    ("manual_dp/split.py", PAGE + "x = 1\n", []),
    ("manual_dp/split.py", PAGE + "print()\n", ["T201"]),
    ("notebooks/course/lab/same.py", PAGE + "print()\n", ["T201"]),
    ("manual_dp/train.py", PAGE + "print()\n", []),
    ("notebooks/course/school/checks.py", PAGE + "print()\n", []),
    ("notebooks/course/school/checks.py", PAGE + LONG, ["E501"]),
    ("notebooks/course/school/checks.py",
     PAGE + "def _f(x):\n" + "    if x:\n        x += 1\n" * 12 + "    return x\n", ["C901"]),
    ("notebooks/course/lab/show.py", PAGE + "assert True\n", ["S101"]),
    ("notebooks/course/school/checks.py", PAGE + "assert True\n", ["S101"]),
    ("manual_dp/split.py", PAGE + LONG, ["E501"]),
    ("tests/test_split.py", LONG, []),
    ("tests/test_split.py", "x = '" + "x" * 100 + "'\n", ["E501"]),
    ("notebooks/course/lab/same.py", PAGE + BRANCHES + "    return x\n", ["C901"]),
    ("manual_dp/split.py", "x = 1\n", ["D100"]),
    ("manual_dp/split.py", '"""Count to three"""\n', ["D415"]),
    ("manual_dp/split.py", PAGE + "def f():\n    return 1\n", ["D103"]),
    ("manual_dp/split.py", PAGE + 'def f():\n    """Counts to three."""\n', ["D401"]),
    ("manual_dp/split.py", PAGE + "def _f():\n    return 1\n", []),
    ("notebooks/course/lab/same.py", PAGE + "from .plot import axes\n\naxes()\n",
     ["TID252"]),
    *(("notebooks/course/lab/same.py", PAGE + f"import {module}.x\n\n{module}.x()\n",
       ["TID253"])
      for module in ("d2l", "drawsvg", "lightning", "matplotlib", "sklearn",
                     "torchvision")),
    ("notebooks/course/lab/same.py",
     PAGE + "def _f():\n    import sklearn.datasets\n    return sklearn\n", []),
    ("notebooks/course/school/checks.py", PAGE + "x = eval('1')\n", ["S307"]),
    ("notebooks/course/school/checks.py", PAGE + "exec('x = 1')\n", ["S102"]),
    ("notebooks/course/school/ps7.py", PAGE + "exec('x = 1')\n", []),
    ("manual_dp/data.py", PAGE + "import pickle\n\nx = pickle.load(1)\n", ["S301"]),
    ("manual_dp/ranks/launch/rank.py",
     PAGE + "import pickle\n\nx = pickle.load(1)\n", []),
    ("manual_dp/ranks/live/rank.py", PAGE + "exec('x = 1')\n", []),
    ("manual_dp/data.py", PAGE + "import torch\n\nx = torch.jit.load(1)\n", ["TID251"]),
])
def test_ruff_holds_each_file_to_its_rules(name, source, codes):
    assert ruff(name, source) == codes


# what the module offers

def test_the_public_names_are_the_functions_of_the_package():
    functions = [name for name, value in vars(manual_dp).items()
                 if inspect.isfunction(value)]
    assert sorted(functions) == sorted(manual_dp.__all__)
    assert len(set(manual_dp.__all__)) == len(manual_dp.__all__)


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
