#!/bin/sh
# Runs one job of an HTCJob on a worker node. HTCondor starts it in the job's scratch directory with the job's index
# and its item as arguments; script.sh and payload.conf lie beside it. The payload's exit code is the job's. What is not the payload's
# failure has one of these codes, and job.sh ends itself with a signal for it (see fail):
#   240  the job's ad cannot be read, so it is unknown whether this job may still run
#   241  its files reached HTCondor too late; another job runs in its place
#   242  the node has no apptainer and no singularity
#   243  the image cannot be had, or no container can be started from it
#   244  the command is not in the image, or the image has no entrypoint
#   245  the files of the job are not what they should be
#   246  a file that the job fetches cannot be had for now
#   247  the node does not have a folder that the site has named for a volume
#   248  the registry of the image refuses more requests for now
#   249  the registry does not have the image, or refuses it to the job
#   250  a file that the job fetches does not exist, is refused to the job, or is another one
# Each of these comes with a line "htc-operator: ..." on standard error.
#
# A worker of a managed pool is the container itself: its slot says which image that is (HTCWorkerImage). There the payload is
# started as it is, in its folder, with no container of its own.
#
# If payload.conf has a callback, and the node has curl, the operator is told when the payload begins and when it has ended.
# What cannot be told is found out by HTCondor: nothing is said about it, and the job ends at most 23 s later for it.
set -u

# fail CODE SENTENCE: ends the job for something that is not the payload's failure. No payload can make its job end with a
# signal, so each exit code is a payload's own. The signal is 200 below the code, and 188 below it once the payload has run:
# HTCondor runs the job again after some of the former (crates/submit/src/description/node_faults.rs).
fail() {
    echo "htc-operator: $2" >&2
    [ -z "$reporting" ] || kill "$reporting" 2>/dev/null
    [ -z "${work:-}" ] || remove_work
    # Where the site runs jobs in a container, its runtime makes an exit code of the signal.
    [ -n "${APPTAINER_CONTAINER:-}${SINGULARITY_CONTAINER:-}" ] || kill -"$(($1 - below))" $$
    exit "$1"
}

# attribute NAME: prints the number that the job's own ad has for NAME, nothing if there is none.
attribute() {
    value=$(raw_attribute "$1" "$_CONDOR_JOB_AD")
    case $value in
        *[!0-9]* | '') ;;
        *) echo "$value" ;;
    esac
}

# text_attribute NAME AD: prints the text that the ad has for NAME, nothing if there is none.
text_attribute() {
    value=$(raw_attribute "$1" "$2")
    case $value in
        '"'*'"')
            value=${value#\"}
            printf '%s\n' "${value%\"}"
            ;;
    esac
}

# raw_attribute NAME AD: prints what the ad has for NAME.
raw_attribute() {
    [ -r "$2" ] || return 0
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
            "$1 = "*)
                printf '%s\n' "${line#"$1 = "}"
                return
                ;;
        esac
    done <"$2"
}

# The second lock: a submission that outlived its deadline must not run, because another one may have taken its place.
check_deadline() {
    if [ ! -r "${_CONDOR_JOB_AD:-}" ]; then
        fail 240 "the job does not run: its ad (_CONDOR_JOB_AD) cannot be read"
    fi
    not_after=$(attribute HTCNotAfter)
    staged=$(attribute StageInFinish)
    if [ -z "$not_after" ] || [ -z "$staged" ]; then
        fail 240 "the job does not run: its ad lacks HTCNotAfter or StageInFinish"
    fi
    if [ "$staged" -gt "$not_after" ]; then
        fail 241 "the job does not run: its files came at $staged, later than $not_after"
    fi
}

# Reads what reports need, and keeps the token from the payload: it stays in a variable of this shell.
prepare_reports() {
    unset token
    token=
    if [ -r callback.token ]; then
        IFS= read -r token <callback.token
        rm -f callback.token
    fi
    jobid=$(attribute ClusterId).$(attribute ProcId)
    case $jobid in
        .* | *.) callback= ;;
    esac
    if [ -z "$token" ] || [ -z "$uid" ] || ! command -v curl >/dev/null 2>&1; then
        callback=
    fi
}

# report TYPE [EXIT CODE]: sends a CloudEvent, four times at most, until the operator has it or refuses it for good. What is
# secret, and all else, goes through a pipe: everybody on the node can read a process's arguments.
# shellcheck disable=SC2317 # called in the background
report() {
    trap 'exit 0' TERM INT HUP
    event=
    if [ -r /proc/sys/kernel/random/uuid ]; then
        IFS= read -r event </proc/sys/kernel/random/uuid
    fi
    time=$(date -u +%Y-%m-%dT%H:%M:%SZ)
    data="{\\\"name\\\":\\\"$name\\\",\\\"jobid\\\":\\\"$jobid\\\"${2:+,\\\"retcode\\\":\\\"$2\\\"}}"
    for pause in 1 2 4 0; do
        status=$(
            printf '%s = "%s"\n' url "$callback" data "$data" header "Authorization: Bearer $token" \
                header 'Content-Type: application/json' header 'ce-specversion: 1.0' header "ce-type: $1" \
                header "ce-source: $source" header "ce-subject: $uid" header "ce-time: $time" \
                header "ce-id: ${event:-$jobid $time $$}" |
                curl -q --config - --silent --output /dev/null --write-out '%{http_code}' --connect-timeout 3 --max-time 4
        )
        case $status in
            '' | 000 | 408 | 429 | 5??) sleep "$pause" ;;
            *) return ;;
        esac
    done
}

# finish CODE: reports the end and ends. A job that was told to stop has not come to its end, and HTCondor knows why.
finish() {
    ending=$1
    if [ -n "$callback" ] && [ -z "$told_to_stop" ]; then
        trap 'kill "$reporting" 2>/dev/null; exit "$ending"' TERM INT HUP
        [ -z "$reporting" ] || kill "$reporting" 2>/dev/null
        report htcjob.cloudevent "$ending" </dev/null >/dev/null 2>&1 &
        reporting=$!
        wait "$reporting"
    fi
    exit "$ending"
}

# Empty if there is none: what becomes of that is told once it is known whom to tell.
find_runtime() {
    # The image that this worker is a container of, if it is one.
    worker=$(text_attribute HTCWorkerImage "${_CONDOR_MACHINE_AD:-}")
    if [ -n "$worker" ]; then
        runtime=none
        return
    fi
    for folder in '' :/cvmfs/oasis.opensciencegrid.org/mis/apptainer/bin; do
        PATH=$PATH$folder
        for runtime in apptainer singularity; do
            if command -v "$runtime" >/dev/null 2>&1; then
                return
            fi
        done
    done
    runtime=
}

# Makes the folder that the payload runs in, and whatever the runtime keeps beside it. The payload does not see the scratch
# directory itself: HTCondor, outside of the container, reads and obeys what lies there, follows its links, and gives it to the
# job's next run. All of this goes before HTCondor looks for output.
prepare_work() {
    scratch=$PWD work=$PWD/.htc_work
    # On a worker of a managed pool the job's wrapper makes it, and this script may make no folder beside it.
    [ -d "$work" ] || mkdir "$work" || cannot_write
    trap remove_work EXIT
    mkdir "$work/run" "$work/tmp" "$work/area" "$work/home" || cannot_write
    # HTCondor keeps a file that the next run does not write: an empty one takes the place of this one.
    omitted_before=
    [ ! -e "$scratch/$omitted" ] || omitted_before=1
    # What a former run has left, and HTCondor has kept; but for its standard output and error, and what it has packed.
    for file in "$scratch/out" "$scratch/err" "$scratch/$omitted"; do
        if [ -e "$file" ] || [ -L "$file" ]; then
            rm -f "$file"
        fi
    done
    former=
    if [ -e "$scratch/$archive" ]; then
        former=1
        rm -f "$scratch/$archive"
    fi
    for file in "$scratch"/*; do
        if [ -f "$file" ] && [ ! -L "$file" ] && ! is_used "${file##*/}"; then
            mv "$file" "$work/run/" || cannot_write
        fi
    done
    set --
    for file in script.sh "$_CONDOR_JOB_AD" "${_CONDOR_MACHINE_AD:-}"; do
        [ "$file" != script.sh ] || [ "$form" = script ] || continue
        if [ -r "$file" ]; then
            set -- "$@" "$file"
        fi
    done
    cp "$@" "$work/run/" || cannot_write
    unpack_inputs
    fetch_inputs
    fetch_secrets
    binds=$work/run:/htc_run,$work/home:/htc_home$binds
    # Where the copies are in the container.
    job_ad=/htc_run/${_CONDOR_JOB_AD##*/}
    machine_ad=${_CONDOR_MACHINE_AD:+/htc_run/${_CONDOR_MACHINE_AD##*/}}
    export APPTAINER_CACHEDIR="$work" SINGULARITY_CACHEDIR="$work"
    export APPTAINER_TMPDIR="$work/tmp" SINGULARITY_TMPDIR="$work/tmp"
}

# Unpacks the files that the job brings. They replace what a former run has made of them: each run gets the same files.
unpack_inputs() {
    replaced='
'
    [ -e "$scratch/$inputs" ] || return 0
    mkdir "$work/inputs" || cannot_write
    tar -xpof "$scratch/$inputs" -C "$work/inputs" ||
        fail 245 "the files of the job cannot be unpacked by tar on $(uname -n)"
    for file in "$work/inputs"/* "$work/inputs"/.[!.]* "$work/inputs"/..?*; do
        [ -e "$file" ] || continue
        # HTCondor still has what a former run has made of it: this run's takes its place.
        if [ -e "$work/run/${file##*/}" ]; then
            replaced="$replaced./${file##*/}
"
            discard "$work/run/${file##*/}"
        fi
        cp -Rp "$file" "$work/run/" || cannot_write
    done
}

# Fetches the files that the job brings from URLs. Each run fetches them anew.
fetch_inputs() {
    fetched=''
    while read -r mode sum url file; do
        [ -z "$file" ] || fetch_input "$mode" "$sum" "$url" "$file"
    done <<EOF
$fetches
EOF
}

# fetch_input MODE SHA256 URL PATH: fetches a file into the folder of the payload. SHA256 is - if any content is right.
fetch_input() {
    # A query may have a signature.
    from=${3%%\?*}
    # The placeholders are not the shell's.
    # shellcheck disable=SC2016
    case $3 in
        root:*'${item}'*)
            # XRootD decodes nothing.
            case $item in
                *[?\&#%\ ]*) fail 250 "the item of the job has a character that cannot be in the URL $from of the file $4" ;;
            esac
            part=$item
            ;;
        *) part=$(encode_item) ;;
    esac
    # shellcheck disable=SC2016
    url=$(replace "$3" '${index}' "$index")
    # shellcheck disable=SC2016
    url=$(replace "$url" '${item}' "$part")
    download "$url" || has_no_input "the file $4 cannot be fetched from ${url%%\?*}"
    if [ "$2" != - ]; then
        got=$(sha256sum <"$work/download")
        got=${got%% *}
        [ "$got" = "$2" ] ||
            fail 250 "the file $4 from ${url%%\?*} is another one on $(uname -n): its SHA-256 is ${got:-unknown}"
    fi
    place "$1" "$4"
    fetched="$fetched$4
$(fingerprint "$4")
"
}

# place MODE PATH: moves what was downloaded into the folder of the payload.
place() {
    top=${2%%/*} folder=.
    case $2 in
        */*) folder=${2%/*} ;;
    esac
    if [ -e "$work/run/$top" ] && { [ "$folder" = . ] || [ ! -d "$work/run/$top" ]; }; then
        replaced="$replaced./$top
"
        discard "$work/run/$top"
    fi
    mkdir -p "$work/run/$folder" "$work/inputs/$folder" || cannot_write
    chmod "$1" "$work/download" || cannot_write
    mv "$work/download" "$work/run/$2" || cannot_write
}

# Fetches what the job brings from Secrets, with its token: the operator has it. It does not come back as output.
fetch_secrets() {
    unset bearer text
    secret_files='' bearer=$token
    while read -r key kind mode target; do
        [ -n "$target" ] || continue
        if ! download "$channel/$uid/secrets/$key"; then
            case $status in
                409) problem='it is another one than when the first job was submitted' ;;
                410) problem='it is gone, or HTCJobs may not use it any more' ;;
            esac
            has_no_input "the Secret's key $key cannot be fetched"
        fi
        case $kind in
            file)
                place "$mode" "$target"
                secret_files="$secret_files./$target
"
                ;;
            env) keep_variable "$target" ;;
        esac
    done <<EOF
$secrets
EOF
    bearer=''
}

# keep_variable NAME: gives the payload what was downloaded as a variable. In a worker in_worker does.
keep_variable() {
    if [ "$runtime" = none ]; then
        mv "$work/download" "$work/variable.$1" || cannot_write
        return
    fi
    given="$given$1 "
    text=$(cat "$work/download" && echo .) || cannot_write
    in_environment "$1" "${text%.}"
    rm -f "$work/download"
}

# Prints the item of the job as a part of a URL, percent-encoded: it ends neither the path nor the query.
encode_item() {
    for byte in $(printf %s "$item" | LC_ALL=C od -An -v -to1); do
        case $byte in
            05[567] | 06? | 07[01] | 10[1-7] | 1[12]? | 13[0-2] | 137 | 14[1-7] | 1[56]? | 17[0-2] | 176) printf %b "\\0$byte" ;;
            *) printf '%%%02X' "0$byte" ;;
        esac
    done
}

# replace TEXT WORD VALUE: prints the text with the value in the place of the word.
replace() {
    rest=$1 begin=''
    while [ "${rest#*"$2"}" != "$rest" ]; do
        begin=$begin${rest%%"$2"*}$3
        rest=${rest#*"$2"}
    done
    printf %s "$begin$rest"
}

# has_no_input SENTENCE: ends the job for a download that failed. What a server refuses is refused to all nodes.
has_no_input() {
    [ "$final" != refused ] || fail 250 "$1 on $(uname -n): $problem"
    fail 246 "$1 on $(uname -n): $problem"
}

# download URL: fetches it as $work/download. If that fails, problem says why. The operator may be away for some minutes, and many
# jobs ask it at the same time.
download() {
    pauses='1 5 20'
    [ -z "$bearer" ] || pauses='1 5 20 30 60 60 120 120 120'
    for pause in $pauses; do
        download_once "$1" && return
        [ -z "$final" ] || return 1
        [ -z "$bearer" ] || pause=$((pause + $$ % (pause + 1)))
        sleep "$pause"
    done
    download_once "$1"
}

# download_once URL: final is not empty if another try on this node would fail as well; it is "refused" if the server says so.
download_once() {
    final='' tool=curl
    case $1 in
        root:*) tool=xrdcp ;;
        osdf:* | pelican:*) tool=pelican ;;
    esac
    if ! command -v "$tool" >/dev/null 2>&1; then
        problem="the node has no $tool" final=node
        return 1
    fi
    case $tool in
        curl) with_curl "$1" ;;
        xrdcp) with_xrdcp "$1" ;;
        pelican) without_credentials pelican object get "$1" "$work/download" </dev/null >&2 ;;
    esac 2>"$work/problem" && return
    # xrdcp writes an empty line at the end.
    problem=$(grep . "$work/problem" | tail -n 1)
    return 1
}

# with_xrdcp URL: by itself it would try for eight minutes to reach a server that is away. It ends with 54 for any answer that is an error,
# so the answer's number says what that is: 3010 not permitted, 3011 not found, 3016 a folder. A redirector also says "not found" while the
# servers that have the file are away.
with_xrdcp() {
    without_credentials XRD_CONNECTIONWINDOW=20 XRD_CONNECTIONRETRY=1 \
        xrdcp --nopbar --force "$1" "$work/download" </dev/null >&2 && return
    answer=$(sed -n 's/^.*\[ERROR\] Server responded with an error: //p' "$work/problem" | tail -n 1)
    case $answer in
        '[3011] No servers are available'*) ;;
        '[3010] '* | '[3011] '* | '[3016] '*) final=refused ;;
    esac
    return 1
}

# without_credentials [NAME=VALUE...] COMMAND...: runs it without what the node's account has. The user names the server.
without_credentials() {
    env -u BEARER_TOKEN -u XDG_RUNTIME_DIR HOME="$work/home" BEARER_TOKEN_FILE="$work/none" \
        X509_USER_PROXY="$work/none" KRB5CCNAME="FILE:$work/none" "$@"
}

# with_curl URL: what may be secret, the URL too, goes through a pipe. No redirection leaves TLS or has the token.
with_curl() {
    next='=https' redirections=5
    [ "${1%%:*}" = https ] || next='=http,https'
    [ -z "$bearer" ] || redirections=0
    status=$(
        umask 077
        printf '%s = "%s"\n' url "$1" proto "$next" proto-redir "$next" max-redirs "$redirections" \
            ${bearer:+header "Authorization: Bearer $bearer"} |
            curl -q --config - --silent --show-error --fail --location --globoff --output "$work/download" \
                --connect-timeout 20 --speed-limit 1 --speed-time 60 --write-out '%{http_code}'
    ) && return
    case $status in
        408 | 425 | 429) ;;
        4??) final=refused ;;
    esac
    return 1
}

# fingerprint PATH: prints what changes whenever the file in the folder of the payload does.
fingerprint() {
    (cd "$work/run" && stat -c '%i %s %y %z' "$1" 2>/dev/null)
}

# Lists the fetched files that the payload has not changed, as find names them. What is no plain file any more is not among them.
list_unchanged() {
    unchanged=''
    while IFS= read -r file && IFS= read -r before; do
        case $replaced in
            *"
./$file
"*) continue ;;
        esac
        if [ -n "$before" ] && [ "$before" = "$(fingerprint "$file")" ]; then
            unchanged="$unchanged./$file
"
        fi
    done <<EOF
$fetched
EOF
}

# Removes the input files that the payload has not changed, and folders of theirs that are empty then: they do not come back.
# The paths have no character that means something to find.
discard_inputs() {
    [ -d "$work/inputs" ] || return 0
    set --
    while IFS= read -r file; do
        case $replaced in
            *"
$file
"*) continue ;;
        esac
        # What is no plain file any more might never end.
        if [ -d "$work/inputs/$file" ]; then
            set -- "$@" -o -type d -empty -path "$file"
        elif [ -f "$work/run/$file" ] && is_same "$work/inputs/$file" "$work/run/$file"; then
            set -- "$@" -o -type f -path "$file"
        fi
    done <<EOF
$(cd "$work/inputs" && find . -mindepth 1 -print)
EOF
    while IFS= read -r file; do
        [ -z "$file" ] || set -- "$@" -o ! -type d -path "$file"
    done <<EOF
$unchanged$secret_files
EOF
    [ $# -gt 0 ] || return 0
    shift
    find_output -depth \( "$@" \) -delete || cannot_write
}

# is_same FILE FILE: whether both have the same content. It is unknown, and so not the case, on a node without sha256sum.
is_same() {
    sum=$(sha256sum <"$1" 2>/dev/null) && [ "$sum" = "$(sha256sum <"$2")" ]
}

# is_used NAME: whether the name means something to HTCondor or to the operator.
is_used() {
    case $1 in
        script.sh | job.sh | payload.conf | callback.token | "$inputs" | condor_exec.exe | out | err | "$omitted" | _condor*) return 0 ;;
        # HTCondor keeps names in a list.
        *,* | ' '* | *' ' | *[[:cntrl:]]*) return 0 ;;
    esac
    [ -d "$scratch/$1" ]
}

cannot_write() {
    fail 245 "cannot write into the scratch directory $scratch"
}

# shellcheck disable=SC2317 # called by trap
remove_work() {
    if ! rm -rf "$work" 2>/dev/null; then
        chmod -R u+rwX "$work" 2>/dev/null
        rm -rf "$work"
    fi
}

# Most characters in the names of all files that come back as they are, and 32 for each file: HTCondor keeps the names in the
# job's ad.
most_names=262144
# Most patterns without a match that are named.
most_missed=5
# The files that the job brings.
inputs=htc_input.tar
# What does not come back as it is comes back in this file, and the operator unpacks it.
archive=htc_output.tar
# What does not come back at all is named in this file, one line each, and the operator shows it.
omitted=htc_output.omitted

# omit SENTENCE: notes what does not come back, for the operator and in the job's standard error.
omit() {
    echo "htc-operator: $1" >&2
    omissions="$omissions$1
"
}

# Hands what the payload has left to HTCondor: plain files under names that mean nothing to HTCondor as they are, and folders and
# all other files packed.
collect() {
    # packed: something lies there, or takes the place of what a former run has packed.
    pack=$work/pack packed=$former
    mkdir "$pack" || cannot_write
    # The modes of files are a part of what is compared.
    list_unchanged
    chmod -R u+rwX,ug-s "$work/run" 2>/dev/null
    set -- "$work/run/script.sh" "$work/run/${_CONDOR_JOB_AD##*/}"
    [ -z "${_CONDOR_MACHINE_AD:-}" ] || set -- "$@" "$work/run/${_CONDOR_MACHINE_AD##*/}"
    discard "$@"
    discard_inputs
    select_outputs
    names=0 refused='' links=0 special=0 omissions=''
    for file in "$work/run"/* "$work/run"/.[!.]* "$work/run"/..?*; do
        base=${file##*/}
        if [ -L "$file" ]; then
            links=$((links + 1))
            rm -f "$file"
        elif [ ! -e "$file" ]; then
            # A pattern that matches nothing.
            continue
        elif [ ! -d "$file" ] && [ ! -f "$file" ]; then
            special=$((special + 1))
            rm -f "$file"
        elif [ "$base" = out ] || [ "$base" = err ] || [ "$base" = "$archive" ] || [ "$base" = "$omitted" ]; then
            kind='file'
            [ ! -d "$file" ] || kind=folder
            refused="$refused${refused:+, }a $kind $base"
            discard "$file"
        elif [ -d "$file" ] || is_used "$base" || [ "$base" != "${base#.}" ]; then
            packed=1
            mv "$file" "$pack/" || cannot_write
        else
            names=$((names + ${#base} + 32))
        fi
    done
    if [ -n "$packed" ]; then
        deep=$(find "$pack" -type l -print | wc -l)
        links=$((links + ${deep:-0}))
        deep=$(find "$pack" ! -type l ! -type d ! -type f -print | wc -l)
        special=$((special + ${deep:-0}))
    fi
    if [ "$links" -gt 0 ]; then
        omit "links do not come back as output ($links): copy what they lead to"
    fi
    if [ "$special" -gt 0 ]; then
        omit "sockets, pipes and devices do not come back as output ($special): write files"
    fi
    if [ -n "$refused" ]; then
        omit "these names are the job's own, and what the script left there does not come back ($refused): choose other names"
    fi
    if [ -n "$omissions" ]; then
        printf %s "$omissions" >"$scratch/$omitted" || cannot_write
    elif [ -n "$omitted_before" ]; then
        : >"$scratch/$omitted" || cannot_write
    fi
    if [ "$names" -gt "$most_names" ]; then
        packed=1
        # The expansions belong to the inner shell.
        # shellcheck disable=SC2016
        find "$work/run" -mindepth 1 -maxdepth 1 -exec sh -c 'pack=$1; shift; mv "$@" "$pack/"' sh "$pack" {} + ||
            cannot_write
    fi
    set -- "$work/run"/*
    if [ -e "$1" ]; then
        mv -f "$@" "$scratch/" || cannot_write
    fi
    # On a node where Apptainer may not make a PID namespace, a process of the payload may have lived on until here.
    for file in "$scratch"/*; do
        [ ! -L "$file" ] || rm -f "$file"
    done
    pack_rest
}

# Removes what is not to come back, if the user says what is. What matches nothing is told in the job's standard error, with what
# else is said of its output. `find` compares: its arguments are no program, and it follows no link while it removes.
select_outputs() {
    [ -n "$outputs" ] || return 0
    set --
    missing='' missed=0
    while IFS= read -r pattern && IFS= read -r expression; do
        set -- "$@" -o -regex "$expression"
        if [ -z "$(find_output -regex "$expression" -print | head -n 1)" ]; then
            missed=$((missed + 1))
            [ "$missed" -gt "$most_missed" ] || missing="$missing${missing:+,} $pattern"
        fi
    done <<EOF
$outputs
EOF
    shift
    find_output -depth ! \( "$@" \) \( ! -type d -o -empty \) -delete ||
        fail 245 "the output cannot be selected by find on $(uname -n)"
    if [ "$missed" -gt 0 ]; then
        [ "$missed" -le "$most_missed" ] || missing="$missing, ..."
        printf 'htc-operator: nothing matches %s of spec.outputs:%s\n' "$missed" "$missing" >&2
    fi
}

# find_output EXPRESSION...: looks at what the payload has left, by names relative to its folder.
find_output() {
    (cd "$work/run" && LC_ALL=C find . -mindepth 1 "$@" </dev/null)
}

# Packs files and folders, and nothing else. tar follows no link: one that a process makes now is packed as it is, and refused.
pack_rest() {
    [ -n "$packed" ] || return 0
    find "$pack" ! -type d ! -type f -exec rm -f {} +
    # What a former run has packed HTCondor still has: an archive without anything takes its place.
    if [ -n "$former" ] || [ -n "$(find "$pack" -mindepth 1 -maxdepth 1 -print | head -n 1)" ]; then
        tar -cf "$scratch/$archive" -C "$pack" . || {
            rm -f "$scratch/$archive"
            fail 245 "the output cannot be packed by tar on $(uname -n)"
        }
    fi
}

# discard PATH...: removes them, whatever they are.
discard() {
    rm -rf "$@" || cannot_write
}

# The variables a payload may rely on, by each of the ways that a site's configuration may leave open. Their values are
# taken as they are: without NO_EVAL the runtime has a shell expand them.
export_environment() {
    export APPTAINER_NO_EVAL=1 SINGULARITY_NO_EVAL=1
    export HTCPROCID="$index" JOB_NAME="$name"
    if [ "$runtime" = none ]; then
        [ -z "$has_item" ] || export HTC_ITEM="$item"
        return
    fi
    in_environment HTCPROCID "$index"
    in_environment JOB_NAME "$name"
    [ -z "$has_item" ] || in_environment HTC_ITEM "$item"
    # HTCondor's variables name folders and files of the node, which the container does not have.
    in_environment _CONDOR_SCRATCH_DIR /htc_run
    in_environment _CONDOR_JOB_AD "$job_ad"
    [ -z "$machine_ad" ] || in_environment _CONDOR_MACHINE_AD "$machine_ad"
    [ -z "${_CONDOR_JOB_IWD:-}" ] || in_environment _CONDOR_JOB_IWD /htc_run
    for variable in TMPDIR TMP TEMP; do
        case $given in
            *" $variable "*) ;;
            *) in_environment "$variable" /tmp ;;
        esac
    done
}

# in_environment NAME VALUE: sets a variable in the container.
in_environment() {
    case $runtime in
        apptainer) export "APPTAINERENV_$1=$2" ;;
        *) export "SINGULARITYENV_$1=$2" ;;
    esac
}

# set_variable NAME TEXT: a variable of the user's, for the payload only. In TEXT a line feed is \n and a backslash \\.
set_variable() {
    # The letter keeps line feeds at the end, which the shell would take away.
    text=$(printf '%b.' "$2")
    text=${text%.}
    if [ "$runtime" = none ]; then
        variables="$variables$1 $2
"
        [ "$1" != PATH ] || search=$text
        return
    fi
    given="$given$1 "
    # Apptainer takes HOME as an option only.
    if [ "$1" = HOME ]; then
        home=$text
    else
        in_environment "$1" "$text"
    fi
}

# A path of the user's: links on the way may lead to where the payload would see more of the node than the binds show it.
check_image() {
    found=$(readlink -f "$image") || found=
    for folder in $folders; do
        folder=$(readlink -f "$folder")
        case $found in
            "$folder" | "${folder%/}"/*)
                image=$found
                return
                ;;
        esac
    done
    fail 243 "the image $image cannot be had on $(uname -n): there is no such path in the folders that are bound into containers"
}

# Binds the folders that the site has named for the job's volumes. A folder that is reached through a link is another one than
# the site has named.
bind_volumes() {
    while read -r folder path mode; do
        [ -n "$folder" ] || continue
        [ -d "$folder" ] ||
            fail 247 "the folder $folder, which the site has named for the volume $path, is not on $(uname -n)"
        found=$(readlink -f "$folder")
        [ "$found" = "$folder" ] ||
            fail 247 "the folder $folder, which the site has named for the volume $path, is a link to $found on $(uname -n)"
        binds=$binds,$folder:$path:$mode
    done <<EOF
$volumes
EOF
}

# Pulls an image that is not on the node into a file. What fails then is the pull, and not the start of a container.
get_image() {
    case $image in
        *://*) ;;
        *) return ;;
    esac
    [ -z "$private" ] || fetch_login
    if find_cache; then
        pull_once "$cache/$image_key"
        [ -z "$pulled" ] || return
    fi
    pull "$work/image.sif"
    pulled=$work/image.sif
}

# Fetches the login of the image's registry, with the job's token. The payload does not begin before it is forgotten.
fetch_login() {
    bearer=$token
    if ! download "$channel/$uid/login"; then
        [ "$status" != 410 ] || problem='its Secret is gone, or has no such login, or HTCJobs may not use it any more'
        has_no_input "the login of the registry of $image cannot be fetched"
    fi
    bearer=''
    { IFS= read -r login_name && IFS= read -r login_password; } <"$work/download" || login_password=''
    rm -f "$work/download"
}

# Whether this node keeps images for the job's user: the site names a folder, and only this account and root can write into this
# account's part of it. An account that is not the job's owner, such as one for each slot, has jobs of several users one after the other.
find_cache() {
    [ -n "$image_cache" ] && command -v flock >/dev/null 2>&1 || return 1
    account=$(id -u)
    [ "$(text_attribute Owner "$_CONDOR_JOB_AD")" = "$(id -un)" ] || return 1
    is_folder "$image_cache/." \( -user 0 -o -user "$account" \) \( -perm -1000 -o ! -perm -0020 ! -perm -0002 \) || return 1
    cache=$image_cache/$account
    (umask 077 && mkdir "$cache") 2>/dev/null
    is_folder "$cache" -user "$account" -perm 0700
}

# is_folder PATH EXPRESSION...: whether it is a folder that the expression of find fits.
is_folder() {
    folder=$1
    shift
    [ -n "$(find "$folder" -prune -type d "$@" -print 2>/dev/null)" ]
}

# pull_once FILE: pulls the image if no job has done so, one at a time. Those that wait keep the lock for a moment only. A file that no
# job has used for a week goes. If the cache is of no use now, pulled stays empty.
pull_once() {
    (: >"$1.lock") 2>/dev/null || return 0
    exec 9>"$1.lock"
    run flock 9
    end_if_stopped
    if [ "$code" -eq 0 ]; then
        # First the time, so that no other job removes the file as unused.
        touch -c "$1"
        if [ -f "$1" ] || { pull "$1.part" cache && mv "$1.part" "$1"; }; then
            pulled=$1
        fi
        find "$cache" -type f -mtime +7 -exec rm -f {} +
    fi
    exec 9>&-
}

# pull FILE [cache]: the job ends if it fails, but for a cache that is full.
pull() {
    run pull_image "$1" 2>"$work/probe"
    end_if_stopped
    [ "$code" -ne 0 ] || return 0
    if [ -n "${2:-}" ] && grep -qi 'no space left\|quota exceeded' "$work/probe"; then
        rm -f "$1"
        return 1
    fi
    cannot_have_image ": it cannot be pulled"
}

# cannot_have_image WHY: ends the job for what the runtime has written about the image.
cannot_have_image() {
    tail -n 5 "$work/probe" >&2
    collect
    if grep -Eqi 'toomanyrequests|too many requests' "$work/probe"; then
        fail 248 "the image $image cannot be had now on $(uname -n): its registry refuses further pulls for now (429)"
    fi
    if grep -Eqi 'manifest unknown|name unknown|unauthorized: |authentication required|requested access to the resource is denied' "$work/probe"; then
        fail 249 "the image $image cannot be had on $(uname -n): its registry does not have it, or refuses it to this job"
    fi
    fail 243 "the image $image cannot be had on $(uname -n)$1"
}

# shellcheck disable=SC2317 # called by run
pull_image() {
    if [ -n "$login_name" ]; then
        export APPTAINER_DOCKER_USERNAME="$login_name" APPTAINER_DOCKER_PASSWORD="$login_password"
        export SINGULARITY_DOCKER_USERNAME="$login_name" SINGULARITY_DOCKER_PASSWORD="$login_password"
    fi
    exec "$runtime" --quiet pull --force --disable-cache "$1" "$image" >/dev/null
}

# Ends the job if it has been stopped before its payload began.
end_if_stopped() {
    if [ -n "$told_to_stop" ]; then
        collect
        finish "$code"
    fi
}

# machine PATTERN: whether the slot's ad has a line that begins so. ClassAds do not tell upper from lower case.
machine() {
    grep -qi "^$1" "$_CONDOR_MACHINE_AD"
}

# What lets the payload at the GPUs that HTCondor has assigned to the slot, as HTCondor's starter does it for containers that
# it starts itself. Which of the devices it is to use HTCondor says in variables, and the payload has those.
find_gpus() {
    gpus=
    if [ ! -r "${_CONDOR_MACHINE_AD:-}" ] || ! machine 'AssignedGPUs = "[^"]'; then
        return
    fi
    gpus=--nv
    if machine 'GPUs_Rocm = [1-9]' && ! machine 'GPUs_NvidiaDriver = "[^"]'; then
        gpus=--rocm
    fi
    if [ -d /etc/OpenCL/vendors ]; then
        binds=$binds,/etc/OpenCL/vendors
    fi
}

# in_container COMMAND...: becomes the container runtime. Its /tmp and /var/tmp lie on the scratch disk: without --workdir they are a
# tmpfs of 64 MB. With --no-home, --home sets the variable and mounts nothing: a HOME of the user's is the image's own folder.
# shellcheck disable=SC2317 # called by run
in_container() {
    unset _CONDOR_CHIRP_CONFIG _CONDOR_WRAPPER_ERROR_FILE
    exec "$runtime" --quiet exec --contain --workdir "$work/area" --no-home --home "$home" --ipc ${pid:+"$pid"} \
        ${gpus:+"$gpus"} --pwd /htc_run --bind "$binds" "${pulled:-$image}" "$@"
}

# in_worker COMMAND...: becomes the command, in the folder of the payload.
# shellcheck disable=SC2317 # called by run
in_worker() {
    cd "$work/run" || exit 245
    export HOME="$work/home" TMPDIR="$work/tmp" TMP="$work/tmp" TEMP="$work/tmp" _CONDOR_SCRATCH_DIR="$work/run"
    export _CONDOR_JOB_AD="$work/run/${job_ad##*/}"
    [ -z "$machine_ad" ] || export _CONDOR_MACHINE_AD="$work/run/${machine_ad##*/}"
    [ -z "${_CONDOR_JOB_IWD:-}" ] || export _CONDOR_JOB_IWD="$work/run"
    unset _CONDOR_CHIRP_CONFIG _CONDOR_WRAPPER_ERROR_FILE
    unset APPTAINER_CACHEDIR SINGULARITY_CACHEDIR APPTAINER_TMPDIR SINGULARITY_TMPDIR APPTAINER_NO_EVAL SINGULARITY_NO_EVAL
    unset CONDOR_CONFIG CONDOR_PROCD_ADDRESS CONDOR_PROCD_ADDRESS_BASE
    program=$(find_program "$1") || exit 127
    shift
    set -- "$program" "$@"
    # Not by this shell, to which they might mean something.
    while IFS= read -r line; do
        [ -n "$line" ] || continue
        text=$(printf '%b.' "${line#* }")
        set -- "${line%% *}=${text%.}" "$@"
    done <<EOF
$variables
EOF
    env=$(command -v env) || exit 127
    set -- -- "$env" "$@"
    for file in "$work"/variable.*; do
        [ -e "$file" ] || continue
        text=$(cat "$file" && echo .) || exit 245
        set -- "${file##*/variable.}=${text%.}" "$@"
        rm -f "$file"
    done
    # Not as arguments of env, which others on the node can read. Any variable of this shell may be another one now.
    until [ "$1" = -- ]; do
        # shellcheck disable=SC2163 # it has the name and the value
        export "$1"
        shift
    done
    shift
    exec "$@"
}

# find_program NAME: prints where the program is in the PATH of the payload. It is a subshell, for the sake of IFS.
find_program() (
    case $1 in
        */*)
            print_program "$1"
            exit
            ;;
    esac
    set -f
    IFS=:
    for folder in $search; do
        print_program "$folder/$1" && exit
    done
    exit 1
)

# print_program PATH: prints the path if it is a program.
print_program() {
    [ -f "$1" ] && [ -x "$1" ] && printf '%s\n' "$1"
}

# Runs a function in the background so that signals reach it, and waits for it, however often a signal interrupts that.
run() {
    interrupted=
    "$@" &
    child=$!
    trap 'interrupted=1 told_to_stop=1; kill -TERM "$child" 2>/dev/null' TERM INT HUP
    wait "$child"
    code=$?
    while [ -n "$interrupted" ]; do
        interrupted=
        wait "$child"
        again=$?
        # 127: an earlier wait has had its status already.
        [ "$again" -eq 127 ] || code=$again
    done
    trap - TERM INT HUP
}

# What runs an image's entrypoint in a container of Apptainer.
runscript=/.singularity.d/runscript

# run_entrypoint ARGUMENT...: runs the image's own entrypoint.
run_entrypoint() {
    entrypoint=$("$runtime" --quiet inspect --runscript "${pulled:-$image}" 2>"$work/probe") ||
        cannot_have_image ", or no container can be started from it"
    case $entrypoint in
        # The last one is what Apptainer writes where a definition has none.
        '' | *"There is no runscript defined for this container"*) has_no_entrypoint ;;
        *"OCI_ENTRYPOINT=''"*"OCI_CMD=''"*) [ $# -gt 0 ] || has_no_entrypoint ;;
    esac
    case $entrypoint in
        *SINGULARITY_NO_EVAL*) ;;
        # An older form, also that of images on CVMFS: a shell expands the arguments between quotation marks.
        *'eval "set '*SINGULARITY_OCI_RUN*)
            for word in "$@"; do
                text=$(printf '%s.' "$word" | sed 's/[\"$`]/\\&/g')
                set -- "$@" "${text%.}"
                shift
            done
            ;;
    esac
    run in_container "$runscript" "$@"
}

has_no_entrypoint() {
    collect
    fail 244 "the image $image has no entrypoint: write spec.container.command"
}

# The runtime ends with 255 when it fails itself. Only then is it asked once more, to learn what was wrong. Where the slot is a
# container, parts of /proc may be hidden, and the kernel lets no other container mount a /proc of its own: restart=1, and the payload is
# to be started with the process ids of the slot.
explain_255() {
    # An image that other jobs have removed meanwhile was there when the payload began.
    [ -z "$pulled" ] || [ -e "$pulled" ] || return 0
    # The expansions below belong to the shell in the container.
    # shellcheck disable=SC2016
    lookup='case $1 in */*) [ -x "$1" ]; exit ;; esac
            IFS=:; for dir in $PATH; do [ -f "$dir/$1" ] && [ -x "$dir/$1" ] && exit 0; done; exit 1'
    run in_container /bin/sh -c "$lookup" sh "$1" >/dev/null 2>"$work/probe"
    case $code in
        0)
            below=188
            code=255
            ;;
        1)
            collect
            fail 244 "the command $1 is not in the image $image"
            ;;
        255)
            if [ -n "$pid" ] && grep -qi 'mount.*proc.*not permitted' "$work/probe"; then
                echo "htc-operator: containers get no /proc of their own on $(uname -n): this one starts with the slot's" >&2
                pid='' restart=1
            elif grep -q '/bin/sh' "$work/probe"; then
                echo "htc-operator: the image $image has no /bin/sh, so it is not known whether 255 is the payload's own" >&2
                code=255
            else
                cannot_have_image ", or no container can be started from it"
            fi
            ;;
        *) code=255 ;;
    esac
}

main() {
    # It is for the wrapper.
    unset HTC_WORK
    # The same for all payloads. A core file would come back as output.
    umask 022
    # shellcheck disable=SC3045 # dash, bash and busybox have the option
    ulimit -c 0
    callback='' source='' uid='' reporting='' told_to_stop='' below=200
    index=${1:-}
    case $index in
        '' | *[!0-9]*) fail 245 "the job's index is missing from its arguments" ;;
    esac
    # The job's item: = and base64, without a line feed at its end; - if it has none.
    item='' has_item=''
    case ${2:--} in
        -) ;;
        =*)
            has_item=1
            item=$(printf %s "${2#=}" | base64 -d) || fail 245 "the job's item cannot be decoded by base64 on $(uname -n)"
            ;;
        *) fail 245 "the job's item is not what it should be" ;;
    esac
    check_deadline

    # payload.conf has one "key value" per line and ends with the line "end"; binds are used where the node has them.
    name='' image='' named='' variables='' version='' complete='' checked='' folders='' volumes='' outputs='' given=' '
    form=script word='' fetches='' secrets='' bearer='' token='' channel='' status=''
    image_cache='' image_key='' private='' pulled='' pid=--pid restart=''
    # What is exported under these names would be, with another value, too.
    unset login_name login_password
    login_name='' login_password=''
    home=/htc_home search=$PATH
    binds=
    set --
    if [ ! -r payload.conf ] || [ ! -r script.sh ]; then
        fail 245 "payload.conf or script.sh is missing from the scratch directory"
    fi
    find_runtime
    while IFS= read -r line; do
        value=${line#* }
        case $line in
            'version '*) version=$value ;;
            'name '*) name=$value ;;
            'image '*) image=$value ;;
            'named '*) named=$value ;;
            'form '*) form=$value ;;
            'image_cache '*) image_cache=$value ;;
            'private yes') private=1 ;;
            'image_key '*) image_key=$value ;;
            'command '*) set -- "$@" "$value" ;;
            # A word of spec.container comes in pieces, without anything between them.
            'text '*)
                text=$(printf '%b.' "$value")
                word=$word${text%.}
                ;;
            'index '*) word=$word$index ;;
            'item '*) word=$word$item ;;
            'word '*)
                set -- "$@" "$word"
                word=
                ;;
            'callback '*) callback=$value ;;
            'source '*) source=$value ;;
            'uid '*) uid=$value ;;
            'bind '*)
                if [ -e "$value" ]; then
                    binds=$binds,$value
                    folders="$folders $value"
                fi
                ;;
            'volume '*)
                volumes="$volumes$value
"
                ;;
            'image_in_binds yes') checked=1 ;;
            'output '* | 'match '*)
                outputs="$outputs$value
"
                ;;
            'fetch '*)
                fetches="$fetches$value
"
                ;;
            'secret '*)
                secrets="$secrets$value
"
                ;;
            'env '*) set_variable "${value%% *}" "${value#* }" ;;
            end) complete=1 ;;
        esac
    done <payload.conf
    if [ "$version" != 1 ] || [ -z "$complete" ] || [ -z "$image" ] || { [ $# -eq 0 ] && [ "$form" != entrypoint ]; }; then
        fail 245 "payload.conf is not complete, or of another version than job.sh"
    fi

    if [ -n "$callback" ]; then
        channel=$callback
        prepare_reports
    fi
    if [ -z "$runtime" ]; then
        fail 242 "neither apptainer nor singularity is in PATH on $(uname -n)"
    fi
    if [ "$runtime" = none ]; then
        if [ "$named" != "$worker" ]; then
            fail 243 "the image $named cannot be had on $(uname -n): this worker is a container of $worker, and has no others"
        fi
        [ "$form" != entrypoint ] || fail 244 "this worker does not know the entrypoint of $named: write spec.container.command"
    elif [ -n "$checked" ]; then
        check_image
    fi
    bind_volumes
    find_gpus
    prepare_work
    export_environment
    # The program may be one of the files that the job brings.
    if [ "$runtime" = none ] && ! (cd "$work/run" && find_program "$1") >/dev/null; then
        collect
        fail 244 "the command $1 is not in the image $named"
    fi
    [ "$runtime" = none ] || get_image
    login_name='' login_password=''
    if [ -n "$callback" ]; then
        report htcjob.cloudevent.started </dev/null >/dev/null 2>&1 &
        reporting=$!
    fi
    case $form.$runtime in
        script.none) run in_worker "$@" ./script.sh "$index" ${has_item:+"$item"} ;;
        *.none) run in_worker "$@" ;;
        *) restart=1 ;;
    esac
    while [ -n "$restart" ]; do
        restart=
        case $form in
            script) run in_container "$@" /htc_run/script.sh "$index" ${has_item:+"$item"} ;;
            entrypoint) run_entrypoint "$@" ;;
            *) run in_container "$@" ;;
        esac
        if [ "$code" -eq 255 ]; then
            [ "$form" != entrypoint ] || set -- "$runscript" "$@"
            explain_255 "$1"
            [ "$form" != entrypoint ] || shift
        fi
    done
    below=188
    collect
    finish "$code"
}

main "$@"
