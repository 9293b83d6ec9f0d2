"""Four ways to share rows among ranks, and what they cost when a network is trained.

draw       a picture: a line for each way, a column for each image
train      small networks side by side, on the rows that the ranks were dealt
share      the rows of each rank, by torch's sampler
mix        the same rows as often, but no epoch has each of them once
table      what each way costs, after some epochs

python programs/who_sees_what.py     the table for other rates, ranks, rows and runs,
                                     in some ten minutes
"""

from itertools import product

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

from course.lab.figures import plot
from manual_dp import load_data


def draw(dealt, n):
    """Draw who saw each of `n` images; dealt: {label: a list of rows for each rank}."""
    import matplotlib.pyplot as plt

    ax = plot.axes("image", height=0.45 * len(dealt) + 0.9)
    ranks = max(map(len, dealt.values()))
    for line, shares in enumerate(dealt.values()):
        for row in range(n):
            seen = [
                rank
                for rank in range(ranks)
                for i in shares[rank]
                if i == row
            ]
            for part, rank in enumerate(seen):
                high = 0.7 / len(seen)
                y = line - 0.35 + part * high
                ax.bar(row, high, 0.86, bottom=y, color=plot.COLOURS[rank])
            if not seen:
                box = {"fill": False, "ec": "#7d848d", "ls": ":"}
                ax.bar(row, 0.7, 0.86, bottom=line - 0.35, **box)
    for rank in range(ranks):
        ax.bar(0, 0, color=plot.COLOURS[rank], label=f"rank {rank}")
    ax.legend(
        ncols=4,
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
        frameon=False,
        fontsize=9,
    )
    ax.set(xlim=(-0.7, n - 0.3), ylim=(len(dealt) - 0.5, -0.5))
    ax.set_yticks(range(len(dealt)), list(dealt))
    ax.grid(visible=False)
    plt.show()


def train(deals, n, after=(10, 100), lr=0.02, momentum=0.9):
    """Train a network on each deal; return {epochs: which answers are right then}.

    deals: whole numbers [way, run, epoch, rank, step], each one of the `n` rows of the
    run. A run has its own first weights, and its own digits as rows; all others are its
    test. In a step, each rank adds one row to the minibatch. The networks are trained
    side by side: they are the first dimension of all tensors.
    """
    ways, runs, epochs, ranks, steps = deals.shape
    both = load_data("digits", dtype=torch.float64)
    X = torch.cat([data.X for data in both])[..., 3:27:3, 3:27:3].flatten(1)
    y = torch.cat([data.y for data in both])  # 1,797 digits of 8 x 8 pixels

    orders, params = [], []
    for run in [*range(runs)] * ways:
        generator = torch.Generator().manual_seed(run)
        orders.append(torch.randperm(len(X), generator=generator))
        shapes = (64, 64), (1, 64), (64, 10), (1, 10)
        uniform = [torch.rand(shape, generator=generator) for shape in shapes]
        params.append([(2 * p.double() - 1) / 8 for p in uniform])
    rows, others = torch.stack(orders).split([n, len(X) - n], dim=1)
    W1, b1, W2, b2 = params = [
        torch.stack(p).requires_grad_() for p in zip(*params)
    ]
    optimizer = torch.optim.SGD(params, lr, momentum=momentum)

    def scores(images):
        return (images @ W1 + b1).relu() @ W2 + b2

    right, deals = {}, deals.flatten(0, 1)
    for epoch in range(epochs):
        for step in range(steps):
            at = rows.gather(1, deals[:, epoch, :, step])
            given = scores(X[at]).flatten(0, 1)
            losses = cross_entropy(given, y[at].flatten(), reduction="sum")
            optimizer.zero_grad()
            (losses / ranks).backward()
            optimizer.step()
        if epoch + 1 in after:
            with torch.no_grad():
                answers = scores(X[others]).argmax(2) == y[others]
            right[epoch + 1] = answers.view(ways, runs, -1)
    return right


def mix(rows):
    """Mix rows [run, epoch, rank, step] within a run, over each ten epochs."""
    generator = torch.Generator().manual_seed(0)
    mixed = []
    for epochs in rows.split(10, dim=1):
        places = epochs.flatten(1)
        order = torch.rand(places.shape, generator=generator).argsort(1)
        mixed.append(places.gather(1, order).view_as(epochs))
    return torch.cat(mixed, dim=1)


def share(n, world_size, epochs, runs=10):
    """Return {way: rows [run, epoch, rank, step]}, as torch's sampler deals them."""
    steps = -(-n // world_size)
    ways = {}
    for seed_each, set_epoch in (0, 1), (0, 0), (1, 1), (1, 0):
        name = ("one seed", "a seed each")[seed_each]
        rows = torch.zeros(runs, epochs, world_size, steps, dtype=torch.long)
        for run, rank in product(range(runs), range(world_size)):
            seed = 1000 * run + 100 * rank * seed_each
            sampler = DistributedSampler(
                range(n), world_size, rank, seed=seed
            )
            for epoch in range(epochs):
                sampler.set_epoch(epoch * set_epoch)
                rows[run, epoch, rank] = torch.tensor([*sampler])
        ways[name + (", without", ", set_epoch")[set_epoch]] = rows
    ways["mixed over ten epochs"] = mix(ways["one seed, set_epoch"])
    return ways


def table(n=43, world_size=4, after=(10, 100), runs=10, **settings):
    """Print what each way costs."""
    said = "".join(f", {name} {value}" for name, value in settings.items())
    print(f"{n} rows, {world_size} ranks, {runs} runs{said}")
    ways = share(n, world_size, max(after), runs)
    right = train(torch.stack([*ways.values()]), n, after, **settings)
    for way, name in enumerate(ways):
        line = f"  {name:23}"
        for epochs, answers in right.items():
            mean = answers.double().mean(2)
            lower = int((mean[way] < mean[0]).sum())
            line += f"  after {epochs}: {mean[way].mean():.1%}, {lower} lower"
        print(line)


def main():
    """Print the table for what the lesson has, and for what it does not show."""
    table()
    table(runs=40)
    for lr in 0.01, 0.05:
        table(runs=40, lr=lr)
    for lr in 0.05, 0.2:
        table(runs=40, lr=lr, momentum=0.0)
    for n, world_size in (43, 2), (43, 8), (25, 4), (60, 4):
        table(n, world_size, runs=40)
    table(200, after=(1, 3, 10, 30))
    table(1436, after=(1, 3, 20))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
