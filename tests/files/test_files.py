"""A file holds the old text or the new, never half of one."""

import os
import stat

import pytest

from manual_dp.files import write_json, write_text


@pytest.mark.parametrize("stage", ["open", "chmod", "replace"])
def test_json_is_written_whole_or_not_at_all(monkeypatch, tmp_path, stage):
    path = tmp_path / "out.json"
    write_json(path, {"old": 1})
    before = path.read_text()
    with monkeypatch.context() as patch:

        def fail(*args, **kwargs):
            raise KeyboardInterrupt

        patch.setattr(os, stage, fail)
        with pytest.raises(KeyboardInterrupt):
            write_json(path, {"new": 2})
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["out.json"]


def test_json_is_written_beside_its_place_and_ends_a_line(tmp_path, monkeypatch):
    moved, replace = [], os.replace

    def watched(temporary, path):
        moved.append((temporary, path))
        replace(temporary, path)

    monkeypatch.setattr(os, "replace", watched)
    write_json(str(tmp_path / "out.json"), [1, 2])
    [(temporary, path)] = moved
    assert temporary.parent == path.parent == tmp_path
    assert temporary.name.startswith(".ck-")  # as every file that is not whole yet
    assert (tmp_path / "out.json").read_text() == "[\n 1,\n 2\n]\n"


def test_a_write_goes_through_a_symlink_and_keeps_the_files_mode(tmp_path):
    (tmp_path / "to").mkdir()
    # a name of 252 letters, of 255 that are allowed: the temporary file needs another
    target, link = tmp_path / "to" / ("long" * 63), tmp_path / "link"
    target.touch(0o600)
    link.symlink_to(target)
    write_json(link, [1])
    assert link.is_symlink() and target.read_text() == "[\n 1\n]\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert os.listdir(tmp_path / "to") == [target.name]


def test_what_is_no_file_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "said")
    assert os.read(reader, 9) == b"said" and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path, "said")
    assert os.listdir(tmp_path) == ["pipe"]
