"""One line in your own script: are the ranks still alike?

    check_ranks   compare fingerprints over ranks; return the findings on every rank

    from manual_dp.audit import check_ranks
    for f in check_ranks(model, (X, y), sampler, optimizer):
        print(f.code, f.says, f.repair)

Call it on all ranks, at any time: after the model is built, once an epoch, or in every
step. Nothing is changed. A fingerprint is 8 bytes for a parameter and for a row; they
are compared in one exchange, over gloo or nccl. The rules are the audit's. What only
gradients show, such as a sum where a mean was meant, is for `audit`.
"""

import torch
import torch.distributed as dist
from torch import nn

from manual_dp.audit.fingerprint import bit_hashes, row_hashes
from manual_dp.audit.measure import gather
apart = None
from manual_dp.audit.records import Evidence, Run, Step
from manual_dp.audit.rules import judge, layouts
from manual_dp.audit.setup import unwrapped as inner
from manual_dp.audit.hooks import rates, told


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
    grads = [p.grad for p in params] if gradients else []
    rows = _rows(batch)
    note = Step(after=bit_hashes(params), gradient=bit_hashes(grads),
                buffers=_buffers(model),
                all_rows=[rows if dist.get_world_size() > 1 else None])
    if optimizer is not None:
        note.rates = rates(optimizer, {id(p): i for i, p in enumerate(params)})
        note.foreign = not note.rates
    evidence = Evidence(gather(Run(
        list(named), [tuple(p.shape) for p in params], [note],
        samplers=[told(sampler)] if hasattr(sampler, "num_replicas") else [],
        again=_seen_before(sampler, rows))))
    if not layouts(evidence):
        for when, tensors in (("after", params), ("gradient", grads)):
            evidence.runs[0].drifts += apart(when, tensors, *evidence.steps)
    return judge(evidence)[0]


def _buffers(model):
    # a DDP sends rank 0's at the next forward: until then they may differ
    if getattr(model, "broadcast_buffers", hasattr(model, "sync_buffers")):
        return {}
    named = dict(inner(model).named_buffers())
    return dict(zip(named, bit_hashes(named.values())))


def _rows(batch):
    X = batch[0] if isinstance(batch, (tuple, list)) and len(batch) else batch
    return row_hashes(X) if torch.is_tensor(X) and X.dim() else None


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


def _check(model):
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}")
    if not dist.is_initialized():
        raise RuntimeError("no process group: call check_ranks in a rank, after "
                           "init_process_group")
