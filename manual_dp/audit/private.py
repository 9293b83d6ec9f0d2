"""Every private name of torch that the audit uses, and what it cannot see without it.

A later torch may have renamed one. Then the audit goes on, and its report has the words
that stand here. What torch documents is used where it is needed.
"""

import pickle

import torch
import torch.distributed as dist
from torch.nn.modules import batchnorm, dropout
from torch.nn.utils import clip_grad
from torch.utils import _pytree
from torch.utils.data import dataloader

NAMES = {
    "backward": (torch._C, "_current_graph_task_id", "which loss a backward is of"),
    "batch norm": (batchnorm, "_BatchNorm", "batch norm's statistics"),
    "clip": (clip_grad, "_clip_grads_with_norm_", "where gradients are clipped"),
    "dropout": (dropout, "_DropoutNd", "whether dropout was on"),
    "hooks": (torch.Tensor, "_backward_hooks", "gradients before others' hooks"),
    "loader": (dataloader, "_BaseDataLoaderIter", "which loader gave the rows"),
    "store": (dist.distributed_c10d, "_get_default_store", "what other ranks heard"),
    "trace": (
        getattr(torch._C, "_distributed_c10d", None),
        "_dump_fr_trace",
        "which collective a rank called last",
    ),
}
# flatten nests of tensors; torch has no public name for it, and nothing works without
leaves, map_leaves, is_leaf = (
    _pytree.tree_leaves,
    _pytree.tree_map,
    _pytree.tree_is_leaf,
)


def private(key):
    """Return what torch has under this name, None if it is not there."""
    home, name, _ = NAMES[key]
    return getattr(home, name, None)


def missing():
    """Return, in words, what this torch does not let the audit look at."""
    return [words for key, (*_, words) in NAMES.items() if private(key) is None]


def backward_number():
    """Return a number for the backward that is at work, the same while it lasts."""
    ask = private("backward")
    return ask() if ask else 0


def hear_first(parameter):
    """Put the newest hook of a parameter before all others: it hears what came."""
    if private("hooks") is not None:
        *others, newest = parameter._backward_hooks.items()
        parameter._backward_hooks.clear()
        parameter._backward_hooks.update([newest, *others])


def group_store():
    """Return the store of the process group, where ranks can leave something.

    Raises RuntimeError if this torch does not hand it out.
    """
    ask = private("store")
    if ask is None:
        raise RuntimeError("this torch does not hand out the process group's store")
    return ask()


def loader_parts(iterator):
    """Return (sampler, data set) of a loader at work; None for what is hidden."""
    sampler = getattr(iterator, "_index_sampler", None)
    return sampler, getattr(iterator, "_dataset", None)


def last_collective():
    """Return what torch's flight recorder has of the last collective: a dict.

    Empty if there was none; None if this torch does not tell.
    """
    try:
        log = pickle.loads(private("trace")())  # noqa: S301 (torch's own)
    except Exception:  # noqa: BLE001 (an older torch, or a newer one)
        return None
    ours = [entry for entry in log.get("entries", ()) if not entry.get("is_p2p")]
    return ours[-1] if ours else {}


def has_parts(layers, key):
    """Return whether one of these layers is of this kind, and trains."""
    kind = private(key)
    return kind is not None and any(
        isinstance(layer, kind) and layer.training for layer in layers
    )


def way(wrapper):
    """Return how a forward that begins in this DDP model is summed: "on" or "off".

    DDP decides it when the forward begins. "" if this is not torch's DDP, compiled or
    not.
    """
    sync = getattr(wrapper, "require_backward_grad_sync", None)
    return "" if sync is None else "on" if sync else "off"


def sends_buffers(wrapper):
    """Return whether each forward of this DDP model begins with a broadcast."""
    return (
        getattr(wrapper, "broadcast_buffers", False)
        and wrapper.require_forward_param_sync
        and next(wrapper.buffers(), None) is not None
    )


def summed_by(wrapper):
    """Return the ids of what this DDP model sums: what it took in, and is not frozen.

    If this torch does not tell what DDP took in, it is all that the model has now.
    """
    if not way(wrapper):
        return set()
    took = getattr(wrapper, "_module_parameters", None) or wrapper.parameters()
    return {id(p) for p in took if p.requires_grad}


def wrapper_facts(model):
    """Return what a wrapper of torch's says of itself: a dict, empty without one.

    ignored: names of parameters that it was told to leave alone. hooks: names of
    torch's communication hooks that change a gradient. joined: is it inside of Join?
    """
    if not hasattr(model, "require_backward_grad_sync"):
        return {}
    hooks = [hook for hook, _ in getattr(model, "_comm_hooks", ())]
    return {
        "ignored": getattr(model, "parameters_to_ignore", ()),
        "hooks": [
            hook.__name__
            for hook in hooks
            if hook.__module__.startswith("torch.")
            and hook.__name__ not in ("allreduce_hook", "noop_hook")
        ],
        "joined": getattr(getattr(model, "_join_config", None), "enable", False),
    }
