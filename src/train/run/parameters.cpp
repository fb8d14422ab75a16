#include "train/run/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "train/cpu/narrow.h"
#include "train/cpu/random.h"

namespace flashlab::train {
namespace {

constexpr std::size_t kLine = 64;

// FNV-1a: the stream of a parameter's random numbers.
std::uint64_t name_hash(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

// Standard normal numbers by Box and Muller, two draws each.
double normal(const RandomKey& key, std::uint64_t index) {
  const double u = 1 - random_unit(key, 2 * index), v = random_unit(key, 2 * index + 1);
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * 3.14159265358979323846 * v);
}

double draw(const Initializer& initializer, const RandomKey& key, std::uint64_t index) {
  switch (initializer.kind) {
    case Initializer::Kind::kConstant:
      return initializer.value;
    case Initializer::Kind::kNormal:
      return initializer.value * normal(key, index);
    case Initializer::Kind::kTruncatedNormal:
      break;
  }
  constexpr double kCut = 3;
  RandomKey attempt = key;
  double x = normal(attempt, index);
  while (std::abs(x) > kCut) {
    ++attempt.step;
    x = normal(attempt, index);
  }
  return initializer.value * x;
}

int all_threads() {
  return static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
}

// Elements [first, first + count) of a parameter.
template <class T>
void fill(internal::ThreadPool& pool, T* values, const Parameter& parameter, std::uint64_t seed,
          std::int64_t first, std::int64_t count) {
  constexpr std::int64_t kGrain = 1 << 14;
  const RandomKey key = {seed, 0, name_hash(parameter.name)};
  pool.run((count + kGrain - 1) / kGrain, [&](std::int64_t task, int) {
    const std::int64_t end = std::min((task + 1) * kGrain, count);
    for (std::int64_t i = task * kGrain; i < end; ++i) {
      const auto index = static_cast<std::uint64_t>(first + i);
      values[i] = static_cast<T>(draw(parameter.initializer, key, index));
    }
  });
}

}  // namespace

void AlignedBytes::Free::operator()(void* p) const noexcept {
  std::free(p);
}

// Zeros without writing them: pages of a large block come with the first touch, which tasks of
// several threads do.
Result<AlignedBytes> AlignedBytes::allocate(std::int64_t bytes, const char* what) {
  AlignedBytes out;
  std::size_t size = static_cast<std::size_t>(bytes) + kLine;
  out.block_.reset(std::calloc(size, 1));
  void* memory = out.block_.get();
  if (!memory) {
    return Status::out_of_memory({what, fmt::format("{} bytes asked for", bytes),
                                  "memory that the system gives",
                                  "a smaller model, batch or context"});
  }
  out.data_ =
      static_cast<std::byte*>(std::align(kLine, static_cast<std::size_t>(bytes), memory, size));
  out.bytes_ = bytes;
  return out;
}

namespace {

// Of values, first and second moments, copies, in this order.
std::array<std::int64_t, 4> arena_bytes_of(const StepPlan& plan) {
  if (plan.parameters.empty()) return {};
  const Parameter& first = plan.parameters.front();
  const std::int64_t size = size_of(plan.tensor(first.master).element);
  const auto owned = [&](bool values) { return plan.owned_elements(values) * size; };
  std::array<std::int64_t, 4> out{};
  out[0] = plan.owned_values ? owned(true) : plan.arena_elements * size;
  if (first.first_moment != kNoTensor) out[1] = owned(false);
  if (first.second_moment != kNoTensor) out[2] = owned(false);
  if (first.value != first.master) {
    out[3] = plan.arena_elements * size_of(plan.tensor(first.value).element);
  }
  return out;
}

}  // namespace

std::int64_t ParameterStore::planned_bytes(const StepPlan& plan) {
  const auto bytes = arena_bytes_of(plan);
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

Result<ParameterStore> ParameterStore::create(const StepPlan& plan) {
  ParameterStore out;
  out.parameters_ = plan.parameters;
  out.elements_ = plan.arena_elements;
  out.owned_ = plan.owned;
  out.shared_ = plan.squares > 0;
  out.owned_values_ = plan.owned_values;
  out.follow_from_halves_ = plan.follow_from_halves();
  if (plan.parameters.empty()) return out;
  const Parameter& first = plan.parameters.front();
  out.element_ = plan.tensor(first.master).element;
  if (first.value != first.master) out.copy_element_ = plan.tensor(first.value).element;
  const auto bytes = arena_bytes_of(plan);
  const struct {
    AlignedBytes* arena;
    const char* what;
  } kArenas[] = {{&out.values_, "parameters"},
                 {&out.first_, "first moments"},
                 {&out.second_, "second moments"},
                 {&out.copies_, "copies of the parameters"}};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    Result<AlignedBytes> memory = AlignedBytes::allocate(bytes[i], kArenas[i].what);
    if (!memory.ok()) return memory.status();
    *kArenas[i].arena = std::move(*memory);
  }
  return out;
}

void ParameterStore::initialize(std::uint64_t seed, std::int64_t most) {
  internal::ThreadPool pool(all_threads());
  for (const Parameter& parameter : parameters_) {
    const auto draw_piece = [&](std::int64_t begin, std::int64_t all, std::int64_t at) {
      const std::int64_t first = begin - parameter.offset, count = std::min(all, most);
      if (element_ == Element::kFp64) {
        fill(pool, reinterpret_cast<double*>(values()) + at, parameter, seed, first, count);
      } else if (element_ == Element::kFp32) {
        fill(pool, reinterpret_cast<float*>(values()) + at, parameter, seed, first, count);
      } else {
        std::vector<float> wide(static_cast<std::size_t>(count));
        fill(pool, wide.data(), parameter, seed, first, count);
        cpu::narrow(element_, wide.data(), reinterpret_cast<std::uint16_t*>(values()) + at, count);
      }
      const std::int64_t size = size_of(element_);
      std::byte* const from = values() + at * size;
      pool.run((all - 1) / count, [&](std::int64_t task, int) {
        const std::int64_t done = (task + 1) * count;
        std::memcpy(from + done * size, from,
                    static_cast<std::size_t>(std::min(count, all - done) * size));
      });
    };
    each_piece(StoreArena::kValues, parameter.offset, parameter.offset + parameter.elements,
               draw_piece);
  }
  round_copies(pool);
}

void ParameterStore::round_copies() const {
  if (!copies()) return;
  internal::ThreadPool pool(all_threads());
  round_copies(pool);
}

void ParameterStore::round_copies(internal::ThreadPool& pool) const {
  if (!copies()) return;
  constexpr std::int64_t kGrain = 1 << 16;
  pool.run((elements_ + kGrain - 1) / kGrain, [&](std::int64_t task, int) {
    const std::int64_t first = task * kGrain;
    cpu::narrow(copy_element_, reinterpret_cast<const float*>(values()) + first,
                reinterpret_cast<std::uint16_t*>(copies()) + first,
                std::min(kGrain, elements_ - first));
  });
}

bool ParameterStore::matches(const StepPlan& plan) const {
  const auto same_part = [](const OwnedRange& a, const OwnedRange& b) {
    return a.begin == b.begin && a.end == b.end && a.local == b.local;
  };
  if (owned_values_ != plan.owned_values ||
      (owned_values_ && !std::ranges::equal(owned_, plan.owned, same_part))) {
    return false;
  }
  return std::equal(parameters_.begin(), parameters_.end(), plan.parameters.begin(),
                    plan.parameters.end(), [](const Parameter& a, const Parameter& b) {
                      return a.name == b.name && a.offset == b.offset && a.elements == b.elements &&
                             a.shard == b.shard;
                    });
}

}  // namespace flashlab::train
