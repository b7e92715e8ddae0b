# Sourced by the other scripts of this directory.

# Also lints code that is compiled only for tests.
lint_features='--features holdfast-serve/fake'

# step NAME COMMAND...: runs a command. Prints one line with its time if it passes, else the end of its
# output; target/ci/NAME.log has the whole output.
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
