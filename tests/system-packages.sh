#!/bin/sh
# As root with apt: install what the tests against real system parts need. Elsewhere say what will be skipped.
set -eu
missing=""
[ -x /usr/sbin/sshd ] || missing="$missing openssh-server"
# Level 1 of the lab: containers by LXC, a small library in C, and the maps of unprivileged containers.
command -v lxc-start >/dev/null 2>&1 || missing="$missing lxc"
command -v newuidmap >/dev/null 2>&1 || missing="$missing uidmap"
if ! command -v cc >/dev/null 2>&1; then
    missing="$missing gcc libc6-dev"
elif ! echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1; then
    missing="$missing libc6-dev"
fi
if [ -z "$missing" ]; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Not installed here:$missing. The tests that need it are skipped and say so (root with apt would install it)."
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -o DPkg::Lock::Timeout=300 -qq update
# shellcheck disable=SC2086
apt-get -o DPkg::Lock::Timeout=300 -qq install -y --no-install-recommends $missing >/dev/null
