"""The templates of feedback.py: what a page says, and how it looks."""

STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --soft: #f4f4f2;
        --line: #ddd; --right: #17692f; --wrong: #a3341f; --quiet: #5c5c5c;
        --link: #0b57a4 }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e4e4; --page: #18191b; --soft: #25272a; --line: #3d4045;
          --right: #74cf8d; --wrong: #f0937f; --quiet: #a9a9a9; --link: #8ebcf0 } }
body { font: 16px/1.5 sans-serif; color: var(--text); background: var(--page);
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       overflow-wrap: anywhere }
a { color: var(--link) }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line) }
h3 { margin-bottom: .3rem }
.wide { overflow-x: auto }
table { border-collapse: collapse }
td, th { text-align: left; vertical-align: top; padding: .3rem 1.2rem .3rem 0;
         border-bottom: 1px solid var(--line); overflow-wrap: normal }
td.number, th.number { text-align: right; white-space: nowrap }
td.text { min-width: 12rem; overflow-wrap: anywhere }
pre { background: var(--soft); padding: .6rem .8rem; margin: .3rem 0;
      white-space: pre-wrap; border-radius: 4px }
ul { margin: 0; padding-left: 1.2rem }
.task { white-space: pre-line }
.right { color: var(--right) } .wrong { color: var(--wrong) }
.quiet { color: var(--quiet) }
"""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{% if mark %}<meta name="student" content="{{ mark }}">{% endif %}
<title>{{ title }}</title><style>""" + STYLE + """</style></head><body>
<h1>{{ title }}</h1>
{% block body %}{% endblock %}
</body></html>
"""

STUDENT = """{% extends "page" %}{% block body %}
<div class="wide"><table>
<tr><th>problem set</th><th class="number">code</th><th class="number">words</th>
<th class="number">points</th><th class="number">of</th></tr>
{% for name, work in works.items() %}
<tr><td><a href="#{{ name }}">{{ name }}</a></td>
<td class="number">{{ work.record.score | number }}</td>
<td class="number">{% for text in work.texts.values() %}
{{ (text.points or 0) | number if not text.waits else "to be read" }}
{% endfor %}</td>
<td class="number">{{ work.points }}</td>
<td class="number">{{ maximum(name) }}</td></tr>
{% endfor %}
</table></div>
{% for name, work in works.items() %}
<h2 id="{{ name }}">{{ name }}: {{ work.points }} of {{ maximum(name) }} points</h2>
{% if work.record.note %}
<p class="wrong">Not graded: {{ work.record.note }}.</p>
{% else %}
{% for exercise, (points, message) in work.record.exercises.items() %}
<h3>{{ heading(exercise) }} <span class="quiet">{{ exercise }}</span>
<span class="{{ "wrong" if message else "right" }}">{{ points | number }} of
{{ most(exercise) }}</span></h3>
<pre>{{ message or "Right." }}</pre>
{% set source = work.record.code.get(exercise.partition("/")[2]) %}
{% if source %}
<details><summary>The answer</summary><pre>{{ source }}</pre></details>
{% endif %}
{% endfor %}
{% for question, text in work.texts.items() %}
{% set full = name ~ "/" ~ question %}
<h3>{{ heading(full) }} <span class="quiet">{{ full }}</span>
{% if text.points is not none %}
<span>{{ text.points | number }} of {{ text.most }}</span>
{% elif text.text %}
<span class="quiet">{{ text.most }} points, to be read by a person</span>
{% else %}
<span class="wrong">0 of {{ text.most }}</span>
{% endif %}</h3>
{% if task(full) %}<p class="task quiet">{{ task(full) }}</p>{% endif %}
<pre>{{ text.text or "No answer." }}</pre>
{% if text.changed and text.waits %}
<p class="quiet">The points were given to an earlier version of this text.</p>
{% endif %}
{% if text.comment %}<p>{{ text.comment }}</p>{% endif %}
{% endfor %}
{% endif %}
{% if work.others %}
<p class="quiet">{{ file(work) }} counts, not {{ work.others | join(", ") }}.</p>
{% endif %}
{% if work.record.edited %}
<p class="quiet">Edited, though it is locked: {{ work.record.edited | join(", ") }}. Of
such a cell nbgrader says that its checksum has changed, and puts back what was handed
out. It costs no points: only answer cells are graded.</p>
{% endif %}
{% endfor %}
{% endblock %}"""

CLASS = """{% extends "page" %}{% block body %}
<p>{{ many(pages | length, "student") }}. {{ many(to_read, "text") }} to read. This page
is the instructor's: it names everybody.</p>
<h2>What to teach again</h2>
{% if troubles %}
{% for trouble in troubles %}
<h3>{{ heading(trouble.name) }} <span class="quiet">{{ trouble.name }}</span>
<span class="wrong">not solved by {{ trouble.wrong }} of
{{ trouble.tried }}</span></h3>
<ul>
{% for reason, count in trouble.reasons.items() %}
{% if loop.index <= 6 %}<li>{{ count }} &times; {{ reason }}</li>{% endif %}
{% endfor %}
</ul>
{% if trouble.reasons | length > 6 %}
<p class="quiet">and {{ trouble.reasons | length - 6 }} other messages</p>
{% endif %}
{% endfor %}
{% else %}
<p>Nothing: all that was handed in is right.</p>
{% endif %}
<h2>Students</h2>
<div class="wide"><table>
<tr><th>student</th>{% for name in sets %}<th class="number">{{ name }}</th>{% endfor %}
<th class="number">total</th><th>note</th></tr>
{% for page, folder in pages.items() %}
<tr><td><a href="{{ page }}">{{ names[folder] }}</a></td>
{% for name in sets %}
{% set work = book.works[folder].get(name) %}
<td class="number">{{ work.points if work }}</td>
{% endfor %}
<td class="number">{{ book.total(folder) }}</td>
<td class="text">{{ book.notes(folder) | join("; ") }}</td></tr>
{% endfor %}
<tr><td class="quiet">of</td>{% for name in sets %}
<td class="number quiet">{{ maximum(name) }}</td>{% endfor %}
<td class="number quiet">{{ sets | map("maximum") | sum }}</td><td></td></tr>
</table></div>
{% if book.lost %}
<h2>Nobody's</h2>
<ul>{% for record in book.lost %}
<li>{{ file(record=record) }}: not graded: {{ record.note }}</li>
{% endfor %}</ul>
{% endif %}
{% endblock %}"""
