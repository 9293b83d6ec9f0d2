"""The report: what runs, what is left out, what fails; the command around it."""

import json

import pytest
import torch

from course.__main__ import main
from course.lab.gpu import bench

CPU = torch.device("cpu")
QUICK = ["step", "alone", "mixed"]


@pytest.fixture
def gpus(monkeypatch):
    """Return a function that lets torch see so many GPUs, which cannot be used."""
    def gpus(count):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"GPU number {i}")
        monkeypatch.setattr(bench.shutil, "which", lambda name: None)
    return gpus


def no(device):
    raise ValueError("out of order\nand more")


ROWS = {"one": (1, lambda device: [("size", 2.5, "ms", f"on {device}"),
                                   ("right", True, "", "always"),
                                   ("left", False, "", "never")]),
        "bad": (1, no), "two": (2, lambda device: [("pair", 7, "GB/s", "of two")])}


@pytest.mark.parametrize("name", QUICK)
def test_a_row_of_the_bench_runs_on_the_cpu(name):
    row = bench.attempt(bench.ROWS[name][1], CPU)
    assert all(list(each) == ["name", "figure", "unit", "condition"]
               for each in row["figures"])
    assert json.loads(json.dumps(row)) == row
    assert bench.table({"gpus": [], "torch": 1, "cuda": 2, "driver": 3,
                        "rows": {name: row}}).count("\n") == 1 + len(row["figures"])


def test_one_gpu_runs_what_it_can_and_says_what_is_left_out(gpus):
    gpus(1)
    report = bench.run(rows=ROWS)
    assert report["gpus"] == ["GPU number 0"] and report["torch"] == torch.__version__
    assert report["driver"] is None
    assert report["rows"]["one"]["figures"][0] == {
        "name": "size", "figure": 2.5, "unit": "ms", "condition": "on cuda:0"}
    assert report["rows"]["bad"] == {"failed": "ValueError: out of order"}
    assert report["rows"]["two"] == {"left out": "needs 2 GPUs, here is 1"}


def test_two_gpus_run_all(gpus):
    gpus(2)
    rows = bench.run(rows=ROWS)["rows"]
    assert rows["two"]["figures"][0]["figure"] == 7


def test_the_table_by_hand(gpus):
    gpus(1)
    head, titles, *lines = bench.table(bench.run(rows=ROWS)).splitlines()
    assert head.startswith(f"GPU number 0; torch {torch.__version__}, CUDA ")
    assert titles.split() == ["what", "figure", "unit", "condition"]
    assert [" ".join(line.split()) for line in lines] == [
        "size 2.5 ms on cuda:0", "right yes always", "left NO never",
        "left out: two: needs 2 GPUs, here is 1", "failed: bad: ValueError: out of order"]


def test_rows_can_be_chosen_and_unknown_ones_are_refused(gpus):
    gpus(1)
    assert list(bench.run(["two"], ROWS)["rows"]) == ["two"]
    with pytest.raises(ValueError, match="'three'; rows of --gpu: one, bad, two"):
        bench.run(["three"], ROWS)


def test_the_drivers_version_is_what_nvidia_smi_says(monkeypatch):
    def run(command, **options):
        assert command[0] == "nvidia-smi" and "--query-gpu=driver_version" in command
        return type("Done", (), {"stdout": "550.1\n550.1\n"})
    monkeypatch.setattr(bench.shutil, "which", lambda name: name)
    monkeypatch.setattr(bench.subprocess, "run", run)
    assert bench._driver() == "550.1"


def test_without_a_gpu_the_command_says_so_in_one_line(gpus, capsys):
    gpus(0)
    with pytest.raises(SystemExit) as caught:
        main(["bench", "--gpu"])
    out, err = capsys.readouterr()
    assert (caught.value.code, out, err.count("\n")) == (2, "", 1)
    assert f"needs a GPU, and torch {torch.__version__} sees none: run it on" in err


@pytest.mark.parametrize("names, status", [(["one", "two"], 0), (["one", "bad"], 1)])
def test_the_command_prints_and_writes(gpus, monkeypatch, tmp_path, capsys, names, status):
    gpus(1)
    monkeypatch.setattr(bench, "ROWS", ROWS)
    out = tmp_path / "gpu.json"
    assert main(["bench", "--gpu", "--only", *names, "--out", str(out)]) == status
    assert "on cuda:0" in capsys.readouterr().out
    assert list(json.loads(out.read_text())["rows"]) == names
