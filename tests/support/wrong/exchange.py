"""Make wrong answers out of a right one: exchange one of its named parts."""


def exchanged(parts, changes):
    """Return {exercise: {name: (hint, cell)}}.

    parts: for each exercise a cell, and {word in it: what is right in its place}.
    changes: {exercise: {name: (hint, {word: what is wrong})}}.
    """
    return {exercise: {name: (hint, _changed(*parts[exercise], wrong))
                       for name, (hint, wrong) in names.items()}
            for exercise, names in changes.items()}


def _changed(cell, right, wrong):
    for part in right:
        cell = cell.replace(part, wrong.get(part, right[part]))
    return cell
