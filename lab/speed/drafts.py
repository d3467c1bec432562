#!/usr/bin/env python3
"""Measures generation with and without --draft ngram into docs/results/speed/drafts.json, and prints a table of it.

  lab/speed/drafts.py [--kvlathe PROGRAM] [--model NAME=PATH]... [--kv SPEC]... [--text NAME]... [-n N] [--repetitions N] [-o FILE]
  lab/speed/drafts.py --table FILE

Texts: `edit` gives a model of code a source file and asks for all of it with a function renamed, so that most of the answer stands in the
prompt; `prose` goes on from the beginning of a story. Both are greedy. For every cache and text `kvlathe run` generates once without
drafts and once with, in turn, as often as --repetitions says; the medians count. `same_text` is whether both gave the same tokens, which
--deterministic would make sure of and rounding does not.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "lab"), str(ROOT / "scripts")]

from results_parts import provenance  # noqa: E402
from results_parts.store import write_whole  # noqa: E402

CACHES = ["none", "lathe(ratio=4)", "lathe(ratio=8)", "kivi(bits=2)"]
MODELS = {"smollm2": "models/fetched/smollm2.gguf", "qwen2.5-coder-1.5b": "models/fetched/qwen2.5-coder-1.5b.gguf"}
TEXTS_OF = {"smollm2": ["prose"], "qwen2.5-coder-1.5b": ["edit"]}
SOURCE = "lab/balance_bench.py"  # of the tree, some 1,500 tokens of it
SOURCE_BYTES = 5200
STORY = ("The old lighthouse had not been lit for eleven years when Marta came back to the island. She walked up from the harbour with "
         "one bag, past the closed shops and the church, and nobody she met knew her name. At the door she")


def edit_prompt():
    """The beginning of a source file, whole lines of it, and what is to become of it."""
    source = (ROOT / SOURCE).read_text()[:SOURCE_BYTES]
    source = source[: source.rfind("\n") + 1]
    name = next(line.split("(")[0][4:] for line in source.split("\n") if line.startswith("def "))
    return (f"<|im_start|>user\nRewrite this file with the function `{name}` renamed to `measure_all`. Answer with the whole file and "
            f"nothing else.\n\n```python\n{source}```<|im_end|>\n<|im_start|>assistant\n```python\n")


PROMPTS = {"edit": edit_prompt, "prose": lambda: STORY}


def generate(kvlathe, model, kv, prompt, n_tokens, draft):
    words = [kvlathe, "run", "-m", model, "--kv", kv, "-f", prompt, "-n", str(n_tokens), "--temp", "0", "--draft", draft, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    return json.loads(done.stdout)


def measure(arguments, name, model, kv, text, folder):
    prompt = pathlib.Path(folder) / f"{text}.txt"
    prompt.write_text(PROMPTS[text]())
    speeds = {"none": [], "ngram": []}
    for _ in range(arguments.repetitions):
        for draft in speeds:
            answer = generate(arguments.kvlathe, model, kv, str(prompt), arguments.n, draft if draft == "none" else arguments.draft)
            speeds[draft].append(answer["decode_tok_per_s"])
            if draft == "none":
                alone = answer
    row = {"model": name, "text": text, "kv": kv, "prompt_tokens": answer["prompt_tokens"], "generated_tokens": answer["generated_tokens"],
           "tokens_per_s": statistics.median(speeds["none"]), "drafted_tokens_per_s": statistics.median(speeds["ngram"]),
           "drafted_tokens": answer["drafted_tokens"], "accepted_tokens": answer["accepted_tokens"], "same_text": answer["ids"] == alone["ids"]}
    print(table([row])[-1], flush=True)
    return row


def table(rows):
    lines = ["| model | text | cache | tokens/s | with drafts | times | accepted of drafted | of all tokens |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        share = f"{100 * row['accepted_tokens'] / row['drafted_tokens']:.0f}% of {row['drafted_tokens']}" if row["drafted_tokens"] else "none drafted"
        of_all = 100 * row["accepted_tokens"] / row["generated_tokens"]
        times = row["drafted_tokens_per_s"] / row["tokens_per_s"]
        lines.append(f"| {row['model']} | {row['text']} | `{row['kv']}` | {row['tokens_per_s']:.1f} | {row['drafted_tokens_per_s']:.1f} | {times:.2f} "
                     f"| {share} | {of_all:.0f}% |")
    return lines


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvlathe", default=str(ROOT / "build/release/bin/kvlathe"))
    parser.add_argument("--model", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--kv", action="append", default=[])
    parser.add_argument("--text", action="append", default=[], choices=sorted(PROMPTS))
    parser.add_argument("--draft", default="ngram")
    parser.add_argument("-n", type=int, default=400)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("-o", "--output", default=str(ROOT / "docs/results/speed/drafts.json"))
    parser.add_argument("--commit", help="that the program was built from (default: this tree's)")
    parser.add_argument("--allow-dirty", action="store_true")
    parser.add_argument("--table", metavar="FILE")
    return parser.parse_args()


def main():
    arguments = parse()
    if arguments.table:
        return print("\n".join(table(json.loads(pathlib.Path(arguments.table).read_text())["rows"])))
    models = dict(word.split("=", 1) for word in arguments.model) or MODELS
    rows = []
    with tempfile.TemporaryDirectory(prefix="kvlathe_drafts_") as folder:
        for name, model in models.items():
            for text in arguments.text or TEXTS_OF.get(name, sorted(PROMPTS)):
                for kv in arguments.kv or CACHES:
                    rows.append(measure(arguments, name, model, kv, text, folder))
    facts = provenance.run_facts(*provenance.commit_of(ROOT, arguments.commit, arguments.allow_dirty))
    result = {**facts, "draft": arguments.draft, "rows": rows}
    write_whole(pathlib.Path(arguments.output), json.dumps(result, indent=1) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
