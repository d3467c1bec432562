"""Files that measurements need and data sets do not have as such: texts of a size, unpacked tasks, calibrations.

Each is made when the first measurement needs it, with the command that makes it by hand.
"""

import bz2
import gzip
import json
import os
import pathlib
from dataclasses import dataclass
from typing import Callable

from .store import ResultsError


@dataclass(frozen=True)
class Prepared:
    """`path` is relative to the tree. `make` takes the program and a path to write, and returns the command by hand, in
    which {path} stands for the file."""
    path: str
    make: Callable
    needs: tuple = ()  # others, made before


def head_by_tokens(source, n_windows, n_window):
    """So much of a text's beginning as fills `n_windows` windows and no further one."""
    def make(program, path):
        text = (pathlib.Path(program.root) / source).read_bytes()
        goal, n_bytes = n_windows * n_window + n_window // 4, 4 * n_windows * n_window
        for _ in range(8):
            cut = len(text) if n_bytes >= len(text) else text.rfind(b"\n", 0, int(n_bytes)) + 1
            n_tokens = len(json.loads(program.output(["tokenize", "-m", program.model, "--json"], text[:cut]))["ids"])
            if n_tokens < goal and cut == len(text):
                break
            if n_windows * n_window <= n_tokens < n_windows * n_window + n_window // 2:
                break
            n_bytes = n_bytes * goal / max(1, n_tokens)
        path.write_bytes(text[:cut])
        return f"head -c {cut} {source} > {{path}}"
    return make


def heads_of(sources, n_bytes):
    def make(_program, path):
        path.write_bytes(b"".join(pathlib.Path(source).read_bytes()[:n_bytes] for source in sources))
        return f"head -qc {n_bytes} {' '.join(map(str, sources))} > {{path}}"
    return make


def unpacked(source):
    def make(_program, path):
        is_gzip = str(source).endswith(".gz")
        path.write_bytes((gzip if is_gzip else bz2).decompress(pathlib.Path(source).read_bytes()))
        return f"{'gzip' if is_gzip else 'bzip2'} -dc {source} > {{path}}"
    return make


def programs_of(source):
    """The problems of HumanEval with their solutions, as one file of Python."""
    def make(_program, path):
        with gzip.open(source, "rt", encoding="utf-8") as lines:
            programs = [json.loads(line) for line in lines]
        path.write_text("\n\n".join(of["prompt"] + of["canonical_solution"] for of in programs), encoding="utf-8")
        return f"zcat {source} | jq -rs 'map(.prompt + .canonical_solution) | join(\"\\n\\n\")' > {{path}}"
    return make


def calibrated(arguments, text=None, scored=None):
    """Statistics for --basis; a text that shares a line with the one to be scored is refused."""
    def make(program, path):
        if text is not None:
            shared = shared_line(program.root / text, program.root / scored)
            if shared:
                raise ResultsError(f"{text} and {scored} have a line in common, so one cannot calibrate for the other: {shared[:60]}")
        command = ["calibrate", "-m", program.model, *arguments, "-o"]
        program.output([*command, str(path)])
        return program.shown(command) + " {path}"
    return make


def shared_line(a, b):
    """A line of 60 characters or more that both texts have, or None."""
    lines = [{line.strip() for line in pathlib.Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
              if len(line.strip()) >= 60} for path in (a, b)]
    return min(lines[0] & lines[1], default=None)


def make_ready(prepared, program, store):
    """Makes the file unless it is there and known; a file is there as a whole or not at all."""
    for need in prepared.needs:
        make_ready(need, program, store)
    path = pathlib.Path(program.root) / prepared.path
    if path.exists() and prepared.path in store.files:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name("part-" + path.name)
    command = prepared.make(program, part)
    os.replace(part, path)
    store.files[prepared.path] = program.hide_paths(command.replace("{path}", prepared.path))
    store.save()
