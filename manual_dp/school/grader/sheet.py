"""Tables that a spreadsheet opens: what strangers wrote is text there, and no formula.

    plain   a text as it may stand in a cell
    write   a table, as a whole or not at all
    read    a table that a spreadsheet may have saved: `;` or `,`, Unicode or not
"""

import csv
import io
import re
from dataclasses import dataclass, field
from pathlib import Path

from manual_dp.files import write_text


@dataclass
class Sheet:
    """A table: its head, and pairs (line, {column: text}) as an editor counts lines."""

    head: list
    rows: list = field(default_factory=list)
    delimiter: str = ","


def plain(text):
    """Return `text` on one line, marked as text if a spreadsheet would calculate it."""
    text = re.sub(r"[\0-\x1f\x7f-\x9f\u2028\u2029]", " ", printable(text))
    # the last four are the wide ones
    signs = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
    return "'" + text if text.lstrip().startswith(signs) else text


def printable(text):
    """Return `text` as it can be written in UTF-8, no byte of it 0."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def write(path, head, rows, delimiter=","):
    """Write `rows`, dicts of numbers and texts that went through `plain`."""
    text = io.StringIO()
    table = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_NONNUMERIC,
                       lineterminator="\n")
    table.writerow(head)
    for row in rows:
        table.writerow([row.get(name, "") for name in head])
    write_text(Path(path), text.getvalue())


def read(path, wanted):
    """Return the Sheet in the file at `path`; rows without a text are left out.

    Raises ValueError, naming the line, if it is no table with the columns `wanted`.
    """
    text = _decode(path)
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    sheet, line = None, 1
    try:
        for cells in reader:
            if sheet is None:
                sheet = Sheet([cell.strip() for cell in cells], delimiter=delimiter)
            elif len(cells) > len(sheet.head):
                raise ValueError(f"{path}, line {line}: {len(cells)} cells under "
                                 f"{len(sheet.head)} heads")
            elif any(cell.strip() for cell in cells):
                cells += [""] * (len(sheet.head) - len(cells))
                sheet.rows.append((line, dict(zip(sheet.head, cells))))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: {error}") from None
    for name in wanted:
        if sheet is None or name not in sheet.head:
            raise ValueError(f"{path}, line 1: no column is called {name!r}")
    return sheet


def _decode(path):
    data = Path(path).read_bytes()
    names = (["utf-16"] if data[:2] in (b"\xff\xfe", b"\xfe\xff")
             else ["utf-8-sig", "cp1252"])  # the last is what an old Excel writes
    for name in names:
        try:
            return data.decode(name)
        except UnicodeDecodeError:
            pass
    raise ValueError(f"{path}: this is no text")
