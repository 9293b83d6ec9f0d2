"""Tensors that an optimizer holds beside a model's, as a loss's own weights.

    note       before and after each step of an optimizer
    strangers  the findings: alike before a step, and no longer after it

DDP averages the gradients of the module that it wraps. What else an optimizer trains,
such as a temperature in the loss, has each rank's own gradient, unless somebody sees to
it. Where such tensors differ from the start, they may be each rank's own by design.
"""

import torch

from manual_dp.audit.catalogue import few, finding, ranks
from manual_dp.audit.fingerprint import Sketch
from manual_dp.audit.plain import comparable
from manual_dp.audit.records import each_step


@torch.no_grad()
def note(watch, optimizer, after):
    """Note them before an optimizer's first step in a step, or after its last one."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if not watch.guessed and not any(id(p) in watch.index for p in held):
        return  # of another network, which is not to be watched
    known = watch.note.strangers[after]
    for i, p in enumerate(held):
        name = f"tensor {i} of {type(optimizer).__name__}, {(*p.shape,)}"
        if id(p) not in watch.index and p.grad is not None and (
                comparable(p) is not None) and (after or name not in known):
            known[name] = Sketch([p]).row(p)


@each_step
def strangers(notes, evidence):
    """Ask that what is alike on all ranks before a step is alike after it."""
    before, after = zip(*(note.strangers for note in notes))
    if evidence.local or not all(before) or len(notes) < 2:
        return
    close = 10 * evidence.close ** 2  # or last digits, of sums in another order
    if any(_parted(one, before[0], close) for one in before):
        evidence.skip("tensors of an optimizer that no watched model holds", "they "
                      "differ from rank to rank, which may be meant: "
                      f"{few(list(before[0]))}")
        return
    parted = {rank: names for rank, one in enumerate(after)
              if (names := _parted(one, after[0], close))}
    if parted:
        rank, names = next(iter(parted.items()))
        yield finding("not-synchronised", len(names), f"{few(names)}, which no watched "
                      "model holds, is alike before the optimizer's step, and on "
                      f"{ranks(list(parted))} not rank 0's after it", rank)


def _parted(one, first, close):
    """Return the names of tensors that are further from rank 0's than rounding is."""
    return [name for name in dict.fromkeys([*first, *one])
            if name not in one or name not in first or float(
                (one[name] - first[name]).norm()) > close * float(first[name].norm())]
