"""The progress bar of long commands."""


def bar(items, label, total=None):
    """Wrap `items` in a progress bar that shows on a terminal only.

    total: how many they are, where they do not know it.
    """
    try:
        from tqdm import tqdm
    except ImportError:  # the core needs torch only
        return items
    return tqdm(items, desc=label, total=total, leave=False, disable=None)
