"""Write what was graded: a table for a spreadsheet, a page for each learner.

    write_csv    a row for each submission
    write_pages  feedback as HTML, and a page for the instructor over all

Names, messages and code come from strangers: here they are text and nothing else.
"""

import csv
import hashlib
import html
import io
import re
from pathlib import Path

from manual_dp.files import write_text
from manual_dp.school.exercise import find

PAGE = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 16px/1.5 sans-serif; color: #222; max-width: 56rem; margin: 3rem auto;
       padding: 0 1rem }}
td, th {{ text-align: left; vertical-align: top; padding: .4rem 1.5rem .4rem 0 }}
pre {{ background: #f6f6f6; padding: .8rem; white-space: pre-wrap;
      overflow-wrap: anywhere }}
.right {{ color: #17692f }} .wrong {{ color: #a3341f }} small {{ color: #666 }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def write_csv(path, records):
    """Write a row for each record, and a column for each exercise that occurs."""
    names = dict.fromkeys(name for record in records for name in record["exercises"])
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    table.writerow(["student", "problem_set", "score", "max_score", *names,
                    "texts_to_read", "note", "file"])
    for record in records:
        points = [record["exercises"].get(name, [""])[0] for name in names]
        table.writerow([_cell(value) for value in (
            record["student"], record["problem_set"], record["score"],
            record["max_score"], *points, len(record["words"]), record["note"],
            record["file"])])
    write_text(Path(path), text.getvalue())


def write_pages(folder, records):
    """Write a page for each record and `index.html`; return the path of that."""
    folder, taken, rows = Path(folder), set(), []
    for record in records:
        page = _place(record, taken)
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        title = f"{record['problem_set'] or record['file']}, {record['student']}"
        write_text(folder / page, PAGE.format(title=_text(title), body=_body(record)))
        rows.append(f'<tr><td><a href="{_text(page)}">{_text(record["student"])}</a>'
                    f'<td>{_text(record["problem_set"])}'
                    f'<td>{record["score"]} of {record["max_score"]}'
                    f'<td>{_text(record["note"])}')
    body = ("<table><tr><th>student<th>problem set<th>points<th>note\n"
            + "\n".join(rows) + "</table>\n" + _overview(records))
    write_text(folder / "index.html", PAGE.format(title="Grades", body=body))
    return folder / "index.html"


def _body(record):
    parts = [f"<p>{record['score']} of {record['max_score']} points for code. "
             f"{_text(record['note'])}</p>"]
    for name, (points, message) in record["exercises"].items():
        kind = "wrong" if message else "right"
        parts.append(f'<h2>{_text(name)} <span class="{kind}">{points} of '
                     f'{find(name).points}</span></h2>'
                     f"<pre>{_text(message or 'Right.')}</pre>")
        source = record["code"].get(name.partition("/")[2])
        if source:
            parts.append(f"<details><summary>The answer</summary>"
                         f"<pre>{_text(source)}</pre></details>")
    for grade_id, text in record["words"].items():
        parts.append(f"<h2>{_text(grade_id)} <small>read by a person</small></h2>"
                     f"<pre>{_text(text)}</pre>")
    return "\n".join(parts)


def _overview(records):
    """Return a table of how many got each exercise right."""
    names = dict.fromkeys(name for record in records for name in record["exercises"])
    rows = []
    for name in names:
        results = [record["exercises"][name] for record in records
                   if name in record["exercises"]]
        right = sum(not message for _, message in results)
        rows.append(f"<tr><td>{_text(name)}<td>{right} of {len(results)}")
    return ("<h2>Right answers</h2><table><tr><th>exercise<th>right\n"
            + "\n".join(rows) + "</table>")


def _place(record, taken):
    """Return a relative path for a page that no name can lead out of the folder."""
    page = f"{_safe(record['student'])}/{_safe(Path(record['file']).stem)}"
    while page.lower() in taken:  # on some disks Anna is anna
        page += "-" + hashlib.sha256(record["file"].encode(
            errors="surrogatepass")).hexdigest()[:8]
    taken.add(page.lower())
    return page + ".html"


def _safe(name):
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80] or "_"
    if plain == name:
        return plain
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{plain}-{digest[:6]}"


def _cell(value):
    if isinstance(value, int):
        return value
    text = re.sub(r"[\0-\x1f\x7f-\x9f]", " ", _printable(value))  # stay in the row
    # a spreadsheet would take these for a formula; the last four are the wide ones
    signs = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
    return "'" + text if text.lstrip().startswith(signs) else text


def _text(value):
    return html.escape(_printable(str(value)))


def _printable(text):
    return text.encode("utf-8", "replace").decode().replace("\0", "?")
