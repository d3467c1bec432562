"""scripts/first_contact.sh packs one folder and does all its stages from there, here on the emulated device.

Usage: first_contact_test.py SOURCE_DIRECTORY BUILD_DIRECTORY
"""

import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, BUILD = Path(sys.argv[1]), Path(sys.argv[2])
STAGES = ["machine", "unpack", "kernels", "statistics", "sanitizer", "logits", "attention", "model", "prompts", "profile"]
NEED_TOOLS = {"sanitizer", "profile"}


class FirstContact(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name) / "package"
        packed = subprocess.run([SOURCE / "scripts/first_contact.sh", "pack", "--emulated", cls.folder], capture_output=True,
                                text=True, env={"PATH": "/usr/bin:/bin", "KVLATHE_BUILD": str(BUILD)})
        assert packed.returncode == 0, packed.stderr
        cls.said = packed.stdout

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def run_it(self, *arguments):
        """(exit status, the stages by name) of a run from the folder alone."""
        done = subprocess.run([self.folder / "first_contact.sh", "run", *map(str, arguments)], capture_output=True, text=True,
                              cwd="/", env={"PATH": "/usr/bin:/bin", "HOME": self.temporary.name}, timeout=300)
        result = json.loads((self.folder / "result.json").read_text())
        self.assertEqual(result["mode"], "emulated")
        self.assertEqual([stage["stage"] for stage in result["stages"]], STAGES, done.stderr)
        return done, {stage["stage"]: stage for stage in result["stages"]}

    def test_1_a_folder_of_three_files_below_64_mib(self):
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["files.tar.xz", "first_contact.sh", "mode"])
        self.assertLess(sum(path.stat().st_size for path in self.folder.iterdir()), 64 << 20)
        self.assertIn("emulated", self.said)

    def test_2_all_stages_run(self):
        done, stages = self.run_it()
        self.assertEqual(done.returncode, 0, done.stdout + json.dumps(stages, indent=1))
        for name, stage in stages.items():
            self.assertEqual(stage["state"], "left out" if name in NEED_TOOLS else "passed", stage)
        self.assertEqual(stages["kernels"]["result"], {"cuda_memory_test": 0})
        for spec in stages["logits"]["result"]:
            self.assertLess(spec["off"], 0.02, spec)
        self.assertEqual(len(stages["logits"]["result"]), 3)
        formats = [entry["format"] for entry in stages["attention"]["result"]["cuda_bench"]["decode"]]
        self.assertIn("rows, 16 bits", formats)
        self.assertIn("lathe split, 2 bits", formats)
        self.assertEqual(len(stages["model"]["result"]), 2)
        self.assertEqual(len(stages["prompts"]["result"]), 2)

    def test_3_later_stages_run_after_failures_and_time_ends_all(self):
        broken = self.folder / "files.tar.xz"
        kept = broken.read_bytes()
        shutil.rmtree(self.folder / "files")
        try:
            broken.write_bytes(b"no archive")
            done, stages = self.run_it()
        finally:
            broken.write_bytes(kept)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(stages["machine"]["state"], "passed")
        for name in ("unpack", "kernels", "logits", "attention", "prompts"):
            self.assertEqual(stages[name]["state"], "failed", stages[name])
        done, stages = self.run_it("--seconds", 1)
        self.assertTrue(all(stage["state"] == "left out" for stage in stages.values()), stages)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
