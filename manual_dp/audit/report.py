"""What an audit or a watched script comes to: findings, remarks, what was not checked.

    Report   print it, save it as JSON
"""

import textwrap

from manual_dp.audit.catalogue import so_many
from manual_dp.files import write_json


class Report:
    """Hold an audit's findings, causes first; print as a table.

    remarks: what was seen and is no mistake. details: a traceback, if a rank raised.
    evidence: what the ranks noted, the `Evidence` that the findings come from; None if
    the run ended before its time.
    """

    def __init__(self, findings, remarks, world_size, steps, unchecked=(), details="",
                 evidence=None, precision="float64"):
        self.findings, self.remarks = list(findings), list(remarks)
        self.unchecked = list(unchecked)
        self.world_size, self.steps, self.details = world_size, steps, details
        self.evidence, self.precision = evidence, precision

    def set_aside(self, codes):
        """Make remarks of the findings with these codes."""
        known = [f for f in self.findings if f.code in codes]
        self.findings = [f for f in self.findings if f.code not in codes]
        self.remarks += [f"{f.code}, ignored: {f.says}" for f in known]

    def __str__(self):
        """Write the table: a line for each number, cause and repair under it."""
        count = len(self.findings)
        words = (so_many(count, "finding") if count else
                 "no finding, but not all was checked" if self.unchecked else "clean")
        lines = [f"audit: {so_many(self.steps, 'step')} on {self.world_size} ranks, "
                 f"{self.precision}: {words}"]
        for f in self.findings:
            place = f" (update at {f.place})" if f.place else ""
            lines += [f"{f.code:16}  {f.says}{place}", f"{'cause':>16}: {f.cause}",
                      f"{'repair':>16}: {f.repair}"]
        lines += [f"{'not checked':16}  {words}" for words in self.unchecked]
        lines += [f"{'remark':16}  {words}" for words in self.remarks]
        return "\n".join(part for line in lines for part in textwrap.wrap(
            line, 88, subsequent_indent=" " * 18))

    __repr__ = __str__

    def save(self, path):
        """Write the report, without the evidence, as JSON: all of it, or none of it."""
        told = {name: value for name, value in vars(self).items() if name != "evidence"}
        write_json(path, {**told, "clean": not self.findings and not self.unchecked,
                          "findings": [f._asdict() for f in self.findings]})
