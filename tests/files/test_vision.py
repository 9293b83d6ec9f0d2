"""torchvision imports, and a fault that is not the known one is not hidden."""

import sys

import pytest
import torch

import manual_dp.data
from manual_dp.data import ensure_torchvision
from manual_dp.files.fashion_mnist import FILES, SOURCE
from manual_dp.ranks import run_ranks


def first_import():
    """Import torchvision in this rank; return what it would fetch."""
    assert "torchvision" not in sys.modules
    torchvision = ensure_torchvision()
    assert ensure_torchvision() is torchvision is sys.modules["torchvision"]
    from torchvision import transforms  # noqa: F401

    fetched = torchvision.datasets.FashionMNIST
    assert isinstance(fetched.raw_folder, property)
    return sorted(name for name, md5 in fetched.resources), fetched.mirrors


def test_torchvision_imports_beside_this_torch_and_fetches_the_same_files(capsys):
    # some seconds: only a process without torchvision can say what its import does
    [(names, mirrors)] = run_ranks(first_import, 1, timeout=300)
    assert names == sorted(FILES) and f"{SOURCE}/" in mirrors
    assert capsys.readouterr() == ("", "")  # the import says nothing


def test_another_fault_of_torchvision_is_not_hidden(monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "torchvision":
                raise RuntimeError("another fault")

    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    monkeypatch.setattr(torch.library, "define", lambda *_: pytest.fail("no cure"))
    with pytest.raises(RuntimeError, match="another fault"):
        manual_dp.data.ensure_torchvision()
