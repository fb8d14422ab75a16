// fmt's code in one file instead of in each (cmake/Wheel.cmake): its functions, which come with the
// header, and by name the templates that other files take for granted.
#include <fmt/format-inl.h>

template fmt::detail::thousands_sep_result<char> fmt::detail::thousands_sep_impl<char>(
    fmt::detail::locale_ref);
template char fmt::detail::decimal_point_impl<char>(fmt::detail::locale_ref);
