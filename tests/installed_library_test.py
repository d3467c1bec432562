#!/usr/bin/env python3
"""The library as another program finds it: installed into the build folder, found by CMake and by pkg-config.

usage: installed_library_test.py KVLATHE MODEL_DIRECTORY BUILD_DIRECTORY CXX_COMPILER [TEST...]
"""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

KVLATHE, MODEL, BUILD, COMPILER = (pathlib.Path(argument) for argument in sys.argv[1:5])
ROOT = pathlib.Path(__file__).resolve().parent.parent
PREFIX = BUILD / "installed"
CACHE, PROMPT = "kivi(bits=4,group=64)", "It was a dark"


def run(*command, **environment):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, check=False,
                          env={**os.environ, "XDG_CACHE_HOME": str(PREFIX / "cache"), **environment})


class InstalledLibraryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(PREFIX, ignore_errors=True)
        installed = run("cmake", "--install", BUILD, "--prefix", PREFIX)
        assert installed.returncode == 0, installed.stderr

    def assert_runs(self, program, **environment):
        done = run(program, MODEL, CACHE, PROMPT, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        same = run(PREFIX / "bin/kvlathe", "run", "-m", MODEL, "--kv", CACHE, "-p", PROMPT, "-n", 32, "--temp", 0)
        self.assertEqual(same.returncode, 0, same.stderr)
        self.assertEqual(PROMPT + done.stdout, same.stdout.removesuffix("\n"))
        self.assertGreater(len(done.stdout), 20)
        self.assertIn("the cache took ", done.stderr)
        refused = run(program, MODEL, "fcd", PROMPT, **environment)
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertIn("unknown stage 'fcd'", refused.stderr)

    def test_example_by_cmake(self):
        source = ROOT / "examples"
        self.assertLessEqual(len((source / "generate.cc").read_text(encoding="utf-8").splitlines()), 40)
        folder = PREFIX / "examples"
        for step in (("cmake", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={PREFIX}", f"-DCMAKE_CXX_COMPILER={COMPILER}"),
                     ("cmake", "--build", folder)):
            done = run(*step)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assert_runs(folder / "generate")

    def test_flags_of_pkg_config(self):
        library = next(PREFIX.glob("lib*/**/kvlathe.pc")).parent
        flags = run("pkg-config", "--cflags", "--libs", "kvlathe", PKG_CONFIG_PATH=str(library))
        self.assertEqual(flags.returncode, 0, flags.stderr)
        program = PREFIX / "generate_by_pkg_config"
        done = run(COMPILER, ROOT / "examples/generate.cc", "-o", program, *flags.stdout.split())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_runs(program, LD_LIBRARY_PATH=str(library.parent))

    def test_headers_are_few_and_stand_alone(self):
        headers = sorted(path.name for path in (PREFIX / "include").rglob("*") if path.is_file())
        self.assertEqual(headers, ["generator.h", "text_model.h"])
        # Nothing of the tree is seen from outside but what the headers declare.
        library = next(PREFIX.glob("lib*/**/libkvlathe.so"))
        names = run("nm", "--dynamic", "--defined-only", "--demangle", library).stdout
        ours = {line.split(" ", 2)[2] for line in names.splitlines() if line.split(" ", 2)[-1].startswith("kvlathe::")}
        self.assertIn("kvlathe::runtime::Generator::Step()", ours)
        self.assertEqual({name for name in ours if not name.startswith("kvlathe::runtime::")}, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[5:], verbosity=2)
