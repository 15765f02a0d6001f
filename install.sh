#!/bin/sh
# Installs shunt from this folder: the binary that `make build` made, units, man pages and
# completions where they were built, and an example of the configuration. Run again, it
# changes nothing that is already as it should be. It starts and enables nothing.
#
#   ./install.sh [--prefix DIR] [--dry-run] [--uninstall]
set -eu

prefix=/usr/local
dry_run=
uninstall=
usage() { sed -n '2,6s/^# \{0,1\}//p' "$0"; }

while [ $# -gt 0 ]; do
  case $1 in
    --prefix)
      [ $# -ge 2 ] || { echo "error: --prefix needs a folder" >&2; exit 64; }
      prefix=$2
      shift
      ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    --dry-run) dry_run=1 ;;
    --uninstall) uninstall=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "error: unknown argument $1" >&2
      usage >&2
      exit 64
      ;;
  esac
  shift
done
case $prefix in
  /*) ;;
  *) echo "error: --prefix $prefix: want an absolute path" >&2; exit 64 ;;
esac
# Units name the binary, so the path goes through sed and systemd: only plain letters.
case $prefix in
  *[!A-Za-z0-9/._-]*) echo "error: --prefix $prefix: letters, digits and / . _ - only" >&2; exit 64 ;;
esac
prefix=${prefix%/}

here=$(cd "$(dirname "$0")" && pwd)
units=/etc/systemd/system
config=/etc/shunt/shunt.yaml
changed=0

run() {
  if [ -n "$dry_run" ]; then echo "would: $*"; else "$@"; fi
}

# put SOURCE TARGET MODE: copies only what differs.
put() {
  if cmp -s "$1" "$2" && [ "$(stat -c %a "$2")" = "$3" ]; then return; fi
  changed=$((changed + 1))
  if [ -n "$dry_run" ]; then
    echo "would install $2"
    return
  fi
  mkdir -p "$(dirname "$2")"
  # Aside and renamed: a binary that runs just now is not written into.
  cp "$1" "$2.new"
  chmod "$3" "$2.new"
  mv -f "$2.new" "$2"
  echo "installed $2"
}

take() {
  [ -e "$1" ] || return 0
  changed=$((changed + 1))
  if [ -n "$dry_run" ]; then echo "would remove $1"; else
    rm -f "$1"
    echo "removed $1"
  fi
}

[ -n "$dry_run" ] || [ "$(id -u)" = 0 ] || { echo "error: needs root (--dry-run does not)" >&2; exit 1; }
has_systemd=
[ -d /run/systemd/system ] && has_systemd=1

if [ -n "$uninstall" ]; then
  for unit in "$here"/systemd/*; do
    name=$(basename "$unit")
    if [ -n "$has_systemd" ] && [ -e "$units/$name" ]; then
      case $name in
        *@.service)
          run systemctl stop "${name%.service}*.service" || true
          run systemctl disable "$name" || true
          ;;
        *) run systemctl disable --now "$name" || true ;;
      esac
    fi
    take "$units/$name"
  done
  take "$prefix/bin/shunt"
  for page in "$prefix"/share/man/man8/shunt.8 "$prefix"/share/man/man8/shunt-*.8; do
    take "$page"
  done
  take "$prefix/share/bash-completion/completions/shunt"
  take "$prefix/share/zsh/site-functions/_shunt"
  take "$prefix/share/fish/vendor_completions.d/shunt.fish"
  take "$prefix/share/doc/shunt/shunt.yaml"
  take "$prefix/share/doc/shunt/cron"
  if [ -n "$has_systemd" ]; then
    run systemctl daemon-reload
    # A unit that failed is listed without its file until it is forgotten.
    for unit in "$here"/systemd/*; do
      name=$(basename "$unit")
      case $name in *@.service) name="${name%.service}*.service" ;; esac
      run systemctl reset-failed "$name" 2>/dev/null || true
    done
  fi
  echo "left in place: $config, the state directory (/var/lib/shunt unless state_dir says otherwise)"
  # What the kernel holds goes on as it is: taking it away ends the service of its addresses.
  echo "tables go on as they are, without anybody who watches them:"
  echo "  table inet shunt_edge leads virtual addresses; to remove it: nft delete table inet shunt_edge"
  echo "  table inet shunt_egress and the lanes' rules and routes lead users; to remove them, before this: shunt egress plane --remove"
  echo "  (now: nft delete table inet shunt_egress, and the ip rules and routes of egress.lanes by hand)"
  [ "$changed" != 0 ] || echo "nothing to remove"
  exit 0
fi

[ -x "$here/bin/shunt" ] || { echo "error: $here/bin/shunt is not there" >&2; echo "hint: make build" >&2; exit 1; }
"$here/bin/shunt" --help >/dev/null || { echo "error: bin/shunt does not run on this host" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
put "$here/bin/shunt" "$prefix/bin/shunt" 755
for unit in "$here"/systemd/*; do
  name=$(basename "$unit")
  sed "s#/usr/local/bin/shunt#$prefix/bin/shunt#" "$unit" >"$work/$name"
  put "$work/$name" "$units/$name" 644
done
for page in "$here"/build/man/*.8; do
  [ -e "$page" ] && put "$page" "$prefix/share/man/man8/$(basename "$page")" 644
done
for pair in bash:bash-completion/completions/shunt zsh:zsh/site-functions/_shunt fish:fish/vendor_completions.d/shunt.fish; do
  built=$here/build/completions/shunt.${pair%%:*}
  [ -e "$built" ] && put "$built" "$prefix/share/${pair#*:}" 644
done
"$here/bin/shunt" config reference >"$work/shunt.yaml"
put "$work/shunt.yaml" "$prefix/share/doc/shunt/shunt.yaml" 644
put "$here/cron/shunt" "$prefix/share/doc/shunt/cron" 644
[ -z "$has_systemd" ] || [ "$changed" = 0 ] || run systemctl daemon-reload
[ "$changed" != 0 ] || echo "nothing to do"

[ -e "$config" ] || echo "next: a configuration at $config; $prefix/share/doc/shunt/shunt.yaml explains every key"
echo "then: shunt config check && shunt egress refresh --dry-run"
if [ -n "$has_systemd" ]; then
  echo "then: systemctl enable --now shunt-egress-plane.service shunt-egress-refresh.timer shunt-egress-rebalance.timer shunt-egress-repair.timer shunt-egress-retry.timer"
  echo "with services in edge.services: systemctl disable --now shunt-egress-repair.timer; systemctl enable --now shunt-edge-retarget.timer shunt-watchdog-a.timer shunt-watchdog-b.timer"
else
  echo "then: cp $prefix/share/doc/shunt/cron /etc/cron.d/shunt"
  echo "with services in edge.services: take the # away from its lines of shunt edge and shunt watchdog"
fi
