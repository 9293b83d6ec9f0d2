"""A process that is watched: its text, how it ended, and nothing of it is left."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import manual_dp
from manual_dp.school.grader import jail

COURSE = Path(manual_dp.__file__).parent
# what child.py is for it: the parent of all that is left behind, in a process alone
SCRIPT = """
import ctypes, importlib.util, json, os, signal, sys, time
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
def page(name):
    path = f"{{sys.argv[1]}}/{{name.replace('.', '/')}}.py"
    spec = importlib.util.spec_from_file_location(f"manual_dp.{{name}}", path)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
processes, usage = page("ranks.launch.processes"), page("school.grader.usage")
jail, watch = page("school.grader.jail"), page("school.grader.watch")
{change}
def run(pipe):
{body}
def opened():
    return sorted(os.listdir("/proc/self/fd"))
before, start = opened(), time.monotonic()
reply = watch.watch(run, os.getcwd(), {seconds})
reply["took"] = time.monotonic() - start
reply["files left open"] = len(opened()) - len(before)
reply["below"] = sorted(processes.below(os.getpid()))
try:
    reply["below"].append(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    pass
print(json.dumps(reply))
"""


@pytest.fixture
def watched(tmp_path):
    """Return a function: run `body` in a watched process; see that nothing is left."""
    def watched(body, seconds=10, change=""):
        body = textwrap.indent(textwrap.dedent(body), "    ")
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c",
             SCRIPT.format(body=body, seconds=seconds, change=change), str(COURSE)],
            # what is left would hold stdout, and this would not return
            cwd=tmp_path, timeout=60, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        reply = json.loads(done.stdout)
        assert reply.pop("files left open") == 0 and reply.pop("below") == []
        assert reply.pop("took") < 25  # what hangs is stopped after 30
        return reply["text"], reply["end"]
    yield watched
    # folders a thousand deep, which neither pytest nor shutil can remove
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


def test_what_a_process_writes_comes_back(watched):
    assert watched("os.write(pipe, b'hello'); os._exit(0)") == (
        "hello", "ended the process with exit code 0")


def test_a_long_text_comes_back_whole(watched):
    text, end = watched("""
        with os.fdopen(pipe, "w") as file:
            file.write("0123456789" * 300_000)
        os._exit(0)""")
    assert text == "0123456789" * 300_000 and end.endswith("exit code 0")


def test_a_text_that_comes_in_parts_comes_back_whole(watched):
    assert watched("""
        for part in (b"a", b"b", b"c"):
            os.write(pipe, part)
            time.sleep(0.05)
        os._exit(0)""")[0] == "abc"


def test_what_is_written_just_before_the_end_is_not_lost(watched):
    late = """
read = watch._read
def slow(fd, text):
    found = read(fd, text)
    time.sleep(0.3)
    return found
watch._read = slow"""
    assert watched("time.sleep(0.1); os.write(pipe, b'late'); os._exit(0)",
                   change=late)[0] == "late"


@pytest.mark.parametrize("body, end", [
    ("pass", "ended the process with exit code 1"),
    ("raise SystemExit(0)", "ended the process with exit code 1"),
    ("os._exit(0)", "ended the process with exit code 0"),
    ("os._exit(77)", "ended the process with exit code 77"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", "ended with SIGSEGV"),
    ("os.kill(os.getpid(), signal.SIGTERM)", "ended with SIGTERM"),
    ("os.kill(os.getpid(), signal.SIGKILL)",
     "was killed: it did so itself, or there was no memory left"),
    ("os.kill(os.getpid(), signal.SIGXCPU)",
     "was stopped: it computed for more than 10 s"),
    ("os.abort()", "ended with SIGABRT")])
def test_every_way_to_end_is_named(watched, body, end):
    assert watched(f"os.write(pipe, b'text')\n{body}") == ("text", end)


@pytest.mark.skipif(sys.platform != "linux", reason="signals without a name")
def test_a_signal_without_a_name_has_a_number(watched):
    assert watched("os.kill(os.getpid(), 40)") == ("", "ended with signal 40")


@pytest.mark.parametrize("body", [
    "time.sleep(999)", "while True: pass",
    "os.kill(os.getpid(), signal.SIGSTOP)",
    "os.setsid()\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(999)",
    "os.close(pipe)\ntime.sleep(999)"])
def test_what_takes_too_long_is_stopped(watched, body):
    assert watched(f"os.write(pipe, b'text')\n{body}", seconds=0.25) == (
        "text", "was stopped after 0.75 s")


def test_what_returns_too_much_is_stopped(watched):
    text, end = watched("while True: os.write(pipe, b'x' * 2**16)")
    assert end == "was stopped: it returned far too much"
    assert text == "x" * 4 * 2**20


def test_what_is_no_text_is_read_all_the_same(watched):
    assert watched("os.write(pipe, b'a\\xff\\0'); os._exit(0)")[0] == "a\ufffd\0"


# files

@pytest.mark.parametrize("body", [
    "open('f', 'wb').truncate(65 * 2**20)",
    "os.makedirs('a/b')\nfor i in range(5): open(f'a/b/{i}', 'wb').truncate(14 * 2**20)"])
def test_what_fills_the_disk_is_stopped(watched, body):
    assert watched(f"{body}\ntime.sleep(999)")[1] == (
        "was stopped: it wrote too many files, more than 64 MiB")


@pytest.mark.parametrize("make", [
    "open(f'f{i}', 'w').close()", "os.mkdir(f'f{i}')", "os.symlink('x', f'f{i}')",
    "os.mkdir('d'); os.chdir('d')"])
def test_many_empty_files_and_folders_are_too_many(watched, make):
    assert watched(f"for i in range(1200): {make}\ntime.sleep(999)",
                   change="watch.FILES = 1000 * 2**12") == (
        "", "was stopped: it wrote too many files, more than 3 MiB")


@pytest.mark.parametrize("body", [
    "open('f', 'wb').truncate(60 * 2**20)", "os.symlink('/', 'f')",
    "os.symlink('.', 'f')",
    "for _ in range(1100): os.mkdir('d' * 9); os.chdir('d' * 9)"])
def test_files_within_the_limit_may_stay(watched, body):
    assert watched(f"{body}\ntime.sleep(0.3)\nos.write(pipe, b'done')\nos._exit(0)") == (
        "done", "ended the process with exit code 0")


def test_a_folder_that_changes_while_it_is_measured_does_no_harm(watched):
    assert watched("""
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            os.mkdir("d"); open("d/f", "w").close()
            os.remove("d/f"); os.rmdir("d")
        os.write(pipe, b"done"); os._exit(0)""")[0] == "done"


# processes

def test_too_many_processes_are_stopped(watched):
    text, end = watched("""
        for _ in range(70):
            if os.fork() == 0:
                time.sleep(999)
        time.sleep(999)""")
    assert (text, end) == (
        "", "was stopped: it started too many processes, more than 64")


def test_a_few_processes_may_be_started(watched):
    assert watched("""
        for _ in range(10):
            if os.fork() == 0:
                time.sleep(999)
        time.sleep(0.3); os.write(pipe, b"done"); os._exit(0)""")[0] == "done"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")
@pytest.mark.parametrize("how", [
    "", "os.setsid()", "os.setsid()\n    if os.fork(): os._exit(0)\n    os.setsid()",
    "os.setsid(); signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "os.setpgid(0, 0); os.kill(os.getpid(), signal.SIGSTOP)"])
def test_a_process_that_outlives_its_parent_and_holds_the_pipe_is_killed(watched, how):
    assert watched(f"""
if os.fork() == 0:
    {how}
    time.sleep(999)
time.sleep(0.1)
os.write(pipe, b"done")
os._exit(0)""") == ("done", "ended the process with exit code 0")


@pytest.mark.skipif(not jail.available(), reason="this system has no namespaces")
def test_processes_that_go_on_forking_are_killed(watched):
    # elsewhere it is a race, which the faster one wins
    text, end = watched("""
        for _ in range(4):
            if os.fork() == 0:
                os.setsid()
                while os.fork() == 0: time.sleep(0.01)
                time.sleep(0.05); os._exit(0)
        time.sleep(0.3); os.write(pipe, b"done"); os._exit(0)""", change=(
            "import functools\nbare = watch.watch\nwatch.watch = lambda run, *args: "
            "bare(functools.partial(jail.enclose, run), *args)"))
    assert end in ("ended the process with exit code 0",
                   "was stopped: it started too many processes, more than 64")


# what they take together

@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_too_many_threads_of_all_processes_are_stopped(watched):
    assert watched("""
        import threading
        threading.stack_size(2**16)
        for _ in range(4):
            if os.fork() == 0:
                for _ in range(70):
                    threading.Thread(target=time.sleep, args=(999,)).start()
                time.sleep(999)
        time.sleep(999)""") == (
            "", "was stopped: it started too many threads, more than 256")


HOARD = "hoard = bytearray(60 * 2**20); hoard[::4096] = b'x' * len(hoard[::4096])"
TOO_MUCH = ("", "was stopped: its processes took too much memory, more than 0.125 GiB")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("body", [
    f"for _ in range(3):\n    if os.fork() == 0:\n        {HOARD}; time.sleep(999)",
    "keep = [os.memfd_create('m') for _ in range(15)]\n"
    "for fd in keep: os.write(fd, b'x' * 10 * 2**20)",
    "import mmap\nhoard = mmap.mmap(-1, 150 * 2**20)\nif os.fork() == 0:\n"
    "    for at in range(0, len(hoard), 4096): hoard[at] = 1"])
def test_memory_is_counted_wherever_it_lies(watched, body):
    assert watched(f"{body}\ntime.sleep(999)", change="import functools\nwatch.watch "
                   "= functools.partial(watch.watch, memory=2**27)") == TOO_MUCH


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_that_children_share_with_their_parent_is_counted_once(watched):
    assert watched(f"""
        {HOARD}
        for _ in range(5):
            if os.fork() == 0:
                time.sleep(999)
        time.sleep(0.5); os.write(pipe, b"done"); os._exit(0)""", change=(
            "import functools\nwatch.watch = functools.partial(watch.watch, "
            "memory=2**27)"))[0] == "done"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")
def test_another_process_goes_on_writing_and_is_not_waited_for(watched):
    text, end = watched("""
        if os.fork() == 0:
            while True: os.write(pipe, b"y" * 999)
        time.sleep(0.2)
        os._exit(0)""")
    assert end in ("ended the process with exit code 0",
                   "was stopped: it returned far too much")
    assert set(text) <= {"y"} and len(text) <= 4 * 2**20


def test_an_error_while_watching_leaves_nothing_either(tmp_path):
    # the last three lines of the script say what is left
    change = "def fail(*_): raise ZeroDivisionError\nwatch._too_much = fail"
    script = SCRIPT.format(body="    time.sleep(999)", seconds=5, change=change)
    script = script.replace("reply = watch.watch(run, os.getcwd(), 5)", """
try:
    watch.watch(run, os.getcwd(), 5)
except ZeroDivisionError:
    reply = {}""")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script, str(COURSE)],
                          cwd=tmp_path, timeout=60, capture_output=True, text=True)
    assert done.stderr == ""
    reply = json.loads(done.stdout)
    assert (reply["files left open"], reply["below"]) == (0, [])
