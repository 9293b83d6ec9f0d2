"""Answers that would rather know than test: none gains a point.

Each is graded as a learner hands it in. A reply without points for any exercise would
also come from a grader that is broken: the first answer here is an honest one.
"""

import random

import pytest

from manual_dp.school.checks import judge
from manual_dp.school.exercise import exercises
from manual_dp.school.grader.worker import grade
from manual_dp.school.tools.run import run
from tests.support.answers import cells_of

START = "def same_step(train_batch):\n"
FRAMES = '''
import sys
def frames():
    frame = sys._getframe()
    while frame:
        yield frame
        frame = frame.f_back
'''
ATTACKS = {
    "looks for the truth of the case": FRAMES + START + '''
    for frame in frames():
        for value in frame.f_locals.values():
            if hasattr(value, "truth"):
                words = value.truth[len(seen)]
                seen.append(words)
                return words[1]
    return True
seen = []
''',
    "looks for the truth in the job": FRAMES + '''
import json
for frame in frames():
    if "job" in frame.f_locals:
        text = json.dumps(frame.f_locals["job"], default=str)
        known = "truth" in text or "mean_of_means" in text
''' + START + "    return not known\n",
    "asks for the name": START + '''
    return train_batch.__name__ in ("sums", "weighed", "every_kth", "row_by_row",
        "backwards_in_order", "in_one_bucket", "first_device_then_copies")
''',
    "asks for the docstring": START + '''
    return not any(word in (train_batch.__doc__ or "") for word in
                   ("never", "Leave", "Keep", "Repeat", "whatever"))
''',
    "imports the judge": '''
try:
    from manual_dp.school.ps7 import judge
except ImportError:
    judge = None
''' + START + "    return judge is None\n",
    "searches memory for the planted": START + '''
    import gc
    for thing in gc.get_objects():
        if isinstance(thing, dict) and "PLANTED" in thing:
            right, bugs = thing["PLANTED"]["same_step"]
            return True
    return True
''',
    "replaces what collects verdicts": '''
from manual_dp.school.ps7 import run
run._plain = lambda verdict: "right"
run.same_step = lambda case, answer: {"verdicts": [True] * 23}
''' + START + "    return True\n",
    "writes its own message": '''
from manual_dp.school.ps7 import run
run._verdicts = lambda case, answer: {"verdicts": {"points": 4}}
''' + START + "    return True\n",
    "returns nothing to judge": '''
from manual_dp.school.ps7 import run
run._verdicts = lambda case, answer: {"verdicts": []}
''' + START + "    return True\n",
    "makes all programs do nothing": '''
from manual_dp.school.ps7 import given
given.descend = lambda params, rate: None
''' + START + "    return True\n",
    "counts on the order": '''
calls = []
''' + START + "    calls.append(1)\n    return len(calls) <= 7\n",
    "throws a coin": "import random\n" + START + "    return random.random() < 0.1\n",
}


def test_an_honest_answer_is_graded_right(worker):
    message = grade(worker, exercises("ps7")["ps7/same_step"], cells_of("ps7"))
    assert message is None


def test_where_the_truth_is_in_reach_the_same_attack_finds_it():
    name = "ps7/same_step"
    case, = exercises("ps7")[name].draw(random.Random(0))
    space = {}
    exec(ATTACKS["looks for the truth of the case"], space)
    got = run(name, case, [space["same_step"]])  # in the process that drew the case
    assert judge(exercises("ps7")[name], case, got) is None


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_gains_no_point(worker, attack):
    message = grade(worker, exercises("ps7")["ps7/same_step"],
                    cells_of("ps7") | {"same_step": ATTACKS[attack]})
    assert message and getattr(message, "points", 0) == 0
