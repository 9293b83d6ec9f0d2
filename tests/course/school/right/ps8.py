"""Right answers to problem set 8: {exercise: {style: cell}}."""

from tests.course.school.right import changed

RIGHT = {
    "ps8/once": {
        "rank 0 raises its own error": changed(
            "ps8/once",
            ("errors = [None]", "errors, mine = [None], None"),
            FAILED="errors, mine = [repr(caught)], caught",
            RAISE="raise mine or OSError(errors[0])",
        ),
        "errors gathered, another name": changed(
            "ps8/once",
            PLACE="path + '~'",
            TELL="everyone = 3 * [None]\n"
            "    dist.all_gather_object(everyone, errors); errors = everyone[0]",
        ),
        "rank 0 tells first what it has found": """
def once(function, path):
    box = [os.path.exists(path)]
    dist.broadcast_object_list(box)
    if box[0]:
        return
    if dist.get_rank() == 0:
        try:
            function(path)
        except Exception as error:
            box = [f"{type(error).__name__}: {error}"]
            os.remove(path)
    dist.broadcast_object_list(box)
    if box[0]:
        raise OSError(box[0])
""",
    },
    "ps8/resume_at": {
        "counted": """
def resume_at(rows, world_size, batch_size, accumulate, epochs, done):
    own = len(range(0, rows, world_size))
    batches = range(0, own - batch_size + 1, batch_size)
    starts = range(len(batches))[::accumulate]
    places = [(epoch, batch) for epoch in range(epochs) for batch in starts]
    return (*(places + [(epochs, 0)])[done], len(places) - done)
""",
        "tried in its cell": changed("ps8/resume_at", ("return ", "return "))
        + """
check("ps8/resume_at", resume_at)
""",
    },
    "ps8/master_sgd": {
        "torch's optimizer on the copies": changed(
            "ps8/master_sgd",
            (
                "def step(self):\n        pass",
                "def step(self):\n"
                "        for p, w in zip(self.params, self.master):\n"
                "            w.grad = p.grad.to(torch.float32)\n"
                "        torch.optim.SGD(self.master, self.lr).step()",
            ),
            CHANGE="0",
        ),
        "other tensors each time": """
class MasterSGD:
    def __init__(self, params, lr):
        self.params, self.lr = params, lr
        self.load([p.data.to(torch.float32) for p in params])

    def step(self):
        pairs = zip(self.master, self.params)
        self.load([torch.add(w, p.grad.float(), alpha=-self.lr) for w, p in pairs])

    def save(self):
        return self.master

    @torch.no_grad()
    def load(self, saved):
        self.master = list(saved)
        for p, w in zip(self.params, saved):
            p.data = w.to(p.dtype)
""",
    },
    "ps8/scaler": {
        "the largest vote, counted down": """
class AgreedScaler:
    def __init__(self, factor, every):
        self.factor, self.every, self.left = factor, every, every

    def unscale(self, grads):
        flat = torch.cat([grad.flatten().float() for grad in grads])
        vote = torch.tensor([0 if flat.isfinite().all() else 1])
        dist.all_reduce(vote, op=dist.ReduceOp.MAX)
        factor = self.factor
        self.left -= 1
        if vote.item() or not self.left:
            self.left = self.every
            self.factor = factor / 2 if vote.item() else factor * 2
        if vote.item():
            return None
        return [grad.float() / factor for grad in grads]
""",
        "votes gathered as objects": changed(
            "ps8/scaler",
            VOTE="votes = [None] * dist.get_world_size()\n"
            "        dist.all_gather_object(votes, fine); bad += not all(votes)",
            RESULT="grad.to(torch.float32) * (1 / self.factor)",
        ),
    },
    "ps8/outer": {
        "torch's optimizer": """
class Outer:
    def __init__(self, params, lr, momentum):
        self.params, self.old = params, [p.detach().clone() for p in params]
        self.sgd = torch.optim.SGD(self.old, lr, momentum, nesterov=True)

    def meet(self, sound):
        votes = [None] * dist.get_world_size()
        dist.all_gather_object(votes, sound)
        for p, old in zip(self.params, self.old):
            if not sound:
                p.data.zero_()
            dist.all_reduce(p.data)
            old.grad = old - p.data / sum(votes)
        self.sgd.step()
        for p, old in zip(self.params, self.old):
            p.data.copy_(old)
""",
        "one flat tensor, with the count in it": """
class Outer:
    def __init__(self, params, lr, momentum):
        self.params, self.lr, self.momentum = params, lr, momentum
        self.old = nn.utils.parameters_to_vector(params).detach().clone()
        self.v = 0

    def meet(self, sound):
        flat = nn.utils.parameters_to_vector(self.params).detach()
        total = torch.cat([flat, torch.ones(1)]) if sound else self.old.new_zeros(
            len(self.old) + 1
        )
        dist.all_reduce(total)
        g = self.old - total[:-1] / total[-1]
        self.v = self.momentum * self.v + g
        self.old = self.old - self.lr * (g + self.momentum * self.v)
        nn.utils.vector_to_parameters(self.old.clone(), self.params)
""",
    },
    "ps8/epoch_loss": {
        "to rank 0 and back, a number": changed(
            "ps8/epoch_loss",
            RESULT="total[1].item()",
            REDUCE="dist.reduce(total, 0); dist.broadcast(total, 0)",
        ),
        "gathered objects": changed(
            "ps8/epoch_loss",
            REDUCE="every = [None] * dist.get_world_size()\n"
            "    dist.all_gather_object(every, total); total = sum(every)",
        ),
    },
}
