"""%ranks and %%ranks in a notebook's kernel: what is shown, and who ends with it."""

import os
import re
import signal

import psutil
import pytest
from forks import run_all  # notebooks/tools, which pyproject.toml puts on the path
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbformat.v4 import new_code_cell, new_notebook

from tests.support.kernels import ipc
from tests.support.launches import LATE, until

NEW = "New ranks: 0 to 1 (gloo). The names of earlier cells are gone.\n"


class Kernel:
    """A notebook's kernel, spoken to cell by cell."""

    def __init__(self, folder):
        self.folder = folder
        self.manager = KernelManager(
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), **ipc()
        )
        self.manager.start_kernel(
            cwd=str(folder),
            extra_arguments=["--log-level=ERROR"],
            env={**os.environ, "TMPDIR": str(folder)},
        )
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(240)

    def __call__(self, code, after=lambda: None):
        """Run a cell, and call `after` when it has begun; return what it shows."""
        asked, shown = self.client.execute(code), []
        while True:
            message = self.client.get_iopub_msg(timeout=240)
            if message["parent_header"].get("msg_id") != asked:
                continue
            content = message["content"]
            if message["msg_type"] == "execute_input":
                after()
            if message["msg_type"] == "error":
                shown.append("".join(line + "\n" for line in content["traceback"]))
            shown.append(
                content.get("text") or content.get("data", {}).get("text/plain", "")
            )
            if content.get("execution_state") == "idle":
                return "".join(shown)

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    kernel = Kernel(folder)
    kernel("%load_ext manual_dp.ranks")
    yield kernel
    kernel.end()
    assert until(lambda: list(folder.glob("manual_dp-*")) == [])


@pytest.fixture
def two(kernel):
    kernel("%ranks 2")
    return kernel


def number(kernel):
    """Return the number of the cell that asks for it."""
    return int(kernel("len(In) - 1"))


def test_ranks_starts_says_what_runs_and_ends(kernel):
    assert kernel("n = 3") == ""
    assert kernel("%ranks {n}") == (
        "3 ranks run: 0 to 2 (gloo). Names live on from cell to cell.\n"
    )
    assert kernel("%ranks") == "3 ranks run: 0 to 2 (gloo).\n"
    assert kernel("%ranks 2 --no-group") == (
        "2 ranks run: 0 to 1 (no group yet). Names live on from cell to cell.\n"
    )
    assert kernel("%ranks stop") == "No ranks run.\n"
    assert kernel("%ranks") == "No ranks run: start them with %ranks 4.\n"
    assert "UsageError: no ranks run: start them with %ranks 4" in kernel("%%ranks\n1")


def test_a_cell_shows_what_each_rank_prints_and_its_last_value(two):
    assert two("%%ranks\nx = torch.ones(2, 2) * rank\nprint('hello')\nx") == "".join(
        f"rank {r}: hello\nrank {r}: tensor([[{r}., {r}.],\nrank {r}:         [{r}., {r}.]])\n"
        for r in range(2)
    )
    assert two("%%ranks 1\nx.sum()") == "rank 1: tensor(4.)\n"
    assert (
        two("%%ranks\nx.sum();") == two("%%ranks\ny = 1") == two("%%ranks\nNone") == ""
    )
    assert two("%%ranks\nobject()") == (  # no address, which is new in each run
        "rank 0: <object object>\nrank 1: <object object>\n"
    )
    assert two("r = 1") == "" and two("%%ranks {r}\nrank") == "rank 1: 1\n"


def test_python_uses_the_same_ranks(two):
    two("from manual_dp.ranks.live import current\nranks = current()")
    assert two("ranks.push(X=[1, 2])") == ""
    assert two("%%ranks\nX + [rank]") == "rank 0: [1, 2, 0]\nrank 1: [1, 2, 1]\n"
    assert two("ranks['X']") == "[[1, 2], [1, 2]]"


def test_an_error_names_the_cell_and_the_line_that_the_reader_sees(two):
    n = number(two)
    said = f"rank 1 raised ValueError: boom (cell {n + 1}, line 3: raise ValueError('boom'))\n"
    code = "if rank == 1:\n    raise ValueError('boom')"
    shown = two(f"%%ranks\n{code}")
    assert shown == (
        f'Traceback (most recent call last):\n  File "cell {n + 1}", line 3, in '
        f"<module>\n    raise ValueError('boom')\nValueError: boom\n\n"
        f"RankError: {said}"
    )
    assert two(f"%%ranks --show-error\n{code}") == "RankError: " + said.replace(
        f"cell {n + 1}", f"cell {n + 2}"
    )
    assert two("%%ranks\nrank") == "rank 0: 0\nrank 1: 1\n"


def test_a_syntax_error_is_told_once(two):
    assert two("%%ranks --show-error\nx = = 1") == (
        f"SyntaxError: invalid syntax (cell {number(two) - 1}, line 2)\n"
    )
    assert two("%%ranks\nx = = 1").count("invalid syntax") == 1


def test_run_ranks_sends_functions_of_cells_shows_their_lines_and_can_be_interrupted(
    kernel,
):
    kernel("%ranks stop")
    kernel("""
import time
import torch.distributed as dist
from manual_dp.ranks import RankError, run_ranks
def helper(x):
    if x > 1:
        raise ValueError(f"{x} is too much")  # line of the helper
    return x * 10
def rank_function(x):
    print("x is", x)
    return helper(x + dist.get_rank())  # line of the function
""")
    assert kernel("run_ranks(rank_function, 2, 0)") == (
        "rank 0: x is 0\nrank 1: x is 0\n[0, 10]"
    )
    shown = kernel("""
try:
    run_ranks(rank_function, 2, 1)
except RankError as error:
    print(error, error.rank, *error.__notes__, sep=" / ")
""")
    assert "rank 1 raised ValueError: 2 is too much / 1 / Traceback" in shown
    assert "line of the helper" in shown and "line of the function" in shown

    def interrupt():
        assert until(lambda: list(kernel.folder.glob("manual_dp-*")))
        kernel.manager.interrupt_kernel()

    assert "KeyboardInterrupt" in kernel("run_ranks(time.sleep, 2, 50)", interrupt)
    assert kernel("run_ranks(dist.get_rank, 2)") == "[0, 1]"


@pytest.mark.parametrize(
    "line, message",
    [
        ("%ranks 2 3", "%ranks takes one number"),
        ("%ranks four", "whole numbers, not four"),
        ("%ranks stop 2", "whole numbers, not stop 2"),
        ("%ranks 0", "world_size must be a whole number from 1 to 256"),
        ("%%ranks one", "whole numbers, not one"),
        ("%%ranks --timeout 0", "timeout must be seconds"),
        ("%%ranks 2", "ranks must be some of 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused_and_the_ranks_run_on(two, line, message):
    two("%%ranks\nkept = rank")
    assert message in two(f"{line}\n1" if line.startswith("%%") else line)
    assert two("%%ranks\nkept") == "rank 0: 0\nrank 1: 1\n"


def test_a_deadline_of_its_own_shows_where_ranks_wait_and_new_ones_follow(two):
    shown = two(
        "%%ranks --timeout 4 --show-error\nx = torch.ones(1)\ndist.recv(x, 1 - rank)"
    )
    n = number(two) - 1
    assert shown == (
        "RankError: time was up after 4 s: ranks 0 and 1 still waited\n"
        + "".join(
            f"rank {r} waited in recv (cell {n}, line 3: dist.recv(x, 1 - rank))\n"
            for r in range(2)
        )
    )
    assert two("%%ranks\nrank") == NEW + "rank 0: 0\nrank 1: 1\n"


def test_an_interrupt_is_raised_in_the_notebook_and_new_ranks_follow(two):
    pids = list(
        map(int, re.findall(r": (\d+)", two("%%ranks\nimport os\nos.getpid()")))
    )

    def interrupt():
        until(lambda: psutil.Process(pids[0]).cpu_percent(0.5) > 0)
        two.manager.interrupt_kernel()

    assert "KeyboardInterrupt" in two(
        "%%ranks --timeout 500\nwhile True: pass", interrupt
    )
    assert not any(map(psutil.pid_exists, pids))
    assert two("%%ranks\nrank") == NEW + "rank 0: 0\nrank 1: 1\n"


def test_ranks_end_with_a_kernel_that_is_restarted_or_killed(tmp_path):
    # 10 s: only here does a kernel end that has ranks
    kernel = Kernel(tmp_path)

    def restart():
        kernel.manager.restart_kernel(now=False)
        kernel.client.wait_for_ready(240)

    def kill():
        os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)

    try:
        for end in restart, kill:
            kernel("%load_ext manual_dp.ranks\n%ranks 2")
            shown = kernel("%%ranks\nimport os\nos.getpid()")
            pids = list(map(int, re.findall(r": (\d+)", shown)))
            assert len(pids) == 2
            end()
            assert until(lambda pids=pids: not any(map(psutil.pid_exists, pids)), LATE)
            assert until(lambda: list(tmp_path.glob("manual_dp-*")) == [])
    finally:
        kernel.end()


CELLS = [
    "%matplotlib inline\nimport torch\n%load_ext manual_dp.ranks\n"
    "_ = torch.manual_seed(0)",
    "world_size = 3  # 2 to 4",
    "%ranks {world_size}",
    "%%ranks\nx = torch.rand(3, dtype=torch.float64) + rank\ndist.all_reduce(x)\nx",
    "%%ranks --show-error\nif rank == 1:\n    raise ValueError('boom')",
    "%%ranks --timeout 4 --show-error\ndist.recv(x, (rank + 1) % world_size)",
    "%%ranks 0 2\nprint('new', rank)\ndist.get_rank()",
]


def test_what_a_fork_has_stored_a_kernel_says_again(kernel, tmp_path):
    # what only this sees: that a kernel and the course's own way to run a lesson agree
    nb = new_notebook(
        cells=[new_code_cell(cell, id=f"cell-{i}") for i, cell in enumerate(CELLS)]
    )
    [done] = run_all([(tmp_path / "stored.ipynb", nb)], timeout=240)
    assert done.failure == ""
    assert nb.cells[-1].outputs[0].text.endswith("rank 2: new 2\nrank 2: 2\n")
    before = number(kernel) - 1
    for cell in nb.cells[1:]:  # the first one's extension is loaded here
        said = re.sub(
            r"\bcell (\d+)",
            lambda found: f"cell {int(found[1]) - before}",
            kernel(cell.source),
        )
        assert said == "".join(output.text for output in cell.outputs)
