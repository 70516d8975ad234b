#!/usr/bin/env bash
# Runs a program of several ranks on this machine, each rank in a network namespace of its own, over TCP: a network whose
# bandwidth can be set. Needs root, iproute2 and OpenMPI.
set -euo pipefail

if (($# < 3)); then
  echo "usage: tests/bench/namespaces.sh RANKS RATE PROGRAM [ARGUMENT ...]    RATE as tc has it: 100mbit, 1gbit; 0: no limit" >&2
  exit 2
fi
ranks=$1 rate=$2
shift 2
[[ $ranks =~ ^[1-9][0-9]?$ ]] || { echo "namespaces.sh: RANKS must be 1 to 99, got '$ranks'" >&2; exit 2; }
id=$$ bridge=sl$(($$ % 100000))

clean() {
  for ((r = 0; r < ranks; ++r)); do ip netns del "sluice-$id-$r" 2>/dev/null || true; done
  ip link del "$bridge" 2>/dev/null || true
}
trap clean EXIT

ip link add "$bridge" type bridge
ip addr add 10.77.0.254/24 dev "$bridge"
ip link set "$bridge" up
for ((r = 0; r < ranks; ++r)); do
  space=sluice-$id-$r
  ip netns add "$space"
  ip link add "$bridge-$r" type veth peer name net netns "$space"
  ip link set "$bridge-$r" master "$bridge" up
  ip -n "$space" link set lo up
  ip -n "$space" addr add "10.77.0.$((r + 1))/24" dev net
  ip -n "$space" link set net up
  if [[ $rate != 0 ]]; then  # out of the rank, and into it
    ip netns exec "$space" tc qdisc add dev net root tbf rate "$rate" burst 256kbit latency 50ms
    tc qdisc add dev "$bridge-$r" root tbf rate "$rate" burst 256kbit latency 50ms
  fi
done

# The launcher talks to the ranks over the bridge, the ranks to one another over theirs.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PMIX_MCA_ptl_tcp_if_include=$bridge PMIX_MCA_ptl_tcp_remote_connections=1 PMIX_MCA_gds=hash
# shellcheck disable=SC2016
mpirun -n "$ranks" --oversubscribe --bind-to none --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 \
  bash -c 'exec ip netns exec "sluice-'"$id"'-$OMPI_COMM_WORLD_LOCAL_RANK" "$@"' sluice "$@"
