"""nbgrader's settings for this folder: source/ has the solutions, release/ has none."""

import atexit
import os
import sys
import tempfile
import warnings

import nbgrader.preprocessors as theirs
from nbgrader.converters import Autograde

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import grading  # noqa: E402, found there

# two threads on two busy cores wait for each other: a check of 5 seconds took 50
os.environ.setdefault("OMP_NUM_THREADS", "1")

c = get_config()  # noqa: F821, nbgrader defines it

c.CourseDirectory.course_id = "manual_dp"
# seconds a cell; a check ends an endless loop by itself, and earlier
c.Execute.timeout = 400
c.OverwriteCells.add_missing_cells = True  # a check that a learner deleted

# if two notebooks are graded at a time, one waits until the other has written
c.CourseDirectory.db_url = (
    f"sqlite:///{os.path.join(HERE, 'gradebook.db')}?timeout=60"
)

# nbgrader's steps, ours in place of some of them, and three more
ours = {
    theirs.DeduplicateIds: grading.JoinCells,
    theirs.OverwriteCells: grading.OverwriteCells,
    theirs.Execute: grading.Execute,
    theirs.SaveAutoGrades: grading.SaveAutoGrades,
}
before, after = (
    [ours.get(step, step) for step in steps.default()]
    for steps in (
        Autograde.sanitize_preprocessors,
        Autograde.autograde_preprocessors,
    )
)
c.Autograde.sanitize_preprocessors = [*before, grading.OnlyAnswers]
# Execute is the first of nbgrader's steps; what reads its outputs comes right after it
c.Autograde.autograde_preprocessors = [
    after[0],
    grading.WarningsAreNoErrors,
    grading.SayWhatIsMissing,
    *after[1:],
]

# the list at the top of a learner's page names the exercises
c.GenerateFeedback.exporter_class = "page.Page"


def say_next(line):
    """Return what nbgrader calls after each notebook: the command then ends with a line."""

    def after_a_notebook(assignment, **_):
        atexit.unregister(print)  # once, after many notebooks
        atexit.register(print, f"Next: {line.format(assignment)}")

    return after_a_notebook


for command, line in {
    "GenerateAssignment": "nbgrader autograde {}",
    "Autograde": "when all are graded, nbgrader generate_feedback {}",
    "GenerateFeedback": "nbgrader export",
}.items():
    c[command].post_convert_hook = say_next(line)

# `nbgrader export` writes our table: what nobody knows yet is empty in it, and not 0
c.ExportApp.plugin_class = "table.Table"
# what each day costs that a set comes late, of the points that it has at the export
c.Table.percent_a_day = 0

# SQLAlchemy warns of nbgrader's own code
warnings.filterwarnings("ignore", module=r"nbgrader\.api")

# nbgrader starts `alembic` by its name: let it find the one beside this Python, also
# where .venv is not activated
os.environ["PATH"] = os.pathsep.join(
    [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
)

# Talk to kernels over files: a TCP port is chosen before it is bound, and ranks may take
# it in between. All these files lie in one folder, which docker/kernel.json gives to the
# container.
if os.name == "posix":
    folder = tempfile.TemporaryDirectory(prefix="kernels-")
    atexit.register(folder.cleanup)
    c.KernelManager.transport = "ipc"
    c.KernelManager.ip = os.path.join(folder.name, "kernel")
    c.KernelManager.connection_file = os.path.join(
        folder.name, "connection.json"
    )
