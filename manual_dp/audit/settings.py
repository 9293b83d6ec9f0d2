"""What must hold of the setups of all ranks, and of the same code on one device.

    ask_setups   the findings of SETUP_RULES
    SETUP_RULES  functions of (setups, alone, step): the `Setup` of every rank, that of
                 the same code at world size 1 or None, and which step it was

A rule yields findings. What nobody noted is empty in all setups: no mistake.
"""

import math
from collections import Counter

from manual_dp.audit.catalogue import few, finding, ranks


def ask_setups(setups, alone=None, step=None):
    """Return a list of findings; other layouts are all that is said of them."""
    if found := list(layouts(setups, alone, step)):
        return found
    return [f for rule in SETUP_RULES for f in rule(setups, alone, step)]


def layouts(setups, alone, step):
    """Ask that every rank has the same parameters."""
    first = _layout(setups[0])
    for rank, setup in enumerate(setups):
        mine = _layout(setup)
        if len(mine) != len(first):
            says = (f"rank {rank} has {len(mine)} parameters, rank 0 {len(first)}, or "
                    "other names or shapes")
        elif mine != first:
            one, other = next((a, b) for a, b in zip(mine, first) if a != b)
            says = f"{_words(one)} on rank {rank} is {_words(other)} on rank 0"
        else:
            continue
        yield finding("start-differs", len(mine), says, rank, step)
        return


def _layout(setup):
    return list(zip(setup.names, setup.shapes, setup.dtypes or setup.shapes))


def _words(parameter):
    return " ".join(map(str, dict.fromkeys(parameter)))


def wants(setups, alone, step):
    """Ask that every rank trains the same parameters."""
    parted = list(_parted([setup.wants for setup in setups]))
    for name, who in parted[:1]:
        mine, its = ("trained" if setups[rank].wants.get(name) else "frozen"
                     for rank in (who[0], 0))
        yield finding("frozen", len(parted), f"{name} is {mine} on {ranks(who)}, {its} "
                      f"on rank 0{_more(parted)}", who[0], step, name)


def modes(setups, alone, step):
    """Ask that every rank's modules are in the same mode."""
    parted = list(_parted([setup.modes for setup in setups]))
    for name, who in parted[:1]:
        mine, its = ("train" if setups[rank].modes.get(name) else "eval"
                     for rank in (who[0], 0))
        yield finding("modes", len(parted), f"{name or 'the model'} is in {mine} mode "
                      f"on {ranks(who)}, in {its} mode on rank 0{_more(parted)}",
                      who[0], step)


def not_finite(setups, alone, step):
    """Ask that weights are numbers."""
    for rank, setup in enumerate(setups):
        if names := setup.not_finite:
            yield finding("not-finite", len(names), f"NaN or inf on rank {rank} in "
                          f"{few(names)}", rank, step, names[0])
            return


def optimizers(setups, alone, step):
    """Ask that every rank's optimizers have the same options."""
    kinds = [[(kind, len(groups)) for kind, groups in setup.groups] for setup in setups]
    for rank, mine in enumerate(kinds):
        if mine != kinds[0]:
            yield finding("settings", len(mine), f"rank {rank} has {_kinds(mine)}, "
                          f"rank 0 {_kinds(kinds[0])}", rank, step)
            return
    lists, told = [_options(setup) for setup in setups], set()
    for (place, option), who in _parted(lists):
        if option in told:
            continue
        told.add(option)
        mine, its = (lists[rank].get((place, option)) for rank in (who[0], 0))
        yield finding("rates-differ" if option == "lr" else "settings",
                      _ratio(mine, its), f"{option}{place} is {_value(mine)} on "
                      f"{ranks(who)}, {_value(its)} on rank 0", who[0], step)


def beside_one(setups, alone, step):
    """Ask that the optimizers have the options that they have on one device, but lr."""
    if alone is None or len(setups) < 2:
        return
    mine, one, told = _options(setups[0]), _options(alone), set()
    for (place, option), value in mine.items():
        other = one.get((place, option), value)
        if value != other and "lr" not in option and option not in told:
            told.add(option)
            yield finding("settings", _ratio(value, other), f"{option}{place} is "
                          f"{_value(value)} on {len(setups)} ranks, {_value(other)} on "
                          "one", None, step)


def unheld(setups, alone, step):
    """Ask that the optimizers hold all that wants a gradient."""
    # each rank's may hold some, and others' the rest
    names = [name for name in setups[0].unheld
             if all(name in setup.unheld for setup in setups)]
    if names:
        none = "" if setups[0].held else "; the optimizer holds none of the model's"
        yield finding("not-in-optimizer", len(names), f"no optimizer holds {few(names)}"
                      f"{none}", None, step, names[0])
    # a parameter has one holder or several: a mixture of both is no plan
    held = Counter(name for setup in setups for name in {*(setup.held or ())})
    some = [name for name, count in held.items() if count < len(setups)]
    if some and len(setups) in held.values() and not any(
            setup.left_out for setup in setups):
        who = [rank for rank, setup in enumerate(setups) if some[0] not in setup.held]
        yield finding("not-in-optimizer", len(some), f"the optimizer of {ranks(who)} "
                      f"does not hold {few(some)}, another rank's does", who[0], step,
                      some[0])


def order(setups, alone, step):
    """Ask for one order of parameters: a checkpoint gives back state by its place."""
    first = setups[0].held or ()
    for rank, setup in enumerate(setups):
        if (setup.held or first) != first and sorted(setup.held) == sorted(first):
            yield finding("settings", 1, f"the optimizer of rank {rank} holds the "
                          "parameters in another order than rank 0's", rank, step)
            return


def state(setups, alone, step):
    """Ask that every rank's optimizers have the same state."""
    states = [setup.state for setup in setups]
    parted = list(_parted(states if step is None else _common(states)))
    for (kind, name), who in parted[:1]:
        yield finding("state-differs", len(parted), f"the optimizer's {kind} of {name} "
                      f"on {ranks(who)} is not rank 0's{_more(parted)}", who[0], step,
                      name)


def others(setups, alone, step):
    """Ask that what stands beside the model is the same on every rank."""
    parted = list(_parted(_common([setup.others for setup in setups])))
    for name, who in parted[:1]:
        yield finding("state-differs", len(parted), f"{name} on {ranks(who)} is not "
                      f"rank 0's{_more(parted)}", who[0], step, name)


def buffers(setups, alone, step):
    """Ask that ranks have the same buffers."""
    if not all(setup.buffers for setup in setups):
        return
    for name, who in list(_parted([setup.buffers for setup in setups]))[:1]:
        when = "" if step is None else f" when step {step} begins"
        yield finding("buffers", len(who), f"{name} on {ranks(who)} is not rank 0's"
                      f"{when}", who[0], step, name)


def _parted(dicts):
    """Yield (key, ranks that have another value than rank 0)."""
    for key in dict.fromkeys(key for one in dicts for key in one):
        who = [rank for rank, one in enumerate(dicts)
               if not _same(one.get(key), dicts[0].get(key))]
        if who:
            yield key, who


def _common(dicts):
    """Return what all have: a rank may do for all what others leave to it."""
    keys = set.intersection(*(set(one) for one in dicts))
    return [{key: value for key, value in one.items() if key in keys} for one in dicts]


def _same(one, other):
    return one == other or (one != one and other != other)  # NaN


def _options(setup):
    """Return {(place, option): value} of all groups; place: as text, "" of only one."""
    found = {}
    for i, (kind, groups) in enumerate(setup.groups):
        of = f" of optimizer {i}" if len(setup.groups) > 1 else ""
        found[of, "class"] = kind
        for j, group in enumerate(groups):
            place = f"{of}, group {j}" if len(groups) > 1 else of
            found.update({(place, option): value for option, value in group.items()})
    return found


def _kinds(optimizers):
    return " and ".join(f"{kind} of {count} groups" for kind, count in optimizers) or (
        "no optimizer")


def _value(value):
    if isinstance(value, list):
        return f"{len(value)}, {value[0]} to {value[-1]}," if value else "nothing"
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"


def _ratio(one, other):
    """Return how many times the other it is, inf for what are no numbers."""
    numbers = all(isinstance(value, (int, float)) for value in (one, other))
    return one / other if numbers and other else math.inf


def _more(parted):
    return f"; {len(parted) - 1} more so" if len(parted) > 1 else ""


SETUP_RULES = [not_finite, modes, wants, optimizers, beside_one, unheld, order, state,
               others, buffers]
