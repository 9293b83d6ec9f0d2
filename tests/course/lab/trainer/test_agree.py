"""What fails on one rank fails on all; what one rank of a host does, it does first."""

import pytest

from manual_dp.ranks import RankError, run_ranks

SOON = 60


def test_every_rank_gets_its_own_value():
    def values():
        import torch.distributed as dist

        from course.lab.trainer.agree import agree
        return agree(dist.get_rank), agree(dist.get_rank, here=dist.get_rank() == 1)
    assert run_ranks(values, 3, timeout=SOON) == [(0, None), (1, 1), (2, None)]


def test_one_rank_tells_and_the_others_end_without_a_word():
    def fail():
        import torch.distributed as dist

        from course.lab.trainer.agree import agree

        def some():
            if dist.get_rank() > 0:
                raise OSError(f"disk {dist.get_rank()}")
        agree(some)
    assert run_ranks(ending(fail), 3, timeout=SOON) == [2, "disk 1", 2]


def ending(function):
    """Return a function that tells how `function` ends: by which status, or error."""
    def on_rank(*args):
        try:
            function(*args)
        except SystemExit as end:
            return end.code
        except OSError as error:
            return str(error)
    return on_rank


def hosts_of_two(function):
    """Return what four ranks, two a host, return."""
    def on_rank():
        import os

        import torch.distributed as dist
        os.environ["LOCAL_RANK"] = str(dist.get_rank() % 2)
        return function(dist.get_rank())
    return run_ranks(on_rank, 4, timeout=SOON)


def test_one_rank_of_each_host_downloads_before_the_others_look(tmp_path):
    path = str(tmp_path)

    def look(rank):
        import os
        import time

        from course.lab.trainer.agree import once_a_host

        def fetch():
            found = os.path.exists(f"{path}/{rank // 2}")
            if not found:
                time.sleep(0.5)
                open(f"{path}/{rank // 2}", "x").close()  # a second writer would fail
            return found, sorted(os.listdir(path))
        return once_a_host(fetch)
    first, second, third, fourth = hosts_of_two(look)
    assert (first[0], third[0]) == (False, False)
    assert second == fourth == (True, ["0", "1"])  # both hosts had finished


def test_a_download_that_fails_on_one_host_ends_all_ranks():
    def fetch(rank):
        from course.lab.trainer.agree import once_a_host

        def fail():
            if rank == 2:
                raise FileNotFoundError("no network on this host")
        once_a_host(fail)
    assert hosts_of_two(ending(fetch)) == [2, 2, "no network on this host", 2]


def test_an_error_that_nobody_catches_is_the_launchs():
    def fail():
        import torch.distributed as dist

        from course.lab.trainer.agree import agree
        agree(lambda: 1 / dist.get_rank())
    with pytest.raises(RankError, match="rank 0 raised ZeroDivisionError"):
        run_ranks(fail, 1, timeout=SOON)
