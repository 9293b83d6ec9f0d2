"""Who calls whom while a wrapper like DDP trains: pictures, from top to bottom.

plan     a step with a wrapper that averages when backward is done
record   run a program with such a wrapper on this rank; note who was called
draw     a row for each call; columns for the loop, autograd, the wrapper, gradients
"""

from collections import namedtuple

from course.lab.figures.plot import INK
from course.lab.figures.svg import SOFT, Card

Call = namedtuple(
    "Call", "loop autograd wrapper grad armed", defaults=["", 0]
)

LEFT, ROW = (14, 106, 238, 400), 28  # pixels
BLUE, ORANGE = "#c5d5ea", "#f6dcc0"


def plan(ready):
    """Draw one step; ready: what autograd says of each gradient, in its order."""
    asks, *others = ready
    calls = [
        Call("DDP(net)", "", "sends rank 0's weights to all"),
        Call("forward", "", "calls the net"),
        Call("backward", asks, "hook: asks for finish"),
        *(Call("", words, "hook") for words in others),
        Call("", "all are ready", "finish: pack, sum, mean, unpack"),
        Call("step", "", ""),
    ]
    return draw("A step with a wrapper: who calls whom", calls)


def record(wrap, program, net, X):
    """Return the calls of a program with `wrap(net)`, in order.

    wrap: a class with forward, hook, finish and `armed`. program: a function of the
    model and the rows X. net: the network that is wrapped; it has one weight.
    """
    calls, counts = [], {"forward": 0, "backward": 0}

    def note(loop, autograd, wrapper):
        if loop:
            counts[loop] += 1
            loop = f"{loop} {counts[loop]}"
        grad = net.weight.grad
        grad = "none" if grad is None else f"{grad.item():g}"
        calls.append(Call(loop, autograd, wrapper, grad, int(model.armed)))

    class Noted(wrap):
        def forward(self, *args):
            before = self.armed
            output = super().forward(*args)
            note("forward", "", "is armed" if before else "arms itself")
            return output

        def hook(self, p):
            before = self.queued
            super().hook(p)
            does = (
                "asks for finish" if self.queued > before else "does nothing"
            )
            note("backward", "weight is ready", f"hook: {does}")

        def finish(self):
            super().finish()
            note("", "all are ready", "finish, disarmed")

    model = Noted(net)
    program(model, X)
    return calls


def draw(title, *ranks):
    """Draw the calls of rank 0, and beside each the gradient that each rank then holds.

    What lies inside a backward is blue; orange is the time in which a wrapper is armed.
    """
    calls = ranks[0]
    card = Card(38 + ROW * len(calls), title)
    heads = ["your loop", "autograd", "the wrapper"]
    heads += ["gradients"] if calls[0].grad else []
    for left, head in zip(LEFT, heads):
        card.text(head, left, 16, 13, INK, "start", font_weight="bold")
    for i, call in enumerate(calls):
        top, middle = 32 + ROW * i, 32 + ROW * (i + 0.5)
        if call.autograd:  # touch the box above, if it is of this backward
            gap = 3 if call.loop else -1
            card.box(LEFT[0] - 8, top + gap, 86, ROW - gap, colour=BLUE, rx=0)
        if call.armed:
            card.box(LEFT[2] - 6, top - 1, 152, ROW + 1, colour=ORANGE, rx=0)
        for left, words in zip(LEFT[1:], call[1:3]):
            if words:
                card.arrow((left - 20, middle), (left - 6, middle), SOFT, 1.4)
        texts = *call[:3], ", ".join(rank[i].grad for rank in ranks)
        for left, words in zip(LEFT, texts):
            card.text(words, left, middle, 12, INK, "start")
    return card.picture()
