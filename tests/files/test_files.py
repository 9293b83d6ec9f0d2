"""A file holds the old text or the new, never half of one."""

import os
from pathlib import Path

import pytest

from manual_dp.files import write_json


@pytest.mark.parametrize("stage", ["write_bytes", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_json_is_written_whole_or_not_at_all(monkeypatch, tmp_path, stage, error):
    path = tmp_path / "out.json"
    write_json(path, {"old": 1})
    before = path.read_text()
    with monkeypatch.context() as patch:
        def fail(part, *args, **kwargs):
            Path(part).touch()
            raise error
        patch.setattr(*((Path, "write_bytes") if stage == "write_bytes" else
                        (os, "replace")), fail)
        with pytest.raises(type(error)):
            write_json(path, {"new": 2})
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["out.json"]


def test_json_is_written_beside_its_place_and_ends_a_line(tmp_path, monkeypatch):
    moved, replace = [], os.replace

    def watched(part, path):
        moved.append((part, path))
        replace(part, path)
    monkeypatch.setattr(os, "replace", watched)
    write_json(str(tmp_path / "out.json"), [1, 2])
    [(part, path)] = moved
    assert part.parent == path.parent == tmp_path and part.name.startswith(".out.json.")
    assert (tmp_path / "out.json").read_text() == "[\n 1,\n 2\n]\n"
