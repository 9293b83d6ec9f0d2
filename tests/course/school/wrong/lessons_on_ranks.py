"""Wrong answers to exercises of lessons that run on ranks."""

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
            "both ranks wait for a message": {"FIRST": "False"},
            "`other` says which rank": {"BEFORE": "other = 1 - dist.get_rank()"},
            "the tensor that was handed over has changed": {"BOX": "tensor"},
            "return the tensor that came": {"RESULT": "None"},
            "this is the rank's own tensor": {"RESULT": "tensor"},
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
            "every rank waits for a message": {
                "SEND": "dist.recv(box, left); dist.send(parcel, right)"
            },
            "each rank sends as often": {
                "SEND": "dist.send(parcel, left) if rank == 0 else dist.recv(box, left)"
            },
            "the ring is yours to build": {"BEFORE": "return dist.all_reduce(tensor)"},
            "the tensor on rank 0 holds": {"NEXT": "parcel"},
            "the result is returned": {
                "ADD": "tensor = tensor + box",
                "RESULT": "tensor",
            },
        },
    ),
    "ddp_by_hand/ddp": (
        """
from torch.autograd import Variable

class MyDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.queued = module, False
        <<START: for p in module.parameters(): dist.broadcast(p.detach(), src=0)>>
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self.hook)

    def forward(self, *args):
        return self.module(*args)

    def hook(self, p):
        if <<FIRST: not self.queued>>:
            self.queued = True
            <<ASK: Variable._execution_engine.queue_callback(self.finish)>>

    def finish(self):
        self.queued = <<OVER: False>>
        grads = [p.grad for p in self.module.parameters()]
        <<PACK: flat = torch.cat([grad.flatten() for grad in grads]); dist.all_reduce(flat)>>
        <<MEAN: flat /= dist.get_world_size()>>
        parts = flat.split([grad.numel() for grad in grads])
        for p, part in zip(<<PARAMS: self.module.parameters()>>, <<ORDER: parts>>):
            <<WRITE: p.grad.copy_(part.view_as(p))>>
""",
        {
            "`finish` ran in the first hook": {
                "ASK": "Variable._execution_engine.queue_callback(self.finish())"
            },
            "all ranks must call": {
                "START": "for p in module.parameters(): "
                "dist.get_rank() or dist.broadcast(p.detach(), src=0)"
            },
            "every rank keeps its own": {"START": "pass"},
            "rank 0's own weights": {
                "START": "for p in module.parameters(): dist.broadcast(p.detach(), src=1)"
            },
            "nothing was sent: the first": {"ASK": "pass"},
            "nothing was sent the second": {"OVER": "True"},
            "every hook asked": {"FIRST": "True"},
            "one message for each": {
                "PACK": "[dist.all_reduce(grad) for grad in grads]; flat = torch.cat("
                "[grad.flatten() for grad in grads])"
            },
            "every rank holds its own": {"WRITE": "pass"},
            "this is the sum": {"MEAN": "pass"},
            "this is divided by": {"MEAN": "flat /= dist.get_world_size() ** 2"},
            "these numbers stand": {
                "PACK": "flat = torch.cat([grad.flatten() for grad in grads[::-1]]); "
                "dist.all_reduce(flat)"
            },
        },
    ),
    "ddp_program/evaluate": (
        """
@torch.no_grad()
def evaluate(model, X, y):
    was = model.training
    <<BEFORE: model.eval()>>
    counts = torch.tensor([(model(X).argmax(dim=1) == y).sum().item(), len(y)])
    <<AFTER: model.train(was)>>
    part = counts[0] / counts[1].clamp(min=1)
    <<REDUCE: dist.all_reduce(counts)>>
    right, rows = counts.tolist()
    return <<RESULT: right / rows>>
""",
        {
            "the test runs in training mode": {"BEFORE": "pass"},
            "dropout would stay off": {"AFTER": "pass"},
            "it was in eval mode before": {"AFTER": "model.train()"},
            "a rank can have no rows": {"AFTER": "model.train(was); 1 / len(y)"},
            "all ranks must call": {
                "BEFORE": "if len(X) == 0: return 0.0\n    model.eval()"
            },
            "every rank has the accuracy of its own": {
                "REDUCE": "counts[1].clamp_(min=1)"
            },
            "this is the mean of the ranks'": {
                "REDUCE": "dist.all_reduce(part); return part / dist.get_world_size()"
            },
            "the sum is that of all ranks": {"RESULT": "right / max(1, len(y))"},
            "only rank 0 has the answer": {
                "REDUCE": "dist.reduce(counts, 0); counts[1].clamp_(min=1)"
            },
        },
    ),
    "how_often/local_sgd": (
        """
def local_sgd(model, optimizer, loss, batches, every):
    for step, (X, y) in enumerate(batches, <<FIRST: 1>>):
        <<CLEAR: optimizer.zero_grad()>>
        loss(model(X), y).backward()
        optimizer.step()
        if <<DUE: step % every == 0>>:
            for p in model.parameters():
                dist.all_reduce(p.<<WHAT: data>>)
                p.data /= <<COUNT: dist.get_world_size()>>
""",
        {
            "this is an average in every step": {"DUE": "True"},
            "nothing is averaged": {"DUE": "step > len(batches)"},
            "steps are counted from 1": {"FIRST": "0"},
            "in each step: clear": {"CLEAR": "pass"},
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
            "all ranks must call": {"BEFORE": "if not flag: return False"},
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
        },
    ),
    "keep_only_a_part/step": (
        """
from manual_dp.ranks.collectives import allgather, reduce_scatter

def step(weights, grads, shard, optimizer):
    rank, n = dist.get_rank(), dist.get_world_size()
    <<ADD: reduce_scatter(grads)>>
    <<MEAN: grads[rank] /= n>>
    shard.grad = grads[<<CHUNK: rank>>]
    <<UPDATE: optimizer.step()>>
    <<GATHER: allgather(weights)>>
""",
        {
            "all ranks must call": {"GATHER": "rank and allgather(weights)"},
            "a sum is not a mean": {"MEAN": "pass"},
            "all are zero": {"UPDATE": "pass"},
            "each rank's own chunk": {
                "UPDATE": "allgather(weights)",
                "GATHER": "optimizer.step()",
            },
            "each rank uses its own": {"ADD": "pass"},
            "rank r has": {"CHUNK": "0"},
            "a copy of the chunk": {"MEAN": "grads[rank] = grads[rank] / n"},
        },
    ),
    "keep_only_a_part/reduce": (
        """
from manual_dp.ranks.collectives import reduce_scatter

def reduce(params, shard):
    rank, n = dist.get_rank(), dist.get_world_size()
    flat = torch.cat([<<FLAT: p.grad>>.flatten() for p in params])
    grads = list(F.pad(flat, (0, -len(flat) % n)).chunk(n))
    for p in params:
        p.grad = <<FREE: None>>
    <<ADD: reduce_scatter(grads)>>
    shard.grad = <<RESULT: grads[<<CHUNK: rank>>] / n>>
""",
        {
            "all ranks must call": {"ADD": "rank and reduce_scatter(grads)"},
            "all are zero": {"FLAT": "p.detach().clone()"},
            "shard.grad is None": {"RESULT": "None"},
            "a sum is not a mean": {"RESULT": "grads[rank].clone()"},
            "each rank uses its own": {"ADD": "pass"},
            "rank r has": {"CHUNK": "0"},
            "set each p.grad": {"FREE": "p.grad"},
            "set each p.grad to None; and a view": {"RESULT": "grads[rank].div_(n)"},
        },
    ),
}
