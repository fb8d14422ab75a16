#include "arrays.h"

#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "errors.h"

namespace flashlab::python {
namespace {

constexpr const char* kFloats = "fp64, fp32, fp16 or bf16";

// The C exchange that a type offers, in a version that is understood here; null otherwise.
const dlpack::ExchangeApi* exchange_of(nb::handle type) {
  constexpr const char* kName = "dlpack_exchange_api";
  nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), kName)) return nullptr;
  auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), kName));
  while (api != nullptr && api->version.major != 1) api = api->older;
  return api != nullptr && api->export_view != nullptr ? api : nullptr;
}

bool dtype_of(dlpack::ElementType type, DType& dtype) {
  if (type.lanes != 1) return false;
  switch (type.code << 8 | type.bits) {
    case dlpack::kFloat << 8 | 64:
      dtype = DType::kFp64;
      return true;
    case dlpack::kFloat << 8 | 32:
      dtype = DType::kFp32;
      return true;
    case dlpack::kFloat << 8 | 16:
      dtype = DType::kFp16;
      return true;
    case dlpack::kBfloat << 8 | 16:
      dtype = DType::kBf16;
      return true;
    case dlpack::kBool << 8 | 8:
      dtype = DType::kBool;
      return true;
    case dlpack::kInt << 8 | 64:
      dtype = DType::kInt64;
      return true;
    case dlpack::kInt << 8 | 32:
      dtype = DType::kInt32;
      return true;
    default:
      return false;
  }
}

std::string text_of(dlpack::ElementType type) {
  const char* names[] = {"int", "uint", "float", "an opaque type of ", "bfloat", "complex", "bool"};
  // Codes from 7 on are floats of 8 bits and fewer.
  const std::string name = type.code < 7 ? names[type.code] : "float";
  return name + std::to_string(type.bits) + (type.lanes == 1 ? "" : " in vectors");
}

// A dtype that no kernel reads: fp8 is named in the API and not computed yet; others are errors.
[[noreturn]] void refuse_dtype(const std::string& name, const std::string& got) {
  const std::string argument = name + ".dtype";
  if (name == "mask") {
    raise(PyExc_TypeError, argument, got, "bool (true is visible), fp32 or q's dtype",
          "a mask of 0 and 1, as attention_mask is, becomes one by mask != 0");
  }
  if (name == "dropout_seed") {
    raise(PyExc_TypeError, argument, got, "int64: an array of seed and offset",
          "convert it, or pass (seed, offset) as two integers");
  }
  if (name == "alibi_slopes" || name == "sinks") {
    raise(PyExc_TypeError, argument, got, "fp32", "convert it");
  }
  if (name.starts_with("cu_seqlens") || name.starts_with("seqused")) {
    raise(PyExc_TypeError, argument, got, "int32 or int64", "convert it");
  }
  if (got.starts_with("float8") || got.starts_with("float6") || got.starts_with("float4")) {
    raise(PyExc_NotImplementedError, argument, got, kFloats,
          "attention in 8 bits is not supported yet: convert it to one of these");
  }
  raise(PyExc_TypeError, argument, got, kFloats, "convert it to one of these");
}

Device device_of(const char* name, dlpack::DeviceId id) {
  switch (id.type) {
    case dlpack::kCpu:
    case dlpack::kCudaPinned:
      return {DeviceKind::kCpu, 0};
    case dlpack::kCuda:
    case dlpack::kCudaManaged:
      return {DeviceKind::kCuda, id.index};
  }
  raise(PyExc_RuntimeError, std::string(name) + ".device",
        "a device of DLPack's type " + std::to_string(id.type), "a CPU or a CUDA device",
        "move the array there");
}

template <class Managed>
std::shared_ptr<void> owner_of(Managed* managed) {
  return {managed, [](void* held) {
            auto* tensor = static_cast<Managed*>(held);
            if (tensor->release != nullptr) tensor->release(tensor);
          }};
}

// What a capsule holds, owned.
struct Exported {
  dlpack::View view;
  std::uint64_t flags = 0;
  std::shared_ptr<void> owner;
};

Exported open_capsule(const char* name, nb::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* managed = static_cast<dlpack::ManagedVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    auto owner = owner_of(managed);
    if (managed->version.major != 1) {
      raise(PyExc_TypeError, name, "DLPack version " + std::to_string(managed->version.major),
            "version 1", "use versions of flashlab and the framework that fit");
    }
    return {managed->view, managed->flags, std::move(owner)};
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    auto* managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    return {managed->view, 0, owner_of(managed)};
  }
  raise(PyExc_TypeError, name, "an object whose __dlpack__ gives no DLPack capsule", "an array",
        "convert it, e.g. by numpy.asarray");
}

std::int64_t integer(nb::handle value) {
  return nb::cast<std::int64_t>(value);
}

}  // namespace

bool dtype_of(const char* name, DType& dtype) noexcept {
  for (DType known : {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16, DType::kBool,
                      DType::kInt64, DType::kInt32}) {
    if (std::strcmp(name, to_string(known)) == 0) {
      dtype = known;
      return true;
    }
  }
  return false;
}

void set_alignment(TensorSpec& spec, const void* data) noexcept {
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(data) | 16u;
  for (int i = 0; i + 1 < spec.rank; ++i) {
    if (spec.shape[i] > 1) {
      bits |= static_cast<std::uint64_t>(spec.strides[i]) * size_of(spec.dtype);
    }
  }
  spec.alignment_bytes = static_cast<int>(bits & (~bits + 1));
}

const Framework& framework_of(nb::handle array, const char* argument) {
  // Types are few and live long; each is kept, so that its address means what it meant.
  static auto& known = *new std::unordered_map<PyTypeObject*, Framework>();
  PyTypeObject* type = Py_TYPE(array.ptr());
  if (auto found = known.find(type); found != known.end()) return found->second;
  const nb::handle type_object(reinterpret_cast<PyObject*>(type));
  nb::object adapter;
  try {
    adapter = nb::module_::import_("flashlab._arrays").attr("adapter_of")(type_object);
  } catch (nb::python_error& error) {
    error.restore();
    raise_in(argument);
  }
  if (adapter.is_none()) {
    raise(PyExc_TypeError, argument, nb::type_name(type_object).c_str(),
          "an array: numpy.ndarray, torch.Tensor, cupy.ndarray, jax.Array or another with "
          "__dlpack__ and __array_namespace__",
          "convert it, e.g. by numpy.asarray");
  }
  Framework framework;
  if (nb::cast<bool>(adapter.attr("exchange"))) {
    framework.exchange = exchange_of(type_object);
    nb::object is_negated = nb::getattr(adapter, "is_negated", nb::none());
    if (!is_negated.is_none()) framework.is_negated = std::move(is_negated);
  }
  framework.torch = nb::cast<bool>(adapter.attr("torch"));
  nb::object gate = adapter.attr("gate_of")(type_object);
  if (!gate.is_none()) framework.gate = std::move(gate);
  framework.synchronous = nb::cast<bool>(adapter.attr("synchronous"));
  framework.adapter = std::move(adapter);
  type_object.inc_ref();
  return known.emplace(type, std::move(framework)).first->second;
}

Argument::Argument(const Framework& framework, const char* name, nb::handle array, bool integers)
    : present_(true), integers_(integers), name_(name), array_(array) {
  read(framework, array);
}

void Argument::read(const Framework& framework, nb::handle array) {
  opaque_ = false;
  if (framework.exchange != nullptr) {
    dlpack::View view;
    if (framework.exchange->export_view(array.ptr(), &view) != 0) raise_in(name_);
    // A view whose sign is pending is one of complex numbers: its elements lie two apart.
    const int last = view.rank - 1;
    const bool dense = last >= 0 && view.shape[last] > 1 && view.strides[last] == 1;
    if (!dense && framework.is_negated.is_valid()) {
      PyObject* negated =
          PyObject_CallFunctionObjArgs(framework.is_negated.ptr(), array.ptr(), nullptr);
      opaque_ = negated == Py_True;
      Py_XDECREF(negated);
      PyErr_Clear();
    }
    return take(view);
  }
  nb::object exported;
  try {
    exported = framework.adapter.attr("export")(array);
  } catch (nb::python_error& error) {
    error.restore();
    raise_in(name_);
  }
  if (PyTuple_Check(exported.ptr())) return take_description(exported);
  Exported opened = open_capsule(name_, exported);
  exported_ = std::move(opened.owner);
  flags_ = opened.flags;
  take(opened.view);
}

void Argument::take(const dlpack::View& view) {
  if (view.rank > TensorSpec::kMaxRank || view.rank < 0) {
    raise(PyExc_ValueError, std::string(name_) + ".shape",
          std::to_string(view.rank) + " dimensions", "at most 4", "reshape it");
  }
  if (!dtype_of(view.type, spec_.dtype) || !fits()) {
    refuse_dtype(name_, text_of(view.type));
  }
  spec_.device = device_of(name_, view.device);
  spec_.rank = view.rank;
  std::int64_t dense = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    spec_.shape[i] = view.shape[i];
    spec_.strides[i] = view.strides != nullptr ? view.strides[i] : dense;
    dense *= view.shape[i];
  }
  data_ = static_cast<char*>(view.data) + view.byte_offset;
  set_alignment(spec_, data_);
}

// What flashlab._arrays calls a description: (address, shape, strides in bytes, dtype's name,
// read-only, CUDA ordinal or -1).
void Argument::take_description(nb::handle description) {
  const auto parts = nb::borrow<nb::tuple>(description);
  const auto shape = nb::borrow<nb::tuple>(parts[1]), strides = nb::borrow<nb::tuple>(parts[2]);
  const nb::str type_name(parts[3]);
  const std::string type = type_name.c_str();
  const auto rank = static_cast<int>(nb::len(shape));
  if (rank > TensorSpec::kMaxRank) {
    raise(PyExc_ValueError, std::string(name_) + ".shape", std::to_string(rank) + " dimensions",
          "at most 4", "reshape it");
  }
  if (!python::dtype_of(type.c_str(), spec_.dtype) || !fits()) {
    refuse_dtype(name_, type);
  }
  const auto size = static_cast<std::int64_t>(size_of(spec_.dtype));
  const auto ordinal = nb::cast<int>(parts[5]);
  spec_.device = ordinal < 0 ? Device{} : Device{DeviceKind::kCuda, ordinal};
  spec_.rank = rank;
  for (int i = 0; i < rank; ++i) {
    const std::int64_t bytes = integer(strides[i]);
    spec_.shape[i] = integer(shape[i]);
    spec_.strides[i] = bytes / size;
    opaque_ |= spec_.shape[i] > 1 && bytes % size != 0;
  }
  data_ = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(parts[0]));
  flags_ = nb::cast<bool>(parts[4]) ? dlpack::kReadOnly : 0;
  set_alignment(spec_, data_);
}

bool Argument::readable() const noexcept {
  if (opaque_) return false;
  for (int i = 0; i < spec_.rank; ++i) {
    if (spec_.shape[i] > 1 && spec_.strides[i] < 0) return false;
  }
  const int last = spec_.rank - 1;
  if (last >= 0 && spec_.shape[last] > 1 && spec_.strides[last] != 1) return false;
  return reinterpret_cast<std::uintptr_t>(data_) % size_of(spec_.dtype) == 0;
}

void Argument::make_readable(const Framework& framework) {
  if (!present_) return;
  if (spec_.elements() == 0) {
    // Nothing is read, and yet a broadcast innermost dimension would be refused.
    std::int64_t dense = 1;
    for (int i = spec_.rank - 1; i >= 0; --i) {
      spec_.strides[i] = dense;
      dense *= spec_.shape[i] > 1 ? spec_.shape[i] : 1;
    }
    return;
  }
  if (readable()) return;
  copy_ = framework.adapter.attr("dense")(array_);
  exported_.reset();
  read(framework, copy_);
}

void Argument::swap_heads() noexcept {
  if (!present_ || spec_.rank != 4) return;
  std::swap(spec_.shape[1], spec_.shape[2]);
  std::swap(spec_.strides[1], spec_.strides[2]);
}

Memory make_memory(const Framework& framework, nb::handle factory) {
  Memory memory;
  memory.array = nb::steal(PyObject_CallNoArgs(factory.ptr()));
  if (!memory.array.is_valid()) throw nb::python_error();
  dlpack::View view;
  if (framework.exchange != nullptr) {
    if (framework.exchange->export_view(memory.array.ptr(), &view) != 0) throw nb::python_error();
  } else {
    nb::object exported = framework.adapter.attr("export")(memory.array);
    if (PyTuple_Check(exported.ptr())) {
      memory.data =
          reinterpret_cast<void*>(nb::cast<std::uintptr_t>(nb::borrow<nb::tuple>(exported)[0]));
      return memory;
    }
    Exported opened = open_capsule("the result", exported);
    if ((opened.flags & dlpack::kCopied) != 0) {
      raise(PyExc_TypeError, "the result", "memory that its framework exports only as a copy",
            "memory that can be written", "convert the arguments, e.g. to numpy.ndarray");
    }
    view = opened.view;
    memory.exported = std::move(opened.owner);
  }
  memory.data = static_cast<char*>(view.data) + view.byte_offset;
  return memory;
}

}  // namespace flashlab::python
