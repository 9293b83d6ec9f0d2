import errno
import hashlib
import io
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from manual_dp.ranks import RankError, run_ranks
from manual_dp.ranks.checkpoint import CheckpointError, load, save

KILLS = int(os.environ.get("MANUAL_DP_KILLS", 3))


def some_state(seed=0, rows=4):
    """Return a state with the shapes and types that trip."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {str(shape): torch.rand(shape, dtype=torch.float64, generator=generator)
               for shape in [(), (1,), (0,), (rows, 3)]}
    return {"tensors": tensors | {"transposed": tensors[str((rows, 3))].t(),
                                  "half": torch.ones(2, dtype=torch.bfloat16),
                                  "count": torch.tensor([2**62 + 1])},
            "epoch": 3, "loss": [0.5, None, True], "name": "a run"}


def same(a, b):
    """Return whether two states are equal, bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def with_first_line(data):
    """Return `data` as a file of ours, with the right size and the right hash."""
    digest = hashlib.sha256(data).hexdigest()
    return f"manual_dp checkpoint 1 {len(data)} {digest}\n".encode() + data


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.pt"


@pytest.fixture
def nothing_is_unpacked(monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpacks"))


# save and load

def test_what_is_saved_is_loaded_bit_for_bit(path):
    save(path, some_state())
    assert same(load(path), some_state())
    save(str(path), some_state(seed=1))  # over the old one, path as a string
    assert same(load(str(path)), some_state(seed=1))
    assert os.listdir(path.parent) == ["model.pt"]


def test_a_file_is_a_line_and_what_torch_saves(path):
    save(path, some_state())
    head, data = path.read_bytes().split(b"\n", 1)
    assert head.decode().split() == ["manual_dp", "checkpoint", "1", str(len(data)),
                                     hashlib.sha256(data).hexdigest()]
    assert same(torch.load(io.BytesIO(data), weights_only=True), some_state())


def test_a_checkpoint_may_be_read_by_whoever_may_read_a_new_file(path):
    (path.parent / "ordinary").touch()
    save(path, {})
    assert path.stat().st_mode == (path.parent / "ordinary").stat().st_mode


def test_tensors_are_loaded_to_the_device_that_is_asked_for(path):
    save(path, {"W": torch.ones(2)})
    assert load(path)["W"].device == torch.device("cpu")
    assert load(path, "meta")["W"].device == torch.device("meta")


def test_the_bytes_are_on_the_disk_before_the_name_is(path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(handle):
        name = os.readlink(f"/proc/self/fd/{handle}")
        calls.append(("fsync", name, os.path.getsize(name)))
        fsync(handle)

    def noted_replace(source, target):
        calls.append(("replace", str(source), str(target)))
        replace(source, target)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    save(path, some_state())
    [first, then, last] = calls
    assert first == ("fsync", then[1], path.stat().st_size)
    assert then == ("replace", first[1], str(path))
    assert os.path.dirname(first[1]) == str(path.parent)
    assert last[:2] == ("fsync", str(path.parent))


def test_two_threads_may_save_at_once(path):
    def save_often(seed):
        for _ in range(20):
            save(path, some_state(seed, rows=2000))
            assert same(load(path)["epoch"], 3)
            done.append(seed)
    done = []
    threads = [threading.Thread(target=save_often, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == [1] * 20 + [2] * 20
    assert os.listdir(path.parent) == ["model.pt"]


KILLED = """
import os, random, signal, sys, time
import torch
from manual_dp.ranks.checkpoint import load, save
path, kills = sys.argv[1], int(sys.argv[2])
state = {"count": 0, "W": torch.zeros(5, 1_000_000)}  # 20 MB
save(path, state)
count, temps = 0, 0
for kill in range(kills):
    hear, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        while True:
            count += 1
            state["W"].fill_(count)
            save(path, {"count": count, "W": state["W"]})
            os.write(tell, b".")
    os.read(hear, 1)
    time.sleep(random.uniform(0, 0.4))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(tell)
    said = count + 1 + len(os.read(hear, 10**6))  # so many saves have returned
    temps += len([name for name in os.listdir(os.path.dirname(path)) if ".ck" in name])
    found = load(path)
    assert (found["W"] == found["count"]).all()
    assert found["count"] in (said, said + 1), (found["count"], said)
    count = found["count"]
    save(path, state | {"count": count, "W": state["W"].fill_(count)})
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
print(f"{kills} kills, {kills} loadable, {temps} left a temporary file")
"""


def test_a_kill_at_any_instant_leaves_the_old_file_or_the_new(path):
    run = subprocess.run([sys.executable, "-c", KILLED, path, str(KILLS)], timeout=300,
                         env={**os.environ, "OMP_NUM_THREADS": "1"},  # it forks
                         cwd=Path(__file__).parents[2], capture_output=True, text=True)
    print(run.stdout)
    assert f"{KILLS} kills, {KILLS} loadable" in run.stdout, run.stderr
    assert os.listdir(path.parent) == ["model.pt"]


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")
    save(path, some_state())
    old = path.read_bytes()
    for name in "fsync", "replace":
        with monkeypatch.context() as patch, pytest.raises(OSError) as caught:
            patch.setattr(os, name, fail)
            save(path, some_state(seed=1))
        assert str(caught.value) == "[Errno 5] Input/output error"  # not a full disk
        assert path.read_bytes() == old and os.listdir(path.parent) == ["model.pt"]


def test_a_full_disk_says_so_and_leaves_the_old_file(path):
    def fill(path):
        import resource

        import torch

        from manual_dp.ranks.checkpoint import save
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))  # SIGXFSZ is ignored
        try:
            save(path, {"W": torch.zeros(10**6)})
        except OSError as error:
            return type(error).__name__, error.errno, str(error)
    save(path, some_state())
    [report] = run_ranks(fill, 1, str(path))
    assert report == ("OSError", errno.EFBIG, "[Errno 27] File too large: the disk may "
                      f"be full; {path} is as it was")
    assert same(load(path), some_state())
    assert os.listdir(path.parent) == ["model.pt"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_may_be_a_full_quota(path, monkeypatch, code):
    def fail(_):
        raise OSError(code, os.strerror(code))
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"Errno {code}.*: the disk may be full; .*pt is "
                                      "as it was"):
        save(path, {})
    assert os.listdir(path.parent) == []


def test_missing_files_and_folders_are_missing_as_usual(path):
    with pytest.raises(FileNotFoundError, match="model.pt"):
        load(path)
    with pytest.raises(FileNotFoundError, match="no/such"):
        save(path.parent / "no" / "such" / "model.pt", {})
    with pytest.raises(IsADirectoryError):
        save(path.parent, {})
    assert os.listdir(path.parent) == []


# what killed saves leave

def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_what_a_killed_save_left_is_swept(path):
    dead = dead_pid()
    for thread in dead, 7:
        (path.parent / f".ck-model.pt-{dead}-{thread}").write_text("half a file")
    save(path, {})
    assert os.listdir(path.parent) == ["model.pt"]


def test_what_others_write_is_left_alone(path):
    dead, living = dead_pid(), os.getppid()
    kept = [f".ck-model.pt-{living}-{living}",    # a living process
            f".ck-model.pt-{os.getpid()}-1",      # another thread of this one
            f".ck-other.pt-{dead}-{dead}",        # other targets
            f".ck-model.pt-1-{dead}-{dead}", f".ck-my-model.pt-{dead}-{dead}",
            f".ck-model.pt-{dead}", ".ck-model.pt-x-1", f"model.pt-{dead}-{dead}"]
    for name in kept:
        (path.parent / name).touch()
    save(path, {})
    assert sorted(os.listdir(path.parent)) == sorted([*kept, "model.pt"])


def test_what_another_user_is_writing_is_left_alone(path, monkeypatch):
    def refuse(pid, number):
        assert number == 0
        raise PermissionError(errno.EPERM, "Operation not permitted")
    monkeypatch.setattr(os, "kill", refuse)
    (path.parent / ".ck-model.pt-99-99").touch()
    save(path, {})
    assert sorted(os.listdir(path.parent)) == [".ck-model.pt-99-99", "model.pt"]


# files that are not loaded

def test_a_flipped_bit_is_seen_before_anything_is_unpacked(path, nothing_is_unpacked):
    good = bytearray(with_first_line(bytes(range(256)) * 400))
    first_line = good.index(b"\n") + 1
    for place in [*range(first_line), *range(first_line, len(good), 1009),
                  len(good) - 1]:
        good[place] ^= 1
        path.write_bytes(good)
        with pytest.raises(CheckpointError, match="model.pt (is damaged: its bytes are "
                           "not those|does not begin|should have)"):
            load(path)
        good[place] ^= 1


@pytest.mark.parametrize("change, seen", [
    (lambda data: data[:-1], 999), (lambda data: data[:-999], 1),
    (lambda data: data[:-1000], 0), (lambda data: data + b"x", 1001),
])
def test_a_file_of_the_wrong_size_says_both_sizes(path, nothing_is_unpacked, change,
                                                  seen):
    path.write_bytes(change(with_first_line(bytes(1000))))
    with pytest.raises(CheckpointError, match="model.pt should have 1000 bytes after its "
                                              f"first line, has {seen}$"):
        load(path)


def test_an_empty_file_is_empty(path, nothing_is_unpacked):
    path.touch()
    with pytest.raises(CheckpointError, match="model.pt is empty$"):
        load(path)


@pytest.mark.parametrize("data", [
    with_first_line(bytes(9))[:40], with_first_line(b"")[:-1],
    b"manual_dp checkpoint 2 0 " + b"0" * 64 + b"\n", b"\n", bytes(1000),
    b"\xff\xfe\x80" * 100, b" " + with_first_line(bytes(9)), b"hello, world\n",
])
def test_another_programs_file_is_refused(path, nothing_is_unpacked, data):
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="model.pt does not begin as a checkpoint "
                                              "of ours does, 'manual_dp checkpoint 1'"):
        load(path)


def test_a_file_of_torch_save_is_refused_with_a_hint(path):
    torch.save({"W": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"model.pt does not begin .* for a file "
                       r"of torch.save, use torch.load\(path, weights_only=True\)"):
        load(path)


class RunsCode:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def packed_by_torch(thing):
    packed = io.BytesIO()
    torch.save(thing, packed)
    return packed.getvalue()


@pytest.mark.parametrize("pack", [packed_by_torch, lambda thing: pickle.dumps(thing, 2)])
def test_a_file_with_code_and_the_right_hash_runs_nothing(path, pack):
    marker = path.parent / "marker"
    path.write_bytes(with_first_line(pack({"W": RunsCode(marker)})))
    with pytest.raises(CheckpointError, match="model.pt may hold tensors, numbers, "
                       "strings, lists and dicts, but not (posix.mkdir|this)") as caught:
        load(path)
    assert not marker.exists()
    # torch's own text would advise to load it all the same
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    with pytest.raises(FileNotFoundError):  # and it would have run
        pickle.loads(pickle.dumps(RunsCode(marker / "deep")))


@pytest.mark.parametrize("data", [b"", b"x", b"PK\x03\x04 and no more", b"\x80\x02}."])
def test_rubbish_with_the_right_hash_is_refused(path, data):
    path.write_bytes(with_first_line(data))
    with pytest.raises(CheckpointError, match=r"model.pt may hold .* but not this \("):
        load(path)


def test_save_refuses_what_load_would_refuse(path):
    save(path, some_state())
    old = path.read_bytes()
    numpy_float = torch.ones(1, dtype=torch.float64).numpy()[0]
    with pytest.raises(CheckpointError, match="model.pt may hold tensors, numbers, .* but "
                                              r"not numpy\..*scalar"):
        save(path, {"loss": numpy_float})
    with pytest.raises(CheckpointError, match="model.pt .* but not .*checkpoint.RunsC"):
        save(path, {"run": RunsCode})
    assert path.read_bytes() == old and os.listdir(path.parent) == ["model.pt"]


# several ranks

def test_rank_0_saves_and_all_ranks_load_when_the_file_is_there(path):
    def save_and_load(path):
        import os
        import time

        import torch
        import torch.distributed as dist

        from manual_dp.ranks.checkpoint import load, save
        rank, replace, written = dist.get_rank(), os.replace, []

        def slow(*names):
            time.sleep(0.3)
            replace(*names)
            written.append(names)
        os.replace = slow
        save(path, {"W": torch.arange(3) + 10} if rank == 0 else None)
        return len(written), os.path.exists(path), load(path)["W"].tolist()
    assert run_ranks(save_and_load, 3, str(path)) == [
        (1, True, [10, 11, 12]), (0, True, [10, 11, 12]), (0, True, [10, 11, 12])]


def test_an_error_of_rank_0_in_a_save_reaches_every_rank(path):
    def save_in_no_folder(path, caught):
        from manual_dp.ranks.checkpoint import CheckpointError, save
        try:
            save(path, {})
        except (OSError, CheckpointError) as error:
            if not caught:
                raise
            return type(error).__name__, str(error)
    nowhere = str(path / "model.pt")
    first, *others = run_ranks(save_in_no_folder, 3, nowhere, True, timeout=20)
    assert first[0] == "FileNotFoundError" and ".ck-model.pt" in first[1]
    assert others == [("CheckpointError", f"rank 0 could not save {nowhere}: "
                       f"FileNotFoundError: {first[1]}")] * 2
    with pytest.raises(RankError, match="rank 0 raised FileNotFoundError"):
        run_ranks(save_in_no_folder, 3, nowhere, False, timeout=20)


def test_an_error_of_one_rank_in_a_load_reaches_every_rank(path):
    def load_its_own(path, caught):
        import torch.distributed as dist

        from manual_dp.ranks.checkpoint import CheckpointError, load
        try:
            load(f"{path}-{dist.get_rank()}")
        except (OSError, CheckpointError) as error:
            if not caught:
                raise
            return type(error).__name__, str(error)
    for rank in 0, 2:
        save(f"{path}-{rank}", some_state())
    before, own, after = run_ranks(load_its_own, 3, str(path), True, timeout=20)
    assert own[0] == "FileNotFoundError"
    for rank, (name, text) in zip((0, 2), (before, after)):
        assert name == "CheckpointError"
        assert text.startswith(f"rank 1 could not load {path}-{rank}: FileNotFoundError")
    with pytest.raises(RankError, match="rank 1 raised FileNotFoundError"):
        run_ranks(load_its_own, 3, str(path), False, timeout=20)


def test_ranks_that_read_different_files_are_named(path):
    def load_its_own(path):
        import torch.distributed as dist

        from manual_dp.ranks.checkpoint import CheckpointError, load
        try:
            load(f"{path}-{dist.get_rank()}")
        except CheckpointError as error:
            return str(error)
    for rank in range(4):
        save(f"{path}-{rank}", {"epoch": rank % 2})
    assert run_ranks(load_its_own, 4, str(path), timeout=20) == [
        f"could not load {path}-{rank}: ranks [1, 3] read another file than rank 0"
        for rank in range(4)]
