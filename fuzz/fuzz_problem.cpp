// Problems of every kind against the API. Nonsense must be refused with a message and nothing
// written; whatever is accepted must run within its memory and agree with the fp64 reference.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "bytes.h"
#include "flashlab/flashlab.h"
#include "problem_maker.h"

namespace flashlab::fuzz {
namespace {

void check_refusal(const Status& status) {
  if (status.code() == StatusCode::kInternal)
    finding("an internal error", status.message().c_str());
  if (status.message().size() < 10) finding("a refusal without a message");
  if (status.detail().argument.empty()) finding("a refusal names no argument");
}

const Context& context(int choice) {
  const auto make = [](int threads, CpuIsa isa) {
    auto made = Context::create({.threads = threads, .cpu_isa = isa});
    if (!made.ok()) finding("no context", made.status().message().c_str());
    return std::move(*made);
  };
  static const Context one = make(1, CpuIsa::kAutomatic);
  static const Context three = make(3, CpuIsa::kAutomatic);
  static const Context scalar = make(2, CpuIsa::kScalar);
  static const Context avx2 =
      make(2, supported(CpuIsa::kAvx2) ? CpuIsa::kAvx2 : CpuIsa::kAutomatic);
  const Context* all[] = {&one, &three, &scalar, &avx2};
  return *all[choice & 3];
}

void plan_anything(const Context& where, Bytes& bytes) {
  const auto made = plan(where, make_wild_problem(bytes));
  if (!made.ok()) return check_refusal(made.status());
  if (made->to_string().empty() || made->steps().empty()) finding("a plan that says nothing");
}

double tolerance(DType type) {
  switch (type) {
    case DType::kFp64:
      return 1e-9;
    case DType::kFp32:
      return 2e-4;
    case DType::kFp16:
      return 0.02;
    default:
      return 0.15;
  }
}

// Wide on purpose: a wrong index or a dropped tile shows at any tolerance, and what rounding may
// cost is the conformance tests' business.
void compare(const char* name, const Buffer& got, const Buffer& expected, DType dtype) {
  double largest = 0;
  expected.for_each([&](const std::int64_t* i) {
    if (std::isfinite(expected.at(i))) largest = std::max(largest, std::fabs(expected.at(i)));
  });
  const double allowed = tolerance(dtype) * (1 + largest);
  expected.for_each([&](const std::int64_t* i) {
    const double want = expected.at(i), have = got.at(i);
    if (want == have || (std::isnan(want) && std::isnan(have))) return;
    if (!(std::fabs(want - have) <= allowed)) {
      const std::string text = std::string(name) +
                               " differs from the reference: " + std::to_string(have) +
                               " instead of " + std::to_string(want);
      finding(text.c_str());
    }
  });
}

// One implementation's forward; outputs untouched when it refuses.
bool run_forward(const Context& where, Made& m) {
  const Made before = m.copy();
  const Status status = forward(where, {}, m.forward(), m.options);
  if (status.ok()) return true;
  check_refusal(status);
  if (!m.o.same_bytes(before.o) || !m.lse.same_bytes(before.lse)) finding("a refusal wrote");
  return false;
}

bool run_backward(const Context& where, Made& m) {
  const Made before = m.copy();
  const Status status = backward(where, {}, m.backward(), m.options);
  if (status.ok()) return true;
  check_refusal(status);
  if (!m.dq.same_bytes(before.dq) || !m.dk.same_bytes(before.dk) || !m.dv.same_bytes(before.dv)) {
    finding("a refusal wrote");
  }
  return false;
}

void run_everything(const Context& where, Bytes& bytes) {
  Made reference = make_problem(bytes);
  reference.options.implementation = "reference";
  const TileOptions tiles = std::exchange(reference.options.tiles, TileOptions{});
  const DType dtype = reference.q.tensor().spec.dtype;
  Made start = reference.copy();
  if (!run_forward(where, reference)) {
    // What make_problem makes is well-formed, but for one choice, and for offsets and lengths.
    if (reference.options.causal == Causal::kCausal || reference.has_lengths()) return;
    finding("a well-formed problem was refused:",
            forward(where, {}, reference.forward(), reference.options).message().c_str());
  }
  // Backward starts from the reference's o and lse everywhere, so that errors do not add up.
  start.o = reference.o.copy();
  start.lse = reference.lse.copy();
  const Made fresh = start.copy();
  const bool with_backward = run_backward(where, reference);

  for (const std::string& name : implementations({})) {
    Made m = fresh.copy();
    m.options.implementation = name;
    m.options.tiles = tiles;
    if (run_forward(where, m)) {
      compare((name + " o").c_str(), m.o, reference.o, dtype);
      compare((name + " lse").c_str(), m.lse, reference.lse, DType::kFp32);
    }
    m.o = reference.o.copy();
    m.lse = reference.lse.copy();
    if (with_backward && run_backward(where, m)) {
      compare((name + " dq").c_str(), m.dq, reference.dq, dtype);
      compare((name + " dk").c_str(), m.dk, reference.dk, dtype);
      compare((name + " dv").c_str(), m.dv, reference.dv, dtype);
    }
  }
}

}  // namespace
}  // namespace flashlab::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  flashlab::fuzz::Bytes bytes(data, size);
  const int choice = bytes.byte();
  const auto& where = flashlab::fuzz::context(choice);
  if ((choice & 4) != 0) {
    flashlab::fuzz::plan_anything(where, bytes);
  } else {
    flashlab::fuzz::run_everything(where, bytes);
  }
  return 0;
}
