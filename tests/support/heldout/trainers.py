"""Programs with a trainer around the loop: Hugging Face, Keras, timm, Lightning."""

import contextlib
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.heldout.parts import add_up, average, draw, draw_ids, mine, mlp


class Accelerator:
    """Wrap what is prepared; tell which micro-batch ends a step."""

    def __init__(self, bug=None):
        self.bug = bug

    def prepare(self, model, optimizer):
        return (model if self.bug == "model_not_wrapped" else DDP(model)), optimizer

    def micro_batches(self, rows):
        return len(rows) // 4

    def accumulate(self, model, last):
        quiet = last if self.bug == "no_sync_around_the_last" else not last
        wrapped = isinstance(model, DDP)
        return model.no_sync() if quiet and wrapped else contextlib.nullcontext()

    def backward(self, loss, parts):
        parts = 8 if self.bug == "divided_by_all_ranks_micro_batches" else parts
        (loss / parts).backward()


def accelerate(bug=None):
    """Train with an accelerator that is prepared and accumulates micro-batches."""
    accelerator = Accelerator(bug)

    def make_model():
        model = mlp(5, 8, 3)
        return accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))

    def make_batch(t):
        return draw(t, 32, 5), draw_ids(t, 3, 32)

    def step(model, optimizer, X, y):
        X, y = mine(X), mine(y)
        parts = accelerator.micro_batches(X)
        for i, (x, target) in enumerate(zip(X.chunk(parts), y.chunk(parts))):
            with accelerator.accumulate(model, i == parts - 1):
                loss = F.cross_entropy(model(x), target)
                accelerator.backward(loss, parts)
        optimizer.step()
        optimizer.zero_grad()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


class TokenTrainer:
    """Train as transformers' Trainer does, by a mean over all ranks' tokens."""

    def __init__(self, model, optimizer, bug=None):
        self.model, self.optimizer, self.bug = model, optimizer, bug

    def compute_loss(self, inputs, num_items_in_batch):
        logits = self.model(inputs["input_ids"])
        total = F.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten(),
                                ignore_index=-100, reduction="sum")
        loss = total / num_items_in_batch
        if self.bug in ("not_times_world_size", "tokens_of_own_rank"):
            return loss
        return loss * dist.get_world_size()

    def training_step(self, inputs):
        tokens = (inputs["labels"] != -100).sum()
        if self.bug != "tokens_of_own_rank":
            tokens = add_up(tokens)
        self.compute_loss(inputs, tokens).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.4)
        self.optimizer.step()
        self.optimizer.zero_grad()


def hf_trainer(bug=None):
    """Train a language model on padded rows, three ranks, a dict as batch."""
    def make_model():
        torch.manual_seed(0)
        model = DDP(nn.Sequential(nn.Embedding(11, 6), nn.Tanh(), nn.Linear(6, 11)))
        return model, torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)

    def make_batch(t):
        ids, lengths = draw_ids(t, 11, 9, 7), draw_ids(t, 6, 9, 1, seed=1) + 1
        labels = ids.roll(-1, 1).masked_fill(torch.arange(7) >= lengths, -100)
        return {"input_ids": ids, "labels": labels}

    def step(model, optimizer, batch):
        inputs = {name: mine(rows) for name, rows in batch.items()}
        TokenTrainer(model, optimizer, bug).training_step(inputs)

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}


class KerasModel(nn.Module):
    """Be a model with compile and train_on_batch, as in Keras."""

    def __init__(self, bug=None):
        super().__init__()
        torch.manual_seed(dist.get_rank() if bug == "never_sent_at_start" else 0)
        self.net = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 1))
        self.bug = bug

    def compile(self, optimizer, loss):
        self.optimizer, self.loss_function = optimizer, loss
        if self.bug != "never_sent_at_start":
            for tensor in self.state_dict().values():
                dist.broadcast(tensor, 0)
        return self

    def forward(self, x):
        return self.net(x)

    def train_on_batch(self, x, y):
        self.zero_grad()
        self.loss_function(self(x), y).backward()
        for p in self.parameters():
            dist.all_reduce(p.grad)
            if self.bug != "added_not_averaged":
                p.grad /= dist.get_world_size()
        self.optimizer.step()


def keras_fit(bug=None):
    """Train a Keras-like model that holds its optimizer, four ranks."""
    def make_model():
        model = KerasModel(bug)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, weight_decay=1e-3)
        return model.compile(optimizer, nn.MSELoss()), optimizer

    def make_batch(t):
        X = draw(t, 16, 4)
        return X, X[:, :1] * X[:, 1:2] + draw(t, 16, 1, seed=2)

    def step(model, optimizer, X, y):
        model.train_on_batch(mine(X), mine(y))

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 4}


class Average(nn.Module):
    """Hold the running mean of a model's weights."""

    def __init__(self, model, decay):
        super().__init__()
        self.decay = decay
        for name, p in model.named_parameters():
            self.register_buffer(name.replace(".", "_"), p.detach().clone())

    @torch.no_grad()
    def update(self, model):
        for mean, p in zip(self.buffers(), model.parameters()):
            mean.lerp_(p, 1 - self.decay)


def timm_loop(bug=None):
    """Mix rows, smooth labels, warm up by iteration, keep a running mean of weights."""
    def warm_up_then_cosine(iteration):
        if bug == "schedule_counts_ranks":
            iteration *= dist.get_world_size()
        if iteration < 2:
            return (iteration + 1) / 3
        return 0.5 * (1 + math.cos(math.pi * (iteration - 2) / 10))

    def make_model():
        model = DDP(mlp(6, 10, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.2, 0.9, nesterov=True)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up_then_cosine)
        return model, optimizer, scheduler, Average(model.module, 0.8)

    def make_batch(t):
        X, y = draw(t, 12, 6), F.one_hot(draw_ids(t, 4, 12), 4).to(draw(0, 1).dtype)
        part, order = 0.3 + 0.1 * t, torch.arange(12).flip(0)
        return X.lerp(X[order], part), y.lerp(y[order], part)

    def step(model, optimizer, scheduler, ema, X, y):
        loss = F.cross_entropy(model(mine(X)), mine(y), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if bug != "running_mean_on_rank_0" or dist.get_rank() == 0:
            ema.update(model.module)

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


class LitRegressor(nn.Module):
    """Be a module in Lightning's shape."""

    def __init__(self, bug=None):
        super().__init__()
        self.net, self.bug = mlp(3, 7, 2), bug

    def training_step(self, batch):
        x, y = batch
        return F.smooth_l1_loss(self.net(x), y)

    def configure_optimizers(self):
        decay = 0.1
        if self.bug == "decay_by_rank":
            decay *= 1 + dist.get_rank()
        return torch.optim.Adam(self.parameters(), 0.01, weight_decay=decay)

    def on_after_backward(self):
        if self.bug == "clipped_before_the_sum":
            nn.utils.clip_grad_norm_(self.parameters(), 0.05)
        average(self.parameters())

    def on_before_optimizer_step(self):
        if self.bug == "clipped_on_rank_0" and dist.get_rank():
            return
        nn.utils.clip_grad_norm_(self.parameters(), 0.05)


def lightning(bug=None):
    """Train through Lightning's hooks, the gradients averaged in one of them."""
    def make_model():
        module = LitRegressor(bug)
        return module, module.configure_optimizers()

    def make_batch(t):
        X = draw(t, 12, 3)
        return X, X[:, :2].sin() * 3

    def step(module, optimizer, X, y):
        optimizer.zero_grad()
        module.training_step((mine(X), mine(y))).backward()
        module.on_after_backward()
        module.on_before_optimizer_step()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}


class HorovodOptimizer:
    """Hold an optimizer; average the gradients when it is asked to step."""

    def __init__(self, optimizer, bug=None):
        self.optimizer, self.bug, self.synchronised = optimizer, bug, False

    def parameters(self):
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def synchronize(self):
        average(self.parameters())
        self.synchronised = True

    def step(self):
        if not self.synchronised:
            self.synchronize()
        self.synchronised = self.bug == "believes_it_has_averaged"
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


def optimizer_wrapper(bug=None):
    """Clip between Horovod's synchronize and step."""
    def make_model():
        model = mlp(4, 6, 1)
        adam = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
        return model, HorovodOptimizer(adam, bug)

    def make_batch(t):
        X = draw(t, 8, 4)
        return X, X.prod(1, keepdim=True)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.mse_loss(model(mine(X)), mine(y)).backward()
        if bug != "believes_it_has_averaged" or not optimizer.synchronised:
            optimizer.synchronize()
        if bug == "divides_once_more":
            for p in model.parameters():
                p.grad /= dist.get_world_size()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}
