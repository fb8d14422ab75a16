#include "train/run/low_halves.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <thread>

#include "runtime/cpu/thread_pool.h"

namespace flashlab::train {
namespace {

template <class Each>
void in_parallel(std::int64_t count, const Each& each) {
  constexpr std::int64_t kGrain = 1 << 18;
  internal::ThreadPool pool(static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u)));
  pool.run((count + kGrain - 1) / kGrain, [&](std::int64_t task, int) {
    const std::int64_t end = std::min((task + 1) * kGrain, count);
    for (std::int64_t i = task * kGrain; i < end; ++i) each(i);
  });
}

}  // namespace

void split_values(const SplitValues& arenas) {
  in_parallel(arenas.count, [&](std::int64_t i) {
    const auto bits = std::bit_cast<std::uint32_t>(arenas.values[i]);
    arenas.low[i] = static_cast<std::uint16_t>(bits);
    // Whatever they were: values come together from these.
    constexpr std::uint32_t kInfinity = 0x7f800000;
    if ((bits & 0x7fffffff) <= kInfinity) {
      arenas.copies[i] = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    if ((bits & 0x1ffff) == 0x8000) arenas.second[i] = -arenas.second[i];
  });
}

void join_values(const SplitValues& arenas) {
  in_parallel(arenas.count, [&](std::int64_t i) {
    const std::uint32_t copy = arenas.copies[i], tie = std::signbit(arenas.second[i]) ? 1 : 0;
    const int below = static_cast<std::int16_t>(arenas.low[i]);
    arenas.values[i] =
        std::bit_cast<float>(((copy + tie) << 16) + static_cast<std::uint32_t>(below));
    arenas.second[i] = std::fabs(arenas.second[i]);
  });
}

}  // namespace flashlab::train
