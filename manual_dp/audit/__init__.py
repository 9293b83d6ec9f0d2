"""Is my training on many devices correct? Compare it with a single device, and say.

    audit_step    run a few steps of your own code on ranks and alone; return a Report
    watch         two lines in a script: its first steps, as it runs
    audit_script  a script as it is, on ranks: python -m manual_dp audit -- train.py
    check_ranks   one line in a script: are the ranks still alike?
    Report        findings with cause and repair; what was looked at, and what was not

    def make_model():                  in each rank; may be wrapped, the group is there
        return DDP(nn.Linear(3, 2))    or (model, optimizer, ...), several of each
    def make_batch(t):                 the whole minibatch of step t, on all ranks alike
        return X, y                    any nest: a dict, a dataclass, ...
    def step(model, X, y):             your code: its own shard of X, backward, update
        ...                            if two were made: step(model, optimizer, X, y)
    print(audit_step(make_model, make_batch, step, world_size=2))

Data parallelism is judged: on every rank a replica of the model, one gradient. In
`audit_step` a step is right if it is the one that the same code takes at world size 1,
in float64. So a mistake that a single device makes, too, is not seen: hand in
`reference`, a step as one device should take it.

    compare exact                        the same steps on ranks and on one device
    command script watch discover        a script as it is: who trains what?
    recorder losses randomness rows      what a rank hears, from update to update
    notes summary state sketch           what it notes, small enough to be sent
    rules matrix                         what is wrong: who counts whom?
    report                               the words
    board stands                         who waits for whom
    private                              what torch has no public name for
"""

from manual_dp.audit.command import audit_script
from manual_dp.audit.compare import audit_step
from manual_dp.audit.report import Report
from manual_dp.audit.state import check_ranks
from manual_dp.audit.watch import watch

__all__ = ["audit_script", "audit_step", "Report", "check_ranks", "watch"]
