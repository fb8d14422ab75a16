#include "ranks.h"

#include <nanobind/stl/string.h>

#include "arrays.h"
#include "dist/start/join.h"
#include "errors.h"

namespace flashlab::python {
namespace {

using runtime::Collective;

Collective kind_of(const std::string& name) {
  for (const Collective kind :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
        Collective::kAllToAll, Collective::kBroadcast}) {
    if (name == runtime::to_string(kind)) return kind;
  }
  return Collective::kBarrier;
}

}  // namespace

Ranks::Ranks(const std::string& group, const std::string& transport, double timeout_s) {
  const Result<dist::World> world = dist::world_of();
  if (!world.ok()) raise(world.status());
  world_ = *world;
  Result<std::unique_ptr<runtime::Communicator>> made = [&] {
    const nb::gil_scoped_release others_run;
    return dist::join(world_, {.group = group, .transport = transport, .timeout_s = timeout_s});
  }();
  if (!made.ok()) raise(made.status());
  communicator_ = std::move(made).value();
  transport_ = communicator_->transport();
}

void Ranks::close() {
  const nb::gil_scoped_release others_run;
  const std::lock_guard lock(one_at_a_time_);
  communicator_.reset();
}

void Ranks::run(const std::string& kind, std::uintptr_t from, std::uintptr_t to, std::size_t bytes,
                const std::string& dtype, int root, const std::string& name) {
  runtime::CollectiveCall call;
  call.kind = kind_of(kind);
  call.from = reinterpret_cast<const void*>(from);
  call.to = reinterpret_cast<void*>(to);
  call.bytes = bytes;
  call.root = root;
  call.name = name;
  if (!dtype_of(dtype.c_str(), call.dtype)) {
    raise(PyExc_TypeError, "array", dtype, "float64, float32, float16 or bfloat16", "");
  }
  const Status done = [&] {
    const nb::gil_scoped_release others_run;
    const std::lock_guard lock(one_at_a_time_);
    if (communicator_ == nullptr) {
      return Status::invalid({"communicator", "one that was closed", "an open one", ""});
    }
    return communicator_->run(call);
  }();
  require(done);
}

void define_ranks(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Ranks>(module, "Ranks", "What flashlab.Communicator calls, by addresses.")
      .def(nb::init<const std::string&, const std::string&, double>(), "group"_a, "transport"_a,
           "timeout_s"_a)
      .def_prop_ro("rank", &Ranks::rank)
      .def_prop_ro("size", &Ranks::size)
      .def_prop_ro("host", &Ranks::host)
      .def_prop_ro("transport", &Ranks::transport)
      .def("run", &Ranks::run, "kind"_a, "source"_a, "to"_a, "bytes"_a, "dtype"_a, "root"_a,
           "name"_a)
      .def("close", &Ranks::close);
}

}  // namespace flashlab::python
