"""pyproject.toml, constraints.txt, environment.yml and Makefile agree, and install.

The Makefile is tested in an empty folder with a stub in place of Python, which writes
down what it is asked to do.
"""

import functools
import importlib
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import rattler
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FILES = ["pyproject.toml", "constraints.txt", "environment.yml", "Makefile"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [
    Requirement(line) for line in sum(EXTRAS.values(), PROJECT["dependencies"])
]
# for those who have no make: alone, for it asks for packages of 2023
D2L = "pip install --no-deps d2l==1.0.3"
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
CONSTRAINTS = [
    Requirement(line)
    for line in re.findall(r"^[^#\s]+", (ROOT / "constraints.txt").read_text(), re.M)
]
PINS = {canonicalize_name(pin.name): pin for pin in CONSTRAINTS}
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
CONDA = [line for line in ENVIRONMENT["dependencies"] if isinstance(line, str)]
PIP = [
    line
    for part in ENVIRONMENT["dependencies"]
    if isinstance(part, dict)
    for line in part["pip"]
]


def version(pin):
    [specifier] = pin.specifier
    return Version(specifier.version)


def installed(requirement):
    try:
        return distribution(requirement.name)
    except PackageNotFoundError:
        return None


@functools.cache
def brought(requirement):
    """Return what an installed distribution requires, or None."""
    found = installed(requirement)
    return found and [Requirement(line) for line in found.requires or []]


def test_every_constraint_is_one_exact_public_version_that_the_project_allows():
    text = (ROOT / "constraints.txt").read_text()
    lines = [re.sub(r" *#.*", "", line) for line in text.splitlines()]
    assert [
        line for line in lines if not re.fullmatch(r"(\w[\w.-]*==\d[\w.]*)?", line)
    ] == []
    assert len(PINS) == len(CONSTRAINTS)
    assert [
        str(asked)
        for asked in REQUIREMENTS
        if not asked.specifier.contains(
            version(PINS[canonicalize_name(asked.name)]), prereleases=True
        )
    ] == []
    # what stored outputs depend on, for those who install without constraints
    own = {asked.name: asked.specifier for asked in map(Requirement, EXTRAS["course"])}
    assert [
        name
        for name in ("torch", "torchvision", "scikit-learn")
        if own[name] != PINS[name].specifier
    ] == []


@pytest.mark.parametrize("python", PYTHONS)
def test_everything_that_a_requirement_brings_is_pinned_too(python):
    environments = [
        {
            "python_version": python,
            "python_full_version": f"{python}.9",
            "sys_platform": platform,
            "platform_system": system,
        }
        for platform, system in [
            ("linux", "Linux"),
            ("darwin", "Darwin"),
            ("win32", "Windows"),
        ]
    ]
    seen, todo = set(), list(REQUIREMENTS)
    while todo:
        requirement = todo.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        for child in brought(requirement) or []:
            if child.marker is None or any(
                child.marker.evaluate({**environment, "extra": extra})
                for environment in environments
                for extra in requirement.extras or {""}
            ):
                todo.append(child)
    names = {name for name, _ in seen if not re.match("nvidia-|cuda-|triton$", name)}
    assert len(names) > 100
    assert names - set(PINS) == set()


def test_what_is_installed_is_what_is_pinned():
    # without the local suffix, which says how it was built
    found = {
        pin.name: Version(installed(pin).version).public
        for pin in CONSTRAINTS
        if installed(pin)
    }
    assert len(found) > 100
    assert found == {
        name: str(version(PINS[canonicalize_name(name)])) for name in found
    }


@pytest.mark.parametrize("name", [*FILES[2:], "notebooks/book/more.md"])
def test_every_extra_that_is_named_exists(name):
    # pip only warns about an extra that it does not know, and installs nothing
    groups = re.findall(r"(?<=\.\[)[\w,-]+(?=\])", (ROOT / name).read_text())
    assert groups or name.endswith(".md")
    assert set(",".join(groups).split(",")) - {""} <= set(EXTRAS)


def test_conda_brings_python_and_pip_and_pip_the_project():
    names = [rattler.MatchSpec(spec, strict=True).name.normalized for spec in CONDA]
    assert sorted(names) == ["pip", "python"]
    assert ENVIRONMENT["channels"] == ["conda-forge", "nodefaults"]
    assert sorted(ENVIRONMENT) == ["channels", "dependencies", "name"]
    # pip reads these lines in another folder: -r and -c would look for theirs there
    assert PIP == ["-e .[course]"]


def test_every_file_means_the_same_pythons():
    makefile = (ROOT / "Makefile").read_text()
    first, last = re.search(r"\((3, \d+)\) <= .* <= \((3, \d+)\)", makefile).groups()
    assert [first, last] == [
        PYTHONS[0].replace(".", ", "),
        PYTHONS[-1].replace(".", ", "),
    ]
    assert re.findall(r"python(3\.\d+)(?=.* python3,)", makefile) == PYTHONS[::-1]
    [conda] = [spec for spec in CONDA if spec.startswith("python=")]
    assert conda.removeprefix("python=") in PYTHONS
    any_python = Requirement(f"python{PROJECT['requires-python']}").specifier
    assert all(any_python.contains(python) for python in PYTHONS)
    said = "Python 3.11 to 3.14"
    assert said in makefile and said in (ROOT / "README.md").read_text()


def test_d2l_comes_after_the_rest_and_without_what_it_asks_for():
    assert "d2l" not in {requirement.name for requirement in REQUIREMENTS}
    assert str(PINS["d2l"]) in D2L
    for name in ("notebooks/book/more.md", "environment.yml", "pyproject.toml"):
        lines = re.findall(
            r"pip install [^`\n]*d2l[=\d.]*\d", (ROOT / name).read_text()
        )
        assert lines and set(lines) == {D2L}


@pytest.mark.parametrize("name", FILES)
def test_a_file_names_no_address_no_index_and_no_place_on_a_disk(name):
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert not re.search(r"index-url|find-links|pypi", text, re.I)
    assert re.findall(r"(?<![\w.*)}/-])/(?!dev/null)\w+", text) == []


def built(what, folder, monkeypatch):
    """Build a wheel or an editable one, as pip asks for it; return {name: bytes}."""
    monkeypatch.chdir(ROOT)  # where pip calls these functions
    backend = importlib.import_module(PYPROJECT["build-system"]["build-backend"])
    wheel = getattr(backend, f"build_{what}")(str(folder))
    with zipfile.ZipFile(folder / wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_a_wheel_holds_the_module_alone(tmp_path, monkeypatch):
    names = built("wheel", tmp_path, monkeypatch)
    module = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "manual_dp").rglob("*.py")
    }
    assert {name for name in names if ".dist-info/" not in name} == module
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_an_editable_install_finds_the_module_and_the_course(tmp_path, monkeypatch):
    files = built("editable", tmp_path, monkeypatch)
    [paths] = [text.decode() for name, text in files.items() if name.endswith(".pth")]
    assert [Path(line) for line in paths.splitlines()] == [ROOT, ROOT / "notebooks"]


STUB = """#!/bin/sh
echo "$@" >> calls
echo "$OMP_NUM_THREADS" > threads
case "$*" in
    "-m venv --clear .venv")
        rm -rf .venv && mkdir -p .venv/bin && cp stub .venv/bin/python ;;
    "-m pip"*) test ! -e no-network ;;
esac
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the files that make needs and a stub of Python."""
    if shutil.which("make") is None:
        pytest.skip("no make here")
    folder = tmp_path / "a folder"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "stub").write_text(STUB)
    (folder / "stub").chmod(0o755)
    return folder


def make(folder, *words, python="./stub"):
    """Run make; return its exit status, what it said, and what the stub was asked."""
    (folder / "calls").write_text("")
    given = [f"PYTHON={python}"] if python else []
    # nothing of the make that may run these tests
    done = subprocess.run(
        ["make", *given, *words],
        cwd=folder,
        capture_output=True,
        env={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        text=True,
    )
    asked = [
        call
        for call in (folder / "calls").read_text().splitlines()
        if call == COMPILE or not call.startswith("-c")
    ]
    return done.returncode, done.stdout, asked


VENV = "-m venv --clear .venv"
INSTALL = "-m pip install --quiet --no-compile --constraint constraints.txt"
PIP_INSTALL = f"{INSTALL} --editable .[course]"
COMPILE = "-c import manual_dp.audit.script, manual_dp.ranks"
NEW_PIP = "-m pip install --quiet pip>=25"
INSTALLS = [NEW_PIP, PIP_INSTALL, f"{INSTALL} --no-deps d2l", COMPILE]


def installs(folder, *words):
    """Return the exit status of `make lint`, and the steps of its installation."""
    status, _, asked = make(folder, "lint", *words)
    return status, [call for call in asked if call in (VENV, *INSTALLS)]


def test_make_installs_once_and_again_when_it_must(folder):
    assert installs(folder) == (0, [VENV, *INSTALLS])
    assert installs(folder) == (0, [])
    for name in ("pyproject.toml", "constraints.txt"):  # newer: into the same folder
        assert installs(folder, f"--what-if={name}") == (0, INSTALLS)
    copy = shutil.copytree(folder, folder.parent / "copy")  # it needs one of its own
    assert installs(copy) == (0, [VENV, *INSTALLS])


@pytest.mark.parametrize("words", [["lint"], ["lint", "--what-if=constraints.txt"]])
def test_an_install_that_was_cut_short_starts_again(folder, words):
    if len(words) > 1:  # the second install, after a change of the pins
        make(folder, "lint")
    (folder / "no-network").touch()
    status, _, asked = make(folder, *words)
    assert status == 2 and asked[-1] == PIP_INSTALL
    (folder / "no-network").unlink()
    assert installs(folder) == (0, [VENV, *INSTALLS])


# each stands for a Python on the PATH: that of pyenv which only says where it might be,
# one of another version, one without venv, one that will do
CANDIDATE = {
    "not set up": "echo 'pyenv: command not found' >&2; exit 127",
    "old": "case \"$*\" in *'import sys'*) exit 1 ;; esac",
    "bare": "case \"$*\" in *'import ensurepip'*) exit 1 ;; esac",
    "good": 'case "$*" in *\'-m venv\'*) echo "took $0" ;; esac; exec ./stub "$@"',
}


def put_on_the_path(folder, candidates):
    """Put a stub of each Python from 3.11 to 3.14, and python3, before all others."""
    (folder / "bin").mkdir()
    for name in [*(f"python{python}" for python in PYTHONS), "python3"]:
        stub = folder / "bin" / name
        stub.write_text(f"#!/bin/sh\n{CANDIDATE[candidates.get(name, 'not set up')]}\n")
        stub.chmod(0o755)


@pytest.mark.parametrize(
    "candidates, taken",
    [
        ({"python3.11": "good", "python3.13": "good", "python3": "good"}, "python3.13"),
        ({"python3.14": "bare", "python3.12": "good", "python3": "bare"}, "python3.12"),
        ({"python3": "good"}, "python3"),
    ],
    ids=str,
)
def test_make_takes_the_newest_python_that_will_do(folder, candidates, taken):
    put_on_the_path(folder, candidates)
    status, said, asked = make(folder, "lint", python=None)
    assert status == 0 and asked[:5] == [VENV, *INSTALLS]
    assert f"took {folder / 'bin' / taken}\n" in said


@pytest.mark.parametrize(
    "candidates, python, words",
    [
        ({}, None, "python3 not found. Install Python 3.11 to 3.14"),
        ({"python3": "good"}, "no-such-python", "no-such-python not found"),
        ({"python3": "old"}, None, "python3 is not Python 3.11 to 3.14"),
        ({"python3.12": "bare", "python3": "old"}, None, "python3.12 has no venv"),
    ],
    ids=str,
)
def test_without_any_that_will_do_one_line_says_why(folder, candidates, python, words):
    put_on_the_path(folder, candidates)
    status, said, asked = make(folder, "lint", python=python)
    assert status == 2 and asked == []
    assert len(said.splitlines()) == 1 and words in said


def test_make_alone_lists_every_target(folder):
    make(folder, "lint")  # installs
    status, said, asked = make(folder)
    assert (status, asked) == (0, [])
    targets = re.search(r"^\.PHONY: help (.*)", (folder / "Makefile").read_text(), re.M)
    assert [line.split()[1] for line in said.splitlines()] == targets[1].split()


@pytest.mark.parametrize(
    "target", ["course", "lab", "test", "check", "refresh", "settings"]
)
def test_lessons_get_one_thread_unless_somebody_says_another_number(folder, target):
    for words, threads in [([], "1"), (["OMP_NUM_THREADS=3"], "3")]:
        make(folder, target, *words)
        assert (folder / "threads").read_text() == f"{threads}\n"


@pytest.mark.parametrize("target", ["course", "check", "refresh", "settings"])
def test_one_lesson_can_be_asked_for(folder, target):
    *_, asked = make(folder, target, "LESSON=03")
    assert any(call.endswith(" --lesson 03") for call in asked)


def test_charts_are_stored_anew_if_asked_for(folder):
    for words, flags in [([], ""), (["REDRAW=1"], " --redraw")]:
        *_, asked = make(folder, "refresh", *words)
        assert f"notebooks/tools/lessons.py refresh{flags}" in asked
