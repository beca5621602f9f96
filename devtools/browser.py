"""The static site in a real browser, Chromium: `python3 -m devtools.browser SITE`.

It needs Debian's Selenium, which is for the system's own interpreter, so this is a program of
its own.  It prints what is wrong, a line each.
"""

import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

# Width and height in CSS pixels: a desktop, a phone.
SCREENS = {"desktop": (1280, 900), "phone": (390, 844)}

# Names of pictures that are not shown, whether the page is wider than the screen, and whether the
# menu, which is folded on a phone, can be reached.
LOOK = """
const missing = [...document.images]
    .filter(one => !one.complete || one.naturalWidth == 0 || one.getBoundingClientRect().width == 0)
    .map(one => one.getAttribute('src'));
const shown = one => one !== null && one.getClientRects().length > 0;
return {missing: missing, pictures: document.images.length,
        width: document.documentElement.scrollWidth,
        menu: shown(document.querySelector('.navbar-nav a')) ||
              shown(document.querySelector('.navbar-toggler'))}
"""


def main(site: Path) -> None:
    """Look at each page of a site on each screen."""
    options = Options()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                     "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    pictures = 0
    with webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver")) as browser:
        for screen, (width, height) in SCREENS.items():
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
            for page in pages:
                seen = _look(browser, page)
                pictures += seen["pictures"]
                for complaint in _complaints(seen, width):
                    print(f"{page.relative_to(site)}, {screen}: {complaint}")
    print(f"{len(pages)} pages with {pictures // len(SCREENS)} pictures on"
          f" {len(SCREENS)} screens", file=sys.stderr)


def _look(browser, page):
    """Return what is seen of a page, with what the console says."""
    browser.get(page.as_uri())
    seen = browser.execute_script(LOOK)
    seen["console"] = [entry["message"] for entry in browser.get_log("browser")]
    return seen


def _complaints(seen, width):
    """Say what is wrong with a page."""
    for name in seen["missing"]:
        yield f"picture {name} is not shown"
    if seen["width"] > width:
        yield f"the page is {seen['width']} pixels wide, the screen {width}"
    if not seen["menu"]:
        yield "there is no way to the menu"
    yield from seen["console"]


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
