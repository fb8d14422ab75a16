#include "attention_emulated_faults.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace flashlab::testing {

using cases::Case;
using device::Mutation;
using emulated::Edit;

Case rings() {
  Case out;
  out.name = "rings";
  out.batch = 1;
  out.heads_q = 8;
  out.heads_k = 4;
  out.seqlen_q = 130;
  out.seqlen_k = 520;
  out.head_dim = out.head_dim_v = 64;
  out.dtype = DType::kBf16;
  out.fill = cases::Fill::kGrowing;
  return out;
}

Case backward_rows() {
  Case out = rings();
  out.name = "backward rows";
  out.heads_q = 2;
  out.heads_k = 1;
  out.seqlen_k = 150;
  out.fill = cases::Fill::kNormal;
  out.lse_gradient = true;
  return out;
}

Case group() {
  Case out = rings();
  out.name = "group";
  out.heads_q = 2;
  out.heads_k = 1;
  out.seqlen_q = 300;
  out.seqlen_k = 130;
  out.head_dim = out.head_dim_v = 128;
  out.fill = cases::Fill::kNormal;
  return out;
}

Case groups() {
  Case out = group();
  out.name = "groups";
  out.batch = 2;
  out.seqlen_k = 250;
  return out;
}

Case wide_heads() {
  Case out = groups();
  out.name = "wide heads";
  out.seqlen_q = 350;
  out.seqlen_k = 330;
  out.head_dim = 192;
  out.head_dim_v = 136;
  out.causal = Causal::kTopLeft;
  return out;
}

bool plant_all() {
  return std::getenv("FLASHLAB_EMULATED") != nullptr;
}

std::string rejection(const Case& problem, const std::vector<Edit>& edits,
                      const char* implementation, Pass pass, Mutation fault) {
  emulated::Kernels kernels(edits);
  for (const std::string& each : kernels.problems()) ADD_FAILURE() << each;
  use_gpu({.multiprocessors = 1, .fault = fault, .faulty = pass, .kernels = &kernels});
  const Context context = emulated_context();
  lab::CheckOptions options;
  options.passes = {pass};
  options.repeat = pass == Pass::kForward;
  options.memory = emulated_memory();
  return lab::check_case(context, *lab::CaseTruth::create(problem, options), implementation,
                         options)
      .failure();
}

void expect_seen(const std::string& name, const std::string& seen) {
  EXPECT_NE(seen, "") << name << ": nobody noticed";
  if (plant_all()) fmt::print("{}: {}\n", name, seen);
}

void expect_all_are_seen(const char* implementation, Pass pass, const std::vector<Planted>& list) {
  std::set<std::string> accepted;
  for (const Planted& each : list) {
    if (!each.always && !plant_all()) continue;
    const Case problem = each.problem();
    if (accepted.insert(problem.name).second) {
      EXPECT_EQ(rejection(problem, {}, implementation, pass), "");
    }
    expect_seen(each.name, rejection(problem, each.edits, implementation, pass));
  }
}

}  // namespace flashlab::testing
