"""The steps that we add to nbgrader's own, for a notebook that was handed in.

JoinCells            make one answer cell of those that a learner split or copied
OverwriteCells       put locked cells back; warn only of those that a learner edited
OnlyAnswers          run no cell that a learner added, no answer that lint.py refuses
WarningsAreNoErrors  take no points for what a check prints to stderr
"""

import ast

from IPython.core.inputtransformer2 import TransformerManager
from lint import refusal
from nbgrader import preprocessors
from nbgrader.utils import compute_checksum, is_grade, is_locked, is_solution


class JoinCells(preprocessors.NbGraderPreprocessor):
    """Make one cell of those with the same grade id; nbgrader stops at such cells."""

    def preprocess(self, nb, resources):
        """Join an answer's cells; take nbgrader's mark off a locked cell's second copy."""
        with_id, kept = {}, []
        for cell in nb.cells:
            name = _grade_id(cell)
            if name is None:
                cell.metadata.pop("nbgrader", None)
                kept.append(cell)
                continue
            same = with_id.setdefault(name, [])
            same.append(cell)
            if len(same) > 1:
                if is_solution(same[0]):
                    continue  # its text is joined to the first one's, below
                cell.metadata.pop("nbgrader", None)
            kept.append(cell)
        for cells in with_id.values():
            if len(cells) > 1 and is_solution(cells[0]):
                cells[0].source = _joined_source(cells)
        nb.cells = kept
        return nb, resources


class OverwriteCells(preprocessors.OverwriteCells):
    """Put locked cells back, with their hidden tests.

    nbgrader compares a cell that came back with the source, which has hidden tests, and
    so warns of every cell that has some. We warn only of a cell that was changed after it
    was handed out.
    """

    def preprocess_cell(self, cell, resources, index):
        """Put one cell back; take nbgrader's mark off one that this set does not have."""
        self.as_handed_out = _grade_id(cell) is not None and _untouched(cell)
        cell, resources = super().preprocess_cell(cell, resources, index)
        if _grade_id(cell) is None:
            cell.metadata.pop("nbgrader", None)
        return cell, resources

    def report_change(self, name, attr, old, new):
        """Warn of a cell that somebody changed."""
        if attr != "checksum" or not self.as_handed_out:
            super().report_change(name, attr, old, new)


class OnlyAnswers(preprocessors.NbGraderPreprocessor):
    """Leave out cells that a learner added, and answers that lint.py refuses."""

    def preprocess(self, nb, resources):
        """Write into a cell that does not run why it does not: the learner reads it."""
        code = [cell for cell in nb.cells if cell.cell_type == "code"]
        first = next((cell.source for cell in code if is_locked(cell)), "")
        for cell in code:
            if _grade_id(cell) is None:
                cell.metadata["tags"] = ["skip-execution"]
                note = "# not run: this is not an answer cell"
                cell.source = f"{note}\n{cell.source}"
            elif not is_locked(cell) and (why := refusal(cell.source, first)):
                # the check then finds no answer; the learner's text stays, as comments
                lines = [f"raise AssertionError('not graded: {why}')"]
                lines += [f"# {line}" for line in cell.source.splitlines()]
                cell.source = "\n".join(lines)
        return nb, resources


class WarningsAreNoErrors(preprocessors.NbGraderPreprocessor):
    """Move a check's stderr to stdout: nbgrader takes stderr for a failed check."""

    def preprocess_cell(self, cell, resources, index):
        """Rename the streams of a check; an exception is no stream, and stays."""
        if is_grade(cell):
            for output in cell.get("outputs", []):
                if output.output_type == "stream":
                    output.name = "stdout"
        return cell, resources


def _grade_id(cell):
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def _untouched(cell):
    """Say whether a cell is as it was handed out."""
    return cell.metadata.nbgrader.get("checksum") == compute_checksum(cell)


def _joined_source(cells):
    """Return the text of an answer that came in several cells.

    Cells that the learner did not touch are left out. If the whole is not Python, so are
    the cells that by themselves are not Python.
    """
    texts = [cell.source for cell in cells if not _untouched(cell)]
    if not texts:
        return cells[0].source
    whole = "\n".join(texts)
    if cells[0].cell_type == "code" and not _is_python(whole):
        return "\n".join(filter(_is_python, texts)) or whole
    return whole


def _is_python(text):
    try:
        ast.parse(TransformerManager().transform_cell(text))
    except (SyntaxError, ValueError):
        return False
    return True
