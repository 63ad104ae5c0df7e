# Prints the environment of a payload: for each row of the table in docs/using.md its name, a tab and the value here.
row() { printf '%s\t%s\n' "$1" "$2"; }
holds() {
    dd if=/dev/zero of="$1/probe" bs=1M count=100 2>/dev/null && echo yes || echo no
    rm -f "$1/probe"
}
row 'working directory' "$PWD"
row 'path of the script' "$0"
row HOME "$HOME"
row 'TMPDIR, TMP, TEMP' "$TMPDIR"
[ "$TMP$TEMP" = "$TMPDIR$TMPDIR" ] || row TMP "$TMP $TEMP"
row '_CONDOR_SCRATCH_DIR' "${_CONDOR_SCRATCH_DIR:-not set}"
row 'HOME holds 100 MB' "$(holds "$HOME")"
row '/tmp holds 100 MB' "$(holds /tmp)"
row '/dev/shm holds 100 MB' "$(holds /dev/shm)"
row 'command is found in the PATH of env' "${FOUND_IN_PATH:-no}"
row 'standard input' "$(readlink /proc/self/fd/0)"
row umask "$(umask)"
row 'core files, in blocks' "$(ulimit -c)"
row 'open files' "$(ulimit -n)"
row 'user' "$(id -u)"
