#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Debian runs this when its default Python changes: the private code is compiled for the new one.
set -e

if [ "$1" = rtupdate ]; then
    py3clean -p swift-governor /usr/lib/swift-governor
    py3compile -p swift-governor /usr/lib/swift-governor
fi
