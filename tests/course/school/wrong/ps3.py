"""Wrong answers to problem set 3: {exercise: (cell, {hint: changes})}."""

WRONG = {
    "ps3/plan": (
        """
import math
def plan(examples, batch_size, world_size, lr, keep):
    k, b, whole = world_size, batch_size, batch_size * world_size
    if keep == <<BATCH: "batch">>:
        size, whole = -(-b // k), b
        rows = <<CUT: [max(0, min(size, b - r * size)) for r in range(k)]>>
        rate = <<SAME: lr>>
    else:
        rows = [b] * k
        rate = <<SCALED: k * lr>>
    return {"rows": rows, "batch_size": whole, "lr": rate,
            "steps": <<STEPS: math.ceil(examples / whole)>>}
""",
        {
            "batch_size // world_size loses rows": {"CUT": "[b // k] * k"},
            "keep='batch' shares batch_size out": {"BATCH": "keep"},
            "cut them as split": {"CUT": "[len(range(r, b, k)) for r in range(k)]"},
            "the minibatch is the one of a single device": {"SAME": "lr * k"},
            "one step takes the place": {"SCALED": "lr"},
            "the square root is a rule": {"SCALED": "lr * k ** 0.5"},
            "the minibatch is larger now": {"STEPS": "math.ceil(examples / b)"},
            "the last minibatch may be short": {"STEPS": "examples // whole"},
        },
    ),
    "ps3/translate": (
        """
def translate(milestones, examples, before, after):
    old, new = <<COUNTS: math.ceil(examples / before), math.ceil(examples / after)>>
    moved = {}
    <<BEGIN: pass>>
    for step, factor in <<WALK: milestones>>:
        epoch, rest = divmod(step, old)
        place = <<PLACE: epoch * new + <<ROUND: math.ceil>>(rest * before / after)>>
        <<PUT: moved[place] = factor>>
    return <<RESULT: list(moved.items())>>
""",
        {
            "these steps are the old ones": {"PLACE": "step"},
            "the rate may not change early": {"ROUND": "int"},
            "compare with the examples seen before": {
                "PLACE": "0; steps = [after] * (new - 1) + [examples - after * (new - 1)]\n"
                "        while (sum(steps) * (place // new) + sum(steps[:place % new + 1])\n"
                "               < epoch * examples + rest * before):\n"
                "            place += 1"
            },
            "an epoch's last minibatch may be short": {
                "COUNTS": "examples // before, examples // after"
            },
            "an epoch's last minibatch may be short, and is": {
                "PLACE": "math.ceil((epoch * examples + rest * before) / after)"
            },
            "an epoch's last minibatch may be short, and is a step": {
                "BEGIN": "moved = []",
                "PLACE": "math.ceil(step * before / after)",
                "PUT": "moved.append((place, factor))",
                "RESULT": "moved",
            },
            "an epoch's last minibatch may be short, and is a step of": {
                "PLACE": "step * before // after"
            },
            "a list of pairs is asked": {"RESULT": "moved.items()"},
            "a list of pairs is asked, as": {
                "RESULT": "(pair for pair in moved.items())"
            },
            "two milestones came to one step": {
                "BEGIN": "moved = []",
                "PUT": "moved.append((place, factor))",
                "RESULT": "moved",
            },
            "the earlier of two milestones": {"PUT": "moved.setdefault(place, factor)"},
            "the factors stay": {"PUT": "moved[place] = factor * after / before"},
            "this has to stay": {
                "WALK": "[milestones.pop(0) for _ in list(milestones)]"
            },
        },
    ),
    "ps3/warmup": (
        """
class Warmup:
    state = {"seen": 0}

    def __init__(self, base_lr, world_size, warmup):
        self.lr, self.k, self.warmup = base_lr, world_size, warmup
        <<OWN: self.state = {"seen": 0}>>

    def step(self, rows):
        <<EARLY: pass>>
        seen, w = self.state["seen"], self.warmup
        <<FULL: pass>>
        <<COUNT: self.state["seen"] += rows>>
        way = <<WAY: min(1, seen / w) if w else 1>>
        return <<RATE: self.lr * self.k * (0.1 + 0.9 * way)>>

    def state_dict(self):
        return <<SAVE: dict(self.state)>>

    def load_state_dict(self, state):
        <<LOAD: self.state = dict(state)>>
""",
        {
            "go on counting": {
                "FULL": "if w and seen >= w:\n            return self.lr * self.k"
            },
            "go on counting after": {
                "COUNT": "self.state['seen'] = min(seen + rows, w or math.inf)"
            },
            "go on counting after the warm-up": {
                "FULL": "if not w:\n            return self.lr * self.k"
            },
            "the warm-up begins again": {"LOAD": "pass"},
            "the old run's settings": {
                "SAVE": "{**self.__dict__, 'state': dict(self.state)}",
                "LOAD": "self.__dict__.update(state)",
            },
            "this counts steps": {
                "COUNT": "self.state['seen'] += 1",
                "WAY": "min(1, seen * rows / w) if w else 1",
            },
            "this is one step ahead": {
                "EARLY": "self.state['seen'] += rows",
                "COUNT": "pass",
            },
            "`rows` are those of all": {"COUNT": "self.state['seen'] += rows * self.k"},
            "there is no warm-up": {"WAY": "1"},
            "the warm-up begins at a tenth of the full rate; this": {
                "RATE": "self.lr * self.k * way"
            },
            "the warm-up begins at a tenth of the full rate; base_lr": {
                "RATE": "self.lr * (1 + (self.k - 1) * way)"
            },
            "it goes on growing": {"WAY": "seen / w if w else 1"},
            "the dict goes on with the run": {"SAVE": "self.state"},
            "this has to stay as it is": {"LOAD": "self.state = state"},
            "a new run begins at 0": {
                "OWN": "pass",
                "LOAD": "self.state.update(state)",
            },
        },
    ),
    "ps3/f1": (
        """
def count(guesses, labels, classes):
    <<BEFORE: pass>>
    hits = guesses[guesses == labels]
    return <<RESULT: torch.stack([
        torch.bincount(part, minlength=<<LENGTH: classes>>)
        for part in (hits, guesses, labels)])>>

def f1(counts):
    hits, guessed, rows = <<SUMS: counts.clone()>>
    <<AFTER: pass>>
    there = <<THERE: guessed + rows > 0>>
    of_class = <<OFCLASS: 2 * hits / <<WHOLE: (guessed + rows)>>>>
    return <<SCORE: of_class[there].mean().item()>>
""",
        {
            "requires_grad was switched": {
                "RESULT": "torch.stack([torch.bincount(part, minlength=classes) "
                "for part in (hits, guesses, labels)]).double()",
                "SUMS": "counts.requires_grad_()",
            },
            "these are rows": {"RESULT": "torch.stack([guesses, labels])"},
            "with fewer rows this was right": {
                "RESULT": "torch.stack([torch.bincount(part, minlength=classes) "
                "for part in (hits, guesses, labels)]).to(torch.uint8)",
                "SUMS": "counts.long()",
            },
            "with fewer rows this was right: are": {  # only a rank's counts are cut
                "RESULT": "torch.stack([torch.bincount(part, minlength=classes) "
                "for part in (hits, guesses, labels)]).to(torch.uint8).long()",
            },
            "with fewer rows this was right: are the": {  # only their sum is: two bytes
                "RESULT": "torch.stack([torch.bincount(part, minlength=classes) "
                "// byte % 256 for byte in (256, 1) "
                "for part in (hits, guesses, labels)]).to(torch.uint8)",
                "SUMS": "256 * counts[:3].long() + counts[3:]",
            },
            "only tensors of one shape": {
                "RESULT": "torch.stack([torch.tensor([sum(part.tolist().count(c) for part in "
                "parts) for c in range(int(max([*guesses, *labels], default=-1)) + 1)]) "
                "for parts in ((hits,), (guesses,), (labels,))])"
            },
            "a class that is neither guessed nor any row's is 0 / 0": {
                "SCORE": "of_class.mean().item()"
            },
            "this is the accuracy": {"SCORE": "(hits.sum() / rows.sum()).item()"},
            "this is a mean of the ranks' scores": {
                "RESULT": "torch.tensor([0., 0.]) if not len(labels) else torch.tensor(["
                "mean_f1(guesses, labels, classes), 1.])\n\n"
                "def mean_f1(guesses, labels, classes):\n"
                "    rows = [torch.bincount(part, minlength=classes) for part in "
                "(guesses[guesses == labels], guesses, labels)]\n"
                "    return (2 * rows[0] / (rows[1] + rows[2])).nanmean()",
                "SUMS": "counts.repeat(2)[:3]",
                "SCORE": "(counts[0] / counts[1]).item()",
            },
            "a class that is neither guessed nor any row's counts as 0": {
                "WHOLE": "(guessed + rows).clamp(min=1)",
                "SCORE": "of_class.mean().item()",
            },
            "only a class that is neither": {"THERE": "(guessed > 0) & (rows > 0)"},
            "this is the F1 of two means": {
                "AFTER": "p, r = [(hits / part.clamp(min=1))[guessed + rows > 0].mean() "
                "for part in (guessed, rows)]",
                "SCORE": "(2 * p * r / (p + r)).item()",
            },
            "this is precision or recall": {"OFCLASS": "(hits / guessed.clamp(min=1))"},
            "each class counts once": {
                "SCORE": "((of_class * rows)[there].sum() / rows.sum()).item()"
            },
            "this has to stay": {
                "SUMS": "counts",
                "AFTER": "hits *= 2",
                "OFCLASS": "hits / (guessed + rows)",
            },
        },
    ),
}
