"""notebooks/programs/claims.py: each measurement can say both, and counts what it says."""

import json
from pathlib import Path
from statistics import median

import pytest
from programs import claims  # notebooks/programs
from torch import nn

from manual_dp.data import ensure_torchvision
from manual_dp.ranks import run_ranks

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_rank_0_comes_through_a_step_alone_and_waits_in_backward():
    assert [claims.waits(act, 2, 0) for act in ("step", "backward")] == [0, 1]


def test_ddp_makes_ranks_equal_unless_its_constructor_sends_nothing():
    assert claims.apart(True, 2, 0) == 0 < claims.apart(False, 2, 0)


def test_dataparallel_refuses_a_network_that_never_moved():
    assert [claims.fails(moved, 2, 0) for moved in (True, False)] == [0, 1]


@pytest.mark.parametrize("n", [2, 3, 4])
def test_threads_gradients_add_up_to_one_threads_if_none_is_left_out(n):
    assert claims.threads(True, n, 0) < 1e-12 < 1e-3 < claims.threads(False, n, 0)


def test_a_step_is_one_devices_only_with_an_exchange():
    assert claims.off(True, 2, 0) < 1e-12 < 1e-4 < claims.off(False, 2, 0)


@pytest.mark.parametrize("n", [2, 3])  # 3 does not divide 64
def test_shared_rows_end_where_one_gpu_ends_and_twice_the_rate_does_not(n):
    assert claims.ends(("shared", 1, claims.SGD), n, 0) < 1e-9
    assert claims.ends(("shared", "n", claims.SGD), n, 0) > 10


@pytest.mark.parametrize("n", [2, 3])
def test_ranks_of_the_articles_example_1_part_unless_ddp_wraps_the_model(n):
    assert claims.parted(claims.DDP, n, 0) == 0 < 5 < claims.parted(nn.Sequential, n, 0)


def test_networks_with_the_same_rows_learn_the_same_together_and_alone():
    assert claims.errors(False, 3, 0) == 0
    alone = claims.wrong(True, False, 3, 0, steps=0)
    assert alone == claims.wrong(True, True, 3, 0, steps=0) > 200  # of 359


def test_a_batch_mean_wanders_less_over_more_rows():
    spread = claims.wanders(True, 4, 0)
    assert abs(spread - 50) < 10  # 1 / sqrt(4) of it is left
    assert claims.wanders(False, 2, 0) < 10


def test_a_loss_rises_at_a_high_rate_only():
    assert claims.rises(0.001, 1, 0) == 0 < claims.rises(0.1, 1, 0)


def test_bytes_are_those_of_float32_and_operations_grow_with_the_image():
    size, operations = claims.weigh("resnet18", 32)
    net = ensure_torchvision().models.resnet18(num_classes=10)
    assert size == 4 * sum(p.numel() for p in net.parameters())
    assert claims.weigh("resnet18", 64)[1] == pytest.approx(4 * operations, rel=0.01)


def test_before_the_group_each_rank_downloads_and_then_one_does():
    whens = ("before the group", "in the group", "no ranks")
    assert [claims.downloads(when, 3, 0) for when in whens] == [3, 1, 1]


def test_a_rank_has_its_number_before_the_group_is_open(tmp_path):
    numbers = run_ranks(claims._download, 3, "before the group", tmp_path / "data")
    assert numbers == ["0", "1", "2"]


def test_the_other_ranks_see_no_error_of_an_upload_until_rank_0_tells_them():
    assert [claims.uploads(way, 3, 0) for way in ("alone", "told")] == [2, 0]
    assert claims.uploads("alone", 3, 0, fails=False) == 3


@pytest.mark.parametrize("n", [2, 3])
def test_a_file_that_all_ranks_write_holds_bytes_of_all_unless_each_renames_its_own(n):
    assert [claims.mixed(way, n, 0) for way in ("one name", "own names")] == [n, 1]


def test_the_page_says_what_the_books_builds_took_on_two_gpus():
    stored = NOTEBOOKS / "results" / "d2l-builds.json"
    runs = json.loads(stored.read_text(encoding="utf-8"))["runs"]
    right = [run["seconds"] for run in runs if run["sum_reaches_gpu_1"]]
    times = [two / one for one, two in right]
    page = (NOTEBOOKS / "claims.md").read_text(encoding="utf-8")
    assert f"in the {len(times)} builds whose second GPU got the sum" in page
    assert f"took {min(times):.2f} to {max(times):.2f} times as long" in page
    assert f"{median(times):.1f} times in the median" in page
