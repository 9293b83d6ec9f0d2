"""Files that the pages and tools read and write. No lesson is about them.

write_bytes      write data to a file; if interrupted, the old file stays
write_text       the same for a text
write_json       the same for a value, as JSON
sealed           files that stay whole in a crash, and whose damage is noticed
fashion_mnist    find or download a data set's four files, check them, read them
vision           import torchvision, also beside a torch without GPUs
"""

import json

from manual_dp.files.sealed import replacing


def write_bytes(path, data):
    """Write `data` to `path`; if interrupted, the old file stays."""
    with replacing(path) as file:
        file.write(data)


def write_text(path, text):
    """Write `text` to `path`, as UTF-8; if interrupted, the old file stays."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path, value):
    """Write `value` to `path` as JSON; if interrupted, the old file stays."""
    write_text(path, json.dumps(value, indent=1) + "\n")
