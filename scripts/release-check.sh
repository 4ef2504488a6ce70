#!/usr/bin/env bash
# Is this commit fit to be released as VERSION? It prints a checklist, "ok" or "failed" a line,
# and fails if something has. Nothing of the checkout changes: commit and tags are made in a
# clone, which the go command then takes for the repository.
#
#   scripts/release-check.sh v0.1.0
#
# LAST_TAG is the version that the API is compared with; the newest tag below HEAD by itself.
# APIDIFF is the command that compares.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:-}
if ! [[ $version =~ ^v[01]\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$ ]]; then
	echo "usage: $0 VERSION, such as v0.1.0 (from v2 on, module paths have to end in it); it is \"$version\"" >&2
	exit 2
fi
apidiff=${APIDIFF:-go run golang.org/x/exp/cmd/apidiff@v0.0.0-20251023183803-a4bb9ffd2546}
path=$(awk '$1 == "module" { print $2; exit }' go.mod)
tmp=$(mktemp -d)
trap 'chmod -R u+w "$tmp" 2>/dev/null; rm -rf "$tmp"' EXIT

failures=0
ok() { printf 'ok      %s\n' "$*"; }
skipped() { printf 'skipped %s\n' "$*"; }
failed() {
	printf 'failed  %s\n' "$1"
	failures=$((failures + 1))
	if [ $# -gt 1 ] && [ -n "$2" ]; then printf '%s\n' "$2" | sed 's/^/          /' | head -n 30; fi
}
# try runs a command and says what came of it.
try() {
	local what=$1 out
	shift
	# Not as a condition: in those a function goes on behind a command that fails.
	set +e
	out=$(set -e; "$@" 2>&1)
	local status=$?
	set -e
	if [ $status = 0 ]; then ok "$what"; else failed "$what" "$out"; fi
}

# The modules of go.work, each by its folder; those that are for installing are all but two.
modules=$(GOWORK= go work edit -json | sed -n 's/.*"DiskPath": "\(.*\)".*/\1/p' | sed 's|^\./||')
installed=$(printf '%s\n' "$modules" | grep -vxE 'examples|tests')
nameOf() { if [ "$1" = . ]; then echo "$path"; else echo "$path/$1"; fi; }
tagOf() { if [ "$1" = . ]; then echo "$version"; else echo "$1/$version"; fi; }

# 1. What is written down.
dirty=$(git status --porcelain)
if [ -z "$dirty" ]; then ok "the tree is clean"; else failed "the tree is clean" "$dirty"; fi
if git rev-parse -q --verify "refs/tags/$version" >/dev/null; then
	failed "the tag $version is free"
else
	ok "the tag $version is free"
fi
section=$(awk -v v="${version#v}" '/^## / { on = index($0, "## [" v "]") == 1 || index($0, "## " v) == 1; next } on && NF' CHANGELOG.md)
if [ -n "$section" ]; then
	ok "CHANGELOG.md has a section [${version#v}]"
else
	failed "CHANGELOG.md has a section [${version#v}]" "rename [Unreleased] to [${version#v}] - $(date -u +%F), and begin another one"
fi
others=$(git grep -nE "$path(/[a-z/]+)?(/v[0-9]+)?@v[0-9]+\.[0-9]+\.[0-9]+" -- '*.md' ':!CHANGELOG.md' ':!docs/releasing.md' | grep -vF "@$version" || true)
if [ -z "$others" ]; then ok "documents name no other version"; else failed "documents name no other version" "$others"; fi

# 2. The release, in a clone: requirements, commit, tags.
git clone --quiet . "$tmp/src"
release() {
	local dir other
	for dir in $modules; do
		for other in $installed; do
			if [ "$dir" = "$other" ] || ! grep -qE "^(require )?[[:space:]]*$(nameOf "$other") v" "$dir/go.mod"; then continue; fi
			(cd "$dir" && go mod edit -require="$(nameOf "$other")@$version")
			if printf '%s\n' "$installed" | grep -qxF "$dir"; then
				(cd "$dir" && go mod edit -dropreplace="$(nameOf "$other")")
			fi
		done
	done
	git -c user.name=release-check -c user.email=release-check@localhost commit --quiet --allow-empty -am "$version"
	for dir in $installed; do git tag -f "$(tagOf "$dir")"; done
	git clone --quiet --bare . "$tmp/clone.git"
}
last=${LAST_TAG:-$(git describe --tags --abbrev=0 --match 'v[0-9]*' --exclude "$version" HEAD 2>/dev/null || true)}
cd "$tmp/src"
try "requirements are set to $version, committed and tagged: $(for d in $installed; do tagOf "$d"; done | paste -sd ' ')" release

# The clone is the repository, other modules come from the cache of this machine or the proxy.
cache=$(go env GOMODCACHE)
export GOPROXY="file://$cache/cache/download,$(go env GOPROXY)" GOMODCACHE=$tmp/modules GOBIN=$tmp/bin
export GOWORK=off GOFLAGS="-mod=mod -modcacherw -trimpath -buildvcs=false" GOSUMDB=off GOPRIVATE=$path,$path/* GOTOOLCHAIN=local
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$tmp/clone.git.insteadOf" GIT_CONFIG_VALUE_0="https://$path"

# 3. Every module, as a user gets it: in a folder where nothing else is.
install() {
	mkdir -p "$tmp/user/$1"
	cd "$tmp/user/$1"
	rm -f go.mod go.sum
	go mod init example.com/user
	go get "$(nameOf "$1")/...@$version"
	go build "$(nameOf "$1")/..."
}
for dir in $installed; do
	name=$(nameOf "$dir")
	if [ "$(cd "$dir" && awk '$1 == "package" { print $2; exit }' ./*.go)" = main ]; then
		tool() { (cd "$tmp" && go install "$name@$version" && "$GOBIN/$(basename "$name")" --help); }
		try "go install $name@$version, and it starts" tool
	else
		try "go get $name@$version, and all of it builds" install "$dir"
	fi
done

# 4. The API, beside that of the last release.
compare() { # the module in a folder; prints what is incompatible
	local dir=$1 name side
	name=$(nameOf "$dir")
	for side in old src; do
		# In the workspace, the root's path is that of all modules; the others need the root beside them.
		cd "$tmp/$side/$dir"
		export GOFLAGS=-modcacherw GOWORK=off
		if [ "$dir" != . ]; then GOWORK=$tmp/$side/go.work; fi
		if [ $side = old ]; then $apidiff -m -w "$tmp/old.export" "$name"; else $apidiff -m -incompatible "$tmp/old.export" "$name"; fi
	done
}
if [ -z "$last" ]; then
	skipped "the API is compared: there is no earlier tag"
else
	git worktree add --quiet "$tmp/old" "$last"
	for dir in $installed; do
		[ -f "$tmp/old/$dir/go.mod" ] || { skipped "the API of $(nameOf "$dir") is compared: it is new since $last"; continue; }
		what="the API of $(nameOf "$dir") since $last"
		set +e
		out=$(set -e; compare "$dir" 2>"$tmp/err")
		status=$?
		set -e
		if [ $status != 0 ]; then
			failed "$what is compared" "$(cat "$tmp/err")"
		elif [ -z "$out" ]; then
			ok "$what is compatible"
		elif [ "${version%.*}" = "${last%.*}" ]; then
			failed "$what is compatible, as a patch has to be" "$out"
		else
			ok "$what changes; CHANGELOG.md has to name this:"
			printf '%s\n' "$out" | sed 's/^/          /'
		fi
	done
fi

if [ "$failures" -gt 0 ]; then
	echo "$failures failed: $version is not fit to be released"
	exit 1
fi
echo "$version is fit to be released; docs/releasing.md has what comes next"
