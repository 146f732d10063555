#!/bin/sh
# Runs inside fresh namespaces (mount, pid, uts, ipc, cgroup, net) as their first process: builds a private copy of
# the root file system and becomes systemd in it. Nothing here reaches the host: every mount is private, the file
# system is an overlay whose upper layer is a tmpfs, and /sys and the global part of /proc/sys are read-only.
#
# usage: boot.sh SCRATCH [SPEC...]      SPEC is layer:DIRECTORY, ro:SOURCE:TARGET or rw:SOURCE:TARGET
set -eu
scratch=$1
shift
fail() { echo "boot: $*" >&2; exit 1; }

mount --make-rprivate /
mount -t tmpfs -o mode=0755 scratch "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" overlay "$scratch/root" ||
    fail "an overlay over the root file system cannot be mounted"
root=$scratch/root

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
# Kernel settings without a namespace of their own belong to the host.
for path in kernel vm fs dev; do
    [ -d "$root/proc/sys/$path" ] || continue
    mount --bind "$root/proc/sys/$path" "$root/proc/sys/$path"
    mount -o remount,bind,ro "$root/proc/sys/$path"
done
[ ! -e "$root/proc/sysrq-trigger" ] || mount --bind /dev/null "$root/proc/sysrq-trigger"
# Read-only, as in any container: udev and the kernel's settings are then left alone.
mount -t sysfs -o nosuid,nodev,noexec,ro sysfs "$root/sys"
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$root/sys/fs/cgroup"

mount -t tmpfs -o mode=0755,nosuid tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
for device in /dev/nvidia*; do
    [ -c "$device" ] || continue
    : >"$root$device"
    mount --bind "$device" "$root$device"
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
mount -t mqueue -o nosuid,nodev,noexec mqueue "$root/dev/mqueue"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs "$root/run"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/tmp"

# The host's own services stay out: only what systemd itself brings is started.
rm -rf "$root/etc/systemd/system" "$root/var/log/journal"
mkdir -p "$root/etc/systemd/system" "$root/etc/tmpfiles.d"
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-udevd-kernel.socket systemd-udevd-control.socket \
    systemd-sysctl.service systemd-modules-load.service systemd-timesyncd.service systemd-remount-fs.service \
    systemd-random-seed.service systemd-update-utmp.service systemd-hwdb-update.service kmod-static-nodes.service \
    dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount networking.service getty.target; do
    ln -s /dev/null "$root/etc/systemd/system/$unit"
done
# Scripts of the host's packages in /etc/init.d are services too, by way of this generator.
mkdir -p "$root/etc/systemd/system-generators"
ln -s /dev/null "$root/etc/systemd/system-generators/systemd-sysv-generator"
# Debian's own file empties /tmp at every boot; a directory of the host that is bound there must not be emptied.
echo 'd /tmp 1777 root root -' >"$root/etc/tmpfiles.d/tmp.conf"
: >"$root/etc/fstab"
printf '%s\n' "$(tr -d - </proc/sys/kernel/random/uuid)" >"$root/etc/machine-id"
echo vsup-lab >"$root/etc/hostname"
hostname vsup-lab
ip link set lo up 2>/dev/null || ifconfig lo up || fail "the loopback interface cannot be brought up: install iproute2"

# Layers are copied, as a package would be: an overlay refuses a lower directory that lies inside another.
for spec in "$@"; do
    [ "${spec%%:*}" = layer ] || continue
    tar -C "${spec#*:}" -cf - . | tar -C "$root" --keep-directory-symlink --no-overwrite-dir -xpf - ||
        fail "${spec#*:} cannot be laid over the root file system"
done

for bind in "$@"; do
    mode=${bind%%:*}
    [ "$mode" != layer ] || continue
    rest=${bind#*:}
    source=${rest%%:*}
    target=$root${rest#*:}
    if [ -d "$source" ]; then mkdir -p "$target"; else mkdir -p "$(dirname "$target")"; : >"$target"; fi
    mount --rbind "$source" "$target" || fail "$source cannot be bound"
    [ "$mode" = rw ] || mount -o remount,bind,ro "$target"
done

cd "$root"
mkdir -p .host
pivot_root . .host
cd /
umount -l /.host
rmdir /.host
# systemd leaves this to whoever makes the container; credentials reach a service through it.
mount --make-rshared /
exec env -i container=vsup-lab PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LANG=C.UTF-8 \
    /lib/systemd/systemd --system --unit=multi-user.target --log-target=journal --show-status=no </dev/null
