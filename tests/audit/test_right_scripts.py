"""Right scripts of many kinds are watched to their end, and none is accused."""

import contextlib
import io
import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit import watch
from manual_dp.ranks import run_ranks
from tests.support.broken_training import average, mean_loss, net, sgd
from tests.support.scripted import (
    IMAGES,
    LABELS,
    batches,
    ddp,
    nothing,
    report_on,
    train,
)


def changed(change, before=nothing):
    """Return a script that changes gradients after backward, on all ranks alike."""
    def script():
        model, optimizer = ddp()
        yield model, optimizer
        train(model, optimizer, batches(), change, before)
    return script


def add_noise(model, t):
    fixed = torch.Generator().manual_seed(t)
    for p in model.parameters():
        p.grad += 0.1 * torch.randn(p.shape, generator=fixed)


def limit_first_layer(model, t):
    next(model.parameters()).grad.mul_(0.3)


def leave_first_layer(model, t):
    next(model.parameters()).grad = None


def backward_for_inputs(model, optimizer):
    mean_loss(model, IMAGES[:4], LABELS[:4]).backward()


def by_turns():
    model = DistributedDataParallel(net())
    optimizers = [torch.optim.SGD(layer.parameters(), 0.1)
                  for layer in (model.module[0], model.module[2])]
    yield (model,)  # the command knows no optimizer before its first step
    for optimizer, (X, y) in zip(itertools.cycle(optimizers), batches()):
        for one in optimizers:
            one.zero_grad()
        mean_loss(model, X, y).backward()
        optimizer.step()


def drawn_with_replacement():
    model, optimizer = ddp()
    yield model, optimizer
    fixed = torch.Generator().manual_seed(0)
    for _ in range(4):
        mine = torch.randint(6, (2, 8), generator=fixed)[dist.get_rank()]
        train(model, optimizer, [(IMAGES[mine], LABELS[mine])])


class Agent(nn.Module):
    """Be called by other names than forward, as in reinforcement learning."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def loss(self, X, y):
        return mean_loss(self.net, X, y)


def by_methods(divisor):
    def script():
        agent = Agent()
        optimizer = torch.optim.SGD(agent.parameters(), 0.1)
        yield agent, optimizer
        for X, y in batches():
            optimizer.zero_grad()
            agent.loss(X, y).backward()
            for p in agent.parameters():
                dist.all_reduce(p.grad)
                p.grad /= divisor
            optimizer.step()
    return script


def test_steps_of_a_model_whose_methods_are_called_are_steps():
    [(codes, report, _), _] = report_on(by_methods(2))
    assert codes == [] and report.startswith("audit: 3 steps on 2 ranks")
    assert "in a step of" not in report and "ended after" not in report
    [(codes, *_), _] = report_on(by_methods(1))
    assert codes == ["sum"]


def lbfgs():
    model = DistributedDataParallel(net())
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=3)
    yield model, optimizer
    for X, y in batches():
        def closure():
            optimizer.zero_grad()
            loss = mean_loss(model, X, y)  # noqa: B023 (called in this turn)
            loss.backward()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            return mean / 2
        optimizer.step(closure)


def compiled():
    model = DistributedDataParallel(torch.compile(net(), backend="aot_eager",
                                                  fullgraph=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    yield model, optimizer
    train(model, optimizer, batches())


def fully_sharded():
    model = fully_shard(net(), mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    yield model, optimizer
    train(model, optimizer, batches())


class Wrapped(torch.optim.Optimizer):
    """Hold another optimizer's groups, and let it take the steps, as SAM does."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.inner = torch.optim.SGD(self.param_groups, 0.1)
        self.param_groups = self.inner.param_groups

    def take(self):
        self.inner.step()


def wrapped_optimizer():
    model = DistributedDataParallel(net())
    optimizer = Wrapped(model.parameters())
    yield model, optimizer
    for X, y in batches():
        optimizer.zero_grad()
        mean_loss(model, X, y).backward()
        optimizer.take()


def copied_from_masters():
    """Apply a part of the weights on each rank, in a copy; then put them together."""
    model = DistributedDataParallel(net())
    flat = F.pad(nn.utils.parameters_to_vector(model.parameters()).detach(), (0, 1))
    master = nn.Parameter(flat.chunk(2)[dist.get_rank()].clone())
    optimizer = torch.optim.Adam([master], 0.01)
    yield model, optimizer
    for X, y in batches():
        model.zero_grad()
        mean_loss(model, X, y).backward()
        grads = torch.cat([p.grad.flatten() for p in model.parameters()] + [X[0, :1]])
        master.grad = grads.chunk(2)[dist.get_rank()].clone()
        optimizer.step()
        parts = [torch.empty_like(part) for part in flat.chunk(2)]
        dist.all_gather(parts, master.detach())
        nn.utils.vector_to_parameters(torch.cat(parts)[:-1], model.parameters())


def copied_from_masters_by_itself():
    """Step masters of which the watch has not been told, and copy them."""
    model = DistributedDataParallel(net())
    yield (model,)
    masters = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, 0.1)
    for X, y in batches():
        model.zero_grad()
        mean_loss(model, X, y).backward()
        for master, p in zip(masters, model.parameters()):
            master.grad = p.grad
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters()):
                p.copy_(master)


def other_network_first():
    """Train another network before the one that is watched."""
    other, optimizer = sgd(net())
    model, its = ddp()
    yield (model,)
    train(other, optimizer, batches())
    train(model, its, batches())


def evaluated_on_training_rows():
    model, optimizer = ddp()
    yield model, optimizer
    data = TensorDataset(IMAGES[:16], LABELS[:16])
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        train(model, optimizer, loader)
        for one in loader:
            with torch.no_grad():
                mean_loss(model, *one)


def joined():
    model, optimizer = ddp()
    yield model, optimizer
    with Join([model]):
        train(model, optimizer, batches(2 if dist.get_rank() else 3))


def post_local():
    model, optimizer = ddp()
    group, _ = dist.new_subgroups(1)
    model.register_comm_hook(PostLocalSGDState(None, group, 1), post_localSGD_hook)
    yield model, optimizer
    train(model, optimizer, batches())


def gradients_on_the_way():
    """Take the gradient of a first loss by hand; its graph is in the second one's."""
    model, optimizer = sgd(net())
    yield model, optimizer
    for X, y in batches():
        optimizer.zero_grad()
        params = dict(model.named_parameters())
        grads = torch.autograd.grad(F.cross_entropy(torch.func.functional_call(
            model, params, (X,)), y), params.values(), create_graph=True)
        fast = {name: p - 0.1 * grad
                for (name, p), grad in zip(params.items(), grads)}
        for part in (slice(3), slice(3, 6)):
            (F.cross_entropy(torch.func.functional_call(model, fast, (X[part],)),
                             y[part]) / 2).backward(retain_graph=True)
        average(model)
        optimizer.step()


class Recomputed(torch.autograd.Function):
    """A layer that asks for its gradients inside of backward, as checkpoints do."""

    @staticmethod
    def forward(ctx, *args):
        ctx.args = args
        return F.linear(*args)

    @staticmethod
    def backward(ctx, grad):
        args = [one.detach().requires_grad_() for one in ctx.args[:1]] + [*ctx.args[1:]]
        with torch.enable_grad():
            return torch.autograd.grad(F.linear(*args), args, grad)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.faint = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, X):
        faint = Recomputed.apply(X, self.faint.weight, self.faint.bias)
        return self.wide(X) + 1e-5 * faint


def recomputed_in_micro_batches():
    model, optimizer = sgd(DistributedDataParallel(Branches()))
    yield model, optimizer
    for X, y in batches():
        model.zero_grad(set_to_none=False)  # what is 0 is held no longer
        for part in (slice(3), slice(3, 6)):
            with contextlib.nullcontext() if part.start else model.no_sync():
                loss = mean_loss(model, X[part], y[part]) / 2
            loss.backward()
        optimizer.step()


def by_a_method():
    model, optimizer = sgd(net())
    yield model, optimizer
    for X, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(model.forward(X), y).backward()
        average(model)
        optimizer.step()


def halves():
    """Divide the loss for two micro-batches, and clear the first one's gradient."""
    model, optimizer = ddp()
    yield model, optimizer
    for X, y in batches():
        for part in (slice(3), slice(3, 6)):
            optimizer.zero_grad()
            (mean_loss(model, X[part], y[part]) / 2).backward()
        optimizer.step()


@pytest.mark.parametrize("script", [
    changed(add_noise), changed(limit_first_layer), changed(leave_first_layer),
    changed(nothing, backward_for_inputs), by_turns,
    drawn_with_replacement, lbfgs, compiled, fully_sharded, wrapped_optimizer,
    copied_from_masters, copied_from_masters_by_itself, other_network_first,
    evaluated_on_training_rows, joined, post_local,
    gradients_on_the_way, by_a_method, recomputed_in_micro_batches])
def test_a_right_script_is_not_accused_and_ends_with_the_same_weights(script):
    watched, plain = report_on(script), report_on(script, watched=False)
    codes, said, _ = watched[0]
    assert codes == [], said
    for (*_, mine), (*_, its) in zip(watched, plain):
        assert all(map(torch.equal, mine, its))


def test_a_wrapped_optimizer_takes_steps_and_not_one_long_step():
    assert report_on(wrapped_optimizer)[0][1].startswith("audit: 3 steps")


def test_steps_of_masters_that_nobody_told_of_are_steps():
    assert report_on(copied_from_masters_by_itself)[0][1].startswith("audit: 3 steps")


@pytest.mark.parametrize("steps", [1, 4, 30])
def test_an_optimizer_of_other_tensors_is_named_though_nobody_told_of_it(steps):
    def script():
        model = net()
        optimizer = torch.optim.SGD([p.detach().clone() for p in model.parameters()], 0.1)
        model = DistributedDataParallel(model)
        yield (model,)
        train(model, optimizer, (batches() * 8)[:steps])
    codes, said, _ = report_on(script)[0]
    assert codes == ["not-in-optimizer"] and "all-reduced" not in said, said
    assert ("2 steps" if steps == 30 else "1 step") in said.partition(" on ")[0]


def test_a_gradient_that_a_layer_asks_for_in_backward_is_heard_once():
    def rank():
        going = recomputed_in_micro_batches()
        with contextlib.redirect_stdout(io.StringIO()):
            seen = watch(*next(going))
            list(going)
            seen.finish()
        return [len(note.pieces) for note in seen.run.steps]
    assert run_ranks(rank, 2) == [[2, 2, 2]] * 2


def test_rounding_in_the_scripts_precision_weighs_no_micro_batch_otherwise():
    def script():
        model, optimizer = sgd(net())
        yield model, optimizer
        for X, y in batches():
            optimizer.zero_grad()
            for part in (slice(3), slice(3, 6)):
                (mean_loss(model, X[part], y[part]) / 2).backward()
                for p in model.parameters():  # as much as rounding may come to
                    p.grad *= 1 + 5e-6
            average(model)
            optimizer.step()
    codes, said, _ = report_on(script)[0]
    assert codes == [], said


def test_cleared_gradients_are_named_where_the_loss_was_divided_for_them():
    assert report_on(halves)[0][0] == ["accumulation"]
    said = report_on(changed(nothing, backward_for_inputs))[0][1]
    assert "not checked       gradients that were cleared" in said


def equal_rows_in_one_tensor():
    """Give rows that are equal in X, as windows of a text may be, and not in y."""
    model = DistributedDataParallel(nn.Embedding(4, 16))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    yield model, optimizer
    y = torch.arange(16).view(-1, 1).repeat(1, 3)
    data = TensorDataset(y % 4, y)
    loader = DataLoader(data, 8, sampler=DistributedSampler(data))
    for epoch in range(4):
        loader.sampler.set_epoch(epoch)
        for X, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(X).flatten(0, 1), y.flatten()).backward()
            optimizer.step()


def test_rows_that_are_equal_in_one_tensor_are_all_seen():
    assert "the rows that no rank saw" not in report_on(equal_rows_in_one_tensor)[0][1]


def test_complex_weights_are_as_exact_as_their_parts():
    def script():
        model, optimizer = sgd(nn.Linear(5, 3, dtype=torch.cfloat))
        yield model, optimizer
        for X, y in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(X.cfloat()).abs(), y).backward()
            for p in model.parameters():
                dist.all_reduce(torch.view_as_real(p.grad))
                p.grad /= 2
            optimizer.step()
    codes, said, _ = report_on(script)[0]
    assert codes == [] and "what is below 0.0001" in said
