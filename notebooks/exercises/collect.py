"""Sort what Canvas or Moodle hands over into the folders that nbgrader reads.

python collect.py ps1     downloaded/ps1/*.zip -> submitted/NAME/ps1/ps1.ipynb

Beside the notebook it writes handed_in.json, with the id by which Canvas or Moodle knows
the student, and timestamp.txt, if Canvas says that it is late. Zips that come later add
to what is there: a newer hand-in takes the place of an older one, all others stay.
What it skips is named once: downloaded/ps1/skipped.txt has the names.
"""

import hashlib
import json
import re
import shutil
import sys
import zipfile
from datetime import datetime, timedelta
from pathlib import Path

from grading import points_by_hand
from nbgrader.api import Gradebook, MissingEntry

# Canvas: NAME_98123_1234567_ps1.ipynb and NAME_LATE_98123_1234567_ps1.ipynb
# Moodle: NAME_1234_assignsubmission_file/any name with ps1.ipynb; before the name a
# student's own folders; of older ones file_/ps1.ipynb, and without folders file_ps1.ipynb
CANVAS = (
    r"(?P<name>[^/_.][^/_]*)(?P<late>_LATE)?_(?P<id>\d+)_(?P<number>\d+)_"
)
MOODLE = (
    r"(?P<name>[^/_.][^/_]*)_(?P<id>\d+)_assignsubmission_file"
    r"(?:_?/(?P<folders>(?:[^/]+/)*)|_)"
)
FILE = r"(?P<file>[^/]*(?<![A-Za-z])(?i:{})(?!\d)[^/]*\.ipynb)"
# the first folder that fits is the student's: a student names those in it
PATTERN = r"(?:.*?/)??{}" + FILE
NO_TIMES = (
    "Moodle's zip does not say when a file came: nobody is late. Write timestamp.txt "
    "beside those who were."
)


def collect(name, folder=Path(), due=None):
    """Collect the set `name`; return a line for each notebook that was found.

    due: when it was due, as nbgrader keeps it: in UTC.
    """
    newest, lines, skipped = {}, [], []
    for path in sorted(folder.glob(f"downloaded/{name}/**/*.zip")):
        with zipfile.ZipFile(path) as archive:
            here = {}  # what each student has in this zip
            for member in archive.infolist():
                found = parse(member, name)
                if found:
                    key = found["name"], found["id"]
                    here.setdefault(key, []).append(found)
                elif not member.is_dir():
                    skipped.append(member)
            for key, files in here.items():
                *left, found = sorted(files, key=_preferred)
                lines += [
                    f"two files  {key[0]}: took {found['file']}, "
                    f"left {other['file']}"
                    for other in left
                ]
                before = newest.get(key, found)
                if found["version"] >= before["version"]:
                    newest[key] = {
                        **found,
                        "data": archive.read(found["member"]),
                    }
    lines = _name_skipped(skipped, name, folder) + lines
    for _, found in sorted(newest.items()):
        lines += _store(found, name, folder, due)
    if any(found["moodle"] for found in newest.values()):
        lines.append(NO_TIMES)
    return lines


def parse(member, name):
    """Return what a zip's member says of a hand-in of the set `name`, or None.

    version: it grows from hand-in to hand-in; for Moodle it is the time of the zip,
    which all its files have. late: Canvas says it, Moodle does not.
    """
    for kind in MOODLE, CANVAS:
        found = re.fullmatch(PATTERN.format(kind, name), member.filename)
        if found:
            named = found.groupdict()
            time = datetime(*member.date_time).astimezone()
            return {
                "member": member,
                "set": name,
                "file": (named.get("folders") or "") + named["file"],
                "name": named["name"],
                "id": named["id"],
                "version": int(named.get("number") or time.timestamp()),
                "late": bool(named.get("late")),
                "moodle": kind == MOODLE,
                "time": time,
            }
    return None


def _preferred(found):
    """Return a key: of two files in one zip, the one with the larger key is taken.

    The file that is called as the set is, though Canvas makes ps1-1.ipynb of a second
    ps1.ipynb; of those the one in no folder; then the newer one.
    """
    folders, _, file = found["file"].rpartition("/")
    asked = re.fullmatch(rf"{found['set']}(-\d+)?\.ipynb", file, re.I)
    return bool(asked), not folders, found["version"]


def _name_skipped(members, name, folder):
    """Return a line for each file of a zip that is skipped, when it is seen first.

    The file skipped.txt keeps what was named. Another file of the same name is named.
    """
    path = folder / "downloaded" / name / "skipped.txt"
    before = path.read_text("utf-8").splitlines() if path.exists() else []
    found = {
        f"{member.CRC:08x} {member.filename}": member for member in members
    }
    new = [entry for entry in found if entry not in before]
    if new:
        path.write_text(
            "".join(f"{entry}\n" for entry in before + new), "utf-8"
        )
    lines = [
        f"skipped    {found[entry].filename}: by its name no notebook of {name}; if "
        f"it is one, put it there by hand: submitted/NAME/{name}/{name}.ipynb"
        for entry in new
    ]
    if len(new) < len(found):
        lines.append(
            f"skipped    {len(found) - len(new)} that an earlier run has named: see "
            f"{path}"
        )
    return lines


def _store(found, name, folder, due):
    """Write a hand-in where nbgrader looks for it; return lines: what was done."""
    place = folder / "submitted" / found["name"] / name
    if _id(place) not in (None, found["id"]):  # another student of this name
        place = (
            place.parent.with_name(f"{found['name']}-{found['id']}") / name
        )
    who, notebook = place.parent.name, place / f"{name}.ipynb"
    record = {
        "lms_user_id": found["id"],
        "version": found["version"],
        "late": found["late"],
        "sha256": hashlib.sha256(found["data"]).hexdigest(),
    }
    if notebook.exists():
        before = _read(place)
        if "version" not in before:
            return [f"left       {who}, which was put there by hand"]
        # Moodle's next zip has the same files, with a newer time
        same = before.get("sha256") == record["sha256"]
        if same or before["version"] >= found["version"]:
            return [f"was there  {who}"]
    word = "newer" if notebook.exists() else "new"
    # no points of an older hand-in for a newer one, and no page
    for made in "autograded", "feedback":
        shutil.rmtree(folder / made / who / name, ignore_errors=True)
    gone = _remove_points(name, who, folder)
    place.mkdir(parents=True, exist_ok=True)
    notebook.write_bytes(found["data"])
    (place / "handed_in.json").write_text(json.dumps(record))
    time = _time(found, due)
    (place / "timestamp.txt").unlink(missing_ok=True)
    if time:
        (place / "timestamp.txt").write_text(time.isoformat(" ", "seconds"))
    lines = [f"{word:9}  {who}{', late' if found['late'] else ''}"]
    if gone:
        lines.append(
            f"gone       {who}'s points by hand, for the older hand-in: {gone}. "
            "Give them again in Formgrader if they still hold"
        )
    return lines


def _time(found, due):
    """Return when it was handed in; None if it was in time.

    Canvas says whether it is late, not by how much, and its zip has the time at which
    the zip was made: the least that is known is that the due date was over.
    """
    if not found["late"]:
        return None
    return due + timedelta(seconds=1) if due else found["time"]


def _remove_points(name, student, folder):
    """Remove what the gradebook has of a student's set; return the points by hand."""
    if not (folder / "gradebook.db").exists():
        return ""
    with _gradebook(folder) as gradebook:
        try:
            by_hand = points_by_hand(gradebook, name, student)
            gradebook.remove_submission(name, student)
        except MissingEntry:  # nothing of this student was graded
            return ""
    return ", ".join(
        f"{asked} {number:g}" for asked, number in by_hand.items()
    )


def _gradebook(folder):
    return Gradebook(f"sqlite:///{folder / 'gradebook.db'}", "manual_dp")


def _read(place):
    path = place / "handed_in.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _id(place):
    return _read(place).get("lms_user_id")


def due_date(name):
    """Return the due date in the gradebook, or None."""
    if not Path("gradebook.db").exists():
        return None
    with _gradebook(Path()) as gradebook:
        try:
            return gradebook.find_assignment(name).duedate
        except MissingEntry:
            return None


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python collect.py ps1: sorts the zips in downloaded/ps1")
    due = due_date(sys.argv[1])
    print(
        f"{sys.argv[1]} is due {due or 'at no date: nothing is late'} (UTC)"
    )
    lines = collect(sys.argv[1], due=due)
    if lines:
        print("\n".join(lines))
        print(
            f"Next: nbgrader generate_assignment {sys.argv[1]} --force, then "
            f"nbgrader autograde {sys.argv[1]}"
        )
    else:
        print(
            f"no zip, or nothing in it: downloaded/{sys.argv[1]}/*.zip\n"
            "Next: put the zip of Canvas or Moodle there, and say this again"
        )
