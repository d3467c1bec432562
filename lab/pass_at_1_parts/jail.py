"""Runs one program of Python where it can reach nothing: a script that sandbox.py starts, once for each program.

It makes namespaces of its own for users, files, processes, networks and messages between processes, whose root is an empty file
system in memory with the folders of Python to read and one of 4 MiB to write, and starts Python there as a user without
rights and with limits. Whatever cannot be had ends it, before the program is looked at:

  jail.py LIMITS PREFIX READY_FD GO_FD REPORT_FD < PROGRAM

LIMITS is a JSON object (sandbox.Limits), PREFIX the folder of Python. When the namespaces are there it writes to READY_FD, and
goes on when whoever started it has mapped its users and says so on GO_FD. What became of the program is one JSON object
on REPORT_FD: {"passed": true}, {"error": TEXT}, or {"jail": TEXT} where it never ran.
"""

import ctypes
import json
import os
import pathlib
import resource
import signal
import sys

# Of linux/sched.h, sys/mount.h and linux/prctl.h.
NEW_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000  # mounts, names, messages, users, processes, network
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MS_NOEXEC, MS_NOATIME, MS_NODIRATIME, MS_RELATIME = 8, 1024, 2048, 1 << 21
MNT_DETACH, PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, SYS_PIVOT_ROOT = 2, 1, 38, 155
KEPT_FLAGS = {os.ST_NOSUID: MS_NOSUID, os.ST_NODEV: MS_NODEV, os.ST_NOEXEC: MS_NOEXEC, os.ST_NOATIME: MS_NOATIME,
              os.ST_NODIRATIME: MS_NODIRATIME, os.ST_RELATIME: MS_RELATIME}

INSIDE_ID = 1000  # of the program's user and group, in the namespace
STAGE = "/tmp"  # where the new root is put together; in the jail's own namespace alone
WORK, WORK_BYTES = "/work", 4 << 20
SYSTEM_FOLDERS = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

# What Python runs: the program from standard input, whose own output nobody reads. Only a program that came to its end is
# reported as passed, which leaving by sys.exit or os._exit is not.
RUNNER = """
import json, os, sys
def run(report):
    try:
        exec(compile(sys.stdin.buffer.read(), "program.py", "exec"), {"__name__": "__main__"})
        said = {"passed": True}
    except BaseException as error:
        said = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    os.write(report, json.dumps(said).encode())
    os._exit(0)
run(int(sys.argv.pop()))
"""

libc = ctypes.CDLL(None, use_errno=True)


class JailError(Exception):
    """What could not be had, in one line."""


def call(what, result):
    if result < 0:
        raise JailError(f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source, target, kind=None, flags=0, data=None):
    encode = lambda text: None if text is None else str(text).encode()
    call(f"mounting {target}", libc.mount(encode(source), encode(target), encode(kind), ctypes.c_ulong(flags), encode(data)))


def show_read_only(path, root):
    """`path` of the outside at the same place under `root`, to be read and run."""
    path, place = pathlib.Path(path), pathlib.Path(f"{root}{path}")
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        place.symlink_to(os.readlink(path))
        return
    if path.is_dir():
        place.mkdir(exist_ok=True)
    else:
        place.touch()
    # The flags of a mount that the outside made cannot be taken off it, so they are given again.
    kept = sum(flag for bit, flag in KEPT_FLAGS.items() if os.statvfs(path).f_flag & bit)
    mount(path, place, flags=MS_BIND | MS_REC)
    mount(None, place, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def enter_new_root(prefix):
    """Python, a folder to write, and nothing else."""
    mount(None, "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    for folder in SYSTEM_FOLDERS:
        if os.path.lexists(folder):
            show_read_only(folder, STAGE)
    if not prefix.startswith("/usr/") and prefix != "/usr":
        show_read_only(prefix, STAGE)
    os.mkdir(f"{STAGE}/dev")
    for device in DEVICES:
        place = pathlib.Path(f"{STAGE}{device}")
        place.touch()
        mount(device, place, flags=MS_BIND)
    os.mkdir(f"{STAGE}{WORK}")
    mount("tmpfs", f"{STAGE}{WORK}", "tmpfs", MS_NOSUID | MS_NODEV, f"size={WORK_BYTES},nr_inodes=1000,mode=0777")
    os.chdir(STAGE)
    call("pivot_root", libc.syscall(SYS_PIVOT_ROOT, b".", b"."))  # the old root lies on top of the new one, until the next line
    call("leaving the old root", libc.umount2(b".", MNT_DETACH))
    os.chdir(WORK)
    mount(None, "/", flags=MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, data="size=1m,mode=0755")


def end_with_parent():
    call("PR_SET_PDEATHSIG", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def become_nobody():
    """No rights from here on; the kernel counts processes of root's own user without a limit."""
    if os.getuid() != INSIDE_ID:
        os.setgroups([])
        os.setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
        os.setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
    call("PR_SET_NO_NEW_PRIVS", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def set_limits(limits):
    for what, value in ((resource.RLIMIT_CPU, limits["cpu_seconds"]), (resource.RLIMIT_AS, limits["memory_bytes"]),
                        (resource.RLIMIT_FSIZE, limits["file_bytes"]), (resource.RLIMIT_NPROC, limits["processes"]),
                        (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (value, value))


def run_program(limits, prefix, report):
    """Becomes Python with the program."""
    sink = os.open("/dev/null", os.O_RDWR)
    for output in (1, 2):
        os.dup2(sink, output)
    os.set_inheritable(report, True)
    end_with_parent()
    set_limits(limits)
    python = f"{prefix}/bin/python3"
    os.execve(python, [python, "-I", "-B", "-S", "-c", RUNNER, str(report)], {"HOME": WORK, "TMPDIR": WORK, "PYTHONHASHSEED": "0"})


def wait_for(pid):
    """How the process `pid` ended; others whose parents are gone are waited for too."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def be_first_process(limits, prefix, report):
    """Process 1 of the namespace, with which all others end. It starts the program and waits for it."""
    end_with_parent()  # and once more, since who changes users forgets it
    enter_new_root(prefix)
    become_nobody()
    end_with_parent()
    child = os.fork()
    if child == 0:
        guarded(report, run_program, limits, prefix, report)
    status = wait_for(child)
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        say(report, {"killed": "its processor time is used up"})
    elif status != 0:
        say(report, {"error": f"ended by {signal.Signals(-status).name}" if status < 0 else f"left with status {status}"})
    else:
        say(report, {})


def say(report, what):
    os.write(report, (json.dumps(what) + "\n").encode())


def guarded(report, function, *arguments):
    """Calls it and ends the process; what it cannot have is reported."""
    try:
        function(*arguments)
    except (JailError, OSError, ValueError) as error:
        say(report, {"jail": str(error)})
        os._exit(1)
    os._exit(0)


def main(limits, prefix, ready, go, report):
    def begin():
        call("namespaces of its own", libc.unshare(NEW_NAMESPACES))
        end_with_parent()
        os.write(ready, b".")
        if os.read(go, 1) != b".":
            raise JailError("nobody mapped its users")
        os.close(ready)
        os.close(go)
        child = os.fork()
        if child == 0:
            guarded(report, be_first_process, json.loads(limits), prefix, report)
        wait_for(child)
    guarded(report, begin)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
