"""Opens the built site in headless Chromium: no error on any console, no missing file, no broken picture, formulas set.

    pip install playwright                                    # and a Chromium, such as Debian's package `chromium`
    python docs/check_pages.py                                # all pages of docs/_build/html
    python docs/check_pages.py --pages index choose --screenshots shots     # pictures of these, wide and narrow

Pages are opened as files, and nothing is fetched from a network: a page that asks for another host is an error.
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

BUILT = Path(__file__).parent / "_build" / "html"
WIDTHS = {"wide": 1280, "narrow": 420}


def problems(page: Page, path: Path) -> list[str]:
    """What is wrong with one page."""
    found: list[str] = []
    page.on(
        "console",
        lambda message: (
            found.append(f"console: {message.text}")
            if message.type in ("error", "warning")
            else None
        ),
    )
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    page.on("requestfailed", lambda request: found.append(f"not loaded: {request.url}"))
    page.on(
        "request",
        lambda request: (
            found.append(f"other host: {request.url}") if request.url.startswith("http") else None
        ),
    )
    page.goto(path.as_uri())
    page.wait_for_load_state("load")
    if page.locator(".math").count():
        page.wait_for_function("window.MathJax && MathJax.startup && MathJax.startup.promise")
        page.evaluate("MathJax.startup.promise")
    page.evaluate("document.querySelectorAll('img').forEach(each => each.loading = 'eager')")
    page.wait_for_function("Array.from(document.images).every(each => each.complete)")
    broken = page.evaluate(
        "Array.from(document.images).filter(each => !each.naturalWidth).map(each => each.src)"
    )
    unset = page.evaluate(
        "document.querySelectorAll('.math').length - document.querySelectorAll('.math mjx-container').length"
    )
    errors = page.locator("mjx-merror, [data-mjx-error]").count()
    wider = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    found += [f"broken picture: {source}" for source in broken]
    found += [f"{unset} formulas not set"] if unset > 0 else []
    found += [f"{errors} formulas with an error"] if errors else []
    found += [f"{wider} pixels wider than the window of {page.viewport_size}"] if wider > 0 else []
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", nargs="*", help="without .html; all where none are named")
    parser.add_argument("--screenshots", type=Path, help="folder for pictures of the pages")
    parser.add_argument(
        "--whole", action="store_true", help="pictures of whole pages, not of the first screen"
    )
    options = parser.parse_args()
    listed = (
        sorted(BUILT.rglob("*.html"))
        if not options.pages
        else [BUILT / f"{name}.html" for name in options.pages]
    )
    bad = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for path in listed:
            for name, width in WIDTHS.items():
                page = browser.new_page(
                    viewport={"width": width, "height": 900}, color_scheme="light"
                )
                found = problems(page, path)
                for each in found:
                    print(f"{path.relative_to(BUILT)} ({name}): {each}")
                bad += bool(found)
                if options.screenshots:
                    options.screenshots.mkdir(parents=True, exist_ok=True)
                    shot = "-".join(path.relative_to(BUILT).with_suffix("").parts)
                    page.screenshot(
                        path=options.screenshots / f"{shot}-{name}.png", full_page=options.whole
                    )
                page.close()
        browser.close()
    print(f"{len(listed)} pages, each {' and '.join(WIDTHS)}: {bad} with problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
