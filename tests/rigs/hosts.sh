# Simulates hosts with namespaces. Each host has its own network, host name, process ids, mounts and /dev/shm. A switch (a bridge in
# a namespace) connects their eth0 with addresses 10.79.0.1, 10.79.0.2, … Sourced by bash, as root.
#
#     hosts_make NAME COUNT [BRIDGE]    creates the hosts; BRIDGE: each also has an interface of this name, with address 172.17.0.1
#     on_host NAME I command…           runs the command on host I (1, 2, …), whose name is hostI
#     hosts_agent NAME                  a script replaces ssh for every mpirun from now on; as with ssh, the command gets a new environment
#     hosts_mpirun NAME COUNT …         runs mpirun on host 1 with one slot on each host
#     hosts_hold NAME COUNT RATE [SIDES] [BURST]
#                                       limits each host's link to RATE (none: no limit) by tc. SIDES both: both directions; sent: only
#                                       what a host sends. BURST: bytes that may pass at once after a pause. Fails if tc is not permitted
#     hosts_rack NAME COUNT FIRST       moves the hosts from FIRST on to a second switch (a rack) with one uplink to the first
#     hosts_hold_uplink NAME RATE BURST limits the uplink of the rack in both directions
#     hosts_remove NAME COUNT           ends the hosts' processes and removes the hosts

hosts_make() {
    local name=$1 count=$2 bridge=${3:-} i
    ip netns add "$name-switch" || return 1
    ip -n "$name-switch" link add switch type bridge
    ip -n "$name-switch" link set switch up
    for ((i = 1; i <= count; i++)); do
        ip netns add "$name-$i"
        ip link add eth0 netns "$name-$i" type veth peer name "port$i" netns "$name-switch"
        ip -n "$name-switch" link set "port$i" master switch up
        ip -n "$name-$i" addr add "10.79.0.$i/24" dev eth0
        ip -n "$name-$i" link set eth0 up
        ip -n "$name-$i" link set lo up
        [ -z "$bridge" ] || host_bridge "$name-$i" "$bridge"
    done
    unshare --uts --pid --fork --mount-proc --mount true
}

# Like docker0 with a container. Without a container the bridge would be down.
host_bridge() {
    ip -n "$1" link add "$2" type bridge
    ip -n "$1" addr add 172.17.0.1/16 dev "$2"
    ip -n "$1" link set "$2" up
    ip -n "$1" link add inner0 type veth peer name inner1
    ip -n "$1" link set inner0 master "$2" up
    ip -n "$1" link set inner1 up
}

on_host() {
    local name=$1 i=$2
    shift 2
    ip netns exec "$name-$i" unshare --uts --pid --fork --mount --mount-proc --kill-child bash -c \
        'echo "host$0" >/proc/sys/kernel/hostname; mount -t tmpfs none /dev/shm; exec "$@"' "$i" "$@"
}

hosts_agent() {
    local name=$1 agent=$PWD/agent
    { echo '#!/bin/bash'
      declare -f on_host
      # Arguments of ssh: the address of the host, then the command as one line.
      echo "host=\$1; shift; on_host $name \"\${host##*.}\" env -i HOME=\"\$HOME\" PATH=\"\$PATH\" PRTE_MCA_prte_tmpdir_base=/dev/shm bash -c \"\$*\""; } >"$agent"
    chmod +x "$agent"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_plm_rsh_agent=$agent PRTE_MCA_plm_ssh_agent=$agent # for Open MPI 4.1 and 5
}

hosts_mpirun() {
    local name=$1 count=$2 list
    shift 2
    list=localhost:1,$(seq -s, -f '10.79.0.%g:1' 2 "$count")
    hosts_agent "$name"
    on_host "$name" 1 mpirun -n "$count" --host "$list" --bind-to none "$@"
}

# NAMESPACE DEVICE RATE BURST
hold() {
    tc -n "$1" qdisc del dev "$2" root 2>/dev/null || true
    [ "$3" = none ] || tc -n "$1" qdisc add dev "$2" root tbf rate "$3" burst "$4" latency 100ms
}

hosts_hold() {
    local name=$1 count=$2 rate=$3 back=none burst=${5:-256kb} i space
    [ "${4:-sent}" = sent ] || back=$rate
    for ((i = 1; i <= count; i++)); do
        space=$name-switch
        ! ip -n "$name-rack" link show "port$i" >/dev/null 2>&1 || space=$name-rack
        hold "$name-$i" eth0 "$rate" "$burst" && hold "$space" "port$i" "$back" "$burst" || return
    done
}

# The links keep their ends at the hosts; the other ends move to the switch of the rack.
hosts_rack() {
    local name=$1 count=$2 first=$3 i
    ip netns add "$name-rack"
    ip -n "$name-rack" link add switch type bridge
    ip -n "$name-rack" link set switch up
    ip link add uplink netns "$name-rack" type veth peer name uplink netns "$name-switch"
    ip -n "$name-rack" link set uplink master switch up
    ip -n "$name-switch" link set uplink master switch up
    for ((i = first; i <= count; i++)); do
        ip -n "$name-switch" link set "port$i" netns "$name-rack"
        ip -n "$name-rack" link set "port$i" master switch up
    done
}

hosts_hold_uplink() {
    hold "$1-rack" uplink "$2" "$3"
    hold "$1-switch" uplink "$2" "$3"
}

hosts_remove() {
    local name=$1 count=$2 i
    for ((i = 1; i <= count; i++)); do
        ip netns pids "$name-$i" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
        ip netns del "$name-$i" 2>/dev/null || true
    done
    ip netns del "$name-rack" 2>/dev/null || true
    ip netns del "$name-switch" 2>/dev/null || true
}
