import pytest

from course.lab.network.published import CASES, no_wait, predicted, ratio, table

WITHOUT_REASON = [case for case in CASES if not case.reason]


@pytest.mark.parametrize("case", WITHOUT_REASON, ids=lambda case: (
    f"{case.source}, {case.network}, {case.devices}"))
def test_the_plan_comes_near_to_what_was_published(case):
    assert 0.7 <= ratio(case) <= 1.4


def test_there_are_runs_of_goyal_li_and_another_on_8_to_512_gpus():
    sources = {case.source for case in WITHOUT_REASON}
    assert {"Goyal et al. 2017", "Li et al. 2020", "Horovod, benchmarks"} <= sources
    assert {8, 16, 32, 256, 512} <= {case.devices for case in WITHOUT_REASON}


def test_what_is_out_of_reach_has_its_reason_and_is_one():
    far = [case for case in CASES if not 0.7 <= ratio(case) <= 1.4]
    assert [case.source for case in far] == ["Li et al. 2020"]
    assert all(case.reason for case in far)


def test_a_plan_that_says_no_wait_would_miss_a_network_with_many_weights():
    vgg = next(case for case in CASES
               if case.network == "VGG-16" and case.devices == 512)
    assert 1 / vgg.value > 1.4 and 0.9 <= ratio(vgg) <= 1.1


def test_of_resnet_the_plan_says_nearly_what_it_would_say_without_an_allreduce():
    for case in CASES:
        if case.network == "ResNet-50" and case.kind != "overlap":
            assert no_wait(case) == pytest.approx(ratio(case), rel=0.03)
    vgg = [case for case in CASES if case.network == "VGG-16"]
    assert [no_wait(case) for case in vgg] == [1 / case.value for case in vgg]


def test_more_gpus_over_one_network_wait_longer():
    few, many = (predicted(case) for case in CASES
                 if case.network == "VGG-16" and case.devices in (128, 512))
    assert few > many


def test_the_table_has_a_line_for_each_case():
    lines = table().splitlines()
    assert len(lines) == len(CASES) + 1
    assert all(case.source in line and case.figure in line
               for case, line in zip(CASES, lines[1:]))


def test_a_star_says_that_the_compute_time_is_from_elsewhere():
    starred = {line[:21].strip() for line in table().splitlines() if "*" in line}
    assert starred == {"Horovod, benchmarks", "Li et al. 2020"}
