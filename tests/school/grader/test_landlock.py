"""A process that gave up its rights: what it can still reach, and what it cannot."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

import manual_dp
from manual_dp.school.grader import landlock

HIDE = Path(manual_dp.__file__).parent / "school" / "grader" / "landlock.py"
VERSION = landlock._version()
# readable: a folder and a file; the rest of the folder of the test is secret
SCRIPT = """
import importlib.util, json, os, shutil, signal, socket, subprocess, sys
spec = importlib.util.spec_from_file_location("landlock", sys.argv[1])
landlock = importlib.util.module_from_spec(spec)
spec.loader.exec_module(landlock)
os.mkfifo("secret/pipe")
for name in ("secret/file", "readable/file", "one", "own/first"):
    with open(name, "w") as file:
        file.write(name)
base = os.getcwd()
said, told = os.pipe()
pid = os.fork()
if pid == 0:
    found = {}

    def note(name, action):
        try:
            found[name] = repr(action())
        except OSError as error:
            found[name] = type(error).__name__

    def write(path, how="w"):
        with open(path, how) as file:
            return file.write("x")
    inside = os.open("readable", os.O_RDONLY)
    landlock.restrict(["/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix,
                   "/dev/null", f"{base}/readable", f"{base}/one", f"{base}/missing"],
                  f"{base}/own")
    note("open secret", lambda: open("secret/file").read())
    note("open secret, absolute", lambda: open(f"{base}/secret/file").read())
    note("open secret, around", lambda: open("own/../secret/file").read())
    note("open secret, from a folder", lambda: os.open("../secret/file", os.O_RDONLY,
                                                       dir_fd=inside))
    note("list secret", lambda: os.listdir("secret"))
    note("list all", lambda: os.listdir("."))
    note("open pipe", lambda: os.open("secret/pipe", os.O_RDONLY | os.O_NONBLOCK))
    note("write secret", lambda: write("secret/file"))
    note("append secret", lambda: write("secret/file", "a"))
    note("create secret", lambda: write("secret/new"))
    note("truncate secret", lambda: os.truncate("secret/file", 0))
    note("remove secret", lambda: os.remove("secret/file"))
    note("make folder", lambda: os.mkdir("secret/folder"))
    note("rename secret", lambda: os.rename("secret/file", "own/taken"))
    note("rename to secret", lambda: os.rename("own/first", "secret/given"))
    note("link secret", lambda: os.link("secret/file", "own/linked"))
    note("symlink secret", lambda: os.symlink("../secret/file", "own/symlink"))
    note("open symlink", lambda: open("own/symlink").read())
    note("copy secret", lambda: shutil.copyfile("secret/file", "own/copy"))
    note("parent's memory", lambda: open(f"/proc/{os.getppid()}/environ").read())
    note("parent's folder", lambda: os.listdir(f"/proc/{os.getppid()}/cwd"))
    note("parent's file", lambda: os.readlink(f"/proc/{os.getppid()}/fd/0"))
    note("cat", lambda: subprocess.run(["/bin/cat", "secret/file"],
                                       capture_output=True).stdout)
    note("cat readable", lambda: subprocess.run(["/bin/cat", "readable/file"],
                                                capture_output=True).stdout)
    note("open readable", lambda: open("readable/file").read())
    note("list readable", lambda: os.listdir("readable"))
    note("write readable", lambda: write("readable/file"))
    note("create readable", lambda: write("readable/new"))
    note("open one", lambda: open("one").read())
    note("write one", lambda: write("one"))
    note("write null", lambda: write("/dev/null"))
    note("write own", lambda: write("own/new") and open("own/new").read())
    note("make own folder", lambda: os.mkdir("own/folder"))
    note("rename own", lambda: os.rename("own/new", "own/newer"))
    note("truncate own", lambda: os.truncate("own/newer", 0))
    note("list own", lambda: sorted(os.listdir("own")))
    note("remove own", lambda: os.remove("own/newer"))
    note("remove own folder", lambda: os.rmdir("own/folder"))
    note("stat secret", lambda: os.stat("secret/file").st_size)
    note("signal parent", lambda: os.kill(os.getppid(), 0))
    note("stop parent", lambda: os.kill(os.getppid(), signal.SIGCONT))
    note("signal itself", lambda: os.kill(os.getpid(), 0))

    def fork():
        if (child := os.fork()) == 0:
            try:
                open("secret/file")
            except PermissionError:
                os._exit(7)
            os._exit(0)
        os.kill(child, 0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    note("child", fork)
    note("connect", lambda: socket.create_server(("127.0.0.1", 0)).close())
    landlock.restrict([f"{base}/secret", f"{base}/readable"], f"{base}/own")
    note("open secret again", lambda: open("secret/file").read())
    note("open one again", lambda: open("one").read())
    with os.fdopen(told, "w") as file:
        json.dump(found, file)
    os._exit(0)
os.close(told)
with os.fdopen(said) as file:
    text = file.read()
os.waitpid(pid, 0)
left = {name: open(name).read() for name in ("secret/file", "readable/file", "one")}
print(json.dumps([json.loads(text), left, sorted(os.listdir("secret"))]))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return what a restricted process could do, and what was there afterwards."""
    if VERSION < 1:
        pytest.skip("this system has no Landlock")
    folder = tmp_path_factory.mktemp("hide")
    for name in ("secret", "readable", "own"):
        (folder / name).mkdir()
    done = subprocess.run([sys.executable, "-I", "-S", "-c", SCRIPT, str(HIDE)],
                          cwd=folder, timeout=60, capture_output=True, text=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


REFUSED = ["open secret", "open secret, absolute", "open secret, around",
           "open secret, from a folder", "list secret", "list all", "open pipe",
           "write secret", "append secret", "create secret", "remove secret",
           "make folder", "open symlink", "copy secret", "parent's memory",
           "parent's folder", "parent's file", "write readable", "create readable", "write one"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_was_not_named_is_refused(report, name):
    assert report[0][name] == "PermissionError"


def test_files_of_others_cannot_be_moved_or_linked(report):
    found = report[0]
    for name in ("rename secret", "rename to secret", "link secret"):
        assert found[name] in ("PermissionError", "OSError")  # OSError: "other device"
    if VERSION >= 3:
        assert found["truncate secret"] == "PermissionError"


@pytest.mark.parametrize("name, value", [
    ("open readable", "'readable/file'"), ("list readable", "['file']"),
    ("open one", "'one'"), ("cat readable", "b'readable/file'"), ("write null", "1")])
def test_what_was_named_can_be_read(report, name, value):
    assert report[0][name] == value


@pytest.mark.parametrize("name, value", [
    ("write own", "'x'"), ("make own folder", "None"), ("rename own", "None"),
    ("truncate own", "None"), ("remove own", "None"), ("remove own folder", "None"),
    ("list own", "['first', 'folder', 'newer', 'symlink']")])
def test_the_folder_is_its_own(report, name, value):
    assert report[0][name] == value


def test_its_children_have_no_more_rights(report):
    assert (report[0]["child"], report[0]["cat"]) == ("7", "b''")


def test_rights_that_were_given_up_do_not_come_back(report):
    found = report[0]
    assert found["open secret again"] == found["open one again"] == "PermissionError"


@pytest.mark.skipif(VERSION < 6, reason="Landlock of before Linux 6.12")
def test_signals_reach_itself_and_its_children_alone(report):
    found = report[0]
    assert found["signal parent"] == found["stop parent"] == "PermissionError"
    assert found["signal itself"] == "None"


def test_ranks_can_still_talk_to_each_other(report):
    assert report[0]["connect"] == "None"


def test_size_and_date_of_a_file_can_still_be_seen(report):
    # Landlock does not cover stat: known, and no answer stands in a size
    assert report[0]["stat secret"] == str(len("secret/file"))


def test_what_was_hidden_is_as_it_was(report):
    _, left, secret = report
    assert left == {name: name for name in left} and secret == ["file", "pipe"]


# systems without it

@pytest.mark.parametrize("version", [0, -1])
def test_without_landlock_nothing_is_hidden_and_nothing_breaks(monkeypatch, version):
    monkeypatch.setattr(landlock, "_version", lambda: version)
    monkeypatch.setattr(landlock, "_must", lambda result: pytest.fail("restricts"))
    assert landlock.available() is False
    landlock.restrict(["/usr"], "/tmp")


def test_other_systems_are_not_asked(monkeypatch):
    monkeypatch.setattr(landlock.sys, "platform", "darwin")
    monkeypatch.setattr(landlock.ctypes, "CDLL", lambda *_: pytest.fail("asks"))
    assert landlock.available() is False


def test_it_is_available_from_the_first_version_on(monkeypatch):
    monkeypatch.setattr(landlock, "_version", lambda: 1)
    assert landlock.available() is True


def test_a_refusal_of_the_system_is_an_error_and_not_overlooked():
    ctypes.set_errno(22)
    with pytest.raises(OSError, match="Landlock refused a rule") as caught:
        landlock._must(-1)
    assert caught.value.errno == 22
    assert landlock._must(0) == 0 and landlock._must(3) == 3


@pytest.mark.skipif(VERSION < 1, reason="this system has no Landlock")
@pytest.mark.parametrize("fault", ["CREATE", "ADD", "RESTRICT"])
def test_a_process_that_cannot_be_restricted_does_not_go_on(tmp_path, fault):
    # in a process of its own: where the fault did not raise, it would be restricted
    script = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("landlock", sys.argv[1])
landlock = importlib.util.module_from_spec(spec)
spec.loader.exec_module(landlock)
version = landlock._version()
landlock._version = lambda: version
landlock.{fault} = 9999  # no such system call
try:
    landlock.restrict(["/usr"], sys.argv[2])
except OSError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script, str(HIDE),
                           str(tmp_path)], timeout=60, capture_output=True, text=True)
    assert done.stdout.endswith("Landlock refused a rule\n") and done.stderr == ""
