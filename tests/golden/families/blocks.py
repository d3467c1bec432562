"""Experts whose weights are exact in blocks of 32: MXFP4 (the form of gpt-oss's checkpoints and of GGUF) and
Q8_0, so that a file of either has the logits of the BF16 model. An MXFP4 block is a power of two and 32
codes of four bits: a sign, and one of eight magnitudes."""

import torch

from .published import older_rope

MAGNITUDES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def codes_of(weights):
    """Of rows of 32: the code of each weight, [..., 32], and each row's exponent, [...]."""
    exponent = weights.abs().amax(-1).log2().floor() - 2
    scaled = weights / exponent.exp2()[..., None]
    magnitude = (scaled.abs()[..., None] - MAGNITUDES).abs().argmin(-1)
    return torch.where(scaled < 0, magnitude + 8, magnitude), exponent


def rounded(weights):
    """Of weights whose last axis is the one that a product sums over: the nearest that blocks can say."""
    codes, exponent = codes_of(weights.float().unflatten(-1, (-1, 32)))
    values = MAGNITUDES[codes % 8] * torch.where(codes < 8, 1, -1) * exponent.exp2()[..., None]
    return values.flatten(-2).to(weights.dtype)


def round_experts(model):
    """gpt-oss stores [expert, in, out], other families [expert, out, in]."""
    transposed = model.config.model_type == "gpt_oss"
    for name, weights in model.named_parameters():
        if weights.dim() == 3:
            weights.copy_(rounded(weights.mT).mT if transposed else rounded(weights))


def publish_mxfp4(config, tensors):
    """As the checkpoints of gpt-oss: blocks of 16 bytes, the first weight in the low half of a byte, and
    exponents with a bias of 127."""
    older_rope(config, tensors)
    config["quantization_config"] = dict(
        quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                      "model.embed_tokens", "lm_head"])
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        codes, exponent = codes_of(tensors.pop(name).float().mT.unflatten(-1, (-1, 32)))
        tensors[name + "_blocks"] = (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8).contiguous()
        tensors[name + "_scales"] = (exponent + 127).to(torch.uint8).contiguous()


def mxfp4_bytes(weights):
    """GGUF's MXFP4: the exponent, then 16 bytes, each with a weight of the first half of a block in its low half
    and one of the second half in its high half."""
    codes, exponent = codes_of(torch.as_tensor(weights).float().unflatten(-1, (-1, 32)))
    packed = codes[..., :16] + 16 * codes[..., 16:]
    return torch.cat([(exponent + 127)[..., None], packed], -1).to(torch.uint8).flatten(-2).numpy()


def q8_0_bytes(weights):
    """GGUF's Q8_0: half the block's power of two in F16, then twice the weights as integers."""
    blocks = torch.as_tensor(weights).float().unflatten(-1, (-1, 32))
    scale = codes_of(blocks)[1].exp2() / 2
    integers = (blocks / scale[..., None]).to(torch.int8)
    assert torch.equal(integers * scale[..., None], blocks)
    return torch.cat([scale[..., None].half().view(torch.uint8), integers.view(torch.uint8)],
                     -1).flatten(-2).numpy()
