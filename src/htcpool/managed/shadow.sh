#!/bin/sh
# shadow CLUSTER.PROC ...: becomes the shadow of one job, which reads and writes that job's files in the spool and no others.
# The schedd starts it in the place of condor_shadow. In the pod it is a file of the ConfigMap.
set -eu
case $1 in
    *[!0-9.]* | *.*.* | .* | *.) job= ;;
    *.*) job=$1 ;;
    *) job= ;;
esac
if [ -z "$job" ]; then
    echo "shadow: $1 is no job" >&2
    exit 1
fi
cluster=${1%.*} proc=${1#*.}
job=/htcpool/spool/spool/$((cluster % 10000))/$((proc % 10000))/cluster$cluster.proc$proc.subproc0
# HTCondor's own shadow makes the first two when it begins, and the third when output replaces files that are there.
for folder in "$job" "$job.tmp" "$job.swap"; do
    if [ -h "$folder" ]; then
        echo "shadow: $folder is a link" >&2
        exit 1
    fi
    [ -d "$folder" ] || (umask 077 && mkdir -p "$folder")
done
exec /htcondor/usr/libexec/condor/htc-confine --landlock \
    --read=/htcondor --read=/usr --read=/bin --read=/lib --read=/lib64 --read=/proc --read=/sys --read=/dev/urandom --read=/dev/random \
    --read=/etc/passwd --read=/etc/group --read=/etc/nsswitch.conf --read=/etc/hosts --read=/etc/host.conf --read=/etc/resolv.conf \
    --read=/etc/gai.conf --read=/etc/services --read=/etc/protocols --read=/etc/localtime --read=/etc/ld.so.cache \
    --read=/htcpool/config --read=/htcpool/node/shadow.conf --read=/htcpool/local/lock --read=/htcpool/spool/spool/spool_version \
    --write=/dev/null --files="$job" --files="$job.tmp" --files="$job.swap" --logs=/htcpool/local/shadow \
    -- /htcondor/usr/sbin/condor_shadow "$@"
