#!/usr/bin/env bash
# Install the Debian packages named as arguments, those that are missing. No service of theirs is started, neither now
# nor when the machine boots.
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

# Also on a machine that systemd has not booted, or that has none.
enabled() {
    { systemctl --root=/ list-unit-files --state=enabled --no-legend --no-pager 2>/dev/null || true; } |
        cut -d" " -f1 | sort
}

# One at a time: another's policy would be taken for the machine's own.
exec 9</usr/sbin
flock 9

# Debian asks this script before it starts a service; 101 means "no". A policy that the machine already
# has is put back afterwards; one of ours, left when this was killed, is not.
policy=/usr/sbin/policy-rc.d
mark="# written by Stormbed's setup"
folder=$(mktemp -d)
if [ -e "$policy" ] && ! grep -qxF "$mark" "$policy"; then cp -p "$policy" "$folder/policy"; fi
before=$(enabled)
finish() {
    if [ -e "$folder/policy" ]; then mv "$folder/policy" "$policy"; else rm -f "$policy"; fi
    # Debian keeps a choice like this one when it upgrades a package.
    comm -13 <(echo "$before") <(enabled) | xargs --no-run-if-empty systemctl --root=/ --quiet disable
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
chmod 755 "$policy"

apt() {
    DEBIAN_FRONTEND=noninteractive apt-get "$@" >"$folder/log" 2>&1 9<&- || { cat "$folder/log" >&2; exit 4; }
}
echo "setup: apt-get update"
apt update -qq
echo "setup: installing ${missing[*]}"
apt install -y -qq --no-install-recommends "${missing[@]}"
