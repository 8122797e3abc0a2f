#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# packaging/verify-units.sh STAGE: lets systemd read the units that the package installs, and holds
# the root daemon's exposure to its bar. Needs no running systemd.
set -euo pipefail

stage=$(realpath "$1")
units=$stage/usr/lib/systemd/system
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

# verify looks for the programs of ExecStart= and for Wants= beside the units: let it find them here.
for unit in "$units"/*; do
    sed -E "s#=(/usr/(lib/swift-governor/|bin/swift-governor))#=$stage\\1#" "$unit" >"$copy/${unit##*/}"
done
said=$(SYSTEMD_UNIT_PATH="$copy:" systemd-analyze verify --man=no "$copy"/* 2>&1) || {
    echo "$said"
    exit 1
}
# Its exit status is 0 also for a key that systemd ignores.
if grep -F "$copy" <<<"$said" || grep -E '(swift-governor|msswift)[a-z-]*\.(service|slice)' <<<"$said"; then
    exit 1
fi
echo "$(find "$copy" -type f | wc -l) units verified"

systemd-analyze security --offline=true --threshold=26 --no-pager "$units/swift-governor.service" | tail -n 1
