#include "runtime/program/program.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashlab::runtime {
namespace {

constexpr std::size_t kRegionAlignment = 256;

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

Status broken(std::string what, std::string got, std::string expected) {
  return Status(StatusCode::kInternal,
                {"program: " + what, std::move(got), std::move(expected), ""});
}

std::string shape_of(const Matrix& matrix, std::int64_t rows, std::int64_t columns) {
  return fmt::format("{}{} {} x {}", matrix.transposed ? "transposed " : "",
                     to_string(matrix.dtype), rows, columns);
}

// Every place that a step reads or writes.
std::vector<Place> places_of(const Work& work) {
  return std::visit(Overloaded{[](const KernelWork& w) {
                                 std::vector<Place> out;
                                 for (const auto& each : w.parameters.pointers())
                                   out.push_back(each.place);
                                 for (const auto& each : w.parameters.tensor_maps())
                                   out.push_back(each.place);
                                 return out;
                               },
                               [](const MemsetWork& w) { return std::vector{w.target}; },
                               [](const CopyWork& w) {
                                 return std::vector{w.to, w.from};
                               },
                               [](const ProductWork& w) {
                                 std::vector<Place> out{w.a, w.b, w.c};
                                 for (const Place& each : {w.scratch, w.addend, w.bias, w.aux}) {
                                   if (each.buffer >= 0) out.push_back(each);
                                 }
                                 return out;
                               },
                               [](const HostWork& w) { return w.places; },
                               [](const CollectiveWork& w) {
                                 std::vector<Place> out;
                                 for (const Place& each : {w.from, w.to}) {
                                   if (each.buffer >= 0) out.push_back(each);
                                 }
                                 return out;
                               }},
                    work);
}

Status check_patches(const ParameterBlock& block) {
  const std::size_t size = block.bytes().size();
  bool inside = true;
  for (const auto& each : block.pointers()) inside = inside && each.offset + 8 <= size;
  for (const auto& each : block.scalars()) {
    inside = inside && each.bytes <= 8 && each.offset + each.bytes <= size;
  }
  for (const auto& each : block.tensor_maps()) {
    inside = inside && each.offset % ParameterBlock::kAlignment == 0 &&
             each.offset + ParameterBlock::kTensorMapBytes <= size;
  }
  if (inside) return {};
  return broken("parameter block", "a patch outside it, or a tensor map not 64-byte aligned",
                fmt::format("patches within {} bytes", size));
}

}  // namespace

int Program::add_tensor(std::string name) {
  buffers_.push_back({.name = std::move(name), .external = true, .slot = tensors_++});
  return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_region(std::string name, std::size_t bytes, int device) {
  const auto index = static_cast<std::size_t>(device);
  if (workspace_bytes_.size() <= index) workspace_bytes_.resize(index + 1);
  std::size_t& end = workspace_bytes_[index];
  buffers_.push_back(
      {.name = std::move(name), .bytes = bytes, .device = device, .offset_bytes = end});
  // Saturates instead of wrapping: an absurd workspace must fail in the allocator, not look small.
  const std::size_t rounded =
      bytes > SIZE_MAX - kRegionAlignment
          ? SIZE_MAX
          : (bytes + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment;
  end = end > SIZE_MAX - rounded ? SIZE_MAX : end + rounded;
  return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_stream(int device) {
  const auto index = static_cast<std::size_t>(device);
  if (workspace_bytes_.size() <= index) workspace_bytes_.resize(index + 1);
  streams_.push_back(device);
  return static_cast<int>(streams_.size()) - 1;
}

int Program::add(Step step) {
  if (step.scope.empty()) step.scope = scope_;
  if (step.stream == 0) step.stream = stream_;
  step.depends_on.insert(step.depends_on.end(), depends_on_.begin(), depends_on_.end());
  depends_on_.clear();
  if (const auto* work = std::get_if<CollectiveWork>(&step.work)) {
    groups_ = std::max(groups_, static_cast<std::size_t>(work->group) + 1);
  }
  steps_.push_back(std::move(step));
  return static_cast<int>(steps_.size()) - 1;
}

void Program::append(const Program& other, std::span<const Place> places, std::size_t from) {
  const auto moved = [&](Place place) -> Place {
    if (place.buffer < 0) return place;
    const Place& base = places[static_cast<std::size_t>(place.buffer)];
    return {base.buffer, base.offset_bytes + place.offset_bytes};
  };
  const int first = static_cast<int>(steps_.size()) - static_cast<int>(from);
  for (std::size_t i = from; i < other.steps().size(); ++i) {
    Step step = other.steps()[i];
    std::erase_if(step.depends_on, [&](int earlier) { return earlier < static_cast<int>(from); });
    for (int& earlier : step.depends_on) earlier += first;
    std::visit(
        Overloaded{
            [&](KernelWork& w) { w.parameters.move(moved); },
            [&](MemsetWork& w) { w.target = moved(w.target); },
            [&](CopyWork& w) { w.to = moved(w.to), w.from = moved(w.from); },
            [&](ProductWork& w) {
              for (Place* each : {&w.a, &w.b, &w.c, &w.scratch, &w.addend, &w.bias, &w.aux}) {
                *each = moved(*each);
              }
            },
            [&](HostWork& w) {
              for (Place& each : w.places) each = moved(each);
            },
            [&](CollectiveWork& w) { w.to = moved(w.to), w.from = moved(w.from); }},
        step.work);
    add(std::move(step));
  }
}

std::size_t Program::workspace_bytes(int device) const {
  return workspace_bytes_[static_cast<std::size_t>(device)];
}

std::vector<Program::NamedKernel> Program::kernels() const {
  std::vector<NamedKernel> out;
  for (const Step& step : steps_) {
    if (const auto* kernel = std::get_if<KernelWork>(&step.work)) out.push_back({&step, kernel});
  }
  return out;
}

Status Program::check() const {
  const auto in = [](int index, std::size_t size) {
    return index >= 0 && static_cast<std::size_t>(index) < size;
  };
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    const std::string name = fmt::format("step {} '{}'", i, step.name);
    if (!in(step.stream, streams_.size())) {
      return broken(name, fmt::format("stream {}", step.stream), "one of the program's streams");
    }
    for (const int earlier : step.depends_on) {
      if (!in(earlier, i)) {
        return broken(name, fmt::format("depends on step {}", earlier), "an earlier step");
      }
    }
    for (const Place& place : places_of(step.work)) {
      if (!in(place.buffer, buffers_.size())) {
        return broken(name, fmt::format("buffer {}", place.buffer), "one of the program's buffers");
      }
    }
    if (const auto* kernel = std::get_if<KernelWork>(&step.work)) {
      if (Status s = check_patches(kernel->parameters); !s.ok()) return s;
    }
  }
  return {};
}

Status Program::check(const Call& call) const {
  if (call.tensors.size() < static_cast<std::size_t>(tensors_)) {
    return broken("tensors of the call", fmt::format("{}", call.tensors.size()),
                  fmt::format("{}", tensors_));
  }
  if (call.streams.size() < streams_.size()) {
    return broken("streams of the call", fmt::format("{}", call.streams.size()),
                  fmt::format("{}", streams_.size()));
  }
  if (call.groups.size() < groups_) {
    return broken("groups of the call", fmt::format("{}", call.groups.size()),
                  fmt::format("{}", groups_));
  }
  for (std::size_t i = 0; i < workspace_bytes_.size(); ++i) {
    if (workspace_bytes_[i] == 0) continue;
    if (call.workspaces.size() <= i || call.workspaces[i] == nullptr) {
      return broken(fmt::format("workspace of device {}", i), "none",
                    fmt::format("{} bytes", workspace_bytes_[i]));
    }
  }
  return {};
}

std::string to_string(const cuda::LaunchShape& s) {
  std::string text = fmt::format("grid {} x {} x {} · {} threads · {} shared bytes", s.grid_x,
                                 s.grid_y, s.grid_z, s.threads, s.shared_bytes);
  if (s.cluster_x * s.cluster_y * s.cluster_z > 1) {
    text += fmt::format(" · cluster {} x {} x {}", s.cluster_x, s.cluster_y, s.cluster_z);
  }
  if (s.cooperative) text += " · cooperative";
  if (s.programmatic) text += " · programmatic launch";
  if (s.staying) text += " · staying";
  return text;
}

std::string describe(const Work& work) {
  return std::visit(
      Overloaded{[](const KernelWork& w) { return "kernel · " + runtime::to_string(w.shape); },
                 [](const MemsetWork& w) {
                   return fmt::format("memset of {} bytes to {}", w.bytes, w.value);
                 },
                 [](const CopyWork& w) { return fmt::format("copy of {} bytes", w.bytes); },
                 [](const ProductWork& w) {
                   const Product& p = w.product;
                   return fmt::format("{} products of {} and {}", p.batch, shape_of(p.a, p.m, p.k),
                                      shape_of(p.b, p.k, p.n));
                 },
                 [](const HostWork&) { return std::string("host function"); },
                 [](const CollectiveWork& w) {
                   return fmt::format("{} of {} bytes of {} in group {}",
                                      runtime::to_string(w.kind), w.bytes,
                                      flashlab::to_string(w.dtype), w.group);
                 }},
      work);
}

std::string Program::to_string() const {
  std::string text;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    text += fmt::format("stream {}  device {}\n", i, streams_[i]);
  }
  for (const Buffer& buffer : buffers_) {
    text += buffer.external ? fmt::format("tensor {}  {}\n", buffer.slot, buffer.name)
                            : fmt::format("region  {}  {} bytes at {} of device {}\n", buffer.name,
                                          buffer.bytes, buffer.offset_bytes, buffer.device);
  }
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    text +=
        fmt::format("step {}  {}  stream {}  {}", i, step.name, step.stream, describe(step.work));
    if (!step.configuration.empty()) text += " · " + step.configuration;
    for (std::size_t n = 0; n < step.depends_on.size(); ++n) {
      text += fmt::format("{} {}", n == 0 ? "  after" : ",", step.depends_on[n]);
    }
    text += "\n";
  }
  return text;
}

}  // namespace flashlab::runtime
