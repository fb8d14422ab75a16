#pragma once

// What a person asks a profile first, answered from the ledger.

#include <string>
#include <vector>

#include "profile/recording.h"

namespace flashlab::profile {

struct Answer {
  std::string question;
  std::string answer;
};

/// Time in forward operations against the step's wall time; the kernel with the most time and its
/// calls, in forward and in the whole step; kernels other than matrix products that take 2% or
/// more; the share of matrix products in forward alone (inference) and in a full step; softmax
/// against the products inside naive attention, in time and in FLOPs; what passes between
/// operations; what the first step costs; what recording costs. Questions whose operations did not
/// run are left out.
std::vector<Answer> answers(const Recording& recording);

}  // namespace flashlab::profile
