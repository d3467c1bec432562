"""The recording: its specs cover the grammar, what no machine changes is what golden.json says, and two recordings that
differ are told apart.

Usage: recording_test.py KVLATHE [TEST...]
"""

import contextlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # nothing is left in the source tree
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import recording  # noqa: E402
from results_parts.program import Program  # noqa: E402

KVLATHE = pathlib.Path(sys.argv[1]).resolve()


def stages_of(spec):
    """{stage: keys that it is given}."""
    return {match[1]: re.findall(r"([a-z_]+)=", match[2] or "") for match in re.finditer(r"([a-z][a-z0-9_-]*)(?:\(([^)]*)\))?", spec)}


class Coverage(unittest.TestCase):
    def setUp(self):
        self.given = {}
        for spec in recording.read_specs(recording.SPECS):
            for stage, keys in stages_of(spec).items():
                self.given.setdefault(stage, set()).update(keys)
        self.asked = {stage for spec in recording.read_specs(recording.REFUSED) for stage, keys in stages_of(spec).items()
                      if "accuracy" in keys}

    def test_every_stage_and_key_is_recorded(self):
        described = subprocess.run([KVLATHE, "specs"], capture_output=True, text=True, check=True).stdout
        stage, n_keys = None, 0
        for line in described.splitlines():
            if match := re.match(r"([a-z][a-z0-9_-]*) \[\w+\]: ", line):
                stage = match[1]
                self.assertIn(stage, self.given, f"specs.txt has no spec with {stage}")
            elif stage and (match := re.match(r"    ([a-z_]+)=\S* +\S", line)):
                n_keys += 1
                if match[1] == "accuracy":
                    self.assertIn(stage, self.asked, f"refused.txt has no spec with {stage}(accuracy=...)")
                else:
                    self.assertIn(match[1], self.given[stage], f"specs.txt has no spec with {stage}({match[1]}=...)")
        self.assertGreater(n_keys, 100)

    def test_every_composition_is_recorded(self):
        axis = {}
        for line in subprocess.run([KVLATHE, "specs"], capture_output=True, text=True, check=True).stdout.splitlines():
            if match := re.match(r"([a-z][a-z0-9_-]*) \[(\w+)\]: ", line):
                axis[match[1]] = match[2]
        kinds = {tuple(sorted({axis[stage] for stage in stages_of(spec)})) for spec in recording.read_specs(recording.SPECS) if spec != "none"}
        for kind in ("basis", "retention", "quantizer", "preset", "basis quantizer", "basis retention", "quantizer retention",
                     "quantizer residual", "basis residual", "basis quantizer retention", "quantizer residual retention",
                     "basis quantizer residual retention"):
            self.assertIn(tuple(sorted(kind.split())), kinds, f"specs.txt composes no {kind}")


class Golden(unittest.TestCase):
    def test_bytes_and_refusals_are_those_of_golden_json(self):
        golden = json.loads(recording.GOLDEN.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(prefix="kvlathe_golden_") as folder:
            program = Program(ROOT, KVLATHE, "models/lathe-nano", None)
            answers = recording.GoldenAnswers(pathlib.Path(folder), program, jobs=2).all()
        for part in ("bytes", "refusals"):
            self.assertEqual(golden[part].keys(), answers[part].keys())
            for kv, answer in answers[part].items():
                self.assertEqual(list(recording.differences(golden[part][kv], answer)), [], f"{part} of {kv}; if it is meant: "
                                 "scripts/recording.py golden, and a reason in the commit")


class Comparison(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_recording_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.cells = {kv: {"compare": {"kl": 0.125, "kv_parts": {"blocks": 64}, "over_steps": [{"kl": 0.5}]}, "run": {"ids": [1, 2, 3]}}
                      for kv in ("none", "kivi")}
        for name in ("a", "b"):
            self.write(name, "amx", self.cells)

    def write(self, name, isa, cells):
        recording.write_whole(self.folder / name / "lathe-nano" / f"{isa}.json", json.dumps(cells))

    def compare(self, *options):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = recording.main(["compare", str(self.folder / "a"), str(self.folder / "b"), *options])
        return status, out.getvalue()

    def test_equal_recordings_are_equal(self):
        self.assertEqual(self.compare(), (0, "2 cells are equal, 0 differ\n"))

    def test_each_field_that_differs_is_named(self):
        changed = json.loads(json.dumps(self.cells))
        changed["kivi"]["compare"]["over_steps"][0]["kl"] = 0.5000000000000001  # the last bit
        changed["kivi"]["run"]["ids"] = [1, 2, 4]
        self.write("b", "amx", changed)
        status, text = self.compare()
        self.assertEqual(status, 1)
        self.assertIn("lathe-nano/amx kivi: compare.over_steps[0].kl: 0.5 and 0.5000000000000001\n", text)
        self.assertIn("lathe-nano/amx kivi: run.ids: [1, 2, 3] and [1, 2, 4]\n", text)
        self.assertNotIn("none", text)
        self.assertIn("1 cells are equal, 1 differ\n", text)

    def test_a_cell_that_is_missing_differs(self):
        self.write("b", "amx", {"none": self.cells["none"]})
        status, text = self.compare()
        self.assertEqual(status, 1)
        self.assertIn("lathe-nano/amx kivi: no cell in", text)

    def test_an_instruction_set_of_one_recording_differs_unless_only_the_common_ones_are_asked_for(self):
        self.write("a", "scalar", self.cells)
        self.assertEqual(self.compare()[0], 1)
        status, text = self.compare("--common")
        self.assertEqual(status, 0)
        self.assertIn("lathe-nano/scalar: only in", text)

    def test_recordings_on_other_statistics_are_not_compared(self):
        for name in ("a", "b"):
            recording.write_whole(self.folder / name / "calibration/lathe-nano/basis.safetensors", name)
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            self.assertEqual(self.compare()[0], 1)
        self.assertIn("the statistics of lathe-nano differ", error.getvalue())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
