#!/bin/sh
# Makes sure that the Debian packages are there which cargo, the test bed and the tests need.
# As root it installs what is missing; otherwise it names it. Quick when nothing is missing. With the argument `cluster` also
# what a node needs.
set -eu

# One line each: package, and a file or command that shows it is there.
needed='
gcc cc
libc6-dev /usr/include/stdlib.h
make make
patchelf patchelf
dpkg dpkg-deb
apt apt-get
debian-archive-keyring /usr/share/keyrings/debian-archive-keyring.gpg
util-linux unshare
util-linux setpriv
coreutils timeout
tar tar
xz-utils xz
curl curl
ca-certificates /etc/ssl/certs/ca-certificates.crt
shellcheck shellcheck
bubblewrap bwrap
busybox busybox
dash dash
bash bash
'

[ "${1:-}" != cluster ] || needed="$needed
iproute2 ip
"

missing=
while read -r package sign; do
    case $sign in
        '') continue ;;
        /*) [ -e "$sign" ] && continue ;;
        *) command -v "$sign" >/dev/null 2>&1 && continue ;;
    esac
    case " $missing " in
        *" $package "*) ;;
        *) missing="$missing $package" ;;
    esac
done <<LIST
$needed
LIST

[ -n "$missing" ] || exit 0

install="apt-get install -y --no-install-recommends$missing"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "The test bed needs these programs of Debian's packages:$missing. Install them; this machine has no apt-get." >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "Missing Debian packages:$missing. Run: sudo $install" >&2
    exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "installing Debian packages (about 20 s):$missing" >&2
export DEBIAN_FRONTEND=noninteractive
# One source of this machine that does not answer need not matter. $install is meant to be split into words.
# shellcheck disable=SC2086
if ! { apt-get -q update || true; $install; } >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "Installing Debian packages failed. Look at the lines above, then run: $install" >&2
    exit 1
fi
