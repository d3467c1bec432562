"""Calls of the kvlathe program, and how they are written down: without paths of this machine."""

import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import tempfile

from .store import ResultsError


class CallFailed(Exception):
    """The program said why in one line."""


class Interrupted(Exception):
    """Somebody asked us to end."""


def end_on_signals():
    """SIGINT and SIGTERM raise Interrupted, once: what ends because of it is not disturbed again."""
    def interrupt(_number, _frame):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise Interrupted
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


class Program:
    """`model` and `data` are paths as the program is called with, from the folder `root`."""

    def __init__(self, root, path, model, data):
        self.root, self.path, self.model, self.data = pathlib.Path(root), pathlib.Path(path), model, data

    def keep_copy(self, folder):
        """A program of this tree may be built anew while it measures; what runs is what was there at the start."""
        if not self.path.is_file():
            raise ResultsError(f"{self.path}: no such program; build it (cmake --build --preset release) or name one with --kvlathe")
        if self.path.is_relative_to(self.root):
            copy = self.root / folder / "kvlathe"
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            self.path = pathlib.Path(shutil.copy2(self.path, copy))

    def shown_model(self):
        return self.model if not os.path.isabs(self.model) else f"models/fetched/{pathlib.Path(self.model).name}"

    def hide_paths(self, text):
        if self.data:
            text = text.replace(self.data, "DATA")
        text = text.replace(str(self.path), "kvlathe").replace(self.model, self.shown_model())
        return text.replace(f"{self.root}/", "")

    def shown(self, arguments):
        """The command as a line of a shell; {kv} stays as it is, for any spec."""
        hidden = [self.hide_paths(argument) for argument in arguments]
        return " ".join(["kvlathe", *(a if a == "{kv}" else shlex.quote(a) for a in hidden)])

    def run(self, arguments):
        """For what takes long: what it says of its progress, and of what went wrong, is seen at once. A training that somebody asked to stop
        ends well and says that it goes on."""
        with tempfile.TemporaryFile() as out:
            child = subprocess.Popen([str(self.path), *arguments], cwd=self.root, stdin=subprocess.DEVNULL, stdout=out,
                                     start_new_session=True)
            status = wait_for(child)
            out.seek(0)
            if status != 0:
                raise CallFailed(reason(status, ""))
            if b"the same command goes on" in out.read():
                raise Interrupted

    def output(self, arguments, stdin=b""):
        """What the program writes. It is a group of its own, so that the keys of a terminal end us first, and then it."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            child = subprocess.Popen([str(self.path), *arguments], cwd=self.root, stdin=given, stdout=out, stderr=err,
                                     start_new_session=True)
            status = wait_for(child)
            for file in (out, err):
                file.seek(0)
            if status != 0:
                raise CallFailed(self.hide_paths(reason(status, err.read().decode(errors="replace"))))
            return out.read()


def wait_for(child):
    """Its status; whoever ends us while we wait ends it."""
    try:
        return child.wait()
    except BaseException:
        end(child)
        raise


def end(child):
    """All processes of the child's group, gently and then not."""
    for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
        try:
            os.killpg(child.pid, number)
            child.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            child.wait()
            return


def reason(status, errors):
    lines = [line for line in errors.splitlines() if line.strip() and "note:" not in line and not line.endswith(" left")]
    if status < 0:
        return f"ended by {signal.Signals(-status).name}" + (f": {lines[-1]}" if lines else "")
    return lines[-1].removeprefix("kvlathe: ") if lines else f"exit status {status}"
