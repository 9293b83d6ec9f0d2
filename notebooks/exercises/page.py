"""A learner's page, which `nbgrader generate_feedback` writes.

Page    say the total at its top, and name each exercise in the list below it
total   the sentence that says the total, or that there is none yet
"""

import html
import re

from nbconvert.exporters import HTMLExporter
from nbgrader.api import Gradebook
from table import Table

THEIRS = "Test cell", "Written response"  # nbgrader's words in that list
LIST = '<div id="toc">'  # where it begins
NO_TOTAL = (
    "You have no total yet: somebody still has to read or to judge an answer. Until "
    "then it stands below with 0 points."
)
HEADING = (
    r"^## (\d.*?)(?: \(.*)?$"  # without points and minutes: "3.6 In words"
)


class Page(HTMLExporter):
    """Write nbgrader's page with the total, and the exercises' headings, at its top."""

    def from_notebook_node(self, nb, resources=None, **kwargs):
        """Return the page of a graded notebook."""
        page, resources = super().from_notebook_node(nb, resources, **kwargs)
        of = resources["nbgrader"]
        with Gradebook(of["db_url"]) as gradebook:
            row = Table(parent=self).row(
                gradebook,
                gradebook.find_assignment(of["assignment"]),
                of["student"],
            )
        page = page.replace(LIST, f"<p>{total(row)}</p>\n{LIST}", 1)
        for grade_id, heading in headings(nb).items():
            for words in THEIRS:
                link = f'<a href="#{grade_id}">'
                page = page.replace(
                    f"{link}{words}</a>", f"{link}{html.escape(heading)}</a>"
                )
        return page, resources


def total(row):
    """Return a sentence for a learner: the total of a row of the table."""
    if row["total"] == "":
        return NO_TOTAL
    said = (
        f"You have {row['total']:g} of {row['of']:g} points: {row['checks']:g} for "
        f"code and {row['words']:g} for words"
    )
    if row["penalty"]:
        said += f", less {row['penalty']:g} because your set came late"
    return f"{said}."


def headings(nb):
    """Return {grade id: the heading above the cell}."""
    found, heading = {}, ""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            if lines := re.findall(HEADING, cell.source, re.M):
                heading = lines[-1]
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name and heading:
            found[name] = heading
    return found
