"""Whose memory is a parameter on?

    within   the names of a parameter and another tensor of this rank on its memory
    common   {name: place} of what is trained on memory that other processes may write

Places are compared between ranks: the same one is the same memory. They are read from
what Linux says of this process; elsewhere nothing is known.
"""

from bisect import bisect_right
from pathlib import Path

MAPS = Path("/proc/self/maps")  # address-address permissions offset device inode path
HOST = Path("/proc/sys/kernel/random/boot_id")  # inodes are one host's


def within(watch):
    """Return the names of a parameter and another tensor on its memory, or None."""
    params, spans = dict(zip(watch.names, watch.params)), []
    buffers = [named for module in watch.modules for named in module.named_buffers()]
    for name, tensor in [*params.items(), *buffers]:
        if (not hasattr(tensor, "to_local") and tensor.numel()
                and tensor.is_contiguous()):
            start = tensor.data_ptr()
            spans.append((start, start + tensor.nbytes, name, name in params))
    spans.sort()
    for (_, end, one, is_param), (start, _, other, is_too) in zip(spans, spans[1:]):
        if start < end and (is_param or is_too):
            return (one, other) if is_param else (other, one)
    return None


def common(params):
    """Return {name: place} of the parameters that are trained in a shared mapping."""
    mappings = _shared_mappings()
    starts, found = [start for start, *_ in mappings], {}
    for name, p in params.items():
        here = p.device.type == "cpu" and not hasattr(p, "to_local") and p.numel()
        if not here or not p.requires_grad:  # a table may be read by all
            continue
        at = bisect_right(starts, p.data_ptr()) - 1
        if at >= 0 and p.data_ptr() < mappings[at][1]:
            start, _, offset, file = mappings[at]
            found[name] = (*file, offset + p.data_ptr() - start)
    return found


def _shared_mappings():
    """Return (start, end, offset, file) of what others may map and write, in order."""
    try:
        host, lines = HOST.read_text().strip(), MAPS.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        span, permissions, offset, device, inode = line.split(maxsplit=5)[:5]
        if permissions[1] == "w" and permissions[3] == "s" and inode != "0":
            start, end = (int(one, 16) for one in span.split("-"))
            found.append((start, end, int(offset, 16), (host, device, int(inode))))
    return found
