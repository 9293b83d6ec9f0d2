"""Is my training on many devices correct? Compare it with a single device, and say.

    audit         run a few steps of your own code under watch; return a Report
    Report        findings with the number that shows each; print it, save it as JSON
    check_ranks   one line in a script of your own; a page of its own, audit_ranks.py

    def make_model():                  in each rank; may be wrapped, the group is there
        return DDP(nn.Linear(3, 2))    or (model, optimizer)
    def make_batch(t):                 the whole minibatch of step t, on all ranks alike
        return X, y
    def step(model, X, y):             your code: its own shard of X, backward, update
        ...
    print(audit(make_model, make_batch, step, world_size=2))

All is computed in float64, where honest training agrees with a single device to 13
digits, and no mistake hides. Replicas that are equal prove little: of 17 planted bugs
that sees 5, and the accuracy 2.
"""

import json
import re
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch.nn import functional as F

from manual_dp.audit import measure, replicas
from manual_dp.audit.alone import doubtful
from manual_dp.audit.catalogue import WORDS, finding
from manual_dp.audit.ranks import check_ranks
from manual_dp.audit.rules import judge
from manual_dp.files import write_json
from manual_dp.ranks import RankError, run_ranks

__all__ = ["audit", "Report", "check_ranks"]


class Report:
    """Hold an audit's findings, causes first; print as a table.

    remarks: what was seen and is no mistake. details: a traceback, if a rank raised.
    """

    def __init__(self, findings, remarks, world_size, steps, details=""):
        self.findings, self.remarks = list(findings), list(remarks)
        self.world_size, self.steps, self.details = world_size, steps, details

    def __str__(self):
        """Write the table: a line for each number, cause and repair under it."""
        count = len(self.findings)
        words = "clean" if not count else f"{count} finding{'s' * (count > 1)}"
        lines = [f"audit: {self.steps} steps on {self.world_size} ranks, float64: "
                 + words]
        for f in self.findings:
            lines += textwrap.wrap(f"{f.code:16}  {f.says}", 88,
                                   subsequent_indent=" " * 18)
            for name, words in (("cause", f.cause), ("repair", f.repair)):
                lines += textwrap.wrap(f"{name:>16}: {words}", 88,
                                       subsequent_indent=" " * 18)
        for words in self.remarks:
            lines += textwrap.wrap(f"{'remark':16}  {words}", 88,
                                   subsequent_indent=" " * 18)
        return "\n".join(lines)

    __repr__ = __str__

    def as_dict(self):
        """Return what JSON can hold."""
        return {"world_size": self.world_size, "steps": self.steps,
                "clean": not self.findings, "remarks": self.remarks,
                "findings": [f._asdict() for f in self.findings],
                "details": self.details}

    def save(self, path):
        """Write the report as JSON: the whole of it or, if interrupted, none."""
        write_json(path, self.as_dict())


def audit(make_model, make_batch, step, world_size=2, loss=F.cross_entropy, steps=3,
          timeout=60, ranks=True, forward=None, lr=None, count=len, ignore=(),
          backend="gloo"):
    """Take `steps` steps on `world_size` ranks beside a single device; return a Report.

    make_model, make_batch, step: as above; called in each rank. loss: of (output, y),
    a mean over count(y) terms, rows unless said otherwise: what a single device would
    minimise, as in `count=lambda y: (y != -100).sum()` for cross-entropy over words.
    timeout: seconds; a run that hangs ends then, and its place is a finding.
    ranks=False: replicas in one process. make_model() then returns `world_size` of
    them, modules or lists of tensors; step(replicas, X, y) steps all; forward(X,
    params) gives the output of a list of tensors; lr is the step's, which plain SGD
    multiplies the mean gradient by.
    lr: where no optimizer of torch's is seen; without it, the size of the step is
    compared with that of the same code at world size 1.
    ignore: codes of findings to be remarks instead. backend: as in `run_ranks`.
    Raises TypeError or ValueError for arguments that do not fit.
    """
    _check(make_model, make_batch, step, loss, count, world_size, steps, ignore)
    if ranks:
        report = _over_ranks(make_model, make_batch, step, world_size, loss, count,
                             steps, timeout, lr, backend)
    else:
        runs = replicas.measure(make_model, make_batch, step, world_size, loss,
                                      steps, forward, lr)
        report = Report(*judge(runs, None, lr), world_size, steps)
    known = [f for f in report.findings if f.code in ignore]
    report.findings = [f for f in report.findings if f.code not in ignore]
    report.remarks += [f"{f.code}, ignored: {f.says}" for f in known]
    return report


def _over_ranks(make_model, make_batch, step, world_size, loss, count, steps, timeout,
                lr, backend):
    def run(world_size, steps, folder, light=False):
        Path(folder).mkdir()
        return run_ranks(measure.measure, world_size, make_model, make_batch, step,
                         loss, count, steps, folder, light, timeout=timeout,
                         backend=backend)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        alone = (pool.submit(run, 1, 1, f"{folder}/alone", light=True)
                 if world_size > 1 else None)
        try:
            runs = run(world_size, steps, f"{folder}/ranks")
        except RankError as error:
            if alone:
                alone.exception()
            found = _failed(error, f"{folder}/ranks", world_size)
            return Report([found], [], world_size, steps, f"{error}\n{error.details}")
        base, remarks = None, []
        if alone:
            try:
                [base] = alone.result()
            except RankError as error:
                remarks = [f"not compared with world size 1: {error}"]
        findings, more = judge(runs, base, lr)
        if base and doubtful(findings, base):  # then all steps of it, and gradients
            [base] = run(1, steps, f"{folder}/again")
            findings, more = judge(runs, base, lr)
    return Report(findings, more + remarks, world_size, steps)


def _failed(error, folder, world_size):
    """Return the finding that a launch ended in; the diaries say where ranks were."""
    text = str(error)
    if misuse := re.search(r"raised (Type|Value)Error: (audit: .*)", text, re.S):
        raise (TypeError if misuse[1] == "Type" else ValueError)(misuse[2])
    diaries = {rank: json.loads(Path(f"{folder}/rank-{rank}").read_text())
               for rank in range(world_size) if Path(f"{folder}/rank-{rank}").exists()}
    if re.search("not used in producing loss|backward did not reach", text):
        return finding("unused-parameter", 1, text.split(". ")[0], error.rank)
    if "Received data size doesn't match expected size" in text + error.details:
        return finding("mismatch", 1, f"on rank {error.rank} a tensor came that has "
                       "another size than the one expected", error.rank)
    late = re.search("time was up|had not finished|was still waiting in", text)
    here = diaries.get(error.rank, {"step": None})
    place = "" if here["step"] is None else f"step {here['step']}: "
    if not late:
        return finding("exception", 1, place + text.split("\n")[0], error.rank,
                       here["step"])
    where = sorted((d["step"] if d["step"] is not None else -1, d["in"] != "step",
                    d["forwards"], rank) for rank, d in diaries.items())
    counts = [diaries[rank]["forwards"] for *_, rank in where]
    told = "; ".join(f"rank {rank} in {d['in']}" + ("" if d["step"] is None else
                     f" {d['step']}, after {d['forwards']} forwards")
                     for rank, d in sorted(diaries.items()))
    same_step = len({place[0] for place in where}) == 1
    code = "unequal-batches" if same_step and len(set(counts)) > 1 else "hang"
    return finding(code, max(counts) - min(counts), f"{told}: {text}", where[0][-1],
                   here["step"])


def _check(make_model, make_batch, step, loss, count, world_size, steps, ignore):
    for name, value in (("make_model", make_model), ("make_batch", make_batch),
                        ("step", step), ("loss", loss),
                        ("count", count)):
        if not callable(value):
            raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    for name, value in (("world_size", world_size), ("steps", steps)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number from 1, got {value!r}")
    if isinstance(ignore, str) or not set(ignore) <= set(WORDS):
        raise ValueError(f"ignore must be a list of codes, such as {[*WORDS][:2]}, got "
                         f"{ignore!r}")
