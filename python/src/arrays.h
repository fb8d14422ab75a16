#pragma once

// A Python array as the C++ API sees it, and the framework that it belongs to.

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "dlpack.h"
#include "flashlab/flashlab.h"

namespace flashlab::python {

namespace nb = nanobind;

/// How arrays of one Python type are read and made. Frameworks that offer DLPack's C exchange
/// (PyTorch from 2.10) are asked through it; the others through flashlab/_arrays.py.
struct Framework {
  const dlpack::ExchangeApi* exchange = nullptr;  ///< null: not offered
  nb::object adapter;     ///< flashlab._arrays: one object per framework, whatever the subclass
  nb::object is_negated;  ///< PyTorch's Tensor.is_neg: the sign of a view may be pending
  nb::object gate;     ///< PyTorch, its own tensor types: what _arrays.Torch.gate_of says of them
  bool torch = false;  ///< tensors of PyTorch, subclasses included
  bool synchronous = false;  ///< it cannot be told when a stream will be done: wait for it
};

/// The framework of an array's type, looked up once per type.
/// Errors: TypeError, when it is no array that anybody could read.
const Framework& framework_of(nb::handle array, const char* argument);

/// An argument of a call, read without a copy where the C++ API can.
class Argument {
 public:
  /// An absent argument.
  Argument() = default;
  /// Errors: TypeError (dtype), ValueError (rank), RuntimeError (device), or what the framework
  /// says of an array that has no address. The array must outlive the Argument.
  Argument(const Framework& framework, const char* name, nb::handle array, bool integers = false);

  explicit operator bool() const noexcept { return present_; }
  const char* name() const noexcept { return name_; }
  const TensorSpec& spec() const noexcept { return spec_; }
  TensorSpec& spec() noexcept { return spec_; }
  void* data() const noexcept { return data_; }
  /// The framework says: not to be written, or a copy of what the caller holds.
  bool read_only() const noexcept { return opaque_ || (flags_ & dlpack::kReadOnly) != 0; }
  bool copied() const noexcept { return (flags_ & dlpack::kCopied) != 0; }

  /// Replaces what the C++ API cannot read by strides (an innermost stride other than 1, a negative
  /// one, elements that are not aligned) by a dense copy from the framework.
  void make_readable(const Framework& framework);

  /// Reads [batch, heads, seqlen, head_dim] as [batch, seqlen, heads, head_dim].
  void swap_heads() noexcept;

  ConstTensor input() const noexcept { return {data_, spec_}; }
  Tensor output() const noexcept { return {data_, spec_}; }

 private:
  void read(const Framework& framework, nb::handle array);
  void take(const dlpack::View& view);
  void take_description(nb::handle description);
  bool readable() const noexcept;
  bool fits() const noexcept {
    return integers_ == (spec_.dtype == DType::kInt64 || spec_.dtype == DType::kInt32);
  }

  bool present_ = false;
  bool integers_ = false;  ///< else floating or bool
  bool opaque_ = false;    ///< memory that strides do not describe: split elements, a pending sign
  const char* name_ = "";
  nb::handle array_;
  void* data_ = nullptr;
  TensorSpec spec_;
  std::uint64_t flags_ = 0;
  nb::object copy_;                 ///< the dense copy that is read instead
  std::shared_ptr<void> exported_;  ///< the framework's export, released with the Argument
};

/// Fresh memory from the caller's framework, of whatever element type.
struct Memory {
  nb::object array;
  void* data = nullptr;
  std::shared_ptr<void> exported;  ///< the framework's export, released with the Memory
};

/// Calls a factory of an adapter and finds out where its array is.
Memory make_memory(const Framework& framework, nb::handle factory);

/// Sets `alignment_bytes` to what rows at that address have.
void set_alignment(TensorSpec& spec, const void* data) noexcept;

/// "fp32" -> kFp32; nothing for a name that no argument has.
bool dtype_of(const char* name, DType& dtype) noexcept;

}  // namespace flashlab::python
