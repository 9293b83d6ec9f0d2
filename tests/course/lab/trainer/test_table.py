import json

from course.lab.trainer import report, summary, table


def one(world_size, seed, seconds, right, batch_size=64, method="ddp"):
    return {"model": "resnet18", "stem": "cifar", "data": "stand-in", "rows": 200,
            "method": method, "lr": 0.05, "accumulate": 1, "amp": False, "seed": seed,
            "world_size": world_size, "batch_size": batch_size, "of": 200, "epochs": 2,
            "seconds_a_step": seconds, "right": [20, right], "momentum": 0.9,
            "loss": [2.0, 1.0], "test_acc": [0.1, right / 200], "seconds": {"load": 0.5},
            "clip": None, "form": None, "test_rows": 200}


RUNS = [one(1, 0, 2.0, 190), one(2, 0, 1.25, 191), one(1, 1, 4.0, 180),
        one(2, 1, 1.25, 192), one(1, 2, 2.0, 200), one(2, 2, 9.0, 189)]


def test_speed_up_and_efficiency_by_hand():
    first, second = summary(RUNS)
    assert (first["speed_up"], first["efficiency"]) == (1, 1)
    assert second["seconds_a_step"] == 1.25  # the median over the seeds
    assert (second["speed_up"], second["efficiency"]) == (1.6, 0.8)
    assert second["seeds"] == [0, 1, 2] and second["right"] == [191, 192, 189]
    assert second["of"] == 200


def test_more_rows_a_step_in_the_same_time_are_a_speed_up():
    grown = summary([one(1, 0, 2.0, 190), one(2, 0, 2.0, 190, batch_size=128)])
    assert grown[1]["speed_up"] == 2


def test_without_one_rank_there_is_no_ratio():
    alone = summary([one(2, 0, 2.0, 190), one(1, 0, 2.0, 190, method="dataparallel")])
    assert [row["speed_up"] for row in alone] == [None, 1]
    assert table(alone).splitlines()[1].split() == [
        "resnet18", "cifar", "ddp", "2", "64", "2.000", "-", "-", "0.950"]


def test_other_settings_are_other_rows():
    longer = RUNS[1] | {"epochs": 9}
    assert len(summary([RUNS[0], RUNS[1], longer])) == 3


def test_the_table_names_the_accuracy_of_every_seed():
    lines = table(summary(RUNS)).splitlines()
    assert lines[2].split() == ["resnet18", "cifar", "ddp", "2", "64", "1.250", "1.60",
                                "0.80", "0.955", "0.960", "0.945"]


def test_a_file_keeps_where_and_rounds_what_no_machine_repeats():
    kept = report([one(1, 0, 1.23456789, 190) | {"lr": 0.012345678},
                   one(2, 0, 0.9876543, 190) | {"lr": 0.012345678}])
    assert set(kept) == {"what", "where", "summary", "runs"}
    assert kept["what"] == ["not CIFAR-10"]
    assert [run["seconds_a_step"] for run in kept["runs"]] == [1.235, 0.9877]
    assert kept["summary"][1]["speed_up"] == 1.25  # 1.235 / 0.9877 = 1.25038
    assert kept["runs"][0]["lr"] == 0.012345678  # what was asked for is not measured
    assert json.loads(json.dumps(kept)) == kept
    again = report(kept["runs"])
    assert (again["summary"], again["runs"]) == (kept["summary"], kept["runs"])
    assert kept["where"]["load"] >= 0
