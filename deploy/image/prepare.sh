#!/bin/sh
# prepare.sh ROOT: the account that the operator runs as, and the folders that its volumes are mounted on. HTCondor's tools
# refuse a user without an entry in passwd.
set -eu
root=${1%/}

grep -q '^htc-operator:' "$root/etc/group" || echo 'htc-operator:x:10001:' >>"$root/etc/group"
grep -q '^htc-operator:' "$root/etc/passwd" ||
    echo 'htc-operator:x:10001:10001:htc-operator:/nonexistent:/usr/sbin/nologin' >>"$root/etc/passwd"
mkdir -p "$root/data" "$root/state" "$root/credentials" "$root/etc/htc-operator" "$root/usr/local/bin"
