#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# deb: configure [OLD-VERSION]     rpm: 1 | 2
#
# Enables nothing and starts nothing. A new unit needs no daemon-reload: systemd reads it when it is
# first asked for.
set -e

compile() {
    if command -v py3compile >/dev/null 2>&1; then
        py3compile -p swift-governor /usr/lib/swift-governor
    else
        python3 -m compileall -q /usr/lib/swift-governor
    fi
}

case "$1" in
configure) old="$2" ;;
1) old="" ;;
2) old="rpm" ;;
*) exit 0 ;;
esac

systemd-sysusers /usr/lib/sysusers.d/swift-governor.conf
compile

if [ -n "$old" ] && [ -d /run/systemd/system ]; then
    new_units=$(cat /usr/lib/systemd/system/swift-governor*.service \
        /usr/lib/systemd/system/msswift*.slice | sha256sum)
    if [ -e /run/swift-governor.units ] && [ "$new_units" != "$(cat /run/swift-governor.units)" ]; then
        echo "swift-governor: unit files changed in this version: running systemctl daemon-reload"
        systemctl daemon-reload
    fi
    rm -f /run/swift-governor.units
    # Only what runs. The new governor adopts the jobs that the old one placed.
    systemctl try-restart swift-governor.service swift-governor-sampler.service \
        swift-governor-exporter.service ||
        echo "swift-governor: the new version did not start: journalctl -u swift-governor" >&2
fi
