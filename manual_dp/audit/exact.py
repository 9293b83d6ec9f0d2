"""Make a step comparable: float64 throughout, no dropout, and who draws is noted.

    exact     float64 wherever float32 was asked for, autocast and dropout off
    Doubles   float64 where a call asks for less
    Drawing   this, and whether random numbers were drawn in a block
    devices, generators  GPUs in use; a number for the states of all generators
    random_states, set_random_states   of torch's generators, to draw the same again
"""

import random
import sys
import zlib
from contextlib import ExitStack, contextmanager
from functools import wraps
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from manual_dp.audit.fingerprint import bit_hashes
from manual_dp.audit.fixed import fixed

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
            "feature_alpha_dropout")
DRAWS = {
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm",
    "normal", "bernoulli", "multinomial", "poisson", "normal_", "uniform_",
    "bernoulli_", "random_", "exponential_", "gumbel_softmax", "rrelu", "cauchy_"}
METHODS = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat16"}
SHORT = tuple(METHODS)
TAKEN = "as_tensor", "tensor"  # their dtype is that of what they are handed
# of a GradScaler: torch's kernels want its own numbers in float32
SCALES = ("_lazy_init_scale_growth_tracker", "unscale_", "update")


@contextmanager
def exact():
    """Compute in float64 and without dropout; yield a list, an entry for each one."""
    left_out = []

    def drop(input, p=0.5, training=True, *_, **__):
        left_out.extend([p] * bool(training and p))
        return input

    attend, cast = F.scaled_dot_product_attention, torch.autocast.__init__
    wrap = DistributedDataParallel.__init__
    torch.set_default_dtype(torch.float64)  # the process ends with this call
    with ExitStack() as stack:
        for home, name, new in [
                *((F, name, drop) for name in DROPOUTS),
                *((torch.amp.GradScaler, name, _as_it_is(torch.amp.GradScaler, name))
                  for name in SCALES),
                (F, "scaled_dot_product_attention",
                 lambda *args, dropout_p=0.0, **kwargs: attend(*args[:4], **kwargs)),
                (nn.Module, "float", nn.Module.double),
                (torch.autocast, "__init__", lambda self, *args, **kwargs: cast(
                    self, *args, **{**kwargs, "enabled": False})),
                # its buckets are made for one dtype, once
                (DistributedDataParallel, "__init__", lambda self, module, *args, **kw:
                 wrap(self, module.double(), *args, **kw))]:
            stack.enter_context(mock.patch.object(home, name, new))
        yield left_out


def _as_it_is(home, name):
    """Return the method, called where nothing is turned into float64."""
    method = getattr(home, name)

    @wraps(method)
    def call(*args, **kwargs):
        with torch._C.DisableTorchFunction():
            return method(*args, **kwargs)
    return call


class Doubles(TorchFunctionMode):
    """Give float64 where a call asks for one of `dtypes`, while the block runs."""

    def __init__(self, dtypes=(torch.float32,)):
        super().__init__()
        self.dtypes = dtypes
        self.names = {METHODS[dtype] for dtype in dtypes}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call the function, or its like in float64."""
        def double(one):
            asked = isinstance(one, torch.dtype) and one in self.dtypes
            return torch.float64 if asked else one
        name = getattr(function, "__name__", "")
        args = [double(one) for one in args]
        kwargs = {key: double(one) for key, one in (kwargs or {}).items()}
        if name in self.names:
            return torch.Tensor.double(*args[:1])
        made = function(*args, **kwargs)
        if name in TAKEN and torch.is_tensor(made) and made.dtype in self.dtypes:
            return made.double()
        return made


class Drawing(Doubles):
    """Note in `note` what is drawn while the block runs; keep all in float64."""

    def __init__(self, note, fixes=False):
        super().__init__()
        self.note, self.fixes = note, fixes

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call the function; note whether it draws. fixes: give fixed numbers."""
        name = getattr(function, "__name__", "")
        made = super().__torch_function__(function, types, args, kwargs)
        if self.fixes and (one := fixed(name, made, args, kwargs or {})) is not None:
            return one
        self.note.draws |= name in DRAWS
        if name in DRAWS and torch.is_tensor(made):
            self.note.drawn += bit_hashes([made])
        # noise for as many rows as a rank has, not for all of which it takes a part
        self.note.masked |= name in DRAWS and "perm" not in name and torch.is_tensor(
            made) and made.numel() > 1 and len(made) != self.note.size
        return made

    def __enter__(self):
        if self.fixes:
            random.seed(0)
            sys.modules["numpy"].random.seed(0) if "numpy" in sys.modules else None
        self.others = _others()
        return super().__enter__()

    def __exit__(self, *error):
        if self.others != (now := _others()):
            self.note.draws = True
            self.note.drawn.append(zlib.crc32(repr(now).encode()))
        return super().__exit__(*error)


def random_states(devices):
    """Return the states of torch's generators, on the CPU and on these GPUs."""
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def set_random_states(devices, states):
    """Let torch draw again what it drew when it was in these states."""
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:]):
        torch.cuda.set_rng_state(state, device)


def devices():
    """Return the GPUs in use."""
    return range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()


def generators():
    """Return a number for the states of torch's, Python's and NumPy's generators."""
    torchs = sum(bit_hashes(random_states(devices())))
    return zlib.crc32(repr((torchs, _others())).encode())


def _others():
    """Return the states of the generators that are not torch's."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), repr(numpy.random.get_state()) if numpy else None
