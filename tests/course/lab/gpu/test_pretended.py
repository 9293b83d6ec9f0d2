"""The module, and lessons, on GPUs that are pretended: see tests/support/pretend.py.

Pretending is for good, so each test has a process of its own; a kernel too.
"""

import runpy
import subprocess
import sys

import pytest
import torch

from course.lab.gpu import equal, mixed, pair
from course.lab.ledger import methods
from course.lab.ledger.plan import Plan
from manual_dp import (
    evaluate_accuracy,
    get_params,
    init_params,
    largest_difference,
    ring_allreduce,
    scatter,
    train_batch,
    tree_allreduce,
    try_devices,
)
from manual_dp.models.lenet import LeNet
from manual_dp.parallel import DataParallel
from tests.support.stored import LESSONS, ROOT, nbval

MODULE = "tests.course.lab.gpu.test_pretended"


def begin(count, *functions):
    """Run functions of this file, in a process that sees so many GPUs."""
    calls = "; ".join(f"page.{function.__name__}()" for function in functions)
    code = (f"from tests.support import pretend; pretend.install({count})\n"
            f"import {MODULE} as page; {calls}")
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=900,
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


def refused(function, error, words):
    with pytest.raises(error, match=words):
        function()


def tensors_that_do_not_meet():
    here, there = torch.rand(3), torch.rand(3, device="cuda")
    gpu = torch.device("cuda", 0)
    assert (there.device, (there + 1).device, there[:2].device) == (gpu, gpu, gpu)
    assert torch.zeros_like(there).is_cuda and not there.cpu().is_cuda
    for meet in (lambda: here + there, lambda: torch.cat([here, there]),
                 lambda: here.dot(there), lambda: torch.equal(here, there),
                 lambda: there[torch.tensor([True, False, True])].add_(here[:2])):
        refused(meet, RuntimeError, "same device")
    refused(there.numpy, TypeError, "copy the tensor to host")
    refused(lambda: torch.rand(1, device="cuda:7"), RuntimeError, "invalid device ordinal")
    assert (there * torch.tensor(2.0)).is_cuda  # a number may
    assert here.copy_(there).device.type == "cpu" and torch.equal(here, there.cpu())
    assert "device='cuda:0'" in repr(there) and f"{there.sum():.0f}".isdigit()


def gradients_that_come_back():
    weight, net = torch.rand(3, requires_grad=True), torch.nn.Linear(3, 1).to("cuda:0")
    net(weight.to("cuda:0")).sum().backward()
    assert not weight.grad.is_cuda and net.weight.grad.is_cuda
    assert torch.equal(weight.grad, net.weight.detach().cpu()[0])
    refused(lambda: setattr(weight, "grad", torch.zeros(3, device="cuda")),
            RuntimeError, "different device")
    refused(lambda: net(torch.rand(1, 3)), RuntimeError, "same device")


def the_core():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(5, 1, 28, 28, generator=generator, dtype=torch.float64)
    y, start = torch.arange(5), init_params("he", generator, torch.float64)
    for allreduce in (ring_allreduce, tree_allreduce):
        devices = try_devices(3)
        assert {device.type for device in devices} == {"cuda"}
        replicas = [get_params(start, device) for device in devices]
        train_batch(X, y, replicas, devices, 0.1, allreduce)
        assert all(p.is_cuda for params in replicas for p in params)
        assert len({params[0].device for params in replicas}) == torch.cuda.device_count()
        assert 0 <= evaluate_accuracy(replicas, [(X, y)], devices) <= 1
        alone = get_params(start, "cpu")
        train_batch(X, y, [alone], ["cpu"], 0.1)
        assert largest_difference(alone, replicas[-1]) <= 1e-12
        assert [shard.device for shard in scatter(X, devices)] == devices
    net = DataParallel(LeNet(start), try_devices(2))
    assert net(X.to("cuda:0")).device == torch.device("cuda", 0)


def what_the_bench_calls():
    gpu = torch.device("cuda", 0)
    assert equal.step(gpu, 3) <= equal.STEPWISE
    assert mixed.skip(gpu) == {"moved": False, "scale": 0.5}
    assert mixed.clip(gpu)["clip, unscale"] == pytest.approx(1 / mixed.SCALE)
    if torch.cuda.device_count() > 1:
        assert pair.gpus()[1] == torch.device("cuda", 1)


def the_clock_of_the_ledger():
    waited, wait = set(), torch.cuda.synchronize
    torch.cuda.synchronize = lambda device=None: waited.add(device)
    methods.METHODS["ring"](Plan(2, 1, 4, [2, 2], 0, 0.05))
    torch.cuda.synchronize = wait
    assert waited == set(try_devices(2))  # not for the first GPU alone


def the_articles_programs():
    page = runpy.run_path(str(ROOT / "notebooks/programs/as_printed.py"))
    assert torch.cuda.is_available()
    page["on_cpu"]()
    assert (torch.cuda.device_count(), torch.cuda.is_available()) == (0, False)


@pytest.mark.parametrize("count", [1, 2])
def test_the_module_runs_on_pretended_gpus(count):
    begin(count, tensors_that_do_not_meet, gradients_that_come_back, the_core,
          what_the_bench_calls, the_clock_of_the_ledger, the_articles_programs)


def test_a_tensor_that_stays_behind_is_found():
    with pytest.raises(AssertionError, match="same device"):
        begin(1, stays_behind)


def stays_behind():
    params = get_params(init_params("he", None, torch.float64), "cuda")
    torch.rand(2, 1, 28, 28, dtype=torch.float64).flatten(1) @ params[4][:784]


def pytest_generate_tests(metafunc):
    if "lesson" in metafunc.fixturenames:
        # of the later ones: those that use GPUs in the kernel itself
        some = [*LESSONS[:9], LESSONS[10], LESSONS[16], LESSONS[19]]
        metafunc.parametrize("lesson", [path.stem for path in some][::4])


def test_a_lesson_prints_on_a_pretended_gpu_what_is_stored(lesson, tmp_path, monkeypatch):
    startup = tmp_path / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "gpu.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.support import pretend\npretend.install(1)\n"
        "import torch\nassert torch.zeros(1, device='cuda').is_cuda\ndel sys, pretend, torch")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    status, printed = nbval(ROOT / f"notebooks/{lesson}.ipynb")
    assert status == 0, printed[-6000:]
