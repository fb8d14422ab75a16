#pragma once

// Problems out of bytes: tensors of exactly the memory their specs reach, so that a sanitizer sees
// one element too many.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "bytes.h"
#include "flashlab/attention.h"

namespace flashlab::fuzz {

/// Memory for one tensor; its end is the end of the allocation.
class Buffer {
 public:
  Buffer() = default;
  /// `spec` non-negative in extents and strides; filled with values in [-1, 1] (bool: 0 or 1).
  Buffer(const TensorSpec& spec, Bytes& bytes);
  /// The same spec and values, in memory of its own.
  Buffer copy() const;

  Tensor tensor() const;
  bool same_bytes(const Buffer& other) const;

  /// Element at a multi-index of the spec's rank.
  double at(const std::int64_t* index) const;
  void set(const std::int64_t* index, double value);

  /// Calls f(index) for every element.
  template <class F>
  void for_each(F&& f) const {
    std::int64_t index[TensorSpec::kMaxRank] = {};
    visit(0, index, f);
  }

 private:
  template <class F>
  void visit(int dim, std::int64_t* index, F& f) const {
    if (dim == spec_.rank) return f(static_cast<const std::int64_t*>(index));
    for (index[dim] = 0; index[dim] < spec_.shape[dim]; ++index[dim]) visit(dim + 1, index, f);
  }
  unsigned char* address(const std::int64_t* index) const;

  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  TensorSpec spec_{};
  std::unique_ptr<unsigned char, Free> memory_;
  std::size_t bytes_ = 0;
  std::size_t offset_ = 0;
};

/// A small, mostly well-formed problem with its memory.
struct Made {
  Options options;
  Buffer q, k, v, o, lse, d_o, dq, dk, dv;
  std::optional<Buffer> mask, d_lse;
  /// Offsets and lengths, perhaps hostile; with offsets the batch is one, and left out.
  std::vector<std::int64_t> cu_q{}, cu_k{}, used_q{}, used_k{};

  bool has_lengths() const {
    return !(cu_q.empty() && cu_k.empty() && used_q.empty() && used_k.empty());
  }
  ForwardTensors forward() const;
  BackwardTensors backward() const;
  /// The same problem with outputs of their own.
  Made copy() const;

 private:
  template <class Tensors>
  void add_lengths(Tensors& tensors) const;
};

Made make_problem(Bytes& bytes);

/// A Problem whose every field may be nonsense; it has no memory.
Problem make_wild_problem(Bytes& bytes);

}  // namespace flashlab::fuzz
