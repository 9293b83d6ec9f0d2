"""The progress bar of long commands."""


def bar(items, label):
    """Wrap `items` in a progress bar that shows on a terminal only."""
    try:
        from tqdm import tqdm
    except ImportError:  # the core needs torch only
        return items
    return tqdm(items, desc=label, leave=False, disable=None)
