#!/bin/bash
# A real Slurm of two nodes on this machine, for a command: benchmarks/local_slurm.sh COMMAND…
#
# Debian: apt-get install slurmctld slurmd slurm-client munge. As root, in a folder of its own; nothing of the
# machine's own Slurm is touched. It starts munged, slurmctld and one slurmd a node (slurmd -N), each on a port of
# its own, runs the command with SLURM_CONF set, and ends what it started.
set -eu
[ "$(id -u)" = 0 ] || { echo "needs root: slurmd starts steps as their user" >&2; exit 2; }
folder=$(mktemp -d /tmp/local-slurm-XXXXXX)
cpus=$(nproc)
started=()
end() { for process in "${started[@]}"; do kill "$process" 2>/dev/null || true; done; wait 2>/dev/null || true; }
trap end EXIT

dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 status=none
chmod 600 "$folder/munge.key"
mkdir "$folder/munge" && chmod 755 "$folder" "$folder/munge"
socket=$folder/munge/socket
munged --force --foreground --key-file="$folder/munge.key" --socket="$socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" >"$folder/munged.out" 2>&1 &
started+=($!)

cat >"$folder/slurm.conf" <<CONF
ClusterName=local
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SlurmdParameters=config_overrides
NodeName=node1 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=16818 CPUs=$cpus State=UNKNOWN
NodeName=node2 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=16819 CPUs=$cpus State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
mkdir -p "$folder/state" "$folder/spool.node1" "$folder/spool.node2"
export SLURM_CONF=$folder/slurm.conf
slurmctld -D >"$folder/slurmctld.out" 2>&1 &
started+=($!)
for node in node1 node2; do
    slurmd -D -N "$node" >"$folder/$node.out" 2>&1 &
    started+=($!)
done
for _ in $(seq 60); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && break
    sleep 0.5
done
sinfo
"$@"
