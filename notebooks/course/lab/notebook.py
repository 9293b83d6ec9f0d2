"""What a lesson needs around its code: source to read, a bar, files beside it.

    show           a function's source: the page that runs is the page you read
    bar            a progress bar, where somebody looks at a terminal
    need_folders   say what to type if the lesson was opened without its files
"""

import inspect
import textwrap
from pathlib import Path


def show(function):
    """Return the source of `function`, displayed with colours where there are any."""
    return Source(textwrap.dedent(inspect.getsource(function)).rstrip())


class Source(str):
    """Be source text: a notebook displays it as code, a terminal prints it."""

    __repr__ = str.__str__

    def _repr_markdown_(self):
        return f"```python\n{self}\n```"


def bar(items, label, total=None):
    """Wrap `items`, of which there are `total`, in a bar that leaves nothing behind."""
    try:
        from tqdm import tqdm
    except ImportError:  # `compare` needs no more than torch
        return items
    return tqdm(items, desc=label, total=total, leave=False, disable=None)


def need_folders(*names):
    """Raise FileNotFoundError, with what to type, unless these folders lie here.

    A lesson that was opened by itself, as Colab does, has no files beside it.
    """
    missing = [f"{name}/" for name in names if not Path(name).is_dir()]
    if not missing:
        return
    lessons = Path(__file__).parents[2]
    here = (lessons / "00_start_here.ipynb").is_file()
    what = (f"type %cd {lessons}" if here else "clone the course's repository (git "
            "clone), then type %cd manual_dp/notebooks")
    raise FileNotFoundError(f"this lesson reads {' and '.join(missing)} beside it, "
                            f"which is not here: {what} and run this cell again")
