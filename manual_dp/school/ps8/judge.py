"""Problem set 8, real models and a trainer: what is drawn, what is right.

Here: the exercises; the mean loss and its lines, asynchronous updates, downloads. The
others are in amp.py, averages.py, loaders.py and schedule.py.
"""

from manual_dp.school.exercise import (
    Exercise,
    about,
    close,
    each,
    failed,
    flat,
    shorten,
)
from manual_dp.school.ps8 import amp, averages, loaders, schedule
from manual_dp.school.ps8.run import ERRORS, TEXT, pull
from manual_dp.school.tools.plain import random_numbers, tensor

STUCK = [("some rank waits for others that never come: every rank must call the same "
          "collectives", "timeout|gloo")]
EPOCHS = [391, 196, 131, 98, 49]  # steps on 1, 2, 3, 4 and 8 ranks


def _draw_losses(random):
    for world_size in (2, 3, 4, 1):
        sizes = random.sample(range(2, 6), world_size - (world_size > 3))
        counts = [random.sample(range(1, 9), size) for size in sizes]
        counts += [[]] * (world_size - len(counts))  # of four ranks, one has no rows
        random.shuffle(counts)
        yield {"ranks": [{"counts": own, "sums": [n * random.uniform(0.1, 3)
                                                  for n in own]} for own in counts],
               "epochs": [[steps, random.randint(2, 9)]
                          for steps in random.sample(EPOCHS, 2)]
               + [[random.randint(2, 5), 7], [random.randint(20, 90), 1]]}


def _judge_losses(case, got):
    ranks, k = case["ranks"], len(case["ranks"])
    given = f"{k} ranks with minibatches of {shorten(each(ranks, 'counts'))} rows"
    yield failed(given, got, "a mean", STUCK)
    say = about(given)
    yield say("ranks that wait for others for ever",
              sum(each(got["ranks"], "waited")), 0, [
        ("a collective is for all ranks: call it on every rank, print on one", True)])
    sums, rows = [sum(own["sums"]) for own in ranks], [sum(r["counts"]) for r in ranks]
    mean = sum(sums) / sum(rows)
    own = [s / n if n else None for s, n in zip(sums, rows)]
    of_batches = [[s / n for s, n in zip(r["sums"], r["counts"])] for r in ranks]
    told = [m for m in own if m is not None]
    means = each(got["ranks"], "mean")
    yield say("the mean loss on each rank", means, [mean] * k, [
        ("every rank has the mean of its own rows", own),
        ("only rank 0 has the mean of all rows: the others want it, too",
         k > 1 and close(means[0], mean)),
        ("this is the mean of the ranks' means: a rank with few rows counts as much as "
         "one with many. Add up sums, and counts", [sum(told) / k] * k),
        ("this is the mean of the minibatches' means: the last one is often small",
         [sum(flat(of_batches)) / len(flat(of_batches))] * k),
        ("the sum is that of all ranks, the rows are not",
         k > 1 and [sum(sums) / n if n else None for n in rows]),
        ("this is the sum: divide by the rows", [sum(sums)] * k),
        ("this was divided by the ranks, not by the rows", [sum(sums) / k] * k),
        ("this was divided by the minibatches, not by the rows",
         [sum(sums) / len(flat(of_batches))] * k)])
    yield say("the sums afterwards", each(got["ranks"], "sums"), each(ranks, "sums"), [
        ("dist.all_reduce writes into the tensor that it is given", True)])
    yield say("the counts afterwards", each(got["ranks"], "counts"),
              each(ranks, "counts"), [
        ("the counts are the caller's: add them up in a tensor of your own", True)])
    for (steps, lines), printed in zip(case["epochs"], got["printed"], strict=True):
        yield from _judge_lines(k, steps, lines, printed)


def _judge_lines(k, steps, lines, printed):
    """Compare which steps print a line; several choices may be right."""
    wanted = [step for step in range(steps)
              if (step + 1) * lines // steps > step * lines // steps]
    own, count = printed[0], len(wanted)
    gaps = [step - before for before, step in zip([-1, *own], own)]
    even = len(own) == count and own[-1:] == [steps - 1] and max(gaps) - min(gaps) <= 1
    others = sum(map(len, printed[1:]))
    say = about(f"{k} ranks, an epoch of {steps} steps, lines = {lines}")
    yield say("lines of ranks 1, 2, ...", others, 0, [
        ("rank 0 speaks for all: every line is there once", True)])
    yield None if even else say("the steps after which rank 0 prints", own, wanted, [
        ("nothing is printed in a short epoch: on more ranks it has fewer steps, so a "
         "fixed number of steps never comes", not own and steps > 1),
        ("the first step has a line, and the last one has none",
         own[:1] == [0] and own[-1:] != [steps - 1]),
        (f"there are {len(own)} lines, not {count}", len(own) != count),
        ("the last line belongs to the last step", own[-1:] != [steps - 1]),
        ("the gaps between lines differ by more than one step", True)])


def _draw_events(random):
    for world_size, writes in ((2, 6), (3, 9), (4, 12), (1, 4)):
        yield {"w0": random_numbers(random, 3), "lr": random.uniform(0.05, 0.3),
               "goals": random_numbers(random, world_size, 3),
               "strengths": [[random.uniform(0.3, 2) for _ in range(3)]
                             for _ in range(world_size)],
               "events": _events(random, world_size, writes)}


def _events(random, world_size, writes):
    """Draw reads and writes; some ranks read twice, and one writes twice on a copy."""
    events, twice = [["read", rank] for rank in range(world_size)], [
        ["write", random.randrange(world_size)]] * 2
    events += twice
    holds = set(range(world_size)) - {twice[0][1]}
    while sum(kind == "write" for kind, _ in events) < writes:
        rank = random.randrange(world_size)
        if rank in holds and random.random() < 0.7:
            events.append(["write", rank])
            holds.discard(rank)
        else:
            events.append(["read", rank])
            holds.add(rank)
    return events


def _replayed(case, fresh=False, by_rank=False, scale=1, first=False, again=False,
              others=False):
    """Return weights and staleness; the arguments are mistakes."""
    w, held, read = tensor(case["w0"]), {}, {}
    staleness, done = [], []
    for kind, rank in case["events"]:
        if kind == "read" and not (first and rank in held):
            held[rank], read[rank] = w, len(done)
        elif kind == "write":
            stale = done[read[rank]:]
            staleness.append(len(set(stale) - {rank}) if by_rank else
                             len(stale) - others * stale.count(rank))
            w = w - scale * case["lr"] * pull(case, rank, w if fresh else held[rank])
            done.append(rank)
            if again:
                held[rank] = w
    return w, staleness


def _judge_events(case, got):
    events = [f"{kind[0]}{rank}" for kind, rank in case["events"]]
    k, (right, staleness) = len(case["goals"]), _replayed(case)
    say = about(f"r0 is a read of rank 0, w0 its write: {' '.join(events)}; "
                f"lr {case['lr']:.3f}")
    writers = [rank for kind, rank in case["events"] if kind == "write"]
    distances = [sum(1 for _ in case["events"][_last_read(case["events"], i) + 1:i])
                 for i, (kind, _) in enumerate(case["events"]) if kind == "write"]
    yield say("w0 afterwards", got["w0"], case["w0"], [
        ("w0 is the caller's: do not write into it", True)])
    yield say("the weights at the end", got["w"], right, [
        ("nothing has moved", case["w0"]),
        ("gradients are those at the weights as they are at the write; the rank "
         "computes at the weights that it has read", _replayed(case, fresh=True)[0]),
        ("a rank that reads again forgets what it read before",
         _replayed(case, first=True)[0]),
        ("a write is no read: the rank keeps its copy until it reads again",
         _replayed(case, again=True)[0]),
        ("the step goes up the gradient", _replayed(case, scale=-1)[0]),
        ("the rate is divided by the ranks: each write is a whole step",
         _replayed(case, scale=1 / k)[0]),
        ("gradients are averaged over ranks: here nobody waits for others, and each "
         "write is a step of its own", _averaged(case)),
        ("each gradient is one rank's: gradient(rank, w) of the rank that writes",
         sorted(got["asked"]) != sorted(writers))])
    yield say("the staleness of each write", got["staleness"], staleness, [
        ("in the order of the ranks; wanted is the order of the writes",
         [n for _, n in sorted(zip(writers, staleness), key=lambda pair: pair[0])]),
        ("the own write counts, too: only those between the read and the write do",
         [n + 1 for n in staleness]),
        ("a rank's own writes count, too, if it has not read since",
         _replayed(case, others=True)[1]),
        ("this counts ranks, not updates: one rank may have written several times",
         _replayed(case, by_rank=True)[1]),
        ("this counts all events between: reads change nothing", distances),
        ("this is how many updates there were from the beginning",
         list(range(len(writers)))),
        ("staleness counts updates since the rank's last read", True)])


def _last_read(events, i):
    return max(j for j in range(i) if events[j] == ["read", events[i][1]])


def _averaged(case):
    """Return the weights where all ranks' gradients are averaged at each write."""
    w, k = tensor(case["w0"]), len(case["goals"])
    for kind, _ in case["events"]:
        if kind == "write":
            w = w - case["lr"] * sum(pull(case, rank, w) for rank in range(k)) / k
    return w


def _draw_situations(random):
    *kinds, mute = ERRORS
    one, other = random.sample(kinds, 2)
    yield {"world_size": 2, "situations": [
        # name, is there a group, how does it fail, are others late?
        ["good", True, None, False], ["good", True, None, False],
        ["bad", True, one, False], ["bad", True, None, False],
        ["mute", True, mute, False]]}
    yield {"world_size": 3, "situations": [
        ["good", True, None, True], ["early", False, None, False],
        ["early", False, None, False], ["late", False, other, False],
        ["mute", False, mute, False]]}


def _judge_situations(case, got):
    yield from _judge_one("one process, no group", [got["alone"]], None, 1)
    yield failed(f"{case['world_size']} ranks", got, "one download", STUCK)
    there = set()
    for i, (name, group, fails, late) in enumerate(case["situations"]):
        given = (f"{case['world_size']} ranks, "
                 + ("a group, RANK is not set" if group else
                    "no group yet, RANK is set")
                 + (f", the download raises {fails}" if fails else "")
                 + (", the others come when it has ended" if late else "")
                 + (", the file is there already" if name in there else "")
                 + (", after an error" if name == "bad" and not fails else ""))
        yield from _judge_one(given, each(got["ranks"], i), fails, name not in there)
        if not fails:
            there.add(name)


def _judge_one(given, ranks, fails, downloads):
    """Compare what all ranks have seen in one situation."""
    say, k = about(given), len(ranks)
    calls, said = each(ranks, "calls"), each(ranks, "said")
    yield say("ranks that wait for ever", sum(each(ranks, "waits")), 0, [
        ("rank 0 has failed, and the others wait: it must tell them, before it raises",
         bool(fails)), ("nobody downloads", sum(calls) == 0),
        ("every rank must come to the same collectives", True)])
    wanted = [int(downloads), *[0] * (k - 1)]
    yield say("how often does each rank download?", calls, wanted, [
        ("before init there is no group to ask: dist.is_initialized() tells",
         any("process group" in text for text in said)),
        ("every rank downloads: where there is a group, dist.get_rank() says which one "
         "this is", sum(calls) > 1 and "RANK is not set" in given),
        ("every rank downloads: before there is a group, os.environ[\"RANK\"] says "
         "which one this is", sum(calls) > 1),
        ("a file that is there is not downloaded again", not downloads),
        ("nobody downloads", sum(calls) == 0),
        ("rank 0 downloads, and no other", True)])
    if fails:
        _, words = ERRORS[fails]
        yield say("ranks that raise an error with the words of rank 0's",
                  sum(bool(text) and words in text for text in said), k, [
            ("an error may have no words, and \"\" counts as False: is the error None?",
             not words and not any(said)),
            ("the error is swallowed: a training without its data goes on",
             not any(said)),
            ("only rank 0 raises: the others go on without the file",
             bool(said[0]) and not any(said[1:])),
            ("all ranks raise; say on each what rank 0 has met: str(error)",
             all(said))])
        yield say("what stands at the path after an error", ranks[0]["file"], "", [
            ("half a file is left there, and the next start takes it for a whole one: "
             "download to another name, then os.replace", True)])
        return
    yield say("what the ranks raise", said, [""] * k, [
        ("the file is there, or can be had: nothing is wrong", True)])
    yield say("what each rank finds at the path", each(ranks, "file"), [TEXT] * k, [
        ("a rank goes on while the file is half written: a file that is there need not "
         "be whole. Download to another name, then os.replace",
         any(text and text != TEXT for text in each(ranks, "file"))),
        ("some rank does not wait until the file is there", True)])


EXERCISES = [
    Exercise("ps8/train_step_amp", 4, amp.draw, amp.judge, 20),
    Exercise("ps8/epoch_loss", 3, _draw_losses, _judge_losses, 20,
             answers=("epoch_loss", "prints"), cells=("epoch_loss",)),
    Exercise("ps8/local_sgd", 3, averages.draw, averages.judge, 20),
    Exercise("ps8/replay", 3, _draw_events, _judge_events),
    Exercise("ps8/loader_for", 3, loaders.draw, loaders.judge, 20),
    Exercise("ps8/once", 4, _draw_situations, _judge_situations, 20),
    Exercise("ps8/schedule_steps", 2, schedule.draw_schedules,
             schedule.judge_schedules),
    Exercise("ps8/lit_lenet", 3, schedule.draw_lit, schedule.judge_lit, 60,
             answers=("LitLeNet",)),
]
WORDS = {"words": 4}  # points that a person gives, by grade id
