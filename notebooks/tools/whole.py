"""Files that are written whole or not at all.

    write_text   as in manual_dp/files, without the two seconds in which torch is imported
"""

import os


def write_text(path, text):
    """Write `text` to `path`, as UTF-8; if interrupted, the old file stays."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
