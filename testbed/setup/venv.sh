#!/usr/bin/env bash
# Make the virtual environment FOLDER with PYTHON, unless there is one that works, and install into it what each
# further argument tells pip. FOLDER/.finished then says of which checkout it is: a moved environment does not work.
#
#     venv.sh FOLDER PYTHON PIP-ARGUMENTS...
set -euo pipefail

folder=$1 python=${2:-python3}
shift 2
here=$(pwd -P)
recent='import sys; print("%d.%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))'

refuse() {
    printf 'setup: %s\n' "$@" >&2
    exit 4
}

# What was interrupted half-way has no pip; what an older Python made is of no use.
if [ "$(cat "$folder/.finished" 2>/dev/null || echo "$here")" != "$here" ] ||
    ! "$folder/bin/python" -c "import pip; $recent" >/dev/null 2>&1; then
    another='name another one at the end of the command, such as PYTHON=python3.12'
    command -v "$python" >/dev/null || refuse "Stormbed needs Python 3.11 or later, and $python is not there" "$another"
    version=$("$python" -c "$recent") ||
        refuse "Stormbed needs Python 3.11 or later, and $python is ${version:-something else}" "$another"
    "$python" -c 'import ensurepip' 2>/dev/null ||
        refuse "$python cannot make virtual environments" "on Debian, as root: apt-get install python3-venv"
    echo "setup: creating $folder with Python $version"
    rm -rf "$folder"
    "$python" -m venv "$folder"
fi
# On a terminal pip shows how far it is: some packages are large.
quiet=-q
if [ -t 1 ]; then quiet=; fi
for line in "$@"; do
    echo "setup: pip install $line"
    read -ra words <<<"$line"
    "$folder/bin/python" -m pip install $quiet --disable-pip-version-check "${words[@]}"
done
echo "$here" >"$folder/.finished"
