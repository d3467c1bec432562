#!/usr/bin/env bash
# Measures the tables of docs/results.md; with EXAMPLES above 0 also every built-in task.
#   scripts/results.sh [PART [MODEL [EXAMPLES]]]
# PART: basis (FDC: rates, adaptive and uniform ranks, random tokens and text), bases (all of them; needs the trainer), groups (Palu's), quantizers
# (all of them at 2, 3, 4 and 8 bits, with and without repair), gear (GEAR's ablations), retention (every method
# at three shares, after fdc, before GEAR; H2O against 4 bits), bits (lathe by ratio against all that stores codes) or all.
# Apart, because they take long or need an idle machine: papers (how far each method compresses at 99% of the baseline:
# 50 EXAMPLES of each task unless given; goes on where it was interrupted), calibration (KL by tokens to calibrate on),
# spectra (what is left of quantizers' errors for GEAR), time (TTFT, TBT and total on random weights in the 1B shape,
# in two of the 32 layers of the 8B shape where MODEL is 8b, or in that of MODEL, here a config.json, at CONTEXTS), throughput (tokens/s and memory against the number of sequences
# under one KV budget, and the longest prompt, the same shape), shares (the time of GEAR's parts, the same shape),
# deviation (logits of GEAR and its parts against the uncompressed model's, by steps behind the prompt),
# scaling (time of a step by context and by sequences, in that shape; writes docs/scaling.svg), votes (attention of a prompt
# while votes are collected), calibration-cost (time and memory for 13 layers of the 8B shape, or of MODEL, and 32 by extrapolation).
# real: caches of every kind on a real model and the text TEXT (default: the sample text), with perplexity's paired errors.
set -euo pipefail
cd "$(dirname "$0")/.."
part=${1:-all} model=${2:-models/lathe-nano} n_examples=${3:-0}
kvlathe=build/release/bin/kvlathe
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# measure TITLE OPTIONS...
measure() {
  echo "## $1"
  echo
  shift
  "$kvlathe" compare -m "$model" "$@"
  if [ "$n_examples" -gt 0 ]; then
    echo
    "$kvlathe" eval -m "$model" "$@" --task all --task-count "$n_examples"
  fi
  echo
}

# Where two could take it, they get the same: the newest 32 positions in 16 bits, as lathe has them.
real() {
  local specs=() kv
  for kv in none int8 q8_0 'kivi(bits=4,group=64)' 'lathe(ratio=4)' 'lathe(ratio=4,keys=before)' q4_0 'gear(bits=2,newest=32)' \
    'kvquant(bits=3)' 'kivi(bits=2,group=64,newest=32)' 'lathe(ratio=6)' 'lathe(ratio=6,keys=before)' 'lathe(ratio=8)' \
    'lathe(ratio=8,keys=before)' 'lathe(ratio=10)' 'snapkv(keep=0.5)' 'palu(rate=0.25,round=16)' 'lathe(rate=0.25)' 'zack(rate=0.25)' \
    'fdc(rate=0.25)'; do
    specs+=(--kv "$kv")
  done
  measure "Caches on $model" ${TEXT:+--text "$TEXT"} "${specs[@]}"
}

basis() {
  "$kvlathe" calibrate -m "$model" --random-tokens 8192 -o "$work/random.safetensors" >/dev/null
  "$kvlathe" calibrate -m "$model" --text "$model/calibration.txt" -o "$work/text.safetensors" >/dev/null
  for source in random text; do
    for ranks in adaptive uniform; do
      specs=()
      if [ "$source $ranks" = "random adaptive" ]; then specs+=(--kv none); fi
      for rate in 0.1 0.2 0.3 0.4 0.5 0.6 0.7; do
        specs+=(--kv "fdc(rate=$rate,ranks=$ranks)")
      done
      measure "Calibrated on $source, $ranks ranks" --basis "$work/$source.safetensors" "${specs[@]}"
    done
  done
}

# All bases at the same bytes; lathe without its parts.
bases() {
  "$kvlathe" calibrate -m "$model" --random-tokens 8192 -o "$work/random.safetensors" >/dev/null
  "$kvlathe" calibrate -m "$model" --text "$model/calibration.txt" -o "$work/text.safetensors" >/dev/null
  "$kvlathe" retrofit fisher -m "$model" --text "$model/calibration.txt" -o "$work/fisher.json" >/dev/null
  for source in text random; do
    specs=()
    for rate in 0.25 0.5 0.625; do
      specs+=(--kv "fdc(rate=$rate)" --kv "zack(rate=$rate)" --kv "zack(rate=$rate,normalise=on)" --kv "lathe(rate=$rate)" --kv "lathe(rate=$rate,keys=before)" --kv "palu(rate=$rate,round=16)")
      if [ $source = text ]; then
        specs+=(--kv "palu(rate=$rate,round=16,ranks=uniform)" --kv "palu(rate=$rate,round=16,ranks=fisher)")
        specs+=(--kv "lathe(rate=$rate,centre=off)" --kv "lathe(rate=$rate,ranks=uniform)" --kv "lathe(rate=$rate,keys=before,ranks=uniform)")
      fi
    done
    measure "Bases, calibrated on $source" --basis "$work/$source.safetensors" "${specs[@]}"
  done
  specs=()
  for rate in 0.25 0.5 0.625; do specs+=(--kv "zack(rate=$rate,online=on)" --kv "zack(rate=$rate,normalise=on,online=on)"); done
  measure "The papers' /OE" --basis "$work/text.safetensors" "${specs[@]}"
  measure "Not calibrated" --kv 'svd-online(rate=0.25)' --kv svd-online --kv 'svd-online(rate=0.75)'
}

# Palu's latents of one KV head, of two, and of four and more where a model has them.
groups() {
  "$kvlathe" calibrate -m "$model" --text "$model/calibration.txt" --across-heads -o "$work/text.safetensors" >/dev/null
  n_kv_heads=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["num_key_value_heads"])' "$model/config.json")
  specs=()
  for rate in 0.25 0.5 0.625 0.75; do
    for ((group = 1; group <= n_kv_heads; group *= 2)); do
      specs+=(--kv "palu(rate=$rate,round=16,group=$group)" --kv "palu(rate=$rate,round=16,group=$group,ranks=uniform)")
    done
  done
  measure "Palu's groups" --basis "$work/text.safetensors" "${specs[@]}"
}

quantizers() {
  measure "8 bits" --kv none --kv int8 --kv 'token(bits=8)' --kv 'kcvt(bits=8)' --kv 'kivi(bits=8)'
  for bits in 4 3 2; do
    repair='lowrank+sparse'
    specs=()
    for quantizer in "token(bits=$bits)" "kcvt(bits=$bits)" "kivi(bits=$bits,group=32)" "kivi(bits=$bits,group=64)"; do
      specs+=(--kv "$quantizer" --kv "$quantizer+lowrank" --kv "$quantizer+sparse" --kv "$quantizer+$repair")
    done
    specs+=(--kv "kvquant(bits=$bits)" --kv "kvquant(bits=$bits)+lowrank")
    measure "$bits bits" "${specs[@]}"
  done
  measure "The papers' method: no sink, one run per prompt" \
    --kv 'kcvt(bits=4,sink=0,run=prompt)' --kv 'gear(bits=4,sink=0,run=prompt)' \
    --kv 'kivi(bits=2,group=64,sink=0,run=prompt)' --kv 'gear-l(bits=2,sink=0,run=prompt)' \
    --kv 'gear(bits=2,sink=0,run=prompt)'
  measure "After a basis" --kv 'fdc(rate=0.25)+kivi(bits=4,group=64)' --kv 'fdc(rate=0.25)+gear(bits=4)' \
    --kv 'fdc(rate=0.25)+kivi(bits=2,group=64)' --kv 'fdc(rate=0.25)+gear(bits=2)' \
    --kv 'fdc(rate=0.25)+kvquant(bits=4)' --kv 'fdc(rate=0.5)+kivi(bits=4,group=64)' --kv 'kvq-f'
}

# lathe's bits against everything else that stores codes, calibrated on text.
bits() {
  "$kvlathe" calibrate -m "$model" --text "$model/calibration.txt" -o "$work/text.safetensors" >/dev/null
  local specs=(--kv none)
  for ratio in 2 2.5 3 3.5 4 5 6 7 8 10 12; do specs+=(--kv "lathe(ratio=$ratio)" --kv "lathe(ratio=$ratio,keys=before)"); done
  measure "lathe by ratio" --basis "$work/text.safetensors" "${specs[@]}"
  measure "Uniform codes" --basis "$work/text.safetensors" --kv q8_0 --kv 'q8_0(hadamard=on)' --kv q4_0 --kv 'q4_0(hadamard=on)' \
    --kv 'kivi(bits=4,group=64)' --kv 'kcvt(bits=4)' --kv 'kvquant(bits=4)' --kv 'gear(bits=4)' \
    --kv 'kivi(bits=3,group=64)' --kv 'kvquant(bits=3)' --kv 'kivi(bits=2,group=64)' --kv 'kcvt(bits=2)' \
    --kv 'kvquant(bits=2)' --kv 'gear(bits=2)'
  # What lathe does with the newest positions is no matter of codes: all of these do the same.
  measure "Uniform codes, the newest 32 spared" --kv 'q4_0(newest=32)' --kv 'q4_0(hadamard=on,newest=32)' \
    --kv 'kivi(bits=4,group=64,newest=32)' --kv 'kcvt(bits=4,newest=32)' --kv 'kvquant(bits=4,newest=32)' --kv 'gear(bits=4,newest=32)' \
    --kv 'kivi(bits=3,group=64,newest=32)' --kv 'kvquant(bits=3,newest=32)' --kv 'kivi(bits=2,group=64,newest=32)' \
    --kv 'kcvt(bits=2,newest=32)' --kv 'kvquant(bits=2,newest=32)' --kv 'gear(bits=2,newest=32)'
  measure "After a basis, the newest 32 spared" --basis "$work/text.safetensors" --kv 'fdc(rate=0.25)+kivi(bits=4,group=64,newest=32)' \
    --kv 'zack(rate=0.25)+kivi(bits=4,group=64,newest=32)' --kv 'lathe(rate=0.25)+kivi(bits=4,group=64,newest=32)' \
    --kv 'lathe(rate=0.25)+kvquant(bits=3,newest=32)' --kv 'lathe(rate=0.25)+kivi(bits=2,group=64,newest=32)' \
    --kv 'lathe(rate=0.25)+kvquant(bits=2,newest=32)' --kv 'lathe(rate=0.5)+kivi(bits=4,group=64,newest=32)' \
    --kv 'lathe(rate=0.25,keys=before)+kivi(bits=4,group=64,newest=32)' --kv 'lathe(rate=0.25,keys=before)+kvquant(bits=3,newest=32)' \
    --kv 'lathe(rate=0.5,keys=before)+kivi(bits=4,group=64,newest=32)'
  specs=()
  for newest in 0 8 16 32 48; do
    specs+=(--kv "lathe(ratio=8,newest=$newest)" --kv "lathe(ratio=8,keys=before,newest=$newest)" --kv "kivi(bits=2,group=64,newest=$newest)")
  done
  measure "The newest positions" --basis "$work/text.safetensors" "${specs[@]}"
  specs=()
  for ratio in 8 10 12; do
    for partner in 'snapkv(keep=0.5)' 'tova(keep=0.5)' 'h2o(keep=0.5)' 'lowrank(prefill=1,decode=0)'; do
      specs+=(--kv "lathe(ratio=$ratio)+$partner")
    done
  done
  measure "lathe with partners" --basis "$work/text.safetensors" "${specs[@]}"
  measure "Without its parts" --basis "$work/text.safetensors" --kv 'lathe(ratio=8,centre=off)' --kv 'lathe(ratio=8,keys=before,centre=off)' --kv 'lathe(ratio=8,sink=0)' \
    --kv 'lathe(ratio=8,open=16)' --kv 'lathe(ratio=8,keys=before,open=16)'
}

retention() {
  local context
  context=$(sed -n 's/.*"max_position_embeddings": *\([0-9]*\).*/\1/p' "$model/config.json")
  for keep in 0.75 0.5 0.25; do
    rate=$(awk "BEGIN { print 1 - $keep }")
    measure "Keeping $keep" --kv none --kv "window(size=$(awk "BEGIN { print int($context * $keep) - 4 }"))" \
      --kv "h2o(keep=$keep)" --kv "h2o(keep=$keep,sink=0)" --kv "tova(keep=$keep)" \
      --kv "tova(keep=$keep,heads=own)" --kv "keyformer(keep=$keep)" --kv "snapkv(keep=$keep)" \
      --kv "kf-f(rate=$rate)" --kv "snapkv(keep=$keep)+gear(bits=4)" --kv "h2o(keep=$keep)+gear(bits=4)"
  done
  local votes=()
  for basis in 'fdc(rate=0.5)' 'zack(rate=0.5)' 'lathe(rate=0.5)' 'fdc(rate=0.75)' 'zack(rate=0.75)' 'lathe(rate=0.75)' 'lathe(ratio=8)'; do
    votes+=(--kv "$basis" --kv "$basis+h2o(keep=1,score=exact)")
    for method in h2o tova keyformer snapkv; do
      votes+=(--kv "$basis+$method(keep=0.5)" --kv "$basis+$method(keep=0.5,score=exact)")
    done
  done
  measure "Votes by stored and by whole keys" --kv none "${votes[@]}" --kv 'kf-f(rate=0.5)' --kv 'kf-f(rate=0.5,score=exact)'
  measure "H2O at half the entries against 4 bits" --kv 'h2o(keep=0.5,sink=0)' --kv 'gear(bits=4,sink=0)' \
    --kv 'kcvt(bits=4,sink=0)' --kv 'h2o(keep=0.5,sink=0)+gear(bits=4,sink=0)'
}

gear() {
  local kivi='kivi(bits=2,group=64)' specs=()
  for share in 0.005 0.01 0.02 0.03 0.05; do specs+=(--kv "$kivi+lowrank+sparse(share=$share)"); done
  measure "Share of exact entries (rank 4 and 2)" --kv "$kivi+lowrank" "${specs[@]}"
  specs=()
  for rank in 1 2 4 8; do specs+=(--kv "$kivi+lowrank(prefill=$rank,decode=$rank)+sparse"); done
  measure "Rank, of prompt and decoded runs alike (2% exact)" --kv "$kivi+sparse" "${specs[@]}"
  measure "Repair of the prompt only" --kv "$kivi+lowrank(decode=0)+sparse" --kv "$kivi+lowrank+sparse"
  specs=()
  for recent in 0 0.25 0.5 0.75 1; do specs+=(--kv "gear(bits=2,run=128,recent=$recent)"); done
  measure "Repair of the newest part of the prompt only" "${specs[@]}"
  measure "Power iterations" --kv "$kivi+lowrank(loops=1)" --kv "$kivi+lowrank(loops=2)" \
    --kv "$kivi+lowrank(loops=3)" --kv "$kivi+lowrank(loops=8)"
}

# The papers' main tables: how far each method compresses at 99% of the baseline, on a text and on the tasks that tell
# caches apart, one after the other. The profiles in build/papers hold every cache that was measured.
papers() {
  local folder goal methods=() goals=(perplexity sort copy recall arithmetic code passkey)
  folder=build/papers/$(basename "$model")
  mkdir -p "$folder"
  for method in fdc zack palu keyformer kvquant gear lathe 'lathe(keys=before)' fdc+kvquant palu+kvquant zack+kvquant fdc+keyformer \
    palu+keyformer zack+keyformer lathe+snapkv lathe+keyformer lathe+h2o; do
    methods+=(--kv "$method")
  done
  for goal in "${goals[@]}"; do
    local options=(--task "$goal" --task-count "$((n_examples > 0 ? n_examples : 50))")
    if [ "$goal" = perplexity ]; then options=(--perplexity "$model/sample.txt"); fi
    "$kvlathe" tune -m "$model" --accuracy 0.99 "${options[@]}" "${methods[@]}" -o "$folder/$goal.json" >/dev/null
  done
  goals=("${goals[@]/#/$folder/}")
  scripts/tuned_table.py 0.99 "${goals[@]/%/.json}"
}

# Text is taken in paragraphs from all over the file, so that a part of it has all its kinds.
calibration() {
  local n tokens source specs=(--kv 'fdc(rate=0.25)' --kv 'zack(rate=0.25)' --kv 'lathe(rate=0.25)') share
  for n in 2048 4096 8192 16384 32768 65536; do
    "$kvlathe" calibrate -m "$model" --random-tokens "$n" -o "$work/basis.safetensors" >/dev/null
    measure "$n random tokens" --basis "$work/basis.safetensors" "${specs[@]}"
  done
  for share in 0.4 0.5 0.7 1; do
    awk -v share="$share" 'BEGIN { RS = ""; ORS = "\n\n" } int(NR * share) > int((NR - 1) * share)' \
      "$model/calibration.txt" >"$work/part.txt"
    tokens=$("$kvlathe" calibrate -m "$model" --text "$work/part.txt" -o "$work/basis.safetensors" |
      sed 's/.*: \([0-9]*\) tokens.*/\1/')
    measure "$tokens tokens of text" --basis "$work/basis.safetensors" "${specs[@]}"
  done
}

# How much of a quantizer's error lies in its first singular values, the papers' way: one run per prompt, no sinks.
spectra() {
  for bits in 4 2; do
    for quantizer in "kcvt(bits=$bits" "kivi(bits=$bits,group=64"; do
      echo "## $quantizer)"
      "$kvlathe" inspect -m "$model" --kv "$quantizer,sink=0,run=prompt)" --errors "$model/sample.txt" |
        sed -n '/^squared errors/,$p'
    done
    measure "What repair does to KL, $bits bits" --kv "kcvt(bits=$bits,sink=0,run=prompt)" \
      --kv "kcvt(bits=$bits,sink=0,run=prompt)+lowrank" --kv "kivi(bits=$bits,group=64,sink=0,run=prompt)" \
      --kv "kivi(bits=$bits,group=64,sink=0,run=prompt)+lowrank"
  done
}

# shape HIDDEN LAYERS HEADS KV_HEADS HEAD_DIM FFN: a config.json.
shape() {
  cat <<JSON
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": $1, "num_hidden_layers": $2,
 "num_attention_heads": $3, "num_key_value_heads": $4, "head_dim": $5, "intermediate_size": $6, "vocab_size": 32000,
 "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "torch_dtype": "bfloat16"}
JSON
}

# Chunks of 512 tokens at the start and far behind (where rows are random), and generated tokens at every context:
# time_table.py adds them up. /KE of the papers is the static schedule, /AC one rank for all heads, /PRC latents from
# before RoPE that are reconstructed (palu), /OE rotations and products at run time (online=on); svd-online is the strawman.
time_of_requests() {
  local config=$work/shape.json contexts=${CONTEXTS:-2048,8192,32768}
  case $model in
    models/lathe-nano) shape 2048 16 32 8 64 8192 >"$config" ;;
    # A sixteenth of the vocabulary too: the last product has the share of a step that it has in the whole model.
    8b) shape 4096 2 32 8 128 14336 | sed 's/32000/2000/' >"$config" ;;
    *) config=$model ;;
  esac
  local bench=("$kvlathe" bench model --random-model "$config" -r 1 --json) prompt=(-p 512 -n 0 -d "0,${contexts##*,}") step=(-p 0 -n 4 -d "$contexts")
  local specs=() kv
  for kv in none 'fdc(rate=0.5)' 'zack(rate=0.5)' 'zack(rate=0.3,ranks=uniform)' 'lathe(rate=0.5)' 'lathe(ratio=4)' 'lathe(ratio=8)' \
    'palu(rate=0.5)' 'zack(rate=0.5,online=on)' 'svd-online(rate=0.5)'; do
    specs+=(--kv "$kv")
  done
  "${bench[@]}" "${specs[@]}" "${prompt[@]}" >"$work/balanced-p.json"
  "${bench[@]}" "${specs[@]}" "${step[@]}" >"$work/balanced-n.json"
  "${bench[@]}" --kv 'zack(rate=0.5)' --schedule static "${prompt[@]}" >"$work/static-p.json"
  "${bench[@]}" --kv 'zack(rate=0.5)' --schedule static "${step[@]}" >"$work/static-n.json"
  scripts/time_table.py "$work"/{balanced,static}
}

# Time of a step by context, and by sequences of 2048 tokens; a picture of both with the machine's limits.
scaling() {
  local config=$work/shape.json specs=(--kv none --kv 'fdc(rate=0.5)' --kv 'kivi(bits=4)' --kv 'lathe(ratio=4)' --kv 'lathe(ratio=8)')
  shape 2048 16 32 8 64 8192 >"$config"
  local bench=("$kvlathe" bench model --random-model "$config" -p 0 -n 4 -r 1 --kv-memory 8G --limits --json)
  "${bench[@]}" "${specs[@]}" -d 1024,2048,4096,8192,16384,32768,65536 >"$work/contexts.json"
  "${bench[@]}" "${specs[@]}" -d 2048 --parallel 1,2,4,8,16,32,64 >"$work/sequences.json"
  scripts/scaling_chart.py "$work/contexts.json" "$work/sequences.json" docs/scaling.svg
}

# What collecting votes costs: attention over a prompt of 8192, all of it kept until it ends (one layer of the 8B shape).
votes() {
  shape 4096 1 32 8 128 14336 >"$work/shape.json"
  local specs=(--kv 'h2o(keep=0.5,prune=prompt)' --kv 'keyformer(keep=0.5,prune=prompt)' --kv 'tova(keep=0.5,prune=prompt)' --kv 'snapkv(keep=0.5)')
  "$kvlathe" bench model --random-model "$work/shape.json" -p 8192 -n 0 -r 4 --kv none "${specs[@]}" --json >"$work/votes.json"
  scripts/votes_table.py "$work/votes.json"
}

# The config.json of MODEL, here one itself, or the 1B shape.
shape_of_1b() {
  if [ "$model" != models/lathe-nano ]; then
    echo "$model"
  else
    shape 2048 16 32 8 64 8192 | sed 's/131072/262144/' >"$work/1b.json"
    echo "$work/1b.json"
  fi
}

# GEAR's Tables 6 and 7 and Figures 3 and 4 in our form. BUDGET holds three uncompressed sequences of the 1B shape.
throughput() {
  scripts/throughput_table.py "$kvlathe" "$(shape_of_1b)" "${BUDGET:-256MiB}" "${CONTEXT:-2062}" none 'kcvt(bits=4)' 'gear-l(bits=4)' \
    'gear(bits=4)' 'kivi(bits=2,group=64)' 'gear-l(bits=2)' 'gear(bits=2)' 'lathe(ratio=8)'
}

# 64 tokens seal one run.
shares() {
  local quantizer
  for quantizer in 'kcvt(bits=4)' 'kivi(bits=2,group=64)'; do
    echo "## $quantizer with GEAR's repairs"
    echo
    "$kvlathe" bench model --random-model "$(shape_of_1b)" --kv "$quantizer" --kv "$quantizer+lowrank" --kv "$quantizer+lowrank+sparse" \
      -p 512 -n 64 -d 4096 -r 1 --json >"$work/rows.json"
    scripts/gear_shares.py "$work/rows.json"
    echo
  done
}

deviation() {
  "$kvlathe" compare -m "$model" --kv 'kcvt(bits=4)' --kv 'gear-l(bits=4)' --kv 'gear(bits=4)' --kv 'kivi(bits=2,group=64)' \
    --kv 'gear-l(bits=2)' --kv 'gear-l(bits=2,decode=0)' --kv 'gear(bits=2)' --kv 'lathe(ratio=8)' --json >"$work/compared.json"
  for field in logit_deviation kl; do
    echo "## $field"
    echo
    scripts/deviation_table.py "$field" "$work/compared.json"
    echo
  done
}

# 13 layers are the fewest that are calibrated as deep models are.
calibration_cost() {
  shape 4096 13 32 8 128 14336 >"$work/8b.json"
  if [ "$model" != models/lathe-nano ]; then
    sed 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 13/' "$model" >"$work/8b.json"
  fi
  "$kvlathe" calibrate --random-model "$work/8b.json" --json >"$work/cost.json"
  scripts/calibration_cost.py 13 32 "$work/cost.json"
}

case $part in
  basis | bases | groups | quantizers | gear | bits | retention | papers | calibration | spectra | throughput | shares | deviation | scaling | votes | real) "$part" ;;
  time) time_of_requests ;;
  calibration-cost) calibration_cost ;;
  all) basis && bases && groups && quantizers && gear && bits && retention ;;
  *) echo "usage: scripts/results.sh [PART [MODEL [EXAMPLES]]], PART as at the top of the script" >&2 && exit 2 ;;
esac
