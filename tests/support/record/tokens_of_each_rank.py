"""Divide by a rank's own number of tokens: a mean of means, under DDP.

Source: Hugging Face, "Fixing Gradient Accumulation" (October 2024), and the option
`average_tokens_across_devices` that came after it, for the same mistake between ranks.

Sentences differ in length. A rank of short ones gives each of its tokens more weight.
"""

import torch
import torch.distributed as dist
from torch.nn import functional as F

from tests.support.record.parts import arguments, minibatch, own, wrapped

PADDING = -100


def sentences(t):
    """Draw X (8, 4, 6) and y (8, 4), which is PADDING behind the end of a sentence."""
    parts = [minibatch(10 * t + i) for i in range(4)]
    X, y = (torch.stack(part, dim=1) for part in zip(*parts))
    lengths = torch.tensor([1, 1, 2, 1, 4, 3, 4, 4])
    return X, y.masked_fill(torch.arange(4) >= lengths.unsqueeze(1), PADDING)


def divide_by_own(X, y):
    return (y != PADDING).sum()


def divide_by_mean(X, y):
    tokens = (y != PADDING).sum()
    dist.all_reduce(tokens)
    return tokens / dist.get_world_size()  # DDP divides by the world size as well


def step(model, optimizer, X, y, number=divide_by_own):
    X, y = own(X, y)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(X).flatten(0, 1), y.flatten(), reduction="sum")
    (loss / number(X, y)).backward()
    optimizer.step()


def right_step(model, optimizer, X, y):
    step(model, optimizer, X, y, divide_by_mean)


def wrong_step(model, optimizer, X, y):
    step(model, optimizer, X, y)


def broken():
    return arguments(wrapped, wrong_step, sentences)


def right():
    return arguments(wrapped, right_step, sentences)
