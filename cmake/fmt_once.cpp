// fmt's code in one file instead of in each (cmake/BuildTime.cmake): its functions, which come with
// the header, and by name the templates that other files take for granted. Weak, so that a program
// that links the static library and another fmt has no definition too many.
#include <fmt/format.h>

#undef FMT_FUNC
#define FMT_FUNC __attribute__((weak))
#include <fmt/format-inl.h>

template fmt::detail::thousands_sep_result<char> fmt::detail::thousands_sep_impl<char>(
    fmt::detail::locale_ref);
template char fmt::detail::decimal_point_impl<char>(fmt::detail::locale_ref);
