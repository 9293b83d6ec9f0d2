"""nbgrader's settings for this folder: source/ has the solutions, release/ has none."""

import atexit
import os
import sys
import tempfile
import warnings

from nbgrader.converters import Autograde
from nbgrader.preprocessors import DeduplicateIds, Execute
from nbgrader.preprocessors import OverwriteCells as Overwrite

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from grading import (  # noqa: E402
    JoinCells,
    OnlyAnswers,
    OverwriteCells,
    WarningsAreNoErrors,
)

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

# nbgrader's steps, with ours in place of two of them, and OnlyAnswers at the end
ours = {DeduplicateIds: JoinCells, Overwrite: OverwriteCells}
c.Autograde.sanitize_preprocessors = [
    ours.get(step, step)
    for step in Autograde.sanitize_preprocessors.default()
] + [OnlyAnswers]
# Execute is the first of nbgrader's steps; WarningsAreNoErrors comes right after it
c.Autograde.autograde_preprocessors = [
    Execute,
    WarningsAreNoErrors,
    *Autograde.autograde_preprocessors.default()[1:],
]

# the file names that `nbgrader zip_collect` understands:
# Canvas: NAME_98123_1234567_ps1.ipynb and NAME_LATE_98123_1234567_ps1.ipynb
# Moodle: NAME_1234_assignsubmission_file_/any name with ps1.ipynb
c.FileNameCollectorPlugin.named_regexp = (
    r".*/(?P<student_id>[^/_]+)(?:_LATE)?_\d+_.*(?P<file_id>ps\d)[^/]*\.ipynb"
)

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
