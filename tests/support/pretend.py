"""Pretended GPUs: tensors on the CPU that say they are on a GPU, and behave so.

    install   let this process see so many GPUs, for good
    place     the device that a tensor says it is on
    mark      let its memory say so

The numbers are computed on the CPU. A tensor's memory is marked with the device that it
was moved to; `.device` and `.to` go by the mark, results take it over, and an operation
on tensors of two devices is refused as torch refuses it. `.numpy()` of such a tensor is
refused too. Not pretended: what a GPU's arithmetic makes of the last place, streams and
timing, nccl, `nn.DataParallel` on two GPUs, and other processes: a rank sees no
pretended GPU.
"""

import os
import threading
from types import SimpleNamespace

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU = torch.device("cpu")
MARKS = {}  # a storage's address: (weak reference, device); held, so it is not given again
MIXED = "Expected all tensors to be on the same device, but found at least two devices"
MAY_MEET = {"copy_", "set_", "_has_compatible_shallow_copy_type"}
TENSOR = torch.Tensor


def place(tensor):
    """Return the device that a tensor says it is on."""
    try:
        entry = MARKS.get(tensor.untyped_storage()._cdata)
    except NotImplementedError:  # it has no storage: sparse
        return tensor.device
    return entry[1] if entry else tensor.device


def mark(tensor, device):
    """Let the tensor's memory say that it is on `device`."""
    storage = tensor.untyped_storage()
    if device.type == "cpu":
        MARKS.pop(storage._cdata, None)
        return tensor
    if len(MARKS) > 20_000:
        for key in [key for key, (ref, _) in MARKS.items() if ref.expired()]:
            del MARKS[key]
    MARKS[storage._cdata] = StorageWeakRef(storage), device
    return tensor


def full(device):
    """Return the device with its number."""
    device = torch.device("cuda", device) if type(device) is int else torch.device(device)
    return torch.device("cuda", 0) if device == torch.device("cuda") else device


class Move(torch.autograd.Function):
    """A copy to another device or of another type; its gradient comes back."""

    @staticmethod
    def forward(ctx, tensor, device, dtype):
        ctx.back = place(tensor), tensor.dtype
        return mark(tensor.detach().clone().to(dtype), device)

    @staticmethod
    def backward(ctx, grad):
        device, dtype = ctx.back
        return mark(grad.clone().to(dtype), device), None, None


def to(tensor, *args, dtype=None, device=None, non_blocking=False, copy=False, **_):
    """Do what Tensor.to does; copy by its name alone."""
    for arg in args[:2]:
        if isinstance(arg, torch.dtype):
            dtype = arg
        elif isinstance(arg, TENSOR):
            device, dtype = place(arg), arg.dtype
        elif isinstance(arg, (str, int, torch.device)) and type(arg) is not bool:
            device = arg
    device = place(tensor) if device is None else full(device)
    dtype = dtype or tensor.dtype
    if (device, dtype) == (place(tensor), tensor.dtype) and not copy:
        return tensor
    if "meta" in (device.type, place(tensor).type):
        return TENSOR.to(tensor, device, dtype)
    return Move.apply(tensor, device, dtype)


class Names(TorchFunctionMode):
    """Answer questions about devices by the marks; put results where they belong."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensor = args[0] if args and isinstance(args[0], TENSOR) else None
        if tensor is not None and func in ANSWERS:
            return ANSWERS[func](tensor, *args[1:], **kwargs)
        device = kwargs.get("device")
        if device is None:
            return func(*args, **kwargs)
        device = full(device)
        if device.type == "cuda":
            if device.index >= torch.cuda.device_count():
                raise RuntimeError(f"CUDA error: invalid device ordinal: {device}")
            kwargs["device"] = CPU
        out = func(*args, **kwargs)
        return mark(out, device) if device.type in ("cuda", "cpu") else out


def _numpy(tensor, *args, **kwargs):
    if place(tensor).type == "cuda":
        raise TypeError(f"can't convert {place(tensor)} device type tensor to numpy. Use "
                        "Tensor.cpu() to copy the tensor to host memory first.")
    return TENSOR.numpy(tensor, *args, **kwargs)


def _array(tensor, *args, **kwargs):
    _numpy(tensor.detach())
    return TENSOR.__array__(tensor, *args, **kwargs)


def _repr(tensor, **kwargs):
    text = TENSOR.__repr__(tensor, **kwargs)
    where = place(tensor)
    return text[:-1] + f", device='{where}')" if where.type == "cuda" else text


def _format(tensor, spec):
    return format(tensor.item(), spec) if tensor.dim() == 0 else _repr(tensor)


def _set_grad(tensor, grad):
    if grad is not None and place(grad) != place(tensor):
        raise RuntimeError("assigned grad has data located on a different device")
    return TENSOR.grad.__set__(tensor, grad)


ANSWERS = {
    TENSOR.device.__get__: lambda t, *_: place(t),
    TENSOR.is_cuda.__get__: lambda t, *_: place(t).type == "cuda",
    TENSOR.is_cpu.__get__: lambda t, *_: place(t).type == "cpu",
    TENSOR.get_device: lambda t: -1 if place(t).index is None else place(t).index,
    TENSOR.to: to,
    TENSOR.cpu: lambda t, **_: to(t, CPU),
    TENSOR.cuda: lambda t, device=0, **_: to(t, device),
    TENSOR.numpy: _numpy, TENSOR.__array__: _array, TENSOR.__repr__: _repr,
    TENSOR.__format__: _format, TENSOR.grad.__set__: _set_grad,
}


class Meet(TorchDispatchMode):
    """Refuse operations on tensors of two devices; put results on the one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, TENSOR)]
            # a number of the CPU may be combined with a GPU's tensor
            places = [place(t) for t in read if t.dim() or place(t) != CPU]
            name = func.overloadpacket.__name__
            if len(set(places)) > 1 and name not in MAY_MEET and not (
                    name.startswith("index") and places[0].type == "cuda"):
                raise RuntimeError(f"{MIXED}, {' and '.join(map(str, set(places)))}! "
                                   f"(in {func})")
            out = func(*args, **(kwargs or {}))
            if places and places[0].type == "cuda":
                homes = {t.untyped_storage()._cdata for t in read}
                for t in tree_leaves(out):
                    if isinstance(t, TENSOR) and t.untyped_storage()._cdata not in homes:
                        mark(t, places[0])
            return out


real_scatter = torch.nn.parallel.scatter


def scatter(X, devices, dim=0):
    """Do what nn.parallel.scatter does, on real GPUs alone."""
    if any(full(device).type != "cuda" for device in devices):
        return real_scatter(X, devices, dim)
    return tuple(part.to(device) for part, device in zip(X.chunk(len(devices), dim), devices))


def scatter_to_one(net, inputs, kwargs, devices):
    """Do what nn.DataParallel does with its inputs where it has one GPU."""
    [gpu] = devices
    return [tuple(X.to(gpu) for X in inputs)], [kwargs]


def install(count):
    """Let this process see `count` GPUs, in this thread and in those that it starts.

    Where the environment hides all GPUs, it hides these.
    """
    torch.cuda.device_count = lambda: count * (os.environ.get("CUDA_VISIBLE_DEVICES") != "")
    torch.cuda.is_available = lambda: torch.cuda.device_count() > 0
    torch.cuda._lazy_init = torch.cuda.synchronize = lambda *_: None
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(
        total_memory=1, multi_processor_count=1)
    torch.nn.parallel.scatter = scatter
    torch.nn.DataParallel.scatter = scatter_to_one
    run = threading.Thread.run

    def run_pretending(thread):
        with Meet(), Names():
            run(thread)
    threading.Thread.run = run_pretending
    Meet().__enter__()
    Names().__enter__()
