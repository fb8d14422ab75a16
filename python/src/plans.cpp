#include "plans.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "contexts.h"
#include "errors.h"

namespace flashlab::python {
namespace {

constexpr std::size_t kWorkspaceAlignment = 256;
// A service that sees ever new shapes must not grow without bound; plans are cheap to make again.
constexpr std::size_t kMaxPlannedCalls = 2048;

int device_number(Device device) {
  return device.kind == DeviceKind::kCpu ? -1 : device.index;
}

struct Hash {
  std::size_t operator()(const CallKey& key) const noexcept { return key.hash(); }
};

// 0 for the device's own choice. Names that do not exist share one number: no plan is made for
// them.
std::uint8_t number_of(const std::string& implementation, Device device) {
  if (implementation.empty()) return 0;
  const std::vector<std::string> names = implementations(device);
  const auto found = std::find(names.begin(), names.end(), implementation);
  return found == names.end() ? 255 : static_cast<std::uint8_t>(found - names.begin() + 1);
}

// DLPack's allocator reports its failure through this.
void set_error(void*, const char* kind, const char* message) {
  PyErr_Format(PyExc_RuntimeError, "workspace: %s: %s", kind, message);
}

}  // namespace

CallKey::CallKey(Pass pass, const Options& options, Device device, const void* place,
                 bool with_lse) {
  head_.place = place;
  head_.device = device_number(device);
  head_.forks = forks();
  head_.pass = static_cast<std::uint8_t>(pass);
  head_.causal = static_cast<std::uint8_t>(options.causal);
  head_.precision = static_cast<std::uint8_t>(options.precision);
  head_.deterministic = options.deterministic ? 1 : 0;
  head_.has_scale = options.scale ? 1 : 0;
  head_.scale = options.scale.value_or(0.0);
  head_.with_lse = with_lse ? 1 : 0;
  head_.implementation = number_of(options.implementation, device);
  const Window window = options.window.value_or(Window{});
  constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();
  head_.window_left = window.left.value_or(kNoBound);
  head_.window_right = window.right.value_or(kNoBound);
  head_.window_alignment = static_cast<std::uint8_t>(window.alignment);
  head_.attention_chunk = options.attention_chunk.value_or(0);
  head_.softcap = options.softcap.value_or(0.0f);
  head_.dropout = options.dropout.value_or(0.0f);
}

void CallKey::add(const Argument& argument) {
  Tensor& tensor = tensors_[head_.tensors++];
  tensor = Tensor{};
  if (!argument) return;
  const TensorSpec& spec = argument.spec();
  tensor.present = 1;
  tensor.dtype = static_cast<std::uint8_t>(spec.dtype);
  tensor.rank = static_cast<std::uint8_t>(spec.rank);
  tensor.alignment = static_cast<std::uint8_t>(spec.alignment_bytes);
  tensor.device = device_number(spec.device);
  for (int i = 0; i < spec.rank; ++i) {
    tensor.shape[i] = spec.shape[i];
    tensor.strides[i] = spec.strides[i];
  }
}

std::size_t CallKey::bytes() const noexcept {
  return head_.tensors * sizeof(Tensor);
}

bool CallKey::operator==(const CallKey& other) const noexcept {
  return std::memcmp(&head_, &other.head_, sizeof head_) == 0 &&
         std::memcmp(tensors_, other.tensors_, bytes()) == 0;
}

std::size_t CallKey::hash() const noexcept {
  // Eight bytes at a time, multiplied and folded: the key is a few hundred bytes, once a call.
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  const auto mix = [&](const void* data, std::size_t size) {
    const char* at = static_cast<const char*>(data);
    for (std::size_t i = 0; i < size; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, at + i, 8);
      hash = (hash ^ word) * 0xff51afd7ed558ccdu;
      hash ^= hash >> 32;
    }
  };
  static_assert(sizeof(Head) % 8 == 0 && sizeof(Tensor) % 8 == 0);
  mix(&head_, sizeof head_);
  mix(tensors_, bytes());
  return hash;
}

namespace {

using Cache = std::unordered_map<CallKey, PlannedCallPointer, Hash>;

// Never destroyed: what it holds belongs to an interpreter that is gone by then.
Cache& cache() {
  static auto& planned = *new Cache();
  return planned;
}

}  // namespace

PlannedCallPointer find_planned(const CallKey& key) {
  const auto found = cache().find(key);
  return found != cache().end() ? found->second : nullptr;
}

PlannedCallPointer remember(const CallKey& key, PlannedCallPointer call) {
  if (cache().size() >= kMaxPlannedCalls) cache().clear();
  return cache().insert_or_assign(key, std::move(call)).first->second;
}

Result<Plan> prepared_plan(const Context& context, const Problem& problem) {
  nb::gil_scoped_release release;
  auto plan = flashlab::plan(context, problem);
  if (!plan.ok()) return plan;
  Status status = prepare(context, *plan);
  if (!status.ok()) return status;
  return plan;
}

Made result(const Framework& framework, nb::handle like, const TensorSpec& spec, bool heads_first) {
  nb::object extents = nb::steal(PyTuple_New(spec.rank));
  for (int i = 0; i < spec.rank; ++i) {
    PyTuple_SetItem(extents.ptr(), i, PyLong_FromLongLong(spec.shape[i]));
  }
  const char* factory = heads_first ? "factory_heads_first" : "factory";
  return {spec, framework.adapter.attr(factory)(like, extents, to_string(spec.dtype))};
}

void PlannedCall::add_result(const Framework& framework, nb::handle like, const TensorSpec& spec,
                             bool heads_first) {
  results.push_back(result(framework, like, spec, heads_first));
}

void PlannedCall::add_workspace(const Framework& framework, nb::handle like) {
  const bool cpu = plan.problem().q.device.kind == DeviceKind::kCpu;
  if (plan.workspace_bytes() == 0 || cpu || framework.exchange != nullptr) return;
  workspace_factory = framework.adapter.attr("factory")(
      like, nb::make_tuple(plan.workspace_bytes() + kWorkspaceAlignment), "uint8");
}

Scratch::Scratch(const Framework& framework, const Context& context, const PlannedCall& call) {
  const std::size_t bytes = call.plan.workspace_bytes();
  if (bytes == 0) return;
  const Device device = context.device();
  void* data = nullptr;
  if (device.kind == DeviceKind::kCpu) {
    auto made =
        context.allocator().allocate(bytes, kWorkspaceAlignment, {}, Tag{"workspace", "attention"});
    require(made.status());
    own_ = &context.allocator();
    data = *made;
  } else if (framework.exchange != nullptr) {
    std::int64_t extent = static_cast<std::int64_t>(bytes + kWorkspaceAlignment), stride = 1;
    dlpack::View model;
    model.device = {dlpack::kCuda, device.index};
    model.rank = 1;
    model.type = {1, 8, 1};  // unsigned bytes
    model.shape = &extent;
    model.strides = &stride;
    if (framework.exchange->allocate(&model, &managed_, nullptr, set_error) != 0) {
      throw nb::python_error();
    }
    data = static_cast<char*>(managed_->view.data) + managed_->view.byte_offset;
  } else {
    memory_ = make_memory(framework, call.workspace_factory);
    data = memory_.data;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t aligned =
      (address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  workspace_ = {reinterpret_cast<void*>(aligned), bytes};
}

Scratch::~Scratch() {
  if (own_ != nullptr) own_->deallocate(workspace_.data, workspace_.bytes, {});
  if (managed_ != nullptr && managed_->release != nullptr) managed_->release(managed_);
}

}  // namespace flashlab::python
