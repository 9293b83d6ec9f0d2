"""Let a learner's process see no process but its own: namespaces of Linux.

    available   whether this system lets a process have some
    enclose     run a function as process 2 of a system of its own, and end as it does
    alone       run it without, where there are no namespaces
    cut_off     leave this process, and those that it forks, no network
    part        leave this process no memory that it could share by name
    clear       end all other processes in here

    child.py
       keeper      outside: it ends as the answer does, so that others see how
          init     process 1 inside: when it ends, all that is inside is killed
             answer.py and what it starts

Inside there are no other processes, no network but a loopback, no shared memory,
semaphores or queues but their own, which end with them. Nobody needs to be root for
it: a user namespace gives the rights to make the others, and they are given up before
an answer runs. See namespaces(7). Some containers forbid it.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
import time

from manual_dp.ranks.launch.processes import follow

NEWUSER, NEWPID, NEWIPC, NEWNET = 0x10000000, 0x20000000, 0x08000000, 0x40000000
ALL = NEWUSER | NEWPID | NEWIPC | NEWNET
SIOCSIFFLAGS, UP = 0x8914, 0x1
CAPABILITIES_3 = 0x20080522  # the version of capset(2) that Linux has
FAILED = 113                 # an exit code: no namespaces


def available():
    """Return whether this system lets a process have namespaces: try it."""
    if sys.platform != "linux":
        return False
    if (pid := os.fork()) == 0:
        try:
            enclose(os._exit, 0)
        finally:
            os._exit(FAILED)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def alone(run, pipe):
    """Call `run(pipe)` in this process, in a session of its own."""
    os.setsid()
    follow()
    if sys.platform == "linux":
        drop_rights()  # root's
    run(pipe)


def enclose(run, pipe):
    """Call `run(pipe)` as a process that sees no others; then end as it has ended.

    In a process that was forked for it, and that ends here.
    """
    os.setsid()
    follow()
    _unshare()
    told, tell = os.pipe()
    if (init := os.fork()) == 0:
        try:
            os.close(told)
            _init(run, pipe, tell)
        finally:
            os._exit(FAILED)
    os.close(tell)
    os.close(pipe)
    os.waitpid(init, 0)
    code = os.read(told, 16)
    _end_with(int(code or -signal.SIGKILL))


def _init(run, pipe, tell):
    """Be process 1: start process 2, reap what is left behind, say how 2 ended."""
    follow()
    if (pid := os.fork()) == 0:
        try:
            os.close(tell)
            os.setsid()
            drop_rights()
            run(pipe)
        finally:
            os._exit(1)
    os.closerange(3, tell)
    os.closerange(tell + 1, 1024)
    while True:
        gone, status = os.waitpid(-1, 0)
        if gone == pid:
            os.write(tell, b"%d" % os.waitstatus_to_exitcode(status))
            os._exit(0)


def cut_off():
    """Leave this process a network without even a loopback; nothing where it cannot."""
    if sys.platform == "linux":
        ctypes.CDLL(None).unshare(NEWUSER | NEWNET)


def part():
    """Part this process from those that it could share memory by name with."""
    if sys.platform == "linux":
        ctypes.CDLL(None).unshare(NEWIPC)
        drop_rights()


def clear():
    """End all processes in here but this one, if it is process 2, and process 1."""
    while (os.getpid(), os.getppid()) == (2, 1):
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.001)


def _unshare():
    user, group = os.getuid(), os.getgid()
    _must(ctypes.CDLL(None, use_errno=True).unshare(ALL))
    # the same user inside, or files would belong to nobody
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"),
                       ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    raise_loopback()


def raise_loopback():
    """Bring up the loopback of a new network: ranks talk over it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP))


def drop_rights():
    """Give up what a user namespace gives: the rights of root over it."""
    header = struct.pack("=Ii", CAPABILITIES_3, 0)
    _must(ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)))


def _end_with(code):
    """End with an exit code, or by a signal if it is below 0."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _must(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "no namespaces here")
