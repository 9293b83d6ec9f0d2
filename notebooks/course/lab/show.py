"""Show a function's source in a notebook: the page that runs is the page you read."""

import inspect
import textwrap


def show(function):
    """Return the source of `function`, displayed with colours where there are any."""
    return Source(textwrap.dedent(inspect.getsource(function)).rstrip())


class Source(str):
    """Be source text: a notebook displays it as code, a terminal prints it."""

    __repr__ = str.__str__

    def _repr_markdown_(self):
        return f"```python\n{self}\n```"
