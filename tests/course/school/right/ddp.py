"""Right answers to the exercises of lessons in ddp.py."""

from tests.course.school.right import changed

RIGHT = {
    "buckets/send_full": {
        "a loop that ends": """
def send_full(buckets, p):
    for bucket in buckets:
        bucket.missing.discard(p)
    number = 0
    while number < len(buckets) and not buckets[number].missing:
        if buckets[number].work is None:
            buckets[number].send()
        number += 1
""",
        "gradients and the flat tensor are looked at": """
def send_full(buckets, p):
    for bucket in buckets:
        if id(p) in map(id, bucket.params):
            bucket.missing -= {p}
    for bucket in buckets:
        if any(p.grad is None for p in bucket.params) or bucket.missing:
            return
        if bucket.work is None:
            bucket.send()
            assert bucket.flat.numel() == sum(p.numel() for p in bucket.params)
""",
        "with takewhile": """
def send_full(buckets, p):
    from itertools import takewhile
    [bucket] = [bucket for bucket in buckets if p in bucket.missing]
    bucket.missing.remove(p)
    for bucket in takewhile(lambda bucket: len(bucket.missing) == 0, buckets):
        bucket.work or bucket.send()
""",
    },
    "is_it_correct/one_step_test": {
        "rank 0's weights are sent, and come back with the result": """
def one_step_test(step, make, X, y, n=3):
    def run(start=None):
        net, optimizer = make()
        with torch.no_grad():
            for p, value in zip(net.parameters(), start or net.parameters()):
                p.copy_(value)
                dist.broadcast(p, 0)
        old = [p.detach().clone() for p in net.parameters()]
        step(net, optimizer, X, y)
        return old, [p.detach().clone() for p in net.parameters()]
    many = run_ranks(run, n)
    (old, one), = run_ranks(run, 1, many[0][0])
    off = [largest_difference(new, one) for _, new in many]
    return torch.tensor(off).max().item() / largest_difference(old, one)
""",
        "one long vector, and a tensor's largest": """
from torch.nn.utils import parameters_to_vector, vector_to_parameters
def one_step_test(step, make, X, y, n=3):
    start = parameters_to_vector(make()[0].parameters()).detach()
    def run(one=None):
        net, optimizer = make()
        vector_to_parameters(start.clone(), net.parameters())
        step(net, optimizer, X, y)
        new = parameters_to_vector(net.parameters()).detach()
        if one is None:
            return new
        return (new - one).abs().max() / (one - start).abs().max()
    one, = run_ranks(run, 1)
    return torch.stack(run_ranks(run, n, one)).max()
""",
    },
    "ddp_by_hand/ddp": {
        "divided before it is sent, torch's own packing": changed(
            "ddp_by_hand/ddp",
            MEAN="pass",
            PACK="from torch._utils import _flatten_dense_tensors as pack, "
            "_unflatten_dense_tensors as unpack\n"
            "        flat = pack(grads) / dist.get_world_size(); dist.all_reduce(flat)\n"
            "        [grad.copy_(new) for grad, new in zip(grads, unpack(flat, grads))]",
            WRITE="pass",
        ),
        "last first, slice by slice, into .data": changed(
            "ddp_by_hand/ddp",
            ("parts = flat.split", "place = 0; sizes = list"),
            PACK="grads.reverse(); flat = torch.cat([grad.view(-1) for grad in grads])\n"
            "        dist.all_reduce(flat)",
            PARAMS="reversed(list(self.module.parameters()))",
            ORDER="sizes",
            WRITE="p.grad.data[:] = flat[place:place + part].reshape(p.shape); place += part",
        ),
    },
    "how_often/local_sgd": {
        "the mean by AVG": changed(
            "how_often/local_sgd", COUNT="1", WHAT="p.data, op=dist.ReduceOp.AVG"
        ),
        "one flat tensor, counted by hand": """
def local_sgd(model, optimizer, loss, batches, every):
    alone = 0
    for X, y in iter(batches):
        loss(model(X), y).backward() if optimizer.zero_grad() is None else None
        optimizer.step()
        alone += 1
        if alone == every:
            flat = nn.utils.parameters_to_vector(model.parameters()).detach()
            dist.all_reduce(flat)
            nn.utils.vector_to_parameters(flat / dist.get_world_size(), model.parameters())
            alone = 0
""",
    },
}
