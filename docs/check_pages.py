"""Open the built site in headless Chromium and report what is wrong: errors, missing files,
formulas, content cut off.

    pip install playwright        # and a Chromium, such as Debian's package `chromium`
    python docs/check_pages.py    # all pages of docs/_build/html
    python docs/check_pages.py --pages index choose --screenshots shots --whole --dark

Pages are opened as files, and nothing is fetched from a network: a request to another host is an
error.
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

BUILT = Path(__file__).parent / "_build" / "html"
WIDTHS = {"wide": 1440, "narrow": 420}
BROKEN_PICTURES = """
    Array.from(document.images).filter(image => !image.naturalWidth).map(image => image.src)
"""
UNSET_FORMULAS = """
    document.querySelectorAll('.math').length
    - document.querySelectorAll('.math mjx-container').length
"""
# Tables and code that have to be scrolled sideways, by their first words.
CUT_OFF = """
    Array.from(document.querySelectorAll('.content table, .content pre'))
        .filter(block => block.scrollWidth > block.clientWidth + 2 && block.offsetParent)
        .map(block => block.textContent.trim().slice(0, 40).replaceAll('\\n', ' '))
"""


def problems(page: Page, path: Path, check_cut_off: bool) -> list[str]:
    """Return what is wrong with one page."""
    messages: list[str] = []

    def report_console(message: object) -> None:
        if message.type in ("error", "warning"):
            messages.append(f"console: {message.text}")

    def report_request(request: object) -> None:
        if request.url.startswith("http"):
            messages.append(f"other host: {request.url}")

    page.on("console", report_console)
    page.on("pageerror", lambda error: messages.append(f"script: {error}"))
    page.on("requestfailed", lambda request: messages.append(f"not loaded: {request.url}"))
    page.on("request", report_request)
    page.goto(path.as_uri())
    page.wait_for_load_state("load")
    if page.locator(".math").count():
        page.wait_for_function("window.MathJax && MathJax.startup && MathJax.startup.promise")
        page.evaluate("MathJax.startup.promise")
    page.evaluate("document.querySelectorAll('img').forEach(image => image.loading = 'eager')")
    page.wait_for_function("Array.from(document.images).every(image => image.complete)")
    messages += [f"broken picture: {source}" for source in page.evaluate(BROKEN_PICTURES)]
    if (unset := page.evaluate(UNSET_FORMULAS)) > 0:
        messages.append(f"{unset} formulas not set")
    if errors := page.locator("mjx-merror, [data-mjx-error]").count():
        messages.append(f"{errors} formulas with an error")
    excess = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    if excess > 0:
        messages.append(f"{excess} pixels wider than the window of {page.viewport_size}")
    if check_cut_off:
        messages += [f"cut off: {text}" for text in page.evaluate(CUT_OFF)]
    return messages


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", nargs="*", help="names without .html; all by default")
    parser.add_argument("--screenshots", type=Path, help="folder for pictures of the pages")
    parser.add_argument("--whole", action="store_true", help="pictures of whole pages")
    parser.add_argument("--dark", action="store_true", help="in dark mode")
    options = parser.parse_args()
    paths = [BUILT / f"{name}.html" for name in options.pages or []] or sorted(
        BUILT.rglob("*.html")
    )
    failures = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for path in paths:
            for name, width in WIDTHS.items():
                page = browser.new_page(
                    viewport={"width": width, "height": 900},
                    color_scheme="dark" if options.dark else "light",
                )
                messages = problems(page, path, check_cut_off=name == "wide")
                for message in messages:
                    print(f"{path.relative_to(BUILT)} ({name}): {message}")
                failures += bool(messages)
                if options.screenshots:
                    options.screenshots.mkdir(parents=True, exist_ok=True)
                    stem = "-".join(path.relative_to(BUILT).with_suffix("").parts)
                    file = options.screenshots / f"{stem}-{name}.png"
                    page.screenshot(path=file, full_page=options.whole)
                page.close()
        browser.close()
    print(f"{len(paths)} pages, each {' and '.join(WIDTHS)}: {failures} with problems")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
