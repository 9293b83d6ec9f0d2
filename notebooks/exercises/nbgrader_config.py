"""nbgrader's settings for this folder: source/ has the solutions, release/ has none."""

import os
import sys

c = get_config()  # noqa: F821, nbgrader defines it

c.CourseDirectory.course_id = "manual_dp"
c.Execute.timeout = 60  # seconds a cell; a check of an endless loop ends by itself

# nbgrader starts `alembic` by its name: let it find the one beside this Python, also
# where .venv is not activated
os.environ["PATH"] = os.pathsep.join(
    [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
