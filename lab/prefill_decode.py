#!/usr/bin/env python3
"""What it takes to read a prompt on one machine and to answer it on another, over a link of a given rate.

  lab/prefill_decode.py run MODEL [--rate 100mbit] [--kv SPEC]... [--tokens N] [--repeats N] [--deterministic] [--out FILE] [--kvlathe PROGRAM]
  lab/prefill_decode.py table FILE

Needs root and iproute2. Two network namespaces stand for two machines; a veth pair between them is slowed on both sides (tbf), and all is taken down in the end. MODEL is what `kvlathe serve -m` takes. Each cache gets a server of its own, which reads and
answers each prompt (`alone`), and then a prefill replica in one namespace and a decode replica in the other (`apart`). All are asked
the same prompts of --tokens tokens of share/sample.txt, one at a time, greedily and streamed, no two of which begin alike. Answers are the
same up to rounding, which depends on where steps end; with --deterministic, which reads prompts at half the speed, to the last bit.

What counts is `beyond`: the time to the second token apart, less the time to the first one alone, which is that of the prompt itself.
Medians of --repeats; FILE has every request, and `table` writes Markdown of it.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHES = ("none", "lathe(ratio=8)")
HERE, THERE = "kvlathe-decode", "kvlathe-prefill"  # the namespaces
ADDRESSES = {HERE: "10.77.0.1", THERE: "10.77.0.2"}
N_ANSWER = 16  # tokens
KEY = "key-of-this-measurement"


class MeasurementFailed(Exception):
    """What went wrong, in one line."""


def network(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        raise MeasurementFailed(f"{' '.join(arguments)}: {done.stderr.strip()}")


@contextlib.contextmanager
def two_machines(rate):
    """Two namespaces and the link between them."""
    try:
        for name in ADDRESSES:
            network("ip", "netns", "add", name)
            network("ip", "netns", "exec", name, "ip", "link", "set", "lo", "up")
        network("ip", "link", "add", "link0", "netns", HERE, "type", "veth", "peer", "name", "link0", "netns", THERE)
        for name, address in ADDRESSES.items():
            within = ("ip", "netns", "exec", name)
            network(*within, "ip", "address", "add", f"{address}/24", "dev", "link0")
            network(*within, "ip", "link", "set", "link0", "up")
            network(*within, "tc", "qdisc", "add", "dev", "link0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
        yield
    finally:
        for name in ADDRESSES:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


class Replica:
    """A `kvlathe serve` in a namespace. Use as a context manager."""

    def __init__(self, options, place, *arguments):
        command = ["ip", "netns", "exec", place, options.kvlathe, "serve", "-m", options.model, "--host", ADDRESSES[place],
                   "--port", "0", *(["--deterministic"] if options.deterministic else []), *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                        env=dict(os.environ, KVLATHE_PREFILL_KEY=KEY))
        lines = []
        for line in self.process.stderr:
            lines.append(line.strip())
            if line.startswith("{") and (event := json.loads(line)).get("event") == "listening":
                self.place, self.port = place, event["port"]
                self.url = f"http://{ADDRESSES[place]}:{self.port}"
                return
        raise MeasurementFailed(f"{' '.join(command)}: {lines[-1] if lines else 'no word'}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def ask(self, path, question):
        """What a client beside it makes of the answer (`ask` below)."""
        done = subprocess.run(["ip", "netns", "exec", self.place, sys.executable, __file__, "ask", self.url + path],
                              input=json.dumps(question), capture_output=True, text=True)
        if done.returncode != 0:
            raise MeasurementFailed(done.stderr.strip().split("\n")[-1])
        return json.loads(done.stdout)

    def complete(self, prompt):
        """{"seconds": to each piece of text, "text", "usage"}"""
        return self.ask("/v1/completions", {"prompt": prompt, "max_tokens": N_ANSWER, "temperature": 0, "stream": True,
                                            "stream_options": {"include_usage": True}})


def ask(url):
    """Posts what standard input has; what came of it, and of a stream when, to standard output."""
    question = sys.stdin.read().encode()
    request = urllib.request.Request(url, question, {"Content-Type": "application/json"})
    begin, seconds, text, usage = time.monotonic(), [], "", None
    try:
        answer = urllib.request.urlopen(request, timeout=600)
    except OSError as error:
        raise MeasurementFailed(f"{url}: {error}") from error
    if not answer.headers["Content-Type"].startswith("text/event-stream"):
        print(answer.read().decode())
        return
    for line in answer:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        piece = "".join(choice["text"] for choice in event["choices"])
        if piece:
            seconds.append(time.monotonic() - begin)
            text += piece
    print(json.dumps({"seconds": seconds, "text": text, "usage": usage}))


def prompts(replica, n_tokens, n_prompts):
    """Prompts of so many tokens, no two of which begin alike."""
    text = (ROOT / "share" / "sample.txt").read_text(encoding="utf-8")
    return [replica.ask("/tokenize", {"content": f"Text {i}. {text[1000 * i:1000 * i + 8 * n_tokens]}"})["tokens"][:n_tokens]
            for i in range(n_prompts)]


def measure(options, kv):
    """Every request of one cache: {"alone": [...], "apart": [...]}"""
    with Replica(options, HERE, "--kv", kv) as alone:
        asked = prompts(alone, options.tokens, options.repeats + 1)
        answers = {"alone": [alone.complete(prompt) for prompt in asked]}
    with Replica(options, THERE, "--kv", kv, "--role", "prefill") as prefill, \
            Replica(options, HERE, "--kv", kv, "--role", "decode", "--prefill", prefill.url) as decode:
        answers["apart"] = [decode.complete(prompt) for prompt in asked]
    return {way: of_way[1:] for way, of_way in answers.items()}  # the first one warms all up


def summary(of_kv):
    alone, apart = of_kv["alone"], of_kv["apart"]
    beyond = [b["seconds"][1] - a["seconds"][0] for a, b in zip(alone, apart)]
    return {"prompt_tokens": apart[0]["usage"]["prompt_tokens"],
            "came": min(b["usage"]["prompt_tokens_details"]["cached_tokens"] for b in apart),
            "alone_first_s": statistics.median(a["seconds"][0] for a in alone),
            "apart_second_s": statistics.median(b["seconds"][1] for b in apart),
            "beyond_s": statistics.median(beyond),
            "same_text": all(a["text"] == b["text"] for a, b in zip(alone, apart))}


def table(measured):
    lines = [f"| level | prompt read and first token, alone | second token, apart | beyond the prompt | of `none`'s | same text |",
             "|---|---:|---:|---:|---:|---|"]
    none = summary(measured["caches"]["none"])["beyond_s"] if "none" in measured["caches"] else None
    for kv, of_kv in measured["caches"].items():
        of = summary(of_kv)
        share = f"{of['beyond_s'] / none:.2f}" if none else ""
        lines.append(f"| `{kv}` | {of['alone_first_s']:.2f} s | {of['apart_second_s']:.2f} s | {of['beyond_s']:.2f} s | {share} "
                     f"| {'yes' if of['same_text'] else 'no'} |")
    return "\n".join(lines)


def run(options):
    measured = {"model": pathlib.Path(options.model).name, "rate": options.rate, "deterministic": options.deterministic, "caches": {}}
    with two_machines(options.rate):
        for kv in options.kv or CACHES:
            measured["caches"][kv] = measure(options, kv)
            print(kv, json.dumps(summary(measured["caches"][kv])), flush=True)
            if options.out:
                pathlib.Path(options.out).write_text(json.dumps(measured, indent=1) + "\n")
    print(table(measured))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("run")
    verb.add_argument("model")
    verb.add_argument("--rate", default="100mbit")
    verb.add_argument("--kv", action="append")
    verb.add_argument("--tokens", type=int, default=4096)
    verb.add_argument("--repeats", type=int, default=3)
    verb.add_argument("--deterministic", action="store_true")
    verb.add_argument("--out")
    verb.add_argument("--kvlathe", default=str(ROOT / "build/release/bin/kvlathe"))
    verb = verbs.add_parser("table")
    verb.add_argument("file")
    verb = verbs.add_parser("ask")
    verb.add_argument("url")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was set up is taken down
    try:
        if options.verb == "run":
            run(options)
        elif options.verb == "ask":
            ask(options.url)
        else:
            print(table(json.loads(pathlib.Path(options.file).read_text())))
    except MeasurementFailed as failure:
        sys.exit(f"prefill_decode.py: {failure}")


if __name__ == "__main__":
    main()
