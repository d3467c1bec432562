"""SmolLM2, a model that nobody here trained, retrofitted from its GGUF file and measured beside caches that need no training."""

import json

from results_parts import store

GGUF = "models/fetched/smollm2.gguf"
RECIPE = "docs/results/retrofit/smollm2-recipe.json"
N_TEXT_BYTES = 60_000
CONTEXT = 1024  # of windows, half of each a prompt
COMPRESSION = 2
DMC = "dmc(sink=0)"
ROWS = (("base", "none", False), ("dmc 2", DMC, True), ("dmc 2 + kivi(bits=4,group=64)", f"{DMC}+kivi(bits=4,group=64)", True),
        ("h2o 2", "h2o(keep=0.5)", False), ("tova 2", "tova(keep=0.5)", False), ("snapkv 2", "snapkv(keep=0.5)", False),
        ("kivi(bits=4,group=64)", "kivi(bits=4,group=64)", False))


def train(study):
    corpus, out = study.runs / "smollm2-corpus", study.runs / "smollm2"
    study.once("smollm2-corpus", "retrofit", "corpus", "--recipe", RECIPE, "--data", study.data, "--tokenizer", GGUF, "--out", corpus)
    for stage in ("zero-out", "ramp", "solidify"):
        study.once(f"smollm2/{stage}", "retrofit", "dmc", "-m", GGUF, "--recipe", RECIPE, "--corpus", corpus, "--out", out, "--stage", stage,
                   *study.threads())
    return out / f"cr-{COMPRESSION}"


def measure(study, trained, out, facts, say):
    """Into the file `out`, what is missing there."""
    data = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"rows": {}}
    data["settings"] = {"text_bytes": N_TEXT_BYTES, "context": CONTEXT}
    text = study.text("smollm2-text.txt", N_TEXT_BYTES)
    for label, kv, is_trained in ROWS:
        if label in data["rows"]:
            continue
        say(f"smollm2 {label}")
        result = study.result("eval", "-m", trained if is_trained else GGUF, "--reference", GGUF, "--kv", kv, "-c", CONTEXT, "--kl", text,
                              "--json", *study.threads())
        data["rows"][label] = {"kv": kv, "tasks": {}, "text": result, "run": facts}
        store.write_whole(out, json.dumps(store.rounded(data), indent=1) + "\n")
