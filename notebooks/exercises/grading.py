"""The steps that we add to nbgrader's own, for a notebook that was handed in.

JoinCells            make one answer cell of those that a learner split or copied
OverwriteCells       put locked cells back; warn only of those that a learner edited
OnlyAnswers          run no cell that a learner added, no answer that lint.py refuses
Execute              write into a notebook why it could not be run to its end
WarningsAreNoErrors  take no points for what a check prints to stderr
SayWhatIsMissing     say in a check why it does not find the answer's name
SaveAutoGrades       leave a check without points that came to no judgement
without_points       the checks of a graded notebook that have no points, and why
not_judged           its answers that have 0 points, though no check looked at them
points_by_hand       what somebody gave in Formgrader, by question
grades_by_hand       the same as nbgrader's grades, of one hand-in
errors               the errors of a cell, a line each
by_reason            the same as texts, a reason each
no_copy              why there is no graded notebook at all

No points are not 0 points: table.py leaves the total empty, and says why.
"""

import ast
import re
import symtable
from collections import Counter

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader import preprocessors
from nbgrader.utils import compute_checksum, is_grade, is_locked, is_solution
from traitlets import Dict

from course.school.checks import ENDLESS, UNFINISHED
from course.school.lint import refusal

STOPPED = "Stopped"  # the error in the cell at which a notebook's run ended
TOO_SLOW = "CellTimeoutError"  # nbgrader's, in a cell that was interrupted
NOT_JUDGED = "not_judged"  # in a cell's metadata: why its answer has 0 points
NOT_RUN = "# not run: this is not an answer cell"  # written above such a cell
UNDEFINED = r"name '(\w+)' is not defined"  # a NameError, of a rank's, too
# the lines around what nbgrader takes out of the notebooks that are handed out
HIDDEN_MARK = r"^### (?:BEGIN|END) HIDDEN TESTS\n?"
TEXT_ELSEWHERE = "text stands in another cell: read it there"
BUSY = rf"\A\S+ {UNFINISHED}\."
NO_MARKS = (
    "its cells lost their marks: copy its answers into a fresh {}.ipynb and "
    "grade it anew"
)
INTERRUPTED = (
    "cell did not come to its end, and was interrupted: look for a loop in it "
    "that never ends"
)
AFTER_ONE = 60  # seconds for each cell, once one did not end
LONG = 20_000  # characters of what a cell prints that are kept
A_FLOOD = (
    1_000_000  # characters that may be why nobody could read them in time
)


class JoinCells(preprocessors.NbGraderPreprocessor):
    """Make one cell of those with the same grade id; nbgrader stops at such cells."""

    def preprocess(self, nb, resources):
        """Join an answer's cells; take nbgrader's mark off a locked cell's second copy.

        A notebook without any mark has no answer that a check would find: it ends here,
        and no_copy says why. Else each answer would count as deleted, with 0 points.
        """
        if _no_marks(nb):
            name = resources["nbgrader"]["notebook"]
            raise ValueError(NO_MARKS.format(name))
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

    who = "?"  # the student

    def preprocess(self, nb, resources):
        """Put all cells back; keep in a cell below what a learner wrote into each.

        Of code that gives a new name: an answer may stand in the cell of its check, and
        need what the learner imported in the first cell, which is put back, too. The
        marks of hidden tests go: a learner's page and the tracebacks show these cells.
        """
        self.edited = {}
        nb, resources = super().preprocess(nb, resources)
        for cell in list(nb.cells):
            if text := self.edited.get(_grade_id(cell)):
                new = (
                    new_code_cell
                    if cell.cell_type == "code"
                    else new_markdown_cell
                )
                nb.cells.insert(nb.cells.index(cell) + 1, new(text))
        for cell in filter(is_locked, nb.cells):
            cell.source = re.sub(
                HIDDEN_MARK, "", cell.source, flags=re.M
            ).rstrip()
        return nb, resources

    def preprocess_cell(self, cell, resources, index):
        """Put one cell back; take nbgrader's mark off one that this set does not have."""
        self.who = resources["nbgrader"].get("student", "?")
        self.as_handed_out = _grade_id(cell) is not None and _untouched(cell)
        code, own = cell.cell_type == "code", cell.source
        edited = is_locked(cell) and not self.as_handed_out
        cell, resources = super().preprocess_cell(cell, resources, index)
        if edited and (not code or _bound(own) - _bound(cell.source)):
            self.edited[_grade_id(cell)] = own
        if _grade_id(cell) is None:
            cell.metadata.pop("nbgrader", None)
        return cell, resources

    def add_missing_grade_cells(self, nb, resources):
        """Put back code and answers that were deleted, as handed out, where they stood.

        The cells below may need code without points, too: the first one imports `check`.
        nbgrader's own puts a check below the cell before it in the source, and stops
        if that one is deleted, too, or is a text without points.
        """
        book = self.gradebook.find_notebook(
            self.notebook_id, self.assignment_id
        )
        points = {cell.name: cell.max_score for cell in book.grade_cells}
        answers = {cell.name for cell in book.solution_cells}
        place = 0  # below the last cell that is there, in the source's order
        for cell in book.source_cells:
            names = [_grade_id(one) for one in nb.cells]
            if cell.name in names:
                place = names.index(cell.name) + 1
            elif cell.cell_type == "code" or cell.name in points:
                self.log.warning(
                    "%s, %s was deleted: it is put back", self.who, cell.name
                )
                back = self.missing_cell_transform(
                    cell,
                    points.get(cell.name, 0),
                    is_solution=cell.name in answers,
                )
                if cell.name not in points:
                    del back.metadata["nbgrader"]["points"]
                    back.metadata["nbgrader"]["grade"] = False
                if cell.name in answers:
                    back.metadata[NOT_JUDGED] = (
                        "the answer cell was deleted: see the page"
                    )
                nb.cells.insert(place, back)
                place += 1
        return nb, resources

    def report_change(self, name, attr, old, new):
        """Warn of a cell that somebody changed."""
        if attr != "checksum" or not self.as_handed_out:
            super().report_change(f"{name} of {self.who}", attr, old, new)


class OnlyAnswers(preprocessors.NbGraderPreprocessor):
    """Leave out cells that a learner added, and answers that lint.py refuses."""

    def preprocess(self, nb, resources):
        """Write into a cell that does not run why it does not: the learner reads it."""
        code = [cell for cell in nb.cells if cell.cell_type == "code"]
        first = next((cell.source for cell in code if is_locked(cell)), "")
        for cell in code:
            if _grade_id(cell) is None:
                cell.metadata["tags"] = ["skip-execution"]
                cell.source = f"{NOT_RUN}\n{cell.source}"
            elif not is_locked(cell) and (why := refusal(cell.source, first)):
                # the check then finds no answer; the learner's text stays, as comments
                cell.metadata[NOT_JUDGED] = f"not graded: {why}"
                lines = [f"raise AssertionError('not graded: {why}')"]
                lines += [f"# {line}" for line in cell.source.splitlines()]
                cell.source = "\n".join(lines)
        return nb, resources


class Execute(preprocessors.Execute):
    """Run a notebook; if it cannot be run to its end, write into it why.

    nbgrader itself would leave no notebook, and so no page for the learner.
    """

    # what stands below a cell that was interrupted
    error_on_timeout = Dict(
        {
            "ename": TOO_SLOW,
            "evalue": "",
            "traceback": [f"This {INTERRUPTED}."],
        }
    )

    def preprocess(self, nb, resources, **kwargs):
        """Run the cells, up to one that ends or blocks their kernel."""
        seconds = self.timeout  # the next notebook has all of them again
        try:
            return super().preprocess(nb, resources, **kwargs)
        except (CellTimeoutError, DeadKernelError) as error:
            why = self._why(error)
        finally:
            self.timeout = seconds
        self.at.outputs = [
            new_output("error", ename=STOPPED, evalue=why, traceback=[why])
        ]
        return nb, resources

    def preprocess_cell(self, cell, resources, index):
        """Run a cell, remember which it was, and cut what it printed."""
        self.at = cell
        cell, resources = super().preprocess_cell(cell, resources, index)
        for output in cell.get("outputs", []):
            if len(output.get("text", "")) > LONG:
                output.text = f"{output.text[:LONG]}\n... (cut)\n"
            # interrupted here, or a function that its check has stopped
            if output.get("ename") == TOO_SLOW or ENDLESS in output.get(
                "evalue", ""
            ):
                # what does not end once does not end in the cells below that call it
                self.timeout = min(self.timeout, AFTER_ONE)
                self.log.warning(
                    "%s, %s: it does not end; each cell below has %d s",
                    resources.get("nbgrader", {}).get("student", "?"),
                    _grade_id(cell) or cell.id,
                    self.timeout,
                )
        return cell, resources

    def _why(self, error):
        if isinstance(error, DeadKernelError):
            return "its cell ends the kernel: os._exit, or no memory is left?"
        printed = sum(
            len(output.get("text", "")) for output in self.at.outputs
        )
        if printed > A_FLOOD:
            return (
                f"its cell prints too much: {printed / 1e6:.0f} MB and more"
            )
        return f"its cell does not end, nor when it is told to after {self.timeout} s"


class WarningsAreNoErrors(preprocessors.NbGraderPreprocessor):
    """Move a check's stderr to stdout: nbgrader takes stderr for a failed check."""

    def preprocess_cell(self, cell, resources, index):
        """Rename the streams of a check; an exception is no stream, and stays."""
        if is_grade(cell):
            for output in cell.get("outputs", []):
                if output.output_type == "stream":
                    output.name = "stdout"
        return cell, resources


class SayWhatIsMissing(preprocessors.NbGraderPreprocessor):
    """Say in a check why it does not find the answer's name: Python says only that."""

    def preprocess(self, nb, resources):
        """Put the reason in the place of a check's NameError, where it is known."""
        answers, elsewhere = [], _not_run(nb)
        for cell in nb.cells:
            if cell.cell_type == "code" and is_solution(cell):
                answers.append(cell)
            elif cell.cell_type == "code" and is_grade(cell):
                for output in cell.outputs:
                    name = _missing(output)
                    asked = name and _names(name, cell.source)
                    why = _why_missing(name, answers) if asked else ""
                    if why and name not in elsewhere:
                        # in place of Python's words, on the page and for mistakes.py
                        output.update(
                            ename="AssertionError",
                            evalue=why,
                            traceback=[why],
                        )
                answers = []
        return nb, resources


def _why_missing(name, answers):
    """Return why the cells of an answer leave `name` undefined; "" if they do not tell."""
    for cell in answers:
        if any(output.get("ename") == TOO_SLOW for output in cell.outputs):
            return f"your answer's {INTERRUPTED}"
        if found := errors(cell):
            return found[0]
    defined = [one for cell in answers for one in _defined(cell.source)]
    if not defined:
        return ""
    return (
        f"your cell defines {', '.join(defined)}; the check asks for {name}"
    )


class SaveAutoGrades(preprocessors.SaveAutoGrades):
    """Leave a check that came to no judgement to a person: without points, not with 0."""

    def preprocess(self, nb, resources):
        """Save the points of a notebook's checks."""
        self.without = without_points(nb)
        return super().preprocess(nb, resources)

    def preprocess_cell(self, cell, resources, index):
        """Save the points of one cell."""
        cell, resources = super().preprocess_cell(cell, resources, index)
        if _grade_id(cell) in self.without:
            grade = self.gradebook.find_grade(
                _grade_id(cell),
                self.notebook_id,
                self.assignment_id,
                self.student_id,
            )
            grade.auto_score, grade.needs_manual_grade = None, True
            self.gradebook.db.commit()
        return cell, resources


def without_points(nb):
    """Return {grade id: why} for the checks of a graded notebook that have no points."""
    found, stopped, slow = {}, "", ""
    own_text = any(
        cell.cell_type == "markdown"
        and _grade_id(cell) is None
        and cell.source.strip()
        for cell in nb.cells
    )
    for cell in nb.cells:
        if cell.cell_type != "code":
            if own_text and is_grade(cell) and _untouched(cell):
                found[_grade_id(cell)] = TEXT_ELSEWHERE
            continue
        errors = {
            output.ename: output.evalue
            for output in cell.outputs
            if output.output_type == "error"
        }
        stopped = stopped or errors.get(STOPPED, "")
        if TOO_SLOW in errors and (is_grade(cell) or is_solution(cell)):
            slow = "a cell was interrupted after its seconds"
        if is_grade(cell):
            unfinished = re.search(BUSY, errors.get("Wrong", ""), re.M)
            why = stopped or slow or (unfinished and "not checked to the end")
            if why or cell.execution_count is None:
                found[_grade_id(cell)] = why or "not graded yet, or cut short"
            slow = ""  # of an answer, it holds for the check below it
    return found


def not_judged(nb):
    """Return {grade id: why} for answers of a graded notebook that no check looked at.

    A check that meets a name of a cell that is not run has looked at a part only, and one
    that found nothing written may have looked in the wrong cell.
    """
    found = {
        _grade_id(cell): cell.metadata[NOT_JUDGED]
        for cell in nb.cells
        if NOT_JUDGED in cell.metadata
    }
    not_run = _not_run(nb)
    elsewhere = [
        name
        for cell in nb.cells
        if cell.source.startswith(NOT_RUN)
        for name in _defined(cell.source)
    ]
    twice = Counter(
        name
        for cell in nb.cells
        if cell.cell_type == "code" and is_solution(cell)
        for name in _defined(cell.source)
    )
    twice = [name for name, count in twice.items() if count > 1]
    for cell in filter(is_grade, nb.cells):
        for output in cell.get("outputs", []):
            name = _missing(output)
            if "is not written yet" in output.get("evalue", ""):
                asked = [one for one in twice if _names(one, cell.source)]
                if asked:
                    found[_grade_id(cell)] = (
                        f"{asked[0]} stands in another answer's cell, too"
                    )
                asked = (one for one in elsewhere if _names(one, cell.source))
                name = next(asked, None)
            if name in not_run:
                found[_grade_id(cell)] = (
                    f"{name} stands in a cell that is not run"
                )
    return found


def points_by_hand(gradebook, name, student):
    """Return {question: points} that a student's set has by hand in the gradebook."""
    submission = gradebook.find_submission(name, student)
    return {
        grade.name.removeprefix("check_"): grade.manual_score
        for grade in grades_by_hand(submission)
    }


def grades_by_hand(submission):
    """Return nbgrader's grades of a hand-in that have points by hand, in a list."""
    return [
        grade
        for notebook in submission.notebooks
        for grade in notebook.grades
        if grade.manual_score is not None
    ]


def errors(cell):
    """Return a line for each error of a cell, up to the first parenthesis."""
    found = []
    for output in cell.outputs:
        if output.output_type == "error":
            text = output.evalue.partition("\n")[0].partition(" (")[0]
            # the text of `assert`, or of a refusal, needs no name before it
            if output.ename != "AssertionError" or not text:
                text = f"{output.ename}: {text}"
            found.append(text)
    return found


def by_reason(whys):
    """Return "sgd, sum: why" for each reason in {grade id: why}."""
    names = {}
    for name, why in whys.items():
        names.setdefault(why, []).append(name.removeprefix("check_"))
    return [f"{', '.join(those)}: {why}" for why, those in names.items()]


def no_copy(handed_in):
    """Return why autograde made no graded notebook of the one in the file `handed_in`."""
    try:
        no_marks = _no_marks(nbformat.read(handed_in, 4))
    except OSError:
        return "there is no notebook of this name"
    except Exception as error:  # whatever a file that is no notebook leads to
        what = str(error).partition("\n")[0].partition(":")[0]
        return f"it cannot be read: {what}"
    if no_marks:
        return NO_MARKS.format(handed_in.stem)
    return (
        "not graded yet, or autograde ended in an error: run it again to see"
    )


def _grade_id(cell):
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def _no_marks(nb):
    """Say whether no cell has nbgrader's metadata: a program took all of it away."""
    return all(_grade_id(cell) is None for cell in nb.cells)


def _not_run(nb):
    """Return the names that the cells that are not run would have given."""
    return {
        name
        for cell in nb.cells
        if cell.source.startswith(NOT_RUN)
        for name in _bound(cell.source)
    }


def _missing(output):
    """Return the name that an error says is not defined, or None."""
    found = re.search(UNDEFINED, output.get("evalue", ""))
    return found and found[1]


def _names(name, text):
    return re.search(rf"\b{name}\b", text)


def _defined(text):
    """Return the functions and classes that a cell defines."""
    if not _is_python(text):
        return []
    kinds = ast.FunctionDef, ast.ClassDef
    nodes = ast.parse(TransformerManager().transform_cell(text)).body
    return [node.name for node in nodes if isinstance(node, kinds)]


def _bound(text):
    """Return all names that a cell gives to something, those of imports, too."""
    code = TransformerManager().transform_cell(text)
    try:
        names = symtable.symtable(code, "cell", "exec").get_symbols()
    except (SyntaxError, ValueError):  # not Python
        return set()
    return {
        name.get_name()
        for name in names
        if name.is_assigned() or name.is_imported()
    }


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
