"""The Llama model of a checkpoint of Megatron: its config.json and its weights under the names of Hugging Face."""

from megatron_parts.tensors import to_bf16
from megatron_parts.torch_file import CheckpointError

# What the converted model computes; a checkpoint that asks for something else is refused by the argument's name.
_EXPECTED = {
    "normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False, "rotary_percent": 1.0, "add_qkv_bias": False,
    "rotary_interleaved": False, "apply_layernorm_1p": False, "qk_layernorm": False, "num_experts": None, "window_size": None,
    "rotary_seq_len_interpolation_factor": None, "use_rope_scaling": False, "position_embedding_type": "rope",
    "virtual_pipeline_model_parallel_size": None, "multi_latent_attention": False,
}
# The weights of a layer: core name -> how ranks share it. Norms have another name where the transformer engine has them in its matrices.
_SPLITS = {"self_attention.linear_qkv.weight": "rows", "self_attention.linear_proj.weight": "columns",
           "mlp.linear_fc1.weight": "gate_up", "mlp.linear_fc2.weight": "columns"}
_NORMS = {"input_layernorm": ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
          "post_attention_layernorm": ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight")}
# DMC's last channel decides (docs/methods/dmc.md); the branch adds BF16's epsilon to every weight.
_EPSILON = 2.0**-7


class Shapes:
    """The sizes of a model, from the arguments that it was trained with."""

    def __init__(self, arguments):
        def size(name, default=None):
            value = arguments.get(name)
            value = default if value is None else value
            if not isinstance(value, int) or value < 1:
                raise CheckpointError(f"the arguments of the checkpoint give {name} as {value!r}")
            return value

        self.n_layers, self.hidden, self.n_heads = size("num_layers"), size("hidden_size"), size("num_attention_heads")
        self.n_kv_heads = size("num_query_groups") if arguments.get("group_query_attention") else self.n_heads
        self.head_dim = size("kv_channels", self.hidden // self.n_heads)
        self.ffn, self.context = size("ffn_hidden_size"), size("max_position_embeddings")
        if self.n_heads % self.n_kv_heads:
            raise CheckpointError(f"the arguments of the checkpoint give {self.n_heads} heads in {self.n_kv_heads} groups")
        self.group_rows = (self.n_heads // self.n_kv_heads + 2) * self.head_dim


def check_arguments(arguments):
    if "dmc_init_val" not in arguments:
        raise CheckpointError("the checkpoint was not trained with DMC: its arguments have no dmc_init_val")
    for name, value in _EXPECTED.items():
        found = arguments.get(name)
        if found is not None and found != value and not (name == "position_embedding_type" and
                                                         arguments.get("use_rotary_position_embeddings")):
            raise CheckpointError(f"the checkpoint was trained with {name}={found!r}; only {value!r} is converted")


def make_config(arguments, shapes, vocabulary):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shapes.hidden,
        "num_hidden_layers": shapes.n_layers, "num_attention_heads": shapes.n_heads, "num_key_value_heads": shapes.n_kv_heads,
        "head_dim": shapes.head_dim, "intermediate_size": shapes.ffn, "vocab_size": vocabulary.size,
        "max_position_embeddings": shapes.context, "rms_norm_eps": arguments.get("norm_epsilon", 1e-5),
        "rope_theta": float(arguments.get("rotary_base", 10000)), "hidden_act": "silu",
        "tie_word_embeddings": not arguments.get("untie_embeddings_and_output_weights", False), "attention_bias": False,
        "mlp_bias": False, "torch_dtype": "bfloat16",
    }
    config |= {key: value for key, value in (("bos_token_id", vocabulary.bos), ("eos_token_id", vocabulary.eos)) if value is not None}
    offset = arguments["dmc_init_val"]
    config["dmc"] = {"channel": "last", "offset": offset, "weight_offset": offset, "epsilon": _EPSILON, "zero_after_rope": True}
    return config


class Converter:
    """Turns a state (checkpoint.py) into the tensors that write_safetensors takes."""

    def __init__(self, state, shapes, vocabulary, is_tied):
        self._state, self._shapes, self._names = state, shapes, state.names()
        self._vocabulary, self._is_tied = vocabulary, is_tied
        self._tensors, self._read = [], set()
        self._last = (None, None)  # of whole tensors the one that was read last: one gives several

    def tensors(self):
        s = self._shapes
        self._vocabulary_rows("embedding.word_embeddings.weight", "model.embed_tokens.weight")
        for layer in range(s.n_layers):
            self._layer(layer)
        self._rows("decoder.final_layernorm.weight", "same", (s.hidden,), "model.norm.weight")
        if self._is_tied:
            self._read.add("output_layer.weight")  # the last pipeline rank keeps a copy of the embedding
        else:
            self._vocabulary_rows("output_layer.weight", "lm_head.weight")
        unknown = sorted(self._names - self._read)
        if unknown:
            raise CheckpointError(f"the checkpoint has {len(unknown)} tensors that a Llama model of {s.n_layers} layers has not, such as "
                                  f"{unknown[0]}")
        return self._tensors

    def _layer(self, layer):
        s, of_layer, name = self._shapes, f"decoder.layers.{layer}.", f"model.layers.{layer}."
        for norm, choices in _NORMS.items():
            core = next((choice for choice in choices if of_layer + choice in self._names), choices[0])
            self._rows(of_layer + core, "same", (s.hidden,), f"{name}{norm}.weight")
        n_query_rows = s.group_rows - 2 * s.head_dim
        qkv = {"q": (0, n_query_rows), "k": (n_query_rows, n_query_rows + s.head_dim), "v": (n_query_rows + s.head_dim, s.group_rows)}
        for letter, (begin, end) in qkv.items():
            self._parts(of_layer + "self_attention.linear_qkv.weight", (s.n_kv_heads * s.group_rows, s.hidden),
                        [(g * s.group_rows + begin, g * s.group_rows + end) for g in range(s.n_kv_heads)],
                        f"{name}self_attn.{letter}_proj.weight")
        self._rows(of_layer + "self_attention.linear_proj.weight", None, (s.hidden, s.n_heads * s.head_dim),
                   f"{name}self_attn.o_proj.weight")
        for i, letter in enumerate(("gate", "up")):
            self._parts(of_layer + "mlp.linear_fc1.weight", (2 * s.ffn, s.hidden), [(i * s.ffn, (i + 1) * s.ffn)],
                        f"{name}mlp.{letter}_proj.weight")
        self._rows(of_layer + "mlp.linear_fc2.weight", None, (s.hidden, s.ffn), f"{name}mlp.down_proj.weight")

    def _vocabulary_rows(self, core, name):
        whole = self._whole(core, "rows")
        size = self._vocabulary.size
        if len(whole.shape) != 2 or whole.shape[0] < size or whole.shape[1] != self._shapes.hidden:
            raise CheckpointError(f"{core} has shape {list(whole.shape)}; {size} tokens of the tokenizer and {self._shapes.hidden} "
                                  "channels do not fit it")
        self._add(core, whole, [(0, size)], name)

    def _rows(self, core, split, shape, name):
        self._parts(core, shape, [(0, shape[0])], name, split)

    def _parts(self, core, shape, ranges, name, split=None):
        whole = self._whole(core, split or _SPLITS[core.split(".", 3)[3]])
        if whole.shape != tuple(shape):
            raise CheckpointError(f"{core} has shape {list(whole.shape)} where the checkpoint's arguments make it {list(shape)}")
        self._add(core, whole, ranges, name)

    def _whole(self, core, split):
        if core not in self._names:
            raise CheckpointError(f"the checkpoint lacks {core}")
        self._read.add(core)
        return self._state.whole(core, split)

    def _add(self, core, whole, ranges, name):
        shape = (sum(end - begin for begin, end in ranges), *whole.shape[1:])

        def read():
            if self._last[0] != core:
                self._last = (core, whole.read())
            rows = self._last[1]
            return b"".join(to_bf16(rows.part(begin, end), core) for begin, end in ranges)

        self._tensors.append((name, shape, read))
