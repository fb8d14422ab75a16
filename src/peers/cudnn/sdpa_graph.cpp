#include "peers/cudnn/sdpa_graph.h"

#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <vector>

#include "runtime/library/library.h"
#include "runtime/library/nvidia_libraries.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the front end looks its functions up here
}

namespace flashlab::peers {
namespace {

namespace fe = cudnn_frontend;
using Attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

// cuDNN's handle of this process. A handle has one stream at a time.
struct Library {
  cudnnHandle_t handle = nullptr;
  std::mutex mutex;
};

Result<Library*> open_library() {
  const cuda::NvidiaLibrary wanted = cuda::cudnn_library();
  // The front end opens the CUDA runtime by its soname: it must be loaded by then.
  auto runtime_paths = cuda::toolkit_paths("libcudart.so.1[2-9]");
  runtime_paths.insert(runtime_paths.begin(), {"libcudart.so.13", "libcudart.so.12"});
  if (auto runtime = cuda::Library::open("CUDA runtime", runtime_paths, wanted.remedy);
      !runtime.ok()) {
    return runtime.status();
  }
  auto cudnn = cuda::Library::open("cuDNN", wanted.candidates(), wanted.remedy);
  if (!cudnn.ok()) return cudnn.status();
  fe::cudnn_dlhandle = cudnn->handle();
  static Library library;
  if (fe::detail::create_handle(&library.handle) != CUDNN_STATUS_SUCCESS) {
    return Status(StatusCode::kDeviceError,
                  {"cudnnCreate", "a failure", "a handle", wanted.remedy});
  }
  return &library;
}

Result<Library*> the_library() {
  static const Result<Library*> opened = open_library();
  return opened;
}

fe::DataType_t type_of(DType dtype) {
  if (dtype == DType::kFp16) return fe::DataType_t::HALF;
  return dtype == DType::kBf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::FLOAT;
}

// [batch, seqlen, heads, dim] as cuDNN names it: batch, heads, seqlen, dim.
void lay_out(fe::graph::Tensor_attributes& out, SdpaTensor which, const TensorSpec& spec) {
  const auto &e = spec.shape, &s = spec.strides;
  // An extent of one has no stride here, and cuDNN wants one all the same.
  const auto stride = [&](std::size_t i, std::int64_t packed) { return e[i] > 1 ? s[i] : packed; };
  const std::int64_t head = stride(2, e[3]), row = stride(1, e[2] * e[3]);
  out.set_uid(static_cast<std::int64_t>(which))
      .set_dim({e[0], e[2], e[1], e[3]})
      .set_stride({stride(0, e[1] * e[2] * e[3]), head, row, 1})
      .set_data_type(type_of(spec.dtype));
}

// [batch, heads, seqlen] with a last extent of one.
void lay_out_statistics(fe::graph::Tensor_attributes& out, const TensorSpec& spec) {
  const auto &e = spec.shape, &s = spec.strides;
  const auto stride = [&](std::size_t i, std::int64_t packed) { return e[i] > 1 ? s[i] : packed; };
  out.set_uid(static_cast<std::int64_t>(SdpaTensor::kStatistics))
      .set_dim({e[0], e[1], e[2], 1})
      .set_stride({stride(0, e[1] * e[2]), stride(1, e[2]), 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

class Graph final : public SdpaGraph {
 public:
  explicit Graph(Library& library) : library_(library) {}

  Status build_from(const Problem& p, const internal::Geometry& g) {
    graph_.set_io_data_type(type_of(g.dtype))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const Attributes q = input(SdpaTensor::kQ, p.q), k = input(SdpaTensor::kK, p.k),
                     v = input(SdpaTensor::kV, p.v);
    if (p.pass == Pass::kForward) {
      fe::graph::SDPA_attributes options;
      options.set_generate_stats(p.lse.has_value()).set_attn_scale(static_cast<float>(g.scale));
      set_causal(options, p.options.causal);
      auto [o, statistics] = graph_.sdpa(q, k, v, options);
      output(*o, SdpaTensor::kO, p.o);
      if (p.lse) {
        statistics->set_output(true);
        lay_out_statistics(*statistics, *p.lse);
      }
    } else {
      const Attributes o = input(SdpaTensor::kO, p.o), d_o = input(SdpaTensor::kGradO, *p.d_o);
      fe::graph::Tensor_attributes attributes;
      lay_out_statistics(attributes, *p.lse);
      const Attributes statistics = graph_.tensor(attributes);
      fe::graph::SDPA_backward_attributes options;
      options.set_attn_scale(static_cast<float>(g.scale))
          .set_deterministic_algorithm(p.options.deterministic);
      set_causal(options, p.options.causal);
      auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, o, d_o, statistics, options);
      output(*dq, SdpaTensor::kGradQ, *p.dq);
      output(*dk, SdpaTensor::kGradK, *p.dk);
      output(*dv, SdpaTensor::kGradV, *p.dv);
    }
    std::lock_guard lock(library_.mutex);
    if (auto built = graph_.build(library_.handle, {fe::HeurMode_t::A}); built.is_bad()) {
      return Status::unsupported({"cudnn", built.get_message(), "a problem that cuDNN takes",
                                  "use another implementation"});
    }
    std::int64_t bytes = 0;
    if (auto asked = graph_.get_workspace_size(bytes); asked.is_bad()) {
      return Status(StatusCode::kInternal, {"cudnn", asked.get_message(), "a size", ""});
    }
    workspace_bytes_ = static_cast<std::size_t>(bytes);
    return {};
  }

  std::size_t workspace_bytes() const override { return workspace_bytes_; }

  Status run(cuda::CUstream stream, const SdpaPointers& pointers, void* workspace) const override {
    std::unordered_map<std::int64_t, void*> pack;
    for (const auto& [which, pointer] : pointers) {
      if (pointer != nullptr) pack[static_cast<std::int64_t>(which)] = pointer;
    }
    std::lock_guard lock(library_.mutex);
    fe::detail::set_stream(library_.handle, reinterpret_cast<cudaStream_t>(stream));
    auto done = graph_.execute(library_.handle, pack, workspace);
    if (done.is_good()) return {};
    return Status(StatusCode::kDeviceError, {"cudnn", done.get_message(), "success", ""});
  }

  std::string version() const override {
    const std::size_t number = fe::detail::get_backend_version();
    return fmt::format("cuDNN {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  }

 private:
  Attributes input(SdpaTensor which, const TensorSpec& spec) {
    fe::graph::Tensor_attributes attributes;
    lay_out(attributes, which, spec);
    return graph_.tensor(attributes);
  }
  static void output(fe::graph::Tensor_attributes& out, SdpaTensor which, const TensorSpec& spec) {
    lay_out(out, which, spec);
    out.set_output(true);
  }
  template <class Options>
  static void set_causal(Options& options, Causal causal) {
    if (causal == Causal::kTopLeft) options.set_causal_mask(true);
    if (causal == Causal::kBottomRight) options.set_causal_mask_bottom_right(true);
  }

  Library& library_;
  mutable fe::graph::Graph graph_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<SdpaGraph>> SdpaGraph::build(const Problem& problem,
                                                    const internal::Geometry& geometry) {
  try {
    auto library = the_library();
    if (!library.ok()) return library.status();
    auto graph = std::make_unique<Graph>(**library);
    if (Status s = graph->build_from(problem, geometry); !s.ok()) return s;
    return std::unique_ptr<SdpaGraph>(std::move(graph));
  } catch (const std::exception& error) {  // the front end reports what it cannot load by throwing
    return Status::unsupported({"cudnn", error.what(), "a working cuDNN", wanted.remedy});
  }
}

}  // namespace flashlab::peers
