"""One line for each way in which a torchrun fails; here out of texts, without a run."""

import pytest

from course.lab.hosts import reason

ENDING = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: failed"


@pytest.mark.parametrize("text, begins", [
    ("The server socket has failed to listen on any local network address. port: 29400, "
     "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
     + ENDING, "the port is taken"),
    ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
     "not all hosts came in time"),
    ("torch.distributed.DistNetworkError: The client socket has timed out after 60000ms "
     "while trying to connect to (10.0.0.9, 29400).\n" + ENDING,
     "nobody answered at the address of --rdzv-endpoint"),
    ("torch.distributed.elastic.rendezvous.api.RendezvousClosedError", "this job is over"),
    ("Traceback\nValueError: boom\n\n", "ValueError: boom"),
    ("", "it said nothing"),
])
def test_a_known_failure_is_one_line(text, begins):
    line = reason(text)
    assert line.startswith(begins) and "\n" not in line


def test_the_ranks_own_error_comes_before_what_follows_from_it():
    text = ("[rank1]:python -m manual_dp: error: the loss is nan\n"
            "[default0]:python -m manual_dp: error: Connection closed by peer\n" + ENDING)
    assert reason(text.splitlines(True)[0] + ENDING) == "the loss is nan"
    assert reason(text) == "the loss is nan"
