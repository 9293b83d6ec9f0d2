"""The programs that lessons run, as modules: they are in no package."""

import importlib.util
from pathlib import Path

PROGRAMS = Path(__file__).parents[2] / "notebooks/programs"


def loaded(path):
    """Return the program at `path` as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
