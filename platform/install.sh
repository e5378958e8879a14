#!/bin/sh
# Makes the Python environment that every make target runs in; returns at once when it is there and whole.
#
#   PYTHON=name       the interpreter to use; otherwise the first of python3.11, python3.12, python3, python3.13 that works
#   GPU=1 | GPU=0     CUDA libraries or CPU libraries; otherwise CUDA where nvidia-smi sees a GPU
#   VENV, CONSTRAINTS another folder, other versions (make pins)
#
# The stamp is written last: an environment without one was interrupted, and is made anew.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
constraints=${CONSTRAINTS:-constraints.txt}
stamp=$venv/installed
log=build/install.log

say() { printf '%sinstall: %s\n' "$line_start" "$*" >&2; }
if [ -t 2 ]; then line_start=$(printf '\r\033[K'); else line_start=; fi
die() { say "$@"; exit 2; }

contents() { cat pyproject.toml "$constraints" platform/install.sh | sha256sum | cut -d ' ' -f 1; }
identity() { "$1" -c 'import sys; print(sys.base_prefix, "%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }
supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# The stamp's lines: contents, folder of the checkout, cpu or gpu, identity of the interpreter.
stamped() { sed -n "$1p" "$stamp" 2>/dev/null || true; }
same_kind() {
    [ -x "$venv/bin/python" ] && [ "$(stamped 2)" = "$PWD" ] || return 1
    case ${GPU:-}-$(stamped 3) in -cpu | -gpu | 0-cpu | 1-gpu) ;; *) return 1 ;; esac
    [ -z "${PYTHON:-}" ] || [ "$(stamped 4)" = "$(identity "$PYTHON")" ]
}
finished() { [ "$(stamped 1)" = "$(contents)" ] && same_kind; }

pick_python() {
    lacking=
    for candidate in ${PYTHON:-python3.11 python3.12 python3 python3.13}; do
        supported "$candidate" || continue
        if has_venv "$candidate"; then python=$candidate; return; fi
        lacking=$candidate
    done
    if [ -n "$lacking" ]; then
        name=$("$lacking" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        die "$lacking cannot make virtual environments; fix: apt-get install $name"
    fi
    [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON is not a working Python 3.11, 3.12 or 3.13; fix: name another, or leave it out"
    die "no working Python 3.11, 3.12 or 3.13 here; fix: apt-get install python3.11 python3.11-venv, or make PYTHON=..."
}

pick_libraries() {
    case ${GPU:-} in
        1) libraries=gpu ;;
        0) libraries=cpu ;;
        '') if timeout 20 nvidia-smi -L 2>/dev/null | grep -q GPU; then libraries=gpu; else libraries=cpu; fi ;;
        *) die "GPU=$GPU is neither 1 (CUDA libraries) nor 0 (CPU libraries)" ;;
    esac
}

explain() {
    tail -n 15 "$log" >&2
    if grep -q 'No space left on device' "$log"; then
        die "the disk is full: CPU libraries take 2.5 GB, with a CUDA build of torch 7 GB; then run make again"
    elif grep -Eq "Python\.h: No such file|command '.*(cc|\+\+)' failed: No such file" "$log"; then
        die "a package has to be compiled here; fix: apt-get install build-essential python3-dev, then run make again"
    elif grep -Eq 'No matching distribution' "$log"; then
        die "pip found no build for this machine (needs Linux on x86-64 with glibc 2.28 or newer), or no registry; see $log"
    fi
    die "pip stopped, see $log; run make again to go on"
}

# On a terminal: the time, and the log's last line, until this script ends.
follow() {
    waited_s=0
    while kill -0 $$ 2>/dev/null; do
        printf '\r\033[K%s s  %s' "$waited_s" "$(tail -n 1 "$log" | cut -c 1-70)" >&2
        sleep 1
        waited_s=$((waited_s + 1))
    done
}

pip_install() {
    say "$1"
    shift
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-compile --constraint "$constraints" "$@" \
        >>"$log" 2>&1 || explain
}

make_venv() {
    pick_python
    pick_libraries
    say "$(identity "$python" | sed 's/.* /Python /'), $libraries libraries, into $venv: some minutes the first time"
    rm -rf "$venv"
    "$python" -m venv "$venv" >>"$log" 2>&1 || explain
}

install_packages() {
    rm -f "$stamp"
    pip_install "1/3 torch and the build tools" torch==2.13.0 setuptools hatchling editables
    pip_install "2/3 everything else" --no-build-isolation --editable ".[$libraries,dev]"
    # Without its dependencies: it asks for fbgemm-gpu by name, on CPU machines too.
    pip_install "3/3 torchrec" --no-deps torchrec==1.8.0
    # On all cores, which pip does not. Some packages ship templates that are no Python: they stay as they are.
    "$venv/bin/python" -m compileall -q -j 0 "$venv/lib" >/dev/null 2>&1 || true
    printf '%s\n' "$(contents)" "$PWD" "$libraries" "$(identity "$venv/bin/python")" >"$stamp.part"
    mv "$stamp.part" "$stamp"
}

if finished; then exit 0; fi
mkdir -p build
if command -v flock >/dev/null; then
    exec 9>build/install.lock
    flock -n 9 || { say "another make is installing; waiting for it"; flock 9; }
    if finished; then exit 0; fi
fi
: >"$log"
if [ -t 2 ]; then
    follow &
    trap 'kill $! 2>/dev/null' EXIT
fi
if same_kind; then
    libraries=$(stamped 3)
    say "pyproject.toml or $constraints changed: bringing $venv up to date"
else
    make_venv
fi
install_packages
say "done"
