#!/bin/sh
# Sees that chromium is installed, with apt where it is missing; says in one line why it cannot be.
set -u

runs() {
    for name in chromium chromium-browser google-chrome; do
        "$name" --version >/dev/null 2>&1 && return 0
    done
    return 1
}

cannot() {
    echo "no chromium: $1" >&2
    exit 1
}

runs && exit 0
command -v apt-get >/dev/null || cannot "this system has no apt-get; install chromium, and run this again"
sudo=
if [ "$(id -u)" -ne 0 ]; then
    sudo="sudo -n"
    $sudo true 2>/dev/null || cannot "only root can install it: apt install chromium"
fi
log=$(mktemp) || cannot "mktemp failed"
trap 'rm -f "$log"' EXIT
echo "installing chromium"
$sudo apt-get -qq update >"$log" 2>&1 # a package list that is old may still be good enough
DEBIAN_FRONTEND=noninteractive $sudo apt-get -qq install --yes --no-install-recommends chromium >>"$log" 2>&1 ||
    cannot "apt-get could not install it: $(tail -n 1 "$log")"
runs || cannot "apt-get installed a chromium that does not start"
