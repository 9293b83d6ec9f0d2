"""Wrong answers to the exercises of lessons in messages.py."""

WRONG = {
    "processes/exchange": (
        """
def exchange(tensor, other):
    box = <<BOX: torch.empty_like(tensor)>>
    <<BEFORE: pass>>
    if <<FIRST: dist.get_rank() < other>>:
        dist.send(tensor, other)
        dist.recv(box, other)
    else:
        dist.recv(box, other)
        dist.send(tensor, other)
    return <<RESULT: box>>
""",
        {
            "both ranks wait in send": {"FIRST": "True"},
            "both ranks wait for each other": {"FIRST": "False"},
            "both ranks wait for each other: let": {"FIRST": "dist.get_rank() == 0"},
            "both ranks wait for each other: let one": {"FIRST": "dist.get_rank() % 2"},
            "both ranks wait for each other: let one of": {
                "BEFORE": "dist.isend(tensor, other).wait()"
            },
            "gloo ends a rank": {"BOX": "torch.empty(1, dtype=tensor.dtype)"},
            "`other` says which rank": {"BEFORE": "other = 1 - dist.get_rank()"},
            "the tensor that was handed over has changed": {"BOX": "tensor"},
            "return the tensor that came": {"RESULT": "None"},
            "a rank returned its own": {"RESULT": "tensor"},
            "a rank returned its own tensor": {
                "RESULT": "tensor if dist.get_rank() > other else box"
            },
            "the numbers are right, their shape": {"RESULT": "box.flatten()"},
        },
    ),
    "processes/ring": (
        """
def ring_allreduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    parcel = tensor.clone()
    <<BEFORE: pass>>
    for _ in range(n - 1):
        box = torch.empty_like(tensor)
        <<SEND: sending = dist.isend(parcel, right); dist.recv(box, left); sending.wait()>>
        <<ADD: tensor += box>>
        parcel = <<NEXT: box>>
    return <<RESULT: None>>
""",
        {
            "every rank waits in send": {
                "SEND": "dist.send(parcel, right); dist.recv(box, left)"
            },
            "every rank waits for a neighbour": {
                "SEND": "dist.recv(box, left); dist.send(parcel, right)"
            },
            "each rank sends as often": {
                "SEND": "dist.send(parcel, left) if rank == 0 else dist.recv(box, left)"
            },
            "the ring is yours to build": {"BEFORE": "return dist.all_reduce(tensor)"},
            "the tensor on rank 0 holds": {"NEXT": "parcel"},
            "each rank sends to its right": {
                "BEFORE": "left, right = right, left",
            },
            "the result is returned": {
                "ADD": "tensor = tensor + box",
                "RESULT": "tensor",
            },
        },
    ),
    "together/any_rank": (
        """
def any_rank(flag):
    <<BEFORE: pass>>
    flags = torch.tensor([float(flag)])
    <<REDUCE: dist.all_reduce(flags, op=dist.ReduceOp.<<OP: MAX>>)>>
    return <<RESULT: flags.item() > 0>>
""",
        {
            "a collective is for all ranks": {"BEFORE": "if not flag: return False"},
            "this is always False, if flags": {"BEFORE": "flag = flag is True"},
            "this is always False: all_reduce": {
                "RESULT": "bool(dist.all_reduce(flags))"
            },
            "this is True if exactly one": {"OP": "SUM", "RESULT": "flags.item() == 1"},
            "the ranks have talked": {"REDUCE": "dist.all_reduce(flags.clone())"},
            "return the answer": {"RESULT": "None"},
            "a list is true": {
                "REDUCE": "flags = [None] * dist.get_world_size()\n"
                "    dist.all_gather_object(flags, bool(flag))",
                "RESULT": "flags",
            },
            "this is rank 0's flag": {"REDUCE": "dist.broadcast(flags, 0)"},
            "only rank 0 has": {
                "REDUCE": "dist.reduce(flags, 0, op=dist.ReduceOp.MAX)"
            },
            "this is each rank's own": {"REDUCE": "pass"},
            "this is True only if all": {"OP": "MIN"},
            "this is True only if most": {
                "OP": "SUM",
                "RESULT": "flags.item() > dist.get_world_size() / 2",
            },
        },
    ),
}
