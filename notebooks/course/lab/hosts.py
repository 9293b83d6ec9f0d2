"""Several hosts made of one machine: torchruns that start, end, and leave nothing.

    on_hosts   call a function that starts torchruns; what still runs ends with it
    Hosts      type a command on a host; read what it printed

A host is an address: 127.0.0.1, 127.0.0.2 and so on lead to this machine (on Linux). A
torchrun is a fork of a rank that has imported torch, and its own ranks are forks of it:
they start in a tenth of a second, not in ten. When that rank ends, after `timeout`
seconds at the latest, all of them are killed.
"""

import contextlib
import multiprocessing
import os
import re
import shlex
import signal
import socket
import sys
import tempfile
from pathlib import Path

import torch.distributed as dist

from manual_dp.ranks import run_ranks
from manual_dp.ranks.launch.processes import descendants


def on_hosts(function, *args, timeout=600):
    """Call function(hosts, *args), in a process of its own; return what it returns."""
    return run_ranks(_call, 1, function, args, timeout=timeout)[0]


class Hosts:
    """Start a command on a host, and read what it printed."""

    def __init__(self, folder):
        self.folder, self.ports, self.torchruns = folder, {}, []

    def type(self, command):
        """Start a line such as "NAME=VALUE torchrun ..."; return its process.

        Each of the ports 29400 to 29499 in an address is replaced by a free one.
        """
        import torch.distributed.run  # here, and so in all forks
        from torch.distributed.elastic.rendezvous import dynamic_rendezvous

        # for each message torchrun looks up its caller in all imported modules: on a
        # busy processor that takes a second, and the hosts never meet
        dynamic_rendezvous.get_method_name = lambda depth=2: ""
        words = shlex.split(self.with_free_ports(command.replace("\\\n", " ")))
        at = words.index("torchrun")
        options = [f"--log-dir={self.folder}"]  # its own folder would stay
        if "--no-python" not in words:
            import sklearn.datasets  # noqa: F401, for the digits
            import torch._dynamo  # noqa: F401, for DistributedDataParallel

            options += ["--run-path", "--start-method=fork"]
        # no GPU: each host would take the first, and nccl refuses two ranks on one
        environ = {"CUDA_VISIBLE_DEVICES": ""} | dict(
            word.split("=", 1) for word in words[:at]
        )
        return self.run(environ, torch.distributed.run.main, options + words[at + 1 :])

    def run(self, environ, function, *args):
        """Call a function in a new process with these variables; return the process."""
        place = f"{self.folder}/{len(self.torchruns)}"
        process = multiprocessing.get_context("fork").Process(
            target=_begin, args=(place, environ, function, args), name=place
        )
        process.start()
        self.torchruns.append(process)
        return process

    def printed(self, process, stream="out"):
        """Wait until it has ended; return what it and its ranks wrote to out or err."""
        process.join()
        return Path(f"{process.name}-{stream}").read_text(errors="replace")

    def with_free_ports(self, text):
        """Replace the ports 29400 to 29499 in a text by free ones, always the same."""
        for port in set(re.findall(r":(294\d\d)\b", text)) - self.ports.keys():
            with socket.socket() as probe:
                probe.bind(("", 0))
                self.ports[port] = str(probe.getsockname()[1])
        return re.sub(r"(?<=:)294\d\d\b", lambda port: self.ports[port[0]], text)


def _call(function, args):
    dist.destroy_process_group()  # its threads would not be in a fork
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(folder)
        try:
            return function(hosts, *args)
        finally:
            for process in hosts.torchruns:
                for pid in [process.pid, *descendants(process.pid)]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.join()


def _begin(place, environ, function, args):
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        with open(f"{place}-{name}", "wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.environ.update(environ)
    function(*args)
