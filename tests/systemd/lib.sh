# shellcheck shell=bash Boots a Debian 12 in a container (systemd-nspawn), for the scripts in this folder,
# which set `binary` and `base` before they source this file. Requires root, and Debian's debootstrap and
# systemd-container; the first run downloads 100 MB.

root=$base/root
leader=
nspawn=
mkdir -p "$base"

step() { printf '\n== %s\n' "$*"; }
fail() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}

# Creates a new root file system with the binary in /root.
fresh() {
    if [ ! -e "$base/debian/etc/debian_version" ]; then
        step 'a Debian 12'
        debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,curl,ca-certificates,procps \
            bookworm "$base/debian"
    fi
    rm -rf "$root"
    cp -a "$base/debian" "$root"
    rm -f "$root/etc/machine-id"
    install -m 0755 "$binary" "$root/root/orrery"
}

boot() {
    systemd-nspawn --quiet --directory "$root" --boot --register=no --keep-unit \
        --setenv=TERM=dumb >"$base/console" 2>&1 &
    nspawn=$!
    for _ in $(seq 200); do
        leader=$(pgrep -P "$nspawn" -x systemd || true)
        if [ -n "$leader" ] && within systemctl is-system-running 2>/dev/null | grep -E 'running|degraded' >/dev/null; then
            return
        fi
        sleep 0.3
    done
    cat "$base/console"
    fail 'the container does not boot'
}

# Runs a command in the container.
within() {
    nsenter --target "$leader" --mount --uts --ipc --pid --cgroup --root --wd -- \
        env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"
}

halt() {
    if [ -n "$leader" ]; then
        kill -s RTMIN+4 "$leader" 2>/dev/null || true
        wait "$nspawn" || true
        leader=
    fi
}

# Runs a prediction over TLS with `key`, trusting the authority that the service created.
predict() {
    curl -sS --fail --cacert "$base/ca.pem" https://localhost:8443/v1/prediction/run -H "X-API-Key: $key" -d '{
        "model": "text-sentiment", "version": "0.0.1", "input": {"text": "What a beautiful night!"}}'
}

# Waits until predictions succeed again.
recovered() {
    for _ in $(seq 100); do
        if predict >/dev/null 2>&1; then return; fi
        sleep 0.3
    done
    predict
}

# Prints the milliseconds since a time given by `date +%s%N`.
since() { echo $((($(date +%s%N) - $1) / 1000000)); }
