#include "lab/report/model.h"

#include <algorithm>
#include <string>

#include "lab/subjects/attention/attention_subject.h"

namespace flashlab::lab::report {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 40;

/// How many tiles of `size` cover `length`.
double tiles(std::int64_t length, std::int64_t size) {
  return static_cast<double>((length + size - 1) / size);
}

/// Keys [begin, end) that queries [first, end_query) see: from the first one's first to the last
/// one's last.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};
KeyRange keys_seen(const cases::Case& p, std::int64_t first, std::int64_t end_query) {
  const bool bottom_right = p.causal == Causal::kBottomRight ||
                            (p.window && p.window->alignment == Alignment::kBottomRight);
  const std::int64_t diagonal = bottom_right ? p.seqlen_k - p.seqlen_q : 0;
  const auto clamp = [&](std::int64_t key) { return std::clamp<std::int64_t>(key, 0, p.seqlen_k); };
  const auto side = [](std::int64_t keys) { return std::clamp(keys, -kLongest, kLongest); };
  KeyRange out{0, p.seqlen_k};
  if (p.causal != Causal::kNone) {
    out.end = clamp(end_query + diagonal);
  }
  if (p.window && p.window->right) {
    out.end = std::min(out.end, clamp(end_query + diagonal + side(*p.window->right)));
  }
  if (p.window && p.window->left) {
    out.begin = std::min(clamp(first + diagonal - side(*p.window->left)), out.end);
  }
  return out;
}

struct Visible {
  double pairs = 0;       ///< (query, key) pairs inside tiles that are not wholly masked
  double key_rows = 0;    ///< rows of k read: each visible tile of keys, once per query tile
  double query_rows = 0;  ///< rows of q read: each visible tile of queries, once per key tile
};

Visible visible_tiles(const cases::Case& p, Tile tile) {
  Visible out;
  // Beyond this many steps a coarser walk says the same and a report never waits for a model.
  tile.q = std::max(tile.q, p.seqlen_q / (1 << 20));
  for (std::int64_t first = 0; first < p.seqlen_q; first += tile.q) {
    const std::int64_t end = std::min(first + tile.q, p.seqlen_q);
    const KeyRange keys = keys_seen(p, first, end);
    const std::int64_t from = keys.begin / tile.k * tile.k;
    const std::int64_t to = std::min((keys.end + tile.k - 1) / tile.k * tile.k, p.seqlen_k);
    const std::int64_t loaded = std::max<std::int64_t>(to - from, 0);
    const auto rows = static_cast<double>(end - first);
    out.pairs += rows * static_cast<double>(loaded);
    out.key_rows += static_cast<double>(loaded);
    out.query_rows += rows * tiles(loaded, tile.k);
  }
  return out;
}

}  // namespace

const char* to_string(Algorithm algorithm) noexcept {
  return algorithm == Algorithm::kNaive ? "naive" : "flash";
}

std::optional<Algorithm> algorithm_of(std::string_view implementation) {
  if (implementation == "reference") return std::nullopt;
  if (implementation == "naive" || implementation == "cublas" || implementation == "torch.math") {
    return Algorithm::kNaive;
  }
  return Algorithm::kFlash;
}

Caches caches_of(const Environment& e) {
  if (!e.gpu.empty()) return {};
  const std::int64_t threads = std::max(e.threads_used, 1);
  return {std::max(e.l2_bytes, e.l3_bytes / threads), std::max(e.l2_bytes * threads, e.l3_bytes)};
}

ModelledCost modelled_cost(const cases::Case& p, Pass pass, Algorithm algorithm, Tile tile,
                           Caches caches) {
  // A file may hold any number; lengths that no machine has would overflow the tile arithmetic.
  if (p.seqlen_q < 0 || p.seqlen_k < 0 || p.seqlen_q > kLongest || p.seqlen_k > kLongest) return {};
  const double heads = static_cast<double>(p.batch) * static_cast<double>(p.heads_q);
  const auto sq = static_cast<double>(p.seqlen_q), sk = static_cast<double>(p.seqlen_k);
  const auto d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.head_dim_v);
  const auto in = static_cast<double>(size_of(p.dtype));
  const double out = p.fp32_outputs ? 4.0 : in;
  const double sum = p.dtype == DType::kFp64 ? 8.0 : 4.0;  // lse, delta and partial gradients
  const bool forward = pass == Pass::kForward;

  ModelledCost cost;
  if (algorithm == Algorithm::kNaive) {
    // One of S, P, dP, dS of one head. The steps are separate, so all heads of one of them come
    // before the first of the next.
    const bool cached = 2 * heads * sq * sk * in <= static_cast<double>(caches.shared_bytes);
    const double square = cached ? 0 : sq * sk * in;
    cost.flops = 2 * sq * sk * (forward ? d + dv : 3 * d + 2 * dv);
    cost.read_bytes = (sq * d + sk * d) * in + square;  // q k, then S
    cost.written_bytes = 2 * square;                    // S, P
    if (forward) {
      cost.read_bytes += square + sk * dv * in;        // P v
      cost.written_bytes += sq * dv * out + sq * sum;  // o lse
    } else {
      cost.read_bytes += sq * sum;                             // lse, for P
      cost.read_bytes += square + sq * dv * in;                // P dO, for dv
      cost.read_bytes += (sq * dv + sk * dv) * in;             // dO v, for dP
      cost.read_bytes += 2 * square + 2 * sq * dv * in;        // P dP o dO, for dS
      cost.read_bytes += 2 * square + (sk * d + sq * d) * in;  // dS k and dS q, for dq and dk
      cost.written_bytes += 2 * square + (sq * d + sk * d + sk * dv) * out;  // dP dS, dq dk dv
    }
  } else {
    tile.q = std::clamp<std::int64_t>(tile.q, 1, kLongest);
    tile.k = std::clamp<std::int64_t>(tile.k, 1, kLongest);
    Visible seen = visible_tiles(p, tile);
    const auto cache = static_cast<double>(caches.per_thread_bytes);
    if (sk * (d + dv) * in <= cache) seen.key_rows = std::min(seen.key_rows, sk);
    if (sq * ((d + dv) * in + (2 + d) * sum) <= cache) {
      seen.query_rows = std::min(seen.query_rows, sq);
    }
    cost.flops = 2 * seen.pairs * (forward ? d + dv : 3 * d + 2 * dv);
    if (forward) {
      cost.read_bytes = sq * d * in + seen.key_rows * (d + dv) * in;
      cost.written_bytes = sq * dv * out + sq * sum;
    } else {
      cost.read_bytes = 2 * sq * dv * in + sk * (d + dv) * in;  // o dO for delta, k v
      cost.read_bytes += seen.query_rows * ((d + dv) * in + 2 * sum);
      cost.written_bytes = sq * sum + sk * (d + dv) * out;
      const double visits = std::max(seen.query_rows, sq);  // of dq's rows
      cost.read_bytes += (visits - sq) * d * sum;
      cost.written_bytes += (visits - sq) * d * sum + sq * d * out;
    }
  }
  cost.flops *= heads;
  cost.read_bytes *= heads;
  cost.written_bytes *= heads;
  return cost;
}

std::vector<ModelRow> model_rows(const Group& group, Caches caches) {
  std::vector<ModelRow> out;
  if (group.subject != &attention_subject()) return out;
  const cases::Case problem = case_of(group.labels);
  for (const Row& row : group.rows) {
    const std::optional<Algorithm> algorithm = algorithm_of(row.implementation);
    if (!algorithm) continue;
    for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
      const Measurement* result = row.by_pass[pass];
      const bool known = group.passes[pass] == "forward" || group.passes[pass] == "backward";
      if (!known || result == nullptr) continue;
      if (result->status != RunStatus::kOk && result->status != RunStatus::kOutOfMemory) continue;
      Tile tile;
      if (result->tile_q > 0) tile.q = result->tile_q;
      if (result->tile_k > 0) tile.k = result->tile_k;
      const Pass which = group.passes[pass] == "forward" ? Pass::kForward : Pass::kBackward;
      out.push_back({row.label, group.passes[pass], *algorithm, tile,
                     modelled_cost(problem, which, *algorithm, tile, caches)});
    }
  }
  return out;
}

}  // namespace flashlab::lab::report
