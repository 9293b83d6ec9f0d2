"""torchvision imports, and a fault that is not the known one is not hidden."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import manual_dp.data

ROOT = Path(__file__).parents[2]


def test_torchvision_imports_beside_this_torch_and_fetches_the_same_files():
    # some seconds: only a new Python can say what its first import does
    script = """
import sys
from manual_dp.data import ensure_torchvision
from manual_dp.files.fashion_mnist import FILES, SOURCE
assert "torchvision" not in sys.modules
torchvision = ensure_torchvision()
assert ensure_torchvision() is torchvision is sys.modules["torchvision"]
fetched = torchvision.datasets.FashionMNIST
assert sorted(name for name, md5 in fetched.resources) == sorted(FILES)
assert f"{SOURCE}/" in fetched.mirrors
assert isinstance(fetched.raw_folder, property)
from torchvision import transforms
print("ok")
"""
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert (run.stdout, run.stderr) == ("ok\n", "")


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
