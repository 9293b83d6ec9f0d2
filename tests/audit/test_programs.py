"""Programs that were written without a look at the audit: right, and broken.

Every fourth is run, all with `--all-programs` (`make audits`). The audit was mended by
those in tests/support/audited; those in tests/support/heldout came later. See also
prove.py and prove_broken.py there, which show without the audit that the right ones are
right and the broken ones are not.
"""

from manual_dp.audit import audit
from manual_dp.audit.catalogue import WORDS
from tests.conftest import programs
from tests.support.audited import broken, right
from tests.support.heldout import broken as later_broken
from tests.support.heldout import right as later_right

RIGHT = right.RIGHT | later_right.RIGHT
BROKEN = broken.BROKEN | later_broken.BROKEN

WAITS = {"hang", "unequal-batches", "mismatch"}  # until time is up

# what is said of a gradient that no mixture of the ranks' gradients explains
OTHER = "the loss is not known: other targets look like a number over a rank's own rows"
RESTS = "the rank's weights rest in that step, which is why replicas differ"

# of broken programs, the name that is given instead, None for no finding; and why
NAMED_OTHERWISE = {
    "adaptive_clip__clipped_before_the_mean": (
        "gradient", "clipped by its own code, parameter by parameter"),
    "clip_image_text__labels_not_moved_by_rank": ("local", OTHER),
    "clip_image_text__scale_clamped_on_rank_0": (
        None, "in three steps the scale does not reach its bound: nothing is clamped"),
    "complex_parameters__imaginary_part_left_out": (
        "gradient", "half of each number is averaged, which nobody expects"),
    "distillation__rank_0_leaves_eval": (
        "local", "it is the teacher that changes its mode, which is not trained"),
    "list_of_sequences__mean_over_own_sequences": (
        None, "rows of many lengths: how many each rank took is not known"),
    "manual_zero__never_sent_back": (
        "nothing-moved", "each rank's weights move where its own optimizer works"),
    "mixture_of_experts__unused_experts_not_averaged": (
        "unused-parameter", "which is why the ranks' sums do not meet"),
    "moco__running_mean_on_rank_0": (
        "replicas-differ", "the mean is a part of the model"),
    "own_sync_batch_norm__statistics_of_own_rows": (
        "buffers", "the running mean of these statistics differs, too"),
    "ppo__gains_normalised_over_own_rows": (
        None, "a rank's number of passes depends on its rows: others at world size 1"),
    "speech_ctc__every_other_text": ("local", OTHER),
    "weighted_losses__labelled_rows_of_own_rank": (
        "local", "two losses with weights of their own: no mixture of the sums fits"),
    "clip: clipped by a summed norm": (
        "factor", "by its own code: all ranks take the same part of the gradient"),
    "clip: update skipped on others": ("nothing-moved", RESTS),
    "coder: dealt by two rules": ("local", OTHER),
    "coder: each from one rank": (
        "not-synchronised", "each parameter is, on one rank, that rank's own"),
    "coder: noise of the first rows": ("local", OTHER),
    "coder: pruned on rank 0": (
        "gradient", "pruned before the optimizer's step: its gradients are others"),
    "coder: rate by a rank's gradients": (
        "factor", "gradients are scaled by a number of each rank's own"),
    "coder: update skipped once": ("nothing-moved", RESTS),
    "contrastive: all pairs, own gradient": (
        "local", "gathered without a gradient: nothing comes back from other ranks"),
    "contrastive: goals from zero": ("local", OTHER),
    "hand: largest instead of mean": (
        "not-synchronised", "one bias is another one's own on each rank, by chance"),
    "items: last row left out": (
        None, "left out at two ranks alone: the rows of world size 1 are others"),
    "lstm: languages that meet": (
        "not-synchronised", "sums of different parameters meet: some get nothing"),
    "lstm: no rows for the last rank": ("local", "an empty rank's gradient is 0"),
    "resnet: weights replaced after wrapping": (
        "unused-parameter", "DDP waits for the parameters that it knows, and says so"),
    "rows: rows shuffled, labels not": (
        None, "shuffled by random numbers, and no single device does the same"),
    "unet: masks of the rank before": ("local", OTHER),
    "wraps: share of the parameters, not sent": (
        "nothing-moved", "each rank's optimizer updates a share, and nobody sends it"),
}


def pytest_generate_tests(metafunc):
    for name, cases in (("right", RIGHT), ("broken", BROKEN)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, programs(metafunc.config, cases))


def listed(codes):
    return codes if isinstance(codes, tuple) else (codes,)


def codes(report):
    return [f.code for f in report.findings]


def test_a_right_program_has_no_finding(right):
    report = audit(**RIGHT[right]())
    assert codes(report) == [], report


def test_a_broken_program_is_found_and_named(broken):
    names, program = BROKEN[broken]
    timeout = 15 if WAITS & {*names} else 60
    report = audit(**{"timeout": timeout, **program()})
    if broken in NAMED_OTHERWISE:
        names = listed(NAMED_OTHERWISE[broken][0])
    assert next(iter(codes(report)), None) in names, report


def test_what_is_known_is_of_programs_that_there_are():
    assert NAMED_OTHERWISE.keys() <= BROKEN.keys()
    assert {code for codes, _ in NAMED_OTHERWISE.values()
            for code in listed(codes)} <= {*WORDS, None}
    assert {code for names, _ in BROKEN.values() for code in names} <= {*WORDS}
    for name, (codes, _) in NAMED_OTHERWISE.items():
        assert not {*listed(codes)} & {*BROKEN[name][0]}, f"{name} is named rightly"
    assert len(RIGHT) > 150 and len(BROKEN) > 200
