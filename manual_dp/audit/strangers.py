"""Tensors that an optimizer holds beside a model's, as a loss's own weights.

    note       before and after each step of an optimizer
    strangers  the findings: alike before a step, and no longer after it

DDP averages the gradients of the module that it wraps. What else an optimizer trains,
such as a temperature in the loss, has each rank's own gradient, unless somebody sees to
it. Where such tensors differ from the start, they may be each rank's own by design.
"""

from manual_dp.audit.catalogue import few, finding, ranks
from manual_dp.audit.plain import hashed
from manual_dp.audit.records import each_step


def note(watch, optimizer, after):
    """Note them before an optimizer's first step in a step, or after its last one."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(id(p) in watch.index for p in held):
        return  # of another network, of which nothing is known
    others = {f"tensor {i} of {type(optimizer).__name__}, {(*p.shape,)}": p
              for i, p in enumerate(held)
              if id(p) not in watch.index and p.grad is not None}
    known = watch.note.strangers[after]
    for name, one in hashed(others).items():
        if after or name not in known:
            known[name] = one


@each_step
def strangers(notes, evidence):
    """Ask that what is alike on all ranks before a step is alike after it."""
    before, after = zip(*(note.strangers for note in notes))
    if evidence.local or not all(before) or len(notes) < 2:
        return
    if any(one != before[0] for one in before):
        evidence.skip("tensors of an optimizer that no watched model holds", "they "
                      "differ from rank to rank, which may be meant: "
                      f"{few(list(before[0]))}")
        return
    parted = [name for name in before[0]
              if len({one.get(name) for one in after}) > 1]
    if parted:
        who = [rank for rank, one in enumerate(after)
               if one.get(parted[0]) != after[0].get(parted[0])]
        yield finding("not-synchronised", len(parted), f"{few(parted)}, which no "
                      "watched model holds, is alike before the optimizer's step, and "
                      f"on {ranks(who)} not rank 0's after it", who[0])
