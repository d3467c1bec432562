"""The files of deploy/ against those who will read them: systemd's unit, Kubernetes's objects, and a Debian package that is
built, looked through and installed. What a machine has no tool for is skipped. Called as
deploy_files_test.py KVLATHE BUILD_DIRECTORY [TEST...]."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

KVLATHE, BUILD = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
ROOT = pathlib.Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
# Where scripts/bootstrap.sh --with-deploy puts it.
VALIDATOR = ROOT / ".cache/deploy/bin/kubernetes-validate"
HOW = "is not installed (scripts/bootstrap.sh --with-deploy)"
ADMINISTRATORS = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def needs(program):
    return unittest.skipUnless(shutil.which(program, path=ADMINISTRATORS), f"{program} {HOW}")


def run(*words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)


class FolderCase(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_deploy_"))
        self.addCleanup(shutil.rmtree, self.folder)


class UnitTest(FolderCase):
    def write_unit(self, change=lambda text: text):
        text = (DEPLOY / "systemd/kvlathe@.service").read_text()
        unit = self.folder / "kvlathe@8081.service"
        unit.write_text(change(text.replace("/usr/bin/kvlathe", str(KVLATHE))))
        return unit

    @needs("systemd-analyze")
    def test_systemd_reads_the_unit_and_would_start_it(self):
        done = run("systemd-analyze", "verify", self.write_unit())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        wrong = run("systemd-analyze", "verify", self.write_unit(lambda text: text.replace("DynamicUser=", "DynamicUsre=")))
        self.assertIn("DynamicUsre", wrong.stderr)

    @needs("systemd-analyze")
    def test_the_service_is_locked_in(self):
        system = self.folder / "usr/lib/systemd/system"
        system.mkdir(parents=True)
        shutil.copy(DEPLOY / "systemd/kvlathe@.service", system)
        done = run("systemd-analyze", f"--root={self.folder}", "--offline=yes", "security", "kvlathe@8081.service")
        level = re.search(r"Overall exposure level for kvlathe@8081.service: ([0-9.]+)", done.stdout)
        self.assertIsNotNone(level, done.stderr)
        self.assertLessEqual(float(level.group(1)), 2.0)

    def test_it_outlasts_a_drain_and_its_options_are_those_of_serve(self):
        text = (DEPLOY / "systemd/kvlathe@.service").read_text()
        command = re.search(r"^ExecStart=/usr/bin/kvlathe serve (.*)$", text, re.MULTILINE).group(1)
        stop = int(re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE).group(1))
        drain = sum(int(seconds) for seconds in re.findall(r"--(?:drain-delay|shutdown-timeout) (\d+)", command))
        self.assertGreater(stop, drain)
        self.assert_options_exist(command)

    def assert_options_exist(self, text):
        known = run(KVLATHE, "serve", "--help").stdout
        options = re.findall(r"--[a-z][a-z-]+", text)
        self.assertGreater(len(options), 2)
        for option in options:
            self.assertIn(option, known)

    def test_a_body_lies_in_a_buffer_of_the_balancer(self):
        buffer = int(re.search(r"KVLATHE_BUFFER-(\d+)", (DEPLOY / "haproxy/haproxy.cfg").read_text()).group(1))
        body = int(re.search(r"^KVLATHE_OPTIONS=--max-body-bytes (\d+)$", (DEPLOY / "systemd/kvlathe.env").read_text(),
                             re.MULTILINE).group(1))
        self.assertEqual(buffer, body + 65536)

    def test_what_the_other_files_give_serve_exists(self):
        self.assert_options_exist(re.sub(r"^ *#.*$", "", (DEPLOY / "kubernetes/kvlathe.yaml").read_text(), flags=re.MULTILINE))
        self.assert_options_exist((DEPLOY / "systemd/kvlathe.env").read_text())


class KubernetesTest(FolderCase):
    FILE = DEPLOY / "kubernetes/kvlathe.yaml"

    @unittest.skipUnless(VALIDATOR.exists(), f"kubernetes-validate {HOW}")
    def test_every_object_has_the_published_schema(self):
        done = run(VALIDATOR, "--strict", self.FILE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        wrong = self.folder / "wrong.yaml"
        for right, other in (("containerPort: 8080", "containerPort: many"), ("readinessProbe:", "readynessProbe:")):
            self.assertIn(right, self.FILE.read_text())
            wrong.write_text(self.FILE.read_text().replace(right, other))
            self.assertNotEqual(run(VALIDATOR, "--strict", wrong).returncode, 0, other)

    def test_a_pod_is_given_the_time_that_it_takes_to_drain(self):
        text = self.FILE.read_text()
        grace, pause, drain = (int(re.search(pattern, text).group(1)) for pattern in (
            r"terminationGracePeriodSeconds: (\d+)", r'\["sleep", "(\d+)"\]', r"--shutdown-timeout=(\d+)"))
        self.assertGreater(grace, pause + drain)


class PackageTest(FolderCase):
    @needs("dpkg-shlibdeps")
    def test_the_package_installs_what_runs_and_takes_it_away_again(self):
        done = run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        [package] = self.folder.glob("*.deb")
        self.assert_described(package)
        self.assert_contents(package)
        if os.geteuid() == 0:
            self.install(package)

    def assert_described(self, package):
        fields = run("dpkg-deb", "-f", package).stdout
        # Every library is one of Debian's, found by its name.
        for library in ("libdnnl2", "libabsl20220623", "libfmt9", "libc6", "libsentencepiece0"):
            self.assertRegex(fields, rf"Depends: .*\b{library}\b")
        self.assertEqual(run("dpkg-deb", "-I", package, "conffiles").stdout, "/etc/kvlathe/kvlathe.env\n")
        if shutil.which("lintian"):
            done = run("lintian", "--allow-root", "--fail-on", "error,warning", package)
            self.assertEqual(done.returncode, 0, done.stdout)

    def assert_contents(self, package):
        root = self.folder / "extracted"
        done = run("dpkg-deb", "-x", package, root)
        self.assertEqual(done.returncode, 0, done.stderr)
        for path in ("usr/share/kvlathe/calibration.txt", "usr/share/kvlathe/replicas.sh",
                     "usr/share/kvlathe/haproxy/haproxy.cfg", "usr/lib/systemd/system/kvlathe@.service",
                     "usr/share/doc/kvlathe/docs/deploy.md", "usr/share/doc/kvlathe/examples/kubernetes/kvlathe.yaml",
                     "usr/share/man/man1/kvlathe.1.gz", "usr/share/doc/kvlathe/copyright"):
            self.assertTrue((root / path).is_file(), path)
        self.assertEqual((root / "etc/kvlathe/kvlathe.env").stat().st_mode & 0o777, 0o600)
        # It finds the shared texts beside itself, whatever the source tree has: an empty one is no text.
        model = self.folder / "model"
        shutil.copytree(ROOT / "models/lathe-nano", model, ignore=shutil.ignore_patterns("*.txt"))
        compare = (root / "usr/bin/kvlathe", "compare", "-m", model, "--kv", "none", "--no-latency")
        done = run(*compare)
        self.assertEqual(done.returncode, 0, done.stderr)
        (root / "usr/share/kvlathe/sample.txt").write_text("")
        self.assertNotEqual(run(*compare).returncode, 0)

    def install(self, package):
        """A real dpkg, with a data base and a root of its own, where the dependencies are not."""
        root = self.folder / "root"
        for folder in ("var/lib/dpkg/updates", "var/lib/dpkg/info", "var/lib/dpkg/triggers"):
            (root / folder).mkdir(parents=True)
        for name in ("status", "available"):
            (root / "var/lib/dpkg" / name).touch()
        dpkg = ("dpkg", f"--root={root}", f"--log={self.folder}/dpkg.log", "--force-depends", "--force-script-chrootless")
        done = run(*dpkg, "-i", package)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("install ok installed", run("dpkg-query", f"--admindir={root}/var/lib/dpkg", "-s", "kvlathe").stdout)
        self.assertIn("kvlathe 0.", run(root / "usr/bin/kvlathe", "--version").stdout)
        done = run(*dpkg, "--purge", "kvlathe")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse((root / "usr/bin/kvlathe").exists())
        self.assertFalse((root / "etc/kvlathe").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
