"""Right programs: schedules, averages of weights, clipping, mixed-precision lines."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.support.audited.pieces import (
    block,
    convnet,
    ddp_mlp,
    ddp_sgd,
    images,
    mlp,
    part,
    rows,
)

criterion = nn.CrossEntropyLoss()


def scheduled(make_scheduler, make_optimizer=None):
    def make_model():
        model = ddp_mlp()
        optimizer = (make_optimizer or (lambda params: torch.optim.SGD(
            params, lr=0.1, momentum=0.9)))(model.parameters())
        return model, optimizer, make_scheduler(optimizer)

    def step(model, optimizer, scheduler, X, y):
        optimizer.zero_grad()
        criterion(model(block(X)), block(y)).backward()
        optimizer.step()
        scheduler.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def cosine():
    return scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=4))


def one_cycle():
    return scheduled(lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=10),
                     lambda params: torch.optim.AdamW(params, lr=1e-3))


def warm_up():
    return scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda t: min(1, (t + 1) / 5)))


def warm_up_from_zero():
    """The first step has learning rate 0: nothing moves in it, and that is meant."""
    return scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda t: min(1, t / 2)))


def warm_up_then_cosine():
    return scheduled(lambda o: lr_scheduler.SequentialLR(o, [
        lr_scheduler.LinearLR(o, 0.1, total_iters=2),
        lr_scheduler.CosineAnnealingLR(o, 8)], milestones=[2]))


def step_decay():
    return scheduled(lambda o: lr_scheduler.StepLR(o, step_size=1, gamma=0.5))


def plateau():
    def make_model():
        model, optimizer = ddp_sgd()
        return model, optimizer, lr_scheduler.ReduceLROnPlateau(optimizer, patience=0,
                                                                threshold=10)

    def step(model, optimizer, scheduler, X, y):
        optimizer.zero_grad()
        loss = criterion(model(part(X)), part(y))
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        scheduler.step(mean.item() / dist.get_world_size())
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def rate_set_by_hand():
    def make_model():
        model, optimizer = ddp_sgd()
        return model, optimizer, {"t": 0}

    def step(model, optimizer, state, X, y):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.9 ** state["t"]
        state["t"] += 1
        optimizer.zero_grad()
        criterion(model(block(X)), block(y)).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(12), "step": step,
            "world_size": 3}


def averaged_model():
    def make_model():
        model, optimizer = ddp_sgd()
        ema = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        return model, optimizer, ema

    def step(model, optimizer, ema, X, y):
        optimizer.zero_grad()
        criterion(model(block(X)), block(y)).backward()
        optimizer.step()
        ema.update_parameters(model.module)
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def ema_in_a_dict():
    def make_model():
        model, optimizer = ddp_sgd()
        shadow = {k: v.clone() for k, v in model.module.state_dict().items()}
        return model, optimizer, shadow

    @torch.no_grad()
    def follow(shadow, model):
        for k, v in model.module.state_dict().items():
            shadow[k].lerp_(v, 0.1)

    def step(model, optimizer, shadow, X, y):
        optimizer.zero_grad()
        criterion(model(block(X)), block(y)).backward()
        optimizer.step()
        follow(shadow, model)
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def mean_teacher():
    """The teacher, an EMA of the student, says what the student is to be like."""
    def make_model():
        model, optimizer = ddp_sgd()
        teacher = copy.deepcopy(model.module).requires_grad_(False).eval()
        return model, optimizer, teacher

    def step(model, optimizer, teacher, X, y):
        X, y = part(X), part(y)
        with torch.no_grad():
            wanted = teacher(X).softmax(1)
        out = model(X)
        loss = criterion(out, y) + 0.3 * F.mse_loss(out.softmax(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.parameters()):
                slow.mul_(0.95).add_(fast, alpha=0.05)
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def clipped(net, make_batch, clip, **options):
    def make_model():
        model = DDP(net())
        return model, torch.optim.SGD(model.parameters(), lr=0.5)

    def step(model, optimizer, X, y):
        model.train()
        optimizer.zero_grad()
        criterion(model(block(X)), block(y)).backward()
        clip(model.parameters())
        optimizer.step()
    return {"make_model": make_model, "make_batch": make_batch, "step": step, **options}


def clip_with_batch_norm():
    return clipped(lambda: convnet(nn.BatchNorm2d(4)), images(8),
                   lambda params: clip_grad_norm_(params, 0.1))


def clip_with_dropout():
    def net():
        model = mlp(nn.Dropout(0.3))
        torch.manual_seed(1 + dist.get_rank())
        return model
    return clipped(net, rows(8), lambda params: clip_grad_norm_(params, max_norm=0.2))


def clip_with_group_norm():
    return clipped(lambda: convnet(nn.GroupNorm(2, 4)), images(8),
                   lambda params: clip_grad_norm_(params, 0.1), world_size=4)


def clip_that_never_bites():
    return clipped(mlp, rows(8), lambda params: clip_grad_norm_(params, 1e6))


def clip_infinity_norm():
    return clipped(mlp, rows(8), lambda params: clip_grad_norm_(
        params, 0.02, norm_type=float("inf")))


def clip_value():
    return clipped(mlp, rows(8), lambda params: clip_grad_value_(params, 0.01))


def clip_by_hand_after_the_sum():
    def make_model():
        model = mlp()
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        criterion(model(part(X)), part(y)).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())
        norm = sum(p.grad.pow(2).sum() for p in model.parameters()).sqrt()
        for p in model.parameters():
            p.grad.mul_((0.1 / (norm + 1e-6)).clamp(max=1.0))
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(12), "step": step,
            "world_size": 3}


def mixed_precision_switched_off():
    def make_model():
        model, optimizer = ddp_sgd()
        return model, optimizer, torch.amp.GradScaler("cpu", enabled=False)

    def step(model, optimizer, scaler, X, y):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            loss = criterion(model(block(X)), block(y))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


RIGHT = {f.__name__: f for f in (
    cosine, one_cycle, warm_up, warm_up_from_zero, warm_up_then_cosine, step_decay,
    plateau, rate_set_by_hand, averaged_model, ema_in_a_dict, mean_teacher,
    clip_with_batch_norm, clip_with_dropout, clip_with_group_norm,
    clip_that_never_bites, clip_infinity_norm, clip_value, clip_by_hand_after_the_sum,
    mixed_precision_switched_off)}
# a rank's own statistics: training with the rows of one rank is another computation
REPLICAS_ONLY = {"clip_with_batch_norm": "batch norm over a rank's own rows"}
