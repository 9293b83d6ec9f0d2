"""What is said about data-parallel training, and what a run says of it.

    CLAIMS      (source, claim) in the order of lesson 16, numbered from 1
    Verdicts    take one verdict for each claim, from a measurement; print the table

    verdict = Verdicts()
    verdict(3, len(set(sizes)) == 1, f"10 rows over 4: {sizes}")

A claim is put in a few words of ours; the lesson says where it stands. Sources:
book = d2l.ai 12.5; U-Net, deep dive, blog, ResNet-50 = four articles on the web;
torch = its documentation; guide = LambdaLabs' distributed-training-guide.
"""

CLAIMS = [  # (source, claim) in the order of lesson 16, numbered from 1
    ("book", "`p.to(device)` copies a parameter to the device"),
    ("book", "before any computation the gradient is zero"),
    ("book", "the minibatch is split evenly"),
    ("book", "with `try_gpu` the section's code also runs without a GPU"),
    ("book", "`allreduce` leaves the sum on every device"),
    ("book", "shards are computed in parallel automatically (here: on a CPU)"),
    ("book", "one device or two, same minibatch and rate: identical algorithms"),
    ("book", "more GPUs do not allow us to train larger models"),
    ("deep dive", "DataParallel cuts the minibatch; each device has the full model"),
    ("deep dive", "batch_size=32 under DataParallel: each GPU gets 32"),
    ("deep dive", "the model must be on the GPU before DataParallel wraps it"),
    ("deep dive", "DDP runs one process for each GPU"),
    ("ResNet-50", "batch_size=128 means the same in its examples 1 and 2"),
    ("U-Net", "example 1: two GPUs with 64 rows each make a minibatch of 128"),
    ("U-Net", "example 1: parameters become inconsistent between GPUs"),
    ("U-Net", "example 2: DDP synchronises the gradients correctly"),
    ("U-Net", "example 2: keeping the learning rate is a mistake"),
    ("U-Net", "example 3: the rate times world_size is the correct one"),
    ("U-Net", "64 // world_size rows a rank make a minibatch of 64"),
    ("U-Net", "DDP performs the parameter updates"),
    ("deep dive", "gradients are averaged before the update"),
    ("guide", "`optimizer.step()` is where gradients are synchronised"),
    ("torch", "DDP never broadcasts parameters between processes"),
    ("torch", "DDP broadcasts the parameters when it is constructed"),
    ("U-Net", "`dist.get_rank()` is the number of the process's GPU"),
    ("deep dive", "many machines need something else: torch.distributed"),
    ("ResNet-50", "rank=0, world_size=1 is all that a local run needs"),
    ("blog", "4 GPUs with 32 rows each: an effective minibatch of 128"),
    ("blog", "from 1 to 4 such GPUs, scale the rate by 4 (here: SGD)"),
    ("U-Net", "scale the rate by the number of GPUs (as there: Adam)"),
    ("U-Net", "a rate not raised for a larger minibatch can make it unstable"),
    ("blog", "with more GPUs, schedulers need another number of steps"),
    ("blog", "data is shuffled within a GPU's subset only"),
    ("ResNet-50", "`set_epoch` is important for the shuffling"),
    ("deep dive", "another seed on each GPU gives each its own data"),
    ("ResNet-50", "the sampler gives each process another subset"),
    ("blog", "a larger effective minibatch changes batch norm's statistics"),
    ("blog", "at first every process thinks that it is the main one"),
    ("blog", "`is_main_process()` lets one process download"),
    ("blog", "pipeline parallel combines data and model parallelism"),
    ("ResNet-50", "accumulation: call zero_grad() less often than step()"),
    ("ResNet-50", "accumulation: n backwards and a step act as a larger minibatch"),
]


class Verdicts:
    """Hold a verdict for each of `claims`; `given` maps a claim's number to it."""

    def __init__(self, claims=CLAIMS):
        self.claims = list(claims)
        self.given = {}

    def __call__(self, number, holds, found):
        """Print claim `number`, whether it holds, and what was found.

        holds: True or False, computed. A claim that is decided twice must be decided
        alike. Raises TypeError or ValueError, and then keeps nothing.
        """
        _check(number, holds, found, self.claims, self.given)
        self.given[number] = holds
        source, claim = self.claims[number - 1]
        print(f"{number}. {source}: {claim}\n   {_word(holds)}: {found}")

    def table(self):
        """Return all claims as text, a line for each, with its verdict or a "?"."""
        wide = max(len(source) for source, _ in self.claims)
        lines = [f"{'':3} {'verdict':7}  {'source':{wide}}  claim"]
        for number, (source, claim) in enumerate(self.claims, 1):
            word = _word(self.given.get(number))
            lines.append(f"{number:3} {word:7}  {source:{wide}}  {claim}")
        return "\n".join(lines)


def _word(holds):
    return {True: "true", False: "false", None: "?"}[holds]


def _check(number, holds, found, claims, given):
    if type(number) is not int or not 1 <= number <= len(claims):
        raise ValueError(f"claims have numbers from 1 to {len(claims)}, got {number!r}")
    if type(holds) is not bool:
        raise TypeError(f"claim {number}: holds must be True or False, got {holds!r}")
    if not isinstance(found, str) or not found.strip():
        raise ValueError(f"claim {number}: say what was found, got {found!r}")
    if given.get(number, holds) != holds:
        raise ValueError(f"claim {number} was decided before, as "
                         f"{_word(given[number])}; this run says {_word(holds)}")
