"""Which program ran where and when: a commit, a processor and a day, no names of machines or people."""

import datetime
import hashlib
import os
import pathlib
import re
import subprocess

from .store import ResultsError

INSTRUCTIONS = (("avx2", "AVX2"), ("avx512_bf16", "AVX-512 BF16"), ("amx_bf16", "AMX"))


def git(root, *arguments):
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ResultsError("git is not installed; name the program's commit with --commit") from None
    if done.returncode != 0:
        raise ResultsError(f"{root} is no git tree; name the program's commit with --commit")
    return done.stdout.strip()


def commit_of(root, commit, allow_dirty):
    """The commit to record, and whether the sources differ from it. One that is given is believed."""
    if commit:
        return commit, False
    is_dirty = git(root, "status", "--porcelain", "--", "src", "apps") != ""
    if is_dirty and not allow_dirty:
        raise ResultsError("src/ or apps/ differ from the commit, so results could not be traced to one; commit, name the "
                           "commit that the program was built from with --commit, or give --allow-dirty, which is recorded")
    return git(root, "rev-parse", "--short", "HEAD"), is_dirty


def machine():
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    name = re.search(r"^model name\s*: *(.*)$", text, re.M)
    flags = re.search(r"^flags\s*: *(.*)$", text, re.M)
    flags = set(flags[1].split()) if flags else set()
    instructions = [shown for flag, shown in INSTRUCTIONS if flag in flags]
    forced = os.environ.get("KVLATHE_ISA")
    return {"machine": name[1] if name else "unknown",
            "instructions": f"KVLATHE_ISA={forced}" if forced else ", ".join(instructions),
            "cores": len(os.sched_getaffinity(0))}


def run_facts(commit, is_dirty):
    facts = {"commit": commit, **machine(), "date": datetime.date.today().isoformat()}
    return {**facts, "dirty": True} if is_dirty else facts


def model_facts(path, name, shown):
    """Of the weights, what tells them from other ones."""
    path = pathlib.Path(path)
    weights = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    weights = [file for file in weights if not file.name.endswith("basis.safetensors")]
    digest, n_bytes = hashlib.sha256(), 0
    for file in weights:
        with open(file, "rb") as opened:
            while piece := opened.read(1 << 20):
                digest.update(piece)
                n_bytes += len(piece)
    return {"name": name, "file": shown, "bytes": n_bytes, "sha256": digest.hexdigest()}
