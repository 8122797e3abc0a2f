#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# deb: remove | purge | upgrade … | abort-…     rpm: 0 | 1
#
# The two users and the group stay: their numbers may own something, and must not be given to others.
set -e

case "$1" in
remove | 0)
    rm -rf /usr/lib/swift-governor /run/swift-governor /run/swift-governor.units
    ;;
purge)
    # What the admin put into config.d/ belongs to the configuration too.
    rm -rf /etc/swift-governor
    ;;
esac
