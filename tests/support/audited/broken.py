"""Broken programs for the audit: BROKEN, name -> (codes, function).

codes: any of them names what is wrong. function() returns audit's arguments. It is a
`functools.partial` of a base program, and its keywords are the edits that break it:
`right(name)` is the program without them.
"""

import functools
import importlib

THEMES = ("hand", "rows", "resnet", "epochs", "gpt", "clip", "gan", "contrastive",
          "states", "weights", "lstm", "unet", "items", "wraps",
          "coder")

# what changes the setting and not the program
SETTING = ("rows", "world_size")

BROKEN = {
    f"{theme}: {name}": entry for theme in THEMES
    for name, entry in importlib.import_module(
        f"tests.support.audited.broken_{theme}").BROKEN.items()}


def right(name):
    """Return the function of the right program beside the broken one."""
    function = BROKEN[name][1]
    kept = {key: value for key, value in function.keywords.items() if key in SETTING}
    return functools.partial(function.func, **kept)
