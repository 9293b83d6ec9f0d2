"""Run one of torch's own tests of DDP in a rank, on the CPU, with torch's DDP or ours.

    outcome   run a test; return "passes", or what went wrong
    names     the tests of this torch that make a DDP

torch's wheel holds these tests, for processes that torch starts, most of them for GPUs.
Here they run in ranks of `Ranks`, which have a process group, and all that is said to be
on a GPU stays on the CPU.
"""

import inspect
import os
import re
import sys
import traceback
import unittest
from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from manual_dp.ranks import DDP

# what torch's file asks for when it is imported; torch does not bring expecttest, and
# no test of DDP uses it
os.environ.update(BACKEND="gloo", INIT_METHOD="env://")
sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))

from torch.testing._internal import common_utils  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

TESTS = distributed_test.DistributedTest._DistTestBase

# DDP's arguments. All of SAME give the same numbers; torch takes DEVICES for GPUs only.
SIGNATURE = inspect.signature(DistributedDataParallel)
DEVICES = {"device_ids", "output_device"}
SAME = {*DEVICES, "dim", "check_reduction", "gradient_as_bucket_view"}
OURS = {"bucket_cap_mb", "find_unused_parameters"}


class NotOffered(BaseException):
    """Name what ours does not offer; no test takes this for an error that it waits for."""


class Theirs(DistributedDataParallel):
    """Torch's DDP on the CPU: the control."""

    made = 0

    def __init__(self, *args, **kwargs):
        Theirs.made += 1
        given = SIGNATURE.bind(*args, **kwargs).arguments
        super().__init__(**{name: given[name] for name in given.keys() - DEVICES})


class Ours(DDP):
    """DDP by hand, made and used as torch's."""

    made = 0

    def __init__(self, *args, **kwargs):
        Ours.made += 1
        given = SIGNATURE.bind(*args, **kwargs).arguments
        for name, value in given.items():
            taken = name in SAME | OURS | {"module", "process_group"}
            if not taken and value != SIGNATURE.parameters[name].default:
                raise NotOffered(name)
        if dist.get_world_size(given.get("process_group")) < dist.get_world_size():
            raise NotOffered("process_group")
        for p in given["module"].parameters():  # ours would not see it, and go wrong
            if hasattr(p, "_in_backward_optimizers"):
                raise NotOffered("an optimizer in backward")
        options = {name: given[name] for name in given.keys() & OURS}
        super().__init__(given["module"], **options)

    def __getattr__(self, name):
        """Refuse what torch's DDP has and ours has not."""
        parts = {"reducer", "logger", "process_group"}
        if name in parts or hasattr(DistributedDataParallel, name):
            raise NotOffered(name)
        return super().__getattr__(name)

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module, names):
        raise NotOffered("parameters to ignore")


class OneTest(TESTS, common_utils.TestCase):
    """What a test of torch's finds in `self`."""

    def __init__(self):
        super().__init__("_barrier")  # unittest wants the name of a method
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def _barrier(self, timeout=None):
        dist.barrier()


class OnCpu(TorchFunctionMode):
    """Let tensors that are sent to a GPU, or made on one, be on the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = [args[0], *("cpu" if _is_gpu(arg) else arg for arg in args[1:])]
        if _is_gpu(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def _is_gpu(thing):
    if isinstance(thing, (str, torch.device)):
        return str(thing).startswith("cuda")
    return isinstance(thing, int) and not isinstance(thing, bool)


def _module_to(module, *args, **kwargs):
    return module._apply(lambda tensor: tensor.to(*args, **kwargs))


def outcome(name, kind):
    """Run the test `name` with a DDP of this kind, Theirs or Ours; return what happened.

    That is "passes", "not offered: ..." or the error. The same test must run on every
    rank. Its decorators are left out: they skip it, or do it again for more logs.
    """
    test, kind.made = inspect.unwrap(getattr(TESTS, name)), 0
    common_utils.set_rng_seed(1234)
    nothing = MagicMock()
    with ExitStack() as stack:
        enter = stack.enter_context
        for module in (distributed_test, nn.parallel, nn.parallel.distributed):
            enter(patch.object(module, "DistributedDataParallel", kind))
        gpus = {"is_available": lambda: True, "device_count": dist.get_world_size}
        gpus |= {"current_device": dist.get_rank, "set_device": nothing}
        gpus |= {"synchronize": nothing, "manual_seed": nothing}
        enter(patch.multiple(torch.cuda, **gpus))
        enter(patch.object(torch.accelerator, "current_stream", nothing))
        enter(patch.object(nn.Module, "to", _module_to))
        enter(OnCpu())
        try:
            test(OneTest())
        except NotOffered as missing:
            return f"not offered: {missing}"
        except Exception as error:
            traceback.print_exc()
            return f"{type(error).__name__}: {error}"
    return "passes" if kind.made else "made no DDP"


def names():
    """Return the names of the tests that make a DDP, or call what makes one."""
    texts = {}
    for name, thing in vars(TESTS).items():
        if inspect.isfunction(thing):
            texts[name] = inspect.getsource(inspect.unwrap(thing))
    found, before = {"DistributedDataParallel"}, set()
    while found != before:
        before, calls = set(found), re.compile(rf"\b({'|'.join(found)})\(")
        found.update(name for name, text in texts.items() if calls.search(text))
    return sorted(name for name in found if name.startswith("test"))
