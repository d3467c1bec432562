"""The server's page, in a browser: types, sends, reads the streamed answer, stops one.

Usage: page_test.py KVLATHE MODEL_DIRECTORY [TEST...]

Tests that need a browser are skipped where Chromium, its driver or the package selenium is missing. With the environment variable
KVLATHE_SCREENSHOTS they leave pictures in that folder.
"""

import contextlib
import os
import pathlib
import re
import shutil
import threading
import unittest

import cli_support
from cli_support import KVLATHE, MODEL
from server_under_test import Server

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    webdriver = None

DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
HAS_BROWSER = webdriver is not None and DRIVER and BROWSER
LEVELS = ("none", "kivi(bits=4)")


class PageCase(cli_support.CommandLineCase):
    def serve(self, *arguments):
        levels = [part for level in LEVELS for part in ("--kv", level)]
        return Server(KVLATHE, "-m", MODEL, *levels, "--chat-template", "chatml", *arguments, environment=self.environment)


class Document(PageCase):
    def test_asks_nothing_of_other_servers(self):
        with self.serve("--api-key", "secret") as server:
            status, page, headers = server.ask("GET", "/")
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/html"))
        policy = headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertIn("connect-src 'self'", policy)
        self.assertNotRegex(page, r"(src|href)\s*=\s*[\"']")
        self.assertNotIn("innerHTML", page)
        # All that it looks up by name is there.
        self.assertEqual(set(re.findall(r"at\(\"([\w-]+)\"\)", page)) - set(re.findall(r"id=\"([\w-]+)\"", page)), set())


@unittest.skipUnless(HAS_BROWSER, "needs chromium, chromedriver and selenium")
class Browser(PageCase):
    def open(self, server, *arguments):
        self.show(server, *arguments)
        self.wait(self.has_levels)

    def has_levels(self):
        options = self.find("kv").find_elements(By.TAG_NAME, "option")
        return [option.get_attribute("value") for option in options if option.get_attribute("value")] == list(LEVELS)

    def show(self, server, *arguments):
        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,800", *arguments):
            options.add_argument(argument)
        # The package has no one name for where the driver is in all of its versions.
        os.environ["PATH"] = f"{pathlib.Path(DRIVER).parent}{os.pathsep}{os.environ['PATH']}"
        self.page = webdriver.Chrome(options=options)
        self.addCleanup(self.page.quit)
        self.page.get(f"http://127.0.0.1:{server.port}/")

    def find(self, name):
        return self.page.find_element(By.ID, name)

    def wait(self, condition, seconds=60):
        WebDriverWait(self.page, seconds, 0.05).until(lambda _: condition())

    @contextlib.contextmanager
    def load(self, server):
        """Others ask meanwhile, with the second level."""
        ends = threading.Event()

        def ask():
            while not ends.is_set():
                server.post("/v1/completions", {"prompt": "A long story", "n": 8, "max_tokens": 900, "ignore_eos": True,
                                                "kv": LEVELS[1]})

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            yield
        finally:
            ends.set()
            asking.join()

    def answers(self):
        return self.page.find_elements(By.CSS_SELECTOR, ".turn.assistant")

    def facts(self):
        return self.page.find_elements(By.CSS_SELECTOR, ".facts")[-1].text

    def set(self, name, value):
        self.find(name).clear()
        self.find(name).send_keys(str(value))

    def picture(self, name):
        folder = os.environ.get("KVLATHE_SCREENSHOTS")
        if folder:
            self.page.save_screenshot(str(pathlib.Path(folder) / f"{name}.png"))

    def test_reads_an_answer_as_it_comes(self):
        with self.serve() as server:
            self.open(server)
            self.set("max_tokens", 48)
            self.find("input").send_keys("Tell me *what* you see", Keys.ENTER)
            self.wait(lambda: "generated" in self.facts())
            self.assertEqual(len(self.answers()), 1)
            self.assertGreater(len(self.answers()[0].text), len(self.facts()))
            self.assertIn("48 generated", self.facts())
            self.find("input").send_keys("And then?", Keys.ENTER)
            self.wait(lambda: len(self.answers()) == 2 and "generated" in self.facts())
            self.assertNotIn("which 0 were stored", self.facts())
            self.wait(lambda: self.find("hits").text not in ("-", "0"))
            self.picture("light")

    def test_stops_an_answer(self):
        with self.serve() as server:
            self.open(server, "--force-dark-mode")
            self.set("max_tokens", 900)
            self.set("temperature", 0)
            with self.load(server):  # alone it may have ended before the key is pressed
                self.find("input").send_keys("A long story", Keys.ENTER)
                self.wait(lambda: self.answers() and len(self.answers()[0].text) > 40)
                self.find("input").send_keys(Keys.ESCAPE)
                self.wait(lambda: self.facts() == "stopped")
            self.assertTrue(self.find("send").is_enabled())
            self.wait(lambda: self.find("running").text == "0")
            self.picture("dark")

    def test_shows_what_bytes_are_spent_on(self):
        with self.serve() as server:
            self.open(server)
            self.assertFalse(self.find("parts").is_displayed())
            self.assertFalse(self.find("audit").is_displayed())
            with self.load(server):
                self.wait(lambda: "codes" in self.find("kinds").text and "together" in self.find("kinds").text)
                self.assertLess(float(re.search(r"([\d.]+)%", self.find("kinds").text).group(1)), 100)
                self.picture("parts")
            self.wait(lambda: not self.find("parts").is_displayed())

    def test_shows_what_an_audit_finds(self):
        with self.serve("--audit", "1") as server:
            self.open(server)
            self.find("kv").send_keys(LEVELS[1])
            self.set("max_tokens", 48)
            self.find("input").send_keys("What do you see?", Keys.ENTER)
            self.wait(lambda: "1, 48" in self.find("audit-rows").text)
            self.assertIn("100% of answers", self.find("audit-facts").text)
            text = self.find("audit-rows").text
            self.assertIn(LEVELS[1], text)
            self.assertGreater(float(re.search(r"KL, mean\s+([\d.e-]+)", text).group(1)), 0)
            self.assertGreater(float(re.search(r"same likeliest token\s+([\d.]+)%", text).group(1)), 50)
            self.assertTrue(self.has_levels())
            self.picture("audit")

    def test_leaves_the_cache_to_an_audit_that_acts(self):
        with self.serve("--audit", "1", "--audit-acts", "0.5") as server:
            self.open(server)
            self.wait(lambda: self.find("kv").get_attribute("value") == "")
            self.assertIn(f"who names no cache gets {LEVELS[0]}", self.find("audit-facts").text)
            self.set("max_tokens", 8)
            self.find("input").send_keys("What do you see?", Keys.ENTER)
            self.wait(lambda: "generated" in self.facts())
            requests = [event for event in server.log if event.get("route") == "/v1/chat/completions"]
            self.assertEqual([event["kv"] for event in requests], [LEVELS[0]])

    def test_shows_why_there_is_no_answer(self):
        with self.serve("--api-key", "secret") as server:
            self.show(server)
            self.wait(lambda: "API key" in self.find("model").text)
            self.set("key", "secret")
            self.find("key").send_keys(Keys.TAB)
            self.wait(self.has_levels)
            self.set("max_tokens", 100000)
            self.find("input").send_keys("Too much", Keys.ENTER)
            self.wait(lambda: "error" in self.page.find_elements(By.CSS_SELECTOR, ".facts")[-1].get_attribute("class"))
            self.assertIn("100000", self.facts())


if __name__ == "__main__":
    cli_support.main()
