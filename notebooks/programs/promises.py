"""Sentences on Lightning, each run: `python promises.py` prints what they say of it.

trained             a loop by hand with the rows of two ranks
by_hand             the network that it trains
command_line        LightningCLI with the settings of config/lightning.yaml
workers_of          whether the CLI passes workers=True to seed_everything
names_of_the_best   what ranks call the best file, if its name holds their number
lowered             when each rank alone would lower the rate, for ten seeds
names               which names the Trainer takes, and which hook of a data module
verbs               what the Trainer's four verbs say to the lesson's two classes
modes               in which mode, and when, a module's steps run
data_module         who is asked for what
same_rows           how many rows two ranks share in their first step
tested              the score of unequal halves, by sync_dist and by sums
go_on               how far two runs of one epoch end from one of two
accumulated         how many steps, and how long the last group's is
chosen              the accelerator, devices and strategy that a Trainer has chosen
logged              the files that two loggers write, and whose number they hold
in_16_bits          the precision that a CPU makes of a name, and the weights' dtype
profiled            which parts of the loop the simple profiler has timed
"""

import os
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

from programs.beside_a_loop import LESSONS, far, tell, told, trainer
from programs.with_lightning import QUIET, L, Net, digits


class Digits(L.LightningDataModule):
    """Say where the digits come from, and how they are dealt."""

    def __init__(self, rows=24):
        super().__init__()
        self.save_hyperparameters()

    def prepare_data(self):
        """Download here; keep nothing in self."""
        Path(f"prepare_data-{self.trainer.global_rank}").touch()

    def setup(self, stage):
        """Read the files here."""
        Path(f"setup-{self.trainer.global_rank}").touch()
        self.train, self.test = digits()

    def train_dataloader(self):
        """Return a loader without a sampler: the Trainer puts one in."""
        return DataLoader(self.train, self.hparams.rows, shuffle=True)


def trained(net, train, epochs, lr, rows, seed=0):
    """Train with the rows of two ranks together; yield the number of each epoch."""
    deals = [DistributedSampler(train, 2, rank, seed=seed) for rank in (0, 1)]
    for epoch in range(epochs):
        for deal in deals:
            deal.set_epoch(epoch)
        parts = [torch.tensor(list(deal)).split(rows) for deal in deals]
        for both in zip(*parts):
            X, y = train[torch.cat(both)]
            net.zero_grad()
            F.cross_entropy(net.net(X), y).backward()
            for p in net.parameters():
                p.data -= lr * p.grad
        yield epoch


def by_hand(epochs=1, lr=0.1, rows=24):
    """Return the network that two ranks' rows together train."""
    net = Net()
    for _ in trained(net, digits()[0], epochs, lr, rows):
        pass
    return net


def command_line():
    """Return how far the CLI's run ends from the loop by hand."""
    from lightning.pytorch.cli import LightningCLI

    settings = ["fit", "-c", str(LESSONS / "config/lightning.yaml")]
    settings += [
        "--trainer.strategy",
        "ddp_notebook",
    ]  # no script to start again
    program = LightningCLI(
        Net, Digits, save_config_callback=None, args=settings
    )
    return far(program.model, by_hand(lr=0.2))


def workers_of(seed):
    """Return what the CLI makes of `seed_everything: seed`."""
    from lightning.pytorch.cli import LightningCLI

    os.environ.pop("PL_SEED_WORKERS", None)
    try:
        LightningCLI(
            Net,
            Digits,
            run=False,
            save_config_callback=None,
            parser_kwargs={"exit_on_error": False},
            args={"seed_everything": seed, "trainer": QUIET},
        )
        return "PL_SEED_WORKERS=" + os.environ["PL_SEED_WORKERS"]
    except Exception as error:
        return type(error).__name__
    finally:  # a Trainer's sampler reads the seed
        os.environ.pop("PL_GLOBAL_SEED", None)


class _Own(Net):
    """Log a loss that ranks do not share; say what the best file is called."""

    def validation_step(self, batch, index):
        self.log("loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def on_train_end(self):
        [keep] = self.trainer.checkpoint_callbacks
        tell(self, best=Path(keep.best_model_path).name)


def names_of_the_best():
    """Return the best file's name as each rank has it, and the files that there are."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    train, test = digits()
    keep = ModelCheckpoint("best", "{epoch}-{loss:.3f}", monitor="loss")
    trainer([keep]).fit(_Own(), DataLoader(train, 24), DataLoader(test, 24))
    return [said["best"] for said in told()], os.listdir("best")


def lowered(seed, epochs=20, lr=0.1, rows=64):
    """Return after which epochs the loss of each rank's test rows did not fall.

    It is then that a scheduler with patience 0, which asks this rank alone, lowers the
    rate; here the rate stays.
    """
    (train, test), net = digits(), Net().float()
    torch.manual_seed(seed)
    for layer in (net.net[1], net.net[3]):
        layer.reset_parameters()
    net.double()
    mine = [
        [*DistributedSampler(test, 2, rank, shuffle=False)] for rank in (0, 1)
    ]
    best, found = [float("inf")] * 2, [[], []]
    for epoch in trained(net, train, epochs, lr, rows, seed):
        for rank in (0, 1):
            X, y = test[mine[rank]]
            loss = F.cross_entropy(net.net(X), y).item()
            if loss < best[rank] * (1 - 1e-4):  # the scheduler's threshold
                best[rank] = loss
            else:
                found[rank].append(epoch)
    return found


def _error_of(act):
    try:
        act()
    except Exception as error:
        said = str(error).replace("`", "").splitlines()[0]
        return f"{type(error).__name__}: {said[:46]}"
    return "works"


def _fits(hook):
    loader = DataLoader(digits()[0], 720)
    data = type("Data", (L.LightningDataModule,), {hook: lambda _: loader})
    return _error_of(lambda: trainer(devices=1).fit(Net(), data()))


def names():
    """Return what the Trainer says to names, the draft's and others."""
    found = {
        hook: _fits(hook) for hook in ("train_loader", "train_dataloader")
    }
    for strategy in ("dp", "auto", "ddp_notebook"):
        found[f"strategy={strategy}"] = _error_of(
            lambda s=strategy: trainer(strategy=s)
        )
    for devices in ("cuda:0", [0, 1], "2", "auto"):
        settings = {**QUIET, "accelerator": "cpu", "devices": devices}
        found[f"devices={devices}"] = _error_of(
            lambda s=settings: L.Trainer(**s)
        )
    found["L.trainer"] = _error_of(lambda: L.trainer)
    found["device=1"] = _error_of(lambda: L.Trainer(device=1))
    return found


def verbs():
    """Return what fit, validate, test and predict say to the lesson's classes."""
    boss, found = trainer(devices=1), {}
    for verb in ("fit", "validate", "test", "predict"):
        act = getattr(boss, verb)
        found[verb] = _error_of(
            lambda act=act: act(Net(), datamodule=Digits(720))
        )
    for path in [*Path().glob("prepare_data-*"), *Path().glob("setup-*")]:
        path.unlink()
    return found


class _Modes(Net):
    """Note t or v for a step in the right mode, T or V in the other."""

    seen, broken = "", None

    def training_step(self, batch, index):
        self.seen += "t" if self.training else "T"
        return super().training_step(batch, index)

    def validation_step(self, batch, index):
        self.seen += "V" if self.training else "v"
        if index == self.broken:
            raise ValueError("a mistake in validation_step")


def modes(start=Net.train, broken=None, checks=0):
    """Return the modes of two training and two validation steps, and an error."""
    net, loader = _Modes(), DataLoader(digits()[0], 720)
    net.broken = broken
    start(net)
    boss = trainer(devices=1, num_sanity_val_steps=checks)
    error = _error_of(lambda: boss.fit(net, loader, loader))
    return f"{net.seen} {error}"


def data_module():
    """Return which rank was asked for what."""
    trainer().fit(Net(), datamodule=Digits(360))
    paths = sorted([*Path().glob("prepare_data-*"), *Path().glob("setup-*")])
    for path in paths:
        path.unlink()
    return [path.name for path in paths]


class _Rows(Net):
    """Say which rows came first, and how many steps there were."""

    def __init__(self, seeds):
        super().__init__()
        self.seeds, self.seen = seeds, []

    def setup(self, stage):
        torch.manual_seed(self.seeds[self.global_rank])

    def training_step(self, batch, index):
        self.seen.append(batch[2].tolist())
        return super().training_step(batch[:2], index)

    def on_train_end(self):
        tell(self, first=self.seen[0], steps=len(self.seen))


def same_rows(seeds, sampler):
    """Return how many rows both ranks have in their first step, and the steps."""
    numbered = [(X, y, i) for i, (X, y) in enumerate(digits()[0])]
    loader = DataLoader(numbered, 24, shuffle=True)
    trainer(use_distributed_sampler=sampler).fit(_Rows(seeds), loader)
    one, other = told()
    return len({*one["first"]} & {*other["first"]}), one["steps"]


class _Unequal(Net):
    """Test rows 0, 2, 4, ... on rank 0, and 1, 3, 5, ... on rank 1."""

    def test_dataloader(self):
        test = digits()[1]
        rows = range(self.global_rank, len(test), 2)
        return DataLoader(test, 24, sampler=rows)

    def test_step(self, batch, index):
        X, y = batch
        right = (self.net(X).argmax(1) == y).double()
        self.log("mean", right.mean(), sync_dist=True)
        for name, number in (("right", right.sum()), ("of", float(len(y)))):
            self.log(name, number, reduce_fx="sum", sync_dist=True)


def tested():
    """Return the share by sync_dist, and the right ones and all by sums."""
    net = _Unequal()
    net.load_state_dict(by_hand().state_dict())
    boss = trainer(use_distributed_sampler=False)
    [seen] = boss.test(net, verbose=False)
    return seen["mean"], int(seen["right"]), int(seen["of"])


def go_on(with_path, module=Net, **settings):
    """Return how far two fits of one epoch end from two epochs by hand."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    loader = DataLoader(digits()[0], 24, shuffle=True)
    keep = ModelCheckpoint(
        "kept", filename="one", enable_version_counter=False
    )
    trainer([keep], **settings).fit(module(), loader)
    net = module()
    if with_path:
        boss = trainer(max_epochs=2, **settings)
        boss.fit(net, loader, ckpt_path="kept/one.ckpt")
    else:
        net.load_state_dict(torch.load("kept/one.ckpt")["state_dict"])
        trainer(**settings).fit(net, loader)
    return far(net, by_hand(epochs=2))


def accumulated(parts, rows=24):
    """Return Lightning's steps, and how far it ends from means of `parts` minibatches.

    The loop divides by `parts`, also in a last group that has fewer.
    """
    train, net, lightnings = digits()[0], Net(), Net()
    boss = trainer(devices=1, accumulate_grad_batches=parts)
    boss.fit(lightnings, DataLoader(train, rows))
    minibatches = torch.arange(len(train)).split(rows)
    for i, minibatch in enumerate(minibatches, 1):
        X, y = train[minibatch]
        (F.cross_entropy(net.net(X), y) / parts).backward()
        if i % parts == 0 or i == len(minibatches):
            for p in net.parameters():
                p.data -= 0.1 * p.grad
            net.zero_grad()
    return boss.global_step, far(lightnings, net)


def chosen(devices):
    """Return what the Trainer has chosen, as the draft prints it to be sure."""
    boss = trainer(devices=devices)
    names = [type(one).__name__ for one in (boss.accelerator, boss.strategy)]
    return *names, boss.device_ids


class _Logs(Net):
    """Log in each step on which rank it is."""

    def training_step(self, batch, index):
        self.log("rank", float(self.global_rank))
        return super().training_step(batch, index)


def logged():
    """Return the files that two processes' loggers leave, and the logged ranks."""
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    loggers = [CSVLogger("csv"), TensorBoardLogger("board")]
    boss = trainer(logger=loggers, log_every_n_steps=1)
    boss.fit(_Logs(), DataLoader(digits()[0], 360))
    [table] = Path("csv").rglob("metrics.csv")
    head, *rows = [line.split(",") for line in table.read_text().splitlines()]
    events = [*Path("board").rglob("events.*")]
    return len(events), [float(row[head.index("rank")]) for row in rows]


def in_16_bits(precision):
    """Return the precision that the Trainer took, and the dtype of the weights."""
    boss, net = trainer(devices=1, precision=precision), Net().float()
    X, y = digits()[0].tensors
    boss.fit(net, DataLoader([*zip(X.float(), y)], 720))
    return boss.precision, net.net[1].weight.dtype


def profiled():
    """Return the parts of the loop that were timed, and how often each was called."""
    boss = trainer(devices=1, profiler="simple")
    boss.fit(Net(), DataLoader(digits()[0], 360))
    times = boss.profiler.recorded_durations
    return {
        name: len(found)
        for name, found in times.items()
        if "Strategy" in name
    }


def main():
    """Print what each sentence gets."""
    print(f"the CLI against the loop: {command_line():.0e}")
    for seed in ({"workers": True}, 1):
        print(f"seed_everything: {seed}: {workers_of(seed)}")
    for name, found in [*names().items(), *verbs().items()]:
        print(f"{name}: {found}")
    print("the best file, to each rank and on disk:", *names_of_the_best())
    for seed in range(10):
        print(f"seed {seed}: ranks lower their rates after", *lowered(seed))
    print("in train mode before fit:", modes())
    print("in eval mode before fit: ", modes(Net.eval))
    print("two sanity checks:", modes(broken=1, checks=2))
    print("asked:", *data_module())
    for seeds, sampler in (((1, 1), True), ((1, 1), False), ((1, 2), False)):
        print(
            f"seeds {seeds}, sampler {sampler}:", *same_rows(seeds, sampler)
        )
    print("unequal halves: {:.5f} by sync_dist, {} of {}".format(*tested()))
    print(f"with ckpt_path: {go_on(True):.0e} from two epochs")
    print(f"by the weights alone: {go_on(False):.0e}")
    rounded = go_on(True, lambda: Net().float(), precision="64-true")
    print(f"float32, made float64 by the Trainer: {rounded:.0e}")
    for parts in (2, 3, 4, 7, 8):
        print(
            f"{parts} parts:", "{} steps, {:.0e}".format(*accumulated(parts))
        )
    for devices in (1, 2):
        print(f"devices {devices}: chosen:", *chosen(devices))
    print("files of events, and the ranks that were logged:", *logged())
    for precision in ("16-mixed", "bf16-mixed"):
        print(f"precision {precision}:", *in_16_bits(precision))
    print("timed:", profiled())


if __name__ == "__main__":
    main()
