#!/usr/bin/env python3
"""Questions about a document that is compressed before any of them is asked: how many identifiers or numbers hidden in it are found.

  lab/many_questions.py MODEL --text FILE [--kv SPEC]... [--kind uuids|numbers] [--documents N] [--questions N] [--characters N] [--threads N]
                        [--kvlathe PROGRAM] [--out FILE]

A document is a part of the text with as many hidden sentences as questions will be asked. Each cache reads it once, as a prompt that ends
there (kvlathe run --save-session), and every question goes on from what was saved (--load-session), greedily. A JSON line for each cache
says the share of values that stand in the answers, its standard error over questions, and the size of the cache where the document ends,
as a share of 16 bits for every position.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHES = ("none", "kvzip(keep=0.5)", "kvzip(keep=0.25)", "kvzip(keep=0.5,heads=own)", "snapkv(keep=0.5)", "snapkv(keep=0.25)",
          "h2o(keep=0.5)", "h2o(keep=0.25)")
KEYS = ("calm basket", "old bridge", "red lantern", "small kettle", "cold river", "quiet garden", "broken wheel", "tall candle", "green door",
        "heavy stone", "white ladder", "round table")


def draw_value(rng, kind):
    """A UUID, or seven different digits."""
    if kind == "uuids":
        return str(uuid.UUID(int=rng.getrandbits(128)))
    digits = rng.sample("0123456789", 7)
    return "".join(digits) if digits[0] != "0" else "".join(reversed(digits))


def make_document(text, rng, arguments):
    """The document, and its values by key."""
    begin = rng.randrange(max(1, len(text) - arguments.characters))
    sentences = text[begin:begin + arguments.characters].split(". ")[1:]
    noun = "code" if arguments.kind == "uuids" else "number"
    values = {key: draw_value(rng, arguments.kind) for key in rng.sample(KEYS, arguments.questions)}
    for key, value in values.items():
        sentences.insert(rng.randrange(len(sentences)), f"The secret {noun} of the {key} is {value}")
    return ". ".join(sentences) + ".", values, noun


def run(arguments, kv, *more):
    """The JSON of a generation."""
    command = [arguments.kvlathe, "run", "-m", arguments.model, "-t", str(arguments.threads), "--kv", kv, "--temp", "0", "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def measure(arguments, kv, documents):
    """What a cache finds of all documents."""
    found, shares = [], []
    with tempfile.TemporaryDirectory() as folder:
        document_file, session = pathlib.Path(folder) / "document.txt", pathlib.Path(folder) / "session"
        for document, values, noun in documents:
            document_file.write_text(document)
            read = run(arguments, kv, "-f", str(document_file), "-n", "1", "--save-session", str(session))
            shares.append(read["kv_fraction"])
            for key, value in values.items():
                question = f"\n\nQuestion: What is the secret {noun} of the {key}?\nAnswer: The secret {noun} of the {key} is"
                answer = run(arguments, kv, "--load-session", str(session), "-p", question, "-n", "40")
                found.append(value in answer["text"])
    share = sum(found) / len(found)
    return {"kv": kv, "kind": arguments.kind, "found": share, "found_stderr": (share * (1 - share) / len(found)) ** 0.5, "questions": len(found),
            "documents": len(documents), "kv_fraction": sum(shares) / len(shares)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--kv", action="append")
    parser.add_argument("--kind", choices=("uuids", "numbers"), default="uuids")
    parser.add_argument("--documents", type=int, default=4)
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--characters", type=int, default=7000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kvlathe", default=str(ROOT / "build/release/bin/kvlathe"))
    parser.add_argument("--out")
    arguments = parser.parse_args()
    text = " ".join(pathlib.Path(arguments.text).read_text(encoding="utf-8", errors="replace").split())
    rng = random.Random(arguments.seed)
    documents = [make_document(text, rng, arguments) for _ in range(arguments.documents)]
    for kv in arguments.kv or CACHES:
        line = json.dumps(measure(arguments, kv, documents))
        print(line, flush=True)
        if arguments.out:
            with open(arguments.out, "a", encoding="utf-8") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
