#!/usr/bin/env bash
# Starts N replicas of `kvlathe serve` and HAProxy in front of them, on this machine, for anybody:
#   deploy/replicas.sh 2 -m models/lathe-nano           the words behind N go to kvlathe serve
#   deploy/replicas.sh --stop                           ends what runs, as Ctrl-C does: requests finish
# Before N may stand:
#   --port 8080               where clients come to (127.0.0.1); statistics have a free port behind it,
#                             replicas and agents any free ones, which are printed
#   --balance shortest-queue  or leastconn, roundrobin
#   --state DIR               logs, sockets and process ids; a second set of replicas needs another
#   --shutdown-timeout 60     seconds that running requests have when all ends
# The replicas run from $KVLATHE (by default build/release/bin/kvlathe, or kvlathe of the PATH).
# Once all are healthy, URLs are on standard output. A replica that ends is reported and not started
# again: that is systemd's work (docs/deploy.md).
set -euo pipefail
umask 077

port=8080 balance=shortest-queue action=start shutdown_timeout=60
state=${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}/kvlathe-replicas-$(id -u)
readonly max_body_bytes=$((2 << 20)) host=127.0.0.1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
  echo "deploy/replicas.sh: $*" >&2
  exit 1
}
bad_usage() {
  echo "deploy/replicas.sh: $*; deploy/replicas.sh --help" >&2
  exit 2
}

while [[ ${1:-} == -* ]]; do
  case $1 in
    --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --stop) action=stop; shift; continue ;;
    --port | --balance | --state | --shutdown-timeout) [ $# -ge 2 ] || bad_usage "$1 needs a value" ;;
    *) bad_usage "unknown option $1" ;;
  esac
  case $1 in
    --port) port=$2 ;;
    --balance) balance=$2 ;;
    --state) state=$2 ;;
    --shutdown-timeout) shutdown_timeout=$2 ;;
  esac
  shift 2
done

# Whoever starts replicas holds the lock of their state for as long as it lives.
is_running() { [ -e "$state/lock" ] && ! flock -n "$state/lock" true; }

if [ "$action" = stop ]; then
  is_running || fail "nothing runs with the state in $state"
  kill -TERM "$(cat "$state/supervisor.pid")"
  while is_running; do sleep 0.1; done
  exit 0
fi

[[ ${1:-} =~ ^[1-9][0-9]?$ ]] || bad_usage "the first word is the number of replicas, 1 to 99"
n_replicas=$1
shift
[[ $port =~ ^[1-9][0-9]{0,4}$ ]] && [ "$port" -le 65000 ] || bad_usage "--port is 1 to 65000"
[[ $shutdown_timeout =~ ^[1-9][0-9]{0,4}$ ]] || bad_usage "--shutdown-timeout is seconds, at least 1"
case $balance in
  shortest-queue | leastconn | roundrobin) ;;
  *) bad_usage "--balance is shortest-queue, leastconn or roundrobin" ;;
esac
for word in "$@"; do
  case ${word%%=*} in
    --host | --port | --agent-port | --max-body-bytes | --drain-delay | --shutdown-timeout)
      bad_usage "${word%%=*} of the replicas is chosen here" ;;
  esac
done

haproxy=$(PATH=$PATH:/usr/sbin command -v haproxy) || fail "no haproxy here; apt-get install haproxy"
config=$here/haproxy/haproxy.cfg
[ -r "$config" ] || fail "$config is missing"
kvlathe=${KVLATHE:-$here/../build/release/bin/kvlathe}
[ -x "$kvlathe" ] || kvlathe=$(command -v kvlathe) || fail "no kvlathe here; build it, or set KVLATHE"

mkdir -p "$state"
[ -O "$state" ] && [ ! -L "$state" ] || fail "$state is somebody else's"
chmod 700 "$state"
exec 9>"$state/lock"
flock -n 9 || fail "replicas run already with the state in $state; deploy/replicas.sh --stop ends them"
rm -f "$state"/*.log "$state"/*.pid "$state/haproxy.sock"
echo $$ >"$state/supervisor.pid"

next_port=$port
# Sets `free_port` to the next port, from next_port on, that nobody listens on.
find_free_port() {
  while [ "$next_port" -le 65535 ]; do
    free_port=$next_port
    next_port=$((next_port + 1))
    # A connection that is refused means a free port.
    (exec 3<>"/dev/tcp/$host/$free_port") 2>/dev/null || return 0
  done
  fail "no free port behind $port"
}

replica_pids=() replica_ports=() agent_ports=() haproxy_pid=

# end_within SECONDS PID...: waits until the processes have ended; kills what is left then.
end_within() {
  local deadline=$((SECONDS + $1)) pid
  shift
  for pid in "$@"; do
    while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
}

# The balancer first, which takes no more and waits for its requests; then the replicas, idle by now.
stop_all() {
  trap '' INT TERM
  if [ -n "$haproxy_pid" ]; then
    kill -USR1 "$haproxy_pid" 2>/dev/null || true
    end_within "$shutdown_timeout" "$haproxy_pid"
  fi
  for pid in ${replica_pids[@]+"${replica_pids[@]}"}; do kill -TERM "$pid" 2>/dev/null || true; done
  end_within $((shutdown_timeout + 5)) ${replica_pids[@]+"${replica_pids[@]}"}
  rm -f "$state"/*.pid "$state/haproxy.sock"
}
trap stop_all EXIT
trap 'exit 0' INT TERM

start_replica() {
  local i=$1
  shift
  # A session of its own: Ctrl-C of the terminal ends this script, and the script ends the replicas.
  setsid "$kvlathe" serve "$@" --host "$host" --port 0 --agent-port 0 \
    --max-body-bytes "$max_body_bytes" --drain-delay 1 --shutdown-timeout "$shutdown_timeout" \
    9>&- </dev/null >"$state/replica$i.log" 2>&1 &
  replica_pids+=($!)
  echo $! >"$state/replica$i.pid"
}

# require_alive NAME PID: ends the script, with the last lines of the log, if the process is gone.
require_alive() {
  kill -0 "$2" 2>/dev/null && return
  tail -n 5 "$state/$1.log" >&2
  fail "$1 ended before it was healthy (its last lines are above; $state/$1.log)"
}

# Adds the ports of a replica, which its log names once it listens.
find_ports() {
  local log=$state/replica$1.log line
  until line=$(grep -m 1 '"event":"listening"' "$log"); do
    require_alive "replica$1" "${replica_pids[$1 - 1]}"
    sleep 0.05
  done
  replica_ports+=("$(sed 's/.*"port":\([0-9]*\).*/\1/' <<<"$line")")
  agent_ports+=("$(sed 's/.*"agent_port":\([0-9]*\).*/\1/' <<<"$line")")
}

is_healthy() {
  local status
  exec 3<>"/dev/tcp/$host/$1" || return 1
  printf 'GET /health HTTP/1.1\r\nHost: kvlathe\r\nConnection: close\r\n\r\n' >&3
  IFS= read -r -t 10 status <&3 || status=
  exec 3>&-
  [[ $status == "HTTP/1.1 200"* ]]
}

# wait_healthy NAME PID PORT: until /health of the port is true, for as long as the process lives.
wait_healthy() {
  until (is_healthy "$3") 2>/dev/null; do
    require_alive "$1" "$2"
    sleep 0.1
  done
}

find_free_port
[ "$free_port" = "$port" ] || fail "somebody listens on port $port already; choose another with --port"
for ((i = 1; i <= n_replicas; ++i)); do start_replica "$i" "$@"; done
for ((i = 1; i <= n_replicas; ++i)); do find_ports "$i"; done
find_free_port
stats_port=$free_port

# The shipped configuration, with these replicas for its own two.
sed '/^    server /d' "$config" >"$state/haproxy.cfg"
for ((i = 1; i <= n_replicas; ++i)); do
  echo "    server replica$i $host:${replica_ports[i - 1]} agent-port ${agent_ports[i - 1]}"
done >>"$state/haproxy.cfg"

for ((i = 1; i <= n_replicas; ++i)); do
  wait_healthy "replica$i" "${replica_pids[i - 1]}" "${replica_ports[i - 1]}"
done
KVLATHE_RUN=$state KVLATHE_BIND=$host:$port KVLATHE_STATS=$host:$stats_port KVLATHE_BALANCE=$balance \
  KVLATHE_BUFFER=$((max_body_bytes + 65536)) setsid "$haproxy" -db -f "$state/haproxy.cfg" \
  9>&- </dev/null >"$state/haproxy.log" 2>&1 &
haproxy_pid=$!
echo "$haproxy_pid" >"$state/haproxy.pid"
wait_healthy haproxy "$haproxy_pid" "$port"

for ((i = 1; i <= n_replicas; ++i)); do
  echo "replica $i   http://$host:${replica_ports[i - 1]}  agent $host:${agent_ports[i - 1]}  process ${replica_pids[i - 1]}"
done
echo "statistics  http://$host:$stats_port"
echo "logs        $state"
echo "all         http://$host:$port"

# Until a signal, or until the balancer or the last replica has ended.
alive=$n_replicas
while kill -0 "$haproxy_pid" 2>/dev/null; do
  for ((i = 1; i <= n_replicas; ++i)); do
    pid=${replica_pids[i - 1]}
    if [ -e "$state/replica$i.pid" ] && ! kill -0 "$pid" 2>/dev/null; then
      status=0
      wait "$pid" || status=$?
      rm -f "$state/replica$i.pid"
      alive=$((alive - 1))
      echo "deploy/replicas.sh: replica $i ended with status $status ($state/replica$i.log); $alive go on" >&2
    fi
  done
  [ "$alive" -gt 0 ] || fail "no replica is left"
  # `wait` gives way to a signal, `sleep` would not.
  sleep 0.5 9>&- &
  wait $! || true
done
tail -n 5 "$state/haproxy.log" >&2
fail "HAProxy ended (its last lines are above; $state/haproxy.log)"
