"""Every mistake is found and has its name; what is right has no finding."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from manual_dp import lenet
from manual_dp.audit import audit
from manual_dp.audit.catalogue import WORDS
from tests.support.audited.broken import BROKEN as PROGRAMS_BROKEN
from tests.support.broken_training import BROKEN, CLEAN, case, ddp, ordinary
from tests.support.planted import HONEST, LR, PLANTED, initial, minibatch, plant

# train_batch, with the bugs of tests/support/planted.py

NAMED = {
    "alias": "alias", "mean of shards": "uneven-shards",
    "no allreduce": "not-synchronised", "no broadcast back": "not-sent-back",
    "average": "averaged-twice", "added twice": "counted-twice",
    "last replica left out": "rank-left-out",
    "first bias skipped": "not-synchronised", "last bias skipped": "not-synchronised",
    "divide by shard size": "factor", "wrong batch constant": "factor",
    "lr x k": "sum", "never zero": "stale", "zero first only": "stale",
    "same shard to all": "rows-same", "labels shifted": "labels",
    "last sample dropped": "rows-missed"}


class Shown(torch.nn.Module):
    """Hold all replicas and show one: its parameters are the model's."""

    def __init__(self, replicas, rank):
        super().__init__()
        self.replicas = [list(map(torch.nn.Parameter, params)) for params in replicas]
        self.mine, *others = self.replicas[rank:] + self.replicas[:rank]
        for i, p in enumerate(self.mine):
            self.register_parameter(f"parameter {i}", p)
            for j, other in enumerate(others):
                self.register_buffer(f"parameter {i} of {j}", other[i])

    def forward(self, X):
        return lenet(X, list(self.parameters()))


def audit_replicas(module, world_size=3, n=13, steps=2):
    """Return the report on train_batch: a rank steps all replicas and shows its own."""
    start = initial(torch.float64)
    get_params, train_batch, allreduce = (
        module.get_params, module.train_batch, module.allreduce)  # ranks get these

    def make_model():
        replicas = [get_params(start, "cpu") for _ in range(dist.get_world_size())]
        return Shown(replicas, dist.get_rank())

    def step(model, X, y):
        train_batch.__globals__["lenet"] = lambda X, params: (
            model(X) if params is model.mine else lenet(X, params))
        train_batch(X, y, model.replicas, ["cpu"] * len(model.replicas), LR, allreduce)
    return audit(make_model, lambda t: minibatch(n, t, torch.float64), step, world_size,
                 steps=steps, lr=LR)


@functools.cache
def planted(bug):
    """Return the report on train_batch with this bug, the same one to all tests."""
    with pytest.MonkeyPatch.context() as patch:
        module = plant(patch, *PLANTED[bug])
    steps = 2 if NAMED[bug] == "stale" else 1
    # no import finds the module now, so it is sent as it is
    return audit_replicas(module, steps=steps)


def test_all_seventeen_planted_bugs_are_named():
    assert list(NAMED) == list(PLANTED)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found_and_named(bug):
    report = planted(bug)
    assert report.findings[0].code == NAMED[bug], report


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [12, 13, 3])
def test_train_batch_is_clean(world_size, n):
    report = audit_replicas(HONEST, world_size, n)
    assert report.findings == [], report


@pytest.mark.parametrize("bug, number", [
    ("average", 1 / 3), ("lr x k", 3), ("divide by shard size", 13 / 5),
    ("wrong batch constant", 13 / 256), ("added twice", 2), ("never zero", 3),
    ("zero first only", 2), ("last sample dropped", 1)])
def test_the_number_is_the_one_that_was_planted(bug, number):
    assert planted(bug).findings[0].number == pytest.approx(number, rel=1e-9)


def test_the_parameter_that_was_skipped_is_named():
    first = planted("last bias skipped").findings[0]
    assert (first.parameter, first.step) == ("parameter 7", 0)


# ranks

PROGRAMS = {name: settings for name, (_, settings) in BROKEN.items()} | CLEAN


@functools.cache
def report_of(name):
    """Return the report on training of `broken_training`, the same one to all tests."""
    return audit(**{"steps": 2, **PROGRAMS[name]})


@pytest.mark.parametrize("name", BROKEN)
def test_broken_training_is_found_and_named(name):
    code, report = BROKEN[name][0], report_of(name)
    assert report.findings, report
    assert report.findings[0].code == code, report


@pytest.mark.parametrize("name", CLEAN)
def test_right_training_has_no_finding(name):
    assert report_of(name).findings == [], report_of(name)


def test_the_catalogue_is_as_long_as_promised():
    assert len(BROKEN) + len(PLANTED) >= 30 and len(CLEAN) >= 12
    shown = {code for code, _ in BROKEN.values()} | set(NAMED.values())
    more = {code for codes, _ in PROGRAMS_BROKEN.values() for code in codes}
    # see test_failure, test_endings, test_reads, test_schedule
    apart = {"killed", "dataset-differs", "schedule"}
    assert set(WORDS) <= shown | more | apart


def test_the_same_mistakes_are_named_on_three_ranks():
    for name in ("not wrapped", "divided after DDP", "rank 1 added twice"):
        code, settings = BROKEN[name]
        settings = {**settings, "world_size": 3, "steps": 1}
        assert audit(**settings).findings[0].code == code


@pytest.mark.parametrize("name, number", [
    ("summed on three ranks", 3), ("divided after DDP", 1 / 2),
    ("rank 1 added twice", 2), ("same rows on all ranks", 6), ("tail dropped", 1),
    ("lr times world size", 2), ("accumulation not divided", 2),
    ("lr of its own", 1 / 2),
    ("uneven shards, means", 14 / 13), ("one batch more on rank 0", 1)])
def test_the_number_of_a_finding_shows_it(name, number):
    first = report_of(name).findings[0]
    assert first.number == pytest.approx(number, rel=1e-9)


def test_a_finding_names_parameter_rank_and_step():
    first = report_of("one bias not averaged").findings[0]
    assert first.parameter == "0.bias"
    first = report_of("weights rescaled on rank 1").findings[0]
    assert (first.parameter, first.rank, first.step) == ("2.weight", 1, 0)
    assert first.number > 1e-3


def test_without_a_gradient_that_is_all_that_is_said():
    assert [f.code for f in report_of("one class only").findings] == ["no-gradient"]


def test_where_a_rank_raised_or_hung_is_said():
    report = report_of("an exception on rank 1")
    assert "rank 1 raised KeyError: 'no such file on rank 1'" in report.findings[0].says
    assert report.findings[0].rank == 1 and "in raising" in report.details
    says = report_of("one batch more on rank 0").findings[0].says
    assert "rank 0 in step 0, after 2 forwards" in says
    assert "rank 1 in the end of step 0, after 1 forwards" in says


@pytest.mark.parametrize("name, words", [
    ("batch norm of a shard", "batch norm (1 layer) takes the mean and variance of a "
     "rank's own rows"),
    ("synchronised in each micro-batch", "gradients are all-reduced 2 times in a step of "
     "2 forwards"),
    ("averaged by hand after DDP", "gradients are all-reduced 2 times in a step of 1 "
     "forward:")])
def test_what_is_right_and_should_be_known_is_a_remark(name, words):
    assert any(said.startswith(words) for said in report_of(name).remarks)


def test_the_regime_of_the_learning_rate_is_said():
    report = report_of("linear scaling, fixed rows a rank")
    assert [words.split(":")[0] for words in report.remarks] == [
        "fixed rows a rank, lr scaled (linear for SGD; use warm-up)"]
    report = report_of("torch DDP, 2 ranks, even")
    assert [words.split(":")[0] for words in report.remarks] == [
        "same rows a step, so no scaling of lr"]
    assert report_of("same rows on all ranks").remarks == []


# the report

def test_a_report_tells_the_steps_and_ranks_of_its_audit():
    lines = str(report_of("uneven shards, means")).splitlines()
    assert lines[0] == "audit: 2 steps on 2 ranks, float64: 1 finding"
    assert lines[1].startswith("uneven-shards     a mean of means: shards of [7, 6] rows")
    lines = str(report_of("torch DDP, 2 ranks, even")).splitlines()
    assert lines[0] == "audit: 2 steps on 2 ranks, float64: clean"


def test_a_report_keeps_what_the_ranks_noted_and_does_not_save_it(tmp_path):
    report = report_of("uneven shards, means")
    [first, second] = report.evidence.steps
    assert [note.rows for note in first] == [[[*range(0, 13, 2)]], [[*range(1, 13, 2)]]]
    assert [note.t for note in second] == [1, 1] and len(report.evidence.alone) == 2
    report.save(tmp_path / "report.json")
    assert "evidence" not in (tmp_path / "report.json").read_text()
    assert report_of("an exception on rank 1").evidence is None


def test_an_ignored_finding_is_a_remark():
    settings = BROKEN["uneven shards, means"][1]
    report = audit(**settings, steps=1, ignore=["uneven-shards"])
    assert report.findings == []
    assert any(words.startswith("uneven-shards, ignored: ") for words in report.remarks)


# arguments

def audited(**changes):
    return audit(**{**case(ddp, ordinary), **changes})


@pytest.mark.parametrize("changes, error, words", [
    ({"make_model": 3}, TypeError, "make_model must be callable, got int"),
    ({"step": None}, TypeError, "step must be callable, got NoneType"),
    ({"world_size": 0}, ValueError, "world_size must be a whole number from 1, got 0"),
    ({"steps": 1.5}, ValueError, "steps must be a whole number from 1, got 1.5"),
    ({"timeout": 0}, ValueError, "timeout must be seconds"),
    ({"ignore": "sum"}, ValueError, "ignore must be a list of codes"),
    ({"ignore": ["summ"]}, ValueError, r"got \['summ'\]"),
])
def test_an_argument_that_does_not_fit_is_refused(changes, error, words):
    with pytest.raises(error, match=words):
        audited(**changes)


def test_nothing_of_the_audit_stays_in_the_process():
    before = (DistributedDataParallel.__init__, DistributedSampler.__iter__,
              dist.all_reduce, torch.get_default_dtype())
    audit_replicas(HONEST)
    audited(world_size=1)
    assert before == (DistributedDataParallel.__init__, DistributedSampler.__iter__,
                      dist.all_reduce, torch.get_default_dtype())
