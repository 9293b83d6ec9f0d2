"""However an audit ends, it ends soon, says how, and leaves nothing behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from manual_dp.audit import audit, audit_script
from tests.support import endings

SOON = 5   # seconds from an interrupt to the end
LATE = 20  # more, on a busy machine
SCRIPT = endings.__file__


@pytest.fixture
def surroundings(tmp_path, monkeypatch):
    """Let all that is started here be known, and have a folder for its files."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv(endings.FOLDER, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return tmp_path


def started_in(folder):
    """Return the processes that were started with this folder in the environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(folder / "tmp"):
                found.append(process)
    return found


@pytest.mark.parametrize("what, ranks, number, status", [
    (["tests.support.endings:hangs_alone"], 1, signal.SIGINT, 130),
    (["tests.support.endings:hangs_on_ranks"], 2, signal.SIGINT, 130),
    (["--", SCRIPT, "hangs"], 2, signal.SIGINT, 130),
    (["--", SCRIPT, "hangs"], 2, signal.SIGTERM, 143),
    (["tests.support.endings:hangs_on_ranks"], 2, signal.SIGTERM, 143)])
def test_one_signal_ends_the_command_and_all_below_it(
        surroundings, what, ranks, number, status):
    running = subprocess.Popen(
        [sys.executable, "-m", "manual_dp", "audit", "--timeout", "100", *what],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(surroundings / "tmp")},
        # a shell's background job ignores Ctrl-C, and so would what it starts
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    wanted = [surroundings / f"reached-{rank}" for rank in range(ranks)]
    deadline = time.monotonic() + 90
    try:
        while not all(path.exists() for path in wanted) and running.poll() is None and (
                time.monotonic() < deadline):
            time.sleep(0.05)
        assert len(started_in(surroundings)) > ranks
        start = time.monotonic()
        running.send_signal(number)
        _, errors = running.communicate(timeout=SOON + LATE)
        seconds = time.monotonic() - start
    finally:
        running.kill()
        running.wait()
    assert running.returncode == status, errors
    assert ("interrupted" in errors) is (status == 130) and "Traceback" not in errors
    _, left = psutil.wait_procs(started_in(surroundings), timeout=2)
    files = [path.name for path in (surroundings / "tmp").iterdir()]
    assert left == [] and [name for name in files if "inductor" not in name] == []
    assert seconds < SOON + LATE * (os.getloadavg()[0] > os.cpu_count())


def test_a_rank_that_is_killed_is_a_finding():
    [one] = audit(**endings.killed(), timeout=60).findings
    assert (one.code, one.rank, one.step) == ("killed", 1, 0)
    assert "SIGKILL" in one.says


def test_a_rank_of_a_script_that_is_killed_is_a_finding(surroundings):
    report = audit_script([SCRIPT, "killed"], timeout=100)
    first = report.findings[0]
    assert (first.code, first.rank) == ("killed", 1), report
    assert "rank 1 was killed by SIGKILL" in first.says


def test_a_script_that_hangs_says_where_each_rank_stands(surroundings):
    report = audit_script([SCRIPT, "hangs"], timeout=6)
    first = report.findings[0]
    assert first.code in ("hang", "unequal-batches"), report
    lines = (open(SCRIPT).read()).splitlines()  # noqa: SIM115
    sleeping, waiting = (1 + next(i for i, line in enumerate(lines) if words in line)
                         for words in ('time.sleep(120) if how', "mean().backward()"))
    says = first.says.split("; ")
    assert f"endings.py, line {waiting}, in main" in says[0], says
    assert f"endings.py, line {sleeping}, in main" in says[1], says
    assert "rank 1:" in report.details


def test_a_script_in_which_nothing_is_watched_cannot_be_audited(surroundings):
    with pytest.raises(RuntimeError, match="nothing was watched on ranks 0 and 1"):
        audit_script([SCRIPT, "silent"])


def test_a_script_that_starts_its_ranks_itself_is_sent_home(surroundings):
    started = surroundings / "started"
    script = surroundings / "spawns.py"
    script.write_text(f"""
import torch.multiprocessing as mp
def train(rank):
    open({str(started)!r}, "a").close()
if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
""")
    with pytest.raises(RuntimeError, match="starts its ranks itself.* as python "):
        audit_script([script], timeout=60)
    assert not started.exists()


BEGIN = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
from manual_dp.audit import watch
dist.init_process_group("gloo")
torch.manual_seed(0)
rank, rows = dist.get_rank(), torch.randn(20, 8, 6)
"""
STAGES = BEGIN + """
model = torch.nn.Linear(6, 4) if rank == 0 else torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
watch(model, optimizer)
for X in rows:
    optimizer.zero_grad()
    between = torch.empty(8, 4)
    if rank == 0:
        out = model(X)
        dist.send(out.detach(), 1), dist.recv(between, 1)
        out.backward(between)
    else:
        dist.recv(between, 0)
        model(between.requires_grad_()).square().mean().backward()
        dist.send(between.grad, 0)
    optimizer.step()
"""
ONE_MEAN = BEGIN + """
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
watch(model, optimizer)
for X in rows:
    optimizer.zero_grad()
    model(X[rank::2]).square().mean().backward()
    for p in model.parameters():
        both = [torch.empty_like(p) for _ in range(2)]
        dist.all_gather(both, p.grad)
        if rank == 0:
            p.grad = sum(both) / 2
    optimizer.step()
    time.sleep(0.3)
Path(sys.argv[1]).touch()
"""


def test_stages_of_a_pipeline_are_refused_in_words(tmp_path):
    script = tmp_path / "stages.py"
    script.write_text(STAGES)
    with pytest.raises(RuntimeError, match=r"stages.py: rank 1's model has other param"
                       r"eters than rank 0's \(2 and 2\)"):
        audit_script([script], timeout=60)


def test_a_rank_is_not_watched_for_longer_than_others(tmp_path):
    """Only rank 0 sees that something was sent: the other stops with it."""
    script, end = tmp_path / "one_mean.py", tmp_path / "end"
    script.write_text(ONE_MEAN)
    report = audit_script([script, end], timeout=60)
    assert report.steps == 3 and not end.exists()
    assert report.findings[0].code == "not-sent-back"
