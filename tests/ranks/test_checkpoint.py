import errno
import hashlib
import io
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from manual_dp.ranks import RankError, run_ranks
from manual_dp.ranks.checkpoint import CheckpointError, load, save
from tests.ranks.conftest import same

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

KILLS = int(os.environ.get("MANUAL_DP_KILLS", 3))


def some_state(seed=0, rows=4):
    """Return a state with the shapes and types that trip."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        str(shape): torch.rand(shape, dtype=torch.float64, generator=generator)
        for shape in [(), (1,), (0,), (rows, 3)]
    }
    return {
        "tensors": tensors
        | {
            "transposed": tensors[str((rows, 3))].t(),
            "half": torch.ones(2, dtype=torch.bfloat16),
            "count": torch.tensor([2**62 + 1]),
        },
        "epoch": 3,
        "loss": [0.5, None, True],
        "name": "a run",
    }


def with_first_line(data):
    """Return `data` as a file of ours, with the right size and the right hash."""
    digest = hashlib.sha256(data).hexdigest()
    return f"manual_dp checkpoint 1 {len(data)} {digest}\n".encode() + data


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
    assert head.decode().split() == [
        "manual_dp",
        "checkpoint",
        "1",
        str(len(data)),
        hashlib.sha256(data).hexdigest(),
    ]
    assert same(torch.load(io.BytesIO(data), weights_only=True), some_state())


def test_a_checkpoint_may_be_read_by_whoever_may_read_a_new_file(path):
    (path.parent / "ordinary").touch()
    save(path, {})
    assert path.stat().st_mode == (path.parent / "ordinary").stat().st_mode


def test_the_next_save_keeps_the_mode_and_shows_nobody_more_meanwhile(
    path, monkeypatch
):
    mode = 0o660  # the umask forbids others to write, and lets them read
    fsync, written = os.fsync, []

    def noted(handle):
        written.append(os.fstat(handle).st_mode & 0o777)
        fsync(handle)

    save(path, {})
    path.chmod(mode)
    monkeypatch.setattr(os, "fsync", noted)
    save(path, some_state())
    assert path.stat().st_mode & 0o777 == mode and same(load(path), some_state())
    assert written[0] & ~mode == 0


def test_a_save_goes_through_a_symlink_to_the_file_that_it_will_be(path):
    folder = path.parent / "runs"
    folder.mkdir()
    path.symlink_to("runs/run3.pt")
    save(path, some_state())
    assert path.is_symlink() and os.listdir(folder) == ["run3.pt"]
    assert same(load(folder / "run3.pt"), some_state())
    assert sorted(os.listdir(path.parent)) == ["model.pt", "runs"]


def test_symlinks_in_a_circle_are_refused_and_stay(path):
    path.symlink_to("model.pt")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        save(path, {})
    assert path.is_symlink() and os.listdir(path.parent) == ["model.pt"]


def test_a_file_may_have_the_longest_name(path):
    path = path.with_name("\u00e9" * 125 + ".long")  # 255 bytes
    save(path, some_state())
    assert same(load(path), some_state()) and os.listdir(path.parent) == [path.name]


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


def killed_in_the_middle_of_saves(path, kills):
    """Let a copy of this process save again and again, kill it, and load what is there."""

    def save_on(count):
        while True:
            count += 1
            save(path, {"count": count, "W": W.fill_(count)})
            os.write(tell, b".")

    W, count = torch.zeros(5, 1_000_000), 0  # 20 MB
    save(path, {"count": count, "W": W})
    for _ in range(kills):
        hear, tell = os.pipe()
        if (pid := os.fork()) == 0:
            save_on(count)
        os.read(hear, 1)
        time.sleep(random.uniform(0, 0.4))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(tell)
        said = count + 1 + len(os.read(hear, 10**6))  # so many saves have returned
        found = load(path)
        assert (found["W"] == found["count"]).all()
        assert found["count"] in (said, said + 1), (found["count"], said)
        count = found["count"]
        save(path, {"count": count, "W": W.fill_(count)})
        assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_a_kill_at_any_instant_leaves_the_old_file_or_the_new(path):
    # 5 s: files of 20 MB and kills at random see what no list of system calls shows
    def alone():
        dist.destroy_process_group()  # its threads are not in a copy
        killed_in_the_middle_of_saves(str(path), KILLS)

    run_ranks(alone, 1, timeout=300)


FULL = ": the disk may be full; .*pt is as it was"


@pytest.mark.parametrize(
    "code, more",
    [
        (errno.EIO, "$"),  # that is no full disk
        (errno.ENOSPC, FULL),
        (errno.EDQUOT, FULL),
        (errno.EFBIG, FULL),
    ],
)
def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    path, monkeypatch, code, more
):
    def fail(_):
        raise OSError(code, "no")

    save(path, some_state())
    old = path.read_bytes()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=rf"^\[Errno {code}\] no{more}"):
        save(path, some_state(seed=1))
    assert path.read_bytes() == old and os.listdir(path.parent) == ["model.pt"]


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


def written_for(path):
    """Return how the names begin of what a save of `path` writes first."""
    with pytest.MonkeyPatch.context() as patch:
        names = []
        patch.setattr(os, "replace", lambda temp, _: names.append(temp.name))
        save(path, {})
    return names[0].removesuffix(f"{os.getpid()}-{threading.get_native_id()}")


def test_what_a_killed_save_left_is_swept(path):
    dead, mine = dead_pid(), written_for(path)
    (path.parent / f"{mine}{dead}-7").write_text("half a file")
    save(path, {})
    assert os.listdir(path.parent) == ["model.pt"]


def test_what_others_write_is_left_alone(path, monkeypatch):
    dead, living, mine = dead_pid(), os.getppid(), written_for(path)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "another")
        elsewhere = written_for(path)
    kept = [
        f"{mine}{living}-{living}",  # a living process
        f"{elsewhere}{dead}-{dead}",  # living, perhaps, on another host
        f"{written_for(path.with_name('other.pt'))}{dead}-{dead}",
        f"{mine}{dead}",
        f"{mine}x-1",
    ]
    for name in kept:
        (path.parent / name).touch()
    save(path, {})
    assert sorted(os.listdir(path.parent)) == sorted([*kept, "model.pt"])


def test_what_another_user_is_writing_is_left_alone(path, monkeypatch):
    def refuse(pid, number):
        assert number == 0
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refuse)
    name = f"{written_for(path)}99-99"
    (path.parent / name).touch()
    save(path, {})
    assert sorted(os.listdir(path.parent)) == [name, "model.pt"]


# files that are not loaded


def test_a_flipped_bit_is_seen_before_anything_is_unpacked(path, nothing_is_unpacked):
    good = bytearray(with_first_line(bytes(range(256)) * 400))
    first_line = good.index(b"\n") + 1
    for place in [
        *range(first_line),
        *range(first_line, len(good), 1009),
        len(good) - 1,
    ]:
        good[place] ^= 1
        path.write_bytes(good)
        with pytest.raises(
            CheckpointError,
            match="model.pt (is damaged: its bytes are "
            "not those|does not begin|should have)",
        ):
            load(path)
        good[place] ^= 1


SIZE = "model.pt should have 1000 bytes after its first line, has {}$"
OTHER = (
    "model.pt does not begin as a checkpoint of ours does, 'manual_dp checkpoint 1'; "
    r"for a file of torch.save, use torch.load\(path, weights_only=True\)$"
)
THOUSAND = with_first_line(bytes(1000))


@pytest.mark.parametrize(
    "data, message",
    [
        (THOUSAND[:-1], SIZE.format(999)),
        (THOUSAND + b"x", SIZE.format(1001)),
        (b"", "model.pt is empty$"),
        (with_first_line(b"")[:-1], OTHER),
        (b"manual_dp checkpoint 2 0 " + b"0" * 64 + b"\n", OTHER),
        (b"\xff\xfe\x80" * 100, OTHER),
        (b" " + THOUSAND, OTHER),
    ],
)
def test_a_file_of_another_size_or_program_is_refused(
    path, nothing_is_unpacked, data, message
):
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        load(path)


class RunsCode:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_file_with_code_and_the_right_hash_runs_nothing(path):
    marker, packed = path.parent / "marker", io.BytesIO()
    torch.save({"W": RunsCode(marker)}, packed)
    path.write_bytes(with_first_line(packed.getvalue()))
    with pytest.raises(
        CheckpointError,
        match="model.pt may hold tensors, numbers, strings, lists and dicts, but not "
        "posix.mkdir",
    ) as caught:
        load(path)
    assert not marker.exists()
    # torch's own text would advise to load it all the same
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_rubbish_with_the_right_hash_is_refused(path):
    path.write_bytes(with_first_line(b"x"))
    with pytest.raises(CheckpointError, match=r"model.pt may hold .* but not this \("):
        load(path)


def test_save_refuses_what_load_would_refuse(path):
    save(path, some_state())
    old = path.read_bytes()
    numpy_float = torch.ones(1, dtype=torch.float64).numpy()[0]
    with pytest.raises(
        CheckpointError,
        match="model.pt may hold tensors, numbers, .* but "
        r"not numpy\..*scalar",
    ):
        save(path, {"loss": numpy_float})
    assert path.read_bytes() == old and os.listdir(path.parent) == ["model.pt"]


# several ranks


def test_rank_0_saves_and_all_ranks_load_when_the_file_is_there(path):
    def save_and_load():
        rank, replace, written = dist.get_rank(), os.replace, []

        def slow(*names):
            time.sleep(0.3)
            replace(*names)
            written.append(names)

        os.replace = slow
        save(path, {"W": torch.arange(3) + 10} if rank == 0 else None)
        return len(written), path.exists(), load(path)["W"].tolist()

    assert run_ranks(save_and_load, 3) == [
        (1, True, [10, 11, 12]),
        (0, True, [10, 11, 12]),
        (0, True, [10, 11, 12]),
    ]


def told(function, *args):
    """Return the class and the text of what the call raises."""
    with pytest.raises((OSError, CheckpointError)) as caught:
        function(*args)
    return type(caught.value).__name__, str(caught.value)


def test_an_error_of_one_rank_reaches_every_rank(path):
    nowhere = str(path / "model.pt")

    def save_and_load():
        return told(save, nowhere, {}), told(load, f"{path}-{dist.get_rank()}")

    for rank in 0, 2:
        save(f"{path}-{rank}", some_state())
    saved, loaded = zip(*run_ranks(save_and_load, 3, timeout=20))
    name, text = saved[0]
    assert name == "FileNotFoundError" and f"{path}/.ck-" in text
    assert (
        saved[1:]
        == (
            (
                "CheckpointError",
                f"rank 0 could not save {nowhere}: FileNotFoundError: {text}",
            ),
        )
        * 2
    )
    assert loaded[1][0] == "FileNotFoundError"
    for rank in 0, 2:
        name, text = loaded[rank]
        assert name == "CheckpointError"
        assert text.startswith(
            f"rank 1 could not load {path}-{rank}: FileNotFoundError"
        )
    with pytest.raises(RankError, match="rank 0 raised FileNotFoundError"):
        run_ranks(save, 3, nowhere, {}, timeout=20)


def test_ranks_that_read_different_files_are_named(path):
    for rank in range(4):
        save(f"{path}-{rank}", {"epoch": rank // 2})
    zero, two = (
        Path(f"{path}-{rank}").read_text(errors="replace").split()[4] for rank in (0, 2)
    )
    texts = run_ranks(lambda: told(load, f"{path}-{dist.get_rank()}"), 4, timeout=20)
    assert texts == [
        (
            "CheckpointError",
            f"could not load {path}-{rank}: the file's SHA-256 "
            f"is {two} on rank 2, {zero} on rank 0; give every rank the same",
        )
        for rank in range(4)
    ]


def test_ranks_that_save_to_different_files_are_named_and_nothing_is_written(path):
    texts = run_ranks(
        lambda: told(save, f"{path}-{dist.get_rank()}", {}), 3, timeout=20
    )
    assert texts == [
        (
            "CheckpointError",
            f"could not save {path}-{rank}: path is {path}-1 "
            f"on rank 1, {path}-0 on rank 0; give every rank the same",
        )
        for rank in range(3)
    ]
    assert os.listdir(path.parent) == []
