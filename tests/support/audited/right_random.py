"""Right programs: draws within the step, games of two networks, a second look."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.audited.pieces import block, ddp_sgd, generator_of, mlp, part, rows


def seeded_per_rank():
    """Build the same model on all ranks, then let each draw from a seed of its own."""
    model, optimizer = ddp_sgd()
    torch.manual_seed(42 + dist.get_rank())
    return model, optimizer


def augmented(augment, make_model=seeded_per_rank, **options):
    def step(model, optimizer, X, y):
        X, y = augment(block(X)), block(y)
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step, **options}


def noise_on_the_inputs():
    return augmented(lambda X: X + 0.1 * torch.randn_like(X))


def random_flips_on_four():
    return augmented(lambda X: torch.where(torch.rand(len(X), 1) < 0.5, -X, X),
                     world_size=4)


def masked_features():
    return augmented(lambda X: X * torch.empty_like(X).bernoulli_(0.8) / 0.8)


def mixup():
    def step(model, optimizer, X, y):
        X, y = part(X), part(y)
        share = torch.distributions.Beta(0.4, 0.4).sample().item()
        other = torch.randperm(len(X))
        out = model(share * X + (1 - share) * X[other])
        loss = share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(
            out, y[other])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"make_model": seeded_per_rank, "make_batch": rows(8), "step": step}


def generator_of_the_rank():
    """A generator beside the model, seeded by rank, draws the noise."""
    def make_model():
        g = torch.Generator()
        g.manual_seed(100 + dist.get_rank())
        return (*ddp_sgd(), g)

    def step(model, optimizer, g, X, y):
        X, y = block(X), block(y)
        optimizer.zero_grad()
        noisy = X + 0.05 * torch.randn(X.shape, generator=g)
        F.cross_entropy(model(noisy), y).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def noise_for_all_rows():
    """All ranks draw the noise of the whole minibatch alike, and take their rows."""
    def make_model():
        return (*ddp_sgd(), torch.Generator().manual_seed(7))

    def step(model, optimizer, g, X, y):
        noisy = X + 0.1 * torch.randn(X.shape, generator=g)
        optimizer.zero_grad()
        F.cross_entropy(model(part(noisy)), part(y)).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(12), "step": step,
            "world_size": 3}


def dropout_by_function():
    """Dropout that no module holds; ranks draw masks of their own."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return F.dropout(self.net(x), 0.3, training=self.training)

    def make_model():
        model = DDP(Net())
        torch.manual_seed(3 + dist.get_rank())
        return model, torch.optim.SGD(model.parameters(), lr=0.1)
    return augmented(lambda X: X, make_model)


def layer_left_out_at_random():
    """A layer is left out with one chance; all ranks draw it from one generator."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.middle = nn.Linear(6, 6), nn.Linear(6, 6)
            self.last = nn.Linear(6, 3)
            self.coin = torch.Generator().manual_seed(5)

        def forward(self, x):
            x = torch.tanh(self.first(x))
            if torch.rand((), generator=self.coin) < 0.5:
                x = x + torch.tanh(self.middle(x))
            return self.last(x)

    def make_model():
        model = DDP(Net(), find_unused_parameters=True)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)
    return augmented(lambda X: X, make_model)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encode, self.decode = nn.Linear(6, 4), nn.Linear(2, 6)

    def forward(self, x, noise):
        mean, log_variance = self.encode(x).chunk(2, dim=1)
        z = mean + noise * (log_variance / 2).exp()
        return self.decode(z), mean, log_variance


def variational_autoencoder():
    """The loss is a sum over rows, pixels and latents, divided by the rows of all."""
    def make_model():
        model = DDP(VAE())
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def make_batch(t):
        X, _ = rows(9)(t)
        return X, torch.randn(9, 2, generator=generator_of(t, 5))

    def step(model, optimizer, X, noise):
        n, X = len(X), part(X)
        out, mean, log_variance = model(X, part(noise))
        kl = -0.5 * (1 + log_variance - mean ** 2 - log_variance.exp()).sum()
        loss = F.mse_loss(out, X, reduction="sum") + kl
        optimizer.zero_grad()
        (loss * dist.get_world_size() / n).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 2}


def denoising_diffusion():
    """Times and noise are drawn in the step, on each rank its own."""
    def make_model():
        torch.manual_seed(0)
        model = DDP(nn.Sequential(nn.Linear(7, 16), nn.SiLU(), nn.Linear(16, 6)))
        torch.manual_seed(dist.get_rank())
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(model, optimizer, X):
        X = block(X)
        t, noise = torch.rand(len(X), 1), torch.randn_like(X)
        noisy = (1 - t).sqrt() * X + t.sqrt() * noise
        loss = F.mse_loss(model(torch.cat([noisy, t], 1)), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": lambda t: rows(8)(t)[0],
            "step": step}


def two_networks():
    torch.manual_seed(0)
    painter = DDP(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 6)))
    critic = DDP(nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)))
    return (painter, critic,
            torch.optim.Adam(painter.parameters(), lr=2e-3, betas=(0.5, 0.999)),
            torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999)))


def gan():
    """The critic's step, on images without gradient, then the painter's."""
    def make_batch(t):
        return rows(8)(t)[0], torch.randn(8, 2, generator=generator_of(t, 8))

    def step(painter, critic, painter_optimizer, critic_optimizer, real, z):
        real, z = block(real), block(z)
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = painter(z)
        both = critic(torch.cat([real, fake.detach()]))
        critic_optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(both, torch.cat([ones, zeros])).backward()
        critic_optimizer.step()
        painter_optimizer.zero_grad()
        for p in critic.parameters():
            p.requires_grad_(False)
        F.binary_cross_entropy_with_logits(critic.module(fake), ones).backward()
        for p in critic.parameters():
            p.requires_grad_(True)
        painter_optimizer.step()
    return {"make_model": two_networks, "make_batch": make_batch, "step": step}


def gan_with_noise_in_the_step():
    """WGAN with clipped weights; the critic's gradients are averaged by hand."""
    def make_model():
        torch.manual_seed(1)
        painter, critic = nn.Linear(2, 6), nn.Linear(6, 1)
        torch.manual_seed(50 + dist.get_rank())
        return (painter, critic, torch.optim.RMSprop(painter.parameters(), lr=0.01),
                torch.optim.RMSprop(critic.parameters(), lr=0.01))

    def average(model):
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    def step(painter, critic, painter_optimizer, critic_optimizer, real):
        real = part(real)
        critic_optimizer.zero_grad()
        with torch.no_grad():
            fake = painter(torch.randn(len(real), 2))
        (critic(fake).mean() - critic(real).mean()).backward()
        average(critic)
        critic_optimizer.step()
        with torch.no_grad():
            for p in critic.parameters():
                p.clamp_(-0.1, 0.1)
        painter_optimizer.zero_grad()
        (-critic(painter(torch.randn(len(real), 2))).mean()).backward()
        average(painter)
        painter_optimizer.step()
    return {"make_model": make_model, "make_batch": lambda t: rows(8)(t)[0],
            "step": step}


def validated_in_the_step():
    """After each update, an evaluation of all rows on rank 0, without a collective."""
    def step(model, optimizer, X, y):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(block(X)), block(y)).backward()
        optimizer.step()
        if dist.get_rank() == 0:
            model.eval()
            with torch.no_grad():
                right = (model.module(X).argmax(1) == y).sum()
            model.train()
            return right.item() / len(y)
        return None
    return {"make_model": ddp_sgd, "make_batch": rows(8), "step": step}


def metrics_reduced():
    """Loss and accuracy are summed over ranks for a line in the log."""
    def step(model, optimizer, X, y):
        X, y = block(X), block(y)
        out = model(X)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits = (out.argmax(1) == y).to(out.dtype)
        numbers = torch.stack([loss.detach(), hits.mean()])
        dist.reduce(numbers, dst=0)
        dist.barrier()
        return (numbers / dist.get_world_size()).tolist()
    return {"make_model": ddp_sgd, "make_batch": rows(9), "step": step,
            "world_size": 3}


RIGHT = {f.__name__: f for f in (
    noise_on_the_inputs, random_flips_on_four, masked_features, mixup,
    generator_of_the_rank, noise_for_all_rows, dropout_by_function,
    layer_left_out_at_random, variational_autoencoder, denoising_diffusion, gan,
    gan_with_noise_in_the_step, validated_in_the_step, metrics_reduced)}
DRAWN = "a rank draws for its own rows: one device draws other numbers"
REPLICAS_ONLY = {
    "noise_on_the_inputs": DRAWN, "random_flips_on_four": DRAWN,
    "masked_features": DRAWN, "mixup": DRAWN, "generator_of_the_rank": DRAWN,
    "denoising_diffusion": DRAWN,
    "gan_with_noise_in_the_step": DRAWN,
}
