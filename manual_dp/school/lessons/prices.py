"""The exercise of the lesson on prices: the seconds of messages over a link.

    seconds      run an answer
    EXERCISES    with what is drawn, and what is right
"""

from types import SimpleNamespace

from manual_dp.school.exercise import Exercise, about
from manual_dp.school.tools.plain import plainly


def seconds(case, seconds):
    """Ask for the price of the steps over the link; see whether they are changed."""
    steps = [list(step) for step in case["steps"]]
    price = plainly(seconds(steps, SimpleNamespace(**case["link"])))
    return {"price": price, "steps": plainly(steps)}


def _draw(random):
    for lengths in [], [1], [1, 1, 1], [4], [3, 1, 2], [2, 2, 2, 2]:
        steps = [[random.randint(1, 99) for _ in range(length)] for length in lengths]
        if len(lengths) == 3:
            steps[0] = [0] * lengths[0]  # a message may be empty
        yield {"steps": steps,
               "link": {"alpha": random.randint(2, 9) / 2,
                        "bandwidth": random.choice([4.0, 5.0, 8.0, 10.0])}}


def _judge(case, got):
    steps, link = case["steps"], SimpleNamespace(**case["link"])
    count, messages = len(steps), [size for step in steps for size in step]
    longest = sum(map(max, steps))
    say = about(f"steps {steps}, alpha {link.alpha}, bandwidth {link.bandwidth}")
    right = count * link.alpha + longest / link.bandwidth
    price = got["price"]
    yield say("the steps afterwards", got["steps"], steps, [
        ("the lists are the caller's: leave them as they are", True)])
    yield say("seconds", price, right, [
        ("a step's messages travel at the same time: the longest counts, not their sum",
         count * link.alpha + sum(messages) / link.bandwidth),
        ("every message is counted as a step of its own: those of one step travel at "
         "the same time", len(messages) * link.alpha + sum(messages) / link.bandwidth),
        ("a message of 0 bytes costs alpha, too",
         sum(link.alpha + max(s) / link.bandwidth for s in steps if max(s))),
        ("alpha is left out: each step costs it once", longest / link.bandwidth),
        ("alpha is paid once in each step, not once in all",
         link.alpha + longest / link.bandwidth),
        ("the bytes are left out: each takes 1 / bandwidth", count * link.alpha),
        ("bandwidth is bytes a second: divide by it",
         count * link.alpha + longest * link.bandwidth),
        ("a step takes as long as its longest message, not its shortest",
         count * link.alpha + sum(map(min, steps)) / link.bandwidth),
        ("a step takes as long as its longest message, not the mean",
         count * link.alpha + sum(sum(s) / len(s) for s in steps) / link.bandwidth),
        ("steps follow each other: add them up, do not take the longest of all",
         max((link.alpha + max(step) / link.bandwidth for step in steps), default=0)),
        ("the sizes are bytes, as the bandwidth: no factor of 8",
         count * link.alpha + 8 * longest / link.bandwidth)])


EXERCISES = [Exercise("16/seconds", 0, _draw, _judge)]
