"""Open the process group of ranks that torchrun has started, also after a restart.

    meet      open it, through the network that leads to the other hosts
    settled   agree with the others on a word that only these starts of ranks know
    common    agree on a backend: hosts may have different numbers of GPUs

After a restart torchrun hands out the store of the first start, with all that the ended
ranks have left in it (torch 2.13; pytorch issue 135712). gloo would read their
addresses there, and call processes that are gone. So the ranks first agree on a new
word, and keep what they write under this word.
"""

import contextlib
import json
import os
import socket
import struct
import time
import uuid

import torch.distributed as dist

SIOCGIFADDR = 0x8915  # of Linux: the address of an interface
PAUSE = 0.05          # seconds between two looks


def meet(backend, timeout):
    """Open the process group, with what torchrun has put into the environment.

    backend: what this rank's host would take, "nccl" or "gloo". timeout: a timedelta,
    for the meeting and for every collective after it. Raises RuntimeError, as torch
    does, if the others cannot be reached, or TimeoutError.
    """
    address = os.environ["MASTER_ADDR"]
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := _interface_to(address)):
        os.environ["GLOO_SOCKET_IFNAME"] = name
    store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
    word = settled(store, rank, world_size, timeout.total_seconds())
    store = dist.PrefixStore(word, store)
    dist.init_process_group(common(store, rank, world_size, backend), store=store,
                            rank=rank, world_size=world_size, timeout=timeout)


def common(store, rank, world_size, backend):
    """Return "nccl" if every rank asks for it, else "gloo"; the same on all ranks.

    Where one host has fewer GPUs than ranks, its ranks are on the CPU, and nccl takes
    no CPU's tensors.
    """
    store.set(f"backend {rank}", backend)
    asked = {store.get(f"backend {other}").decode() for other in range(world_size)}
    return "gloo" if "gloo" in asked else backend


def settled(store, rank, world_size, seconds):
    """Return a word that these starts of all ranks share, and no earlier start knew.

    Each start draws a word and puts it up. Rank 0 lists them, perhaps an old one among
    them. A rank says yes to a list that has its own word. Once all have said yes to one
    list, it holds. Raises TimeoutError if that takes longer than `seconds`.
    """
    mine, end = uuid.uuid4().hex, time.monotonic() + seconds
    store.set(f"word {rank}", mine)
    while time.monotonic() < end:
        if rank == 0:
            words = [store.get(f"word {other}").decode() for other in range(world_size)]
            store.set("list", json.dumps(words))
        words = json.loads(store.get("list"))
        if len(words) == world_size and words[rank] == mine:
            held = words[0]  # rank 0's: new in every start
            store.set(f"yes {rank}", json.dumps(words))
            if rank == 0 and all(_look(store, f"yes {other}") == json.dumps(words)
                                 for other in range(world_size)):
                store.set("held", held)
            if _look(store, "held") == held:
                return held
        time.sleep(PAUSE)
    raise TimeoutError(f"the {world_size} ranks did not meet within {seconds:g} s")


def _look(store, key):
    return store.get(key).decode() if store.check([key]) else None


def _interface_to(address):
    """Return the network interface that leads to `address`, None if it is not known.

    gloo would take the one that this host's own name stands for. On many hosts that is
    loopback, which no other host can reach.
    """
    try:
        import fcntl
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            mine = probe.getsockname()[0]
            if mine.startswith("127.") and address not in ("localhost", "127.0.0.1"):
                return None
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                with contextlib.suppress(OSError):  # it has no such address
                    found = fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24]
                    if socket.inet_ntoa(found) == mine:
                        return name
    except (ImportError, OSError):  # no such system, no way there: gloo chooses
        return None
    return None
