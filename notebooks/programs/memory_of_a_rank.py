"""What does one rank keep in memory, and send, in a step of training?

stack          the network of the page: eight equal layers
Stage0         DDP as in lesson 9, a message for each gradient
by_layer       a stage that looks after each layer by itself
flatten        move tensors into one flat strip, as views of it
chunks         cut the strip, a chunk for each rank
metered        count the bytes of all tensors, after each operation
highest        the most bytes while something is made, and the bytes at the end
report         take steps: what a rank keeps, its peak, what it sends, is it right?
of_torch       the same of torch's FSDP
watch          take FSDP's steps with micro-batches and clipping
resume         save on some ranks, and go on with fewer
out_of_memory  the first step on a device that has room for so many copies

Bytes and messages are counted for each weight, of rank 0; sizes in float32.

python programs/memory_of_a_rank.py      torch's stage 1: its messages in a step
"""

import functools
import warnings
import weakref
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course.lab.figures import plot
from course.lab.figures.plot import COLOURS, INK, axes
from manual_dp import largest_difference
from manual_dp.ranks import run_ranks
from manual_dp.ranks.collectives import ring_allreduce

DEPTH, WIDTH, ROWS = 8, 256, 4  # of the network; rows of a rank's minibatch
NUMBERS = DEPTH * (WIDTH * WIDTH + WIDTH)  # weights and biases
STEPS = 5  # of a comparison
ranks_run = functools.partial(run_ranks, timeout=600)  # for a busy machine


# the network, and its training


def stack(dtype=torch.float32, layers=1):
    """Return blocks of so many layers, eight layers in all; first weights are equal."""
    torch.manual_seed(0)
    made = [
        layer
        for _ in range(DEPTH)
        for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())
    ]
    size = 2 * layers
    blocks = [made[i : i + size] for i in range(0, len(made), size)]
    return nn.Sequential(*[nn.Sequential(*block) for block in blocks]).to(
        dtype
    )


def adam(params):
    """Return the optimizer of all runs here."""
    return torch.optim.Adam(params, lr=0.001)


def own_rows(dtype=torch.float64, total=None):
    """Return this rank's rows of a minibatch of `total` rows, and their labels."""
    rank, n = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(1)
    X = torch.rand(total or ROWS * n, WIDTH, generator=generator, dtype=dtype)
    y = torch.randint(WIDTH, (len(X),), generator=generator)
    return X[rank::n].clone(), y[rank::n].clone()


class Stage0:
    """DDP: every rank keeps all weights, all gradients and all of Adam's state."""

    def __init__(self, model, make):
        self.params = list(model.parameters())
        self.optimizer = make(self.params)

    def step(self):
        """Take the mean of each gradient over the ranks, then the step of Adam."""
        for p in self.params:
            ring_allreduce(p.grad)
            p.grad /= dist.get_world_size()
        self.optimizer.step()


class ByLayer:
    """Make a `Layer` of each linear layer, and one optimizer of their shards."""

    def __init__(self, Layer, model, make):
        linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.layers = [Layer(module) for module in linear]
        self.optimizer = make([layer.shard for layer in self.layers])

    def step(self):
        """Update this rank's chunks, and tell each `Layer` so."""
        self.optimizer.step()
        for layer in self.layers:
            layer.updated()


def by_layer(Layer):
    """Return a stage that hands each linear layer to a `Layer`."""
    return functools.partial(ByLayer, Layer)


def flatten(tensors):
    """Move tensors into one flat strip, which is returned; they become views of it."""
    size = sum(t.numel() for t in tensors)
    size += -size % dist.get_world_size()  # zeros at the end: equal chunks
    flat, end = torch.zeros(size, dtype=tensors[0].dtype), 0
    for t in tensors:
        start, end = end, end + t.numel()
        flat[start:end] = t.detach().flatten()
        t.data = flat[start:end].view_as(t)  # what was its memory is let go
    return flat


def chunks(flat):
    """Cut a strip into a list of equal chunks, one for each rank."""
    return list(flat.chunk(dist.get_world_size()))


def train(Stage, total, clip=None):
    """Return the weights after some steps in float64, in full on every rank."""
    X, y = own_rows(total=total)
    model = stack(torch.float64)
    stage = Stage(model, adam)
    for _ in range(STEPS):
        model.zero_grad()
        stage.optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        stage.step()
    for layer in getattr(stage, "layers", []):
        if hasattr(layer, "gather"):
            layer.gather()  # stage 3: the chunks of the others
    return [p.detach().clone() for p in model.parameters()]


@functools.cache
def one_device(total, clip=None):
    """Return the weights after the same steps on one device, with all rows."""
    return ranks_run(train, 1, Stage0, total, clip)[0]


def apart(ranks, clip=None, world_size=None):
    """Return the largest difference of a weight from the run on one device."""
    right = one_device(ROWS * (world_size or len(ranks)), clip)
    return max(largest_difference(weights, right) for weights in ranks)


# what is alive, what is sent


def metered(levels, limit=float("inf"), calls=None):
    """Append to `levels`, after each operation, the bytes of all tensors.

    calls: a Counter of collectives.
    """
    memory = weakref.WeakSet()  # it forgets what nobody else holds
    warnings.filterwarnings("ignore")  # of torch, that views pass a mode

    class Meter(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            result = operation(*args, **(kwargs or {}))
            for x in tree_leaves((args, kwargs, result)):
                x = getattr(
                    x, "_local_tensor", x
                )  # a DTensor: this rank's part
                if isinstance(x, torch.Tensor) and not x.is_meta:
                    memory.add(x.untyped_storage())  # views share one
            levels.append(sum(storage.nbytes() for storage in memory))
            if levels[-1] > limit:
                raise MemoryError("out of memory")
            if calls is not None and operation.namespace == "c10d":
                calls[str(operation).split(".")[1].strip("_")] += 1
            return result

    return Meter()


def _highest(make):
    levels = []
    with metered(levels):
        kept = make()
        torch.empty(0)  # one more count, when the helpers have gone
    del kept
    return max(levels) / NUMBERS, levels[-1] / NUMBERS


def highest(make, world_size):
    """Print the most bytes a weight while make() runs, and the bytes at its end."""
    most, end = ranks_run(_highest, world_size, make)[0]
    print(f"{most:.2f} bytes a weight at the peak, {end:.2f} at the end")


def held(model, optimizer):
    """Return the bytes of the weights, the gradients and the optimizer's state."""
    shards = [p for group in optimizer.param_groups for p in group["params"]]
    weights = [*model.parameters(), *shards]
    parts = {
        "weights": weights,
        "gradients": [p.grad for p in weights],
        "Adam": tree_leaves(list(optimizer.state.values())),
    }
    sizes = {}
    for name, tensors in parts.items():
        own = [
            getattr(t, "_local_tensor", t) for t in tensors if t is not None
        ]
        storages = {t.untyped_storage() for t in own}
        sizes[name] = sum(storage.nbytes() for storage in storages) / NUMBERS
    return sizes


def _counted_step(Stage, rows):
    """Take two steps; count the second, in bytes a weight."""
    X, y = own_rows(torch.float32, rows * dist.get_world_size())
    levels, sent, isend = [], [], dist.isend

    def counted(tensor, to):
        sent.append(tensor.nbytes / NUMBERS)
        return isend(tensor, to)

    with mock.patch.object(dist, "isend", counted), metered(levels):
        model = stack()
        stage = Stage(model, adam)
        for _ in range(2):
            phases = {"forward": 0}
            levels.clear()
            sent.clear()
            model.zero_grad()
            stage.optimizer.zero_grad()
            loss = F.cross_entropy(model(X), y)
            phases["backward"] = len(levels)
            loss.backward()
            phases["update"] = len(levels)
            stage.step()
        torch.empty(0)
    levels = [level / NUMBERS for level in levels]
    return held(model, stage.optimizer), levels, phases, sum(sent)


def _counted_and_trained(Stage, rows):
    return _counted_step(Stage, rows), train(
        Stage, ROWS * dist.get_world_size()
    )


def report(Stage, world_size, rows=ROWS):
    """Print what rank 0 keeps, its peak, what it sends, and if the training is right.

    rows: of a rank's minibatch, where bytes are counted. Return (levels, phases) of a
    step, to be drawn.
    """
    ranks = ranks_run(_counted_and_trained, world_size, Stage, rows)
    kept, levels, phases, sent = ranks[0][0]
    parts = ", ".join(f"{part} {size:.2f}" for part, size in kept.items())
    far = apart([weights for _, weights in ranks])
    print(f"keeps {sum(kept.values()):5.2f} bytes a weight: {parts}")
    print(f"peak  {max(levels):5.2f}, sends {sent:.2f};", end=" ")
    print(f"weights {far:.0e} from one device's")
    return levels, phases


def _of_torch(make, layers):
    X, y = own_rows(torch.float32)
    levels, calls = [], Counter()
    with metered(levels, calls=calls):
        model = make(layers)
        for p in model.parameters():
            nn.init.zeros_(p)
        optimizer = adam(model.parameters())
        for _ in range(2):
            levels.clear()
            calls.clear()
            optimizer.zero_grad()
            F.cross_entropy(model(X), y).backward()
            optimizer.step()
    kept = sum(held(model, optimizer).values())
    return layers, kept, max(levels) / NUMBERS, calls


def _each(make, blocks):
    return [_of_torch(make, layers) for layers in blocks]


def of_torch(make, world_size, blocks):
    """Print what torch's FSDP keeps, its peak and its messages, by layers a block."""
    found = ranks_run(_each, world_size, make, blocks)[0]
    for layers, kept, peak, calls in found:
        gathers = sum(n for call, n in calls.items() if "allgather" in call)
        sums = sum(n for call, n in calls.items() if "reduce_scatter" in call)
        print(
            f"{layers} a block: keeps {kept:.2f}, peak {peak:4.1f},",
            f"{gathers:2} all-gathers, {sums:2} reduce-scatters",
        )


# as it is used


def _save_first(folder):
    import torch.distributed.checkpoint as dcp

    warnings.filterwarnings("ignore")
    dcp.save(stack(torch.float64).state_dict(), checkpoint_id=folder)


def _watched(load, take_step, folder, last_only):
    levels, calls = [], Counter()
    model = load(folder)
    optimizer, (X, y) = adam(model.parameters()), own_rows()
    for _ in range(STEPS - 2):
        take_step(model, optimizer, X, y, last_only)
    with metered(levels, calls=calls):
        for _ in range(2):  # in the first of these it sees all tensors
            levels.clear()
            calls.clear()
            take_step(model, optimizer, X, y, last_only)
    peak = max(levels) / NUMBERS / 2  # in float32: these are in float64
    sums = sum(n for call, n in calls.items() if "reduce_scatter" in call)
    return _full(model), peak, sums


def _both(load, take_step, folder):
    warnings.filterwarnings("ignore")
    return [_watched(load, take_step, folder, one) for one in (False, True)]


def watch(load, take_step, world_size, clip=0.1):
    """Print a step's peak and its sums, and how far five are from one device's."""
    with TemporaryDirectory() as folder:
        ranks_run(_save_first, 1, folder)
        ranks = ranks_run(_both, world_size, load, take_step, folder)
    for name, (_, peak, sums) in zip(("each", "the last"), ranks[0]):
        print(
            f"sums after {name} micro-batch:",
            f"{sums:2} reduce-scatters, peak {peak:4.1f} bytes a weight",
        )
    far = apart(
        [weights for pair in ranks for weights, _, _ in pair],
        clip,
        world_size,
    )
    print(f"weights at most {far:.0e} from one device's")


def _full(model):
    return [p.full_tensor().detach() for p in model.parameters()]


def _steps(model, optimizer, steps):
    X, y = own_rows(total=8 * ROWS)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
    return _full(model)


def _state(model, optimizer):
    from torch.distributed.checkpoint import state_dict as states

    weights, adams = states.get_state_dict(model, optimizer)
    return {"model": weights, "adam": adams}


def _save(load, first, folder):
    import torch.distributed.checkpoint as dcp

    warnings.filterwarnings("ignore")
    model = load(first)
    optimizer = adam(model.parameters())
    _steps(model, optimizer, 3)
    dcp.save(_state(model, optimizer), checkpoint_id=folder)
    return _steps(model, optimizer, 2)


def _go_on(load, first, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as states

    warnings.filterwarnings("ignore")
    found = []
    for forget in (False, True):
        model = load(first)
        optimizer = adam(model.parameters())
        places = _state(model, optimizer)  # this rank's chunks, to be filled
        dcp.load(places, checkpoint_id=folder)
        states.set_state_dict(
            model,
            optimizer,
            model_state_dict=places["model"],
            optim_state_dict=places["adam"],
        )
        if forget:
            optimizer = adam(model.parameters())
        found.append(_steps(model, optimizer, 2))
    return found


def resume(load, world_size):
    """Train three steps, save, train two; do the last two again on fewer ranks."""
    fewer = 1 if world_size == 2 else 2
    with TemporaryDirectory() as first, TemporaryDirectory() as folder:
        ranks_run(_save_first, 1, first)
        undisturbed = ranks_run(_save, world_size, load, first, folder)[0]
        sizes = [
            file.stat().st_size for file in Path(folder).glob("*.distcp")
        ]
        print(f"{len(sizes)} files of {max(sizes) / 1e6:.1f} MB")
        resumed = ranks_run(_go_on, fewer, load, first, folder)[0]
    for what, weights in zip(("", ", without Adam's part"), resumed):
        far = largest_difference(undisturbed, weights)
        print(
            f"{far:.0e} apart, resumed on {fewer} of {world_size} ranks{what}"
        )


# pictures


def _first_step(copies):
    levels, phases, weights = [], {"forward": 0}, 4 * NUMBERS
    X, y = own_rows(torch.float32)
    try:
        with metered(levels, limit=copies * weights):
            stage = Stage0(model := stack(), adam)
            levels.clear()
            loss = F.cross_entropy(model(X), y)
            phases["backward"] = len(levels)
            loss.backward()
            phases["all-reduce, Adam"] = len(levels)
            stage.step()
        ending = "done"
    except MemoryError as error:
        ending = str(error)
    return ending, [level / weights for level in levels], phases


def out_of_memory(world_sizes, copies=4):
    """Take the first step on a device with room for so many copies; draw the last."""
    import matplotlib.pyplot as plt

    for n in world_sizes:
        ending, levels, phases = ranks_run(_first_step, n, copies)[0]
        print(
            f"{ending} on {n} rank{'s'[: n > 1]}, in Adam's step, "
            f"at {levels[-1]:.1f} copies of the weights"
        )
    ax = axes("", "copies of the weights", height=2.5)
    draw(ax, levels, phases, copies * 1.2)
    red = COLOURS[3]
    ax.axhline(copies, color=red, ls="--", lw=1.5)
    ax.text(
        0.05, copies * 1.04, "the device's memory", color=red, fontsize=11
    )
    ax.plot(
        len(phases), copies, "x", color=red, ms=10, mew=2.5, clip_on=False
    )
    plt.show()


def draw(ax, levels, phases, top):
    """Draw the bytes over a step in which each phase is equally wide."""
    x = plot.phases([*phases.values(), len(levels)])
    ax.fill_between(x, levels, color=COLOURS[7], alpha=0.25, lw=0)
    ax.plot(x, levels, color=COLOURS[7], lw=1.4)
    ax.set_xticks([i + 0.5 for i in range(len(phases))], list(phases))
    ax.set_xticks(range(len(phases) + 1), minor=True)
    ax.grid(axis="x", which="minor", color="#b5bac1")
    ax.tick_params(axis="x", which="both", length=0, labelsize=11)
    ax.set(ylim=(0, top), xlim=(0, len(phases)))


def draw_steps(steps):
    """Draw a panel for each {title: (levels, phases)}, each with its own scale."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        len(steps), 1, figsize=(6.4, 4.4), dpi=110, layout="constrained"
    )
    for ax, (title, step) in zip(panels, steps.items()):
        draw(ax, *step, 1.15 * max(step[0]))
        ax.set_title(
            f"{title}: bytes a weight in one step",
            loc="left",
            fontsize=11,
            color=INK,
        )
        ax.spines[["top", "right"]].set_visible(False)
    plt.show()


def draw_strip(world_size, rank=1):
    """Draw two layers as a strip, and what a rank keeps of it in stage 1."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    parts = {"weight 1": 14, "bias 1": 4, "weight 2": 18, "bias 2": 4}
    size = sum(parts.values())
    total = size + -size % world_size
    cut = total / world_size
    _, ax = plt.subplots(figsize=(6.4, 2.6), dpi=110, layout="constrained")
    rows = {"weights": 2, "gradients": 1, "Adam": 0}
    for (name, y), colour in zip(rows.items(), COLOURS):
        mine = rank * cut
        whole = (0, total) if name != "Adam" else (mine, cut)
        ax.barh(y, whole[1], 0.6, left=whole[0], color=colour, alpha=0.4)
        ax.barh(y, cut, 0.6, left=mine, color=colour)
        ax.add_patch(
            Rectangle(
                (0, y - 0.3), total, 0.6, fill=False, ec="#8a9099", lw=1
            )
        )
        for i in range(1, world_size):
            ax.plot([i * cut] * 2, [y - 0.3, y + 0.3], color=INK, lw=1.2)
        ax.text(
            -0.8, y, name, ha="right", va="center", fontsize=11, color=INK
        )
    start = 0
    for name, numbers in parts.items():
        end = start + numbers
        ax.plot(
            [start + 0.2, start + 0.2, end - 0.2, end - 0.2],
            [2.42, 2.52, 2.52, 2.42],
            color=INK,
            lw=1,
        )
        ax.text(
            (start + end) / 2, 2.6, name, ha="center", fontsize=10, color=INK
        )
        start = end
    for i in range(world_size):
        ax.text(
            (i + 0.5) * cut,
            -0.68,
            f"rank {i}" if world_size < 6 else f"{i}",
            ha="center",
            fontsize=10,
            color=INK,
            weight="bold" if i == rank else "normal",
        )
    ax.set(xlim=(-8, total + 0.5), ylim=(-0.9, 3))
    ax.axis("off")
    plt.show()


# what the text says, and the page does not run


def _zero_one():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.nn.parallel import DistributedDataParallel as DDP

    warnings.filterwarnings("ignore")
    model = DDP(stack(torch.float64))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), lr=0.001, optimizer_class=torch.optim.Adam
    )
    X, y = own_rows()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with CommDebugMode() as calls:
            F.cross_entropy(model(X.requires_grad_()), y).backward()
            optimizer.step()
    counts = {str(call): n for call, n in calls.get_comm_counts().items()}
    return [p.detach().clone() for p in model.parameters()], counts


def zero_one(world_size=4):
    """Print the collectives of torch's stage 1 in a step, and if it is right."""
    found = ranks_run(_zero_one, world_size)
    print(
        f"ZeroRedundancyOptimizer, {world_size} ranks: {found[0][1]},",
        end=" ",
    )
    print(f"{apart([weights for weights, _ in found]):.0e} from one device's")


if __name__ == "__main__":
    torch.set_num_threads(1)
    zero_one()
