#pragma once

// What runs: steps over named buffers, on the streams of one or several devices. A program is data
// that prints itself; it can be made for a device that is only described. Executors run it.
// README.md shows how a planner appends a step.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "flashlab/status.h"
#include "flashlab/tensor.h"
#include "runtime/communicator/communicator.h"
#include "runtime/kernel_store/kernel.h"
#include "runtime/products/product.h"
#include "runtime/program/parameters.h"

namespace flashlab::runtime {

/// A tensor of the call, or a region of the workspace of one of the program's devices.
struct Buffer {
  std::string name;
  std::size_t bytes = 0;
  bool external = false;
  int slot = 0;                  ///< external: which address of the call
  int device = 0;                ///< region: in whose workspace
  std::size_t offset_bytes = 0;  ///< region: where in it, a multiple of 256
};

struct KernelWork {
  cuda::KernelSpec spec;
  cuda::LaunchShape shape;
  ParameterBlock parameters;
};
struct MemsetWork {
  Place target;
  std::size_t bytes = 0;
  unsigned char value = 0;
};
struct CopyWork {
  Place to, from;
  std::size_t bytes = 0;
};
struct ProductWork {
  Product product;
  Place a, b, c;
  Place scratch;      ///< CublasLt::kWorkspaceBytes
  Place addend = {};  ///< what beta multiplies, laid out as c; without a buffer: c itself
  Place bias = {};    ///< of epilogues with one: [n] of c's type
  Place aux = {};     ///< of epilogues with one: laid out as c
};
/// A function on the host that gets the addresses of `places`. It must not call CUDA. Its failure
/// ends a call on a processor; behind a GPU's stream it is what the executor's next call returns.
struct HostWork {
  std::function<Status(std::span<void* const>)> function;
  std::vector<Place> places;
};
/// What all ranks of a group do together; `bytes` as CollectiveCall has them. Steps of one group
/// are on one stream: ranks meet in one order.
struct CollectiveWork {
  Collective kind = Collective::kBarrier;
  Place from, to;  ///< without a buffer: a barrier's
  std::size_t bytes = 0;
  DType dtype = DType::kFp32;
  int root = 0;
  int group = 0;  ///< which of the call's
};
using Work = std::variant<KernelWork, MemsetWork, CopyWork, ProductWork, HostWork, CollectiveWork>;

/// One step. Steps of a stream run in their order; what a step needs from other streams it names.
struct Step {
  std::string name{};           ///< for people and profilers
  std::string scope{};          ///< for profilers, around the name: "forward / layer 0 / attention"
  std::string configuration{};  ///< one line for `explain`
  Work work{};
  int stream = 0;                 ///< index of one of the program's streams
  std::vector<int> depends_on{};  ///< indices of earlier steps
};

/// What a call brings. Lengths are those the program asks for.
struct Call {
  std::span<void* const> tensors{};     ///< addresses of the external buffers, by slot
  std::span<void* const> workspaces{};  ///< one per device, 256-byte aligned; null if it needs none
  /// One per stream of the program. The program starts after what was enqueued on the first one,
  /// and when that one goes on, all of the program has run.
  std::span<const Stream> streams{};
  /// A call may bring fewer than parameters name: the others stay as planned.
  std::span<const std::uint64_t> scalars{};
  std::span<Communicator* const> groups{};  ///< of the collectives
  /// Memory of the host that the GPU writes to as it enters the program's collective i (2 i + 1)
  /// and as it leaves it (2 i + 2); null: nobody asks.
  std::uint32_t* progress = nullptr;
};

class Program {
 public:
  /// Adds a tensor of the call; its slot is the number of those before it. Returns its buffer.
  int add_tensor(std::string name);
  /// Adds a 256-byte aligned region to the workspace of a device. Returns its buffer.
  int add_region(std::string name, std::size_t bytes, int device = 0);
  /// Adds a stream on a device. The first one is there from the start, on device 0.
  int add_stream(int device);
  /// Steps that are added from here on without a scope have this one.
  void set_scope(std::string scope) { scope_ = std::move(scope); }
  /// Steps that are added from here on without a stream are on this one; the first of them waits
  /// for `depends_on`, too.
  void set_stream(int stream, std::vector<int> depends_on) {
    stream_ = stream;
    depends_on_ = std::move(depends_on);
  }
  /// Adds a step after those there are. Returns its index.
  int add(Step step);
  /// Adds the steps of another program of one stream from step `from` on, which become steps of
  /// the stream that is set; `places[i]` is where its buffer i lies here. Its scalars keep their
  /// numbers.
  void append(const Program& other, std::span<const Place> places, std::size_t from = 0);

  const std::vector<Buffer>& buffers() const noexcept { return buffers_; }
  const std::vector<Step>& steps() const noexcept { return steps_; }
  /// The device of each stream.
  const std::vector<int>& streams() const noexcept { return streams_; }
  int devices() const noexcept { return static_cast<int>(workspace_bytes_.size()); }
  int tensors() const noexcept { return tensors_; }
  std::size_t workspace_bytes(int device = 0) const;
  int device_of(const Step& step) const { return streams_[static_cast<std::size_t>(step.stream)]; }

  void* address(const Call& call, Place place) const {
    const Buffer& buffer = buffers_[static_cast<std::size_t>(place.buffer)];
    void* base = buffer.external ? call.tensors[static_cast<std::size_t>(buffer.slot)]
                                 : call.workspaces[static_cast<std::size_t>(buffer.device)];
    return static_cast<char*>(base) + static_cast<std::int64_t>(buffer.offset_bytes) +
           place.offset_bytes;
  }

  /// The steps that are kernels, in order.
  struct NamedKernel {
    const Step* step;
    const KernelWork* kernel;
  };
  std::vector<NamedKernel> kernels() const;

  /// Errors: kInternal for a step that names a buffer, stream or step that is not there or later,
  /// a patch outside its parameter block, a call that lacks what the program asks for.
  Status check() const;
  Status check(const Call& call) const;

  /// A line per stream, buffer and step.
  std::string to_string() const;

 private:
  std::vector<Buffer> buffers_;
  std::vector<Step> steps_;
  std::vector<int> streams_{0};
  std::vector<std::size_t> workspace_bytes_{0};
  int tensors_ = 0;
  std::size_t groups_ = 0;
  std::string scope_;
  int stream_ = 0;
  std::vector<int> depends_on_;
};

/// "grid 4 x 1 x 1 · 128 threads · 0 shared bytes", and what attributes there are.
std::string to_string(const cuda::LaunchShape& shape);
/// "kernel · grid 4 x 1 x 1 · 128 threads · 0 shared bytes", "memset of 64 bytes", ...
std::string describe(const Work& work);

}  // namespace flashlab::runtime
