// Families of problems over which people plot: one name, many cases.

#include <fmt/format.h>

#include <utility>

#include "case.h"

namespace flashlab::cases {
namespace {

const std::vector<Pass> kBothPasses = {Pass::kForward, Pass::kBackward};

Case square(std::int64_t batch, std::int64_t heads, std::int64_t head_dim, std::int64_t seqlen) {
  Case out;
  out.batch = batch;
  out.heads_q = out.heads_k = heads;
  out.head_dim = out.head_dim_v = head_dim;
  out.seqlen_q = out.seqlen_k = seqlen;
  return out;
}

void add(Sweep& sweep, Case problem) {
  problem.name = fmt::format("{} {}", sweep.name, problem.describe());
  sweep.cases.push_back(std::move(problem));
}

Sweep notebook() {
  Sweep out{
      "notebook", "batch 8, one head, head dims 16..128, lengths 256..16384", {}, kBothPasses};
  for (std::int64_t d : {16, 32, 64, 128}) {
    for (std::int64_t s : {256, 1024, 4096, 8192, 16384}) add(out, square(8, 1, d, s));
  }
  return out;
}

Sweep handout() {
  Sweep out{"handout",
            "batch 1, one head, causal, lengths 128..65536, head dims 16..128, two types",
            {},
            kBothPasses};
  for (DType dtype : {DType::kBf16, DType::kFp32}) {
    for (std::int64_t d = 16; d <= 128; d *= 2) {
      for (std::int64_t s = 128; s <= 65536; s *= 2) {
        Case problem = square(1, 1, d, s);
        problem.causal = Causal::kTopLeft;
        problem.dtype = dtype;
        add(out, problem);
      }
    }
  }
  return out;
}

Sweep papers() {
  Sweep out{"papers",
            "16384 tokens, hidden size 2048, head dims 64 128 256, lengths 512..16384, "
            "with and without causal",
            {},
            kBothPasses};
  for (Causal causal : {Causal::kNone, Causal::kTopLeft}) {
    for (std::int64_t d : {64, 128, 256}) {
      for (std::int64_t s = 512; s <= 16384; s *= 2) {
        Case problem = square(16384 / s, 2048 / d, d, s);
        problem.causal = causal;
        problem.dtype = DType::kBf16;
        add(out, problem);
      }
    }
  }
  return out;
}

Sweep course() {
  Sweep out{"course", "batch 16, 12 heads of 64, causal, lengths 512..4096", {}, kBothPasses};
  for (std::int64_t s : {512, 1024, 2048, 4096}) {
    Case problem = square(16, 12, 64, s);
    problem.causal = Causal::kTopLeft;
    add(out, problem);
  }
  return out;
}

Sweep ragged() {
  Sweep out{
      "ragged",
      "16384 tokens of each mix of lengths, 16 heads of 128, 32 of 64, 32 of 128 over 8, with "
      "and without causal",
      {},
      kBothPasses};
  struct Heads {
    std::int64_t heads_q, heads_k, head_dim;
  };
  for (const Heads& heads : {Heads{16, 16, 128}, Heads{32, 32, 64}, Heads{32, 8, 128}}) {
    for (Causal causal : {Causal::kNone, Causal::kBottomRight}) {
      for (const std::string& mix : length_mixes()) {
        Case problem = square(1, heads.heads_q, heads.head_dim, 1);
        problem.heads_k = heads.heads_k;
        problem.causal = causal;
        problem.dtype = DType::kBf16;
        set_lengths(problem, mix);
        add(out, problem);
      }
    }
  }
  return out;
}

Case grouped(std::int64_t batch, std::int64_t queries) {
  Case out = square(batch, 32, 128, queries);
  out.heads_k = 8;
  out.causal = Causal::kBottomRight;
  out.dtype = DType::kBf16;
  return out;
}

Sweep decode() {
  Sweep out{"decode",
            "one query of 32 heads of 128 over 8 against caches of 8k to 128k, alone, 8 and 64 at "
            "once, and 64 of 1 to 16k; in pages of 64 and contiguous",
            {},
            {Pass::kForward}};
  struct Caches {
    std::int64_t batch, keys;
  };
  constexpr Caches kCaches[] = {{1, 8192},  {1, 32768},  {1, 131072}, {8, 8192},
                                {8, 32768}, {8, 131072}, {64, 32768}};
  for (const std::int64_t page_size : {64, 0}) {
    for (const Caches& caches : kCaches) {
      Case problem = grouped(caches.batch, 1);
      problem.seqlen_k = caches.keys;
      problem.set_cache(page_size);
      add(out, problem);
    }
    Case drawn = grouped(64, 1);
    set_key_lengths(drawn, "any");
    drawn.set_cache(page_size, 16384);
    add(out, drawn);
  }
  return out;
}

// The case that was added last, over those at `over`.
void compare_last(Sweep& sweep, std::string what, std::vector<std::size_t> over) {
  sweep.ratios.push_back({std::move(what), sweep.cases.size() - 1, std::move(over)});
}

Sweep equal() {
  Sweep out{"equal",
            "ragged batches of one length beside dense calls: 16384 tokens of 2k to 8k, head dims "
            "64 and 128, with and without causal; 8192 sequences of 34; a thousand empty ones more",
            {},
            kBothPasses};
  // Gives the place of the ragged one.
  const auto pair = [&out](Case problem, const std::string& list) {
    problem.dtype = DType::kBf16;
    add(out, problem);
    const std::size_t dense = out.cases.size() - 1;
    set_lengths(problem, list);
    add(out, problem);
    compare_last(out, fmt::format("{} over dense", list), {dense});
    return dense + 1;
  };
  std::size_t full = 0;  // the last of 2048 tokens: without causal, head dim 128
  for (Causal causal : {Causal::kBottomRight, Causal::kNone}) {
    for (std::int64_t d : {64, 128}) {
      for (std::int64_t s : {8192, 4096, 2048}) {
        Case problem = square(16384 / s, 2048 / d, d, s);
        problem.causal = causal;
        full = pair(problem, fmt::format("{}x{}", problem.batch, s));
      }
    }
  }
  pair(square(8192, 12, 128, 34), "8192x34");
  Case empty = out.cases[full];
  set_lengths(empty, "8x2048+1000x0");
  add(out, empty);
  compare_last(out, "a thousand empty sequences more", {full});
  return out;
}

Sweep mixed() {
  Sweep out{
      "mixed",
      "prefill over pages: a chunk of 2048 queries over 32k keys beside the dense call, and a "
      "chunk of 4096 with 63 decodes of 8k in one call beside the two apart",
      {},
      {Pass::kForward}};
  Case chunk = grouped(1, 2048);
  chunk.seqlen_k = 32768;
  add(out, chunk);
  chunk.set_cache(64);
  add(out, chunk);
  compare_last(out, "over pages of 64 over dense", {0});
  Case first = grouped(1, 4096), decodes = grouped(63, 1), both = grouped(1, 1);
  first.seqlen_k = decodes.seqlen_k = 8192;
  first.set_cache(64);
  decodes.set_cache(64);
  add(out, first);
  add(out, decodes);
  set_lengths(both, "4096+63x1");
  set_key_lengths(both, "64x8192");
  both.set_cache(64);
  add(out, both);
  compare_last(out, "one call over the two apart", {2, 3});
  return out;
}

// The studies of the ladder's steps start at head dim 8 and compare unscaled scores (scale 1), as
// the first CUDA versions computed them.
Sweep ladder(const char* name, const char* summary) {
  Sweep out{name, summary, {}, {Pass::kForward}};
  for (std::int64_t batch : {1, 8}) {
    for (std::int64_t heads : {1, 8}) {
      for (std::int64_t d : {8, 16, 32, 64, 128}) {
        for (std::int64_t s : {128, 256, 512, 1024, 2048, 4096}) {
          Case problem = square(batch, heads, d, s);
          problem.scale = 1.0f;
          add(out, problem);
        }
      }
    }
  }
  return out;
}

}  // namespace

std::vector<Sweep> sweeps() {
  return {notebook(),
          handout(),
          papers(),
          course(),
          ragged(),
          equal(),
          decode(),
          mixed(),
          ladder("fa1-steps",
                 "every step of FlashAttention-1 beside naive: batch, heads, head dims "
                 "8..128, lengths 128..4096, scale 1"),
          ladder("fa1-fa2",
                 "FlashAttention-1 against 2 beside naive: batch, heads, head dims "
                 "8..128, lengths 128..4096, scale 1")};
}

std::optional<Sweep> find_sweep(std::string_view name) {
  for (Sweep& candidate : sweeps()) {
    if (candidate.name == name) return std::move(candidate);
  }
  return std::nullopt;
}

}  // namespace flashlab::cases
