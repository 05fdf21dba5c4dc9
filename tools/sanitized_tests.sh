#!/usr/bin/env bash
# Builds dynamo's native code with the address and undefined-behaviour sanitizers and runs its tests with it.
# usage: tools/sanitized_tests.sh [pytest arguments]      (in an environment with torch, pybind11, cmake, ninja, pytest)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cmake -G Ninja -S "$root/packages/dynamo" -B "$build/native" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSANITIZE=ON \
  -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >/dev/null
ninja -C "$build/native"
cp -r "$root/packages/dynamo/src/fxloom_dynamo" "$build/"
rm -f "$build"/fxloom_dynamo/_native*.so
cp "$build"/native/_native*.so "$build/fxloom_dynamo/"
cd "$root/packages/dynamo"
export PYTHONPATH="$build:$root/packages/interfaces/src:$root/packages/shapes/src"
# Python and torch are no sanitized programs: their leaks at exit and their libraries' duplicate symbols are not ours.
export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export LD_PRELOAD="$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so):$(gcc -print-file-name=libstdc++.so.6)"
tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(tests/test_guard_tape.py tests/test_frame_hook.py tests/test_lifetimes.py tests/test_guards.py)
python -m pytest -q -p no:cacheprovider "${tests[@]}"
