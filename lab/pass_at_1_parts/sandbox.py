"""Runs programs of Python that nobody has read: one process each, without network, with limits, in an empty folder (jail.py)."""

import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import subprocess
import sys
import tempfile

JAIL = pathlib.Path(__file__).with_name("jail.py")
INSIDE_ID = 1000  # jail.py's
NOBODY = 65534  # who it is outside, where root runs it


class SandboxError(Exception):
    """There is no sandbox here, and so nothing is run; in one line."""


class Verdict(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclasses.dataclass(frozen=True)
class Limits:
    cpu_seconds: int = 10
    wall_seconds: float = 30.0  # longer, so that what else the machine does makes no program fail
    memory_bytes: int = 1 << 30  # of address space, each process
    file_bytes: int = 1 << 20  # each file; all together 4 MiB
    processes: int = 4  # those of the sandbox are up to three


@dataclasses.dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    reason: str = ""  # why it failed


def has_nobody():
    """Whether this is root where there is a user `nobody` too, which in a namespace of one user is not so."""
    ranges = [list(map(int, line.split())) for line in pathlib.Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()]
    return os.getuid() == 0 and any(begin <= NOBODY < begin + n for begin, _, n in ranges)


def map_users(pid):
    """User INSIDE_ID of the namespace that `pid` has made is whoever runs this, or nobody where that is root; then root is root
    there too, until the program starts."""
    folder, with_nobody = pathlib.Path(f"/proc/{pid}"), has_nobody()
    if not with_nobody:
        (folder / "setgroups").write_text("deny", encoding="ascii")
    for name, own in (("uid_map", os.getuid()), ("gid_map", os.getgid())):
        lines = f"0 {own} 1\n{INSIDE_ID} {NOBODY} 1\n" if with_nobody else f"{INSIDE_ID} {own} 1\n"
        (folder / name).write_text(lines, encoding="ascii")


def last_report(read_end):
    """Of the objects that stand in the pipe all fields together; what is no object counts for nothing."""
    os.set_blocking(read_end, False)
    fields = {}
    with contextlib.suppress(BlockingIOError):
        for line in os.read(read_end, 1 << 16).replace(b"}{", b"}\n{").splitlines():
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                fields |= said if isinstance(said, dict) else {}
    return fields


class Sandbox:
    """Refuses where the machine has no namespaces for it."""

    def __init__(self, limits=Limits()):
        self.limits = limits
        outcome = self.run("pass\n")
        if outcome.verdict is not Verdict.PASSED:
            raise SandboxError(f"the sandbox does not even let an empty program pass ({outcome.verdict.value}: {outcome.reason})")

    def run(self, program):
        """The outcome of `program`, which passes if it comes to its end."""
        with tempfile.TemporaryFile() as source:
            source.write(program.encode(errors="surrogatepass"))
            source.seek(0)
            (ready, ready_given), (go_given, go), (report, report_given) = os.pipe(), os.pipe(), os.pipe()
            given = (ready_given, go_given, report_given)
            try:
                child = self.start(source, given)
            finally:
                for end in given:
                    os.close(end)
            try:
                if os.read(ready, 1) == b".":
                    map_users(child.pid)
                    os.write(go, b".")
                return self.outcome(child, report)
            finally:
                child.kill()  # and with it all that it started
                child.wait()
                for end in (ready, go, report):
                    os.close(end)

    def start(self, source, given):
        prefix = os.path.realpath(sys.base_prefix)
        return subprocess.Popen(
            [sys.executable, "-I", "-B", "-S", str(JAIL), json.dumps(dataclasses.asdict(self.limits)), prefix, *map(str, given)],
            stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=given, cwd="/", env={}, start_new_session=True)

    def outcome(self, child, report_in):
        try:
            child.wait(self.limits.wall_seconds)
        except subprocess.TimeoutExpired:
            return Outcome(Verdict.TIMED_OUT, f"{self.limits.wall_seconds:g} s")
        said = last_report(report_in)
        if "jail" in said or child.returncode != 0:
            why = said.get("jail", f"it ended with status {child.returncode}")
            raise SandboxError(f"no sandbox, so no program is run: {why}. It needs user namespaces (sysctl user.max_user_namespaces, and "
                               "kernel.unprivileged_userns_clone on older Debian; in a container, a seccomp profile that allows unshare and mount)")
        if "killed" in said:
            return Outcome(Verdict.TIMED_OUT, said["killed"])
        if said.get("passed") is True and "error" not in said:
            return Outcome(Verdict.PASSED)
        return Outcome(Verdict.FAILED, said.get("error", "it left before its tests had run"))
