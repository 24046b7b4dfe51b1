"""A real Chromium, driven by Playwright; tests that need it skip where one of them is absent."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
SECONDS = 30
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESK, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}


def find_chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser with a fresh profile, until it is not needed any more."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright here: pip install playwright")
    executable = find_chromium()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Visit:
    """A page, with what it asked for and what went wrong on it."""

    page: Any
    asked: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def until(self, script: str) -> None:
        """Until it is true. The page's own policy forbids what Playwright would wait with."""
        end = time.monotonic() + SECONDS
        while not self.page.evaluate(script):
            assert time.monotonic() < end, f"it does not happen: {script}"
            self.page.wait_for_timeout(50)

    def picture(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


@contextmanager
def visiting(browser: Any, url: str, *, viewport: dict[str, int] | None = None, **options: Any) -> Iterator[Visit]:
    """The page in a context of its own: nothing is shared with other visits."""
    context = browser.new_context(viewport=viewport or DESK, **options)
    page = context.new_page()
    visit = Visit(page)
    page.on("request", lambda request: visit.asked.append(request.url))
    page.on("pageerror", lambda error: visit.problems.append(str(error)))
    page.on("console", lambda line: visit.problems.append(line.text) if line.type == "error" else None)
    try:
        page.goto(url)
        yield visit
    finally:
        context.close()
