"""Run torchrun on several hosts of this machine; end a rank or a host; never hang.

    on_hosts   make hosts, let a function start and end what it wants on them
    Hosts      start a torchrun on a host, end a rank or the host, wait for all

All that starts is below one rank of `run_ranks`: its deadline ends everything, networks
too, and so does an interrupt. Nothing stays behind.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time

from course.lab.hosts.networks import free_port, networks
from manual_dp.ranks import run_ranks
from manual_dp.ranks.launch.processes import below, look

LISTEN = ("import socket, sys, time; "
          "held = socket.create_server((sys.argv[1], int(sys.argv[2]))); "
          "print('listening', flush=True); time.sleep(10**6)")


def on_hosts(count, function, *args, own=True, timeout=600):
    """Call function(hosts, *args) with `count` hosts; return what it returns.

    hosts: a `Hosts`. own: give each host a network of its own where this is allowed.
    timeout: seconds until all must have ended. Raises RankError after that, or with
    what the function raised.
    """
    return run_ranks(_call, 1, count, function, args, own, timeout=timeout)[0]


@dataclasses.dataclass
class Told:
    """Hold how a torchrun ended, and what it and its ranks printed."""

    code: int
    out: str
    err: str


class Hosts:
    """Know the hosts, and the torchruns that run on them."""

    def __init__(self, hosts, folder):
        self.hosts, self.folder = hosts, folder
        self.port, self.running = free_port(hosts[0]), []
        self.places = 0

    @property
    def own_networks(self):
        """Say whether each host has a network of its own."""
        return self.hosts[0].own_network

    def start(self, host, *words, nnodes=None, ranks=2, job="job", conf=(), options=(),
              endpoint=None, environ=()):
        """Start torchrun on host number `host`; return its number among all started.

        words: what it runs, such as "-m", "manual_dp", "train". nnodes: hosts, also
        "1:2". job: --rdzv-id. conf: more of --rdzv-conf, such as "join_timeout=9".
        options: more of torchrun's own. endpoint: where the hosts meet, by default
        host 0 and a port that is free there. environ: (name, value) pairs, besides.
        """
        here = self.hosts[host]
        conf = [f"is_host={int(host == 0)}", *conf]
        command = [
            *here.prefix, sys.executable, "-m", "torch.distributed.run",
            f"--nnodes={nnodes or len(self.hosts)}", f"--nproc-per-node={ranks}",
            "--rdzv-backend=c10d", f"--rdzv-id={job}",
            f"--rdzv-endpoint={endpoint or f'{self.hosts[0].address}:{self.port}'}",
            f"--local-addr={here.address}", f"--rdzv-conf={','.join(conf)}",
            f"--log-dir={self.folder}",  # its own folder would stay
            *map(str, options), *map(str, words)]
        return self.run(command, environ)

    def run(self, command, environ=()):
        """Start a whole command, as it stands; return its number.

        It sees no GPU: each host would take the first one, and nccl refuses two ranks
        on one.
        """
        number = len(self.running)
        given = {name: value for name, value in os.environ.items()
                 if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
                 and (name != "GLOO_SOCKET_IFNAME" or not self.own_networks)}
        given |= {"CUDA_VISIBLE_DEVICES": "", "PYTHON_COLORS": "0"}
        with (open(f"{self.folder}/out-{number}", "wb") as out,
              open(f"{self.folder}/err-{number}", "wb") as err):
            self.running.append(subprocess.Popen(
                command, env=given | dict(environ), stdin=subprocess.DEVNULL,
                stdout=out, stderr=err))
        return number

    def place(self):
        """Return a meeting place, "ADDRESS:PORT": a free port of host 0, a new one."""
        self.places += 1
        here = self.hosts[0]
        port = self.port + self.places if here.own_network else free_port(here)
        return f"{here.address}:{port}"

    def taken(self):
        """Return a meeting place on host 0 where another program listens already."""
        place = self.place()
        number = self.run([*self.hosts[0].prefix, sys.executable, "-c", LISTEN,
                           *place.split(":")])
        while not self._said(number, "out"):
            if self.running[number].poll() is not None:
                raise RuntimeError(f"nobody can listen at {place}: "
                                   f"{self._said(number, 'err')}")
            time.sleep(0.05)
        return place

    def ranks(self, number):
        """Return the processes of this torchrun's ranks: {rank: process}."""
        found = {}
        for pid in below(self.running[number].pid):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/environ", "rb") as file:
                    names = dict(entry.partition(b"=")[::2]
                                 for entry in file.read().split(b"\0"))
                if b"TORCHELASTIC_RUN_ID" in names and look(pid)[0] != "Z":
                    found[int(names[b"RANK"])] = pid
        return found

    def end_rank(self, number, which):
        """Kill one of this torchrun's ranks, the one at place `which`; return it.

        Raises RuntimeError if the torchrun has ended: it has no ranks any more.
        """
        while not (found := sorted(self.ranks(number).items())):
            if self.running[number].poll() is not None:
                raise RuntimeError(f"torchrun {number} has ended, it has no ranks")
            time.sleep(0.05)
        rank, pid = found[which % len(found)]
        os.kill(pid, signal.SIGKILL)
        return rank

    def end_host(self, number):
        """Kill this torchrun and all its ranks at once, as a power failure would."""
        process = self.running[number]
        for pid in [process.pid, *below(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait(self, *numbers):
        """Wait until these torchruns have ended, without a number all; a Told each."""
        return [self._told(number) for number in numbers or range(len(self.running))]

    def _told(self, number):
        code = self.running[number].wait()
        return Told(code, *(self._said(number, name) for name in ("out", "err")))

    def _said(self, number, name):
        with open(f"{self.folder}/{name}-{number}", errors="replace") as file:
            return file.read()


def _call(count, function, args, own):
    with tempfile.TemporaryDirectory() as folder, networks(count, own) as hosts:
        return function(Hosts(hosts, folder), *args)
