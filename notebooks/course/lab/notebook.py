"""What a lesson needs around its code: source to read, a bar, files beside it.

show           a function's source: the page that runs is the page you read
bar            a progress bar, where somebody looks at a terminal
need_folders   say what to type if the lesson was opened without its files
explorable     a picture with sliders, which needs no kernel
"""

import base64
import inspect
import re
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
    if (lessons / "00_start_here.ipynb").is_file():
        what = f"type %cd {lessons}"
    else:
        what = "clone the course's repository (git clone), "
        what += "then type %cd manual_dp/notebooks"
    raise FileNotFoundError(
        f"this lesson reads {' and '.join(missing)} beside it, "
        f"which is not here: {what} and run this cell again"
    )


def explorable(name):
    """Return the picture that stands in explorables/`name`.html, with its sliders.

    That file is a whole page, so that it can be opened in a browser by itself. Shown is
    what stands between `<!-- explorable -->` and `<!-- /explorable -->`: style, script,
    and between `<!-- still -->` and `<!-- /still -->` the picture that the script draws
    first, as SVG (copied from a browser). It is seen where no script runs: on paper,
    and in JupyterLab until the notebook is trusted.
    """
    page = Path(__file__).parent.joinpath("explorables", f"{name}.html")
    return Explorable(page.read_text(encoding="utf-8"))


class Explorable:
    """Be a part of a page in a notebook, and a still picture elsewhere."""

    def __init__(self, page):
        self.html = _between(page, "explorable")
        self.still = _between(self.html, "still")
        self.title = re.search("<title>(.*?)</title>", self.still, re.S)[1]

    def __repr__(self):
        return self.title

    def _repr_mimebundle_(self, include=None, exclude=None):
        # an <img>: JupyterLab takes <svg> out of a page that it does not trust
        code = base64.b64encode(self.still.encode()).decode()
        image = f'<img alt="{self.title}" src="data:image/svg+xml;base64,{code}">'
        return {
            "text/html": self.html.replace(self.still, image),
            "image/svg+xml": self.still,
            "text/plain": self.title,
        }


def _between(page, mark):
    return re.search(f"<!-- {mark} -->(.*?)<!-- /{mark} -->", page, re.S)[1].strip()
