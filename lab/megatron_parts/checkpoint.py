"""A checkpoint of Megatron's core models as one state, whichever way it was saved.

`--ckpt-format torch` leaves a file for each tensor-parallel rank t and, with more than one, pipeline rank p:

    DIR/latest_checkpointed_iteration.txt                 a number, or `release`
    DIR/iter_0000250/mp_rank_TT/model_optim_rng.pt        {"args", "checkpoint_version", "model": {name: tensor}, ...}
    DIR/iter_0000250/mp_rank_TT_PPP/model_optim_rng.pt

Layers are numbered from 0 in each pipeline rank. `--ckpt-format torch_dist`, the branch's default, leaves whole tensors in parts:

    DIR/iter_0000250/common.pt                            {"args", ...}
    DIR/iter_0000250/.metadata                            a pickle: shape of each tensor, where which part of it lies
    DIR/iter_0000250/__R_N.distcp                         files of torch.save, one behind the other

A weight of the layers is there one tensor for all of them, with the layer as its first axis.
"""

import pathlib
import re

from megatron_parts.distributed import DistributedState
from megatron_parts.tensors import WEIGHT_TYPES, Whole, join_columns, rows_of, stack
from megatron_parts.torch_file import CheckpointError, TorchFile, Unread

TRACKER = "latest_checkpointed_iteration.txt"
FILE = "model_optim_rng.pt"
_LAYER = re.compile(r"(decoder\.layers\.)(\d+)(\..+)")


def find_iteration(folder, iteration=None):
    """The folder of an iteration: the given one, the one that the tracker names, or the folder itself."""
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a directory")
    if iteration is not None:
        place = folder / f"iter_{iteration:07d}"
    elif (folder / TRACKER).is_file():
        text = (folder / TRACKER).read_text(errors="replace").strip()
        if text != "release" and not text.isdecimal():
            raise CheckpointError(f"{folder / TRACKER} holds '{text[:40]}', neither a number nor 'release'")
        place = folder / (text if text == "release" else f"iter_{int(text):07d}")
    else:
        place = folder
    if not place.is_dir():
        raise CheckpointError(f"{folder} has no {place.name}")
    return place


def open_checkpoint(folder, iteration=None):
    """(arguments by name, state). The state has `names()` and `whole(name, split)`; names are those of a model that is not split."""
    place = find_iteration(folder, iteration)
    if (place / ".metadata").is_file():
        common = _load(place / "common.pt", "args")
        return _arguments(common, place / "common.pt"), DistributedState(place)
    ranks = {}
    for found in place.glob(f"mp_rank_*/{FILE}"):
        match = re.fullmatch(r"mp_rank_(\d+)(?:_(\d+))?(_\d+)?", found.parent.name)
        if match is None or match[3] is not None:
            raise CheckpointError(f"{found.parent}: mixtures of experts are not converted")
        ranks[int(match[1]), int(match[2] or 0)] = found
    if not ranks:
        raise CheckpointError(f"{place} is no checkpoint of Megatron: it has neither mp_rank_*/{FILE} nor .metadata")
    loaded = {rank: _load(path, "model") for rank, path in sorted(ranks.items())}
    first_rank = min(loaded)
    arguments = _arguments(loaded[first_rank], ranks[first_rank])
    n_tensor, n_pipeline = (arguments.get(f"{kind}_model_parallel_size", 1) for kind in ("tensor", "pipeline"))
    for t in range(n_tensor):
        for p in range(n_pipeline):
            if (t, p) not in loaded:
                folder_name = f"mp_rank_{t:02d}" + (f"_{p:03d}" if n_pipeline > 1 else "")
                raise CheckpointError(f"{place} lacks {folder_name}/{FILE}: the model was split into {n_tensor} tensor-parallel and "
                                      f"{n_pipeline} pipeline ranks")
    if len(loaded) > n_tensor * n_pipeline:
        raise CheckpointError(f"{place} has files of {len(loaded)} ranks, but the model was split into {n_tensor} x {n_pipeline}")
    stages = [[_weights(loaded[t, p], ranks[t, p]) for t in range(n_tensor)] for p in range(n_pipeline)]
    return arguments, ShardedState(place, stages)


def _load(path, needed):
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    state = TorchFile(path).load()
    if isinstance(state, dict) and "model0" in state:
        raise CheckpointError(f"{path}: virtual pipeline stages are not converted; save it with one stage a rank")
    if not isinstance(state, dict) or needed not in state or "args" not in state:
        raise CheckpointError(f"{path} is no checkpoint of Megatron: it does not hold 'args' and '{needed}'")
    return state


def _arguments(state, path):
    version = state.get("checkpoint_version", 0)
    if version != 3.0:
        raise CheckpointError(f"{path}: checkpoint version {version}; only 3.0 is read")
    return vars(state["args"])


def _weights(state, path):
    """Tensors by name; what the transformer engine keeps beside them is no weight."""
    if not isinstance(state["model"], dict):
        raise CheckpointError(f"{path}: 'model' holds no tensors by name")
    if "language_model" in state["model"]:
        raise CheckpointError(f"{path}: a legacy model; DMC is part of the core models only")
    weights = {name: tensor for name, tensor in state["model"].items()
               if not name.endswith("_extra_state") and tensor is not None and not isinstance(tensor, Unread)}
    for name, tensor in weights.items():
        if getattr(tensor, "dtype", None) not in WEIGHT_TYPES:
            raise CheckpointError(f"{path}: {name} is no tensor of BF16, F16 or F32")
    return weights


class ShardedState:
    """`stages[p][t]` holds the tensors of pipeline rank p and tensor-parallel rank t by name."""

    def __init__(self, place, stages):
        self._place = place
        self._shards = {}  # name -> the tensors of all tensor-parallel ranks
        first_layer = 0
        for p, ranks in enumerate(stages):
            layers = [int(match[2]) for match in map(_LAYER.fullmatch, ranks[0]) if match]
            for name in ranks[0]:
                match = _LAYER.fullmatch(name)
                whole_name = f"{match[1]}{first_layer + int(match[2])}{match[3]}" if match else name
                self._shards[whole_name] = [self._of_rank(ranks, t, p, name) for t in range(len(ranks))]
            first_layer += max(layers, default=-1) + 1

    def _of_rank(self, ranks, t, p, name):
        if name not in ranks[t]:
            raise CheckpointError(f"{self._place}: tensor-parallel rank {t} of pipeline rank {p} lacks {name}")
        return ranks[t][name]

    def names(self):
        return set(self._shards)

    def whole(self, name, split):
        """`split` says how tensor-parallel ranks share it: `rows`, `columns`, `gate_up` (each has rows of both halves) or `same`."""
        shards = self._shards[name]
        shape = list(shards[0].shape)
        for t, shard in enumerate(shards):
            if list(shard.shape) != shape or shard.dtype != shards[0].dtype:
                raise CheckpointError(f"{self._place}: {name} is {shard.dtype} {list(shard.shape)} in tensor-parallel rank {t} and "
                                      f"{shards[0].dtype} {shape} in rank 0")
        if split == "columns" and len(shape) != 2:
            raise CheckpointError(f"{self._place}: {name} has shape {shape} and is no matrix")
        if split != "same":
            shape[1 if split == "columns" else 0] *= len(shards)
        return Whole(shape, lambda: self._read(name, shards, split))

    def _read(self, name, shards, split):
        parts = [rows_of(shard) for shard in shards]
        if split == "same":
            for t, part in enumerate(parts):
                if part.data != parts[0].data:
                    raise CheckpointError(f"{self._place}: {name} differs between tensor-parallel ranks 0 and {t}, which share it")
            return parts[0]
        if split == "columns":
            return join_columns(parts)
        if split == "gate_up":
            half = parts[0].shape[0] // 2
            return stack([p.part(0, half) for p in parts] + [p.part(half, 2 * half) for p in parts])
        return stack(parts)
