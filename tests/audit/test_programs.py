"""Programs that were written before the audit's author knew them: right, and broken.

Every fourth is run, all with `--all-programs` (`make audits`). See also
tests/support/audited/prove.py and prove_broken.py, which show without the audit that
the right ones are right and the broken ones are not.
"""


from manual_dp.audit import audit
from manual_dp.audit.catalogue import WORDS
from tests.conftest import programs
from tests.support.audited.broken import BROKEN
from tests.support.audited.right import RIGHT

WAITS = {"hang", "unequal-batches", "mismatch"}  # until time is up

# of right programs, what is found and why that is no surprise
FOUND = {
}
# of broken ones, the name that is given instead, None for no finding; and why
NAMED_OTHERWISE = {
}


def pytest_generate_tests(metafunc):
    for name, cases in (("right", RIGHT), ("broken", BROKEN)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, programs(metafunc.config, cases))


def codes(report):
    return [f.code for f in report.findings]


def test_a_right_program_has_no_finding(right):
    expected = [FOUND[right][0]] if right in FOUND else []
    report = audit(**RIGHT[right]())
    assert codes(report)[:1] == expected, report


def test_a_broken_program_is_found_and_named(broken):
    names, program = BROKEN[broken]
    timeout = 15 if WAITS & {*names} else 60
    report = audit(**{"timeout": timeout, **program()})
    if broken in NAMED_OTHERWISE:
        names = NAMED_OTHERWISE[broken][:1]
    assert next(iter(codes(report)), None) in names, report


def test_what_is_known_is_of_programs_that_there_are():
    assert FOUND.keys() <= RIGHT.keys() and NAMED_OTHERWISE.keys() <= BROKEN.keys()
    assert {code for code, _ in NAMED_OTHERWISE.values()} <= {*WORDS, None}
    assert {code for names, _ in BROKEN.values() for code in names} <= {*WORDS}
    for name, (code, _) in NAMED_OTHERWISE.items():
        assert code not in BROKEN[name][0], f"{name} is named rightly"
    assert len(RIGHT) > 150 and len(BROKEN) > 200
