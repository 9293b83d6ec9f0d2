"""The article's programs as they are printed, and the one that repairs them."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from course.lab.torchrun import torchrun
from manual_dp.audit import audit, audit_script, check_ranks
from manual_dp.files.vision import ensure_torchvision
from manual_dp.ranks import run_ranks
from tests.support.loaded import PROGRAMS, loaded

HARNESS, REPAIRED = PROGRAMS / "as_printed.py", PROGRAMS / "resnet_ddp.py"
EXAMPLES = [PROGRAMS / f"article/example_{i}.py" for i in (1, 2)]
LONG = 400  # seconds, for what takes ten


# as printed

def test_the_printed_programs_are_not_edited():
    sums = [hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in EXAMPLES]
    assert sums == ["724e5ce5955417c0", "187187be2c6eb831"]


def as_printed(example, ranks):
    lines = torchrun(HARNESS, EXAMPLES[example - 1], ranks=ranks, timeout=LONG)
    notes = [json.loads(line) for line in lines if line.startswith("{")]
    return sorted(notes, key=lambda note: note["rank"]), [
        line for line in lines if not line.startswith("{")]


def test_example_2_on_two_ranks_prints_no_loss():
    notes, lines = as_printed(2, 2)
    assert lines == ["Finished Training"]
    assert [note["rank"] for note in notes] == [0, 1]
    for note in notes:
        assert (note["updates"], note["rows"], note["rate"]) == (2 * 196, 128, 0.001)
        assert (note["downloads"], note["test set read"]) == (1, 0)


def test_example_1_loads_a_test_set_and_never_reads_it():
    [note], lines = as_printed(1, 1)
    assert len(lines) == 3
    assert (note["downloads"], note["train set read"], note["test set read"]) == (2, 2, 0)
    assert note["weights"] == 23_528_522
    assert "'pretrained' is deprecated" in note["warnings"][0]


def test_example_2_does_not_start_without_torchrun():
    environ = {name: value for name, value in os.environ.items()
               if name not in ("MASTER_ADDR", "RANK", "WORLD_SIZE")}
    done = subprocess.run([sys.executable, HARNESS, EXAMPLES[1]], capture_output=True,
                          text=True, timeout=LONG, env=environ, cwd=PROGRAMS.parents[1])
    assert done.returncode and "MASTER_ADDR expected" in done.stderr.splitlines()[-1]


def test_the_audit_hears_no_fault_between_the_ranks_of_example_2(forked_audit):
    report = audit_script([HARNESS, EXAMPLES[1]], 2, timeout=LONG)
    assert report.findings == [] and report.unchecked == []


# repaired

def test_the_repaired_program_reads_95_of_100_new_digits(forked_ranks):
    lines = torchrun(REPAIRED, ranks=2, timeout=LONG)
    assert [line.partition(":")[0] for line in lines] == [f"epoch {i}" for i in range(10)]
    assert float(lines[-1].split()[-1]) >= 0.95


def test_it_is_audited_as_it_is_started(forked_audit):
    report = audit_script([REPAIRED, "--epochs", "1"], 2, timeout=LONG)
    assert report.findings == [] and report.unchecked == []


def program():
    return loaded(REPAIRED)


def make_model():
    torch.manual_seed(0)
    net = program().build("small").eval()  # batch norm with fixed statistics
    model = DistributedDataParallel(net)
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def make_batch(t):
    train_set, _ = program().digits()
    return tuple(part[12 * t:12 * t + 12] for part in train_set.tensors)


def step(model, optimizer, X, y):
    rank, n = dist.get_rank(), dist.get_world_size()
    model.eval()
    optimizer.zero_grad()
    F.cross_entropy(model(X[rank::n]), y[rank::n]).backward()
    optimizer.step()


def test_its_network_beside_one_device_is_clean():
    report = audit(make_model, make_batch, step, 2, timeout=LONG)
    assert report.findings == [] and report.unchecked == []


def an_epoch(rows):
    module, rank, n = program(), dist.get_rank(), dist.get_world_size()
    train_set, _ = module.digits()
    torch.manual_seed(0)
    model = DistributedDataParallel(module.build("small"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    mine = TensorDataset(*(part[:rows][rank::n] for part in train_set.tensors))
    loss = module.learn(model, DataLoader(mine, 8), optimizer, torch.device("cpu"))
    return loss, check_ranks(model, optimizer=optimizer)


def test_ranks_are_alike_after_an_epoch_and_know_one_loss():
    ranks = run_ranks(an_epoch, 2, 64, timeout=LONG)
    assert [found for _, found in ranks] == [[], []]
    assert ranks[0][0] == ranks[1][0] > 0


def accuracy_of(sizes):
    """Let the network's answer be its input; count right ones over ranks."""
    X, y = torch.tensor([0, 1, 2, 0, 1, 2, 0]), torch.tensor([0, 1, 1, 0, 2, 2, 0])
    begin = sum(sizes[:dist.get_rank()])
    mine = slice(begin, begin + sizes[dist.get_rank()])
    data = TensorDataset(F.one_hot(X, 3)[mine].float(), y[mine])
    return program().evaluate(torch.nn.Identity(), DataLoader(data, 2), torch.device("cpu"))


@pytest.mark.parametrize("sizes", [[3, 4], [7, 0], [1, 5, 1]])
def test_the_accuracy_counts_each_row_once_wherever_it_lies(sizes):
    assert run_ranks(accuracy_of, len(sizes), sizes, timeout=LONG) == [5 / 7] * len(sizes)


@pytest.mark.parametrize("name, weights", [("resnet18", 11_173_962), ("resnet50", 23_520_842)])
def test_a_resnet_gets_a_first_layer_for_small_images(name, weights):
    ensure_torchvision()
    net = program().build(name)
    assert sum(p.numel() for p in net.parameters()) == weights
    stages = torch.nn.Sequential(*list(net.children())[:-2]).eval()
    assert stages(torch.zeros(1, 3, 32, 32)).shape[2:] == (4, 4)


def fetch(calls):
    """Fetch CIFAR-10 with a data set that only notes; return what this rank did."""
    datasets, module = ensure_torchvision().datasets, program()
    os.environ["LOCAL_RANK"] = str(dist.get_rank())
    datasets.CIFAR10 = lambda root, train=True, transform=None, download=False: calls.append(
        (root, train, download))
    module.cifar10("somewhere")
    return calls


def test_one_rank_of_a_machine_fetches_and_all_read():
    first, *others = run_ranks(fetch, 3, [], timeout=LONG)
    read = [("somewhere", True, False), ("somewhere", False, False)]
    assert first == [("somewhere", True, True), *read] and others == [read, read]


def test_a_minibatch_that_cannot_be_dealt_out_equally_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "5")
    monkeypatch.setattr(sys, "argv", ["resnet_ddp.py"])
    with pytest.raises(SystemExit):
        program().arguments()
    assert "--batch-size 96 is not divisible by the ranks" in capsys.readouterr().err


def test_the_repaired_program_is_plain_and_short():
    text = REPAIRED.read_text()
    assert "manual_dp" not in text and len(text.splitlines()) <= 130
