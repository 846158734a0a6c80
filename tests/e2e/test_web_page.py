"""Drives the page at / in a real headless Chromium: types a question, sees the answer stream in and the numbers move.

Needs chromium and chromium-driver (Debian) and selenium==4.41.0 (PyPI). Works offline and as root.
  VAYU_URL         a running server, e.g. http://127.0.0.1:8000 (otherwise one is started, as conftest.py says)
  VAYU_API_KEY     key to type into the page, when the server wants one
  VAYU_SCREENSHOT  PNG path; two more go beside it with -dark and -phone before the suffix
Run: python -m pytest tests/e2e/test_web_page.py
"""

import json
import os
import pathlib
import tempfile
import unittest

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    webdriver = None

from conftest import MODEL, Server

URL = os.environ.get("VAYU_URL", "").rstrip("/")
SCREENSHOT = os.environ.get("VAYU_SCREENSHOT", "")
TIMEOUT_S = 60

# Records how long the last answer's text is each time it changes: more than one length means it was streamed.
WATCH_ANSWER = """
window.lengths = [];
new MutationObserver(() => {
  const bodies = document.querySelectorAll('.turn.assistant .body');
  if (!bodies.length) return;
  const length = bodies[bodies.length - 1].textContent.length;
  if (window.lengths.at(-1) !== length) window.lengths.push(length);
}).observe(document.getElementById('messages'), {childList: true, subtree: true, characterData: true});
"""


def start_browser(profile):
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("VAYU_CHROMIUM", "/usr/bin/chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--window-size=1280,860",
                 "--proxy-server=direct://", "--user-data-dir=" + profile):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = os.environ.get("VAYU_CHROMEDRIVER", "/usr/bin/chromedriver")
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))


@unittest.skipUnless(URL or MODEL, "neither VAYU_URL nor VAYU_TEST_MODEL is set")
@unittest.skipUnless(webdriver, "selenium is not installed")
class WebPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.url = URL
        if not URL:
            server = Server()
            cls.addClassCleanup(server.stop)
            cls.url = server.url
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
        cls.profile = tempfile.TemporaryDirectory(prefix="vayu-chromium-", ignore_cleanup_errors=True)
        cls.addClassCleanup(cls.profile.cleanup)
        cls.browser = start_browser(cls.profile.name)
        cls.addClassCleanup(cls.browser.quit)

    def setUp(self):
        self.browser.get_log("browser")  # what earlier tests provoked
        self.browser.get(self.url + "/")
        key = os.environ.get("VAYU_API_KEY")
        if key:
            self.fill("api-key", key)
        self.wait(lambda: self.text("connection") == "connected", "the page polls /stats")

    # -- helpers

    def wait(self, condition, what, timeout_s=TIMEOUT_S):
        return WebDriverWait(self.browser, timeout_s, poll_frequency=0.05).until(lambda _: condition(), what)

    def text(self, element_id):
        return self.browser.execute_script("return document.getElementById(arguments[0]).textContent", element_id)

    def number(self, element_id):
        return float(self.text(element_id).replace(",", "").replace("–", "nan"))

    def fill(self, element_id, value):
        self.browser.execute_script(
            "document.getElementById(arguments[0]).value = arguments[1]", element_id, str(value))

    def ask(self, question, max_tokens):
        self.fill("temperature", 0)
        self.fill("max-tokens", max_tokens)
        self.browser.execute_script(WATCH_ANSWER)
        self.browser.find_element(By.ID, "prompt").send_keys(question, Keys.ENTER)

    def answers(self):
        return self.browser.find_elements(By.CSS_SELECTOR, ".turn.assistant")

    def wait_answered(self):
        self.wait(lambda: self.browser.find_element(By.ID, "send").is_displayed(), "the answer ends")

    def shoot(self, suffix=""):
        if SCREENSHOT:
            path = pathlib.Path(SCREENSHOT)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.browser.save_screenshot(str(path.with_name(path.stem + suffix + path.suffix)))

    # -- tests

    def test_question_streams_an_answer_and_numbers_move(self):
        requests = self.number("stat-requests")
        steps = self.number("stat-steps")
        self.ask("What is the capital of India? Answer in one sentence.", 64)
        self.wait(lambda: any(self.browser.execute_script("return window.lengths")), "the first text arrives")
        self.wait_answered()
        turn = self.answers()[-1]
        self.assertEqual(turn.find_elements(By.CSS_SELECTOR, ".error"), [])
        answer = turn.find_element(By.CSS_SELECTOR, ".body").text
        self.assertTrue(answer.strip())
        self.assertNotIn("\ufffd", answer)
        lengths = [n for n in self.browser.execute_script("return window.lengths") if n]
        self.assertGreater(len(lengths), 1, "the answer came in one piece: %r" % lengths)
        self.assertRegex(turn.find_element(By.CSS_SELECTOR, ".note").text, r"\d+ tokens? .*first after \d+ ms")
        self.wait(lambda: self.number("stat-requests") > requests, "the request count grows", 10)
        self.wait(lambda: self.number("stat-steps") > steps, "the step count grows", 10)
        pages = sum(self.number("stat-kv-" + kind) for kind in ("used", "cached", "free"))
        total = float(self.text("stat-kv-total").split()[0].replace(",", ""))
        self.assertEqual(pages, total)
        self.wait(lambda: self.number("stat-ttft-p50") > 0, "a TTFT percentile is shown", 10)
        self.wait(lambda: len(self.browser.execute_script(
            "return document.querySelector('#chart-kv .line-a').getAttribute('d')").split("L")) > 2, "the chart grows", 10)

        # A second question sees the first: the conversation is kept.
        self.ask("And of Nepal?", 32)
        self.wait(lambda: len(self.answers()) == 2, "a second turn")
        self.wait_answered()
        self.assertTrue(self.answers()[-1].find_element(By.CSS_SELECTOR, ".body").text.strip())
        self.shoot()
        self.check_dark_and_phone()
        self.check_offline_and_quiet()

    def check_dark_and_phone(self):
        command = self.browser.execute_cdp_cmd
        command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        self.shoot("-dark")
        command("Emulation.setEmulatedMedia", {"features": []})
        command("Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True})
        try:
            self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 390)
            self.assertTrue(self.browser.find_element(By.ID, "prompt").is_displayed())
            self.assertFalse(self.browser.find_element(By.ID, "stats").is_displayed())
            self.shoot("-phone")
            toggle = self.browser.find_element(By.ID, "toggle-stats")
            toggle.click()
            self.assertTrue(self.browser.find_element(By.ID, "stats").is_displayed())
            self.shoot("-phone-stats")
            toggle.click()
            self.assertTrue(self.browser.find_element(By.ID, "prompt").is_displayed())
        finally:
            command("Emulation.clearDeviceMetricsOverride", {})

    def check_offline_and_quiet(self):
        names = self.browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
        foreign = [name for name in names if not name.startswith((self.url, "data:"))]
        self.assertEqual(foreign, [])
        severe = [entry for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        self.assertEqual(severe, [])

    def test_thinking_is_folded_and_plain_text(self):
        events = [{"role": "assistant", "reasoning_content": "<b>why</b> "}, {"reasoning_content": "so"}, {"content": "**answer**"}]
        stream = "".join("data: %s\n\n" % json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in events)
        stream += 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        self.browser.execute_script("""
          const real = window.fetch;
          window.fetch = (url, options) => url === "v1/chat/completions"
            ? Promise.resolve(new Response(arguments[0], {headers: {"Content-Type": "text/event-stream"}})) : real(url, options);
        """, stream)
        self.ask("Think", 16)
        self.wait(lambda: self.browser.find_elements(By.CSS_SELECTOR, ".turn.assistant .note"), "the answer ends")
        turn = self.answers()[-1]
        thinking = turn.find_element(By.CSS_SELECTOR, "details.thinking")
        inner = thinking.find_element(By.CSS_SELECTOR, "div")
        self.assertFalse(inner.is_displayed())
        self.assertEqual(turn.find_element(By.CSS_SELECTOR, ".body").text, "answer")
        thinking.find_element(By.CSS_SELECTOR, "summary").click()
        self.assertTrue(inner.is_displayed())
        self.assertEqual(inner.text, "<b>why</b> so")
        self.assertEqual(inner.find_elements(By.CSS_SELECTOR, "b"), [])

    def test_stop_button_ends_the_answer(self):
        self.ask("Write a very long story about a river, with many chapters.", 2000)
        self.wait(lambda: any(self.browser.execute_script("return window.lengths")), "the first text arrives")
        self.browser.find_element(By.ID, "stop").click()
        self.wait_answered()
        self.assertIn("stopped", self.answers()[-1].find_element(By.CSS_SELECTOR, ".note").text)
        self.wait(lambda: self.number("stat-running") == 0, "the server has let go of the request", 10)

    def test_an_error_is_readable_and_the_question_comes_back(self):
        self.ask("Hello there", -1)  # max_tokens -1 is refused by the server
        self.wait(lambda: self.browser.find_elements(By.CSS_SELECTOR, ".turn .error"), "an error is shown")
        error = self.browser.find_element(By.CSS_SELECTOR, ".turn .error").text
        self.assertIn("max_tokens", error)
        self.assertNotIn("{", error)
        self.assertEqual(
            self.browser.execute_script("return document.getElementById('prompt').value"), "Hello there")


if __name__ == "__main__":
    unittest.main()
