#!/usr/bin/env bash
# Brings the servers that the tests need into .servers/ without installing them:
#
#   scripts/servers.sh                      all of them
#   scripts/servers.sh redis-8.6 redis-7.0  only these
#   scripts/servers.sh --list               their names
#
# Each one gets a folder with start wrappers (.servers/redis-8.6/redis-server)
# beside the unpacked Debian packages, its own libc among them, so that a server
# of any suite runs on any Debian. The mirror is the one that this machine's apt
# uses already. A second run finds the stamps and does nothing.
#
# Where there is no apt, IDEMPOTENT_SERVERS names a folder of the same layout.
set -euo pipefail

# name | packages | programs | suites, alternatives apart by a blank | series | least version
# A suite that moves on is followed: a newer series than the wanted one is taken and said.
servers='
redis-8.6  | redis-server redis-tools   | redis-server redis-sentinel redis-cli    | trixie,experimental sid,experimental | 8.6 | 8.6.2
redis-8.0  | redis-server redis-tools   | redis-server redis-sentinel redis-cli    | trixie                               | 8.0 | 8.0
redis-7.0  | redis-server redis-tools   | redis-server redis-sentinel redis-cli    | bookworm                             | 7.0 | 7.0
valkey-8.1 | valkey-server valkey-tools | valkey-server valkey-sentinel valkey-cli | trixie                               | 8.1 | 8.1
valkey-9.1 | valkey-server valkey-tools | valkey-server valkey-sentinel valkey-cli | forky                                | 9.1 | 9.1
mariadb-10.11 | mariadb-server-core     | mariadbd                                   | bookworm                             | 10.11 | 10.11
postgres-15   | postgresql-15           | postgres initdb                            | bookworm                             | 15  | 15
'
# Counts up when what a folder holds changes, so that old ones are made anew.
layout=1

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=$(dirname "$here")/.servers

say() { printf '%s\n' "$*"; }
die() { printf 'servers: %s\n' "$*" >&2; exit 1; }

elsewhere='Set IDEMPOTENT_SERVERS to a folder with the same layout instead: <folder>/redis-8.6/redis-server, <folder>/valkey-8.1/valkey-server and so on (scripts/servers.sh --list names them).'

names() { awk -F'|' 'NF > 1 { gsub(/ /, "", $1); print $1 }' <<<"$servers"; }

# field NAME N prints the Nth column of the table for one server.
field() {
	awk -F'|' -v name="$1" -v n="$2" '
		{ key = $1; gsub(/ /, "", key) }
		key == name { v = $n; gsub(/^ +| +$/, "", v); gsub(/ +/, " ", v); print v }' <<<"$servers"
}

# first_program NAME is the server itself: redis-server, valkey-server.
first_program() { local p; p=$(field "$1" 3); say "${p%% *}"; }

is_here() { [[ -f $target/$1/stamp && $(head -n 1 "$target/$1/stamp") == "layout $layout" ]]; }

# private_apt ROOT ARGS... runs apt-get (or apt-cache, by APT) on a root of its
# own that knows no installed package, so that every dependency comes along.
private_apt() {
	local root=$1
	shift
	"${APT:-apt-get}" -q \
		-o Dir="$root" -o Dir::State::status="$root/var/lib/dpkg/status" \
		-o Dir::Etc::sourcelist="$root/etc/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
		-o APT::Sandbox::User="$(id -un)" -o APT::Install-Recommends=0 -o APT::Update::Error-Mode=any \
		-o APT::Update::Post-Invoke::= -o Acquire::Languages=none -o Acquire::PDiffs=false -o Acquire::Retries=3 "$@"
}

# new_apt_root ROOT MIRROR SUITES makes it; SUITES are joined by commas.
new_apt_root() {
	local root=$1 mirror=$2 suite
	rm -rf "$root"
	mkdir -p "$root"/etc/apt/apt.conf.d "$root"/var/lib/{dpkg,apt/lists/partial} "$root"/var/cache/apt/archives/partial
	: >"$root/var/lib/dpkg/status"
	for suite in ${3//,/ }; do
		say "deb [signed-by=$keyring] $mirror $suite main"
	done >"$root/etc/apt/sources.list"
}

# find_mirror prints the URI of this machine's Debian mirror. apt itself reads its
# sources, whatever their format, and says what an update would fetch; an empty folder
# of lists makes it say all. What is no Debian archive (third parties, security suites)
# drops out because Debian's keys do not fit it or it lacks the suite.
find_mirror() {
	local uri root="$work/probe"
	mkdir -p "$work/lists/partial"
	while read -r uri; do
		new_apt_root "$root" "$uri" trixie
		if private_apt "$root" -o Acquire::IndexTargets::deb::Packages::DefaultEnabled=false update >"$work/probe.log" 2>&1; then
			say "$uri"
			return
		fi
	done < <(apt-get update --print-uris -o Dir::State::lists="$work/lists" |
		sed -n "s|^'\(.*\)/dists/\([^ ]*\)/InRelease' .*|\2 \1|p" |
		awk '$1 !~ /security/ && !seen[$2]++ { print ($2 ~ /\/debian$/ ? 0 : 1), $2 }' | sort -s -k1,1n | cut -d' ' -f2)
	if [[ -s $work/probe.log ]]; then tail -n 5 "$work/probe.log" >&2; fi
	die "found no Debian mirror in this machine's apt sources. $elsewhere"
}

# pick ROOT PACKAGE SERIES LEAST prints the newest version of the wanted series, or
# else the newest of all that is not below LEAST.
pick() {
	local v best='' wanted=''
	while read -r v; do
		dpkg --compare-versions "${v#*:}" ge "$4" || continue
		if [[ -z $best ]] || dpkg --compare-versions "$v" gt "$best"; then best=$v; fi
		[[ ${v#*:} == "$3".* ]] || continue
		if [[ -z $wanted ]] || dpkg --compare-versions "$v" gt "$wanted"; then wanted=$v; fi
	done < <(APT=apt-cache private_apt "$1" madison "$2" | awk -F'|' '{ gsub(/ /, "", $2); print $2 }')
	say "${wanted:-$best}"
}

# wrap FOLDER PROGRAM writes the start wrapper of a program. It starts through the
# unpacked loader, with the unpacked libraries, and by exec, so that a signal to its
# pid reaches the server. Sentinel is the server under another name.
wrap() {
	local folder=$1 program=$2 file dir loader libs link
	for dir in usr/bin usr/sbin $(cd "$folder/root" && find usr/lib/postgresql -name bin 2>/dev/null); do
		link=$folder/root/$dir/$program
		[[ -e $link || -L $link ]] || link=$folder/root/$dir/${program/sentinel/server}
		[[ -e $link || -L $link ]] && break
	done
	# The links may be absolute, so follow them by name inside the folder.
	file=$(basename "$(readlink "$link" || say "$link")")
	[[ -f $folder/root/$dir/$file ]] || die "$program: $file is missing in its packages"
	loader=$(cd "$folder/root" && find . -path '*lib*' -name 'ld*.so.*' ! -name '*.conf*' | sort | head -n 1)
	[[ -n $loader ]] || die "$program: its packages hold no loader"
	libs=$(cd "$folder/root" && find . -name 'lib*.so.*' -printf '%h\n' | sort -u | sed 's|^\.|$root|' | paste -sd:)
	cat >"$folder/$program" <<-WRAPPER
		#!/bin/sh
		root=\$(cd "\${0%/*}" && pwd)/root
		exec "\$root/${loader#./}" --argv0 $program --library-path "$libs" "\$root/$dir/$file" "\$@"
	WRAPPER
	if [[ $dir == usr/lib/postgresql/* ]]; then
		# These look for each other, and for what they share, beside the name that they
		# were called by. So the wrappers are there, and the programs behind them.
		mv "$folder/root/$dir/$file" "$folder/root/$dir/$file.program"
		cat >"$folder/root/$dir/$file" <<-WRAPPER
			#!/bin/sh
			root=\$(cd "\${0%/*}/../../../../.." && pwd)
			exec "\$root/${loader#./}" --argv0 "\$root/$dir/$file" --library-path "$libs" "\$root/$dir/$file.program" "\$@"
		WRAPPER
		chmod +x "$folder/root/$dir/$file"
		printf '#!/bin/sh\nexec "$(cd "${0%%/*}" && pwd)/root/%s" "$@"\n' "$dir/$file" >"$folder/$program"
	fi
	chmod +x "$folder/$program"
}

# bring NAME downloads, unpacks and tries one server. The folder appears under its
# name, with its stamp, only after the server has printed its version.
bring() {
	local name=$1 root="$work/apt-$1" folder="$work/$1" packages programs series least suites version='' p deb
	local -a wanted=()
	packages=$(field "$name" 2) programs=$(field "$name" 3) series=$(field "$name" 5) least=$(field "$name" 6)
	mkdir -p "$folder/root"
	for suites in $(field "$name" 4); do
		new_apt_root "$root" "$mirror" "$suites"
		private_apt "$root" update || continue
		version=$(pick "$root" "${packages%% *}" "$series" "$least")
		[[ -n $version ]] || continue
		wanted=()
		for p in $packages; do wanted+=("$p=$version"); done
		if private_apt "$root" install -y --download-only "${wanted[@]}"; then break; fi
		version=''
	done
	[[ -n $version ]] || die "$name: no version of ${packages%% *} that is at least $least can be had from $(field "$name" 4)"
	for deb in "$root"/var/cache/apt/archives/*.deb; do dpkg -x "$deb" "$folder/root"; done
	find "$folder"/root/usr/share -mindepth 1 -maxdepth 1 ! -name mysql ! -name postgresql -exec rm -rf {} +
	rm -rf "$folder"/root/{var,etc}
	for p in $programs; do wrap "$folder" "$p"; done
	version=$("$folder/$(first_program "$name")" --version) || die "$name: it does not start"
	[[ $version == *[v\ ]*[=\ ]"$series".* ]] || say "NOTE: $name: its suite has moved on from $series; took a newer one" >"$work/$name.note"
	printf 'layout %s\n%s\n' "$layout" "$version" >"$folder/stamp"
	rm -rf "${target:?}/$name" "$root"
	mv "$folder" "$target/$name"
}

show() { say "$1: $(sed -n 2p "$target/$1/stamp" | grep -oE '(v=|Ver |\) )[0-9][^ ]*' | head -n 1 | sed -E 's/^(v=|Ver |\) )//') in .servers/$1"; }

main() {
	local name program failed=0
	local -a asked=("$@") missing=()
	declare -gA jobs=()
	if [[ ${1:-} == --list ]]; then names; return; fi
	if ((${#asked[@]} == 0)); then mapfile -t asked < <(names); fi
	for name in "${asked[@]}"; do
		[[ -n $(field "$name" 1) ]] || die "unknown server $name; there are: $(names | paste -sd' ')"
	done

	if [[ -n ${IDEMPOTENT_SERVERS:-} ]]; then
		for name in "${asked[@]}"; do
			program=$IDEMPOTENT_SERVERS/$name/$(first_program "$name")
			[[ -x $program ]] || die "IDEMPOTENT_SERVERS is set, but $program is no program"
			say "$name: $program"
		done
		return
	fi

	for name in "${asked[@]}"; do is_here "$name" || missing+=("$name"); done
	if ((${#missing[@]} > 0)); then
		for program in apt-get apt-cache dpkg flock; do
			command -v "$program" >/dev/null || die "this machine has no $program, and the servers are Debian packages. $elsewhere"
		done
		for keyring in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp} ''; do [[ -f $keyring ]] && break; done
		[[ -n $keyring ]] || die "this machine lacks Debian's keys (package debian-archive-keyring). $elsewhere"
		mkdir -p "$target"
		exec 9>"$target/lock"
		flock 9
		# Another run may have brought them while this one waited.
		missing=()
		for name in "${asked[@]}"; do is_here "$name" || missing+=("$name"); done
	fi
	if ((${#missing[@]} > 0)); then
		work=$target/work
		rm -rf "$work"
		mkdir -p "$work"
		trap 'kill "${jobs[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
		mirror=$(find_mirror)
		say "bringing ${missing[*]} ..."
		for name in "${missing[@]}"; do
			(bring "$name") >"$work/$name.log" 2>&1 &
			jobs[$name]=$!
		done
		for name in "${missing[@]}"; do
			if wait "${jobs[$name]}"; then continue; fi
			failed=1
			tail -n 15 "$work/$name.log" | sed "s/^/$name: /" >&2
		done
		for name in "${missing[@]}"; do
			if [[ -f $work/$name.note ]]; then cat "$work/$name.note"; fi
		done
	fi
	((failed == 0)) || die "not all servers could be brought. $elsewhere"
	for name in "${asked[@]}"; do show "$name"; done
}

main "$@"
