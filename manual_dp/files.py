"""Files that are written whole or not at all.

    write_text   put a text in a file's place, once all of it is on the disk
    write_json   the same for what JSON can hold
"""

import json
import os
from pathlib import Path


def write_text(path, text):
    """Write `text` to `path`, as UTF-8; if interrupted, the old file stays."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path, value):
    """Write `value` to `path` as JSON; if interrupted, the old file stays."""
    write_text(path, json.dumps(value, indent=1) + "\n")
