"""The manual pages that `kvlathe manual` writes: man reads them without a warning, they have every verb and option of the
command's own help, and every variable of the environment that the sources read. Called as
manual_test.py KVLATHE [TEST...]."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

KVLATHE = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).resolve().parent.parent
# Of tests, of an emulated GPU, and of who starts ranks: not for users.
OTHERS = re.compile(r"KVLATHE_(TEST|EMULATED|ISOLATION)_|^OMPI_|^HOME$|^PMI|^PMIX|^SLURM")


def help_of(*verb):
    return subprocess.run([KVLATHE, *verb, "--help"], capture_output=True, text=True, check=True).stdout


def verbs_of(*verb):
    """Every verb below this one, as the help lists them."""
    if verb == ("retrofit",):  # another program's
        return []
    listed = help_of(*verb).split("Subcommands:")
    names = re.findall(r"^  (\w+) +\w", listed[1], re.MULTILINE) if len(listed) == 2 else []
    return [inner for name in names for inner in [(*verb, name), *verbs_of(*verb, name)]]


class ManualTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_manual_"))
        subprocess.run([KVLATHE, "manual", cls.folder / "man1"], check=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def page(self, *verb):
        text = (self.folder / "man1" / ("-".join(("kvlathe", *verb)) + ".1")).read_text()
        return text.replace("\\-", "-")

    def test_every_verb_has_a_page_with_its_purpose_options_and_example(self):
        verbs = verbs_of()
        self.assertGreater(len(verbs), 20)
        self.assertEqual(len(list((self.folder / "man1").iterdir())), len(verbs) + 1)
        overview = self.page()
        for verb in verbs:
            page, purpose = self.page(*verb), help_of(*verb).splitlines()[0] if verb != ("retrofit",) else "Training"
            self.assertIn(f".SH NAME\nkvlathe-{'-'.join(verb)} - {purpose}", page)
            self.assertIn(f"\\fBkvlathe-{'-'.join(verb)}\\fR(1)\n{purpose}", overview)
            if verb == ("retrofit",):
                continue
            text = help_of(*verb)
            for names in re.findall(r"^  (-\S+)", text, re.MULTILINE):
                self.assertIn(", ".join(f"\\fB{name}\\fR" for name in names.replace("{false}", "").split(",")), page)
            example = re.search(r"^Example: (.*)", text, re.MULTILINE)
            self.assertEqual(example is not None, ".SH EXAMPLE\n" in page)
            if example:
                self.assertIn(example.group(1), page)

    def test_the_overview_has_common_options_methods_and_every_variable(self):
        page = self.page()
        for name in ("--model", "--kv", "--threads", "--device", "--dtype"):
            self.assertIn(f"\\fB{name}\\fR", page.split(".SH COMMON OPTIONS")[1])
        for method in re.findall(r"^([a-z0-9_-]+) \[", subprocess.run([KVLATHE, "specs"], capture_output=True, text=True, check=True).stdout,
                                 re.MULTILINE):
            self.assertIn(f".TP\n\\fB{method}\\fR\n", page)
        read = set()
        for path in [*ROOT.glob("src/**/*.cc"), *ROOT.glob("apps/kvlathe/**/*.cc")]:
            if not path.stem.endswith(("_test", "_fixture")):
                text = path.read_text()
                read |= set(re.findall(r'(?:getenv|[Vv]ariable|envname)\(\s*"([A-Z_]+)"', text))
        wanted = {name for name in read if not OTHERS.search(name)}
        self.assertGreaterEqual(wanted, {"KVLATHE_ISA", "KVLATHE_API_KEY", "HF_HOME", "NO_COLOR"})
        environment = page.split(".SH ENVIRONMENT")[1].split(".SH FILES")[0]
        self.assertEqual({name for name in wanted if name not in environment}, set())

    @unittest.skipUnless(shutil.which("man"), "man is not installed (scripts/bootstrap.sh --with-deploy)")
    def test_man_has_nothing_to_say_about_them(self):
        for path in sorted((self.folder / "man1").iterdir()):
            done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", path], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True, env={"LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "80",
                                                                         "PATH": "/usr/bin:/bin"})
            self.assertEqual((done.returncode, done.stderr), (0, ""), path.name)
        shown = subprocess.run(["man", "-M", self.folder, "kvlathe-run"], capture_output=True, text=True,
                               env={"LC_ALL": "C.UTF-8", "MANWIDTH": "100", "PATH": "/usr/bin:/bin"})
        self.assertRegex(shown.stdout, r"(?m)^ +-m, --model TEXT$")

    def test_a_folder_that_cannot_be_is_one_line(self):
        done = subprocess.run([KVLATHE, "manual", "/proc/none"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("/proc/none", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
