"""The lessons' folder: some lessons read files that lie beside them.

    need_folders   say what to type if these are not here: the lesson was opened alone
"""

from pathlib import Path

import manual_dp


def need_folders(*names):
    """Raise FileNotFoundError, with what to type, unless these folders lie here.

    A lesson that was opened by itself, as Colab does, has no files beside it.
    """
    missing = [f"{name}/" for name in names if not Path(name).is_dir()]
    if not missing:
        return
    lessons = Path(manual_dp.__file__).parents[1] / "notebooks"
    what = (f"type %cd {lessons}" if lessons.is_dir() else "clone the course's "
            "repository (git clone), then type %cd manual_dp/notebooks")
    raise FileNotFoundError(f"this lesson reads {' and '.join(missing)} beside it, "
                            f"which is not here: {what} and run this cell again")
