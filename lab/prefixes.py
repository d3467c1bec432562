#!/usr/bin/env python3
"""What the prefix store saves: time to the first token of questions about one document, and of the turns of one conversation.

  lab/prefixes.py run MODEL [--out FILE] [--kv SPEC]... [--tokens N] [--questions N] [--turns N] [--kvlathe PROGRAM]
  lab/prefixes.py zipf MODEL [--out FILE] [--kv SPEC]... [--documents N] [--tokens N] [--requests N] [--held N] [--kvlathe PROGRAM]
  lab/prefixes.py table FILE

MODEL is what `kvlathe serve -m` takes. Each cache gets three servers one after the other: with the store, with --prefix-memory 0, and
with --prefix-dir, which is ended and started again before every request, so that all it knows is on disk. All are asked the same, one
request at a time, greedily and streamed: --questions questions behind a document of about --tokens tokens (the first of
share/sample.txt), and a conversation of --turns turns, whose answers are sent back as they came. Whatever was measured is in FILE at
once; the same command goes on.

`zipf` asks for --documents documents of about --tokens tokens, drawn --requests times by Zipf's law, with as much memory as --held of
them take uncompressed: how many prompt tokens were found, and how soon answers began.
"""

import argparse
import http.client
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from results_parts import provenance, store
from serving_parts.servers import Server, ServerFailed, free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHES = ("none", "lathe(ratio=8)")
QUESTIONS = ("What is this text about?", "Who is named first?", "Which places are named?", "What happens at the end?",
             "Which year is named?", "What is the mood of the text?", "Name one thing that is described.", "Who speaks?",
             "Which numbers are named?", "Give the text a title.")
TURNS = ("Tell me about a river.", "Where does it begin?", "Which animals live there?", "What do people build beside it?",
         "Which colour has the water?")
N_ANSWER = 32  # tokens


class RequestFailed(Exception):
    """Why a server gave no answer, in one line."""


def ask(port, messages, max_tokens):
    """Answers (text, seconds to the first of it, usage)."""
    body = json.dumps({"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True,
                       "stream_options": {"include_usage": True}})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    begin, first, text, usage = time.monotonic(), None, "", None
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RequestFailed(f"{answer.status}: {answer.read().decode(errors='replace')[:300]}")
    for line in answer:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        content = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        if content and first is None:
            first = time.monotonic() - begin
        text += content
    connection.close()
    if first is None or usage is None:
        raise RequestFailed("an answer without text or usage")
    return text, first, usage


def document(served, n_tokens):
    """The first characters of the sample that make about n_tokens."""
    text = (ROOT / "share" / "sample.txt").read_text(encoding="utf-8")
    sample = text[:4000]
    _, _, usage = served.ask([{"role": "user", "content": sample}], 1)
    return text[:round(len(sample) * n_tokens / usage["prompt_tokens"])]


class Served:
    """A server that is there from the first request on, or anew for each. Use as a context manager."""

    def __init__(self, command, log, patience, restarts):
        self.command, self.log, self.patience, self.restarts = command, log, patience, restarts
        self.server = None

    def __enter__(self):
        return self

    def __exit__(self, *how):
        if self.server is not None:
            self.server.__exit__(*how)
        self.server = None

    def ask(self, messages, max_tokens):
        if self.restarts:
            self.__exit__(None, None, None)
        if self.server is None:
            port = free_port()
            server = Server([*self.command, "--port", str(port)], port, self.log, self.patience)
            self.server = server.__enter__()  # which computes a token to say that it is there
        return ask(self.server.port, messages, max_tokens)


def disk_use(kvlathe, folder):
    """What `kvlathe prefix stat` says of the only cache in the folder."""
    text = subprocess.run([kvlathe, "prefix", "stat", str(folder), "--json"], capture_output=True, check=True, text=True).stdout
    return next(iter(json.loads(text)["kv"].values()))


def entry(seconds, usage):
    return {"seconds": seconds, "prompt_tokens": usage["prompt_tokens"], "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]}


def measure(served, options):
    text = document(served, options.tokens)
    questions, turns, messages = [], [], []
    for i in range(options.questions):
        content = f"{text}\n\n{QUESTIONS[i % len(QUESTIONS)]}"
        questions.append(entry(*served.ask([{"role": "user", "content": content}], N_ANSWER)[1:]))
    for i in range(options.turns):
        messages.append({"role": "user", "content": TURNS[i % len(TURNS)]})
        said, seconds, usage = served.ask(messages, N_ANSWER)
        messages.append({"role": "assistant", "content": said})
        turns.append(entry(seconds, usage))
    return {"questions": questions, "turns": turns}


def begin(options, names):
    """Path and data of the results file, which has the settings of these names, and where this run comes from."""
    out = pathlib.Path(options.out)
    settings = {"model": pathlib.Path(options.model).name, **{name: getattr(options, name) for name in names}}
    commit, is_dirty = provenance.commit_of(ROOT, options.commit, options.allow_dirty)
    data = {"settings": settings, "cells": {}}
    if out.exists():
        data = json.loads(out.read_text(encoding="utf-8"))
        if data.get("settings") != settings:
            raise store.ResultsError(f"{out} has results of other settings ({data.get('settings')}); move it away or name another --out")
    return out, data, provenance.run_facts(commit, is_dirty)


def bytes_a_token(options):
    """Of a 16-bit cache."""
    text = subprocess.run([options.kvlathe, "inspect", "-m", options.model, "--kv", "none", "--json"], capture_output=True, check=True,
                          text=True).stdout
    cache = find_cache(json.loads(text))
    return cache["total"] / cache["kv_fraction"] / cache["context"]


def find_cache(node):
    """The object that has the bytes of a cache, wherever it stands."""
    if isinstance(node, dict) and {"total", "kv_fraction", "context"} <= node.keys():
        return node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return next((found for child in children if (found := find_cache(child))), None)


def draw_by_zipf(n_documents, n_requests):
    draw = random.Random(7)
    return draw.choices(range(n_documents), [1 / rank for rank in range(1, n_documents + 1)], k=n_requests)


def run_zipf(options):
    out, data, facts = begin(options, ("documents", "tokens", "requests", "held"))
    n_bytes = round(bytes_a_token(options) * options.tokens * options.held)
    text = (ROOT / "share" / "sample.txt").read_text(encoding="utf-8")
    for kv in options.kv or ("none", "kivi(bits=4)", "lathe(ratio=8)"):
        if kv in data["cells"]:
            continue
        print(f"{kv} ...", file=sys.stderr, flush=True)
        # What a request needs while it is read comes on top.
        command = [options.kvlathe, "serve", "-m", options.model, "--kv", kv, "--kv-memory", str(n_bytes + n_bytes // options.held * 4),
                   "--prefix-memory", str(n_bytes)]
        with Served(command, out.with_suffix(".log"), options.patience, restarts=False) as served:
            n_letters = len(document(served, options.tokens))
            entries = []
            for number in draw_by_zipf(options.documents, options.requests):
                begin_at = number * 997 % max(1, len(text) - n_letters)
                content = f"Document {number}. {text[begin_at:begin_at + n_letters]}\n\n{QUESTIONS[len(entries) % len(QUESTIONS)]}"
                entries.append(entry(*served.ask([{"role": "user", "content": content}], 4)[1:]))
        data["cells"][kv] = {"requests": entries, "run": facts}
        store.write_whole(out, json.dumps(data, indent=1) + "\n")
    print(zipf_table(data))


def zipf_table(data):
    lines = ["| cache | found of the prompt tokens | time to the first token: median | mean | 90% |", "|---|---|---|---|---|"]
    for kv, cell in data["cells"].items():
        entries = cell["requests"]
        found = sum(e["cached_tokens"] for e in entries) / sum(e["prompt_tokens"] for e in entries)
        seconds = sorted(e["seconds"] for e in entries)
        lines.append(f"| `{kv}` | {found:.0%} | {statistics.median(seconds):.3g} s | {statistics.mean(seconds):.3g} s "
                     f"| {seconds[len(seconds) * 9 // 10]:.3g} s |")
    return "\n".join(lines)


def run(options):
    out, data, facts = begin(options, ("tokens", "questions", "turns"))
    for kv in options.kv or CACHES:
        for name in ("stored", "anew", "restarted"):
            cell = data["cells"].setdefault(kv, {})
            if name in cell:
                continue
            print(f"{kv}, {name} ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                arguments = {"stored": (), "anew": ("--prefix-memory", "0"), "restarted": ("--prefix-dir", folder)}[name]
                command = [options.kvlathe, "serve", "-m", options.model, "--kv", kv, *arguments]
                with Served(command, out.with_suffix(".log"), options.patience, restarts=name == "restarted") as served:
                    measured = measure(served, options)
                if name == "restarted":
                    measured["disk"] = disk_use(options.kvlathe, folder)
                cell[name] = {**measured, "run": facts}
            store.write_whole(out, json.dumps(data, indent=1) + "\n")
    print(table(data))


def median(entries, key="seconds"):
    return statistics.median(e[key] for e in entries)


def table(data):
    """Medians of all questions but the first, of which the store knows nothing, and of the turns from the fifth on."""
    lines = ["| cache | question anew | stored | share | on disk | share | turn anew | stored | share | on disk | share "
             "| tokens of a question, and stored |", "|---" * 12 + "|"]
    for kv, cell in data["cells"].items():
        if not {"stored", "anew", "restarted"} <= cell.keys():
            continue
        fields = []
        for part, first in (("questions", 1), ("turns", 4)):
            anew, stored, restarted = (median(cell[name][part][first:]) for name in ("anew", "stored", "restarted"))
            fields += [f"{anew:.3g} s", f"{stored:.3g} s", f"{stored / anew:.2f}", f"{restarted:.3g} s", f"{restarted / anew:.2f}"]
        last = cell["stored"]["questions"][-1]
        lines.append(f"| `{kv}` | {' | '.join(fields)} | {last['prompt_tokens']}, {last['cached_tokens']} |")
    return "\n".join(lines)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("model")
    runs.add_argument("--out", default="build/prefixes.json")
    runs.add_argument("--kv", action="append")
    runs.add_argument("--tokens", type=int, default=4096)
    runs.add_argument("--questions", type=int, default=10)
    runs.add_argument("--turns", type=int, default=20)
    zipf = commands.add_parser("zipf")
    zipf.add_argument("model")
    zipf.add_argument("--out", default="build/zipf.json")
    zipf.add_argument("--kv", action="append")
    zipf.add_argument("--documents", type=int, default=200)
    zipf.add_argument("--tokens", type=int, default=2000)
    zipf.add_argument("--requests", type=int, default=600)
    zipf.add_argument("--held", type=int, default=40)
    for command in (runs, zipf):
        command.add_argument("--patience", type=float, default=3600, help="seconds until a server must be there")
        command.add_argument("--kvlathe", default=str(ROOT / "build" / "release" / "bin" / "kvlathe"))
        command.add_argument("--commit", help="that the program was built from")
        command.add_argument("--allow-dirty", action="store_true")
    commands.add_parser("table").add_argument("file")
    return parser.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    try:
        if options.command == "run":
            run(options)
        elif options.command == "zipf":
            run_zipf(options)
        else:
            data = json.loads(pathlib.Path(options.file).read_text(encoding="utf-8"))
            print(zipf_table(data) if "documents" in data["settings"] else table(data))
    except (RequestFailed, ServerFailed, store.ResultsError, OSError) as error:
        print(f"prefixes.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
