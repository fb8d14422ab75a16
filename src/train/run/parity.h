#pragma once

// A step beside another program's: the same weights and batches, then loss, every gradient and the
// weights after several updates compared. bench/peers/train_parity.py writes such records.

#include <filesystem>
#include <string>
#include <vector>

#include "flashlab/context.h"
#include "flashlab/status.h"
#include "train/plan/options.h"

namespace flashlab::train {

struct ParityRow {
  std::string what;  ///< "loss", "d layers.0.attn.qkv.weight", "weights after 10 steps"
  double error = 0;  ///< max |ours - theirs| / max |theirs|
  double allowed = 0;
  bool ok() const { return error <= allowed; }
};

struct ParityReport {
  std::string title;  ///< "course, 3 layers, width 32 · fp32 · torch 2.11.0"
  std::string made_by;
  std::vector<ParityRow> rows;
  bool ok() const;
  /// The row nearest to its limit, or furthest beyond it. Precondition: there are rows.
  const ParityRow& worst() const;
};

/// RECORD.json says model, optimizer and losses; RECORD.safetensors holds tokens, targets,
/// weights.NAME, gradients.NAME, after.NAME and, where the other program was asked,
/// gradients_bf16.NAME. In fp64 and fp32 errors stay below the record's tolerances; in bf16 the
/// distance of all gradients from the exact ones is at most twice the other program's own.
/// Errors: those of reading, of the model and of the executor; kInvalidArgument for a precision
/// that the record says nothing of.
Result<ParityReport> check_parity(const Context& context, const std::filesystem::path& record,
                                  Precision precision);

}  // namespace flashlab::train
