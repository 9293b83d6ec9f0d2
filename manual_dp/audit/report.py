"""The report of an audit: what was found, as a table and as JSON.

    Report     findings with the number that shows each; print it, save it as JSON
"""

import textwrap

from manual_dp.files import write_json


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
            lines += [f"{f.code:16}  {f.says}", f"{'cause':>16}: {f.cause}",
                      f"{'repair':>16}: {f.repair}"]
        lines += [f"{'remark':16}  {words}" for words in self.remarks]
        return "\n".join(part for line in lines for part in textwrap.wrap(
            line, 88, subsequent_indent=" " * 18))

    __repr__ = __str__

    def save(self, path):
        """Write the report as JSON: the whole of it or, if interrupted, none."""
        write_json(path, {**vars(self), "clean": not self.findings,
                          "findings": [f._asdict() for f in self.findings]})
