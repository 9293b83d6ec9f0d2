"""Run a learner's cell as a notebook would, where lines that try it out may fail.

    plain       the cell as Python: IPython's lines and magics replaced
    run_cell    run it, statement by statement; return the first error
    Nothing     stands for what a graded process does not have

Learners try an answer in its own cell: they load data, draw, print, time, ask for help.
None of this decides what the answer is worth. So a statement that fails, or takes very
long, does not keep the next ones from running.
"""

import __future__

import ast
import re
from contextlib import suppress

from manual_dp.school.tools.alarm import alarm

MAGIC = re.compile(r"^\s*%%(\w+).*\n?")
OF_PYTHON = ("time", "timeit", "capture", "prun", "python")
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign,
               ast.AnnAssign)
TRIED = (ast.Expr, ast.Assert, ast.For, ast.While, ast.If, ast.With, ast.Try)


class TooLong(Exception):
    """A statement that tries something out took too much time."""


class Nothing:
    """Stand for what is only used to try an answer: do nothing, hold nothing."""

    def __call__(self, *args, **kwargs):
        """Return the same."""
        return self

    __getitem__ = __enter__ = __call__
    __lt__ = __le__ = __gt__ = __ge__ = lambda self, other: True

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __exit__(self, *error):
        return False

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0

    def __format__(self, form):
        return "nothing"


class Notebook(Nothing):
    """Stand for what IPython's lines call: only %time runs something."""

    def __init__(self, space):
        self.space = space

    def run_line_magic(self, name, line, *_, **__):
        """Run the statement behind %time, and drop other magics."""
        if name == "time":
            exec(line, self.space)

    def getoutput(self, *_):
        """Return the lines that a command has printed: none."""
        return []


def plain(source):
    """Return a cell as Python, with as many lines; IPython's own lines do little."""
    magic = MAGIC.match(source)
    if magic:
        source = "\n" + source[magic.end():] if magic[1] in OF_PYTHON else "pass"
    with suppress(SyntaxError):
        ast.parse(source)
        return source
    empty = len(source) - len(source.lstrip("\n"))
    try:
        from IPython.core.inputtransformer2 import TransformerManager
        return "\n" * empty + TransformerManager().transform_cell(source.lstrip("\n"))
    except (ImportError, SyntaxError):  # without IPython, or not even then Python
        return re.sub(r"^([ \t]*)([%!?].*|.*[^#\n]\?{1,2}[ \t]*)$", r"\1pass", source,
                      flags=re.M)


def run_cell(source, file, space, seconds, only=None):
    """Run a cell in `space`; return the first error that one of its statements raises.

    seconds: of computing for a statement that is no definition. only: kinds of
    statements; others are left out. A cell that is not Python raises SyntaxError.
    """
    tree, first = ast.parse(source, file), None
    flags = _future(tree)
    for statement in tree.body:
        if only and not isinstance(statement, only):
            continue
        code = compile(ast.Module([statement], []), file, "exec", flags, True)
        computing = seconds if isinstance(statement, TRIED) else 0
        error = TooLong(f"it took more than {seconds} s")
        try:
            with alarm(error, 2 * computing, computing):
                exec(code, space)
        except Exception as error:
            first = first or error
    return first


def _future(tree):
    """Return the compiler's flags for what a cell imports from __future__."""
    names = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom)
             and node.module == "__future__" for alias in node.names]
    return sum(getattr(__future__, name).compiler_flag for name in set(names)
               if hasattr(__future__, name))
