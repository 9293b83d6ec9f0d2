"""A run on hosts made of one machine, and what happens to it in one night.

    night    kill a rank, lose a host, let another come, end the job, start it again
    typed    the command of a host
    rows     how many rows a run had read when it wrote its file
    starts   what the ranks of each start printed
    draw     when each rank lived

Each function that starts torchruns gets the hosts of course.lab.hosts.on_hosts.
"""

import time
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from course.lab.figures import plot
from programs.survive import ROWS

EPOCHS = 24
LINES = """TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun \\
    --nnodes {nnodes} --nproc-per-node {ranks} --max-restarts 3 \\
    --rdzv-backend c10d --rdzv-id digits-1 \\
    --rdzv-endpoint 127.0.0.1:29400 --local-addr 127.0.0.{number} \\
    --rdzv-conf is_host={first},last_call_timeout=5,keep_alive_interval=2 \\
    programs/survive.py --epochs {epochs} --checkpoint {path}{more}"""
# a host is lost after three silent intervals
PAUSE = " --pause 0.04"  # in place of a larger network


def typed(host, ranks, nnodes="1:2", path="digits.pt", more=""):
    """Return what is typed on this host."""
    return LINES.format(
        nnodes=nnodes,
        ranks=ranks,
        number=host + 1,
        first=int(host == 0),
        epochs=EPOCHS,
        path=path,
        more=more,
    )


def night(hosts, ranks, kill_after, folder):
    """Return {"lives", "moments", "ports", "said", "states"} of the night."""
    path = Path(folder) / "digits.pt"
    lives, moments, states, running, said = {}, [], [], {}, []
    start = time.monotonic()

    def type_on(host, nnodes="1:2", more=PAUSE):
        command = typed(host, ranks, nnodes, path, more)
        running[host] = hosts.type(command)
        said.append((host, running[host]))

    def saved():
        with suppress(FileNotFoundError):
            return torch.load(path)
        return {"epoch": -1, "seen": 0, "ranks": 0, "pid": 0}

    def note():
        now = time.monotonic() - start
        for host, run in running.items():
            with suppress(psutil.NoSuchProcess):
                for process in psutil.Process(run.pid).children():
                    if process.status() != psutil.STATUS_ZOMBIE:
                        key = host, process.pid
                        lives.setdefault(key, [now, now])[1] = now

    def watch(until=lambda: False):
        """Note who lives, until something is so or no torchrun is left."""
        while not until() and any(run.is_alive() for run in running.values()):
            note()
            time.sleep(0.02)

    def moment(words):
        note()
        states.append(saved())
        moments.append((time.monotonic() - start, words))

    def goes_on(number):
        """Return a question: has a new start of so many ranks come far enough?"""
        before = states[-1]

        def ask():
            state = saved()
            new = state["pid"] != before["pid"] and state["ranks"] == number
            return new and rows(state) >= rows(before) + ROWS

        return ask

    type_on(0)
    type_on(1)
    watch(lambda: saved()["epoch"] >= kill_after)
    ports = [_ports(psutil.Process(running[host].pid)) for host in (0, 1)]
    moment("a rank is killed")
    psutil.Process(running[1].pid).children()[-1].kill()

    watch(goes_on(2 * ranks))
    moment("host 1 is lost")
    torchrun = psutil.Process(running.pop(1).pid)
    for process in [torchrun, *torchrun.children()]:
        process.kill()

    watch(goes_on(ranks))
    moment("host 2 comes")
    type_on(2)

    watch(goes_on(2 * ranks))
    moment("SIGTERM to all")
    for run in running.values():
        run.terminate()
    watch()
    running.clear()

    moment("typed again on host 0")
    type_on(0, "1", "")
    watch()
    return {
        "lives": lives,
        "moments": moments,
        "states": states,
        "ports": ports,
        "said": [(host, hosts.printed(run)) for host, run in said],
        "errors": [(host, hosts.printed(run, "err")) for host, run in said],
        "end": saved(),
    }


def rows(state):
    """Return how many rows a run had read when it wrote its file."""
    return state["epoch"] * ROWS + state["seen"]


def _ports(agent):
    """Return how many ports a torchrun listens at, and each of its ranks."""

    def listening(process):
        return {
            connection.laddr
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }

    own = listening(agent)  # its forks have these, too
    return [
        len(own),
        *(len(listening(rank) - own) for rank in agent.children()),
    ]


def starts(night):
    """Return a list for each start of all ranks: the dicts that they printed, in order.

    A dict has host, local, rank, ranks, epoch and seen, and the process's pid. `host` is
    torchrun's number; `typed` is the host on which that torchrun was typed.
    """
    names = "host", "local", "rank", "ranks", "epoch", "seen", "pid"
    found = []
    for typed_on, text in night["said"]:
        for line in text.splitlines():
            words = line.split()
            if not line.startswith("epoch") and len(words) == len(names):
                found.append(
                    dict(zip(names, map(int, words))) | {"typed": typed_on}
                )
    found.sort(
        key=lambda one: night["lives"].get((one["typed"], one["pid"]), [0])[0]
    )
    every = []
    for one in found:
        if not every or len(every[-1]) == every[-1][0]["ranks"]:
            every.append([])
        every[-1].append(one)
    return [sorted(some, key=lambda one: one["rank"]) for some in every]


def draw(night):
    """Draw when each rank lived, and on which host."""
    import matplotlib.pyplot as plt

    ranks = night["ports"][0]
    lives, each = night["lives"], len(ranks) - 1
    begin = min(start for start, _ in lives.values())
    _, ax = plt.subplots(figsize=(7.2, 3.5), dpi=110, layout="constrained")
    for some in starts(night):
        for one in some:
            start, end = lives[one["typed"], one["pid"]]
            row = one["typed"] * (each + 0.5) + one["local"]
            colour = plot.COLOURS[one["rank"]]
            ax.barh(
                row, end - start, left=start - begin, height=0.8, color=colour
            )
            words = f" {one['rank']}"
            ax.text(start - begin, row, words, va="center", color="white")
    for number, (at, _) in enumerate(night["moments"], 1):
        ax.axvline(at - begin, color=plot.INK, linestyle="--", linewidth=1)
        # two may be close together
        side = "right" if number % 2 == 0 else "left"
        ax.text(
            at - begin,
            -0.8,
            f" {number} ",
            fontsize=11,
            weight="bold",
            ha=side,
        )
    middles = [host * (each + 0.5) + (each - 1) / 2 for host in range(3)]
    ax.set_yticks(middles, [f"host {host}" for host in range(3)], fontsize=11)
    ax.set_xlabel("seconds; the number in a bar is its rank", fontsize=11)
    ax.set_ylim(3 * each + 0.8, -1.5)
