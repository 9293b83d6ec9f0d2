"""Rules are a list; each is asked about records, whoever noted them."""

from torch import nn

from manual_dp.audit import audit, rules
from manual_dp.audit.catalogue import finding
from manual_dp.audit.records import Drift, Evidence, Run, Step
from manual_dp.audit.setup import Setup
from tests.support.broken_training import by_hand, net, rows, sgd, world


def judged(*steps, **run):
    """Return the codes of what is found where rank i noted steps[i]."""
    evidence = Evidence([Run(["w"], [(2,)], [step], **run) for step in steps])
    return [f.code for f in rules.judge(evidence)[0]]


def test_what_nobody_noted_is_no_mistake():
    assert judged(Step(), Step()) == []
    assert judged(Step()) == []


def test_each_rule_needs_no_more_than_its_own_notes():
    def found(first, second):
        return judged(Step(**first), Step(**second))
    assert found({"batch": 1}, {"batch": 2}) == ["batches-differ"]
    assert found({"updates": 2}, {"updates": 2}) == ["accumulation"]
    still, moves = {"before": [1], "after": [1]}, {"before": [1], "after": [2]}
    assert found(still, still) == ["nothing-moved"]
    assert found(still, moves) == ["nothing-moved", "not-judged"]  # no gradient, either
    assert found({"foreign": 1}, {"foreign": 1}) == ["not-in-optimizer"]
    assert judged(Step(synced=2), Step(synced=2), trainable=2) == ["syncs"]
    assert judged(Step(summed=4), Step(summed=4), trainable=2) == ["syncs"]
    assert judged(Step(), Step(), shared=("w", "v")) == ["alias"]
    assert judged(Step(), Step(), again=3) == ["sampler-epoch"]
    drifts = [Drift(None, "gradient", None, [], 1.0), Drift(0, "before", 0, [1], 1.0)]
    assert judged(Step(), Step(), drifts=drifts) == ["start-differs", "not-synchronised"]


def test_setups_are_asked_at_each_moment_until_one_differs():
    def evidence(*moments, alone=None):
        runs = [Run(["w"], [(2,)], [Step(0, setup=one) for one in mine[1:]],
                    setup=mine[0]) for mine in zip(*moments)]
        return Evidence(runs, alone)
    same, other = Setup(buffers={"b": 1}), Setup(buffers={"b": 2})
    frozen = Setup(buffers={"b": 1}, wants={"w": False})
    assert rules.set_up(evidence((same, same), (same, same))) == []
    found = rules.set_up(evidence((same, other), (same, other), (same, frozen)))
    assert [f.code for f in found] == ["buffers", "frozen"]
    one = Run(["w"], [(2,)], [], setup=Setup(groups=[("SGD", [{"momentum": 0.5}])]))
    two = Setup(groups=[("SGD", [{"momentum": 0.9}])])
    [momentum] = rules.set_up(evidence((two, two), alone=one))
    assert momentum.says == "momentum is 0.9 on 2 ranks, 0.5 on one"


def test_a_rule_that_is_appended_is_asked(monkeypatch):
    def never_two(evidence):
        return [finding("hang", len(evidence.runs), "two")] if evidence.runs[1:] else []
    monkeypatch.setattr(rules, "RULES", [*rules.RULES, never_two])
    assert judged(Step()) == [] and judged(Step(), Step()) == ["hang"]


def test_other_layers_on_a_rank_are_all_that_is_said():
    def make_model():
        return sgd(net(*[nn.Linear(8, 8)] * world()[0]))
    [one] = audit(make_model, rows(12), by_hand).findings
    assert one.code == "start-differs"
    assert one.says == "rank 1 has 6 parameters, rank 0 4, or other names or shapes"
