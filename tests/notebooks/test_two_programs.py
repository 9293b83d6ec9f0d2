"""notebooks/programs/two_programs.py: one program is right, one is broken, as said."""

import pytest
import torch
from programs import two_programs  # notebooks/programs

from manual_dp import allreduce, get_params, lenet, loss


@pytest.fixture(scope="module")
def trained():
    X, y, params, _ = two_programs.minibatch(seed=1)
    return {
        exchange: two_programs.train(X, y, params, 0.05, exchange)
        for exchange in (allreduce, two_programs.no_exchange)
    }, (X, y)


def test_the_coin_falls_the_same_way_in_each_run_and_one_program_is_broken():
    said = two_programs.toss("AB")
    assert said == two_programs.toss("AB")
    assert {*said.values()} == {allreduce, two_programs.no_exchange}


def test_without_an_exchange_each_replica_takes_the_mean_step_of_its_own_images():
    X, y, params, _ = two_programs.minibatch(seed=0)
    alone = get_params(params, "cpu")
    loss(lenet(X[2:4], alone), y[2:4]).mean().backward()
    replicas = [get_params(params, "cpu") for _ in range(8)]
    two_programs.train_batch(X, y, replicas, ["cpu"] * 8, 0.1, two_programs.no_exchange)
    for p, start, single in zip(replicas[1], params, alone):
        assert torch.allclose(p, start - 0.1 * single.grad, rtol=0, atol=1e-12)


def test_the_printed_loss_is_that_of_each_ranks_own_images(trained):
    runs, (X, y) = trained
    for losses, replicas in runs.values():
        own, everything = two_programs.losses_of(replicas, X, y)
        by_hand = [
            loss(two_programs.scores(X, replica), y).tolist() for replica in replicas
        ]
        pairs = [each[2 * rank : 2 * rank + 2] for rank, each in enumerate(by_hand)]
        assert own == pytest.approx(sum(map(sum, pairs)) / 16)
        assert everything == pytest.approx(sum(map(sum, by_hand)) / 128)
        assert own < losses[-1]  # one step later


def test_on_new_digits_only_equal_replicas_print_the_loss_of_rank_0_on_all(monkeypatch):
    monkeypatch.setattr(two_programs, "STEPS", 2)
    printed, on_all = two_programs.train_on_new(0, 0.05, allreduce)
    assert printed == pytest.approx(on_all, abs=1e-12)
    printed, on_all = two_programs.train_on_new(0, 0.05, two_programs.no_exchange)
    assert abs(printed - on_all) > 0.1


@pytest.mark.parametrize(
    "exchange, said",
    [
        (allreduce, "no mistake found in 4 sums: 0e+00"),
        (two_programs.leave_out_last, "NOT SEEN: 0e+00; a sum is off by "),
    ],
)
def test_a_test_that_sees_nothing_is_held_against_the_sums(exchange, said, capsys):
    params = [torch.ones(3)]
    two_programs.judge(exchange, lambda _: 0.0, params, 4)
    assert capsys.readouterr().out.startswith(said)


def test_a_test_that_sees_a_mistake_or_stops_is_told_so(capsys):
    def stop(exchange):
        raise KeyError("mine")

    two_programs.judge(allreduce, lambda _: 0.25, [torch.ones(3)], 4)
    two_programs.judge(allreduce, stop, [torch.ones(3)], 4)
    assert capsys.readouterr().out == (
        "seen: a weight is off by 2e-01\nstopped: KeyError: 'mine'\n"
    )
