#!/usr/bin/env bash
# Starts one `kvlathe serve` whose model several ranks share, by mpirun, on this machine or on several:
#   deploy/ranks.sh --tp 2 -m model.gguf             two ranks on this machine
#   deploy/ranks.sh --hosts FILE --tp 2 --pp 2 -m model.gguf
#                                                    four ranks on the machines of an OpenMPI hostfile, of which this one is the
#                                                    first ("node-a slots=1", a line for each); all have the same kvlathe and model
# Words go to kvlathe serve, but for those that may stand before them:
#   --hosts FILE       reaches the machines by ssh
#   --network ADDRESS  that ranks use, such as 10.0.0.0/24, where machines have several
#   --bind numa        or socket, core: a rank for each of them, with its memory (default: none)
# SIGTERM and Ctrl-C drain the server, which then ends all ranks; the exit status is that of mpirun, 0 after a drain. When a rank ends,
# stops or has no memory, all end with one line that names it (docs/several.md), and nothing is started again: that is for who
# started this. KVLATHE_API_KEY stays on this machine, where rank 0 has the server. The program is $KVLATHE (by default build/release/bin/kvlathe, or kvlathe of the PATH).
set -euo pipefail

fail() {
  echo "deploy/ranks.sh: $*" >&2
  exit 2
}

hosts='' network='' bind=none
while [ $# -gt 0 ]; do
  case $1 in
    --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --hosts | --network | --bind) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    *) break ;;
  esac
  case $1 in
    --hosts) hosts=$2 ;;
    --network) network=$2 ;;
    --bind) bind=$2 ;;
  esac
  shift 2
done
case $bind in
  none | numa | socket | core) ;;
  *) fail "--bind is none, numa, socket or core" ;;
esac
[ -z "$hosts" ] || [ -r "$hosts" ] || fail "$hosts cannot be read; it lists machines, one a line"

# The number of ranks is the product of two options of kvlathe serve.
tp=1 pp=1 previous=
for word in "$@"; do
  case $previous in
    --tp) tp=$word ;;
    --pp) pp=$word ;;
  esac
  case $word in
    --tp=*) tp=${word#*=} ;;
    --pp=*) pp=${word#*=} ;;
  esac
  previous=$word
done
[[ $tp =~ ^[1-9][0-9]{0,3}$ && $pp =~ ^[1-9][0-9]{0,3}$ ]] || fail "--tp and --pp are numbers of ranks, at least 1"

mpirun=$(command -v mpirun) || fail "no mpirun here; apt-get install openmpi-bin"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kvlathe=${KVLATHE:-$here/../build/release/bin/kvlathe}
[ -x "$kvlathe" ] || kvlathe=$(command -v kvlathe) || fail "no kvlathe here; build it, or set KVLATHE"

words=(-n $((tp * pp)) --bind-to "$bind")
[ "$bind" = none ] || words+=(--map-by "$bind")
[ -z "$hosts" ] || words+=(--hostfile "$hosts")
[ -z "$network" ] || words+=(--mca btl_tcp_if_include "$network" --mca oob_tcp_if_include "$network")
# A session of its own: Ctrl-C of the terminal ends this script, and the script asks rank 0.
setsid "$mpirun" "${words[@]}" "$kvlathe" serve "$@" </dev/null &
mpirun_pid=$!

# Sets `leader` to the process of rank 0, which is a child of mpirun. There is none before ranks start, or behind their end.
find_leader() {
  local pid
  leader=
  for pid in $(cat "/proc/$mpirun_pid/task/"*/children 2>/dev/null); do
    if grep -qz '^OMPI_COMM_WORLD_RANK=0$' "/proc/$pid/environ" 2>/dev/null; then leader=$pid; fi
  done
}

drain() {
  find_leader
  kill -TERM "${leader:-$mpirun_pid}" 2>/dev/null || true
}
trap drain INT TERM

# mpirun goes on when rank 0 is gone as long as it believes that it hears of a machine that is cut off: then it is ended here.
is_gone() { ! kill -0 "$1" 2>/dev/null; }
first_seconds='' known_leader=
until is_gone "$mpirun_pid"; do
  # `wait` gives way to a signal, `sleep` would not.
  sleep 0.5 &
  wait $! || true
  if [ -z "$known_leader" ]; then
    find_leader
    known_leader=$leader
  elif is_gone "$known_leader"; then
    first_seconds=${first_seconds:-$SECONDS}
    [ $((SECONDS - first_seconds)) -lt 4 ] || kill -KILL "$mpirun_pid" 2>/dev/null || true
  fi
done
status=0
wait "$mpirun_pid" || status=$?
exit "$status"
