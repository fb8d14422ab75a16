#include "api/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

namespace flashlab::internal {
namespace {

// All in bytes and 128-bit, so that no sum can wrap.
using Wide = __int128;

// sum over terms of step * count, count in [low, high].
struct Term {
  Wide step = 0;
  Wide low = 0;
  Wide high = 0;
};

struct TermList {
  std::array<Term, 2 * TensorSpec::kMaxRank + 2> terms{};
  int count = 0;
  void add(Term term) {
    if (term.step != 0 && term.low != term.high) terms[count++] = term;
  }
};

// Decides whether a combination of terms hits a target: terms sorted by falling step leave at most
// a few counts per term worth trying, because the rest cannot span further.
class Search {
 public:
  explicit Search(TermList list) : list_(list) {
    std::sort(list_.terms.begin(), list_.terms.begin() + list_.count,
              [](const Term& a, const Term& b) { return a.step > b.step; });
    for (int i = list_.count - 1; i >= 0; --i) {
      const Term& t = list_.terms[i];
      low_[i] = low_[i + 1] + t.step * t.low;
      high_[i] = high_[i + 1] + t.step * t.high;
    }
  }

  // `need_nonzero`: at least one count must differ from 0.
  bool hits(Wide target, bool need_nonzero) {
    budget_ = 20000;
    return visit(0, target, need_nonzero) || budget_ <= 0;
  }

 private:
  static Wide floor_div(Wide a, Wide b) { return a / b - ((a % b != 0 && a < 0) ? 1 : 0); }

  bool visit(int i, Wide target, bool need_nonzero) {
    if (--budget_ <= 0) return true;
    if (target < low_[i] || target > high_[i]) return false;
    if (i == list_.count) return target == 0 && !need_nonzero;
    const Term& t = list_.terms[i];
    const Wide first = std::max(t.low, -floor_div(-(target - high_[i + 1]), t.step));
    const Wide last = std::min(t.high, floor_div(target - low_[i + 1], t.step));
    for (Wide count = first; count <= last; ++count) {
      if (visit(i + 1, target - count * t.step, need_nonzero && count == 0)) return true;
    }
    return false;
  }

  TermList list_;
  std::array<Wide, 2 * TensorSpec::kMaxRank + 3> low_{}, high_{};
  int budget_ = 0;
};

}  // namespace

ByteRange byte_range(const void* data, const TensorSpec& spec) {
  const Wide begin = static_cast<Wide>(reinterpret_cast<std::uintptr_t>(data));
  Wide last = 0;
  for (int i = 0; i < spec.rank; ++i) {
    if (spec.shape[i] == 0) return {begin, begin};
    if (spec.shape[i] > 1) last += static_cast<Wide>(spec.strides[i]) * (spec.shape[i] - 1);
  }
  return {begin, begin + (last + 1) * static_cast<Wide>(size_of(spec.dtype))};
}

bool overlaps_itself(const TensorSpec& spec) {
  if (spec.elements() == 0) return false;
  TermList list;
  for (int i = 0; i < spec.rank; ++i) {
    const Wide extent = spec.shape[i];
    if (extent > 1 && spec.strides[i] == 0) return true;
    list.add({static_cast<Wide>(spec.strides[i]), -(extent - 1), extent - 1});
  }
  return Search(list).hits(0, true);
}

bool overlap(const ConstTensor& a, const ConstTensor& b) {
  if (a.spec.elements() == 0 || b.spec.elements() == 0) return false;
  const ByteRange a_bytes = byte_range(a.data, a.spec), b_bytes = byte_range(b.data, b.spec);
  if (!a_bytes.meets(b_bytes)) return false;

  // Bytes meet iff sum(a strides * i) + x = (b0 - a0) + sum(b strides * j) + y for some indices
  // and byte positions x, y inside the elements. Equal strides are folded into one difference.
  const Wide a_size = static_cast<Wide>(size_of(a.spec.dtype));
  const Wide b_size = static_cast<Wide>(size_of(b.spec.dtype));
  TermList list;
  std::array<bool, TensorSpec::kMaxRank> b_used{};
  for (int i = 0; i < a.spec.rank; ++i) {
    Term term{a.spec.strides[i] * a_size, 0, static_cast<Wide>(a.spec.shape[i]) - 1};
    for (int j = 0; j < b.spec.rank; ++j) {
      if (!b_used[j] && b.spec.strides[j] * b_size == term.step) {
        term.low -= static_cast<Wide>(b.spec.shape[j]) - 1;
        b_used[j] = true;
        break;
      }
    }
    list.add(term);
  }
  for (int j = 0; j < b.spec.rank; ++j) {
    if (!b_used[j]) {
      list.add({b.spec.strides[j] * b_size, -(static_cast<Wide>(b.spec.shape[j]) - 1), 0});
    }
  }
  list.add({1, -(b_size - 1), a_size - 1});
  return Search(list).hits(b_bytes.begin - a_bytes.begin, false);
}

}  // namespace flashlab::internal
