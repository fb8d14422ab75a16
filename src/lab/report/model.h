#pragma once

// What an implementation must do, by counting: arithmetic and traffic to memory beyond the caches.
// A model, not a measurement: it explains why one algorithm waits for memory and another does not.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "case.h"
#include "lab/report/group.h"

namespace flashlab::lab::report {

/// How an implementation goes about it.
enum class Algorithm : std::uint8_t {
  kNaive,  ///< three separate steps; scores and probabilities [Sq, Sk] go through memory
  kFlash,  ///< tiles; scores never leave the core, keys and values are read once per query tile
};

const char* to_string(Algorithm algorithm) noexcept;  ///< "naive", "flash"

/// "naive", "cublas" and "torch.math" write their scores to memory; "reference" is a yardstick and
/// has no model; everything else is tiled.
std::optional<Algorithm> algorithm_of(std::string_view implementation);

/// Of the plan. The default stands for a peer or a record that does not say.
struct Tile {
  std::int64_t q = 64;
  std::int64_t k = 64;
};

/// What stays on the chip between two uses, so that memory sees it once. 0: nothing does.
struct Caches {
  std::int64_t per_thread_bytes = 0;  ///< where one head's keys and values may stay
  std::int64_t shared_bytes = 0;      ///< where all heads' scores may stay
};

/// A core's own cache, or its part of the last one; nothing is known of a GPU's.
Caches caches_of(const Environment& environment);

struct ModelledCost {
  double flops = 0;       ///< of matrix products; a naive one also computes what is masked
  double read_bytes = 0;  ///< from memory
  double written_bytes = 0;
  double bytes() const { return read_bytes + written_bytes; }
  /// FLOPs per byte moved: below the machine's balance, memory is the limit.
  double intensity() const { return bytes() > 0 ? flops / bytes() : 0; }
};

/// Computes  Counts for one call. pairs = Sq Sk (naive) or those in visible tiles (flash).
///   forward   2 B Hq pairs (D + Dv) FLOPs.  Naive: q k -> S; S -> P; P v -> o, with S and P in the
///             inputs' dtype.  Flash: q, o, lse once; k and v once per tile of queries that sees
///             them.
///   backward  2 B Hq pairs (3 D + 2 Dv) FLOPs.  Naive: S and P again, then dP and dS, all through
///             memory.  Flash: k, v, dk, dv once; q, dO, lse, delta once per tile of keys, and dq
///             read and written (fp32) once per tile of keys beyond the first.
/// What fits into the caches is counted once. Tensors that heads of a group share are counted per
/// query head, as tiles read them.
ModelledCost modelled_cost(const cases::Case& problem, Pass pass, Algorithm algorithm,
                           Tile tile = {}, Caches caches = {});

/// The model of one measured, or refused for lack of memory, row and pass.
struct ModelRow {
  std::string label, pass;
  Algorithm algorithm = Algorithm::kFlash;
  Tile tile;
  ModelledCost cost;
};

/// Of every implementation and forward or backward pass of a group that has a model.
std::vector<ModelRow> model_rows(const Group& group, Caches caches);

}  // namespace flashlab::lab::report
