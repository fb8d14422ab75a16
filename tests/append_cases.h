#pragma once

// Appends in one piece of memory each, so that a whole call is copied, run elsewhere and compared
// byte by byte: what it must not touch as well.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flashlab/flashlab.h"

namespace flashlab::append_cases {

struct AppendCase {
  DType dtype = DType::kFp32;
  std::int64_t page = 0;  ///< 0: contiguous
  bool ragged = false, rotary = true, interleaved = false, first = false, by_index = false;
  bool wide = false;       ///< int64 lengths and offsets
  bool fp32_table = true;  ///< else of the case's type
  bool positions = false, padded_rows = false, in_place = false, hostile = false;
  std::int64_t dim = 64, width = 32;

  std::string name() const {
    std::string text = std::string(to_string(dtype)) + (page > 0 ? " pages" : " contiguous");
    for (const auto& [is, word] : {std::pair{ragged, " ragged"},
                                   {rotary, " rotary"},
                                   {interleaved, " interleaved"},
                                   {first, " first"},
                                   {by_index, " index"},
                                   {wide, " int64"},
                                   {fp32_table, " fp32-table"},
                                   {positions, " positions"},
                                   {padded_rows, " padded"},
                                   {in_place, " in-place"},
                                   {hostile, " hostile"}}) {
      if (is) text += word;
    }
    return text;
  }
};

class Arena {
 public:
  static constexpr std::int64_t kBatch = 3, kHeads = 4, kKeyHeads = 2, kCapacity = 40, kDimV = 24;
  static constexpr std::int64_t kEach = 3;  ///< new rows, and queries, where they are not ragged

  explicit Arena(const AppendCase& c) : case_(c), random_(17) {
    memory_.reserve(1 << 20);
    const std::int64_t pages_each = c.page > 0 ? (kCapacity + c.page - 1) / c.page : 0;
    const std::int64_t places = c.page > 0 ? kBatch * pages_each + 1 : kBatch + 2;
    const std::int64_t each = c.page > 0 ? c.page : kCapacity;
    AppendTensors& t = tensors_;
    t.k = floats({c.by_index || c.page > 0 ? places : kBatch, each, kKeyHeads, c.dim}, true);
    t.v = floats({c.by_index || c.page > 0 ? places : kBatch, each, kKeyHeads, kDimV}, true);
    t.k_new = rows(kKeyHeads, c.dim);
    t.v_new = rows(kKeyHeads, kDimV);
    t.seqused_k = integers(c.hostile ? std::vector<std::int64_t>{38, 17, -1}
                                     : std::vector<std::int64_t>{0, 37, 17});
    t.seqused_after = integers({-7, -7, -7});
    if (c.page > 0) {
      std::vector<std::int64_t> table;
      for (std::int64_t n = 0; n < kBatch * pages_each; ++n) table.push_back(n * 5 % places);
      // Of sequence 1, whose rows begin in another page than the last of them.
      if (c.hostile) table[static_cast<std::size_t>(pages_each + 19 / c.page)] = places;
      t.block_table = integers(table, DType::kInt32, {kBatch, pages_each});
    } else if (c.by_index) {
      t.cache_batch_idx = integers({4, c.hostile ? 5 : 0, 2});
    }
    if (c.ragged) t.cu_seqlens_new = integers({0, 3, 3 + (c.hostile ? 2 : 0), 9});
    if (c.rotary) give_rotary();
  }

  const AppendCase& problem() const { return case_; }
  const std::vector<char>& memory() const { return memory_; }
  AppendOptions options() const {
    return {case_.interleaved ? RotaryPairs::kInterleaved : RotaryPairs::kHalves,
            case_.first ? RotaryQueries::kFirst : RotaryQueries::kConsecutive};
  }

  /// The call on a copy of the memory that lies at `base`.
  AppendTensors tensors_at(void* base, Device device = {}) const {
    AppendTensors t = tensors_;
    const auto move = [&](auto& tensor) {
      tensor.data = static_cast<char*>(base) + reinterpret_cast<std::uintptr_t>(tensor.data) - 1;
      tensor.spec.device = device;
    };
    const auto move_given = [&](auto& tensor) {
      if (tensor) move(*tensor);
    };
    move(t.k), move(t.v), move(t.k_new), move(t.v_new), move(t.seqused_k);
    move_given(t.block_table), move_given(t.cache_batch_idx), move_given(t.cu_seqlens_new);
    move_given(t.seqused_after), move_given(t.rotary_cos), move_given(t.rotary_sin);
    move_given(t.rotary_positions), move_given(t.q), move_given(t.q_rotated);
    move_given(t.cu_seqlens_q);
    return t;
  }

  /// Equal where no element is written, near where one is: a sum's last bit may differ.
  void expect_same(const std::vector<char>& got, const std::vector<char>& expected) const {
    ASSERT_EQ(got.size(), expected.size());
    std::size_t at = 0;
    for (const auto& [begin, end] : outputs_) {
      EXPECT_EQ(std::memcmp(&got[at], &expected[at], begin - at), 0) << case_.name();
      for (at = begin; at < end; at += size_of(case_.dtype)) {
        const double a = value(got, at), b = value(expected, at);
        if (std::isnan(a) && std::isnan(b)) continue;
        const double unit = case_.dtype == DType::kFp32   ? 1e-6
                            : case_.dtype == DType::kFp16 ? 1e-3
                                                          : 8e-3;
        ASSERT_NEAR(a, b, unit * std::max(1.0, std::fabs(b))) << case_.name() << " byte " << at;
      }
    }
    EXPECT_EQ(std::memcmp(&got[at], &expected[at], got.size() - at), 0) << case_.name();
  }

  /// Nothing but results differs from what there was before.
  void expect_inputs_as_they_were(std::vector<char> got) const {
    for (const auto& [begin, end] : outputs_) {
      std::copy(memory_.begin() + static_cast<std::ptrdiff_t>(begin),
                memory_.begin() + static_cast<std::ptrdiff_t>(end),
                got.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    const std::size_t lengths = reinterpret_cast<std::uintptr_t>(tensors_.seqused_after->data) - 1;
    std::memcpy(&got[lengths], &memory_[lengths], kBatch * (case_.wide ? 8 : 4));
    EXPECT_EQ(std::memcmp(got.data(), memory_.data(), got.size()), 0) << case_.name();
  }

 private:
  // Addresses are offsets and one: what is absent stays null.
  Tensor place(TensorSpec spec, std::size_t bytes) {
    const std::size_t at = (memory_.size() + 63) / 64 * 64 + 64;
    memory_.resize(at + bytes, static_cast<char>(0xA5));
    return {reinterpret_cast<void*>(at + 1), spec};
  }
  void store(std::size_t at, DType dtype, float x) {
    const std::uint16_t half = dtype == DType::kFp16 ? fp16_from_float(x) : bf16_from_float(x);
    if (dtype == DType::kFp32) {
      std::memcpy(&memory_[at], &x, 4);
    } else {
      std::memcpy(&memory_[at], &half, 2);
    }
  }
  double value(const std::vector<char>& memory, std::size_t at) const {
    float x = 0;
    std::uint16_t half = 0;
    std::memcpy(&x, &memory[at], case_.dtype == DType::kFp32 ? 4 : 2);
    std::memcpy(&half, &memory[at], 2);
    if (case_.dtype == DType::kFp16) x = float_from_fp16(half);
    if (case_.dtype == DType::kBf16) x = float_from_bf16(half);
    return static_cast<double>(x);
  }

  Tensor floats(std::initializer_list<std::int64_t> shape, bool written = false,
                std::optional<DType> type = {}) {
    const DType dtype = type.value_or(case_.dtype);
    TensorSpec spec = contiguous_spec(dtype, shape);
    std::int64_t stride = spec.shape[spec.rank - 1] + (case_.padded_rows && spec.rank > 2 ? 3 : 0);
    for (int i = spec.rank - 2; i >= 0; --i) {
      spec.strides[i] = stride;
      stride *= spec.shape[i];
    }
    const std::size_t size = size_of(dtype), bytes = static_cast<std::size_t>(stride) * size;
    const Tensor out = place(spec, bytes);
    const std::size_t begin = reinterpret_cast<std::uintptr_t>(out.data) - 1;
    std::normal_distribution<float> normal;
    for (std::size_t at = begin; at < begin + bytes; at += size) {
      store(at, dtype, normal(random_));
    }
    if (written) outputs_.push_back({begin, begin + bytes});
    return out;
  }
  Tensor rows(std::int64_t heads, std::int64_t dim) {
    return case_.ragged ? floats({kBatch * kEach, heads, dim})
                        : floats({kBatch, kEach, heads, dim});
  }
  Tensor integers(const std::vector<std::int64_t>& values, std::optional<DType> type = {},
                  std::initializer_list<std::int64_t> shape = {}) {
    const DType dtype = type.value_or(case_.wide ? DType::kInt64 : DType::kInt32);
    const auto count = static_cast<std::int64_t>(values.size());
    const Tensor out =
        place(shape.size() == 0 ? contiguous_spec(dtype, {count}) : contiguous_spec(dtype, shape),
              values.size() * size_of(dtype));
    std::size_t at = reinterpret_cast<std::uintptr_t>(out.data) - 1;
    for (const std::int64_t each : values) {
      const auto narrow = static_cast<std::int32_t>(each);
      if (dtype == DType::kInt64) {
        std::memcpy(&memory_[at], &each, 8);
      } else {
        std::memcpy(&memory_[at], &narrow, 4);
      }
      at += size_of(dtype);
    }
    return out;
  }

  void give_rotary() {
    constexpr std::int64_t kRows = 128;  // more than pages of any size round up to
    const DType table = case_.fp32_table ? DType::kFp32 : case_.dtype;
    tensors_.rotary_cos = floats({kRows, case_.width / 2}, false, table);
    tensors_.rotary_sin = floats({kRows, case_.width / 2}, false, table);
    if (case_.positions) tensors_.rotary_positions = integers({7, case_.hostile ? 127 : 0, 90});
    tensors_.q = rows(kHeads, case_.dim);
    if (case_.ragged) tensors_.cu_seqlens_q = integers({0, 1, 6, 9});
    const std::size_t begin = reinterpret_cast<std::uintptr_t>(tensors_.q->data) - 1;
    if (case_.in_place) {
      tensors_.q_rotated = Tensor{const_cast<void*>(tensors_.q->data), tensors_.q->spec};
      outputs_.push_back({begin, begin + bytes_of_rows(tensors_.q->spec)});
    } else {
      const TensorSpec& s = tensors_.q->spec;
      tensors_.q_rotated = s.rank == 3
                               ? floats({s.shape[0], s.shape[1], s.shape[2]}, true)
                               : floats({s.shape[0], s.shape[1], s.shape[2], s.shape[3]}, true);
    }
  }
  static std::size_t bytes_of_rows(const TensorSpec& spec) {
    return static_cast<std::size_t>(spec.strides[0] * spec.shape[0]) * size_of(spec.dtype);
  }

  AppendCase case_;
  std::mt19937 random_;
  std::vector<char> memory_;
  AppendTensors tensors_;
  std::vector<std::pair<std::size_t, std::size_t>> outputs_;  ///< bytes of floating results
};

/// Every choice with some of the others.
inline std::vector<AppendCase> append_cases() {
  std::vector<AppendCase> list;
  for (const DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16}) {
    for (unsigned n = 0; n < 16; ++n) {
      const auto bit = [n](unsigned which) { return (n * 37 >> which & 1) != 0; };
      AppendCase c{.dtype = dtype, .ragged = bit(0), .rotary = n % 5 != 4, .interleaved = bit(1)};
      c.page = n % 4 == 0 ? 0 : n % 4 == 1 ? 1 : n % 4 == 2 ? 16 : 100;
      c.by_index = c.page == 0 && bit(2);
      c.first = bit(3), c.wide = bit(4), c.fp32_table = bit(2), c.positions = bit(1) != bit(0);
      c.padded_rows = n % 3 == 2, c.in_place = bit(5);
      c.dim = n % 2 == 0 ? 64 : 31, c.width = n % 2 == 0 ? 64 : 20;
      list.push_back(c);
    }
  }
  return list;
}

}  // namespace flashlab::append_cases
