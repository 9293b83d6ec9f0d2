"""A learner's page, which `nbgrader generate_feedback` writes.

Page    name each exercise in the list at its top: nbgrader says "Test cell" of each
"""

import html
import re

from nbconvert.exporters import HTMLExporter

THEIRS = "Test cell", "Written response"  # nbgrader's words in that list
HEADING = (
    r"^## (\d.*?)(?: \(.*)?$"  # without points and minutes: "3.6 In words"
)


class Page(HTMLExporter):
    """Write nbgrader's page with the exercises' headings in the list at its top."""

    def from_notebook_node(self, nb, resources=None, **kwargs):
        """Return the page of a graded notebook."""
        page, resources = super().from_notebook_node(nb, resources, **kwargs)
        for grade_id, heading in headings(nb).items():
            for words in THEIRS:
                link = f'<a href="#{grade_id}">'
                page = page.replace(
                    f"{link}{words}</a>", f"{link}{html.escape(heading)}</a>"
                )
        return page, resources


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
