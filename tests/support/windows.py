"""Play Windows: take away what Python does not have there. Run before the course.

torch is imported first: its own build for Windows does without these.
"""

import os
import signal
import socket
import sys

import torch  # noqa: F401
import torch.distributed  # noqa: F401

KEPT = {
    "SIGABRT",
    "SIGFPE",
    "SIGILL",
    "SIGINT",
    "SIGSEGV",
    "SIGTERM",
    "SIG_DFL",
    "SIG_IGN",
}
MODULES = ("fcntl grp posix pty pwd readline resource syslog termios tty").split()
OS = """chown chroot fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg
    getpgid getpgrp getpriority getsid getuid killpg lchown mkfifo mknod nice openpty
    pidfd_open posix_fallocate posix_spawn pread pwrite register_at_fork sched_getaffinity
    sched_setaffinity sendfile setgid setpgid setpgrp setpriority setsid setuid statvfs
    sysconf uname wait wait3 wait4 waitid WEXITED WIFEXITED WIFSIGNALED WNOHANG
    WNOWAIT O_DIRECTORY""".split()

for name in [
    name for name in dir(signal) if name.startswith("SIG") and name not in KEPT
]:
    delattr(signal, name)
for place, names in (
    (
        signal,
        [
            "alarm",
            "getitimer",
            "setitimer",
            "ITIMER_REAL",
            "ITIMER_VIRTUAL",
            "ITIMER_PROF",
            "pause",
            "pthread_kill",
            "pthread_sigmask",
            "sigpending",
            "sigwait",
        ],
    ),
    (socket, ["AF_UNIX", "send_fds", "recv_fds"]),
    (os, OS),
):
    for name in names:
        if hasattr(place, name):
            delattr(place, name)
for name in MODULES:
    sys.modules[name] = None  # importing it raises ImportError


def refuse_folders(path, *args, _open=os.open, **kwargs):
    """Open a file; Windows opens no folder."""
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return _open(path, *args, **kwargs)


def interrupt(pid, number):
    """Stand in for os.kill, whose signal 0 there is Ctrl-C."""
    raise OSError(f"process {pid} was sent {number}")


os.open, os.kill = refuse_folders, interrupt
