"""The files of deploy/ against those who will read them: systemd's unit, Kubernetes's objects, and a Debian package that is
built, looked through and installed. What a machine has no tool for is skipped. Called as
deploy_files_test.py KVLATHE BUILD_DIRECTORY [TEST...]."""

import json
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
    UNITS = ("kvlathe@", "kvlathe-ranks@")

    def write_unit(self, change=lambda text: text, name="kvlathe@"):
        text = (DEPLOY / f"systemd/{name}.service").read_text()
        unit = self.folder / f"{name}8081.service"
        text = text.replace("/usr/bin/kvlathe", str(KVLATHE)).replace("/usr/share/kvlathe/ranks.sh", str(DEPLOY / "ranks.sh"))
        unit.write_text(change(text))
        return unit

    @needs("systemd-analyze")
    def test_systemd_reads_the_unit_and_would_start_it(self):
        for name in self.UNITS:
            done = run("systemd-analyze", "verify", self.write_unit(name=name))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        wrong = run("systemd-analyze", "verify", self.write_unit(lambda text: text.replace("DynamicUser=", "DynamicUsre=")))
        self.assertIn("DynamicUsre", wrong.stderr)

    @needs("systemd-analyze")
    def test_the_service_is_locked_in(self):
        system = self.folder / "usr/lib/systemd/system"
        system.mkdir(parents=True)
        for name in self.UNITS:
            shutil.copy(DEPLOY / f"systemd/{name}.service", system)
            done = run("systemd-analyze", f"--root={self.folder}", "--offline=yes", "security", f"{name}8081.service")
            level = re.search(rf"Overall exposure level for {name}8081.service: ([0-9.]+)", done.stdout)
            self.assertIsNotNone(level, done.stderr)
            self.assertLessEqual(float(level.group(1)), 2.0)

    def test_it_outlasts_a_drain_and_its_options_are_those_of_serve(self):
        for name in self.UNITS:
            text = (DEPLOY / f"systemd/{name}.service").read_text()
            command = re.search(r"^ExecStart=(?:/usr/bin/kvlathe serve|/usr/share/kvlathe/ranks.sh) (.*)$", text, re.MULTILINE).group(1)
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
        for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
            text = re.sub(r"^ *#.*$", "", path.read_text(), flags=re.MULTILINE)
            self.assert_options_exist(text.replace("ranks.sh --hosts", ""))
        self.assert_options_exist((DEPLOY / "systemd/kvlathe.env").read_text())


class RanksScriptTest(FolderCase):
    """deploy/ranks.sh with an mpirun that says what it was given."""

    def run_script(self, *words):
        mpirun = self.folder / "mpirun"
        mpirun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 3\n')
        mpirun.chmod(0o755)
        return run(DEPLOY / "ranks.sh", *words, env=dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}", KVLATHE=str(KVLATHE)))

    def test_there_are_as_many_ranks_as_the_options_say(self):
        for words, n in (((), 1), (("--tp", "2"), 2), (("--tp=2", "-m", "x", "--pp", "3"), 6)):
            done = self.run_script(*words)
            self.assertEqual((done.returncode, done.stderr), (3, ""))
            self.assertEqual(done.stdout.split(), ["-n", str(n), "--bind-to", "none", str(KVLATHE), "serve", *words])

    def test_machines_and_networks_are_those_of_mpirun(self):
        hosts = self.folder / "hosts"
        hosts.write_text("node-a slots=1\nnode-b slots=1\n")
        done = self.run_script("--hosts", hosts, "--network", "10.0.0.0/24", "--bind", "numa", "--tp", "2")
        self.assertIn(f"--bind-to numa --map-by numa --hostfile {hosts} --mca btl_tcp_if_include 10.0.0.0/24 ", done.stdout.replace("\n", " "))

    def test_wrong_words_are_refused(self):
        for words, needle in ((["--hosts", "/nonexistent"], "cannot be read"), (["--bind", "moon"], "numa"), (["--hosts"], "value"),
                              (["--tp", "two"], "numbers")):
            done = self.run_script(*words)
            self.assertEqual((done.returncode, done.stderr.count("\n"), done.stdout), (2, 1, ""))
            self.assertIn(needle, done.stderr)


# Of the kinds that are none of Kubernetes's own, the fields that their definitions have where these files go, and those they need
# (kubeflow.org/v2beta1 of the MPI Operator 0.6, leaderworkerset.x-k8s.io/v1 of LeaderWorkerSet 0.6). Templates of pods are checked as pods.
POD = object()
MPI_REPLICAS = {"replicas": int, "restartPolicy": ("Never", "OnFailure"), "template!": POD}
FOREIGN_KINDS = {
    ("kubeflow.org/v2beta1", "MPIJob"): {
        "slotsPerWorker": int, "runLauncherAsWorker": bool, "sshAuthMountPath": str, "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
        "launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
        "runPolicy": {"cleanPodPolicy": ("None", "Running", "All"), "backoffLimit": int, "ttlSecondsAfterFinished": int,
                      "activeDeadlineSeconds": int, "suspend": bool},
        "mpiReplicaSpecs!": {"Launcher!": MPI_REPLICAS, "Worker": MPI_REPLICAS}},
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): {
        "replicas": int, "startupPolicy": ("LeaderReady", "LeaderCreated"),
        "rolloutStrategy": {"type!": ("RollingUpdate",), "rollingUpdateConfiguration": {"maxUnavailable": int, "maxSurge": int, "partition": int}},
        "leaderWorkerTemplate!": {"size": int, "restartPolicy": ("RecreateGroupOnPodRestart", "None"), "leaderTemplate": POD,
                                  "workerTemplate!": POD}}}


def wrong_fields(schema, value, at, pods):
    """A line for each; adds the templates of pods to `pods`."""
    if schema is POD:
        pods.append(value)
    elif isinstance(schema, tuple):
        return [] if value in schema else [f"{at} is {value}"]
    elif isinstance(schema, type):
        return [] if type(value) is schema else [f"{at} is {value}"]
    elif not isinstance(value, dict):
        return [f"{at} has no fields"]
    else:
        fields = {name.rstrip("!"): name for name in schema}
        wrong = [f"{at} lacks {name}" for name, marked in fields.items() if marked.endswith("!") and name not in value]
        wrong += [f"{at} has {name}" for name in value if name not in fields]
        return wrong + [line for name in value if name in fields
                        for line in wrong_fields(schema[fields[name]], value[name], f"{at}.{name}", pods)]
    return []


class KubernetesTest(FolderCase):
    FILE = DEPLOY / "kubernetes/kvlathe.yaml"
    OF_RANKS = ("mpijob.yaml", "leaderworkerset.yaml")

    def objects(self, text):
        """Read by the validator's own Python, which has YAML."""
        program = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)"
        done = run(VALIDATOR.parent / "python", "-c", program, input=text)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def validated(self, thing):
        path = self.folder / "object.yaml"
        path.write_text(json.dumps(thing))
        return run(VALIDATOR, "--strict", path)

    def wrong_in(self, text):
        """Whatever is wrong with objects of which Kubernetes knows only some kinds."""
        wrong = []
        for thing in self.objects(text):
            schema, pods = FOREIGN_KINDS.get((thing["apiVersion"], thing["kind"])), []
            if schema is None:
                whole = [thing]
            else:
                wrong += wrong_fields({"apiVersion!": str, "kind!": str, "metadata!": {"name!": str, "labels": POD}, "spec!": schema}, thing,
                                      thing["kind"], [])
                wrong_fields(schema, thing["spec"], "", pods)
                whole = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **pod.get("metadata", {})}, "spec": pod["spec"]}
                         for pod in pods]
            wrong += [done.stderr + done.stdout for done in map(self.validated, whole) if done.returncode != 0]
        return wrong

    @unittest.skipUnless(VALIDATOR.exists(), f"kubernetes-validate {HOW}")
    def test_what_starts_ranks_has_the_fields_of_its_kinds(self):
        for name, wrongs in (("mpijob.yaml", (("cleanPodPolicy: Running", "cleanPodPolicy: Sometimes"), ("slotsPerWorker:", "slotsPerWorkers:"),
                                              ("Launcher:", "Leader:"), ("containerPort: 8080", "containerPort: many"))),
                             ("leaderworkerset.yaml", (("workerTemplate:", "followerTemplate:"), ("size: 2", "size: two"),
                                                       ("readinessProbe:", "readynessProbe:")))):
            text = (DEPLOY / "kubernetes" / name).read_text()
            self.assertEqual(self.wrong_in(text), [])
            for right, other in wrongs:
                self.assertIn(right, text)
                self.assertNotEqual(self.wrong_in(text.replace(right, other)), [], other)

    @unittest.skipUnless(VALIDATOR.exists(), f"kubernetes-validate {HOW}")
    def test_there_are_as_many_pods_as_ranks(self):
        jobs = {name: self.objects((DEPLOY / "kubernetes" / name).read_text())[0] for name in self.OF_RANKS}
        replicas = jobs["mpijob.yaml"]["spec"]["mpiReplicaSpecs"]
        size = jobs["leaderworkerset.yaml"]["spec"]["leaderWorkerTemplate"]["size"]
        n_ranks = [int(n) for name in self.OF_RANKS for n in re.findall(r"--tp=(\d+)", (DEPLOY / "kubernetes" / name).read_text())]
        self.assertEqual(n_ranks, [replicas["Launcher"]["replicas"] + replicas["Worker"]["replicas"], size])

    def test_a_group_is_given_the_time_that_it_takes_to_drain(self):
        for name in self.OF_RANKS:
            text = (DEPLOY / "kubernetes" / name).read_text()
            grace = int(re.search(r"terminationGracePeriodSeconds: (\d+)", text).group(1))
            self.assertGreater(grace, sum(int(n) for n in re.findall(r"--(?:drain-delay|shutdown-timeout)=(\d+)", text)))

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

    def test_an_installation_in_another_place_has_manual_pages_and_completions(self):
        done = run("cmake", "--install", BUILD, "--component", "Unspecified", "--prefix", self.folder / "usr")
        self.assertEqual(done.returncode, 0, done.stderr)
        for path in ("man/man1/kvlathe.1.gz", "bash-completion/completions/kvlathe", "zsh/site-functions/_kvlathe",
                     "fish/vendor_completions.d/kvlathe.fish"):
            self.assertTrue((self.folder / "usr/share" / path).is_file(), path)

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
        for path in ("usr/share/kvlathe/calibration.txt", "usr/share/kvlathe/replicas.sh", "usr/share/kvlathe/ranks.sh",
                     "usr/share/kvlathe/haproxy/haproxy.cfg", "usr/lib/systemd/system/kvlathe@.service",
                     "usr/share/doc/kvlathe/docs/deploy.md", "usr/share/doc/kvlathe/examples/kubernetes/kvlathe.yaml",
                     "usr/share/man/man1/kvlathe.1.gz", "usr/share/man/man1/kvlathe-bench-serve.1.gz",
                     "usr/share/doc/kvlathe/copyright"):
            self.assertTrue((root / path).is_file(), path)
        for shell, path in (("bash", "bash-completion/completions/kvlathe"), ("zsh", "zsh/vendor-completions/_kvlathe"),
                            ("fish", "fish/vendor_completions.d/kvlathe.fish")):
            self.assertEqual((root / "usr/share" / path).read_text(), run(KVLATHE, "completions", shell).stdout)
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


class ContainerTest(FolderCase):
    """The Containerfile, built and run with buildah on a Debian 12 that is made for it (scripts/container_check.sh)."""

    FILE = DEPLOY / "container/Containerfile"

    def test_what_it_copies_exists_and_its_image_is_that_of_kubernetes(self):
        text = self.FILE.read_text().replace("\\\n", " ")
        copied = [word for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for word in line.split()]
        self.assertGreater(len(copied), 10)
        for path in copied:
            self.assertTrue((ROOT / path).exists(), path)
        user = re.search(r"^USER (\d+):\1$", text, re.MULTILINE).group(1)
        self.assertIn(f"runAsUser: {user}\n", (DEPLOY / "kubernetes/kvlathe.yaml").read_text())
        served = re.search(r"^CMD (\[\"serve.*\])$", text, re.MULTILINE).group(1)
        known = run(KVLATHE, "serve", "--help").stdout
        for option in [word for word in json.loads(served) if word.startswith("--")]:
            self.assertIn(option, known)

    @needs("buildah")
    @needs("mmdebstrap")
    @needs("dpkg-shlibdeps")
    def test_the_image_is_built_and_what_is_in_it_runs(self):
        done = run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        [package] = self.folder.glob("*.deb")
        done = run(ROOT / "scripts/container_check.sh", "--package", package)
        if done.returncode == 77:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.endswith("PASSED\n"), done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
