#!/usr/bin/env python3
"""Turns a checkpoint of NVIDIA's Megatron branch of Dynamic Memory Compression into a model directory that kvlathe reads
(docs/training.md, Checkpoints of Megatron). It needs Python 3.10 or newer and nothing else; nothing in a checkpoint is run.
"""

import argparse
import contextlib
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from megatron_parts.checkpoint import open_checkpoint  # noqa: E402
from megatron_parts.llama import Converter, Shapes, check_arguments, make_config  # noqa: E402
from megatron_parts.tensors import write_safetensors  # noqa: E402
from megatron_parts.torch_file import CheckpointError  # noqa: E402
from megatron_parts.vocabulary import copy_tokenizer, read_vocabulary  # noqa: E402

_TRAINED_WINDOW = 12


def convert(checkpoint, iteration, tokenizer, out):
    """Writes the model to `out`, config.json last. Returns the arguments of the checkpoint."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} is there already and not an empty directory")
    vocabulary = read_vocabulary(tokenizer)
    arguments, state = open_checkpoint(checkpoint, iteration)
    check_arguments(arguments)
    shapes = Shapes(arguments)
    config = make_config(arguments, shapes, vocabulary)
    tensors = Converter(state, shapes, vocabulary, config["tie_word_embeddings"]).tensors()
    out.mkdir(parents=True, exist_ok=True)
    partial = out / "model.safetensors.partial"
    try:
        write_safetensors(partial, tensors)
        partial.rename(out / "model.safetensors")
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    copy_tokenizer(tokenizer, out)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return arguments


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True, help="directory with latest_checkpointed_iteration.txt, or of one iteration")
    parser.add_argument("--iteration", type=int, help="of the checkpoints there; default: what latest_checkpointed_iteration.txt says")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.model, tokenizer.json, or a directory with one")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="directory to write, which must not be there or be empty")
    given = parser.parse_args()
    try:
        arguments = convert(given.checkpoint, given.iteration, given.tokenizer, given.out)
    except (CheckpointError, OSError) as error:
        sys.exit(f"convert_megatron: {error}")
    window = arguments.get("dmc_window_size", _TRAINED_WINDOW)
    stage = "of the zero-out stage, which decides nothing yet" if arguments.get("dmc_is_stage_one") else "with DMC"
    print(f"{given.out}: a model {stage}; run it with --kv 'dmc(window={window},sink=0)'")


if __name__ == "__main__":
    main()
