"""A compressed cache leaves no 16-bit copy anywhere: resident memory follows the bytes that are reported.

    memory_test.py KVLATHE

Decodes 4 sequences at 32k positions on a model of 4 layers with 8 KV heads of 128, whose 16-bit cache takes
2.1 GB. Peak resident memory less the KV bytes reported (weights, activations, the program) must be the same for
every cache, to within 3% of the peak; less what a basis that is folded in takes off W_V and W_O.
"""

import json
import os
import subprocess
import sys
import tempfile

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 2816, "vocab_size": 32000, "max_position_embeddings": 40000,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}
PARALLEL, DEPTH = 4, 32768
PLAIN_BYTES = 2 * 2 * SHAPE["num_hidden_layers"] * SHAPE["num_key_value_heads"] * SHAPE[
    "head_dim"] * PARALLEL * DEPTH
VALUE_WEIGHT_BYTES = 2 * SHAPE["num_hidden_layers"] * SHAPE["hidden_size"] * SHAPE["head_dim"] * (
    SHAPE["num_attention_heads"] + SHAPE["num_key_value_heads"])
# kv, the most of the 16-bit bytes that it may take, and the share of W_V and W_O that is cut off
CACHES = [("int8", 0.52, 0), ("kivi(bits=4,group=64)", 0.29, 0), ("gear(bits=2)", 0.26, 0),
          ("kivi(bits=2,group=64)", 0.17, 0), ("fdc(rate=0.5)+kivi(bits=4,group=64)", 0.15, 0.5)]


def peak_and_kv_bytes(kvlathe, config, kv):
    """Peak resident bytes of one benchmark process, and the KV bytes that it reports."""
    command = [kvlathe, "bench", "model", "--random-model", config, "-p", "0", "-n", "1", "-d",
               str(DEPTH), "-r", "1", "--parallel", str(PARALLEL), "--kv", kv, "--kv-memory", "4GiB",
               "--no-bandwidth", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)} failed")
    return usage.ru_maxrss * 1024, json.loads(output)["rows"][0]["kv_bytes"]


def main():
    with tempfile.TemporaryDirectory() as directory:
        config = os.path.join(directory, "shape.json")
        with open(config, "w", encoding="utf-8") as file:
            json.dump(SHAPE, file)
        rest, failed = None, False
        for kv, most, cut in CACHES:
            peak, kv_bytes = peak_and_kv_bytes(sys.argv[1], config, kv)
            if rest is None:
                rest = peak - kv_bytes
            difference = abs(peak - kv_bytes - (rest - cut * VALUE_WEIGHT_BYTES)) / peak
            ok = difference <= 0.03 and kv_bytes <= most * PLAIN_BYTES
            failed = failed or not ok
            print(f"{'ok  ' if ok else 'FAIL'} {kv:40} peak {peak / 1e6:7.1f} MB, KV {kv_bytes / 1e6:7.1f} MB "
                  f"({100 * kv_bytes / PLAIN_BYTES:.2f}% of 16 bits), rest {(peak - kv_bytes) / 1e6:.1f} MB, "
                  f"off by {100 * difference:.2f}%")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
