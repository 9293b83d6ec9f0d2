"""Problem set 7, the judge: a learner's test is worth what it catches.

    PLANTED   for most exercises: what is right, which bugs there are, in words

Every test gets all bugs and all right programs, without their names and in an order
drawn anew. Each bug caught is worth a quarter of a point. Who accuses one that is right
gets nothing.
"""

import ast
import inspect
import textwrap
from functools import partial

from manual_dp.school.exercise import Exercise, Partly, about, failed, so_many
from manual_dp.school.ps7 import (
    broken_trainers,
    charts,
    checkpoints,
    machines,
    more_steps,
    ranked,
    scripts,
    trainers,
)

A_BUG = 0.25  # points
WORLD_SIZE = 3
SENT = 350  # numbers: a tenth of the model's
STUCK = [("some rank waits for others that never come: every rank must call the same "
          "collectives", "timeout|gloo"),
         ("a program was handed no rows: every rank hands over the whole minibatch",
          "ZeroDivisionError")]


class Case(dict):
    """A case with a `truth` of its own, which JSON leaves out: no answer gets it."""

    truth = ()

    @property
    def inputs(self):
        """Return how many programs there are to judge."""
        return len(self["programs"])


def _of_functions(functions):
    """Return {source of a function called `program`: its first line, in words}."""
    return {_bare(function): function.__doc__.splitlines()[0] for function in functions}


def _bare(function):
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    definition.name = "program"
    definition.body = definition.body[1:] or [ast.Pass()]  # without its docstring
    return ast.unparse(tree)


def _of_classes(changes):
    return {checkpoints.source(change).replace("class Training", "class program"):
            words for words, change in changes.items()}


PLANTED = {  # {exercise: (right, bugs)}, each {source: words}
    "same_step": (_of_functions(more_steps.RIGHT), _of_functions(more_steps.BUGS)),
    "same_weights": (_of_functions(trainers.RIGHT),
                     _of_functions(broken_trainers.BUGS)),
    "same_on_ranks": (_of_functions(ranked.RIGHT), _of_functions(ranked.BUGS)),
    "assert_same": (_of_functions(scripts.RIGHT), _of_functions(scripts.BUGS)),
    "same_after_kill": (_of_classes(checkpoints.RIGHT), _of_classes(checkpoints.BUGS)),
}


def _draw_programs(name, random):
    yield _shuffled(random, *([(source, words) for source, words in kind.items()]
                              for kind in PLANTED[name]))


def _draw_on_ranks(name, random):
    for case in _draw_programs(name, random):
        case.update(world_size=WORLD_SIZE, seed=random.randrange(10 ** 6))
        yield case


def _draw_charts(random):
    noise = partial(random.uniform, -1e-6, 1e-6)  # that of float32
    right = [(charts.chart("healthy", *_uneven(random)), "uneven shards"),
             (charts.chart("healthy", *_uneven(random), noise), "float32"),
             (charts.chart("healthy", random.choice([2, 4]), 8), "equal shards"),
             (charts.chart("healthy", random.choice([2, 4]), 8, noise),
              "equal shards, float32"),
             (charts.chart("healthy", 1, random.randint(3, 9)), "one rank"),
             (charts.chart("healthy", 4, 4, noise), "a row a rank, float32")]
    bugs = [(charts.chart(name, *_uneven(random), random.choice([None, noise])), name)
            for name in charts.CAUSES if name != "healthy"]
    yield _shuffled(random, right, bugs)


def _draw_machines(random):
    yield _shuffled(random, *([(draw(random), words) for words, draw in kind.items()]
                              for kind in (machines.RIGHT, machines.BUGS)))


def _uneven(random):
    """Draw k and n, so that shards are uneven and none is empty."""
    return random.choice([(k, n) for k in (3, 4, 5) for n in range(2 * k + 1, 4 * k)
                          if n % k and (k - 1) * -(-n // k) < n])


def _shuffled(random, right, bugs):
    """Return a case with all programs, whose truth is not a part of it."""
    planted = [(program, words, is_right) for kind, is_right in ((right, True),
                                                               (bugs, False))
               for program, words in kind]
    random.shuffle(planted)
    case = Case(programs=[program for program, _, _ in planted])
    case.truth = [(words, is_right) for _, words, is_right in planted]
    return case


def _judge(points, case, got, verdicts=None):
    """Yield what the test accused although it is right, else what got away."""
    verdicts = got["verdicts"] if verdicts is None else verdicts
    said = list(zip(case.truth, verdicts, strict=True))
    accused = sorted(words for (words, right), same in said
                     if right and same is not True)
    away = sorted(words for (words, right), same in said if not right and same is True)
    yield _say(points, case, accused, away)


def _judge_ranks(points, case, got):
    yield failed(_given(case), got, _wanted(case), STUCK)
    # a rank that waited for one that had its verdict already was no witness
    yield from _judge(points, case, got, [
        all(one is True for one in ranks) for ranks in zip(*got["ranks"])])


def _judge_assert(points, case, got):
    yield failed(_given(case), got, _wanted(case), STUCK)
    by_program, say = list(zip(*got["ranks"])), about(_given(case))
    everywhere = [one for ranks in by_program for one in ranks]
    yield say(f"does a rank hand more than {SENT} numbers to collectives?",
              any(one["sent"] > SENT for one in everywhere), False, [
        ("it sends the model itself: send something short that tells models apart",
         True)])
    yield say("is the model another one afterwards?",
              any(one["changed"] for one in everywhere), False, [
        ("a check that runs in every step must leave the model as it is", True)])
    raised = [[one["raised"] for one in ranks] for ranks in by_program]
    yield say("bugs at which one rank raises and another goes on",
              sum(any(ranks) != all(ranks) for ranks in raised), 0, [
        ("a rank that goes on alone waits for ever in the next collective: every rank "
         "has to raise", True)])
    crash = next((text for (_, right), ranks in zip(case.truth, raised) if right
                  for text in ranks if text), "")
    if not crash.startswith("AssertionError"):
        yield say("raised where all ranks hold the same", crash, "", [
            ("this is no verdict, it is an error in the answer itself", True)])
    yield from _judge(points, case, got, [not any(ranks) for ranks in raised])


def _judge_causes(points, case, got):
    said = list(zip(case.truth, got["verdicts"], strict=True))
    unknown = sorted({name for _, name in said} - set(charts.CAUSES))
    yield about(_given(case))("a cause", unknown[:1], [], [
        ("there is no such cause; there are " + ", ".join(charts.CAUSES), True)])
    accused = sorted(words for (words, right), name in said
                     if right and name != "healthy")
    away = sorted(f"{words} (called {name})" for (words, right), name in said
                  if not right and name != words)
    yield _say(points, case, accused, away)


def _say(points, case, accused, away):
    bugs = sum(not right for _, right in case.truth)
    left = 0 if accused else points - A_BUG * len(away)
    if not accused and not away:
        return None
    hint = "accused, and right: " if accused else "got away: "
    lines = [f"given   {_given(case)}",
             f"got     {so_many(bugs - len(away), 'bug')} caught, "
             f"{so_many(len(accused), 'right program')} accused: "
             f"{left:g} of {points} points",
             f"wanted  {_wanted(case)}",
             f"perhaps {hint}{'; '.join(map(_begin, accused or away))}"]
    message = Partly("\n".join(lines))
    message.points = left
    return message


def _given(case):
    bugs = sum(not right for _, right in case.truth)
    return f"{bugs} planted bugs and {len(case.truth) - bugs} right programs"


def _wanted(case):
    bugs = sum(not right for _, right in case.truth)
    return f"{bugs} bugs caught, no right program accused"


def _begin(words):
    return words[:1].lower() + words[1:].rstrip(".")


def _exercise(name, points, draw, judge, seconds=20):
    return Exercise(f"ps7/{name}", points, draw, partial(judge, points), seconds,
                    inputs="programs")


EXERCISES = [
    _exercise("same_step", 4, partial(_draw_programs, "same_step"), _judge),
    _exercise("same_weights", 3, partial(_draw_programs, "same_weights"), _judge),
    _exercise("same_on_ranks", 3, partial(_draw_on_ranks, "same_on_ranks"),
              _judge_ranks, 40),
    _exercise("assert_same", 3, partial(_draw_on_ranks, "assert_same"), _judge_assert,
              40),
    _exercise("cause", 3, _draw_charts, _judge_causes),
    _exercise("same_after_kill", 3, partial(_draw_programs, "same_after_kill"), _judge),
    _exercise("faster", 3, _draw_machines, _judge),
]
WORDS = {"words": 4}  # points that a person gives, by grade id
