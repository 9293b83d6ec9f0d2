"""Write what was graded: a table for a spreadsheet, a page for each learner.

    write_csv    a row for each submission
    write_pages  feedback as HTML, and a page for the instructor over all

Names, messages and code come from strangers: here they are text and nothing else.
"""

import csv
import hashlib
import io
import re
from pathlib import Path

from jinja2 import DictLoader, Environment

from manual_dp.files import write_text
from manual_dp.school.exercise import find

PAGES = {"page": """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 16px/1.5 sans-serif; color: #222; max-width: 56rem; margin: 3rem auto;
       padding: 0 1rem }
td, th { text-align: left; vertical-align: top; padding: .4rem 1.5rem .4rem 0 }
pre { background: #f6f6f6; padding: .8rem; white-space: pre-wrap;
      overflow-wrap: anywhere }
.right { color: #17692f } .wrong { color: #a3341f } small { color: #666 }
</style>
<h1>{{ title }}</h1>
{% block body %}{% endblock %}
</html>
""", "learner": """{% extends "page" %}{% block body %}
<p>{{ score }} of {{ max_score }} points for code. {{ note }}</p>
{% for name, (points, message) in exercises.items() %}
<h2>{{ name }} <span class="{{ "wrong" if message else "right" }}">{{ points }} of
{{ find(name).points }}</span></h2><pre>{{ message or "Right." }}</pre>
{% set source = code.get(name.partition("/")[2]) %}
{% if source %}
<details><summary>The answer</summary><pre>{{ source }}</pre></details>
{% endif %}
{% endfor %}
{% for grade_id, text in words.items() %}
<h2>{{ grade_id }} <small>read by a person</small></h2><pre>{{ text }}</pre>
{% endfor %}
{% endblock %}""", "class": """{% extends "page" %}{% block body %}
<table><tr><th>student<th>problem set<th>points<th>note
{% for page, record in pages.items() %}
<tr><td><a href="{{ page }}">{{ record.student }}</a><td>{{ record.problem_set }}
<td>{{ record.score }} of {{ record.max_score }}<td>{{ record.note }}
{% endfor %}</table>
<h2>Right answers</h2><table><tr><th>exercise<th>right
{% for name, right in exercises.items() %}
<tr><td>{{ name }}<td>{{ right | sum }} of {{ right | length }}
{% endfor %}</table>
{% endblock %}"""}


def write_csv(path, records):
    """Write a row for each record, and a column for each exercise that occurs."""
    names, text = _names(records), io.StringIO()
    head = ["student", "problem_set", "score", "max_score", *names, "texts_to_read",
            "note", "file"]
    table = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    table.writerow(head)
    for record in records:
        points = {name: points for name, (points, _) in record["exercises"].items()}
        row = {**record, **points, "texts_to_read": len(record["words"])}
        table.writerow([_cell(row.get(name, "")) for name in head])
    write_text(Path(path), text.getvalue())


def write_pages(folder, records):
    """Write a page for each record and `index.html`; return the path of that."""
    html = Environment(loader=DictLoader(PAGES), autoescape=True, trim_blocks=True,
                       finalize=lambda value: _printable(str(value)))
    folder, pages = Path(folder), {}
    for record in records:
        page = _place(record, [page.lower() for page in pages])
        pages[page] = record
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        title = f"{record['problem_set'] or record['file']}, {record['student']}"
        write_text(folder / page, html.get_template("learner").render(
            record, title=title, find=find))
    graded = [record["exercises"] for record in records]
    right = {name: [not exercises[name][1] for exercises in graded if name in exercises]
             for name in _names(records)}
    write_text(folder / "index.html", html.get_template("class").render(
        title="Grades", pages=pages, exercises=right))
    return folder / "index.html"


def _names(records):
    return dict.fromkeys(name for record in records for name in record["exercises"])


def _place(record, taken):
    """Return a relative path for a page that no name can lead out of the folder."""
    page = f"{_safe(record['student'])}/{_safe(Path(record['file']).stem)}"
    while f"{page}.html".lower() in taken:  # on some disks Anna is anna
        page += "-" + _digest(record["file"])[:8]
    return page + ".html"


def _safe(name):
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80] or "_"
    return plain if plain == name else f"{plain}-{_digest(name)[:6]}"


def _digest(text):
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _cell(value):
    if isinstance(value, (int, float)):
        return value
    text = re.sub(r"[\0-\x1f\x7f-\x9f]", " ", _printable(value))  # stay in the row
    # a spreadsheet would take these for a formula; the last four are the wide ones
    signs = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
    return "'" + text if text.lstrip().startswith(signs) else text


def _printable(text):
    return text.encode("utf-8", "replace").decode().replace("\0", "?")
