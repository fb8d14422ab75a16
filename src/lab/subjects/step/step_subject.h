#pragma once

// A training step as something that is measured: its labels and columns.

#include "lab/results/subject.h"

namespace flashlab::lab {

inline constexpr Column kTokensPerS{"tokens_per_s", "tok/s", "tok/s", Better::kHigher, ""};
/// The first step of a fresh executor: pages are touched, kernels loaded and chosen.
inline constexpr Column kFirstMs{"first_ms", "first ms", "ms", Better::kLower, ""};
/// The loss of that step, before any update: about ln V of weights that know nothing.
inline constexpr Column kFirstLoss{"first_loss", "first loss", "nats", Better::kNeither, ""};
/// Of the updates, which all steps have alike; none of a step without the optimizer.
inline constexpr Column kStepRate{"learning_rate", "rate", "", Better::kNeither, ""};
/// What the memory planner says before anything is allocated.
inline constexpr Column kPredictedBytes{"predicted_bytes", "predicted memory", "bytes",
                                        Better::kNeither, ""};

/// Labels are the model's sizes, batch, context, types and warm-up steps; implementations are what
/// runs the step and how: flashlab, flashlab.naive, flashlab.checkpoint=4, torch.eager; passes are
/// forward, forward+backward and step.
const Subject& step_subject();

}  // namespace flashlab::lab
