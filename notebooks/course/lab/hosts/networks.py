"""Make hosts out of one machine: each with a network of its own, joined by a switch.

    networks   a list of hosts for a `with` block; they are gone after it
    Host       its address, and what stands before a command to run it there

On Linux a *network namespace* is a network of its own: own interfaces, addresses and
ports. A process holds it, and it ends with the process. Making one needs root, or the
right to make user namespaces. Where neither is given, all hosts share loopback: several
torchruns on one machine, with one address.
"""

import contextlib
import dataclasses
import os
import shutil
import socket
import subprocess
import sys

TOOLS = "ip", "nsenter", "unshare"
WAIT = 60  # seconds for a namespace to be there, on a very busy machine


@dataclasses.dataclass
class Host:
    """Know a host's address, and the words before a command that runs on it."""

    address: str
    prefix: list
    own_network: bool


@contextlib.contextmanager
def networks(count, own=True):
    """Give the block a list of `count` hosts, from 1 to 200.

    own: a network for each where the machine allows it, else loopback for all.
    """
    if not 1 <= count <= 200:
        raise ValueError(f"count must be from 1 to 200 hosts, got {count}")
    with contextlib.ExitStack() as stack:
        hosts = None
        if own and sys.platform == "linux" and all(map(shutil.which, TOOLS)):
            # refused, in many containers: what was made until then ends here
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                hosts = _namespaces(stack, count)
        yield hosts or [Host("127.0.0.1", [], False)] * count


def free_port(host):
    """Return a port that nobody listens at on this host."""
    if host.own_network:
        return 29400  # its network is new: all are free
    with socket.socket() as probe:
        probe.bind((host.address, 0))
        return probe.getsockname()[1]


def _namespaces(stack, count):
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    switch = _hold(stack, ["unshare", *user, "--net"])
    enter = ["nsenter", f"--target={switch}", "--net"]
    if user:
        enter += ["--user", "--preserve-credentials"]
    _run(*enter, "ip", "link", "add", "switch", "type", "bridge")
    _run(*enter, "ip", "link", "set", "switch", "up")
    hosts = []
    for number in range(1, count + 1):
        pid = _hold(stack, [*enter, "unshare", "--net"])
        inside = ["nsenter", f"--target={pid}", *enter[2:]]
        _run(*enter, "ip", "link", "add", f"port{number}", "type", "veth", "peer",
             "name", "eth0", "netns", str(pid))
        _run(*enter, "ip", "link", "set", f"port{number}", "master", "switch", "up")
        _run(*inside, "ip", "address", "add", f"10.0.0.{number}/24", "dev", "eth0")
        for name in "lo", "eth0":
            _run(*inside, "ip", "link", "set", name, "up")
        hosts.append(Host(f"10.0.0.{number}", inside, True))
    return hosts


def _hold(stack, words):
    """Start a process that does nothing in new namespaces; return its number."""
    process = subprocess.Popen([*words, "cat"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    stack.callback(_end, process)
    process.stdin.write(b"there\n")
    process.stdin.flush()
    if not process.stdout.readline():  # `cat` answers once it is where it should be
        raise OSError(f"{words[0]} was refused")
    return process.pid


def _end(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def _run(*words):
    subprocess.run(words, check=True, capture_output=True, timeout=WAIT)
