"""programs/thirty_draws.py: rounding and mistakes are far apart in each draw."""

from programs import thirty_draws


def test_it_prints_a_line_for_each_program_and_each_range(capsys):
    thirty_draws.main(2)
    lines = capsys.readouterr().out.splitlines()
    names = ["right", "same rows", "mean of means", "not synchronised", "sum for mean"]
    assert [line[:17].strip() for line in lines[2:8]] == [*names, "batch norm"]
    assert [line[:8] for line in lines[12:]] == [
        "5 words".rjust(8),
        "12 words",
        "50 words",
    ]
    assert max(map(len, lines)) <= 78


def test_draws_differ_and_a_right_step_is_off_by_rounding():
    right, wrong = thirty_draws.off_by(["right", "sum for mean"], 3).values()
    assert max(right) < 1e-13
    assert all(abs(off - 2) < 1e-9 for off in wrong)
    assert len(set(right)) == 3


def test_only_what_no_mixture_explains_is_a_misfit():
    assert max(thirty_draws.misfit(2)) < 1e-12
    assert min(thirty_draws.misfit(2, same_rows=True)) > 1e-3
    assert min(thirty_draws.misfit(2, norm="batch")) > 1e-3


def test_a_mean_over_own_tokens_is_off():
    assert 0.1 < thirty_draws.tokens(0, 12) != thirty_draws.tokens(1, 12)
