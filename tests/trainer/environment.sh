#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the ms-swift that the tests train with: .cache/ms-swift/venv (CPU torch, about 1.6 GB) and the
# tiny model and rows in .cache/ms-swift/tiny. Run again it does nothing, unless requirements.txt or
# tiny.py changed. A stamp is written last, so a build that was cut off starts over; a second caller
# waits for the first. SWIFT_GOVERNOR_MS_SWIFT names another folder than .cache/ms-swift.
#
# Debian's own interpreter and no --system-site-packages: the site-packages also serve a Debian VM, by
# PYTHONPATH from a disk of their own. Bytecode is compiled as unchecked-hash, so that it stays valid on
# an image whatever that does to the files' times: without bytecode the import takes minutes in a VM.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
place=${SWIFT_GOVERNOR_MS_SWIFT:-$root/.cache/ms-swift}
python=/usr/bin/python3
torch_index=https://download.pytorch.org/whl/cpu
venv=$place/venv

mkdir -p "$place"
exec 9>"$place/lock"
if ! flock --nonblock 9; then
    echo "environment: waiting for another build in $place" >&2
    flock 9
fi

# Two stamps: another tiny model doesn't cost another environment. Raise recipe when this file builds
# the environment differently.
recipe=1
digest() { cat - "$@" | sha256sum | cut -d' ' -f1; }
wanted=$(echo "$recipe $("$python" -V)" | digest "$here/requirements.txt")
wanted_tiny=$(echo "$wanted" | digest "$here/tiny.py")
has() { [ "$(cat "$place/$1" 2>/dev/null || true)" = "$2" ]; }
stamp() {
    echo "$2" >"$place/$1.new"
    mv "$place/$1.new" "$place/$1"
}

make_tiny() {
    rm -rf "$place/tiny" "$place/tiny.stamp"
    "$venv/bin/python" "$here/tiny.py" "$place/tiny" >/dev/null 2>&1
    chmod -R a+rX "$place/tiny"
    stamp tiny.stamp "$wanted_tiny"
    echo "environment: $place/tiny made"
}

if has stamp "$wanted" && [ -x "$venv/bin/python" ]; then
    has tiny.stamp "$wanted_tiny" || make_tiny
    echo "environment: $venv is up to date"
    exit 0
fi
rm -rf "$place/stamp" "$venv"

echo "environment: building $venv, which takes one to ten minutes"
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet --quiet)

# torch first and by version: resolved with the rest, pip takes a CUDA build of several GB.
torch=$(grep '^torch==' "$here/requirements.txt")
extra=()
if "$python" -c "import urllib.request as u; u.urlopen('$torch_index/torch/', timeout=5)" 2>/dev/null; then
    extra=(--extra-index-url "$torch_index")
fi
"${pip[@]}" install --no-compile "${extra[@]}" "$torch"
"${pip[@]}" install --no-compile --requirement "$here/requirements.txt"

# What only costs room on an image; torch_shm_manager stays: loader workers start it.
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
rm -rf "$packages"/torch/{test,include} "$packages"/pyarrow/{tests,include} "$packages"/pandas/tests
find "$packages/torch/bin" -type f ! -name torch_shm_manager -delete
find "$packages"/{scipy,matplotlib,sympy,networkx,nltk} -type d -name 'test*' \
    \( -name test -o -name tests \) -prune -exec rm -rf {} +
find "$packages" -name '*.a' -delete
"${pip[@]}" uninstall --yes pip

"$venv/bin/python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$packages" >/dev/null 2>&1 || true

chmod -R a+rX "$venv"
"$venv/bin/python" -c 'import torch, transformers, swift; print("environment: torch", torch.__version__, "transformers", transformers.__version__, "ms-swift", swift.__version__)' 2>/dev/null
make_tiny
stamp stamp "$wanted"
echo "environment: $(du -sh "$venv" | cut -f1) in ${SECONDS} s"
