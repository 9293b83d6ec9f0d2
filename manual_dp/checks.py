"""Checks of arguments: a page calls one first, and then shows its algorithm alone.

A check returns nothing if the arguments fit. If not, it raises TypeError or ValueError,
which names the argument, the rank or index, and what was found there.

    check_world_size        a number of ranks
    check_devices           a list of devices that this machine has
    check_params            a list of tensors that can have gradients
    check_scale             the spread of initial weights
    check_images            images that lenet takes with these parameters
    check_scores            a row of scores for each label
    check_labels            int64 labels from 0 to classes - 1
    check_rows              a tensor with at least one row
    check_minibatch         images and as many labels
    check_batches           the arguments of `Batches`
    check_replica_count     a replica for each device
    check_sgd               parameters with gradients, a learning rate, a batch size
    check_tensors           a list of tensors, one per rank, that can be summed
    check_chunks            the same, when each rank's tensor is cut into chunks
    check_no_shared_memory  tensors of which none overwrites another
    check_module            a module that can be replicated
    check_shards            a shard for each replica
    check_outputs           an output with rows from each replica

In a rank, that is in a process with a process group:

    check_group             there is a process group
    check_own_tensor        a tensor that this rank can send, receive and sum
    check_own_chunks        the same, cut into a chunk for each rank
    check_bucket_cap        a bucket's size in MiB
"""

import math
from numbers import Real

import torch
import torch.distributed as dist
from torch import nn


def check_world_size(world_size):
    """Refuse what is not an integer >= 1."""
    if not isinstance(world_size, int) or isinstance(world_size, bool):
        raise TypeError(f"world_size must be an integer, got {world_size!r}")
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")


def check_devices(devices):
    """Refuse what is not a list, an empty list, and a GPU that is not here."""
    if not isinstance(devices, (list, tuple)):
        raise TypeError(f"devices must be a list, see try_devices, got {devices!r}")
    if not devices:
        raise ValueError("devices is empty: need a device for each rank")
    gpus = torch.cuda.device_count()
    for device in map(torch.device, devices):
        if device.type == "cuda" and (device.index or 0) >= gpus:
            raise ValueError(
                f"device {device} is not here: torch finds {gpus} GPUs; see try_devices"
            )


def check_params(params):
    """Refuse an empty list, and tensors that cannot be copied or have no gradient."""
    if not isinstance(params, (list, tuple, nn.ParameterList)) or not len(params):
        raise ValueError(
            "params must be a list of at least one tensor, got "
            f"a {type(params).__name__}"
        )
    for i, p in enumerate(params):
        if not isinstance(p, torch.Tensor):
            raise TypeError(f"params[{i}] is a {type(p).__name__}, not a tensor")
        if not p.is_floating_point():
            raise TypeError(f"params[{i}] is {p.dtype}; only floats have gradients")
        if p.is_meta:
            raise TypeError(f"params[{i}] is on the meta device and holds no numbers")


# images and labels


def check_scale(scale):
    """Refuse what is neither a finite number >= 0 nor "he"."""
    number = isinstance(scale, (int, float)) and 0 <= scale < math.inf
    if not number and scale != "he":
        raise ValueError(f'scale must be a finite number >= 0 or "he", got {scale!r}')


def check_images(X, params):
    """Refuse images of another shape or dtype than lenet takes with `params`."""
    _check_are_tensors(X=X)
    if len(params) != 8:  # W1, b1, ..., W4, b4
        raise ValueError(f"lenet needs 8 parameters, got {len(params)}")
    if X.dim() != 4 or X.shape[1:] != (1, 28, 28):
        raise ValueError(f"X must have shape (n, 1, 28, 28), got {tuple(X.shape)}")
    if X.dtype != params[0].dtype:
        raise TypeError(f"X is {X.dtype}, the parameters are {params[0].dtype}")


def check_scores(y_hat, y):
    """Refuse scores and labels that do not belong together."""
    _check_are_tensors(y_hat=y_hat, y=y)
    _check_int64(y)
    if y_hat.dim() != 2 or y.shape != y_hat.shape[:1]:
        raise ValueError(
            f"y_hat {tuple(y_hat.shape)} and y {tuple(y.shape)} must be "
            "(n, classes) and (n,)"
        )
    if y.device.type == "cpu":  # to read labels on a GPU, the CPU would have to wait
        check_labels(y, y_hat.shape[1])


def check_labels(y, classes=10):
    """Refuse labels that are not in 0 .. classes - 1, naming index and value.

    torch's cross-entropy skips a label of -100 without a word. On a GPU a label of 10
    makes every later call fail, until the process is started again.
    """
    _check_are_tensors(y=y)
    _check_int64(y)
    if y.dim() != 1:
        raise ValueError(
            f"y must have one label an example, got shape {tuple(y.shape)}"
        )
    wrong = (y < 0) | (y >= classes)
    if wrong.any():
        i = int(wrong.nonzero()[0])
        raise ValueError(f"y[{i}] is {int(y[i])}, not a label from 0 to {classes - 1}")


def check_rows(X):
    """Refuse what is not a tensor with at least one row."""
    _check_are_tensors(X=X)
    if X.dim() == 0 or len(X) == 0:
        raise ValueError(f"X must have at least one row, got shape {tuple(X.shape)}")


def check_minibatch(X, y):
    """Refuse images and labels that are no tensors or differ in number."""
    _check_are_tensors(X=X, y=y)
    _check_same_length(X, y)


def check_batches(X, y, batch_size):
    """Refuse a batch size below 1, and images and labels that differ in number."""
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be an integer >= 1, got {batch_size!r}")
    _check_same_length(X, y)


def _check_are_tensors(**named):
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def _check_int64(y):
    if y.dtype != torch.int64:
        raise TypeError(f"y must be int64 labels, got {y.dtype}")


def _check_same_length(X, y):
    if X.shape[:1] != y.shape[:1]:
        raise ValueError(f"X has {len(X)} rows but y has {len(y)}")


# a step


def check_replica_count(device_params, devices):
    """Refuse another number of replicas than of devices."""
    check_devices(devices)
    if len(device_params) != len(devices):
        raise ValueError(
            f"device_params has {len(device_params)} replicas "
            f"but devices has {len(devices)}"
        )


def check_sgd(params, lr, batch_size):
    """Refuse a parameter without a gradient, and a wrong rate or batch size."""
    if not (isinstance(lr, Real) and 0 <= lr < math.inf):  # Real: numpy's numbers, too
        raise ValueError(f"lr must be a finite number >= 0, got {lr!r}")
    # this check walks through params, and then a generator has nothing left for sgd
    if not hasattr(params, "__len__"):
        raise TypeError(f"params must be a list, got a {type(params).__name__}")
    if not batch_size >= 1:  # not `batch_size < 1`, which is False for NaN
        raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
    for i, p in enumerate(params):
        if p.grad is None:
            raise ValueError(f"params[{i}] has no gradient; call backward first")


# sums over ranks


def check_tensors(tensors, contiguous=False):
    """Refuse tensors that cannot be summed over the ranks.

    contiguous: refuse those that cannot be cut into chunks without a copy, too.
    """
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(f"need a list of tensors, got {type(tensors).__name__}")
    if not tensors:
        raise ValueError("need a tensor for each rank, got an empty list")
    _check_alike(tensors, "rank")
    check_no_shared_memory(tensors, "ranks")
    for rank, tensor in enumerate(tensors):
        if contiguous and not tensor.is_contiguous():
            raise ValueError(
                f"tensors must be contiguous to be cut into chunks; rank "
                f"{rank}'s has strides {tensor.stride()}"
            )


def check_chunks(chunks):
    """Refuse `chunks[rank][i]` unless each rank has a chunk for each, all alike."""
    if not len(chunks):
        raise ValueError("need a list of chunks for each rank, got an empty list")
    for rank, row in enumerate(chunks):
        if len(row) != len(chunks):
            raise ValueError(
                f"rank {rank} holds {len(row)} chunks; "
                f"{len(chunks)} ranks need as many chunks each"
            )
    for i, column in enumerate(zip(*chunks)):
        _check_alike(column, f"chunk {i} of rank")
        check_no_shared_memory(column, "ranks")
    check_no_shared_memory([chunk for row in chunks for chunk in row], "chunks")


def check_no_shared_memory(tensors, holders):
    """Refuse two tensors that hold a number at the same place in memory.

    holders: what each tensor belongs to, for the message: "ranks" or "chunks". Two
    ranks on the same memory would add one gradient twice.
    """
    tensors = sorted((t for t in tensors if t.numel()), key=torch.Tensor.data_ptr)
    # Quick, and enough for nearly all calls: no tensor overlaps itself, and each ends
    # before the next one begins.
    itself = any(_reach(t) < t.numel() for t in tensors)
    ends = [t.data_ptr() + _reach(t) * t.element_size() for t in tensors]
    begins = [t.data_ptr() for t in tensors[1:]]
    if not itself and all(end <= begin for end, begin in zip(ends, begins)):
        return
    # Slow, but true for columns of one matrix, too: compare the places of all numbers.
    places = [place for t in tensors for place in _places(t)]
    if len(set(places)) != len(places):
        raise ValueError(f"two {holders} share memory; copy the tensor for each rank")


def _check_alike(tensors, name):
    """Refuse what cannot be summed, and another dtype or shape than the first one's."""
    for rank, tensor in enumerate(tensors):
        who = f"{name} {rank}"
        _check_is_tensor(who, tensor)
        if tensor.is_meta or tensor.layout != torch.strided:
            raise TypeError(
                f"{who} holds a tensor without numbers in memory: "
                f"{tensor.device}, {tensor.layout}"
            )
        _check_can_be_added(who, tensor)
        if tensor.dtype != tensors[0].dtype:
            raise TypeError(
                f"{who} holds {tensor.dtype}, {name} 0 holds {tensors[0].dtype}"
            )
        if tensor.shape != tensors[0].shape:
            raise ValueError(
                f"{who} holds shape {tuple(tensor.shape)}, "
                f"{name} 0 holds {tuple(tensors[0].shape)}"
            )


def _check_is_tensor(who, value):
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{who} holds a {type(value).__name__}, not a tensor")


def _check_can_be_added(who, tensor):
    if not (tensor.is_floating_point() or tensor.dtype == torch.int64):
        raise TypeError(
            f"{who} holds {tensor.dtype}; only floats and int64 are "
            "added (shorter integers overflow)"
        )


def _reach(tensor):
    """Return how many places there are from the first number to the last."""
    reach = 1
    for size, stride in zip(tensor.shape, tensor.stride()):
        reach += (size - 1) * stride
    return reach


def _places(tensor):
    """Return the address of every number."""
    places = torch.arange(_reach(tensor)).as_strided(tensor.shape, tensor.stride())
    return (tensor.data_ptr() + places.flatten() * tensor.element_size()).tolist()


# data parallelism in threads


def check_module(module, devices):
    """Refuse a module of which no replica can be made, naming the tensor or part."""
    check_devices(devices)
    home = torch.empty(0, device=devices[0]).device  # which GPU is meant by "cuda"
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"{name} has no shape yet; call the module once before it is replicated"
            )
        if tensor.device != home:
            raise ValueError(
                f"{name} is on {tensor.device}, devices[0] is {home}; "
                "move the module there first"
            )
    for name, part in module.named_modules():
        _check_part(f"{name or 'the module'} ({type(part).__name__})", part)


def _check_part(name, part):
    for kept, value in vars(part).items():
        if isinstance(value, torch.Tensor) and not value.is_leaf:
            raise TypeError(
                f"{name} keeps {kept}, a tensor that was computed: no replica can copy "
                "it; compute it in forward (for weight_norm take torch.nn.utils."
                "parametrizations.weight_norm, after pruning call torch.nn.utils.prune."
                "remove)"
            )
    sparse = isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse
    if sparse and part.weight.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} has sparse=True, and no sparse gradient comes back "
            "from a replica; make it with sparse=False"
        )


def check_shards(replicas, X_shards):
    """Refuse no replicas, and another number of shards than of replicas."""
    if not replicas or len(replicas) != len(X_shards):
        raise ValueError(
            f"need a shard for each replica, got {len(replicas)} replicas "
            f"and {len(X_shards)} shards"
        )


def check_outputs(outputs):
    """Refuse an output without rows, naming the replica that returned it."""
    for rank, output in enumerate(outputs):
        if not isinstance(output, torch.Tensor):
            raise TypeError(
                f"replica {rank} returned a {type(output).__name__}, not a tensor"
            )
        if output.dim() == 0:
            raise ValueError(
                f"replica {rank} returned one number; return a row for each example"
            )


# in a rank


def check_group():
    """Raise RuntimeError if this process is not in a process group."""
    if not dist.is_initialized():
        raise RuntimeError("no process group: call this in a rank, with run_ranks")


def check_own_tensor(tensor, src=0, adds=False):
    """Refuse a tensor that this rank cannot send, and a `src` that is no rank.

    adds: refuse a dtype that cannot be summed, too.
    """
    check_group()
    who, world_size = f"rank {dist.get_rank()}", dist.get_world_size()
    _check_is_tensor(who, tensor)
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise TypeError(
            f"{who} holds a tensor on {tensor.device}, "
            f"{tensor.layout}; need an ordinary one on the CPU"
        )
    if adds:
        _check_can_be_added(who, tensor)
    if not tensor.is_contiguous():
        raise ValueError(
            f"{who}'s tensor is not contiguous, its strides are {tensor.stride()}"
        )
    # isend sends the bytes in memory; of such a view they are not the numbers it shows
    if tensor.is_neg() or tensor.is_conj():
        raise ValueError(
            f"{who}'s tensor is a view that changes signs when it "
            "is read; send tensor.resolve_neg().resolve_conj()"
        )
    if src not in range(world_size):
        raise ValueError(f"src must be a rank from 0 to {world_size - 1}, got {src!r}")


def check_own_chunks(chunks, adds=False):
    """Refuse what is not a flat chunk of this rank's tensor for each rank."""
    check_group()
    who, world_size = f"rank {dist.get_rank()}", dist.get_world_size()
    if len(chunks) != world_size:
        raise ValueError(
            f"{who} holds {len(chunks)} chunks; {world_size} ranks need as many"
        )
    for chunk in chunks:
        check_own_tensor(chunk, adds=adds)
        if chunk.dim() != 1 or chunk.dtype != chunks[0].dtype:
            raise ValueError(
                f"{who} holds a chunk of {chunk.dtype}, "
                f"{tuple(chunk.shape)}; need flat ones of one dtype"
            )
    check_no_shared_memory(chunks, "chunks")


def check_bucket_cap(bucket_cap_mb):
    """Refuse what is not a number > 0."""
    if not (isinstance(bucket_cap_mb, (int, float)) and bucket_cap_mb > 0):
        raise ValueError(f"bucket_cap_mb must be MiB > 0, got {bucket_cap_mb!r}")
