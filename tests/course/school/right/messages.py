"""Right answers to the exercises of lessons in messages.py."""

from tests.course.school.right import changed

RIGHT = {
    "processes/exchange": {
        "isend, recv, wait": changed(
            "processes/exchange",
            BEFORE="sending = dist.isend(tensor, dst=other)\n"
            "    dist.recv(box, src=other); sending.wait(); return box",
        ),
        "irecv first, a copy is sent": changed(
            "processes/exchange",
            BEFORE="arriving = dist.irecv(box, other)\n"
            "    dist.send(tensor.clone(), other); arriving.wait(); return box.view_as(tensor)",
        ),
    },
    "processes/ring": {
        "irecv first": changed(
            "processes/ring",
            RESULT="tensor",
            SEND="arriving = dist.irecv(box, src=left)\n"
            "        dist.send(parcel, dst=right); arriving.wait()",
        ),
        "in chunks": """
def ring_allreduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(2 * (n - 1)):
        parcel, mine = chunks[(rank - step) % n].clone(), chunks[(rank - step - 1) % n]
        box = torch.empty_like(mine)
        sending = dist.isend(parcel, (rank + 1) % n) if len(parcel) else None
        if len(box):
            dist.recv(box, (rank - 1) % n)
        if sending:
            sending.wait()
        mine.copy_(mine + box if step < n - 1 else box)
""",
    },
    "together/any_rank": {
        "the largest of all": changed("together/any_rank", BEFORE="pass"),
        "the product of all that is false, as a tensor": """
def any_rank(flag):
    none = 1 - torch.as_tensor(flag, dtype=torch.float64)
    torch.distributed.all_reduce(none, op=dist.ReduceOp.PRODUCT)
    return none[...] == 0
""",
    },
}
