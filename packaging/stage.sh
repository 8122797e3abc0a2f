#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Lays out what the package installs, as it will lie, in one folder:
#   packaging/stage.sh FOLDER PYNVML.py VERSION
# Only what is named here gets in: no test, no cache, no work file.
set -euo pipefail

stage=$(realpath -m "$1")
pynvml=$2
version=$3
umask 022

rm -rf "$stage"
lib=$stage/usr/lib/swift-governor
mkdir -p "$lib"
for package in swift_governor swift_governor_trainer; do
    (cd daemon && find "$package" -type f \
        \( -name '*.py' -o -name '*.varlink' -o -name '*.html' -o -name '*.css' -o -name '*.js' \) \
        -print0 | sort -z | xargs -0r cp --parents -t "$lib")
done
find "$lib" -type f -exec chmod 0644 {} +
install -m 0644 "$pynvml" "$lib/pynvml.py"
install -m 0755 packaging/launch.py "$lib/launch.py"
for program in swift-governord swift-governor-sampler swift-governor-exporter swift-governor-release; do
    ln -s launch.py "$lib/$program"
done
# ms-swift's --external_plugins takes a file; it finds the rest of its package beside the real one.
mkdir -p "$stage/usr/bin" "$stage/usr/share/swift-governor"
ln -s ../../lib/swift-governor/swift_governor_trainer/swift_governor_plugin.py \
    "$stage/usr/share/swift-governor/swift_governor_plugin.py"
ln -s ../lib/swift-governor/launch.py "$stage/usr/bin/swift-governor"

units=$stage/usr/lib/systemd/system
mkdir -p "$units"
install -m 0644 systemd/*.service systemd/*.slice "$units"
install -D -m 0644 systemd/sysusers.conf "$stage/usr/lib/sysusers.d/swift-governor.conf"

doc=$stage/usr/share/doc/swift-governor
mkdir -p "$doc" "$stage/usr/share/man/man8"
install -m 0644 README.md packaging/copyright "$doc"
gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
gzip -9n <packaging/changelog.Debian >"$doc/changelog.Debian.gz"
sed "s/@VERSION@/$version/" packaging/man/swift-governor.8 |
    gzip -9n >"$stage/usr/share/man/man8/swift-governor.8.gz"
if [ "${SOURCE_DATE_EPOCH:-}" ]; then
    find "$stage" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
fi
