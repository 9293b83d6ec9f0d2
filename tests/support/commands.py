"""What tests of the command lines share.

refuses   what a command prints when it refuses its arguments
"""

import pytest


def refuses(main, capsys, *arguments):
    """Return the last line that the command prints when it refuses."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert out == "" and "Traceback" not in err
    return err.splitlines()[-1]
