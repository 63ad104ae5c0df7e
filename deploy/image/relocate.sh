#!/bin/sh
# relocate.sh ROOT HOME: makes the programs of HTCondor in ROOT, unpacked from Debian's packages, run from HOME in any image, with
# the C library and the other libraries that were unpacked beside them. Needs patchelf.
set -eu
root=${1%/} home=${2%/}
case $(uname -m) in
    x86_64) triplet=x86_64-linux-gnu loader=ld-linux-x86-64.so.2 ;;
    aarch64) triplet=aarch64-linux-gnu loader=ld-linux-aarch64.so.1 ;;
    *)
        echo "relocate.sh: HTCondor is not known to be packaged for $(uname -m)" >&2
        exit 1
        ;;
esac
rm -rf "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/locale "$root/usr/lib/$triplet/gconv"

# What the daemons of a pool start, and what administrators call. HTCondor's packages have more: programs that fetch URLs for jobs, open
# shells beside them, or speak to other batch systems. A program that is not there is started by nobody.
keep="condor_master condor_collector condor_negotiator condor_schedd condor_shadow condor_startd condor_starter condor_procd condor_preen \
condor_shared_port condor_pid_ns_init condor_gpu_discovery condor_gpu_utilization htc-confine htc-job-wrapper \
condor_off condor_on condor_reconfig condor_restart condor_set_shutdown condor_fetchlog condor_updates_stats procd_ctl"
for file in "$root"/usr/sbin/* "$root"/usr/libexec/condor/*; do
    case " $keep " in
        *" ${file##*/} "*) ;;
        *) rm -rf "$file" ;;
    esac
done
for name in blahpd bosco_cluster condor_annex condor_adstash condor_docker_enter condor_nsenter condor_remote_cluster condor_ssh_start \
    condor_ssh_to_job; do
    rm -f "$root/usr/bin/$name"
done

for file in "$root"/usr/bin/* "$root"/usr/sbin/* "$root"/usr/libexec/condor/* "$root"/usr/lib/*.so*; do
    if [ -L "$file" ] || [ ! -f "$file" ]; then
        continue
    fi
    # The name of the format stands behind a byte that a shell cannot write.
    [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
    case $file in
        *.so*) ;;
        *)
            # A static program has neither a loader nor a path for libraries.
            patchelf --print-interpreter "$file" >/dev/null 2>&1 || continue
            patchelf --set-interpreter "$home/usr/lib/$triplet/$loader" "$file"
            ;;
    esac
    # DT_RPATH and not DT_RUNPATH: it holds for the libraries of libraries, too.
    patchelf --force-rpath --set-rpath "$home/usr/lib:$home/usr/lib/$triplet" "$file"
done
