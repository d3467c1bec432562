"""Writes the golden models of tests/golden_test.cc: one folder per family and layout beside this file,
saved by Hugging Face transformers, with the F32 logits that transformers computes for a fixed text.

Usage: make_golden.py NAME ...     (the names are in families/*.py; `all` writes those that have no folder)

families/first.py was run with Python 3.11.2, torch 1.13.1 (of Debian 12), transformers 4.46.3, tokenizers 0.20.3,
safetensors 0.4.5 and numpy 1.24.2; qwen3, gemma3 and the other tables with Python 3.11.7, torch 2.15.0 and
transformers 5.24.0. Other versions draw other weights, and the logits change with them: commit what one run
wrote. The tests need the files, none of these packages.
"""

import contextlib
import json
import pathlib
import sys
import zlib

import torch
import transformers
from safetensors.torch import load_file, save_file

from families import dense, experts, first, relatives, rope
from families.model import N_TOKENS, VOCAB

HERE = pathlib.Path(__file__).parent
MODELS = first.MODELS | dense.MODELS | rope.MODELS | experts.MODELS | relatives.MODELS
# Choices of experts that are closer than this could be others in another order of sums.
LEAST_GAP = 1e-3


def draw(model):
    """Weights at scales where attention is far from uniform, and norms and biases that do something
    (transformers starts them at one and zero). Rounded to BF16: the file holds them exactly."""
    adds_one = "Gemma" in type(model).__name__ or "Nemotron" in type(model).__name__
    clamps = model.config.model_type == "gpt_oss"
    std = 1.6 / model.config.hidden_size**0.5
    named = list(model.named_parameters())
    named += [(name, b) for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
    for name, parameter in named:
        if name.endswith("bias"):
            parameter.normal_(0, 0.1 if "correction" in name else 0.3)
        elif name.endswith(("alpha_p", "alpha_n", "sinks")):
            parameter.normal_(0.3, 0.8)
        elif parameter.dim() >= 2 and "norm" not in name:
            # gpt-oss: so that the clamps at 7 do something
            parameter.normal_(0, 3 * std if name.endswith("experts.gate_up_proj") and clamps else std)
        else:
            parameter.normal_(0 if adds_one else 1, 0.1)
        parameter.copy_(parameter.bfloat16().float())


def phimoe_gap(_router, _inputs, outputs):
    """Phi's router takes the best expert twice, and gives it the softmax of those that are within 2% of it."""
    top = outputs[0].sort(-1, descending=True)[0]
    edges = [(best - others) / others.abs().maximum(best) - 0.02
             for others, best in ((top[:, 1:], top[:, :1]), (top[:, 2:], top[:, 1:2]))]
    return min([(top[:, :2] - top[:, 1:3]).min().item()] + [edge.abs().min().item() for edge in edges])


@contextlib.contextmanager
def smallest_gap(model):
    """The smallest distance between a chosen and an unchosen expert of what runs inside, relative to
    probabilities, absolute for logits above one."""
    gaps = [float("inf")]

    def watch_phimoe(*args):
        gaps[0] = min(gaps[0], phimoe_gap(*args))

    hooks = [module.register_forward_hook(watch_phimoe) for module in model.modules()
             if type(module).__name__ == "PhimoeTopKRouter"]
    topk = torch.topk

    def watched(values, k, *args, **kwargs):
        top = values.sort(-1, descending=True)[0]
        if k < values.shape[-1]:
            last, next_one = top[..., k - 1], top[..., k]
            gap = (last - next_one) / last.abs().clamp(max=1)
            gaps[0] = min(gaps[0], gap[torch.isfinite(gap)].min().item())
        return topk(values, k, *args, **kwargs)

    torch.topk, method = watched, torch.Tensor.topk
    torch.Tensor.topk = watched
    try:
        yield gaps
    finally:
        torch.topk, torch.Tensor.topk = topk, method
        for hook in hooks:
            hook.remove()


def logits_of(model, ids, golden):
    logits = {}
    for length in golden.lengths:
        if golden.before:
            golden.before(model, length)
        logits[str(length)] = model(ids[None, :length], use_cache=False).logits[0].float().contiguous()
    return logits


def drawn(name, golden):
    """A model, its text and its logits, of the first seed that keeps experts apart."""
    seed = list(MODELS).index(name) + 1 if name in first.MODELS else zlib.crc32(name.encode())
    for attempt in range(200):
        torch.manual_seed(seed + attempt)
        model = transformers.AutoModelForCausalLM.from_config(golden.config(), attn_implementation="eager")
        model.eval()
        draw(model)
        if golden.drawn:
            golden.drawn(model)
        ids = torch.randint(VOCAB, (N_TOKENS,))
        with smallest_gap(model) as gaps:
            logits = logits_of(model, ids, golden)
        if gaps[0] > LEAST_GAP:
            return model, ids, logits
    raise AssertionError(f"{name}: no seed keeps experts apart")


def check_reloads(name, golden, ids, logits):
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    for length, theirs in logits_of(model, ids, golden).items():
        assert (theirs - logits[length]).abs().max() < 2e-5, (name, length)


def write(name):
    golden = MODELS[name]
    model, ids, logits = drawn(name, golden)
    folder = HERE / name
    model.bfloat16().save_pretrained(folder)
    if golden.publish:
        config = json.loads((folder / "config.json").read_text())
        tensors = load_file(folder / "model.safetensors")
        golden.publish(config, tensors)
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(logits, folder / "golden_logits.safetensors",
              metadata={"golden": json.dumps({"ids": ids.tolist(), "torch": torch.__version__,
                                              "transformers": transformers.__version__})})
    (folder / "generation_config.json").unlink(missing_ok=True)
    if golden.reloads:
        check_reloads(name, golden, ids, logits)
    # Between positions, so that a model whose text does not matter is noticed.
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(name, "standard deviation of a logit:", logits[str(N_TOKENS)].std(0).mean().item(),
          "bytes:", size)


def main():
    torch.set_num_threads(1)
    names = sys.argv[1:]
    if names == ["all"]:
        names = [name for name in MODELS if not (HERE / name).exists()]
    with torch.no_grad():
        for name in names:
            write(name)


if __name__ == "__main__":
    main()
