"""The page of `kvlathe report`: well-formed, complete in itself, with the numbers of what it shows; and as
Chromium draws it, where that is installed.

    report_test.py KVLATHE MODEL_DIRECTORY BUILD_DIRECTORY

Screenshots are left in BUILD_DIRECTORY/report-light.png and report-dark.png.
"""

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
import zlib

KVLATHE, MODEL, BUILD = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
CHROMIUM = shutil.which("chromium")
CACHES = ["none", "lathe(rate=0.5)", "lathe(ratio=6)", "fdc(accuracy=0.9)", "kivi(bits=2)", "h2o(keep=0.5)+kcvt(bits=4)"]


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_report_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.text = cls.folder / "short.txt"
        cls.text.write_text((MODEL / "sample.txt").read_text()[:4000])
        cls.profile, cls.page = cls.folder / "profile.json", cls.folder / "report.html"
        shape = ["-m", MODEL, "-c", 256]
        cls.tuned = cls.json_of("tune", *shape, "--perplexity", cls.text, "--accuracy", 0.9, "--kv", "fdc", "--kv",
                                "kivi(group=64)", "--out", cls.profile)
        caches = sum((["--kv", kv] for kv in CACHES), [])
        cls.compared = cls.json_of("report", *shape, "--text", cls.text, *caches, "--profile", cls.profile, "--out",
                                   cls.page)
        cls.html = cls.page.read_text()

    @classmethod
    def run_verb(cls, *arguments):
        return subprocess.run([KVLATHE, *map(str, arguments)], capture_output=True, timeout=300,
                              env=dict(os.environ, XDG_CACHE_HOME=str(cls.folder)))

    @classmethod
    def json_of(cls, *arguments):
        done = cls.run_verb(*arguments, "--json")
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def test_is_well_formed_and_loads_nothing(self):
        first, rest = self.html.split("\n", 1)
        self.assertEqual(first, "<!DOCTYPE html>")
        page = xml.etree.ElementTree.fromstring(rest)
        self.assertEqual(page.tag, "html")
        for needle in ("http:", "https:", "<script", "src=", "href=", "@import", "url("):
            self.assertNotIn(needle, self.html)

    def test_has_the_numbers_of_its_input(self):
        page = xml.etree.ElementTree.fromstring(self.html.split("\n", 1)[1])
        rows = [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]
        for row in self.compared["rows"]:
            shown = next(cells for cells in rows if cells[0] == row["kv"] and len(cells) == 10)
            self.assertEqual(shown[1], f"{100 * row['kv_fraction']:.2f}")
            self.assertEqual(shown[3], f"{row['perplexity']:.3f}")
            self.assertEqual(shown[5], f"{row['kl']:.5f}")
            self.assertTrue(any(cells[0] == row["kv"] and cells[1] == str(row["kv_parts"]["blocks"]) for cells in rows))
        for method in self.tuned["targets"][0]["methods"]:
            shown = next(cells for cells in rows if cells[0] == method["name"])
            self.assertEqual(shown[1:3], [method["kv"], f"{100 * method['kv_fraction']:.2f}"])
            self.assertEqual(shown[4], f"{method['accuracy']:.4f}")
        self.assertEqual(self.html.count("<circle"), len(self.tuned["points"]) + len(CACHES) - 1)

    def test_draws_every_head(self):
        shape = self.json_of("inspect", "-m", MODEL, "-c", 256, "--kv", "lathe(rate=0.5)")
        n_cells = shape["model"]["n_layers"] * shape["model"]["n_kv_heads"]
        # Ranks and concentrations of three specs with a basis, bits of lathe's keys and values, bits of three sealed
        # caches, lengths under retention. The two specs of lathe have maps of their own: by head, and of joined heads.
        self.assertEqual(self.html.count("<rect"), (3 * 4 + 2 + 3 + 1) * n_cells)
        self.assertEqual(self.html.count("<polyline"), 2 * 3 * n_cells)
        for head in shape["basis"]["heads"]:
            self.assertIn(f"layer {head['layer']}, KV head {head['kv_head']}: {head['rank_k']}<", self.html)

    def test_refuses_what_it_cannot_do(self):
        report = ["report", "-m", MODEL, "-c", 256, "--text", self.text, "--out"]
        for status, needle, *arguments in ((1, "missing", self.folder / "missing" / "report.html"),
                                           (2, "fcd", self.folder / "r.html", "--kv", "fcd"),
                                           (1, "none.json", self.folder / "r.html", "--profile", "none.json")):
            done = self.run_verb(*report, *arguments)
            self.assertEqual(done.returncode, status, done.stderr.decode())
            self.assertIn(needle, done.stderr.decode())
        other = self.folder / "other.json"
        other.write_text(json.dumps(dict(self.tuned, model_hash="0" * 32)))
        done = self.run_verb(*report, self.folder / "r.html", "--profile", other)
        self.assertEqual(done.returncode, 2)
        self.assertIn("another model", done.stderr.decode())

    def screenshot(self, name, *flags):
        path = BUILD / name
        path.unlink(missing_ok=True)
        done = subprocess.run([CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                               f"--user-data-dir={self.folder / 'browser'}", "--window-size=1280,4600",
                               f"--screenshot={path}", *flags, self.page.as_uri()],
                              capture_output=True, timeout=300, env=dict(os.environ, HOME=str(self.folder)))
        self.assertTrue(path.exists(), done.stderr.decode())
        return path.read_bytes()

    # Of a PNG with 8 bits per channel: its size, the pixel in the upper left corner (which no filter of PNG
    # changes), and whether all rows are there.
    def png_facts(self, data):
        width, height = struct.unpack(">II", data[16:24])
        n_channels = {2: 3, 6: 4}[data[25]]
        packed, at = b"", 8
        while at < len(data):
            n_bytes, kind = struct.unpack(">I4s", data[at:at + 8])
            if kind == b"IDAT":
                packed += data[at + 8:at + 8 + n_bytes]
            at += 12 + n_bytes
        rows = zlib.decompress(packed)
        return width, height, tuple(rows[1:4]), len(rows) == height * (1 + n_channels * width)

    @unittest.skipUnless(CHROMIUM, "chromium is not installed")
    def test_chromium_draws_it_light_and_dark(self):
        backgrounds = re.findall(r"--back: #(\w{6})", self.html)
        self.assertEqual(len(backgrounds), 2)
        for name, scheme, background in (("light", 1, backgrounds[0]), ("dark", 0, backgrounds[1])):
            data = self.screenshot(f"report-{name}.png", f"--blink-settings=preferredColorScheme={scheme}")
            width, height, corner, is_whole = self.png_facts(data)
            self.assertEqual((width, is_whole), (1280, True))
            self.assertGreater(height, 1500)
            self.assertEqual(bytes(corner).hex(), background)
            self.assertGreater(len(data), 50_000)  # a page of one colour is a hundredth of that


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
