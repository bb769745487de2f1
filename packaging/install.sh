#!/bin/sh
# Installs Orrery: downloads the binary of a release, compares its SHA-256 with SHA256SUMS, and copies it to
# /usr/local/bin, or to ~/.local/bin for a user other than root.
#
#     curl -fsSL https://github.com/orrery/orrery/releases/latest/download/install.sh | sh
#
# ORRERY_INSTALL_DIR sets another folder for the binary. ORRERY_RELEASE sets another location for the release's files: a
# URL, such as that of a mirror, or a folder, for machines without internet access.
set -eu

version=@VERSION@
release=${ORRERY_RELEASE:-https://github.com/orrery/orrery/releases/download/v$version}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
case $(uname -s)/$(uname -m) in
Linux/x86_64 | Linux/amd64) cpu=x64 ;;
Linux/aarch64 | Linux/arm64) cpu=arm64 ;;
*) fail "Orrery runs on Linux, on x86-64 and aarch64; this is $(uname -s) on $(uname -m)" ;;
esac
if [ "$(id -u)" = 0 ]; then
    into=${ORRERY_INSTALL_DIR:-/usr/local/bin}
else
    into=${ORRERY_INSTALL_DIR:-$HOME/.local/bin}
fi

# All work happens in one call at the end, so that an incompletely downloaded script does nothing.
get() {
    case $release in
    http://* | https://*)
        if command -v curl >/dev/null; then
            curl -fsSL --retry 3 -o "$2" "$release/$1"
        else
            wget -q -O "$2" "$release/$1"
        fi
        ;;
    *) cp "$release/$1" "$2" ;;
    esac || fail "cannot get $1 from $release"
}
install_orrery() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    package=orrery-linux-$cpu-$version.tgz
    get SHA256SUMS "$work/SHA256SUMS"
    get "$package" "$work/$package"
    grep "  $package\$" "$work/SHA256SUMS" >"$work/sum" || fail "SHA256SUMS does not list $package"
    (cd "$work" && sha256sum -c sum >/dev/null) || fail "$package is damaged: its SHA-256 is not the one in SHA256SUMS"
    tar -xzf "$work/$package" -C "$work" package/bin/orrery
    mkdir -p "$into"
    # A rename can replace the binary of a running service; writing to that binary would fail.
    cp "$work/package/bin/orrery" "$into/.orrery.new"
    chmod 755 "$into/.orrery.new"
    mv "$into/.orrery.new" "$into/orrery"
    printf 'Installed %s in %s.\n' "$("$into/orrery" --version)" "$into"
    case :$PATH: in
    *:"$into":*) ;;
    *) printf 'Add %s to your PATH.\n' "$into" ;;
    esac
    printf 'Start it with "orrery", or as a system service with "sudo orrery service install".\n'
}
install_orrery
