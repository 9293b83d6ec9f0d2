"""A system of its own for a process: what it sees of others, how it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from manual_dp.school.grader import jail

ROOT = Path(__file__).parents[3]
HERE = jail.available()
SCRIPT = """
import importlib.util, os, resource, signal, socket, sys, time
def page(name):
    path = f"{{sys.argv[1]}}/manual_dp/{{name.replace('.', '/')}}.py"
    spec = importlib.util.spec_from_file_location(f"manual_dp.{{name}}", path)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
processes, jail = page("ranks.launch.processes"), page("school.grader.jail")
def run(pipe):
    def say(*words):
        os.write(pipe, (" ".join(map(str, words)) + "\\n").encode())
{body}
pipe, write = os.pipe()
pid = os.fork()
if pid == 0:
    jail.{how}(run, write)
os.close(write)
with os.fdopen(pipe) as file:
    text = file.read()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text, end="")
"""
enclosed = pytest.mark.skipif(not HERE, reason="this system has no namespaces")


def ran(*lines, how="enclose"):
    """Return how a process ended that ran these lines, and what it said."""
    script = SCRIPT.format(body="\n".join("    " + line for line in lines), how=how)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script, str(ROOT)],
                          timeout=120, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    code, _, text = done.stdout.partition(" ")
    return int(code), text.split()


@enclosed
def test_it_is_process_2_of_a_system_of_its_own():
    assert ran("say(os.getpid(), os.getppid()); os._exit(0)") == (0, ["2", "1"])


@enclosed
@pytest.mark.parametrize("try_it", [
    "os.kill({pid}, 0)", "resource.prlimit({pid}, resource.RLIMIT_CORE)",
    "os.sched_getaffinity({pid})", "os.getpriority(os.PRIO_PROCESS, {pid})",
    "os.pidfd_open({pid})", "os.getsid({pid})"])
def test_there_are_no_other_processes(try_it):
    # this process, whose number is none there
    code, said = ran("try:", f"    {try_it.format(pid=os.getpid())}",
                     "except OSError as error: say(type(error).__name__)",
                     "os._exit(0)")
    assert (code, said) == (0, ["ProcessLookupError"])


@enclosed
def test_there_is_no_network_but_a_loopback():
    listening = psutil.socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    with listening:
        code, said = ran(
            f"try: socket.create_connection(('127.0.0.1', {port}), 5)",
            "except OSError as error: say(type(error).__name__)",
            "mine = socket.create_server(('127.0.0.1', 0))",
            "socket.create_connection(mine.getsockname(), 5)",
            "say(*[name for _, name in socket.if_nameindex()]); os._exit(0)")
    assert (code, said[:2]) == (0, ["ConnectionRefusedError", "lo"])


@enclosed
def test_memory_with_a_name_is_gone_with_it():
    before = Path("/proc/sysvipc/shm").read_text().count("\n")
    code, _ = ran("import ctypes", "libc = ctypes.CDLL(None)",
                  "os._exit(libc.shmget(0x6d6473, 4096, 0o1666) < 0)")
    assert code == 0 and Path("/proc/sysvipc/shm").read_text().count("\n") == before


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize("how", ["enclose", "alone"])
def test_no_right_of_root_is_left(how):
    if how == "enclose" and not HERE:
        pytest.skip("this system has no namespaces")
    code, said = ran(
        "with open('/proc/self/status') as file:",
        "    say(*[line.split()[1] for line in file if line.startswith('CapEff')])",
        "os._exit(0)", how=how)
    assert (code, [int(word, 16) for word in said]) == (0, [0])


@enclosed
def test_files_belong_to_the_same_user():
    assert ran("say(os.getuid(), os.getgid()); os._exit(0)") == (
        0, [str(os.getuid()), str(os.getgid())])


@pytest.mark.parametrize("how", ["enclose", "alone"])
@pytest.mark.parametrize("line, code", [
    ("os._exit(0)", 0), ("os._exit(77)", 77), ("os.abort()", -signal.SIGABRT),
    ("os._exit(200)", 200),
    ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ("os.kill(os.getpid(), signal.SIGXCPU)", -signal.SIGXCPU)])
def test_who_waits_sees_how_it_ended(how, line, code):
    if how == "enclose" and not HERE:
        pytest.skip("this system has no namespaces")
    assert ran(f"    {line}".strip(), how=how)[0] == code


@enclosed
def test_all_that_it_started_ends_with_it(tmp_path):
    code, said = ran(
        "for _ in range(3):", "    if os.fork() == 0:", "        os.setsid()",
        "        if os.fork(): os._exit(0)", f"        os.chdir({str(tmp_path)!r})",
        "        os.close(pipe); time.sleep(999)", "time.sleep(0.2); os._exit(0)")
    left = [p.pid for p in psutil.process_iter() if _folder(p) == str(tmp_path)]
    assert (code, left) == (0, [])


@enclosed
def test_it_ends_with_who_started_it(tmp_path):
    script = SCRIPT.format(how="enclose", body=(
        f"    os.chdir({str(tmp_path)!r}); say('ready'); time.sleep(999)")).replace(
            "    text = file.read()", "    print(file.readline(), flush=True); "
            "time.sleep(999)")
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", script, str(ROOT)],
                               stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
    finally:
        process.kill()
        process.wait()
    end = time.monotonic() + 100
    while (left := [p.pid for p in psutil.process_iter() if _folder(p) == str(tmp_path)]
           ) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []


def _folder(process):
    try:
        return process.cwd()
    except psutil.Error:
        return None


def test_where_there_are_no_namespaces_it_says_so(monkeypatch):
    def refused():
        raise PermissionError
    monkeypatch.setattr(jail, "_unshare", refused)
    assert jail.available() is False
    monkeypatch.setattr(jail.sys, "platform", "darwin")
    assert jail.available() is False
