"""A real browser for tests: Debian's chromium, driven by playwright, or the reason why not.

open_browser   a browser, for a with statement; skips the test if there is none
watched        a page, and the list of what went wrong in it or left the machine
"""

import os
import shutil
from contextlib import contextmanager

import pytest

SOON = 60_000  # milliseconds: what takes one second here may take long elsewhere
NAMES = ["chromium", "chromium-browser", "google-chrome"]


@contextmanager
def open_browser():
    playwright = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with playwright.sync_playwright() as play:
        # a container's root may not open chromium's own sandbox
        browser = play.chromium.launch(
            executable_path=program, chromium_sandbox=os.geteuid() != 0, timeout=SOON
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched(browser, hosts=(), **options):
    """Open a page of its own surroundings; yield it and the list of its faults."""
    context = browser.new_context(**options)
    context.set_default_timeout(SOON)
    page, faults = context.new_page(), []
    own = ("file:", "data:", "blob:", *hosts)
    page.on("console", lambda said: said.type == "error" and faults.append(said.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "request",
        lambda request: (
            request.url.startswith(own) or faults.append(f"asks for {request.url}")
        ),
    )
    try:
        yield page, faults
    finally:
        context.close()
