#!/bin/sh
# What `make install`, `make uninstall` and `make engine` do; the Makefile sets every variable that is used here.
#
# An environment is built beside its place, already naming its final path, and then moved there: a failed download
# leaves the installed one untouched, and DESTDIR works the same way.
set -eu
umask 022

say() { echo "$1"; }
fail() { echo "make: $1" >&2; exit 1; }

# What is being built, and the first directory that was made for it: both go when it is not finished.
fresh= made=
cleanup() {
    [ -z "$fresh" ] || rm -rf "$fresh"
    [ -z "$made" ] || find "$made" -depth -type d -empty -delete 2>/dev/null || true
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# room_for PLACE HINT: the directory in which a place will lie; begins to build `$place.new`.
room_for() {
    parent=$(dirname "$1")
    top=$parent
    while [ ! -e "$(dirname "$top")" ]; do top=$(dirname "$top"); done
    [ -e "$parent" ] || made=$top
    mkdir -p "$parent" 2>/dev/null && [ -w "$parent" ] || fail "$parent cannot be written: run as root, or give $2"
    fresh=$1.new
    rm -rf "$fresh"
}

# quietly NAME COMMAND...: output goes to a log whose end is shown on failure.
quietly() {
    # A checkout that root may not write (a read-only mount, NFS) must not keep an installation from being removed.
    logs=build/logs
    mkdir -p "$logs" 2>/dev/null && [ -w "$logs" ] || logs=$(mktemp -d)
    log=$logs/$1.log
    shift
    "$@" >"$log" 2>&1 && return 0
    tail -n 15 "$log" >&2
    fail "the step failed, all of its output is in $log"
}

pip() {
    python=$1
    shift
    PIP_ROOT_USER_ACTION=ignore "$python" -m pip --quiet --no-input --disable-pip-version-check "$@"
}

check_python() {
    real=$(readlink -f "$(command -v "$PYTHON")") || fail "$PYTHON is not there: install the system's python3 and python3-venv"
    case $real in
        /root/* | /home/*) fail "$PYTHON lies under a home directory, where a service user cannot execute it: use PYTHON=/usr/bin/python3" ;;
    esac
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$PYTHON is older than Python 3.11: give a newer one of the system as PYTHON="
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || fail "$PYTHON cannot make environments: install python3-venv"
}

# name_final_path BUILT FINAL: lets an environment name the place where it will lie, and compiles it for there (the
# service cannot write bytecode).
name_final_path() {
    grep -rIlF "$1" "$1/bin" "$1/pyvenv.cfg" | while read -r file; do sed -i "s|$1|$2|g" "$file"; done
    # Where the sources lay on the building machine is nobody's business.
    find "$1" -name direct_url.json -delete
    "$1/bin/python" -m compileall -qq -f -j 0 -s "$1" -p "$2" "$1"/lib/python3*/site-packages || true
}

# swap NEW PLACE: puts a finished directory into its place.
swap() {
    rm -rf "$2.old"
    [ ! -e "$2" ] || mv "$2" "$2.old"
    mv "$1" "$2"
    fresh= made=
    rm -rf "$2.old"
}

# keep SOURCE TARGET MODE: a configuration file that is there belongs to the operator.
keep() {
    if [ -e "$2" ]; then
        say "kept      ${2#"$DESTDIR"}"
    else
        install -D -m "$3" "$1" "$2"
        say "installed ${2#"$DESTDIR"}"
    fi
}

install_all() {
    check_python
    place=$DESTDIR$PREFIX
    room_for "$place" DESTDIR=
    quietly install-venv "$PYTHON" -m venv --prompt "$(basename "$PREFIX")" "$place.new"
    quietly install-runtime pip "$place.new/bin/python" install --no-compile --requirement supervisor/runtime.lock
    quietly install-daemon pip "$place.new/bin/python" install --no-compile --no-deps .
    name_final_path "$place.new" "$PREFIX"
    swap "$place.new" "$place"
    mkdir -p "$DESTDIR$BINDIR"
    ln -sfn "$PREFIX/bin/vllm-supervisor" "$DESTDIR$BINDIR/vllm-supervisor"
    say "installed $BINDIR/vllm-supervisor -> $PREFIX/bin/vllm-supervisor"

    for unit in kimi.service vllm@.service kimi-weights.service vllm-weights@.service kimi-fetch.service; do
        mkdir -p "$DESTDIR$UNITDIR"
        sed "s|/usr/local/bin/|$BINDIR/|; s|/usr/local/share/doc/vllm-supervisor/|$DOCDIR/|; s|/etc/vllm-supervisor/|$CONFDIR/|" "units/$unit" >"$DESTDIR$UNITDIR/$unit"
        chmod 0644 "$DESTDIR$UNITDIR/$unit"
        say "installed $UNITDIR/$unit"
    done
    install -D -m 0644 units/sysusers.d/vllm-supervisor.conf "$DESTDIR$SYSUSERSDIR/vllm-supervisor.conf"
    install -D -m 0644 units/tmpfiles.d/vllm-supervisor.conf "$DESTDIR$TMPFILESDIR/vllm-supervisor.conf"
    install -D -m 0644 README.md "$DESTDIR$DOCDIR/README.md"
    for folder in docs env monitoring; do
        rm -rf "$DESTDIR$DOCDIR/${folder:?}"
        [ ! -d "$folder" ] || cp -R "$folder" "$DESTDIR$DOCDIR/$folder"
    done
    sed -i "s|/usr/local/share/doc/vllm-supervisor/|$DOCDIR/|" "$DESTDIR$DOCDIR/monitoring/alerts.yml"
    keep env/kimi.toml "$DESTDIR$CONFDIR/kimi.toml" 0644
    keep env/kimi.env "$DESTDIR$CONFDIR/kimi.env" 0640

    [ -z "$DESTDIR" ] || { say "staged in $DESTDIR: systemd-sysusers and systemd-tmpfiles are the package's to run"; return; }
    if command -v systemd-sysusers >/dev/null; then
        quietly sysusers systemd-sysusers
        quietly tmpfiles systemd-tmpfiles --create vllm-supervisor.conf
    fi
    reload_systemd
    say "next: edit $CONFDIR/kimi.toml, then run: vllm-supervisor check --config $CONFDIR/kimi.toml && systemctl enable --now kimi"
}

reload_systemd() {
    [ ! -d /run/systemd/system ] || quietly daemon-reload systemctl daemon-reload
}

uninstall_all() {
    if [ -z "$DESTDIR" ] && [ -d /run/systemd/system ]; then
        running=$(systemctl list-units --plain --no-legend --state=active,activating,deactivating,reloading 'kimi.service' 'kimi-fetch.service' 'vllm@*.service' | awk '{print $1}' | xargs)
        [ -z "$running" ] || fail "still running: stop it first with: systemctl disable --now $running"
    fi
    # Enabled, it is a link among what kimi wants, which would lead nowhere.
    [ -n "$DESTDIR" ] || ! command -v systemctl >/dev/null || systemctl --quiet disable kimi-fetch.service 2>/dev/null || true
    rm -rf "$DESTDIR$PREFIX" "$DESTDIR$DOCDIR"
    rm -f "$DESTDIR$BINDIR/vllm-supervisor" "$DESTDIR$UNITDIR/kimi.service" "$DESTDIR$UNITDIR/vllm@.service" "$DESTDIR$UNITDIR/kimi-fetch.service" \
        "$DESTDIR$UNITDIR/kimi-weights.service" "$DESTDIR$UNITDIR/vllm-weights@.service" \
        "$DESTDIR$SYSUSERSDIR/vllm-supervisor.conf" "$DESTDIR$TMPFILESDIR/vllm-supervisor.conf"
    [ -n "$DESTDIR" ] || reload_systemd
    say "removed   the daemon and its units"
    say "left      $CONFDIR, /var/lib/vllm-supervisor, /var/cache/vllm-supervisor, the user vllm: remove them by hand"
}

make_engine() {
    [ -n "$VLLM" ] || fail "say which version: make engine VLLM=0.32.0"
    case $VLLM in
        [!0-9]* | *[!0-9A-Za-z.+!_-]*) fail "VLLM=$VLLM is no version: such as VLLM=0.32.0" ;;
    esac
    check_python
    final=$ENGINE_DIR-$VLLM
    place=$DESTDIR$final
    link=$DESTDIR$ENGINE_DIR
    [ ! -e "$link" ] || [ -L "$link" ] || fail "$link is a directory, not a link to one: move it away, or give another ENGINE_DIR="
    # A running engine loads modules late, so that an environment in use is never changed: each version has its own.
    if [ ! -x "$place/bin/vllm" ]; then
        room_for "$place" "ENGINE_DIR= or DESTDIR="
        say "making    $place (several GB are downloaded)"
        quietly engine-venv "$PYTHON" -m venv --prompt "$(basename "$final")" "$place.new"
        # shellcheck disable=SC2086 # several arguments are meant
        quietly engine-pip pip "$place.new/bin/python" install --no-compile $PIP_ARGS "vllm==$VLLM"
        name_final_path "$place.new" "$final"
        swap "$place.new" "$place"
    fi
    ln -s "$final" "$link.new.$$"
    mv -T "$link.new.$$" "$link"
    say "installed $ENGINE_DIR -> $final"
}

case $1 in
    install) install_all ;;
    uninstall) uninstall_all ;;
    engine) make_engine ;;
    *) fail "unknown step $1" ;;
esac
