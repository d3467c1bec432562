"""kvlathe chart: lines through points of a JSON file as SVG.

Usage: chart_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import re
import xml.etree.ElementTree

import cli_support

SVG = "{http://www.w3.org/2000/svg}"


class Chart(cli_support.CommandLineCase):
    def setUp(self):
        super().setUp()
        self.data, self.out = self.folder / "points.json", self.folder / "points.svg"
        self.chart = {"title": "KL & bytes", "x": {"label": "bytes a token", "log": True}, "y": {"label": "KL, nats"},
                      "series": [{"name": "dmc", "points": [[10, 3], [100, 2], [1000, 1]]}, {"name": "h2o", "points": [[100, 4]]}],
                      "level": {"y": 0.5, "name": "the bar"}}

    def write(self, **changes):
        self.data.write_text(json.dumps(self.chart | changes))
        return ["chart", self.data, "--out", self.out]

    def test_points_lie_where_their_numbers_say(self):
        done = self.run_verb(*self.write())
        self.assertEqual((done.returncode, done.stdout), (0, b""), done.stderr)
        tree = xml.etree.ElementTree.parse(self.out).getroot()
        texts = [element.text for element in tree.iter(SVG + "text")]
        for text in ("KL & bytes", "bytes a token", "KL, nats", "dmc", "h2o", "the bar", "100"):
            self.assertIn(text, texts)
        line, single = [element.get("points") for element in tree.iter(SVG + "polyline")]
        points = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+),([\d.]+)", line)]
        (x0, y0), (x1, y1), (x2, y2) = points
        self.assertAlmostEqual(x1 - x0, x2 - x1, delta=0.11)  # a power of ten each
        self.assertAlmostEqual(y1 - y0, y2 - y1, delta=0.11)
        self.assertGreater(y1, y0)  # smaller values lie lower
        self.assertAlmostEqual(float(single.split(",")[0]), x1, delta=0.11)

    def test_refusals(self):
        series = self.chart["series"]
        for changes, said in (
            ({"title": 3}, "lacks a title or series"), ({"series": []}, "lacks a title or series"), ({"x": "bytes"}, "'x' is no axis"),
            ({"y": {"label": "KL", "log": 1}}, "'y' is no axis"), ({"series": [{"name": "dmc"}]}, "lacks its name or its points"),
            ({"series": [{"name": "dmc", "points": [[1]]}]}, "'dmc' has a point that is no pair"),
            ({"series": [{"name": "dmc", "points": [[0, 1]]}]}, "[0, 1], which a logarithmic axis has no place for"),
            ({"series": series + [{"name": "pool", "points": [[2, 1], [1, 1]]}]}, "the points of 'pool' do not rise"),
            ({"level": {"y": 1}}, "'level' lacks y or name"),
        ):
            with self.subTest(said):
                self.assert_refused(1, said, *self.write(**changes))
                self.assertFalse(self.out.exists())
        self.data.write_text("{")
        self.assert_refused(1, "points.json", "chart", self.data, "--out", self.out)
        self.assert_refused(1, "nowhere", *self.write()[:-1], self.folder / "nowhere/points.svg")
        self.assert_refused(2, "--out", "chart", self.data)


if __name__ == "__main__":
    cli_support.main()
