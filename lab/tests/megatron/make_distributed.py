#!/usr/bin/env python3
"""Writes distributed/ beside it: the model of expected.json as `--ckpt-format torch_dist` cuts it for two tensor-parallel ranks, by
torch.distributed.checkpoint itself (made with torch 2.6.0, in one process that holds the shards of both). Not part of the tests.
"""

import json
import tempfile

import torch
import torch.distributed as dist
from make_checkpoint import FFN, GROUPS, HERE, HIDDEN, PADDED, arguments_of
from torch.distributed import checkpoint
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor

RANKS = 2


def sharded(whole, parts):
    """`parts`: offsets and tensors of all ranks."""
    shards = [Shard(part.contiguous(), ShardMetadata(list(offsets), list(part.shape), "rank:0/cpu")) for offsets, part in parts]
    return ShardedTensor._init_from_local_shards(shards, list(whole))


def rows(tensor):
    """The tensor cut into the rows of each rank."""
    parts = tensor.chunk(RANKS, 0)
    return sharded(tensor.shape, [((t * len(part), 0), part) for t, part in enumerate(parts)])


def of_layer(shape, parts):
    """A tensor of the only layer: the layer is the first axis."""
    return sharded((1, *shape), [((0, *offsets), part.unsqueeze(0)) for offsets, part in parts])


def make_state():
    tensors = {name: torch.tensor(list(bytes.fromhex(data)), dtype=torch.uint8).view(torch.bfloat16).view(shape)
               for name, (shape, data) in json.loads((HERE / "expected.json").read_text()).items()}
    layer = lambda name: tensors[f"model.layers.0.{name}.weight"]  # noqa: E731
    padded = lambda name: torch.cat([tensors[name], tensors[name][: PADDED - len(tensors[name])]])  # noqa: E731
    groups = [layer(f"self_attn.{letter}_proj").view(GROUPS, -1, HIDDEN) for letter in "qkv"]
    qkv = torch.cat(groups, 1).view(-1, HIDDEN)
    gate_and_up = torch.cat([layer("mlp.gate_proj"), layer("mlp.up_proj")])
    half = FFN // RANKS
    columns = {"self_attention.linear_proj": layer("self_attn.o_proj"), "mlp.linear_fc2": layer("mlp.down_proj")}
    state = {
        "embedding.word_embeddings.weight": rows(padded("model.embed_tokens.weight")),
        "output_layer.weight": rows(padded("lm_head.weight")),
        "decoder.final_layernorm.weight": tensors["model.norm.weight"],
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight": of_layer((HIDDEN,), [((0,), layer("input_layernorm"))]),
        "decoder.layers.mlp.linear_fc1.layer_norm_weight": of_layer((HIDDEN,), [((0,), layer("post_attention_layernorm"))]),
        "decoder.layers.self_attention.linear_qkv.weight": of_layer(
            qkv.shape, [((t * len(qkv) // RANKS, 0), part) for t, part in enumerate(qkv.chunk(RANKS))]),
        "decoder.layers.mlp.linear_fc1.weight": of_layer(
            gate_and_up.shape, [((i * half, 0), part) for i, part in enumerate(gate_and_up.chunk(2 * RANKS))]),
        "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight": torch.zeros(4),
        "decoder.layers.mlp.linear_fc1._extra_state/shard_0_1": b"state of fp8",
    }
    for name, tensor in columns.items():
        width = tensor.shape[1] // RANKS
        state[f"decoder.layers.{name}.weight"] = of_layer(
            tensor.shape, [((0, t * width), part) for t, part in enumerate(tensor.chunk(RANKS, 1))])
    return state


def main():
    place = HERE / "distributed/iter_0000007"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        checkpoint.save(make_state(), storage_writer=checkpoint.FileSystemWriter(place))
        dist.destroy_process_group()
    torch.save({"args": arguments_of(RANKS), "checkpoint_version": 3.0, "iteration": 7}, place / "common.pt")
    (place / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    (HERE / "distributed/latest_checkpointed_iteration.txt").write_text("7")


if __name__ == "__main__":
    main()
