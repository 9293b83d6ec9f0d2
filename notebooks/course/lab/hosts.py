"""Several hosts made of one machine, with a torchrun on each: a cluster, in small.

    on_hosts      make hosts, let a function start and end what it wants on them
    Hosts         start a torchrun on a host, end a rank or the host, wait for all
    until_saved   wait until their run is so far: its checkpoint says it

A host has a network of its own, and a switch joins them: network namespaces of Linux,
each held by a process. Where the system refuses them, all hosts share loopback.
A torchrun is a fork of a rank that has imported torch, and its own ranks are forks of
it: they start in a second, not in ten. All ends with that rank, at `timeout` at last.
"""

import collections
import contextlib
import ctypes
import functools
import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch.distributed as dist

from manual_dp.ranks import load, run_ranks
from manual_dp.ranks.launch.processes import below, look

PAUSE = 0.02  # seconds between two looks at a file or a process
Host = collections.namedtuple("Host", "address holder")  # the process of its network
Told = collections.namedtuple("Told", "code out err")  # what a torchrun's ranks printed


def on_hosts(count, function, *args, own=True, timeout=600):
    """Call function(hosts, *args) with `count` hosts; return what it returns.

    hosts: a `Hosts`. own: each gets a network of its own, where this is allowed.
    """
    return run_ranks(_call, 1, count, function, args, own, timeout=timeout)[0]


def until_saved(path, step, hosts):
    """Wait until the checkpoint is of this step or a later one, or a torchrun ended."""
    while all(process.is_alive() for process in hosts.running):
        with contextlib.suppress(FileNotFoundError):
            found = load(path)
            if (found["epoch"], found["step"]) >= (0, step):
                return
        time.sleep(PAUSE)


class Hosts:
    """Know the hosts, and what was started on them, by number."""

    def __init__(self, hosts, folder):
        self.hosts, self.folder = hosts, folder
        self.running, self.ports = [], itertools.count(29400)
        self.meeting = self.place()

    def start(self, host, *words, nnodes=None, ranks=2, job="job", conf=(), options=(),
              endpoint=None, environ=()):
        """Start torchrun on host number `host`; return its number among all started.

        words: what it runs. nnodes: hosts. job: --rdzv-id. conf: more of --rdzv-conf.
        options: more of torchrun's own. endpoint: where the hosts meet, by default a
        free port of host 0. environ: (name, value) pairs, besides.
        """
        import torch.distributed.run  # here, and so in all forks
        if words[0].endswith(".py"):
            import sklearn.datasets  # noqa: F401, for the digits
            import torch._dynamo  # noqa: F401, for DistributedDataParallel
            options = ["--run-path", "--start-method=fork", *options]
        return self.run(host, torch.distributed.run.main, [
            f"--nnodes={nnodes or len(self.hosts)}", f"--nproc-per-node={ranks}",
            "--rdzv-backend=c10d", f"--rdzv-id={job}",
            f"--rdzv-endpoint={endpoint or self.meeting}",
            f"--local-addr={self.hosts[host].address}",
            f"--rdzv-conf={','.join([f'is_host={int(host == 0)}', *conf])}",
            f"--log-dir={self.folder}",  # its own folder would stay
            *map(str, options), *map(str, words)], environ=environ)

    def run(self, host, function, *args, environ=()):
        """Call a function in a new process on this host; return its number."""
        here, place = self.hosts[host], f"{self.folder}/{len(self.running)}"
        # no GPU: each host would take the first, and nccl refuses two ranks on one
        environ = {"CUDA_VISIBLE_DEVICES": "", **dict(environ)}
        if here.holder:
            environ["GLOO_SOCKET_IFNAME"] = "eth0"
        process = multiprocessing.get_context("fork").Process(
            target=_begin, args=(here, environ, place, function, args))
        process.start()
        self.running.append(process)
        return len(self.running) - 1

    def place(self):
        """Return a meeting place, "ADDRESS:PORT": a free port of host 0, a new one."""
        address = self.hosts[0].address
        if self.hosts[0].holder:  # its network is new: all are free
            return f"{address}:{next(self.ports)}"
        with socket.socket() as probe:
            probe.bind((address, 0))
            return f"{address}:{probe.getsockname()[1]}"

    def ranks(self, number):
        """Return the processes of this torchrun's ranks, by local rank."""
        agent = self.running[number].pid
        return sorted(pid for pid in below(agent)
                      if look(pid)[1] == agent and look(pid)[0] != "Z")

    def end_rank(self, number, local_rank):
        """Kill one of this torchrun's ranks; wait until it has any."""
        while self.running[number].is_alive() and not self.ranks(number):
            time.sleep(PAUSE)
        os.kill(self.ranks(number)[local_rank], signal.SIGKILL)

    def end_host(self, number):
        """Kill this torchrun and all its ranks at once, as a power failure would."""
        agent = self.running[number].pid
        for pid in [agent, *below(agent)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait(self, *numbers):
        """Wait until these torchruns have ended, without a number all; a Told each."""
        numbers = numbers or range(len(self.running))
        for number in numbers:
            self.running[number].join()
        return [Told(self.running[number].exitcode, *(
            Path(f"{self.folder}/{number}-{name}").read_text(errors="replace")
            for name in ("out", "err"))) for number in numbers]


def _call(count, function, args, own):
    dist.destroy_process_group()  # its threads would not be in a fork
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        hosts = [Host("127.0.0.1", None)] * count
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # refused
            hosts = _networks(stack, count) if own else hosts
        made = Hosts(hosts, folder)
        try:
            return function(made, *args)
        finally:
            for number in range(len(made.running)):
                made.end_host(number)


def _begin(host, environ, place, function, args):
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        with open(f"{place}-{name}", "wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.environ.update(environ)
    if host.holder:
        _enter(host)
    function(*args)


def _enter(host):
    """Move this process, which has one thread, into the host's network."""
    for kind in ("net",) if os.geteuid() == 0 else ("user", "net"):
        with open(f"/proc/{host.holder}/ns/{kind}") as file:
            if ctypes.CDLL(None).setns(file.fileno(), 0):
                raise OSError(f"no way into a host's {kind} namespace")


def _networks(stack, count):
    """Return hosts with networks of their own, joined by a switch."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    switch = Host(None, _hold(stack, user))
    hosts = [Host(f"10.0.0.{number}", _hold(stack, [], switch))
             for number in range(1, count + 1)]
    _ip(switch, "link add switch type bridge", "link set switch up", *(
        line for number, host in enumerate(hosts) for line in (
            f"link add port{number} type veth peer name eth0 netns {host.holder}",
            f"link set port{number} master switch up")))
    for host in hosts:
        _ip(host, f"address add {host.address}/24 dev eth0", "link set lo up",
            "link set eth0 up")
    return hosts


def _hold(stack, options, host=None):
    """Start a process that does nothing in a new network; return its number."""
    words = ["unshare", *options, "--net", "sh", "-c", "echo there; exec cat"]
    process = stack.enter_context(subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        preexec_fn=host and functools.partial(_enter, host)))
    stack.callback(process.kill)
    if not process.stdout.readline():
        raise OSError("a new network was refused")
    return process.pid


def _ip(host, *lines):
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True,
                   capture_output=True, preexec_fn=functools.partial(_enter, host))
