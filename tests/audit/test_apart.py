"""What is each rank's own by design is left out; what only looks so is not."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit.apart import _hands_nothing_back, layout, stages
from manual_dp.audit.records import Run, Step
from tests.support import scripted
from tests.support.broken_training import mean_loss
from tests.support.scripted import report_on

OWN = "not checked"


class Sum(torch.autograd.Function):
    """Sum over ranks what goes forward, or the gradient that comes back."""

    @staticmethod
    def forward(ctx, x, forward):
        ctx.forward, x = forward, x.clone()
        dist.all_reduce(x) if forward else None
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        None if ctx.forward else dist.all_reduce(grad)
        return grad, None


class Trade(torch.autograd.Function):
    """Send the i-th part to rank i, and get the ranks' parts for this one."""

    @staticmethod
    def forward(ctx, x):
        came = torch.empty_like(x)
        dist.all_to_all_single(came, x.contiguous())
        return came

    @staticmethod
    def backward(ctx, grad):
        return Trade.apply(grad)


class Gathered(Trade):
    """Do the same with an all-gather."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.stack([part[dist.get_rank()] for part in parts])

    @staticmethod
    def backward(ctx, grad):
        return Gathered.apply(grad)


class Slices(nn.Module):
    """Have a slice of two layers on each rank, and all of the others."""

    def __init__(self, sums=True):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 5), nn.Linear(5, 8, bias=False)
        self.last, self.sums = nn.Linear(8, 3), sums

    def forward(self, x):
        x = self.norm(self.first(x))
        mine = Sum.apply(x, False) if self.sums else x
        for _ in range(20):  # as large sums as of gradients
            x = x + Sum.apply(self.down(self.up(mine).relu()), True)
        return self.last(x)


class Experts(nn.Module):
    """Send every row to the expert of each rank."""

    def __init__(self, trade=Trade):
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(8, 3)
        self.expert, self.trade = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), trade

    def forward(self, x):
        x = self.first(x).relu()
        out = self.trade.apply(self.expert(self.trade.apply(torch.stack([x, x]))))
        return self.last(x + (self.gate(x).softmax(1).T[..., None] * out).sum(0))


def own(module):
    """Draw other weights on every rank."""
    torch.manual_seed(7 + dist.get_rank())
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()


def batches(part):
    draws = torch.Generator().manual_seed(0)
    for _ in range(4):
        X, y = torch.randn(12, 6, generator=draws), torch.randint(3, (12,), generator=draws)
        yield (X[dist.get_rank()::2], y[dist.get_rank()::2]) if part else (X, y)


def training(model, part=True, after=lambda model: None):
    """Yield what was made, then train."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    yield model, optimizer
    for X, y in batches(part):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        after(model)
        optimizer.step()


def average(model, but="none"):
    for name, p in model.named_parameters():
        if not name.startswith(but):
            dist.all_reduce(p.grad)
            p.grad /= 2


def scaled():
    """Take the mean over ranks of what the experts sum up, too."""
    model = Experts()
    own(model.expert)

    def change(model):
        average(model, "expert")
        for p in model.expert.parameters():
            p.grad /= 2
    return training(model, after=change)


def slices():
    model = Slices()
    own(model.up), own(model.down)
    return training(model, part=False)


def told_ddp(trade=Gathered):
    model = Experts(trade)
    own(model.expert)
    names = [name for name, _ in model.named_parameters() if name.startswith("expert")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    return training(DistributedDataParallel(model))


def by_hand(but="expert"):
    model = Experts()
    own(model.expert)
    return training(model, after=lambda model: average(model, but))


RIGHT = [(scaled, "all_to_all"), (slices, "tensor parallelism"), (by_hand, "all_to_all"),
         (told_ddp, "DDP was told"), (lambda: told_ddp(Trade), "DDP was told")]


@pytest.mark.parametrize("script, why", RIGHT)
def test_parts_of_each_ranks_own_are_no_mistake(script, why):
    (codes, words, _), _ = report_on(script)
    assert codes == [] and why in " ".join(words.split())
    assert "not checked" in words and " first" not in words
    assert "all-reduced" not in words  # what forwards sum are no gradients


def late_layer():
    """Add a layer once the model is wrapped: nobody sends it."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU()))
    torch.manual_seed(dist.get_rank())
    model.module.append(nn.Linear(8, 3))
    return training(model)


def own_weights():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    own(model[2])
    return training(model, after=average)


def own_weights_and_rows():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    own(model[0])
    return training(model, part=False, after=average)


def no_sum_on_the_way_back():
    model = Slices(sums=False)
    own(model.up), own(model.down)
    return training(model, part=False)


def clipped_slices():
    """Clip by the norm of a rank's slices: what all hold is clipped otherwise."""
    model = Slices()
    own(model.up), own(model.down)
    return training(model, part=False, after=lambda model: (
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)))


def left_alone_by_mistake():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["2.weight"])
    return training(DistributedDataParallel(model))


def gate_of_each_rank():
    """Send all gradients but the experts', and nobody's weights."""
    model = Experts()
    own(model)
    return training(model, after=lambda model: average(model, "expert"))


WRONG = [
    (gate_of_each_rank, {"start-differs"}),
    (late_layer, {"start-differs"}), (own_weights, {"start-differs"}),
    (own_weights_and_rows, {"start-differs", "rows-same"}),
    (no_sum_on_the_way_back, {"not-synchronised"}), (clipped_slices, {"replicas-differ"}),
    (left_alone_by_mistake, {"not-synchronised"}),
    (lambda: by_hand(("expert", "gate")), {"not-synchronised", "replicas-differ"})]


def test_what_all_hold_is_named_where_slices_do_not_sum_its_gradient():
    (_, words, _), _ = report_on(no_sum_on_the_way_back)
    assert "first.weight is" in words and "not checked       norm.bias, up.weight" in words


def zero_slices():
    """Begin with biases of 0, each of its own slice."""
    made = slices()
    model, optimizer = next(made)
    nn.init.zeros_(model.up.bias)
    yield model, optimizer
    yield from made


def test_slices_of_zeros_are_slices():
    (codes, words, _), _ = report_on(zero_slices)
    assert codes == [] and "up.weight, up.bias, down.weight: each" in words


@pytest.mark.parametrize("script, codes", WRONG)
def test_what_ranks_should_have_in_common_is_judged(script, codes):
    (found, words, _), _ = report_on(script)
    assert codes & {*found}, words


def pipeline():
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU()) if rank == 0 else nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    yield model, optimizer
    for X, y in batches(part=False):
        optimizer.zero_grad()
        between = torch.empty(12, 8)
        if rank == 0:
            out = model(X)
            dist.send(out.detach(), 1)
            dist.recv(between, 1)
            out.backward(between)
        else:
            dist.recv(between, 0)
            F.cross_entropy(model(between.requires_grad_()), y).backward()
            dist.send(between.grad, 0)
        optimizer.step()


def test_stages_are_not_judged(capfd):
    (codes, words, _), _ = report_on(pipeline)
    assert codes is None is words
    said = capfd.readouterr().err
    assert said.count("rank 1's model has other parameters than rank 0's") == 1


def test_stages_are_told_from_one_model():
    one, same, other = ({"shapes": layout(Run(["a", "b"], [(2, 3), shape], []))}
                        for shape in ((4,), (4,), (5,)))
    assert stages({0: one, 1: same}) == "" == stages({}) == stages({0: one, 1: {}})
    assert stages({0: one, 1: same, 2: other}).startswith(
        "rank 2's model has other parameters than rank 0's (2 and 2)")


@pytest.mark.parametrize("given, said", [
    (lambda y_hat: y_hat, True), (lambda y_hat: y_hat.detach(), False)])
def test_a_gather_of_what_wants_a_gradient_is_said_to_hand_none_back(given, said):
    def going():
        model, optimizer = scripted.ddp()
        yield model, optimizer
        for X, y in scripted.batches():
            optimizer.zero_grad()
            parts = [torch.empty(len(X), 2) for _ in range(2)]
            dist.all_gather(parts, given(model(X)[:, :2].contiguous()))
            mean_loss(model, X, y).backward()
            optimizer.step()
    codes, text, _ = report_on(going)[0]
    assert ("dist.all_gather hands no gradient back" in " ".join(text.split())) == said


@pytest.mark.parametrize("name, gathered", [("all_gather", True), ("all_reduce", False)])
@pytest.mark.parametrize("named", [True, False])
def test_what_hands_no_gradient_back_is_noted_before_backward(
        name, gathered, named, monkeypatch):
    monkeypatch.setattr(dist, name, lambda *args, **kwargs: "done")

    def noted(wants, came=(), **changes):
        watch = SimpleNamespace(note=Step(0, **changes), came=came)
        x = torch.ones(2, requires_grad=wants)
        first = () if name == "all_reduce" else ([x, x],)
        with _hands_nothing_back(name, watch):
            done = getattr(dist, name)(*first, tensor=x) if named else getattr(
                dist, name)(*first, x)
        assert done == "done"
        return watch.note.gathered, watch.note.cut
    assert noted(True) == (gathered, f"dist.{name}") and noted(False) == (False, "")
    # a loss that is to be printed
    assert noted(True, [0]) == noted(True, updates=1) == (gathered, "")
    with torch.no_grad():
        assert noted(True) == (False, "")
