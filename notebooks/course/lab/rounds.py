"""Run a small program on every rank, step by step, and count what is sent.

    run_rounds   run one program for each rank until all have returned
    RoundsError  what ranks that send each other messages cannot do

A program is a generator function `program(rank, world_size, tensor)`. It sees the
tensor of its own rank and no other. Each `yield` is one step, on all ranks at once:

    arrived = yield peer, message   send to rank `peer`; get what was sent to me
    arrived = yield                 send nothing; get what was sent to me

`arrived` is None if nothing came. A message is a tensor or a list of tensors, and a
copy of it is delivered. At most one message can arrive at a rank in a step, as over
one wire: a rank that wants to hear from many has to listen for many steps.
"""

import torch


class RoundsError(ValueError):
    """What ranks that send messages cannot do; names the step and the rank.

    kind: "endless", "no yield", "no message" (what was yielded is none), "a program"
    (nor is this), "no such rank", "itself", "has returned" or "at once" (two messages
    to one rank).
    """

    def __init__(self, message, kind):
        super().__init__(message)
        self.kind = kind


def run_rounds(program, tensors, limit=1000):
    """Run `program` on every rank, all in step, until all have returned.

    tensors: for each rank a tensor or a list of tensors; they are copied first.
    Returns a dict: `tensors`, what each rank's are now; `steps` in which a message
    moved; `sent`, how many numbers left each rank; `messages`, all of them, as
    [step, sender, receiver, numbers]; `returned`, what each program returned.
    Raises RoundsError for what cannot be sent or received and after `limit` steps.
    Whatever a program raises itself is passed on.
    """
    kept = [_copy(own) for own in tensors]
    running = _start(program, kept)
    arrived, messages, returned = {}, [], [None] * len(kept)
    for step in range(1, limit + 2):
        wishes = {}
        for rank, generator in list(running.items()):
            try:
                wishes[rank] = generator.send(arrived.get(rank))
            except StopIteration as stop:
                returned[rank] = stop.value
                del running[rank]
            except Exception as error:
                when = f"after step {step - 1}" if step > 1 else "before step 1"
                error.add_note(f"(on rank {rank} of {len(kept)}, {when})")
                raise
        if not running:
            break
        arrived = _deliver(step, wishes, kept, messages)
    else:
        raise RoundsError(
            f"rank {min(running)} is still at work after {limit} steps: "
            "is there a loop that does not end?",
            "endless",
        )
    sent = [0] * len(kept)
    for _, sender, _, numbers in messages:
        sent[sender] += numbers
    return {
        "tensors": kept,
        "steps": len({step for step, *_ in messages}),
        "sent": sent,
        "messages": messages,
        "returned": returned,
    }


def _start(program, kept):
    running = {}
    for rank, own in enumerate(kept):
        # a copy: a program that puts another tensor into its list leaves ours alone
        own = list(own) if isinstance(own, list) else own
        generator = program(rank, len(kept), own)
        if not hasattr(generator, "send"):
            raise RoundsError(
                f"rank {rank}'s program is no generator, it returned a "
                f"{type(generator).__name__}: it needs a yield",
                "no yield",
            )
        running[rank] = generator
    return running


def _deliver(step, wishes, kept, messages):
    """Return what arrives at each rank; note who sent how much to whom."""
    arrived, senders = {}, {}
    for rank, wish in wishes.items():
        if wish is None:
            continue
        for problem, kind in _problems(rank, wish, wishes, kept):  # the first, if any
            raise RoundsError(f"step {step}: rank {rank} {problem}", kind)
        peer, message = wish
        if peer in senders:
            raise RoundsError(
                f"step {step}: ranks {senders[peer]} and {rank} both "
                f"send to rank {peer}; at most one message can arrive "
                "at a rank in a step",
                "at once",
            )
        arrived[peer], senders[peer] = _copy(message), rank
        messages.append([step, rank, peer, sum(t.numel() for t in as_list(message))])
    return arrived


def _problems(rank, wish, wishes, kept):
    """Yield why a wish cannot be fulfilled, and of which kind that is."""
    if not isinstance(wish, tuple) or len(wish) != 2 or not isinstance(wish[0], int):
        yield (
            f"yields a {type(wish).__name__}; yield nothing, or a pair: peer, message",
            "a program" if hasattr(wish, "send") else "no message",
        )
    peer, message = wish
    if not 0 <= peer < len(kept):
        yield (
            f"sends to rank {peer}; there are ranks 0 to {len(kept) - 1}",
            "no such rank",
        )
    if peer == rank:
        yield "sends to itself; what a rank holds need not be sent", "itself"
    if peer not in wishes:
        yield f"sends to rank {peer}, which has returned already", "has returned"
    dtypes = dict.fromkeys(tensor.dtype for tensor in as_list(kept[rank]))
    for part in as_list(message):
        if not isinstance(part, torch.Tensor):
            yield (
                f"sends a {type(part).__name__}; a message is a tensor or a list of "
                "tensors",
                "no message",
            )
        if part.numel() and part.dtype not in dtypes:
            yield (
                f"sends {part.dtype}, but holds {', '.join(map(str, dtypes))}",
                "no message",
            )


def _copy(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return [part.detach().clone() for part in value]


def as_list(value):
    """Return `value` if it is a list or a tuple, else a list that holds it."""
    return value if isinstance(value, (list, tuple)) else [value]
