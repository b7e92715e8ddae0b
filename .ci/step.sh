# Sourced by the other scripts of this directory.

# What is compiled for tests alone is linted, too.
lint_features='--features holdfast-serve/fake'

# step NAME COMMAND...: one line with its time if it passes, else the end of its output, all of which is in
# target/ci/NAME.log.
step() {
    local name=$1 log=target/ci/$1.log begun=$SECONDS
    shift
    mkdir -p target/ci
    printf '== %s\n' "$*" >&2
    if "$@" </dev/null >"$log" 2>&1; then
        printf 'PASS %s (%s s)\n' "$name" $((SECONDS - begun)) >&2
    else
        printf 'FAIL %s (%s s): %s\n' "$name" $((SECONDS - begun)) "$*" >&2
        tail -n 40 "$log" | sed 's/^/  | /' >&2
        printf '  all of it is in %s\n' "$log" >&2
        return 1
    fi
}
