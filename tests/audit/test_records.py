"""Records say what nobody noted, and a rule about a step speaks of the first."""

import torch
import torch.distributed as dist

from manual_dp.audit import audit
from manual_dp.audit.catalogue import finding
from manual_dp.audit.records import Evidence, Run, Step, each_step
from tests.support.broken_training import ddp, ordinary, rows


def test_the_first_step_that_breaks_a_rule_is_named_and_the_rest_is_not_asked():
    asked = []

    @each_step
    def rule(notes, evidence):
        """Ask for no update."""
        asked.append(notes[0].t)
        if notes[0].updates:
            yield finding("sum", 1, "so")
    steps = [Step(t, updates=updates) for t, updates in enumerate([0, 1, 1])]
    found = rule(Evidence([Run(["w"], [(2,)], steps)]))
    assert [f.step for f in found] == [1] and asked == [0, 1]
    assert rule(Evidence([Run(["w"], [(2,)], steps[:1])])) == []
    assert rule.__doc__ == "Ask for no update."


def test_what_was_applied_is_the_optimizers_gradient_or_the_step():
    note = Step(step=torch.ones(1, 2), blur=2.0)
    assert note.applied is note.step and note.noise == 2e-15
    note.used = torch.zeros(1, 2)
    assert note.applied is note.used and note.noise == 0


def test_whether_weights_moved_is_unknown_where_nobody_looked():
    assert Step().moved is None
    assert Step(before=[1], after=[1]).moved is False
    assert Step(before=[1], after=[2]).moved is True


def test_a_remark_is_said_once():
    evidence = Evidence([Run(["w"], [(2,)], [])])
    for words in ("one", "two", "one"):
        evidence.remark(words)
    assert evidence.remarks == ["one", "two"]


def late(model, optimizer, X, y, calls=[]):  # noqa: B006, a step of its own count
    calls.append(1)
    if len(calls) == 3 and dist.get_rank() == 1:
        optimizer.param_groups[0]["lr"] *= 2
    ordinary(model, optimizer, X, y)


def test_the_first_step_that_shows_it_is_named():
    first, second = audit(ddp, rows(12), late).findings
    assert (first.code, first.rank, first.step) == ("rates-differ", 1, 2)
    assert (second.code, second.parameter, second.step) == ("replicas-differ",
                                                           "0.weight", 2)
