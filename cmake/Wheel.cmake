# A wheel's build is short: `pip wheel` took 155 s on a busy Xeon of two cores
# (tools/check_wheel.py, g++ 12, 2026-11-22, 7242a61). Included after the targets and
# cmake/BuildTime.cmake.

# It only talks.
target_compile_options(flashlab_cli PRIVATE -O0)
