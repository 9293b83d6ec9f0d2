"""What nbgrader does here to a notebook that was handed in, besides its own steps.

JoinCells            make one cell of those that were split or copied
OverwriteCells       put locked cells back; warn only of those that were edited
OnlyAnswers          run what was handed out, and no answer that lint.py refuses
WarningsAreNoErrors  let what a check says on stderr cost nothing
"""

import ast

from IPython.core.inputtransformer2 import TransformerManager
from lint import refusal
from nbgrader import preprocessors
from nbgrader.utils import compute_checksum, is_grade, is_locked, is_solution


class JoinCells(preprocessors.NbGraderPreprocessor):
    """Make one cell of those that carry one grade id; nbgrader stops at such cells."""

    def preprocess(self, nb, resources):
        """Join an answer's cells; take the mark off the second copy of a locked one."""
        found, kept = {}, []
        for cell in nb.cells:
            same = found.setdefault(_grade_id(cell), [])
            same.append(cell)
            again = _grade_id(cell) is not None and len(same) > 1
            if again and is_solution(same[0]):
                continue
            if again or _grade_id(cell) is None:
                cell.metadata.pop("nbgrader", None)
            kept.append(cell)
        for name, cells in found.items():
            if name is not None and len(cells) > 1 and is_solution(cells[0]):
                cells[0].source = _together(cells)
        nb.cells = kept
        return nb, resources


class OverwriteCells(preprocessors.OverwriteCells):
    """Put locked cells back, with their hidden tests.

    nbgrader compares what came back with the source, which has hidden tests, and so
    warns of every cell that had some; here, only of one that is not as handed out.
    """

    def preprocess_cell(self, cell, resources, index):
        """Put one cell back; take the mark off one that this set does not have."""
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
        """Say in the cell, and so on the learner's page, what is not run and why."""
        code = [cell for cell in nb.cells if cell.cell_type == "code"]
        first = next((cell.source for cell in code if is_locked(cell)), "")
        for cell in code:
            if _grade_id(cell) is None:
                cell.metadata["tags"] = ["skip-execution"]
                cell.source = (
                    f"# not run: this is not an answer cell\n{cell.source}"
                )
            elif not is_locked(cell) and (why := refusal(cell.source, first)):
                own = "".join(
                    f"\n# {line}" for line in cell.source.splitlines()
                )
                cell.source = (
                    f"raise AssertionError('not graded: {why}'){own}"
                )
        return nb, resources


class WarningsAreNoErrors(preprocessors.NbGraderPreprocessor):
    """Show what a check says on stderr as output: nbgrader counts that as a failure."""

    def preprocess_cell(self, cell, resources, index):
        """Change the stream's name; errors are no stream, and stay."""
        for output in (
            cell.outputs if is_grade(cell) and "outputs" in cell else []
        ):
            if output.output_type == "stream":
                output.name = "stdout"
        return cell, resources


def _grade_id(cell):
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def _untouched(cell):
    return cell.metadata.nbgrader.get("checksum") == compute_checksum(cell)


def _together(cells):
    """Return the text of an answer, without parts that only by themselves are wrong."""
    texts = [cell.source for cell in cells if not _untouched(cell)] or [
        cells[0].source
    ]
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
