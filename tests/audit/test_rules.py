"""Rules are a list; each is asked about records, whoever noted them."""

import pytest
import torch
from torch import nn

from manual_dp.audit import audit, rules
from manual_dp.audit.catalogue import finding
from manual_dp.audit.fingerprint import SIZE
from manual_dp.audit.records import Clip, Drift, Evidence, Run, Step
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
    twice = {"updates": 2, "size": 4, "all_rows": [[0], [1]]}
    assert found(twice, {**twice, "all_rows": [[2], [3]]}) == ["accumulation"]
    assert found({**twice, "wraps": "join"}, {**twice, "all_rows": [[2], [3]]}) == []
    still, moves = {"before": [1], "after": [1]}, {"before": [1], "after": [2]}
    assert found(still, still) == ["nothing-moved"]
    assert found({**still, "t": 0}, moves | {"t": 0, "updates": 1}) == ["nothing-moved"]
    assert found({"foreign": 1}, {"foreign": 1}) == ["not-in-optimizer"]
    assert judged(Step(), Step(), shared=("w", "v")) == ["alias"]
    assert judged(Step(), Step(), again=3) == ["sampler-epoch"]
    seeded = {"seeded": (1,), "drops": True}
    assert found(seeded, seeded) == ["random-same"]
    assert found(seeded, {**seeded, "seeded": (2,)}) == []
    assert found(seeded, {**seeded, "drops": False}) == []
    drifts = [Drift(None, "gradient", None, [], 1.0), Drift(0, "before", 0, [1], 1.0)]
    assert judged(Step(), Step(), drifts=drifts) == ["start-differs", "not-synchronised"]


def test_what_costs_time_and_is_no_mistake_is_a_remark():
    def remarks(*steps, **run):
        evidence = Evidence([Run(["w"], [(2,)], [step], **run) for step in steps])
        findings, remarks, _ = rules.judge(evidence)
        assert findings == []
        return remarks
    went = {"all_rows": [None] * 2, "pieces": [torch.ones(1, SIZE)] * 2}
    for note in Step(synced=2, **went), Step(summed=4, **went):
        [words] = remarks(note, note, trainable=2)
        assert words.startswith("gradients are all-reduced 2 times in a step")
        assert remarks(note, trainable=2) == []
    assert remarks(Step(summed=3, **went), Step(synced=1, **went), trainable=2) == []
    once = Step(synced=2, all_rows=[None] * 2, pieces=[torch.ones(1, SIZE)])
    assert remarks(once, once, trainable=2) == []  # two forwards of one backward
    none = Step(summed=4)  # the model's other methods were called
    assert remarks(none, none, trainable=2) == []
    [words] = remarks(*[Step(start=Setup(norms=2, own_norms=2)) for _ in range(2)])
    assert words.startswith("batch norm (2 layers) takes the mean and variance")


@pytest.mark.parametrize("lists, says", [
    ([[], [Clip(1, 2.0)]], "rank 1 clips its gradients 1 times in the step, rank 0 0"),
    ([[Clip(1, 2.0)], [Clip(2, 2.0)]], "rank 1 clips a norm of 2 to 2, rank 0 2 to 1"),
    ([[Clip(1, 2.0)], [Clip(1, 2.1)]], "rank 1 clips a norm of 2.1 to 1, rank 0 2 to 1"),
    ([[Clip(1, 2.0)], [Clip(1, 2.0 + 1e-9)]], None)])
def test_all_ranks_clip_one_norm_to_one_number(lists, says):
    steps = [Step(0, clips=mine) for mine in lists]
    found = rules.clips(Evidence([Run(["w"], [(2,)], [step]) for step in steps]))
    assert [(f.code, f.says) for f in found] == [("clip", says)] * bool(says)


def test_max_norm_is_compared_with_one_device():
    def found(alone):
        alone = Run(["w"], [(2,)], [Step(0, clips=[Clip(alone, 7.0)])])
        runs = [Run(["w"], [(2,)], [Step(0, clips=[Clip(1, 2.0)])]) for _ in range(2)]
        return [f.says for f in rules.clips(Evidence(runs, alone))]
    assert found(1) == []
    assert found(0.5) == ["max_norm is 1 on 2 ranks, 0.5 on one"]


ONES = torch.ones(1, 2, dtype=torch.float64)


def drifted(before, after, stepped=None, t=0, far=1):
    """Return what is found where rank i has the hash before[i], and after the step."""
    steps = [0 * ONES, 3 * ONES]
    runs = [Run(["w"], [(2,)], [Step(t, before=[b], after=[a], step=step,
                                     weights=(1 + far * a) * ONES,
                                     stepped=stepped or {})])
            for b, a, step in zip(before, after, steps)]
    return [(f.code, f.rank, f.step, f.parameter) for f in rules.drift(Evidence(runs))]


def test_ranks_that_part_are_named_with_step_and_parameter():
    assert drifted([1, 1], [2, 2]) == []
    assert drifted([1, 1], [2, 8], far=1e-15) == []  # rounding
    assert drifted([1, 1], [2, 8], far=1e-11) == [("replicas-differ", 1, 0, "w")]
    assert drifted([1, 9], [2, 8]) == [("start-differs", 1, 0, "w")]
    assert drifted([1, 1], [2, 8]) == [("replicas-differ", 1, 0, "w")]
    assert drifted([1, 9], [2, 8], t=1) == [("replicas-differ", 1, 1, "w")]
    # they were alike after the optimizer's step
    assert drifted([1, 1], [2, 8], stepped={0: 2}) == [("weights-changed", 1, 0, "w")]
    assert drifted([1, 1], [8, 2], stepped={0: 2}) == [("weights-changed", 0, 0, "w")]


def test_where_a_rank_steps_later_nothing_else_is_said_from_then_on():
    def found(late, step=0, watched=False):
        runs = [Run(["w"], [(2,)], [
            Step(0, before=[9], after=[rank], step=0 * ONES, weights=(1 + rank) * ONES,
                 setup=Setup(), all_rows=[[], []][:1 + rank * late])])
            for rank in range(2)]
        evidence = Evidence(runs, watched=watched)
        for code in "rates-differ", "clip", "gradient", "alias":
            evidence.findings.append(finding(code, 1, "", 1, step))
        return [(f.code, f.says) for f in rules.judge(evidence)[0]]
    assert found(late=True) == [
        ("alias", ""), ("replicas-differ", "since step 0 (taken after 2 forwards on rank 1, "
                        "after 1 on rank 0) w is 1.4e+00 from rank 0's on rank 1")]
    assert [code for code, _ in found(late=False, watched=True)] == [
        "alias", "clip", "rates-differ", "replicas-differ", "gradient"]
    assert [code for code, _ in found(late=False)] == [  # beside a single device
        "alias", "gradient", "clip", "rates-differ", "replicas-differ"]
    assert len(found(late=True, step=-1)) == 5  # of steps before


def test_the_distance_is_that_of_the_sketches():
    weights = torch.ones(1, 2), torch.tensor([[4.0, 5.0]])
    runs = [Run(["w"], [(2,)], [Step(0, before=[1], after=[i], weights=w,
                                     step=torch.zeros(1, 2))])
            for i, w in enumerate(weights)]
    [one] = rules.drift(Evidence(runs))
    assert one.number == 5 and one.says == "since step 0 w is 5.0e+00 from rank 0's on rank 1"


def test_setups_are_asked_at_each_moment_until_one_differs():
    def evidence(*moments, alone=None):
        runs = [Run(["w"], [(2,)], [Step(t, setup=one) for t, one in enumerate(mine)])
                for mine in zip(*moments)]
        return Evidence(runs, alone)
    same, other = Setup(buffers={"b": 1}), Setup(buffers={"b": 2})
    frozen = Setup(buffers={"b": 1}, wants={"w": False})
    assert rules.set_up(evidence((same, same), (same, same))) == []
    found = rules.set_up(evidence((same, other), (same, other), (same, frozen)))
    assert [f.code for f in found] == ["buffers", "frozen"]
    one = Run(["w"], [(2,)], [Step(0, setup=Setup(groups=[("SGD", [{"momentum": 0.5}])]))])
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
