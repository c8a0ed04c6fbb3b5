#!/usr/bin/env python3
"""Walks through the dashboard in a headless Chromium, and prints what is wrong with it; exit 1 then.

    dashboard.py URL IMAGE [--token TOKEN] [--screenshots DIR]

IMAGE is the name of a present image; a pull has to be under way. Only Python's own library is used: WebDriver is JSON over HTTP.
"""

import argparse
import base64
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ARGUMENTS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--no-proxy-server",
]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
WAIT_SECONDS = 60

# Elements beyond the viewport, texts beyond their tile, and panels that overlap.
GEOMETRY = """
const wrong = [];
const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth > width) wrong.push("the page scrolls sideways: " + document.documentElement.scrollWidth);
const isShown = (e) => e.checkVisibility() && !e.closest(".visually-hidden, .skip");
for (const e of document.querySelectorAll("body *")) {
  if (!isShown(e)) continue;
  const r = e.getBoundingClientRect();
  if (r.width > 0 && (r.right > width + 1 || r.left < -1)) wrong.push("beyond the viewport: " + e.tagName + " " + (e.id || e.textContent.slice(0, 40)));
}
for (const tile of document.querySelectorAll(".map a, .map g")) {
  if (!isShown(tile)) continue;
  const frame = tile.querySelector("rect").getBoundingClientRect();
  for (const text of tile.querySelectorAll("text")) {
    const r = text.getBoundingClientRect();
    if (r.right > frame.right + 2 || r.bottom > frame.bottom + 2) wrong.push("text beyond its tile: " + text.textContent);
  }
}
for (const group of ["section", ".stat", "nav > *", ".map.wide a", ".map.narrow a", "#images tbody tr", "#decisions tbody tr"]) {
  const boxes = Array.from(document.querySelectorAll(group)).filter(isShown).map((e) => [e, e.getBoundingClientRect()]);
  for (let i = 0; i < boxes.length; i += 1) {
    for (let j = i + 1; j < boxes.length; j += 1) {
      const [a, b] = [boxes[i][1], boxes[j][1]];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1.5 && down > 1.5) wrong.push("overlap in " + group + ": " + boxes[i][0].textContent.slice(0, 30) + " / " + boxes[j][0].textContent.slice(0, 30));
    }
  }
}
return wrong;
"""

# Texts that are hard to read on their ground: the ratio of WCAG 2 for ordinary text.
CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const parse = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1); return canvas.getImageData(0, 0, 1, 1).data; };
const light = (c) => { const [r, g, b] = Array.from(c).slice(0, 3).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
const wrong = [];
for (const e of document.querySelectorAll("body *")) {
  if (!e.checkVisibility() || e.closest(".visually-hidden, .skip") || !Array.from(e.childNodes).some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
  const style = getComputedStyle(e);
  const isTile = e.tagName === "text" || e.tagName === "title";
  if (e.tagName === "title") continue;
  const found = isTile ? ratio(parse(style.fill), parse(getComputedStyle(e.parentElement.querySelector("rect")).fill)) : ratio(parse(style.color), ground(e));
  if (found < 4.5) wrong.push(found.toFixed(1) + ": " + e.textContent.trim().slice(0, 40));
}
return wrong;
"""


class Browser:
    def __init__(self, folder):
        self.driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for line in self.driver.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                break
        else:
            raise SystemExit("chromedriver did not start")
        self.base = f"http://127.0.0.1:{found[1]}"
        self.session = None
        try:
            self.start(folder)
        except BaseException:
            self.driver.kill()
            raise

    def start(self, folder):
        options = {"args": ARGUMENTS + [f"--user-data-dir={folder}"]}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self.send("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.session = made["sessionId"]

    def send(self, method, path, body=None):
        prefix = f"/session/{self.session}" if self.session else ""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + prefix + path, data, method=method, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {json.load(error)['value']['message']}") from None

    def close(self):
        try:
            self.send("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()

    def open(self, url):
        self.send("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def command(self, name, **parameters):
        return self.send("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def find(self, selector):
        return self.send("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.send("POST", f"/element/{self.find(selector)}/click", {})

    def write(self, selector, text):
        self.send("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys):
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.send("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def wait(self, what, script):
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            found = self.run(script)
            if found:
                return found
            time.sleep(0.05)
        raise RuntimeError(f"{what}: not within {WAIT_SECONDS} s; the page is {self.run('return document.body.innerText')!r}")

    def errors(self):
        return [line["message"] for line in self.send("POST", "/se/log", {"type": "browser"}) if line["level"] in ("SEVERE", "WARNING")]

    def view(self, width, height, scheme):
        is_phone = width < 600
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path):
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


def look(browser, url, name, folder, wrong):
    """Checks geometry and contrast of a page on a desk and on a phone, in light and dark."""
    for width, height in ((1280, 900), (390, 844)):
        for scheme in ("light", "dark"):
            browser.view(width, height, scheme)
            browser.open(url)
            browser.run("document.querySelectorAll('details').forEach((it) => { it.open = true; })")
            place = f"{name} at {width} px, {scheme}"
            wrong += [f"{place}: {it}" for it in browser.run(GEOMETRY)]
            wrong += [f"{place}: contrast {it}" for it in browser.run(CONTRAST)]
            if folder:
                time.sleep(0.3)
                browser.screenshot(folder / f"{name}-{width}-{scheme}.png")


def walk(browser, url, image, wrong):
    """Clicks through the pages, and uses them by the keyboard alone."""
    browser.view(1280, 900, "light")
    browser.open(url)
    browser.wait("the stream of events", "return document.getElementById('live').textContent === 'live'")
    shown = browser.wait("a running pull", "return document.querySelector('#pull-rows tbody tr')?.innerText")
    if "held" not in shown:
        wrong.append(f"another pull is shown: {shown}")
    rows = "return document.querySelectorAll('#pull-rows tbody tr').length"
    time.sleep(1.5)
    if browser.run(rows) != 1:
        wrong.append(f"{browser.run(rows)} rows for one pull")
    browser.run("document.querySelector('#pull-rows tbody').insertRow().dataset.seen = Date.now()")
    browser.wait("the removal of a pull that is reported no more", f"{rows} === 1")
    if "held" not in browser.run("return document.getElementById('pull-rows').innerText"):
        wrong.append("a running pull is removed")

    browser.press("\ue004")
    if browser.run("return document.activeElement.className") != "skip":
        wrong.append("the first key leads to " + browser.run("return document.activeElement.outerHTML"))
    browser.press("\ue007")
    browser.wait("the content", "return document.activeElement.id === 'main'")
    browser.press("\ue004")
    if not browser.run("return document.activeElement.closest('.map') !== null"):
        wrong.append("the images cannot be reached by the keyboard")
    browser.press("\ue007")
    browser.wait("the page of an image", "return location.pathname === '/image' && document.querySelector('h1')?.innerText")
    if not browser.run("return document.body.innerText").count("History"):
        wrong.append("an image has no history")

    browser.open(url)
    browser.click("#images summary")
    browser.click(f"#images tbody a[href='/image?ref={image_key(browser, image)}']")
    title = browser.wait("the image's page", "return location.pathname === '/image' && document.querySelector('h1')?.innerText")
    if image not in title:
        wrong.append(f"the page of {image} is headed {title}")
    browser.click("nav a[href='/plan']")
    browser.wait("the plan", "return document.querySelector('nav a[aria-current]')?.innerText === 'Plan'")
    browser.click("input[name='allUnused']")
    browser.click("main form button")
    browser.wait("the plan of all", "return location.search.includes('allUnused') && document.querySelectorAll('main tbody tr').length > 0")
    browser.write("#free", "lots")
    browser.click("main form button")
    browser.wait("the refusal", "return document.querySelector('.problem')?.innerText.includes('lots')")


def image_key(browser, image):
    """The id of an image, as its link has it."""
    script = "return Array.from(document.querySelectorAll('#images tbody a')).find((it) => it.innerText === arguments[0])?.getAttribute('href')"
    found = browser.run(script, image)
    if not found:
        raise RuntimeError(f"{image} is not listed")
    return found.split("=", 1)[1]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("url")
    arguments.add_argument("image")
    arguments.add_argument("--token")
    arguments.add_argument("--screenshots", type=pathlib.Path)
    given = arguments.parse_args()
    # The browser is ended as well when the walk is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    wrong = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder)
        try:
            if given.token:
                # The browser keeps what the address says, in place of its prompt.
                browser.open(given.url.replace("://", f"://user:{given.token}@"))
            for page, path in (("overview", "/"), ("plan", "/plan"), ("image", "/image?ref=" + urllib.parse.quote(given.image, safe=""))):
                look(browser, given.url + path, page, given.screenshots, wrong)
            wrong += [f"console: {line}" for line in browser.errors()]
            walk(browser, given.url + "/", given.image, wrong)
            # The size that is no size is answered 400.
            wrong += [f"console: {line}" for line in browser.errors() if "/plan?free=lots" not in line]
        except RuntimeError as error:
            wrong.append(str(error))
        finally:
            browser.close()
    print("\n".join(wrong) or "nothing is wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
