"""nbgrader's settings for this folder: source/ has the solutions, release/ has none."""

import atexit
import os
import sys
import tempfile

c = get_config()  # noqa: F821, nbgrader defines it

c.CourseDirectory.course_id = "manual_dp"
c.Execute.timeout = 60  # seconds a cell; a check of an endless loop ends by itself

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
