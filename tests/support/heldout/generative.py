"""Programs that make things: autoencoders, adversaries, diffusion."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.heldout.parts import add_up, average, draw, draw_ids, mine, mlp


class AutoEncoder(nn.Module):
    """Return the picture made anew, and the mean and spread of its code."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = mlp(6, 8, 4), mlp(2, 8, 6, seed=1)

    def forward(self, x, noise):
        mean, spread = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + noise * (spread / 2).exp()), mean, spread


def negative_bound(made, x, mean, spread):
    """Return each row's negative evidence bound."""
    kl = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1)
    return (made - x).square().sum(1) + kl


def vae(bug=None):
    """Draw the whole batch's noise from the step's number, take own rows of it."""
    def make_model():
        model = DDP(AutoEncoder())
        return model, torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)

    def make_batch(t):
        return draw(t, 12, 6), t

    def step(model, optimizer, X, t):
        x = mine(X)
        torch.manual_seed(t)
        if bug == "own_rows_of_noise_drawn_alike":
            noise = torch.randn(len(x), 2)
        else:
            noise = mine(torch.randn(len(X), 2))
        made, mean, spread = model(x, noise)
        bound = negative_bound(made, x, mean, spread)
        rows = len(X) if bug == "divided_by_all_rows" else len(x)
        optimizer.zero_grad()
        (bound.sum() / rows).backward()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}


def vae_of_own_noise(bug=None):
    """Give each rank a seed of its own once; draw noise from it in each step."""
    def make_model():
        model = AutoEncoder()
        torch.manual_seed(100 + dist.get_rank())
        return model, torch.optim.Adam(model.parameters(), 0.01)

    def make_batch(t):
        return draw(t, 8, 6)

    def step(model, optimizer, X):
        x = mine(X)
        if bug == "seeded_alike_in_each_step":
            torch.manual_seed(42)
        made, mean, spread = model(x, torch.randn(len(x), 2))
        optimizer.zero_grad()
        negative_bound(made, x, mean, spread).mean().backward()
        average(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


def wgan_gp(bug=None):
    """Take two critic steps with a gradient penalty, then one of the generator."""
    def make_model():
        generator, critic = mlp(2, 8, 3), mlp(3, 8, 1, seed=1)
        return (generator, critic, torch.optim.SGD(generator.parameters(), 0.05),
                torch.optim.SGD(critic.parameters(), 0.05))

    def make_batch(t):
        return {"real": draw(t, 2, 8, 3), "noise": draw(t, 3, 8, 2, seed=1),
                "mix": draw(t, 2, 8, 1, seed=2).sigmoid()}

    def penalty(critic, real, fake, mix):
        x = real.lerp(fake, mix).requires_grad_()
        slope, = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    def step(generator, critic, optimizer_g, optimizer_c, batch):
        for real, noise, mix in zip(batch["real"], batch["noise"], batch["mix"]):
            real, mix = mine(real), mine(mix)
            fake = generator(mine(noise)).detach()
            optimizer_c.zero_grad()
            (critic(fake).mean() - critic(real).mean()
             + 10 * penalty(critic, real, fake, mix)).backward()
            if bug != "critic_never_averaged":
                average(critic.parameters())
            optimizer_c.step()
        optimizer_g.zero_grad()
        (-critic(generator(mine(batch["noise"][2]))).mean()).backward()
        average(generator.parameters())
        if bug == "generator_averaged_again":
            for p in generator.parameters():
                p.grad /= dist.get_world_size()
        optimizer_g.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 4}


def gan(bug=None):
    """Train two wrapped networks against each other with binary cross-entropy."""
    def make_model():
        generator, judge = DDP(mlp(2, 6, 3)), DDP(mlp(3, 6, 1, seed=1))
        return (generator, judge, torch.optim.Adam(generator.parameters(), 0.01),
                torch.optim.Adam(judge.parameters(), 0.01))

    def make_batch(t):
        return draw(t, 8, 3) + 1, draw(t, 8, 2, seed=1)

    def says(judge, x, truth):
        out = judge(x)
        return F.binary_cross_entropy_with_logits(out, torch.full_like(out, truth))

    def step(generator, judge, optimizer_g, optimizer_j, real, noise):
        real, noise = mine(real), mine(noise)
        if bug == "noise_drawn_alike":
            torch.manual_seed(7)
            noise = torch.randn(len(real), 2)
        fake = generator(noise)
        network = judge.module if bug == "judge_not_through_its_wrapper" else judge
        out = network(torch.cat([real, fake.detach()]))
        truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        optimizer_j.zero_grad()
        F.binary_cross_entropy_with_logits(out, truth).backward()
        optimizer_j.step()
        optimizer_g.zero_grad()
        says(judge.module, fake, 1.0).backward()
        if bug != "generator_stepped_on_rank_0" or dist.get_rank() == 0:
            optimizer_g.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


def diffusion(bug=None):
    """Tell the noise in a picture at times drawn for each row, with weights."""
    def make_model():
        model = mlp(5, 12, 4)
        return model, torch.optim.AdamW(model.parameters(), 0.01)

    def make_batch(t):
        return {"x": draw(t, 12, 4), "noise": draw(t, 12, 4, seed=1),
                "time": draw_ids(t, 10, 12)}

    def step(model, optimizer, batch):
        x, noise, time = (mine(batch[name]) for name in ("x", "noise", "time"))
        if bug == "times_drawn_alike":
            torch.manual_seed(3)
            time = torch.randint(0, 10, (len(x),))
        kept = (0.95 - 0.09 * time.to(x.dtype))[:, None]
        guess = model(torch.cat([kept.sqrt() * x + (1 - kept).sqrt() * noise, kept], 1))
        weight = (kept / (1 - kept)).clamp(max=5)
        total = weight.sum() if bug == "weights_of_own_rows" \
            else add_up(weight.sum()) / dist.get_world_size()
        optimizer.zero_grad()
        ((guess - noise).square() * weight / total).sum().backward()
        average(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}
