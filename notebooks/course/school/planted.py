"""The programs that problem set 7 plants: a right one, and changes of it.

    PLANTED    {exercise: (template, its places, right changes, bugs)}
    programs   the sources of an exercise's right programs and bugs
    MACHINES   true claims and false ones for `faster`: {claim: what draws its machine}

A template has named places, and a change puts other words there. Its name says what it
does: learners are told which bugs got away.
"""

import re
from functools import partial


def programs(name):
    """Return {what it does: source} of right programs, and of bugs."""
    template, places, *kinds = PLANTED[name]
    sources = []
    for changes in kinds:
        filled = {}
        for what, change in changes.items():
            filled[what] = _filled(template, {**places, **change})
        sources.append(filled)
    return sources


def _filled(text, words):
    """Return the text with `words` in its places; lines keep the place's indent."""
    found = re.compile(rf"\b({'|'.join(words)})\b")
    for _ in range(3):  # a place may stand in the words for another one
        lines = []
        for line in text.splitlines():
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(found.sub(partial(_indented, words, indent), line))
        text = "\n".join(lines)
    return text


def _indented(words, indent, place):
    """Return the words for a place that was found, their lines indented as it is."""
    return words[place[1]].replace("\n", f"\n{indent}")


# same_step: one step on many devices
STEP = """
def program(X, y, device_params, devices, lr):
    k, n, rows = len(devices), len(X), torch.arange(len(X))
    BEFORE
    for params, own in zip(device_params, SHARDS):
        for p in params: p.grad = None
        LOSS.backward()
        EACH
    SUM
    for rank, params in enumerate(device_params):
        MOVE
"""
STEP_PLACES = {
    "BEFORE": "pass",
    "SHARDS": "scatter(rows, devices)",
    "EACH": "pass",
    "LOSS": "loss(params, X[own], y[own]).sum()",
    "SUM": "sum_gradients(device_params)",
    "MOVE": "descend(params, RATE)",
    "RATE": "lr / n",
    "WHOLE": "max(1, n // k * k)",
}
MEAN = "(loss(params, X[own], y[own]).sum() / max(1, len(own)))"
EMPTY = "for p in params: p.grad = p.grad / len(own) * (len(own) / n)"
STEPS = {
    "sum over shards, and divide by all rows": {},
    "average the shards' means, each weighed by its rows": {
        "LOSS": f"({MEAN} * len(own) / n)",
        "RATE": "lr",
    },
    "deal the rows out like cards": {"SHARDS": "[rows[rank::k] for rank in range(k)]"},
}
STEP_BUGS = {
    "average the shards' means, whatever their sizes": {"LOSS": MEAN, "RATE": "lr / k"},
    "let every replica step with the gradient of its own shard": {
        "SUM": "pass",
        "RATE": "lr / max(1, len(SHARDS[rank]))",
    },
    "keep the gradients of the steps before": {
        "BEFORE": "old = [[p.grad for p in params] for params in device_params]",
        "MOVE": "for p, grad in zip(params, old[rank]):\n"
        "    p.grad = p.grad if grad is None else p.grad + grad\n"
        "descend(params, RATE)",
    },
    "leave out the rows that do not divide evenly": {
        "SHARDS": "scatter(rows[:WHOLE], devices)",
        "RATE": "lr / WHOLE",
    },
    "divide by the rows of a shard, which may be empty": {"EACH": EMPTY, "RATE": "lr"},
    "step on the first device: the others get its weights before the next step": {
        "BEFORE": "for same in zip(*device_params):\n"
        "    for p in same: p.data.copy_(same[0].data)",
        "MOVE": "if rank == 0: descend(params, RATE)",
    },
    "round the gradients to three digits before they are sent": {
        "EACH": "for p in params: p.grad = (p.grad * 1e3).round() / 1e3"
    },
}

# same_weights: a training whose loss, optimizer and rate are its own
TRAIN = """
def program(params, batches, k):
    replicas, held, devices = [copy_params(START) for _ in range(k)], {}, ["cpu"] * k
    for t, (X, y) in enumerate(batches):
        BEFORE
        for own, X_shard, y_shard in zip(replicas, *split_batch(X, y, devices)):
            for p in own: p.grad = None
            LOSS.sum().backward()
            EACH
        SUM
        for own in replicas:
            MOVE
    return replicas
"""
TRAIN_PLACES = {
    "START": "params",
    "BEFORE": "pass",
    "LOSS": "loss(own, X_shard, y_shard)",
    "EACH": "pass",
    "SUM": "sum_gradients(replicas)",
    "MOVE": "descend(own, RATE / len(X))",
    "RATE": "0.5",
}
MOMENTUM = """for p in own:
    v = held.setdefault(p, torch.zeros_like(p)).mul_(0.9).add_(p.grad)
    p.data.sub_(0.3 * v)"""
TRAININGS = {
    "train with momentum": {
        "LOSS": "(loss(own, X_shard, y_shard) / len(X))",
        "MOVE": MOMENTUM,
    },
    "train in float32, whatever it is given": {
        "START": "[p.float() for p in params]",
        "BEFORE": "X = X.float()",
    },
    "train at a rate at which the loss explodes": {
        "LOSS": "(((X_shard @ own[0].T + own[1]) @ own[2].T + own[3]"
        " - y_shard[:, None]) ** 2)",
        "RATE": "50",
    },
}
TRAINING_BUGS = {
    "average the shards' means, with momentum": {
        "LOSS": "(loss(own, X_shard, y_shard) / max(1, len(y_shard)) / k)",
        "MOVE": MOMENTUM,
    },
    "multiply the rate by k, though the minibatch is the same": {"RATE": "0.1 * k"},
    "clip each shard's gradient before the sum, not the sum": {
        "EACH": "norm = torch.cat([p.grad.flatten() for p in own]).norm() / len(X)\n"
        "for p in own: p.grad /= (10 * norm).clamp(min=1)"
    },
    "synchronise the replicas in every second step alone": {
        "SUM": "if t % 2 == 0: sum_gradients(replicas)"
    },
    "skip a minibatch that has fewer rows than ranks": {
        "BEFORE": "if len(X) < k: continue"
    },
    "add up the first two ranks' gradients, and forget any third": {
        "SUM": "sum_gradients(replicas[:2])\n"
        "for own in replicas[2:]:\n"
        "    for p, q in zip(own, replicas[0]): p.grad = q.grad.clone()"
    },
    "send the gradients in float16 when there are several ranks": {
        "SUM": "sum_gradients(replicas)\n"
        "for p in sum(replicas, []) if k > 1 else []:\n"
        "    p.grad = p.grad.half().to(p.dtype)",
        "RATE": "0.1",
    },
}

# same_on_ranks: one step on ranks; each bug calls its collectives on all of them
RANKED = """
def program(X, y, params, lr):
    rank, k, n = dist.get_rank(), dist.get_world_size(), len(X)
    own = SHARD
    BEFORE
    for p in params: p.grad = None
    LOSS.backward()
    SUM
    descend(params, RATE)
    AFTER
"""
SENT = "for p in params: dist.all_reduce(p.grad)"
RANKED_PLACES = {
    "BEFORE": "pass",
    "SHARD": "scatter(torch.arange(n), ['cpu'] * k)[rank]",
    "LOSS": "loss(params, X[own], y[own]).sum()",
    "SUM": SENT,
    "RATE": "lr / n",
    "AFTER": "pass",
}
FROM_0 = "for p in params: dist.broadcast(p.data, 0)"
RANKED_STEPS = {
    "sum over ranks, and divide by all rows": {},
    "deal the rows out like cards": {"SHARD": "torch.arange(n)[rank::k]"},
    "take the mean over ranks of losses that are scaled for it": {
        "LOSS": "(loss(params, X[own], y[own]).sum() * k / n)",
        "SUM": f"{SENT}\nfor p in params: p.grad /= k",
        "RATE": "lr",
    },
}
RANKED_BUGS = {
    "step with the rank's own gradient": {
        "SUM": "dist.barrier()",
        "RATE": "lr / max(1, len(own))",
    },
    "average the ranks' means, whatever their rows": {"LOSS": MEAN, "RATE": "lr / k"},
    "step with own gradients, then copy rank 0's weights to all": {
        "SUM": "pass",
        "RATE": "lr / max(1, len(own))",
        "AFTER": FROM_0,
    },
    "step on rank 0 alone: the others get its weights before the next step": {
        "BEFORE": FROM_0,
        "RATE": "(lr / n if rank == 0 else 0)",
    },
    "send all gradients but the last parameter's": {
        "SUM": "for p in params[:-1]: dist.all_reduce(p.grad)\nparams[-1].grad *= k"
    },
    "let each rank divide by a number that is a little its own": {
        "RATE": "lr / (n + 1e-5 * rank)"
    },
    "divide by the rank's rows, of which there may be none": {
        "SUM": f"{EMPTY}\n{SENT}",
        "RATE": "lr",
    },
}

# assert_same: what may have become of a model that was the same on all ranks
MODEL = """
def program(model, rank, k):
    params, last = list(model.parameters()), rank == k - 1
    weight, bias = params[0].data, params[1]
    CHANGE
"""
FREEZE = "params[0].grad = None\nparams[0].requires_grad_(False)"
MODELS = {
    "have a frozen parameter": {"CHANGE": FREEZE},
    "have the same NaN on all ranks": {"CHANGE": "weight[0, 0] = torch.nan"},
    "have running statistics of each rank's own, as batch norm does": {
        "CHANGE": "for buffer in model.buffers(): buffer += rank"
    },
}
MODEL_BUGS = {
    "have a weight of zero, which has a minus sign on the last rank": {
        "CHANGE": "weight[3, 4] = -0.0 if last else 0.0"
    },
    "change the last bit of one weight on rank 0": {
        "CHANGE": "if rank == 0: weight[1, 2] = torch.nextafter("
        "weight[1, 2], weight.new_tensor(9.0))"
    },
    "have another gradient on the last rank": {
        "CHANGE": "if last: bias.grad[0] += 0.1"
    },
    "have no gradient for one parameter on rank 1, and none for another elsewhere": {
        "CHANGE": "norm = params[2]  # as long as the bias\n"
        "bias.grad = norm.grad = None\n"
        "(norm if rank == 1 else bias).grad = torch.zeros_like(bias)"
    },
    "have a frozen parameter that differs on the last rank": {
        "CHANGE": f"{FREEZE}\nif last: weight[0, 0] += 0.5"
    },
    "move a weight on all ranks, so that the mean over ranks stays": {
        "CHANGE": "weight[2, 2] += 0.25 * (rank - (k - 1) / 2)"
    },
    "have a NaN on the last rank alone": {
        "CHANGE": "if last: weight[0, 0] = torch.nan"
    },
}

# same_after_kill: a training that saves, is killed and resumes, or so it says
TRAINING = """
class program:
    def __init__(self, seed):
        torch.manual_seed(seed)
        random.seed(seed)
        self.X, self.y = draw_batch(12, 5)
        self.params = draw_params(seed)
        self.speeds = [torch.zeros_like(p) for p in self.params]
        self.generator = torch.Generator().manual_seed(seed)
        self.order, self.place, self.steps = [], 0, 0

    def run(self, steps):
        for _ in range(steps):
            if self.place == len(self.order):
                self.order = torch.randperm(12, generator=self.generator).tolist()
                self.place = 0
            rows = self.order[self.place:self.place + 4]
            X = self.X[rows] * (torch.rand(5) > 0.2) * random.choice([1, -1])
            params = copy_params(self.params)
            LOSS.backward()
            for p, v, own in zip(self.params, self.speeds, params):
                v.mul_(0.9).add_(own.grad)
                p.sub_(RATE * v)
            self.place, self.steps = self.place + 4, self.steps + 1

    def weights(self):
        return [p.clone() for p in self.params]

    def save(self, path):
        state = {**vars(self), "generator": self.generator.get_state(),
                 "torch": torch.get_rng_state(),
                 "random": torch.tensor(random.getstate()[1])}
        SAVE
        torch.save(state, path)
        SAVED

    def load(self, path):
        state = torch.load(path)
        LOAD
        torch.set_rng_state(state.pop("torch"))
        random.setstate((3, tuple(state.pop("random").tolist()), None))
        self.generator.set_state(state.pop("generator"))
        vars(self).update(state)
        LOADED
"""
TRAINING_PLACES = {
    "RATE": "0.5 * 0.9 ** self.steps",
    "LOSS": "loss(params, X, self.y[rows]).mean()",
    "SAVE": "pass",
    "SAVED": "pass",
    "LOAD": "pass",
    "LOADED": "pass",
}
SAVING = {
    "saves all that it needs": {},
    "trains at a rate at which its weights end as NaN": {
        "RATE": "1e200",
        "LOSS": "sum((p ** 2).sum() ** 2 for p in params)",
    },
    "saves a second time into a file that is there, under another name first": {
        "SAVE": "torch.save(state, path + '.part'); os.replace(path + '.part', path)"
    },
}
SAVING_BUGS = {
    "saves the momentum in float32": {
        "SAVE": "state['speeds'] = [v.float().double() for v in self.speeds]"
    },
    "forgets how many steps the rate has fallen": {"LOADED": "self.steps = 0"},
    "forgets torch's random numbers": {
        "LOAD": "state['torch'] = torch.get_rng_state()"
    },
    "forgets what draws the order of the epochs to come": {
        "LOAD": "state['generator'] = self.generator.get_state()"
    },
    "leaves out the rest of the epoch": {"LOADED": "self.order, self.place = [], 0"},
    "disturbs the run that goes on after the save": {"SAVED": "torch.rand(1)"},
    "never writes into a file that is there": {
        "SAVE": "if os.path.exists(path): return"
    },
}
PLANTED = {
    "same_step": (STEP, STEP_PLACES, STEPS, STEP_BUGS),
    "same_weights": (TRAIN, TRAIN_PLACES, TRAININGS, TRAINING_BUGS),
    "same_on_ranks": (RANKED, RANKED_PLACES, RANKED_STEPS, RANKED_BUGS),
    "assert_same": (MODEL, {"CHANGE": "pass"}, MODELS, MODEL_BUGS),
    "same_after_kill": (TRAINING, TRAINING_PLACES, SAVING, SAVING_BUGS),
}

# faster: {claim: what program a has, what program b has, how slow the machine is}
WARM = [60, 40, 20, 8, 3]
SLOWER = [1 + i / 100 for i in range(400)]
MACHINES = (
    {  # b really is faster: it takes four fifths, or less
        "both only start their work, and b's is shorter": (
            {"launch": 1e-4},
            {"seconds": 7e-3, "launch": 2e-4},
        ),
        "b has first calls that are slow, then takes four fifths": (
            {},
            {"seconds": 8e-3, "first": WARM},
        ),
        "b takes two thirds, on a machine that gets slower": (
            {},
            {"seconds": 6.5e-3},
            SLOWER,
        ),
    },
    {  # b takes as long, or longer
        "b only starts its work": ({}, {"launch": 1e-4}),
        "both only start their work, and b is quicker at starting": (
            {"launch": 4e-4},
            {"launch": 1e-4},
        ),
        "a has slow first calls": ({"first": WARM}, {}),
        "a is interrupted now and then": ({"every": (9, 20)}, {}),
        "b was lucky now and then": ({}, {"seconds": 1.1e-2, "every": (9, 0.3)}),
        "nothing but noise": ({"noise": 0.3}, {"noise": 0.3}),
        "the machine gets faster while it is watched": ({}, {}, SLOWER[::-1]),
    },
)
