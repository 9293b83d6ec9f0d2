"""Say in one line why a torchrun failed: its own text has a hundred.

    reason   the line, out of what a torchrun wrote to stderr
"""

import re

KNOWN = (
    (r"EADDRINUSE|[Aa]ddress already in use",
     "the port is taken: another program listens there; name another in "
     "--rdzv-endpoint HOST0:PORT, the same one on every host"),
    (r"RendezvousTimeoutError|Timed out.*waiting for clients",
     "not all hosts came in time: start torchrun on every host, with the same "
     "--rdzv-id, --rdzv-endpoint and --nnodes"),
    (r"client socket has failed to connect|client socket has timed out"
     r"|C10d store has failed",
     "nobody answered at the address of --rdzv-endpoint: is it host 0's, is torchrun "
     "running there, does a firewall let the port through?"),
    (r"RendezvousClosedError",
     "this job is over: start it again with a new --rdzv-id"),
)


def reason(err):
    """Return why a torchrun failed, in one line, from the text that it wrote.

    A rank's own error comes first: without it the ranks would not have met either.
    """
    own = re.findall(r"^(?:\[\w+\]:)?python -m manual_dp: error: (.*)$", err, re.M)
    if own:
        return own[0]
    for pattern, line in KNOWN:
        if re.search(pattern, err):
            return line
    lines = [line for line in err.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
