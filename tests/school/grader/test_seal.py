"""What answers may do all the same: only the ways into the grader are shut."""

from textwrap import indent

import pytest

from manual_dp.school.exercise import find
from manual_dp.school.grader.seal import Replaced, Sealed, refuse
from manual_dp.school.grader.worker import grade
from tests.support.answers import cells_of

HARMLESS = {
    "an error, printed": """
import traceback
try:
    1 / 0
except ZeroDivisionError as error:
    traceback.print_exc()
    text = "".join(traceback.format_exception(error)) + traceback.format_exc()
assert "ZeroDivisionError" in text""",
    "a log": """
import logging
logging.basicConfig(level=logging.INFO)
logging.getLogger("mine").info("hello")""",
    "a warning": """
import warnings
warnings.warn("careful", stacklevel=2)""",
    "classes of the standard library": """
import collections, dataclasses, enum, typing
Point = collections.namedtuple("Point", "x y")
@dataclasses.dataclass
class Pair:
    a: int
    b: typing.Optional[int] = None
class Kind(enum.Enum):
    ONE = 1
assert Point(1, 2).y == Pair(2).a == 2 and Kind(1)""",
    "inspect": """
import inspect
def f(a, b=2): return a
assert list(inspect.signature(f).parameters) == ["a", "b"]
assert inspect.isfunction(f)""",
    "the collector": """
import gc
gc.collect(); gc.disable(); gc.enable()""",
    "a context manager and a cache": """
import contextlib, functools
@contextlib.contextmanager
def block():
    yield 1
@functools.lru_cache
def twice(x): return 2 * x
with block() as one, contextlib.suppress(KeyError):
    assert twice(one) == 2""",
    "threads": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    assert list(pool.map(abs, [-1, 2])) == [1, 2]""",
    "code from a string": """
space = {}
exec("def two(): return 2", space)
assert eval("two()", space) == 2""",
    "numpy, and torch's compiler half-way": """
import numpy as np
import torch._dynamo
assert np.zeros(3).sum() == 0""",
    "optimizers and modules": """
model = torch.nn.Linear(2, 2)
torch.optim.SGD(model.parameters(), lr=0.1).step()
torch.nn.Module.mine = 1""",
    "names of its own": """
print = lambda *words: None
zip = zip
def isinstance(*words): return True
torch.mine = 3""",
    "a generator that looks at itself": """
def count():
    yield 1
assert not count().gi_running""",
    "deep copies and pickles": """
import copy, pickle
assert copy.deepcopy([torch.ones(2)])[0].sum() == 2
assert pickle.loads(pickle.dumps({1: 2})) == {1: 2}""",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_learners_write_is_not_refused(worker, name):
    # what is only tried may fail: so the answer asks whether it came to its end
    tried = indent(HARMLESS[name], "    ")
    cell = f"""if True:{tried}
    done = True
{cells_of("ps1")["allreduce"]}
def allreduce(data, right=allreduce):
    assert done
    right(data)
"""
    assert grade(worker, find("ps1/allreduce"), {"allreduce": cell}) is None


@pytest.mark.parametrize("source, word", [
    ("f.__globals__", "__globals__"), ("getattr(f, '__code__')", "__code__"),
    ("def g():\n    return lambda: h.f_back", "f_back"),
    ("x = object.__subclasses__()", "__subclasses__")])
def test_a_cell_that_names_a_way_in_is_refused_with_its_name(source, word):
    with pytest.raises(Sealed, match=f"an answer cannot use {word} while"):
        refuse(source, "<cell a>")


def test_a_cell_that_is_harmless_or_no_python_is_told_apart():
    refuse("x = 7", "<cell a>")
    with pytest.raises(SyntaxError):
        refuse("def f(", "<cell a>")


def test_a_replaced_function_is_noticed_and_a_new_one_is_not(monkeypatch):
    import torch
    before = Replaced()
    monkeypatch.setattr(torch, "mine", 3, raising=False)
    before.refuse()
    monkeypatch.setattr(torch.Tensor, "add_", lambda self, other: self)
    with pytest.raises(Sealed, match="cannot replace Tensor.add_ while"):
        before.refuse()
