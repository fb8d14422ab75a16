#pragma once

// Every tensor of attention, one row each: its name, the members that hold it, its shape, its
// dtypes. `describe`, validation, the plan cache's key, the checks of a call, kernel arguments,
// test data, byte counts and the Python bindings walk this table, so that none of them can forget
// a tensor. What a pass does with a tensor is said by its member's type: a Tensor is written, a
// ConstTensor read, and either may be absent inside std::optional.
//
// Overlap: a tensor that a call writes shares no byte with any other tensor of the call, nor with
// the workspace, nor one of its elements with another.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "flashlab/attention.h"

namespace flashlab {

/// Which tensor of a call; its row is kTensors[role].
enum class TensorRole : std::uint8_t {
  kQ,
  kK,
  kV,
  kMask,
  kO,
  kLse,
  kDO,
  kDLse,
  kDQ,
  kDK,
  kDV,
  kAlibiSlopes,
  kSinks,
  kCuSeqlensQ,
  kCuSeqlensK,
  kBlockTable,
  kRowStatistics,
  kDropoutState,
  kDSinks,
  kSeqUsedQ,
  kSeqUsedK,
  kCacheBatchIdx,
  kLeftPadK
};
inline constexpr std::size_t kTensorRoles = 23;

// ---------------------------------------------------------------------------------------------
// Shapes
// ---------------------------------------------------------------------------------------------

/// A size that shapes are made of.
enum class Extent : std::uint8_t {
  kBatch,
  kSeqlenQ,  ///< ragged: of a mask
  kSeqlenK,
  kHeadsQ,
  kHeadsK,
  kHeadDim,
  kHeadDimV,
  kTotalQ,  ///< ragged: tokens of all sequences
  kTotalK,
  kBatchPlusOne,  ///< of cumulative lengths: entry b is where sequence b begins
  kPages,         ///< paged: of the pool of keys and values
  kPageSize,
  kPagesPerSequence,
  kCacheEntries,  ///< of a cache whose entries cache_batch_idx chooses among
  kTwo
};
inline constexpr std::size_t kExtents = 15;

/// "batch", "seqlen_q", "total_q", "batch + 1", "2".
const char* to_string(Extent extent) noexcept;

/// The sizes of one call, by name.
class Extents {
 public:
  constexpr std::int64_t operator[](Extent extent) const {
    return values_[static_cast<std::size_t>(extent)];
  }
  constexpr std::int64_t& operator[](Extent extent) {
    return values_[static_cast<std::size_t>(extent)];
  }

 private:
  std::array<std::int64_t, kExtents> values_{};
};

struct ShapeRule {
  int rank = 0;
  std::array<Extent, TensorSpec::kMaxRank> extents{};
  bool broadcasts = false;  ///< every extent may be 1 instead

  constexpr ShapeRule(std::initializer_list<Extent> list) {
    for (Extent extent : list) extents[static_cast<std::size_t>(rank++)] = extent;
  }
  constexpr ShapeRule broadcast() const {
    ShapeRule rule = *this;
    rule.broadcasts = true;
    return rule;
  }
  constexpr std::array<std::int64_t, TensorSpec::kMaxRank> of(const Extents& sizes) const {
    std::array<std::int64_t, TensorSpec::kMaxRank> shape{};
    for (int i = 0; i < rank; ++i) {
      const auto n = static_cast<std::size_t>(i);
      shape[n] = sizes[extents[n]];
    }
    return shape;
  }
};

/// "[batch, seqlen_q, heads_q, head_dim]".
std::string to_string(const ShapeRule& rule);

/// Where sequences come from: a dimension of their own, or one row of tokens cut by cumulative
/// lengths (ragged), or, for keys and values, entries of a cache that an index chooses, or pages
/// that a table lists.
struct SequenceSource {
  bool ragged_q = false;
  bool ragged_k = false;
  bool paged_k = false;
  bool indexed_k = false;
};

/// A dense rule as it reads for a source: [batch, seqlen_q, heads_q, head_dim] becomes
/// [total_q, heads_q, head_dim] where queries are ragged, [batch, seqlen_k, ...] becomes
/// [pages, page_size, ...] where keys are paged, [cache entries, seqlen_k, ...] where an index
/// chooses them. Rules that broadcast stay.
ShapeRule rule_for(const ShapeRule& dense, const SequenceSource& source);

// ---------------------------------------------------------------------------------------------
// Dtypes
// ---------------------------------------------------------------------------------------------

enum class DTypeRule : std::uint8_t {
  kInput,      ///< any floating type
  kAsQ,        ///< q's
  kAsQOrFp32,  ///< q's, or fp32
  kStatistic,  ///< fp32; beside fp64 tensors fp64, too
  kAsLse,      ///< lse's
  kVisible,    ///< bool: true is visible; or added to the score: fp32 or q's
  kFp32,
  kInt32,
  kInt64,
  kIndex  ///< int32 or int64
};

/// The types a rule allows; the first is what a result gets.
struct DTypeList {
  std::array<DType, 6> types{};
  int count = 0;
  constexpr DTypeList(std::initializer_list<DType> list) {
    for (DType type : list) types[static_cast<std::size_t>(count++)] = type;
  }
  const DType* begin() const { return types.data(); }
  const DType* end() const { return types.data() + count; }
};
DTypeList allowed_dtypes(DTypeRule rule, DType q, DType lse);

// ---------------------------------------------------------------------------------------------
// Members
// ---------------------------------------------------------------------------------------------

/// What a pass does with a tensor.
enum class Access : std::uint8_t { kNone, kRead, kWrite };

/// A tensor as a call gives it; `spec` is null where the call gives none.
struct GivenTensor {
  const void* data = nullptr;
  const TensorSpec* spec = nullptr;
  explicit operator bool() const noexcept { return spec != nullptr; }
};

/// The member of ForwardTensors or BackwardTensors that holds a tensor.
template <class Tensors>
class TensorMember {
 public:
  constexpr TensorMember() = default;  ///< the pass has no such tensor
  constexpr TensorMember(ConstTensor Tensors::*m) : input_(m) {}
  constexpr TensorMember(std::optional<ConstTensor> Tensors::*m) : optional_input_(m) {}
  constexpr TensorMember(Tensor Tensors::*m) : output_(m) {}
  constexpr TensorMember(std::optional<Tensor> Tensors::*m) : optional_output_(m) {}

  constexpr Access access() const {
    if (output_ != nullptr || optional_output_ != nullptr) return Access::kWrite;
    return input_ != nullptr || optional_input_ != nullptr ? Access::kRead : Access::kNone;
  }
  constexpr bool required() const { return input_ != nullptr || output_ != nullptr; }

  GivenTensor get(const Tensors& t) const {
    if (input_ != nullptr) return {(t.*input_).data, &(t.*input_).spec};
    if (output_ != nullptr) return {(t.*output_).data, &(t.*output_).spec};
    if (optional_input_ != nullptr && t.*optional_input_) {
      return {(t.*optional_input_)->data, &(t.*optional_input_)->spec};
    }
    if (optional_output_ != nullptr && t.*optional_output_) {
      return {(t.*optional_output_)->data, &(t.*optional_output_)->spec};
    }
    return {};
  }

  /// Precondition: access() is not kNone.
  void set(Tensors& t, const Tensor& value) const {
    if (input_ != nullptr) t.*input_ = value;
    if (output_ != nullptr) t.*output_ = value;
    if (optional_input_ != nullptr) t.*optional_input_ = value;
    if (optional_output_ != nullptr) t.*optional_output_ = value;
  }

 private:
  ConstTensor Tensors::*input_ = nullptr;
  std::optional<ConstTensor> Tensors::*optional_input_ = nullptr;
  Tensor Tensors::*output_ = nullptr;
  std::optional<Tensor> Tensors::*optional_output_ = nullptr;
};

/// The member of Problem that describes a tensor.
class SpecMember {
 public:
  constexpr SpecMember(TensorSpec Problem::*m) : always_(m) {}
  constexpr SpecMember(std::optional<TensorSpec> Problem::*m) : optional_(m) {}

  /// Null where the problem has no such tensor.
  const TensorSpec* get(const Problem& p) const {
    if (always_ != nullptr) return &(p.*always_);
    return p.*optional_ ? &*(p.*optional_) : nullptr;
  }
  TensorSpec* get(Problem& p) const {
    return const_cast<TensorSpec*>(get(static_cast<const Problem&>(p)));
  }
  void set(Problem& p, const TensorSpec& spec) const {
    if (always_ != nullptr) {
      p.*always_ = spec;
    } else {
      p.*optional_ = spec;
    }
  }

 private:
  TensorSpec Problem::*always_ = nullptr;
  std::optional<TensorSpec> Problem::*optional_ = nullptr;
};

// ---------------------------------------------------------------------------------------------
// The table
// ---------------------------------------------------------------------------------------------

/// Whose kernels have a tensor; others refuse it by the row's feature.
enum class ServedBy : std::uint8_t {
  kAll,
  kDeclaring,  ///< of the implementations that declare its feature
  kNone,       ///< to come
};

struct TensorRow {
  TensorRole role;
  const char* name;
  TensorMember<ForwardTensors> forward{};
  TensorMember<BackwardTensors> backward{};
  SpecMember problem;
  ShapeRule shape;  ///< with dense sequences; rule_for() turns it
  DTypeRule dtype;
  /// What a call with this tensor requires of an implementation; null for q, k, v, o and the
  /// gradients, which every call has, and for masks, whose type decides.
  const char* feature = nullptr;
  ServedBy served_by = ServedBy::kAll;

  constexpr Access access(Pass pass) const {
    return pass == Pass::kForward ? forward.access() : backward.access();
  }
  constexpr bool required(Pass pass) const {
    return pass == Pass::kForward ? forward.required() : backward.required();
  }
  template <class Tensors>
  constexpr const TensorMember<Tensors>& member() const {
    if constexpr (std::is_same_v<Tensors, ForwardTensors>) {
      return forward;
    } else {
      return backward;
    }
  }
};

namespace tensor_table {

using F = ForwardTensors;
using B = BackwardTensors;
using P = Problem;
using R = TensorRole;
using D = DTypeRule;
using enum Extent;

inline constexpr ShapeRule kQueries{kBatch, kSeqlenQ, kHeadsQ, kHeadDim};
inline constexpr ShapeRule kKeys{kBatch, kSeqlenK, kHeadsK, kHeadDim};
inline constexpr ShapeRule kValues{kBatch, kSeqlenK, kHeadsK, kHeadDimV};
inline constexpr ShapeRule kOutputs{kBatch, kSeqlenQ, kHeadsQ, kHeadDimV};
inline constexpr ShapeRule kRowScalars{kBatch, kHeadsQ, kSeqlenQ};
inline constexpr ShapeRule kScores = ShapeRule{kBatch, kHeadsQ, kSeqlenQ, kSeqlenK}.broadcast();

inline constexpr ShapeRule kHeadSlopes = ShapeRule{kBatch, kHeadsQ}.broadcast();

// Of a pass that has no such tensor.
inline constexpr TensorMember<F> kNotForward{};
inline constexpr TensorMember<B> kNotBackward{};

inline constexpr std::array<TensorRow, kTensorRoles> kRows{{
    // role, name, member of forward, of backward, of Problem, shape, dtype, feature, served by
    {R::kQ, "q", &F::q, &B::q, &P::q, kQueries, D::kInput},
    {R::kK, "k", &F::k, &B::k, &P::k, kKeys, D::kAsQ},
    {R::kV, "v", &F::v, &B::v, &P::v, kValues, D::kAsQ},
    {R::kMask, "mask", &F::mask, &B::mask, &P::mask, kScores, D::kVisible},
    {R::kO, "o", &F::o, &B::o, &P::o, kOutputs, D::kAsQOrFp32},
    {R::kLse, "lse", &F::lse, &B::lse, &P::lse, kRowScalars, D::kStatistic, "lse"},
    {R::kDO, "d_o", kNotForward, &B::d_o, &P::d_o, kOutputs, D::kAsQOrFp32},
    {R::kDLse, "d_lse", kNotForward, &B::d_lse, &P::d_lse, kRowScalars, D::kAsLse, "lse gradient"},
    {R::kDQ, "dq", kNotForward, &B::dq, &P::dq, kQueries, D::kAsQOrFp32},
    {R::kDK, "dk", kNotForward, &B::dk, &P::dk, kKeys, D::kAsQOrFp32},
    {R::kDV, "dv", kNotForward, &B::dv, &P::dv, kValues, D::kAsQOrFp32},
    {R::kAlibiSlopes, "alibi_slopes", &F::alibi_slopes, &B::alibi_slopes, &P::alibi_slopes,
     kHeadSlopes, D::kFp32, "alibi"},
    {R::kSinks, "sinks", &F::sinks, &B::sinks, &P::sinks, ShapeRule{kHeadsQ}, D::kFp32,
     "attention sinks", ServedBy::kDeclaring},
    {R::kCuSeqlensQ, "cu_seqlens_q", &F::cu_seqlens_q, &B::cu_seqlens_q, &P::cu_seqlens_q,
     ShapeRule{kBatchPlusOne}, D::kIndex, "variable lengths", ServedBy::kDeclaring},
    {R::kCuSeqlensK, "cu_seqlens_k", &F::cu_seqlens_k, &B::cu_seqlens_k, &P::cu_seqlens_k,
     ShapeRule{kBatchPlusOne}, D::kIndex, "variable lengths", ServedBy::kDeclaring},
    {R::kBlockTable, "block_table", &F::block_table, kNotBackward, &P::block_table,
     ShapeRule{kBatch, kPagesPerSequence}, D::kInt32, "paged keys", ServedBy::kDeclaring},
    {R::kRowStatistics, "row_statistics", &F::row_statistics, &B::row_statistics,
     &P::row_statistics, ShapeRule{kBatch, kHeadsQ, kSeqlenQ, kTwo}, D::kFp32, "row statistics",
     ServedBy::kNone},
    {R::kDropoutState, "dropout_state", &F::dropout_state, &B::dropout_state, &P::dropout_state,
     ShapeRule{kTwo}, D::kInt64, "dropout state on the device"},
    {R::kDSinks, "d_sinks", kNotForward, &B::d_sinks, &P::d_sinks, ShapeRule{kHeadsQ}, D::kFp32,
     "attention sinks", ServedBy::kDeclaring},
    {R::kSeqUsedQ, "seqused_q", &F::seqused_q, &B::seqused_q, &P::seqused_q, ShapeRule{kBatch},
     D::kIndex, "variable lengths", ServedBy::kDeclaring},
    {R::kSeqUsedK, "seqused_k", &F::seqused_k, &B::seqused_k, &P::seqused_k, ShapeRule{kBatch},
     D::kIndex, "variable lengths", ServedBy::kDeclaring},
    {R::kCacheBatchIdx, "cache_batch_idx", &F::cache_batch_idx, kNotBackward, &P::cache_batch_idx,
     ShapeRule{kBatch}, D::kIndex, "cache entries by index", ServedBy::kDeclaring},
    {R::kLeftPadK, "leftpad_k", &F::leftpad_k, kNotBackward, &P::leftpad_k, ShapeRule{kBatch},
     D::kIndex, "left padding", ServedBy::kDeclaring},
}};

constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].role != static_cast<TensorRole>(i)) return false;
  }
  return true;
}
static_assert(rows_are_in_order());

}  // namespace tensor_table

inline constexpr const std::array<TensorRow, kTensorRoles>& kTensors = tensor_table::kRows;

constexpr const TensorRow& row_of(TensorRole role) {
  return kTensors[static_cast<std::size_t>(role)];
}

/// Calls `visit(row, given)` for each tensor that a pass has, given or not. Unrolled, so that a
/// call of the library takes no longer by the table than it would by the members' names.
template <class Tensors, class Visit>
void for_each_tensor(const Tensors& tensors, Visit visit) {
  const auto one = [&]<std::size_t kRole>() {
    static constexpr const TensorRow& row = tensor_table::kRows[kRole];
    static constexpr TensorMember<Tensors> kMember = row.template member<Tensors>();
    if constexpr (kMember.access() != Access::kNone) visit(row, kMember.get(tensors));
  };
  [&]<std::size_t... kRoles>(std::index_sequence<kRoles...>) {
    (one.template operator()<kRoles>(), ...);
  }
  (std::make_index_sequence<kTensorRoles>());
}

/// Where the sequences of a problem come from.
SequenceSource source_of(const Problem& problem);

}  // namespace flashlab
