#pragma once

// The memory of one case: every tensor allocated, laid out and filled as the case says, the same
// values on every machine and in every layout.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "case.h"
#include "flashlab/attention.h"
#include "flashlab/tensor_table.h"
#include "lab/machine/device_memory.h"

namespace flashlab::lab {

/// One tensor's share of a call's memory.
struct TensorBytes {
  std::string name;   ///< "q", "dk", "workspace: packed k"
  std::string shape;  ///< "fp32 [2, 1024, 8, 64]"
  std::int64_t bytes = 0;
};

/// The tensors of a call, inputs first; sizes too large for 64 bits saturate.
std::vector<TensorBytes> accounting(const cases::Case& problem, Pass pass);

/// The same and the workspace of an implementation, region by region. Errors: those of `plan`.
Result<std::vector<TensorBytes>> accounting(const Context& context, const cases::Case& problem,
                                            Pass pass, std::string_view implementation);

/// What a case asks of `plan`: the layouts of its tensors without their memory.
Problem problem_of(const cases::Case& problem, Pass pass, std::string_view implementation = {},
                   Device device = {});

/// Sum of the bytes, saturating.
std::int64_t total_bytes(std::span<const TensorBytes> tensors);

/// "q fp32 [2, 1024, 8, 64] = 4.0 MiB; k ...; together 16.1 MiB".
std::string to_string(std::span<const TensorBytes> tensors);

/// Values to copy instead of drawing them, e.g. from a file. Shapes are those of the case; any
/// strides; floating dtypes, converted to the case's.
struct CaseValues {
  ConstTensor q, k, v;
  std::optional<ConstTensor> d_o;

  /// Null for a tensor that is drawn.
  const ConstTensor* find(TensorRole role) const {
    if (role == TensorRole::kQ) return &q;
    if (role == TensorRole::kK) return &k;
    if (role == TensorRole::kV) return &v;
    return role == TensorRole::kDO && d_o ? &*d_o : nullptr;
  }
};

struct CaseDataOptions {
  bool backward = true;                 ///< the tensors of backward too
  std::int64_t memory_limit_bytes = 0;  ///< refuse above this; 0: what is available
  /// Where the call's tensors lie; empty: in this machine's memory. On a device they are copies:
  /// `fetch_outputs` brings results back.
  std::shared_ptr<DeviceMemory> memory;
  std::optional<CaseValues> values;  ///< empty: drawn by Case::fill and Case::seed
  /// Inputs end where a page without access begins, so that reading past them ends the process.
  /// For tests: it gives up the alignment that a measurement wants. On a GPU, which has no such
  /// pages, the allocation ends there: memory checkers see what goes beyond.
  bool trap_reads_past_end = false;
};

/// A byte outside every tensor that a call has changed.
struct GuardViolation {
  std::string tensor;             ///< "o", "dq"
  std::int64_t offset_bytes = 0;  ///< from the tensor's first element; negative: before it
};

/// Owns the tensors of one case. Around and between the elements of every output lie guard bytes;
/// around and between those of the inputs lie NaN.
class CaseData {
 public:
  /// Errors: kOutOfMemory with every tensor's bytes (checked against the limit before anything is
  /// touched, so that a large case is refused instead of killed), kInvalidArgument (sizes, values).
  /// Cost: about 10 ns per element.
  static Result<CaseData> create(const cases::Case& problem, const CaseDataOptions& options = {});

  CaseData(CaseData&&) noexcept;
  CaseData& operator=(CaseData&&) noexcept;
  ~CaseData();

  const cases::Case& problem() const noexcept;

  /// Where calls on these tensors run, and the stream they belong on.
  DeviceMemory& memory() const noexcept;

  /// Views over the memory that kernels work on. Outputs of forward are the o and lse that backward
  /// reads.
  ForwardTensors forward_tensors() const;
  /// Precondition: created with `backward`.
  BackwardTensors backward_tensors() const;

  /// Views over this machine's copy, which the oracle and the comparator read. The same memory on a
  /// CPU. Outputs are those of the last `fetch_outputs`. Of a ragged case rows are those of one
  /// batch entry, [1, total, heads, dim], and there are no lengths.
  ForwardTensors host_forward_tensors() const;
  BackwardTensors host_backward_tensors() const;

  /// Payload bytes of a pass: elements x size, without guards and padding.
  std::int64_t input_bytes(Pass pass) const;
  std::int64_t output_bytes(Pass pass) const;

  /// Refills the pass's outputs: with NaN where the call overwrites, with the seeded initial values
  /// where it accumulates; and the guard bytes. Errors: kDeviceError of earlier work.
  Status reset_outputs(Pass pass);

  /// Waits for the calls enqueued on the memory's stream and copies the pass's outputs and their
  /// guards back. Errors: kDeviceError when one of those calls failed on the device.
  Status fetch_outputs(Pass pass);

  /// Copies of a pass's output elements, row-major without padding, in the order o, lse or
  /// dq, dk, dv: what two calls are compared by, bit for bit. As last fetched.
  std::vector<std::uint8_t> output_bits(Pass pass) const;

  /// The first guard byte that is not what it was, if any. As last fetched.
  std::optional<GuardViolation> find_violation() const;

 private:
  struct Impl;
  explicit CaseData(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace flashlab::lab
