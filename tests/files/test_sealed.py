"""A sealed file gives its bytes back, or says why it cannot. More: ranks/test_checkpoint."""

import hashlib

import pytest

from manual_dp.files.sealed import seal, unseal

DATA = b"some bytes\nand a line \x00\xff"


def test_what_was_sealed_comes_back_with_its_digest(tmp_path):
    path = tmp_path / "file"
    for data in (DATA, b"", b"shorter"):  # each in the place of the one before
        seal(path, "ours 1", data)
        assert unseal(path, "ours 1") == (data, hashlib.sha256(data).hexdigest())
        assert path.read_bytes().partition(b"\n")[2] == data
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("change, reason", [
    (lambda text: b"", "is empty"),
    (lambda text: text[:-1], f"should have {len(DATA)} bytes .*, has {len(DATA) - 1}"),
    (lambda text: text[:-1] + b"\xfe", "is damaged"),
    (lambda text: b"theirs" + text, "does not begin as"),
    (lambda text: text[len("ours 1 "):], "does not begin as"),
])
def test_another_file_is_refused_with_its_name_and_the_reason(tmp_path, change, reason):
    path = tmp_path / "file"
    seal(path, "ours 1", DATA)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{path} {reason}"):
        unseal(path, "ours 1")
