"""What a cache merges of a text, through the command line: numbers and pictures.

Usage: merging_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import shutil
import xml.etree.ElementTree

import cli_support
from cli_support import MODEL

FIGURES = ["alpha-by-position.svg", "compression-by-head.svg", "compression-by-length.svg", "segments.svg"]
SVG = "{http://www.w3.org/2000/svg}"


class Merging(cli_support.CommandLineCase):
    def setUp(self):
        super().setUp()
        self.text = self.folder / "text.txt"
        self.text.write_text((MODEL / "sample.txt").read_text()[:3000])
        self.model = self.deciding("late", 0.0)
        self.figures = self.folder / "figures"

    def deciding(self, name, offset):
        """The model, not trained to decide: what its last channel of keys happens to say."""
        model = self.folder / name
        shutil.copytree(MODEL, model)
        config = json.loads((model / "config.json").read_text())
        dmc = {"channel": "last", "offset": offset, "weight_offset": 0.0, "epsilon": 0.0078125}
        (model / "config.json").write_text(json.dumps(config | {"dmc": dmc}))
        return model

    def merging(self, *options, kv="dmc(sink=0)", model=None, tokens=128):
        kvs = ["--kv", kv] if kv else []
        return ["inspect", "-m", model or self.model, *kvs, "-t", 1, "-c", tokens, "--merging", self.text, *options]

    def test_numbers_agree_with_one_another(self):
        result = self.json_of(*self.merging("--merging-texts", 1, "--head", "4,1"))["merging"]
        self.assertEqual((result["texts"], result["tokens"], result["along"]), (1, 128, []))
        heads = [ratio for layer in result["compression_by_head"] for ratio in layer]
        self.assertEqual(len(heads), 12)
        entries = [128 / ratio for ratio in heads]
        self.assertAlmostEqual(result["compression"], 12 * 128 / sum(entries))
        segments = result["segments"]
        self.assertEqual((segments["layer"], segments["kv_head"]), (4, 1))
        self.assertEqual(segments["entries"], len(segments["begins"]))
        self.assertAlmostEqual(segments["entries"], entries[9])
        self.assertEqual(segments["begins"], sorted(set(segments["begins"])))
        self.assertEqual(segments["begins"][0], 0)
        lengths = result["compression_by_length"]
        self.assertEqual([length["tokens"] for length in lengths], [16, 32, 64, 128])
        self.assertEqual(lengths[-1]["compression"], result["compression"])
        self.assertAlmostEqual(lengths[-1]["least"], min(heads))
        self.assertAlmostEqual(lengths[-1]["most"], max(heads))
        self.assertGreater(max(heads), 1.2)  # something merges
        joined = sum(range_["alpha"] * (range_["end"] - range_["begin"]) for range_ in result["alpha_by_position"])
        self.assertAlmostEqual(joined, 128 - sum(entries) / 12)

    def test_pooling_is_what_it_says(self):
        result = self.json_of(*self.merging(kv="pool(n=4,sink=0)", model=MODEL))["merging"]
        self.assertEqual(result["texts"], 4)
        self.assertEqual(result["compression_by_head"], [[4.0, 4.0]] * 6)
        self.assertEqual(result["segments"]["begins"], list(range(0, 128, 4)))

    def test_figures_are_svg(self):
        early = self.deciding("early", 0.5)
        self.json_of(*self.merging("--merging-texts", 2, "--figures", self.figures, "--along", early))
        self.assertEqual(sorted(path.name for path in self.figures.iterdir()), FIGURES)
        trees = {name: xml.etree.ElementTree.parse(self.figures / name).getroot() for name in FIGURES}
        texts = {name: [element.text for element in tree.iter(SVG + "text")] for name, tree in trees.items()}
        for name, tree in trees.items():
            self.assertEqual(tree.tag, SVG + "svg")
            self.assertLessEqual(float(tree.get("width")), 800, name)
        cells = [element.text for element in trees["compression-by-head.svg"].iter(SVG + "title")]
        self.assertEqual(len(cells), 2 * 12)
        self.assertTrue(cells[0].startswith("early: "), cells[0])
        self.assertTrue(cells[12].startswith("late: "), cells[12])
        for name in ("alpha-by-position.svg", "compression-by-length.svg"):
            self.assertLess(texts[name].index("early"), texts[name].index("late"))
        letters = [element.text for element in trees["segments.svg"].iter(SVG + "text") if element.get("class") == "letters"]
        self.assertEqual(len(letters), 128)
        text = "".join(letters[1:]).replace("\u21b5", "\n")
        self.assertEqual((letters[0], text), ("<s>", self.text.read_text()[: len(text)]))

    def test_models_of_one_name_have_their_folder_in_front(self):
        (self.folder / "ramp").mkdir()
        shutil.copytree(self.model, self.folder / "ramp/late")
        result = self.json_of(*self.merging("--along", str(self.folder / "ramp/late") + "/", "--merging-texts", 1))["merging"]
        self.assertEqual([model["model"] for model in result["along"]], ["ramp/late"])
        self.assertEqual(result["along"][0]["compression_by_head"], result["compression_by_head"])

    def test_without_json_it_is_a_map_and_a_table(self):
        said = self.run_verb(*self.merging(kv=None)).stdout.decode()
        self.assertIn("late: 4 x 128 tokens", said)
        self.assertIn("a row per layer, a column per KV head", said)
        self.assertRegex(said, r"\n +128 +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d\n")

    def test_refusals(self):
        for options, said in (
            (self.merging(kv="none"), "merges nothing"),
            (self.merging(model=MODEL), "dmc"),
            (self.merging("--head", "6,0"), "--head is '6,0'; expected LAYER,KV_HEAD below 6,2"),
            (self.merging("--head", "first"), "--head is 'first'"),
            (self.merging("--figures", self.text), "--figures"),
            (["inspect", "-m", self.model, "--figures", self.figures], "--merging"),
        ):
            with self.subTest(options[4:]):
                self.assert_refused(2, said, *options)
        self.assert_refused(1, "nothing: no such file or directory", *self.merging("--along", self.folder / "nothing"))
        self.text.write_text("")
        self.assert_refused(2, "holds no text", *self.merging())


if __name__ == "__main__":
    cli_support.main()
