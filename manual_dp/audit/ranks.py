"""One line in your own script: are the ranks still alike?

    check_ranks   compare fingerprints over ranks; return the findings on every rank

    for f in check_ranks(model, (X, y), sampler, optimizer):
        print(f.code, f.says, f.repair)

Call it on all ranks, at any time: after the model is built, once an epoch, or in every
step. Nothing is changed. A fingerprint is 8 bytes for a parameter and for a row; they
are compared in one exchange, over gloo or nccl. What only gradients show, such as a
sum where a mean was meant, is for `audit`.
"""

import math

import torch
import torch.distributed as dist
from torch import nn

from manual_dp.audit.catalogue import finding, in_order, ranks
from manual_dp.audit.fingerprint import bit_hash, row_hashes
from manual_dp.audit.measure import farthest_parameter
from manual_dp.audit.samples import sampler as judge_samplers
from manual_dp.audit.watch import inner


def check_ranks(model, batch=None, sampler=None, optimizer=None, gradients=False):
    """Return what differs between ranks and should not, a list; the same on every rank.

    batch: this rank's own rows, a tensor or a tuple that begins with one: ranks must
    not share rows. sampler: a DistributedSampler; the same batch once more in the same
    epoch shows that set_epoch was not called. optimizer: its learning rates, and that
    it holds the model's parameters.
    gradients: compare gradients too; right between backward and zero_grad, and not
    where gradients add up in no_sync.
    Raises RuntimeError without a process group, TypeError if the model is no module.
    """
    _check(model)
    named = dict(inner(model).named_parameters())
    params = list(named.values())
    mine = {"names": list(named), "shapes": [tuple(p.shape) for p in params],
            "params": _hashes(params), "buffers": _buffers(model),
            "rows": _rows(batch), "sampler": _sampler(sampler),
            "rates": _rates(optimizer, params),
            "grads": _hashes([p.grad for p in params]) if gradients else []}
    mine["again"] = _seen_before(sampler, mine["rows"])
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    findings = _layouts(everyone)
    if not findings:
        findings += _values(everyone, params)
    findings += _data(everyone)
    return in_order(findings + _optimizers(everyone))


def _hashes(tensors):
    """Return a list of whole numbers; on a GPU with one wait for all of them."""
    found = [bit_hash(t) for t in tensors if t is not None]
    numbers = iter(torch.stack(found).tolist() if found else [])
    return [None if t is None else next(numbers) for t in tensors]


def _buffers(model):
    # a DDP sends rank 0's at the next forward: until then they may differ
    sent = getattr(model, "broadcast_buffers", hasattr(model, "sync_buffers"))
    return {} if sent else {name: int(bit_hash(b)) for name, b in
                            inner(model).named_buffers()}


def _rows(batch):
    X = batch[0] if isinstance(batch, (tuple, list)) and len(batch) else batch
    return row_hashes(X) if torch.is_tensor(X) and X.dim() else None


def _sampler(sampler):
    if sampler is None or not hasattr(sampler, "num_replicas"):
        return None
    return {"of": 0, "rows": len(sampler.dataset), "seed": sampler.seed,
            "epoch": sampler.epoch, "shuffle": sampler.shuffle,
            "world_size": sampler.num_replicas, "rank": sampler.rank}


def _seen_before(sampler, rows):
    """Return the epoch if this batch came before and the epoch is still the same."""
    if rows is None or not getattr(sampler, "shuffle", False):
        return None
    # remembered where it belongs: a new sampler knows nothing
    epoch, batches = getattr(sampler, "_checked", (None, set()))
    batches = batches if epoch == sampler.epoch else set()
    again = tuple(rows) in batches
    sampler._checked = (sampler.epoch, batches | {tuple(rows)})
    return sampler.epoch if again else None


def _rates(optimizer, params):
    if optimizer is None:
        return None
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {"lr": [float(group["lr"]) for group in optimizer.param_groups],
            "held": sum(id(p) in held for p in params)}


def _layouts(everyone):
    first = everyone[0]
    for rank, other in enumerate(everyone):
        if (other["names"], other["shapes"]) != (first["names"], first["shapes"]):
            return [finding("start-differs", len(other["names"]), f"rank {rank} has "
                            f"{len(other['names'])} parameters, rank 0 "
                            f"{len(first['names'])}, or other names or shapes", rank)]
    return []


def _values(everyone, params):
    found, names = [], everyone[0]["names"]
    for key, code, tensors in (("params", "replicas-differ", params),
                               ("grads", "not-synchronised", [p.grad for p in params])):
        lists = [other[key] for other in everyone]
        if all(mine == lists[0] for mine in lists):
            continue
        if any(None in mine for mine in lists):
            found.append(finding(code, math.inf, "some rank has no gradient"))
            continue
        i, distances = farthest_parameter(tensors, lists)
        who = [rank for rank, mine in enumerate(lists) if mine[i] != lists[0][i]]
        what = names[i] if key == "params" else f"the gradient of {names[i]}"
        far = max(distances)
        found.append(finding(code, far, f"{what} is {far:.1e} from rank 0's on "
                             f"{ranks(who)}", who[0], None, names[i]))
    for name, value in everyone[0]["buffers"].items():
        who = [rank for rank, other in enumerate(everyone)
               if other["buffers"].get(name) != value]
        if who:
            found.append(finding("buffers", len(who), f"{name} on {ranks(who)} is not "
                                 "rank 0's", who[0], None, name))
            break
    return found


def _data(everyone):
    found = []
    samplers = [other["sampler"] for other in everyone]
    if all(samplers):
        found += judge_samplers([[one] for one in samplers])
    for rank, other in enumerate(everyone):
        if other["again"] is not None:
            found.append(finding("sampler-epoch", other["again"], f"rank {rank} sees a "
                                 f"batch again, and the sampler's epoch is still "
                                 f"{other['again']}", rank))
            break
    lists = [other["rows"] for other in everyone]
    if len(everyone) < 2 or any(rows is None for rows in lists):
        return found
    sizes = [len(rows) for rows in lists]
    if all(set(rows) == set(lists[0]) for rows in lists) and lists[0]:
        return [*found, finding("rows-same", sizes[0], f"all ranks hold the same "
                                f"{sizes[0]} rows")]
    counts = [set(rows) for rows in lists]
    shared = sum(map(len, counts)) - len(set().union(*counts))
    twice = sum(sizes) - sum(map(len, counts))
    if shared:
        found.append(finding("rows-overlap", shared, f"{shared} rows are on more than "
                             "one rank"))
    if twice:
        found.append(finding("rows-repeated", twice, f"{twice} rows come twice on a "
                             "rank"))
    return found


def _optimizers(everyone):
    found = []
    for rank, other in enumerate(everyone):
        rates, first = other["rates"], everyone[0]["rates"]
        if rates and first and rates["lr"] != first["lr"]:
            found.append(finding("rates-differ", max(rates["lr"]), f"lr is "
                                 f"{rates['lr']} on rank {rank}, {first['lr']} on rank "
                                 "0", rank))
            break
    if everyone[0]["rates"] and not everyone[0]["rates"]["held"]:
        found.append(finding("not-in-optimizer", 0, "the optimizer holds none of the "
                             "model's parameters"))
    return found


def _check(model):
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}")
    if not dist.is_initialized():
        raise RuntimeError("no process group: call check_ranks in a rank, after "
                           "init_process_group")
