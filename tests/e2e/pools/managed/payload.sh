# A payload that tries what it could do to its worker: a line "WHAT yes" or "WHAT no" for each in /runs/tried. At last it leaves a process
# behind that has no parent, no session and no environment in common with it.
set +e
try() {
    what=$1
    shift
    if "$@" >/dev/null 2>&1; then echo "$what yes"; else echo "$what no"; fi >>/runs/tried
}
# pid NAME: the process of a program.
pid() {
    for folder in /proc/[0-9]*; do
        read -r comm <"$folder/comm" && [ "$comm" = "$1" ] && echo "${folder#/proc/}" && return
    done
}
neighbours() {
    for folder in /htcpool/local/execute/dir_*; do
        case $PWD/ in
            "$folder"/*) ;;
            *) grep -rq "sesame-of-a-neighbour" "$folder" && return ;;
        esac
    done
    return 1
}
# The startd writes there what lets a client claim it: from a glob, whose names depend on its slots.
claims() { cat /htcpool/local/log/.startd_claim_id* | grep -q .; }
opens() { : <"$1"; }
startd=$(pid condor_startd) starter=$(pid condor_starter) master=$(pid condor_master)
echo "daemons $startd $starter $master" >&2
try token cat /htcpool/local/tokens.d/token
try log grep -q . /htcpool/local/log/StartLog
try claim claims
try neighbour neighbours
try program /htcondor/usr/bin/condor_version
try signal-to-startd kill -CONT "$startd"
try signal-to-starter kill -CONT "$starter"
try signal-to-parent kill -CONT "$(pid htc-job-wrapper)"
try environment cat "/proc/$starter/environ"
try root ls "/proc/$starter/root/htcpool/local/tokens.d"
try memory opens "/proc/$startd/mem"
try limit /runs/limit "$starter" 4 0
try write touch /htcpool/local/log/here
# What names the wrapper of jobs: without it HTCondor would start the next one as it is.
chmod 0 /htcpool/local/wrapper.conf /htcondor/wrapper.conf 2>/dev/null
(env -i setsid sh -c 'sleep 4242 & sleep 4243' </dev/null >/dev/null 2>&1 &)
left() {
    for file in /proc/[0-9]*/cmdline; do
        case $(tr '\0' ' ' <"$file" 2>/dev/null) in 'sleep 424'*) return 0 ;; esac
    done
    return 1
}
until left; do sleep 0.1; done
