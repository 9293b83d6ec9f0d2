"""Programs that learn to act: own rows of episodes on each rank."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.heldout.parts import add_up, average, draw, mine, mlp


def act(policy, seen, chance):
    """Return the log-probability of the action that each row's chance picks."""
    p = policy(seen).sigmoid().squeeze(-1)
    action = (chance < p.detach()).to(p.dtype)
    return action, (action * p + (1 - action) * (1 - p)).log(), p


def reinforce(bug=None):
    """Normalise returns over all ranks' time steps; episodes end at different times."""
    def make_model():
        policy = DDP(mlp(4, 6, 1))
        return policy, torch.optim.SGD(policy.parameters(), 0.3)

    def make_batch(t):
        length = (draw(t, 12, 1, seed=2).sigmoid() * 5).floor() + 1
        return {"seen": draw(t, 12, 6, 4), "chance": draw(t, 12, 6, seed=1).sigmoid(),
                "on": (torch.arange(6) < length).to(length.dtype)}

    def step(policy, optimizer, batch):
        seen, chance, on = (mine(batch[name]) for name in ("seen", "chance", "on"))
        action, log_p, _ = act(policy, seen, chance)
        reward = (action * seen[..., 0] + (1 - action) * seen[..., 1]) * on
        value = reward.flip(1).cumsum(1).flip(1)
        steps = add_up(on.sum())
        own = bug == "returns_normalised_over_own_rows"
        count = on.sum() if own else steps
        mean = (value.sum() if own else add_up(value.sum())) / count
        apart = ((value - mean).square() * on).sum()
        spread = ((apart if own else add_up(apart)) / count).sqrt()
        loss = -(log_p * (value - mean) / spread * on).sum()
        optimizer.zero_grad()
        if bug == "mean_over_own_steps":
            (loss / on.sum()).backward()
        else:
            (loss * dist.get_world_size() / steps).backward()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}


def ppo(bug=None):
    """Pass three times over one batch, two minibatches each; stop if it moved far."""
    def make_model():
        policy = mlp(4, 8, 1)
        return policy, torch.optim.Adam(policy.parameters(), 0.03)

    def make_batch(t):
        return {"seen": draw(t, 16, 4), "chance": draw(t, 16, seed=1).sigmoid(),
                "gain": draw(t, 16, seed=2) * 2 + 1}

    def over_ranks(value, own):
        return value.detach() if own else add_up(value) / dist.get_world_size()

    def step(policy, optimizer, batch):
        whole = [rows.chunk(2) for rows in batch.values()]
        parts = [[mine(rows) for rows in part] for part in zip(*whole)]
        old = [act(policy, seen, chance)[:2] for seen, chance, _ in parts]
        for _ in range(3):
            moved = 0
            for (seen, _, gain), (action, log_old) in zip(parts, old):
                own = bug == "gains_normalised_over_own_rows"
                mean = over_ranks(gain.mean(), own)
                spread = over_ranks((gain - mean).square().mean(), own).sqrt()
                p = policy(seen).sigmoid().squeeze(1)
                log_p = (action * p + (1 - action) * (1 - p)).log()
                ratio, gain = (log_p - log_old.detach()).exp(), (gain - mean) / spread
                loss = -torch.min(ratio * gain, ratio.clamp(0.9, 1.1) * gain).mean()
                optimizer.zero_grad()
                loss.backward()
                average(policy.parameters())
                optimizer.step()
                moved += ((ratio - 1) - ratio.log()).mean()
            if over_ranks(moved, bug == "stops_by_own_rows") > 0.002:
                break

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


def actor_critic(bug=None):
    """Train a policy and a value of it, each with an optimizer."""
    def make_model():
        policy, value = mlp(4, 6, 1), mlp(4, 6, 1, seed=1)
        rate = 0.1 * (1 + dist.get_rank()) if bug == "each_rank_its_rate" else 0.1
        return (policy, value, torch.optim.RMSprop(policy.parameters(), 0.01),
                torch.optim.SGD(value.parameters(), rate))

    def make_batch(t):
        return draw(t, 8, 4), draw(t, 8, seed=1).sigmoid()

    def step(policy, value, optimizer_p, optimizer_v, seen, chance):
        seen, chance = mine(seen), mine(chance)
        action, log_p, p = act(policy, seen, chance)
        reward = action * seen[:, 0] - seen[:, 1] * (1 - action)
        guess = value(seen).squeeze(1)
        unsure = -(p * p.log() + (1 - p) * (1 - p).log())
        loss = -(log_p * (reward - guess.detach())).mean() - 0.01 * unsure.mean()
        optimizer_p.zero_grad()
        optimizer_v.zero_grad()
        (loss + 0.5 * F.mse_loss(guess, reward)).backward()
        average(policy.parameters())
        if bug != "value_never_averaged":
            average(value.parameters())
        optimizer_p.step()
        optimizer_v.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 4}
