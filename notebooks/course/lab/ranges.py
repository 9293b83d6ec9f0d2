"""Read what a lesson's setting may be; say so when a learner leaves it.

A setting is a line of a lesson's first cells. Its comment says what it may be, and
after a comma what it means:

    world_size = 4  # 2 to 8, the number of devices
    data = "digits"  # "digits" or "blobs"

read   the name, the value and the range of such a line
watch  after each cell, name the settings that are outside their range
"""

import ast
import re
import sys
from collections import namedtuple

# values: from the least to the greatest if `is_range`, else all that are allowed
Setting = namedtuple("Setting", "name value values is_range")

WORD = r"\"[^\"]*\"|'[^']*'|True|False|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
RANGE = rf"(?:{WORD})(?:(?: to | or |, )(?:{WORD}))+"
LINE = re.compile(rf"(\w+) = ({WORD}) +# ({RANGE})(?:, \S.*)?")


def read(line):
    """Return the Setting of a line; None if it is not one, or has mixed types."""
    found = LINE.fullmatch(line)
    if not found:
        return None
    value = ast.literal_eval(found[2])
    values = [ast.literal_eval(word) for word in re.findall(WORD, found[3])]
    if isinstance(value, float):  # "0 to 1" is a range of 0.5, too
        values = [float(value) for value in values]
    if {type(value) for value in values} != {type(value)}:
        return None
    return Setting(found[1], value, values, " to " in found[3])


def is_inside(setting):
    """Return whether a setting's value is one that the lesson was tried with."""
    if setting.is_range:
        return setting.values[0] <= setting.value <= setting.values[-1]
    return setting.value in setting.values


def watch():
    """After each cell of this notebook, name the settings outside their range.

    Does nothing where no notebook runs. A second call adds nothing.
    """
    if not sys.modules.get("IPython"):
        return
    from IPython import get_ipython

    shell = get_ipython()
    if shell and _warn not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _warn)


def _warn(result):
    for line in result.info.raw_cell.splitlines():
        setting = read(line)
        if setting and not is_inside(setting):
            print(
                f"{setting.name} = {setting.value!r} is outside what its comment "
                "allows: the cells below may end in an error",
                file=sys.stderr,
            )
