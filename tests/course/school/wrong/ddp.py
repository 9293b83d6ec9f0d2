"""Wrong answers to the exercises of lessons in ddp.py."""

WRONG = {
    "buckets/send_full": (
        """
def send_full(buckets, p):
    for bucket in buckets:
        if <<FIND: p in bucket.missing>>:
            <<STRIKE: bucket.missing.remove(p)>>
    for bucket in <<ORDER: buckets>>:
        if <<WAIT: bucket.missing>>:
            <<STOP: break>>
        if <<NEW: bucket.work is None>>:
            <<SEND: bucket.send()>>
            <<AFTER: pass>>
    <<LATE: pass>>
""",
        {
            "p has come": {"STRIKE": "pass"},
            "p is a tensor": {"FIND": "p in bucket.params"},
            "the wrapper needs": {"AFTER": "buckets.remove(bucket)"},
            "`finish` receives, when": {"AFTER": "bucket.receive()"},
            "nothing is sent": {"SEND": "pass"},
            "these go as they fill up": {"STOP": "continue"},
            "p was still missing": {
                "STRIKE": "pass",
                "LATE": "[b.missing.discard(p) for b in buckets]",
            },
            "a bucket was sent before": {"WAIT": "not bucket.missing"},
            "send() sets the": {"SEND": "bucket.work = bucket.send()"},
            "a bucket was sent twice": {"NEW": "True"},
            "a full bucket stays behind": {"AFTER": "break"},
            "all are sent with the last": {
                "WAIT": "any(other.missing for other in buckets)"
            },
            "these begin at the end": {"ORDER": "buckets[::-1]"},
        },
    ),
    "is_it_correct/one_step_test": (
        """
def one_step_test(step, make, X, y, n=3):
    start = make()[0].state_dict()
    def after():
        net, optimizer = make()
        <<LOAD: net.load_state_dict(start)>>
        <<TAKE: step(net, optimizer, X, y)>>
        return <<RESULT: [p.detach() for p in net.parameters()]>>
    one = <<ONE: run_ranks(after, 1)[0]>>
    moved = largest_difference(one, list(start.values()))
    ranks = run_ranks(after, <<RANKS: n>>)
    <<AFTER: pass>>
    off = torch.tensor([largest_difference(rank, one) for rank in ranks])
    return <<OFF: off.max().item() / moved>>
""",
        {
            "it needs a group": {"ONE": "after()"},
            "the loss is older": {
                "TAKE": "pass",
                "RESULT": "step(net, optimizer, X, y)",
                "ONE": "run_ranks(after, 1)[0]; return abs(sum(run_ranks(after, n)) - one)",
            },
            "do all begin with": {"LOAD": "pass"},
            "the fraction is upside down": {
                "OFF": "moved / max(off.max().item(), 1e-17)"
            },
            "take the largest difference of all ranks, not": {
                "OFF": "off.sum().item() / moved"
            },
            "only the first tensor": {
                "AFTER": "one, *ranks = [some[:1] for some in (one, *ranks)]; "
                "moved = largest_difference(one, list(start.values())[:1])"
            },
            "only the last tensor": {
                "AFTER": "one, *ranks = [some[-1:] for some in (one, *ranks)]; "
                "moved = largest_difference(one, list(start.values())[-1:])"
            },
            "a difference may be below 0": {
                "AFTER": "return max((p - q).max().item() for rank in ranks "
                "for p, q in zip(rank, one)) / moved"
            },
            "Python's max() may lose": {
                "OFF": "max(largest_difference(rank, one) for rank in ranks) / moved"
            },
            "some rank was not asked: take the largest difference of": {
                "AFTER": "ranks = ranks[-1:]"
            },
            "it is always 0": {
                "TAKE": "old = [p.detach().clone() for p in net.parameters()]; "
                "step(net, optimizer, X, y)",
                "RESULT": "old",
                "AFTER": "moved = 1",
            },
            "the ranks agree, and all are wrong": {"AFTER": "one = ranks[0]"},
            "divide the largest difference": {"AFTER": "moved = 1"},
            "`n` says on how many": {"RANKS": "3"},
            "some rank was not asked": {"AFTER": "ranks = ranks[:1]"},
            "one weight on one rank is wrong": {
                "AFTER": "flat = torch.nn.utils.parameters_to_vector; one = flat(one); "
                "return max((flat(rank) - one).abs().mean().item() for rank in ranks) "
                "/ (one - flat(start.values())).abs().mean().item()"
            },
            "one device's change": {"AFTER": "moved = 1e-30"},
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
        for p in <<HOOKED: module.parameters()>>:
            p.register_post_accumulate_grad_hook(<<HOOK: self.hook>>)

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
            "a part of the flat tensor": {"WRITE": "p.grad.copy_(part)"},
            "`finish` divides, and": {
                "PACK": "flat = torch.cat([grad.flatten() for grad in grads])"
            },
            "each rank divided its own": {
                "PACK": "flat = torch.cat([grad.flatten() for grad in grads]); "
                "dist.all_reduce(flat.clone())"
            },
            "the mean was added": {"WRITE": "p.grad += part.view_as(p)"},
            "a hook was called": {"HOOK": "self.hook(p)"},
            "some parameter has no hook": {"HOOKED": "list(module.parameters())[-1:]"},
            "some parameter has no hook: each": {
                "HOOKED": "list(module.parameters())[:1]"
            },
            "`finish` ran in the first hook": {
                "ASK": "Variable._execution_engine.queue_callback(self.finish())"
            },
            "all_reduce returns None": {
                "PACK": "flat = torch.cat([grad.flatten() for grad in grads]); "
                "flat = dist.all_reduce(flat)"
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
            "each p.grad is another tensor": {"WRITE": "p.grad = part.view_as(p)"},
            "these numbers stand": {
                "PACK": "flat = torch.cat([grad.flatten() for grad in grads[::-1]]); "
                "dist.all_reduce(flat)"
            },
        },
    ),
    "how_often/local_sgd": (
        """
def local_sgd(model, optimizer, loss, batches, every):
    for step, (X, y) in enumerate(batches, <<FIRST: 1>>):
        <<CLEAR: optimizer.zero_grad()>>
        loss(model(X), y).backward()
        <<STEP: optimizer.step()>>
        if <<DUE: step % every == 0>>:
            for p in model.parameters():
                dist.<<SEND: all_reduce(<<WHAT: p.data>>)>>
                <<MEAN: p.data /= <<COUNT: dist.get_world_size()>>>>
            <<AFTER: pass>>
""",
        {
            "this is an average in every step": {"DUE": "True"},
            "nothing is averaged": {"DUE": "step > len(batches)"},
            "no weight has moved": {"STEP": "pass"},
            "this averages once": {"DUE": "step == every"},
            "this is an average before the optimizer": {
                "STEP": "step % every and optimizer.step()",
                "AFTER": "optimizer.step()",
            },
            "all ranks take the weights of one": {
                "SEND": "broadcast(p.data, 0)",
                "MEAN": "pass",
            },
            "steps are counted from 1": {"FIRST": "0"},
            "an older gradient": {"CLEAR": "pass"},
            "an older gradient is still": {
                "CLEAR": "pass",
                "AFTER": "pass\n        optimizer.zero_grad()",
            },
            "this is an average before": {"FIRST": "2"},
            "this is one more average": {
                "DUE": "step % every == 0 or step == len(batches)"
            },
            "the sum of the weights is divided": {"COUNT": "every"},
            "this is the sum": {"MEAN": "pass"},
            "gradients are averaged": {
                "STEP": "step % every and optimizer.step()",
                "WHAT": "p.grad",
                "MEAN": "p.grad /= dist.get_world_size()",
                "AFTER": "optimizer.step()",
            },
            "the optimizer steps only": {
                "CLEAR": "(step - 1) % every or optimizer.zero_grad()",
                "STEP": "step % every or optimizer.step()",
            },
            "autograd watches": {"MEAN": "p /= dist.get_world_size()"},
        },
    ),
}
