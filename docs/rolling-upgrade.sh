#!/usr/bin/env bash
# Upgrades the nodes of a cluster one after the other, the leader last, while the cluster serves clients.
#
#   rolling-upgrade.sh sb1 sb2 sb3      upgrade these nodes
#   rolling-upgrade.sh --finalize sb1   complete the upgrade, after which older versions cannot join
#
# Each argument is the name of a node (cluster.node) and of its machine. It stops at the first node that does not come
# back, so at most one node is missing. The way back is the same script with INSTALL set to what installs the version
# before, until the upgrade is completed with --finalize.
#
# Environment:
#   ON        runs a command on a machine; called with the name of the machine and the command (default: ssh -l root)
#   INSTALL   installs the version on a machine (default: apt-get install -y --only-upgrade signalbox)
#   PATIENCE  seconds until a node has to be back (default: 60)
set -euo pipefail

on() { ${ON:-ssh -l root} "$1" "$2"; }
install=${INSTALL:-apt-get install -y --only-upgrade signalbox}
patience=${PATIENCE:-60}
fail() {
    echo "rolling-upgrade.sh: $1" >&2
    exit 1
}

if [ "${1:-}" = --finalize ]; then
    [ $# = 2 ] || fail "--finalize needs one node, whose version has to be the new one"
    on "$2" "signalbox cluster finalize"
    exit
fi
[ $# -gt 0 ] || fail "name the nodes to upgrade"
first=$1

# The status is that of the cluster, wherever it is asked for. Its exit status says who leads, which the text says too.
status() { on "$first" "signalbox cluster status" 2>/dev/null || true; }
leader() { awk '$1 == "leader" { print $2 }' <<<"$1"; }
# state NODE STATUS: leads, stands, relays (a node that never leads), silent, or nothing.
state() { awk -v node="$1" '/^NODE/ { nodes = 1 } /^$/ { nodes = 0 } nodes && $1 == node { print $2 }' <<<"$2"; }
is_well() {
    local now
    now=$(status)
    [ "$(leader "$now")" != none ] || return 1
    case $(state "$1" "$now") in leads | stands | relays) ;; *) return 1 ;; esac
}

before=$(status)
leads=$(leader "$before")
[ -n "$leads" ] || fail "\"signalbox cluster status\" fails on $first; run it there"
[ "$leads" != none ] || fail "no node leads; see \"signalbox cluster status\" on $first"
nodes=()
for node in "$@"; do
    [ -n "$(state "$node" "$before")" ] || fail "the cluster has no node \"$node\"; see \"signalbox cluster status\" on $first"
    [ "$node" = "$leads" ] || nodes+=("$node")
done
for node in "$@"; do
    [ "$node" != "$leads" ] || nodes+=("$node")
done

for node in "${nodes[@]}"; do
    echo "$node: upgrading"
    # A leader hands over to another node.
    on "$node" "signalbox cluster drain $node" || fail "$node was not drained; nothing was changed there"
    # Otherwise systemd would start the version before for the next client.
    units=signalbox
    [ "$(on "$node" "systemctl is-active signalbox.socket" || true)" != active ] || units="signalbox.socket signalbox"
    on "$node" "systemctl stop $units"
    on "$node" "$install"
    on "$node" "systemctl start $units"
    deadline=$((SECONDS + patience))
    until is_well "$node"; do
        [ $SECONDS -lt $deadline ] ||
            fail "$node is not back after $patience s; see its log (journalctl -u signalbox), and continue when it is well"
        sleep 0.2
    done
    echo "$node: $(state "$node" "$(status)" | sed 's/stands/stands by/')"
done
status | sed -n '/^record_format/p'
