#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# deb: install | upgrade OLD-VERSION     rpm: 1 | 2
set -e

case "$1" in
upgrade | 2)
    # postinstall compares: systemd has to reload only where a unit file really changed, and on a
    # GPU node a reload is not free (it takes GPUs from running containers, nvidia-docker#1730).
    if [ -d /run/systemd/system ]; then
        cat /usr/lib/systemd/system/swift-governor*.service \
            /usr/lib/systemd/system/msswift*.slice 2>/dev/null |
            sha256sum >/run/swift-governor.units || true
    fi
    ;;
esac
