"""Servers that are started for a measurement and ended behind it."""

import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request

from results_parts import program


class ServerFailed(Exception):
    """Why a server did not come up, in one line."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A process that answers /health once it can work. It is ended however the block ends."""

    def __init__(self, command, port, log, patience):
        self.command, self.port, self.log, self.patience = command, port, pathlib.Path(log), patience
        self.url = f"http://127.0.0.1:{port}"

    def __enter__(self):
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as log:
            try:
                self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            except OSError as error:
                raise ServerFailed(f"{self.command[0]}: {error.strerror}") from None
        try:
            self.wait()
        except BaseException:
            program.end(self.child)
            raise
        return self

    def __exit__(self, *_):
        program.end(self.child)

    def wait(self):
        deadline = time.monotonic() + self.patience
        while not self.is_healthy():
            if self.child.poll() is not None:
                raise ServerFailed(program.reason(self.child.returncode, self.log.read_text(errors="replace")))
            if time.monotonic() > deadline:
                raise ServerFailed(f"not healthy after {self.patience} s; its log is {self.log}")
            time.sleep(0.1)

    def is_healthy(self):
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False
