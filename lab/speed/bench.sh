#!/usr/bin/env bash
# Measures the tables of docs/speed.md and docs/speed that take several commands, on random weights.
#   lab/speed/bench.sh PART [CONFIG.json]
# PART: scaling (time of a step by context and by sequences; writes docs/speed/scaling.svg), throughput (tokens/s and memory
# against the number of sequences under one KV budget, and the longest prompt; BUDGET and CONTEXT from the environment),
# sealing (attention and sealing by cache), shares (the time of GEAR's parts), all of these in the shape of CONFIG.json or
# the 1B shape; votes (attention of a prompt while votes are collected, one layer of the 8B shape).
# The machine has to be idle.
set -euo pipefail
cd "$(dirname "$0")/../.."
part=${1:-} config=${2:-}
kvlathe=build/release/bin/kvlathe
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# shape HIDDEN LAYERS HEADS KV_HEADS HEAD_DIM FFN: a config.json.
shape() {
  cat <<JSON
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": $1, "num_hidden_layers": $2,
 "num_attention_heads": $3, "num_key_value_heads": $4, "head_dim": $5, "intermediate_size": $6, "vocab_size": 32000,
 "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "torch_dtype": "bfloat16"}
JSON
}

# CONFIG.json, or a file with the 1B shape.
shape_of_1b() {
  if [ -n "$config" ]; then
    echo "$config"
  else
    shape 2048 16 32 8 64 8192 >"$work/1b.json"
    echo "$work/1b.json"
  fi
}

scaling() {
  local specs=(--kv none --kv 'fdc(rate=0.5)' --kv 'kivi(bits=4)' --kv 'lathe(ratio=4)' --kv 'lathe(ratio=8)')
  local bench=("$kvlathe" bench model --random-model "$(shape_of_1b)" -p 0 -n 4 -r 1 --kv-memory 8G --limits --json)
  "${bench[@]}" "${specs[@]}" -d 1024,2048,4096,8192,16384,32768,65536 >"$work/contexts.json"
  "${bench[@]}" "${specs[@]}" -d 2048 --parallel 1,2,4,8,16,32,64 >"$work/sequences.json"
  lab/speed/scaling_chart.py "$work/contexts.json" "$work/sequences.json" docs/speed/scaling.svg
}

# GEAR's Tables 6 and 7 and Figures 3 and 4 in our form. The default budget holds three uncompressed sequences of the 1B shape.
throughput() {
  lab/speed/throughput_table.py "$kvlathe" "$(shape_of_1b)" "${BUDGET:-256MiB}" "${CONTEXT:-2062}" none 'kcvt(bits=4)' 'gear-l(bits=4)' \
    'gear(bits=4)' 'kivi(bits=2,group=64)' 'gear-l(bits=2)' 'gear(bits=2)' 'lathe(ratio=8)'
}

# 64 tokens seal one run of every cache: each token pays its share.
sealing() {
  local specs=() kv
  for kv in none int8 'kivi(bits=4,group=64)' 'kivi(bits=2,group=64)' 'kcvt(bits=4)' 'gear(bits=4)' 'gear(bits=2)' 'kvquant(bits=3)' \
    'lathe(ratio=4)' 'lathe(ratio=8)'; do
    specs+=(--kv "$kv")
  done
  "$kvlathe" bench model --random-model "$(shape_of_1b)" "${specs[@]}" -p 512 -n 64 -d "${CONTEXT:-8192}" -r 2 --json >"$work/rows.json"
  lab/speed/attention_table.py "$work/rows.json"
}

shares() {
  local quantizer
  for quantizer in 'kcvt(bits=4)' 'kivi(bits=2,group=64)'; do
    echo "## $quantizer with GEAR's repairs"
    echo
    "$kvlathe" bench model --random-model "$(shape_of_1b)" --kv "$quantizer" --kv "$quantizer+lowrank" --kv "$quantizer+lowrank+sparse" \
      -p 512 -n 64 -d 4096 -r 1 --json >"$work/rows.json"
    lab/speed/gear_shares.py "$work/rows.json"
    echo
  done
}

# What collecting votes costs: attention over a prompt of 8192, all of it kept until it ends.
votes() {
  shape 4096 1 32 8 128 14336 >"$work/shape.json"
  local specs=(--kv 'h2o(keep=0.5,prune=prompt)' --kv 'keyformer(keep=0.5,prune=prompt)' --kv 'tova(keep=0.5,prune=prompt)' --kv 'snapkv(keep=0.5)')
  "$kvlathe" bench model --random-model "$work/shape.json" -p 8192 -n 0 -r 4 --kv none "${specs[@]}" --json >"$work/votes.json"
  lab/speed/attention_table.py "$work/votes.json"
}

case $part in
  scaling | throughput | sealing | shares | votes) "$part" ;;
  *) echo "usage: lab/speed/bench.sh PART [CONFIG.json], PART as at the top of the script" >&2 && exit 2 ;;
esac
