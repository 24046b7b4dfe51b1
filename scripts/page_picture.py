"""The picture of the page in the docs: `docs/page.png`, of a server that runs, under load.

    brim serve --memory 64MiB --canary 12MiB --max-seqs 8 --port 8000 &
    python scripts/page_picture.py --url http://127.0.0.1:8000

Needs Playwright and a Chromium. The load is conversations of different lengths, for as long as `--seconds`.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from pathlib import Path

import httpx

PICTURE = Path(__file__).parents[1] / "docs" / "page.png"
WIDTH, SCALE = 1180, 1.5
CLIENTS = 14


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--out", type=Path, default=PICTURE)
    options = parser.parse_args()
    try:
        ready = httpx.get(f"{options.url}/health").status_code == 200
    except httpx.HTTPError:
        ready = False
    if not ready:
        raise SystemExit(f"no server is ready at {options.url}; start one as above")
    until = time.monotonic() + options.seconds
    clients = [threading.Thread(target=ask, args=(options.url, number, until)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    picture(options.url, options.out, options.seconds * 0.9)
    for client in clients:
        client.join()


def ask(url: str, number: int, until: float) -> None:
    """One client: a prompt after another, some of which begin alike."""
    turn = 0
    with httpx.Client(base_url=url, timeout=120) as client:
        while time.monotonic() < until:
            said = f"Client {number % 5} says: " + "I like the sea. " * (5 + 7 * ((number + turn) % 6))
            body = {"prompt": said, "max_tokens": 40 + 30 * (number % 5), "ignore_eos": True}
            client.post("/v1/completions", json=body)
            turn += 1


def picture(url: str, out: Path, seconds: float) -> None:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=SCALE)
        page.goto(f"{url}/#memory")
        page.wait_for_timeout(1000 * seconds)
        page.screenshot(path=out, full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
