"""Lightning around LeNet: what it takes, deals, logs and writes, on one rank and on two.

Ranks are those of `run_ranks`, told what torchrun would tell; so they have deadlines.
They import lightning, which takes ten seconds, once for all tests: what one rank and
what two ranks find is a fixture. The command line runs in a process of its own.
"""

import contextlib
import io
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course.lab.quiet import beside, quiet_trainer
from manual_dp import init_params, largest_difference, lenet
from manual_dp.data import ensure_torchvision
from manual_dp.ranks import run_ranks

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "notebooks/config/lightning.yaml"
DEADLINE = 400  # seconds: the import of lightning alone takes 30 where many work


def fit(per_rank=False):
    """Train an epoch in float64; return what was trained, and how far by hand it is."""
    from manual_dp.models.lightning import Images, LitLeNet
    note, model = beside(), LitLeNet(lr=0.05).double()
    trainer = quiet_trainer(max_epochs=1, precision="64-true", callbacks=[note])
    trainer.fit(model, Images(batch_size=48, per_rank=per_rank))
    assert note.steps == trainer.global_step
    return trainer.global_step, [p.detach() for p in model.parameters()], note.apart


@pytest.fixture(scope="module")
def alone():
    """Return what one rank finds: {function's name: what it returns}."""
    [found] = run_ranks(lambda: {one.__name__: one() for one in (wrong, fit, told, refused)},
                        1, timeout=DEADLINE)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("written")


@pytest.fixture(scope="module")
def both(folder):
    """Return what two ranks find, {function's name: what each returns}."""
    ranks = run_ranks(lambda: {"per rank": fit(per_rank=True)} | {
        one.__name__: one() for one in (fit, told, dealt, drawn, listened)} | {
        "tested": and_tested(str(folder))}, 2, timeout=DEADLINE)
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


# the same training

def test_ranks_that_share_the_minibatch_train_what_one_process_trains(both, alone):
    steps, weights, apart = alone["fit"]
    assert steps == 24 and apart <= 1e-10
    for count, mine, far in both["fit"]:
        assert count == 24 and far <= 1e-10
        assert largest_difference(mine, weights) <= 1e-10


def test_as_many_rows_on_each_rank_are_another_training_in_half_the_steps(both, alone):
    steps, mine, apart = both["per rank"][0]
    assert steps == 12 and apart <= 1e-10  # each step is right
    assert largest_difference(mine, alone["fit"][1]) > 1e-3


def test_one_process_equals_a_loop_by_hand(alone):
    from torch.nn import functional as F
    from torch.utils.data import DistributedSampler

    from manual_dp import load_data
    train, _ = load_data()
    kept = [i for i in range(len(train.X)) if i % 6 != 5]
    X, y = train.X[kept].double(), train.y[kept]
    params = [p.double().requires_grad_() for p in init_params(
        "he", torch.Generator().manual_seed(0))]
    order = torch.tensor(list(DistributedSampler(range(len(X)), 1, 0)))
    for rows in order[:24 * 48].split(48):
        loss = F.cross_entropy(lenet(X[rows], params), y[rows])
        for p, grad in zip(params, torch.autograd.grad(loss, params)):
            p.data -= 0.05 * grad
    assert largest_difference([p.detach() for p in params], alone["fit"][1]) <= 1e-10


# what the trainer was told

def told():
    trainer = quiet_trainer()
    return [type(trainer.accelerator).__name__, trainer.num_devices,
            type(trainer.strategy).__name__, trainer.world_size, trainer.global_rank]


def test_accelerator_devices_and_strategy_are_those_that_were_named(alone, both):
    assert alone["told"] == ["CPUAccelerator", 1, "DDPStrategy", 1, 0]
    assert both["told"] == [["CPUAccelerator", 2, "DDPStrategy", 2, rank] for rank in (0, 1)]


def dealt():
    """Return what is dealt: by our loaders, and by the sampler that is put in."""
    from torch.utils.data import DataLoader

    from manual_dp.models.lightning import Images, LitLeNet
    trainer, data, model = quiet_trainer(max_steps=1), Images(), LitLeNet()
    trainer.fit(model, data)
    ours = [list(data.train_dataloader().sampler), list(data.test_dataloader().sampler),
            data.train_dataloader().batch_size]
    plain = quiet_trainer(max_steps=1)
    plain.fit(model, DataLoader(data.train, 24, shuffle=True))
    sampler = plain.train_dataloader.sampler
    return *ours, type(sampler).__name__, sampler.num_replicas, sampler.rank


def test_rows_are_dealt_once_and_lightning_puts_a_sampler_into_a_plain_loader(both):
    ranks = both["dealt"]
    trained, tested = ([rank[i] for rank in ranks] for i in (0, 1))
    assert len({*trained[0], *trained[1]}) == 1198  # of 1199: the last has no partner
    assert sorted(tested[0] + tested[1]) == list(range(359))  # all, and none twice
    assert [rank[2:] for rank in ranks] == [
        (24, "DistributedSampler", 2, rank) for rank in (0, 1)]


def drawn():
    """Return what a worker of this rank draws first, in two runs of the same seed."""
    from torch.utils.data import Dataset

    from manual_dp.models.lightning import Images, LitLeNet

    class Draws(Dataset):
        def __len__(self):
            return 96

        def __getitem__(self, i):
            return torch.rand(1)
    data = Images(workers=1)
    quiet_trainer(max_steps=1).fit(LitLeNet(), Images())  # the group's ranks are known
    data.trainer, data.train = quiet_trainer(), Draws()
    return [next(iter(data.train_dataloader()))[0].item() for _ in range(2)]


def test_a_seed_reaches_the_workers_and_gives_each_rank_draws_of_its_own(both):
    (first, again), (second, other) = both["drawn"]
    assert first == again and second == other and first != second


# what is counted, and written

def and_tested(folder):
    """Fit with logs and a checkpoint, then test; return what this rank has to say."""
    ensure_torchvision()
    from lightning.pytorch.loggers import CSVLogger

    from manual_dp.audit import check_ranks
    from manual_dp.models.lightning import Images, LitLeNet
    model, data, wrote = LitLeNet(lr=0.05).double(), Images(), []
    trainer = quiet_trainer(max_epochs=1, precision="64-true",
                            enable_checkpointing=True, default_root_dir=folder,
                            logger=CSVLogger(folder, "logs", version=0))
    save = trainer.strategy.save_checkpoint
    trainer.strategy.save_checkpoint = lambda *args, **kwargs: (
        wrote.append(trainer.is_global_zero), save(*args, **kwargs))
    trainer.fit(model, data)
    logged = trainer.test(model, data, verbose=False)[0]["test_acc"]
    with torch.no_grad():
        X, y = data.test.tensors
        right = int((model(X.double()).argmax(1) == y).sum())
    found = check_ranks(model, optimizer=trainer.optimizers[0])
    return logged, right, len(y), found, len(wrote), dist.get_rank()


def test_the_test_score_is_that_of_every_row_once_and_files_are_written_once(both, folder):
    for logged, right, rows, found, *_ in both["tested"]:
        assert rows == 359 and found == []
        assert logged == pytest.approx(right / rows, abs=1e-6)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*")
                   if path.is_file())
    assert files == ["logs/version_0/checkpoints/epoch=0-step=24.ckpt",
                     "logs/version_0/hparams.yaml", "logs/version_0/metrics.csv"]
    lines = (folder / "logs/version_0/metrics.csv").read_text().splitlines()
    assert len(lines) == 4  # names, validation, training, test: once, not once a rank


def listened():
    ensure_torchvision()
    import lightning

    from manual_dp.audit import watch
    from manual_dp.models.lightning import Images, LitLeNet

    class Listen(lightning.Callback):
        def on_train_start(self, trainer, module):
            self.seen = watch(trainer.strategy.model, trainer.optimizers[0])
    listen = Listen()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        quiet_trainer(max_epochs=1, callbacks=[listen]).fit(LitLeNet(), Images())
    report = listen.seen.report
    return report and (report.findings, report.unchecked, "not seen: clean" in out.getvalue())


def test_watch_has_nothing_against_lightning(both):
    assert both["listened"] == [([], [], True), None]


# wrong arguments

def refused():
    """Return what is said to each wrong argument."""
    from manual_dp.models.lightning import Images, LitLeNet
    said = []
    for make in (lambda: Images(batch_size=0), lambda: Images(workers=-1),
                 lambda: Images(seed=True), lambda: LitLeNet(lr=-0.1),
                 lambda: LitLeNet(lr=math.nan), lambda: LitLeNet(lr=math.inf),
                 lambda: LitLeNet(seed=0.5),
                 lambda: Images(batch_size=50).rows_of_a_rank(4)):
        with pytest.raises(ValueError) as error:
            make()
        said.append(str(error.value))
    shared = Images(batch_size=48).rows_of_a_rank(4)
    return said, shared, Images(batch_size=50, per_rank=True).rows_of_a_rank(4)


def test_wrong_arguments_are_refused_with_their_name_and_value(alone):
    said, shared, own = alone["refused"]
    assert said == ["batch_size must be a number >= 1, got 0",
                    "workers must be a number >= 0, got -1",
                    "seed must be a number >= 0, got True",
                    "lr must be a number >= 0, got -0.1",
                    "lr must be a number >= 0, got nan",
                    "lr must be a number >= 0, got inf",
                    "seed must be a number >= 0, got 0.5",
                    "batch_size 50 is not divisible by 4"]
    assert (shared, own) == (12, 50)


# the command line

def python(folder, *words):
    """Run Python in an empty folder; return its status, lines and errors."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environ,
                          capture_output=True, text=True, timeout=DEADLINE)
    return done.returncode, done.stdout, done.stderr


def test_fit_on_two_devices_says_what_runs_and_leaves_nothing(tmp_path):
    code, out, err = python(tmp_path, "-m", "manual_dp.models.lightning", "fit", "-c",
                            str(CONFIG), "--trainer.max_epochs", "1",
                            "--trainer.precision", "64-true")
    assert (code, err, list(tmp_path.iterdir())) == (0, "", [])
    assert out == ("accelerator CPUAccelerator, devices 2, strategy DDPStrategy, "
                   "2 x 24 rows a minibatch\nloss 1.8204, val_acc 0.5983\n")


KEPT = """
import sys
from pathlib import Path
from manual_dp.models.command import main
one = ["-c", sys.argv[1], "--trainer.devices", "1"]
main(["fit", *one, "--trainer.max_epochs", "2", "--trainer.enable_checkpointing", "true",
      "--trainer.default_root_dir", "kept"])
[saved] = Path().rglob("*.ckpt")
main(["test", *one, "--ckpt_path", str(saved)])
"""


def test_what_is_asked_for_is_kept_and_read_again(tmp_path):
    code, out, _ = python(tmp_path, "-c", KEPT, str(CONFIG))
    [saved] = tmp_path.rglob("*.ckpt")
    assert code == 0 and saved.name == "epoch=1-step=48.ckpt"
    assert float(re.search(r"test_acc\D+([\d.]+)", out)[1]) > 0.5  # untrained: 0.1


WRONG = [
    (["--trainer.strategy", "dp"], "invalid strategy name: `strategy='dp'`"),
    (["--trainer.devices", "cuda:0"], "`devices` selected with `CPUAccelerator`"),
    (["--trainer.epochs", "3"], "epochs"),
    (["--model.lr", "fast"], "lr must be a number >= 0, got 'fast'"),
    (["--data.batch_size", "49"], "batch_size 49 is not divisible by 2"),
    (["--data.data", "mnist"], "data must be one of digits, fashion-mnist"),
    (["-c", "none.yaml"], "File does not exist"),
    (["--optimizer", "torch.optim.Adamm"], "Adamm")]


def wrong():
    """Return status and errors of the command for each wrong configuration."""
    from manual_dp.models.command import main
    found = []
    for words, _ in WRONG:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            with pytest.raises(SystemExit) as ended:
                main(["fit", "-c", str(CONFIG), *words])
        found.append((ended.value.code, err.getvalue()))
    return found


def test_a_wrong_configuration_gives_one_line(alone):
    for (_, message), (code, err) in zip(WRONG, alone["wrong"]):
        [line] = err.splitlines()
        assert code == 2 and message in line
        assert line.startswith("manual_dp.models.lightning: error: ")
