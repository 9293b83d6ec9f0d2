"""nbgrader's settings for this folder: source/ has the solutions, release/ has none."""

import atexit
import os
import sys
import tempfile

from nbgrader.converters import Autograde
from nbgrader.preprocessors import NbGraderPreprocessor

from manual_dp.school.grader.cells import join

c = get_config()  # noqa: F821, nbgrader defines it

c.CourseDirectory.course_id = "manual_dp"
c.Execute.timeout = 400  # seconds a cell; a check of an endless loop ends by itself



class JoinCells(NbGraderPreprocessor):
    """Make one cell again of those that JupyterLab split or copied, marks and all.

    nbgrader would take the mark off all but the last, and then stop at such a cell.
    """

    def preprocess(self, nb, resources):
        """Join answers; take the mark off the second copy of a locked cell."""
        nb.cells, seen = join(nb.cells), set()
        for cell in nb.cells:
            grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
            if grade_id in seen:
                del cell.metadata["nbgrader"]
            elif grade_id:
                seen.add(grade_id)
        return nb, resources


c.Autograde.sanitize_preprocessors = [
    JoinCells, *Autograde.sanitize_preprocessors.default()]

# nbgrader starts `alembic` by its name: let it find the one beside this Python, also
# where .venv is not activated
os.environ["PATH"] = os.pathsep.join(
    [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])

# kernels over files: a TCP port is chosen before it is bound, and ranks may take it
if os.name == "posix":
    folder = tempfile.TemporaryDirectory(prefix="kernels-")
    atexit.register(folder.cleanup)
    c.KernelManager.transport = "ipc"
    c.KernelManager.ip = os.path.join(folder.name, "kernel")
