"""Files: the lowest floor, on which pages and tools stand. No lesson is about it.

write_bytes      put data in a file's place, once all of it is there
write_text       the same for a text; write_json  for what JSON can hold
sealed           files that outlive a crash and notice a flipped bit
fashion_mnist    a data set's four files: found or fetched, checked, read
cifar10          another's, in two forms: found or fetched, checked, read
vision           torchvision, also beside a torch without GPUs
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
