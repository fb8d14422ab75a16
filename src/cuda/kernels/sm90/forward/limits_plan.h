#pragma once

// Of the plan of Hopper's forward (plan.h): what the kernel serves, what others serve faster, and
// what it does with scores beside their products.

#include <string>

#include "api/context_state.h"
#include "cuda/launch/config.h"

namespace flashlab::cuda::sm90_forward {

inline constexpr int kRowAlignment = 16;

/// A refusal that names sm80.
Status unsupported(const char* what, std::string got, std::string expected);

/// Whether the kernel serves the problem at all.
Status check(const Problem& problem, const internal::Geometry& g);

/// Where no implementation is named: whether no other is faster.
Status check_worth(const Problem& problem, const internal::Geometry& g);

/// Whether eight neighbouring elements of a mask are read at once, where its rows allow it. Larger
/// heads have no registers for the exchange, and longer steps to read pairs in.
bool takes_wide_mask(const Problem& problem, const internal::Geometry& g);

/// Two or eight elements of a mask are read at once, of which the last of a row do not reach beyond
/// it; those of all other masks are read one by one.
CallForm form_of(const Problem& problem, const internal::Geometry& g);

/// Whether a thread holds more of what scores are made of than three consumers have registers for.
bool has_many_score_terms(const Problem& problem, const internal::Geometry& g);

/// Whether a step of 128 keys would spill at head dim 64. Dropout alone does not in dense calls,
/// nor ALiBi of rows of one head.
bool has_score_terms(const Problem& problem, const internal::Geometry& g);

}  // namespace flashlab::cuda::sm90_forward
