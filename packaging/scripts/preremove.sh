#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# deb: remove | upgrade NEW-VERSION | deconfigure …     rpm: 0 | 1
set -e

clean() {
    if command -v py3clean >/dev/null 2>&1; then
        py3clean -p swift-governor
    else
        find /usr/lib/swift-governor -type d -name __pycache__ -prune -exec rm -rf {} +
    fi
}

# A slice is stopped only when its cgroup says that nobody is in it: stopping one with a job inside
# would end the job (runc PR#2880). Children come before parents.
stop_empty_slices() {
    systemctl list-units --all --plain --no-legend --type=slice 'msswift*.slice' |
        awk '{ print length($1), $1 }' | sort -rn | while read -r _ slice; do
        path=$(systemctl show --property=ControlGroup --value "$slice")
        if [ -z "$path" ] || grep -qx 'populated 0' "/sys/fs/cgroup$path/cgroup.events"; then
            systemctl stop "$slice" || true
            rm -rf "/run/systemd/system.control/$slice.d"
        fi
    done
}

case "$1" in
remove | 0)
    if [ -d /run/systemd/system ]; then
        # Its ExecStopPost= gives back limits and priorities; jobs run on.
        systemctl stop swift-governor.service swift-governor-sampler.service \
            swift-governor-exporter.service || true
        # Once more: the last stop may have happened while D-Bus was away. Nothing to do is fine.
        /usr/lib/swift-governor/swift-governor-release ||
            echo "swift-governor: not everything was given back: see above; a reboot does" >&2
        systemctl reset-failed swift-governor.service swift-governor-sampler.service \
            swift-governor-exporter.service 2>/dev/null || true
        stop_empty_slices
    fi
    # Leaves no dangling link in /etc; without --no-reload this would be a daemon-reload.
    systemctl --no-reload disable swift-governor.service >/dev/null 2>&1 || true
    ;;
esac

case "$1" in
remove | upgrade | deconfigure | 0) clean ;;
esac
