#pragma once

// Documents in the rows of a batch: where attention begins anew.

#include <cstdint>

#include "flashlab/status.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

/// Sequences that a row of `context` tokens may have: one of eight tokens is an end of text, or all
/// of a short row.
std::int64_t most_documents(std::int64_t context);

/// Writes StepPlan::documents by the tokens of the batch, both in host memory. A sequence begins
/// with each row and with each end of text: that token is the target of its document's last one,
/// and the first input of the next. Offsets behind the last sequence are all the rows.
/// Errors: kInvalidArgument, a row with more sequences than most_documents. Precondition:
/// plan.documents is there.
Status write_documents(const StepPlan& plan, const std::int32_t* tokens, std::int32_t* offsets);

}  // namespace flashlab::train
