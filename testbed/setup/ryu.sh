#!/usr/bin/env bash
# Make the environment .venv-ryu, in which the controller runs on Ryu 4.34 itself; nothing to do when it is
# there. The first argument is the Python to make it with, python3 when left out.
set -euo pipefail

cd "$(dirname "$0")/../.."
environment=.venv-ryu
wanted='ryu==4.34, setuptools<67, 1'
stamp=$environment/.stormbed

if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$environment/bin/python" -c 'import ryu' 2>/dev/null; then
    exit 0
fi

echo "setup: $environment with Ryu 4.34"
rm -rf "$environment"
"${1:-python3}" -m venv "$environment"

# Ryu's setup.py calls what setuptools has dropped since. pip builds it in an environment of its own, which
# takes the constraint from the variable; newer pips read the second one.
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
echo 'setuptools<67' >"$constraints"
export PIP_CONSTRAINT=$constraints PIP_BUILD_CONSTRAINT=$constraints PIP_DISABLE_PIP_VERSION_CHECK=1

# Only what the controller itself imports; the rest of the project's packages have no business here.
"$environment/bin/pip" install -q 'ryu==4.34' 'eventlet>=0.35' 'pydantic>=2.10,<3' 'PyYAML>=6.0' \
    'prometheus-client>=0.21'
# The project's own packages are taken from here, wherever the controller is started.
pwd >"$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stormbed.pth"
echo "$wanted" >"$stamp"
