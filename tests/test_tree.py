"""The tree's rules that no linter knows; `make lint` holds the others.

pyproject.toml says what ruff and import-linter check: who imports whom, prints, asserts,
docstrings, widths, branches.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import manual_dp
import manual_dp.ranks

ROOT = Path(manual_dp.__file__).parents[1]


def files(*folders):
    """Return {path from the root: text} of the Python files in folders."""
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


MODULE = files("manual_dp")
PAGES = files("manual_dp", "notebooks/course/lab", "notebooks/tools")


def test_a_page_is_plain_text():
    odd = [name for name, text in PAGES.items() if not text.isascii()]
    assert not odd, f"other signs than ASCII in {odd}"


def test_shapes_are_said_in_words_and_no_file_lets_torch_load_run_code():
    headings = r"^ *(?:Args|Arguments|Parameters|Returns|Raises):? *$"
    for name, text in MODULE.items():
        for node in ast.walk(ast.parse(text)):
            assert not (isinstance(node, ast.arg) and node.annotation), (
                f"{name}: {node.arg} has an annotation; say its shape in the docstring"
            )
            if isinstance(node, ast.FunctionDef):
                found = re.search(headings, ast.get_docstring(node) or "", re.M)
                assert not found, f"{name}: {node.name} has a heading; write sentences"
        assert not re.search(r"weights_only *= *False", text), name


def test_the_page_of_checks_lists_each_of_them():
    page = ast.parse(MODULE["manual_dp/checks.py"])
    checks = [node.name for node in page.body if isinstance(node, ast.FunctionDef)]
    listed = re.findall(r"^    (check_\w+) ", ast.get_docstring(page), re.M)
    there = sorted(n for n in checks if n.startswith("check_"))
    assert sorted(listed) == there, "list it, or drop it, at the top of checks.py"


def test_the_first_page_of_a_file_names_what_the_file_gives_to_others():
    for package in manual_dp, manual_dp.ranks:
        for name in package.__all__:
            page = sys.modules[getattr(package, name).__module__]
            said = f"list {name} at the top of {page.__name__}, or drop it there"
            assert re.search(rf"\b{name}\b", page.__doc__), said


def test_import_manual_dp_loads_torch_and_nothing_else_of_weight():
    # and the core trains where nothing else can be had; in a Python of its own
    script = """
import sys
heavy = "torchvision d2l drawsvg matplotlib sklearn lightning scipy pandas IPython".split()
import manual_dp
manual_dp.load_data("digits")  # reads scikit-learn's file, without scikit-learn
print(sorted(name for name in heavy if name in sys.modules))
sys.modules.update(dict.fromkeys(heavy))  # importing one now raises ImportError
import torch
import course.lab.allreduce_trace, course.lab.figures.svg
devices = manual_dp.try_devices(2)
params = manual_dp.init_params("he")
device_params = [manual_dp.get_params(params, device) for device in devices]
data = [(torch.rand(3, 1, 28, 28), torch.tensor([0, 1, 2]))]
history = manual_dp.train(devices, 3, 0.1, 1, (data, data), verbose=False)
print(len(history["loss"]))
"""
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert (run.stdout, run.stderr) == ("[]\n1\n", "")


def test_the_core_needs_torch_alone():
    names = [name for name in MODULE if name.count("/") == 1 and "__main__" not in name]
    for name in [*names, *files("manual_dp/files")]:
        tree = ast.parse(MODULE[name])
        inside = {
            node
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function)
        }
        for node in set(ast.walk(tree)) - inside:
            modules = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert {module.split(".")[0] for module in modules} <= {
                "manual_dp",
                "torch",
                *sys.stdlib_module_names,
            }, (name, modules)


def test_no_test_imports_another():
    # what tests share lies in tests/support
    found = re.compile(r"^\s*(?:from|import)\s.*\btest_", re.M)
    odd = [name for name, text in files("tests").items() if found.search(text)]
    assert not odd, f"{odd}: put what tests share into tests/support"
