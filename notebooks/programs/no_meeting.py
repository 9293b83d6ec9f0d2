"""Four torchruns that never start their ranks, and what each of them says.

    python no_meeting.py

The torchruns are on two hosts made of this machine, and wait 2 seconds, not ten minutes.
"""

import re

from course.lab.hosts import on_hosts

CONF = "join_timeout=2,read_timeout=2"  # seconds


def typed(host, job, port, nnodes=2):
    """Return a command that has nothing to do: `true`, on one rank."""
    return (
        f"torchrun --no-python --nnodes {nnodes} --nproc-per-node 1 "
        f"--rdzv-backend c10d --rdzv-id {job} --local-addr 127.0.0.{host + 1} "
        f"--rdzv-endpoint 127.0.0.1:{port} "
        f"--rdzv-conf is_host={int(host == 0)},{CONF} true"
    )


def mistakes(hosts):
    """Return {mistake: the first error that torchrun names}."""
    waits = typed(0, "ours", 29400).replace(CONF, "join_timeout=600")
    waits = hosts.type(waits)
    started = {
        "another --rdzv-id": hosts.type(typed(1, "theirs", 29400)),
        "one host is missing": hosts.type(typed(0, "alone", 29401)),
        "nobody at the address": hosts.type(typed(1, "ours", 29402)),
    }
    errors = {
        name: hosts.printed(run, "err") for name, run in started.items()
    }
    busy = hosts.type(
        typed(0, "ours", 29400)
    )  # where the first one still waits
    errors["the port is taken"] = hosts.printed(busy, "err")
    found = {name: first_error(text) for name, text in errors.items()}
    return found | {
        "the first torchrun": "waits" if waits.is_alive() else "ended"
    }


def first_error(text):
    """Return how the first line that names an error begins."""
    line = re.search(r"^(?:torch\S*\.)?(\w+Error.*)", text, re.M)
    return " ".join(line[1].split()[:4]) if line else "no error"


if __name__ == "__main__":
    for mistake, error in on_hosts(mistakes).items():
        print(f"{mistake:22} {error}")
