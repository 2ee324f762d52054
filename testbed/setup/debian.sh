#!/usr/bin/env bash
# Install the Debian packages named as arguments, those that are missing, without starting any service.
set -euo pipefail

missing=()
for package in "$@"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
done
[ "${#missing[@]}" -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
    echo "setup: these Debian packages are missing: ${missing[*]}" >&2
    echo "setup: run it as root, or: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 4
fi

# Debian asks this script before it starts a service; 101 means "no". A policy that the machine already
# has is left as it is and put back afterwards.
policy=/usr/sbin/policy-rc.d
saved=
if [ -e "$policy" ]; then
    saved=$(mktemp)
    cp -p "$policy" "$saved"
fi
restore() {
    if [ -n "$saved" ]; then mv "$saved" "$policy"; else rm -f "$policy"; fi
}
trap restore EXIT
trap 'exit 130' INT TERM
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
echo "setup: apt-get update"
apt-get update -qq >"$log" 2>&1 || { cat "$log" >&2; exit 4; }
echo "setup: installing ${missing[*]}"
apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 4; }
rm -f "$log"
