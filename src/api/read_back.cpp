#include "api/read_back.h"

#include <cstddef>
#include <cstdlib>
#include <list>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "api/appended.h"
#include "api/backend.h"
#include "api/overlap.h"
#include "api/sequences.h"

namespace flashlab::internal {
namespace {

// Copies on the host, each as long as the tensor it was read from.
class HostCopies {
 public:
  HostCopies(const ContextState& context, Stream stream) : context_(context), stream_(stream) {}

  const Status& status() const { return status_; }

  void take(ConstTensor& tensor) {
    if (!status_.ok() || tensor.spec.elements() == 0) return;
    const ByteRange range = byte_range(tensor.data, tensor.spec);
    const auto bytes = static_cast<std::size_t>(range.end - range.begin);
    std::vector<std::byte>& copy = copies_.emplace_back(bytes);
    status_ =
        backend_of(context_.device.kind).read(context_, stream_, copy.data(), tensor.data, bytes);
    tensor.data = copy.data();
  }
  void take(std::optional<ConstTensor>& tensor) {
    if (tensor) take(*tensor);
  }

 private:
  const ContextState& context_;
  Stream stream_;
  std::list<std::vector<std::byte>> copies_;
  Status status_;
};

template <class Tensors>
Status check_call_lengths(const ContextState& context, Stream stream, const PlanState& plan,
                          Tensors tensors) {
  HostCopies copies(context, stream);
  for (auto* each :
       {&tensors.cu_seqlens_q, &tensors.cu_seqlens_k, &tensors.seqused_q, &tensors.seqused_k}) {
    copies.take(*each);
  }
  if constexpr (std::is_same_v<Tensors, ForwardTensors>) {
    for (auto* each : {&tensors.cache_batch_idx, &tensors.leftpad_k, &tensors.block_table}) {
      copies.take(*each);
    }
  }
  if (!copies.status().ok()) return copies.status();
  const Geometry call = geometry_of_call(plan.geometry, plan.problem, tensors);
  return read_sequences(call, tensors).status();
}

}  // namespace

bool reads_back(const ContextState& context) {
  if (context.device.kind == DeviceKind::kCpu) return false;
  const char* asked = std::getenv("FLASHLAB_CHECK_SEQUENCES");
  return asked != nullptr && std::string_view(asked) != "" && std::string_view(asked) != "0";
}

Status check_lengths(const ContextState& context, Stream stream, const PlanState& plan,
                     const ForwardTensors& tensors) {
  return check_call_lengths(context, stream, plan, normalised(plan.problem, tensors));
}

Status check_lengths(const ContextState& context, Stream stream, const PlanState& plan,
                     const BackwardTensors& tensors) {
  return check_call_lengths(context, stream, plan, normalised(plan.problem, tensors));
}

Status check_lengths(const ContextState& context, Stream stream, const AppendTensors& given,
                     const AppendOptions& options, std::int64_t page_size) {
  AppendTensors tensors = given;
  HostCopies copies(context, stream);
  copies.take(tensors.seqused_k);
  for (auto* each : {&tensors.block_table, &tensors.cache_batch_idx, &tensors.cu_seqlens_new,
                     &tensors.rotary_positions, &tensors.cu_seqlens_q}) {
    copies.take(*each);
  }
  if (!copies.status().ok()) return copies.status();
  return read_appended(tensors, options, page_size).status();
}

}  // namespace flashlab::internal
