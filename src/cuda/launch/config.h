#pragma once

// The part of a kernel's Config that says what the call is: the same names in every kernel.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/problem.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {

/// How a call's tensors lie. Kernels are compiled for these forms, not for every combination of
/// alignments: strides and lengths that vary then need few kernels. Each serves what those before
/// it serve.
enum class CallForm : std::uint8_t {
  kPairs,    ///< as kAligned, and two elements of a mask at an even place can be read at once
  kAligned,  ///< every tensor's rows have natural_alignment(), and a mask has an element per key
  kGeneral,  ///< whatever else: rows are read and written element by element
};
/// The first form that serves; kPairs where there is no mask.
CallForm call_form(const Problem& problem);

/// What every row's address is a multiple of where rows lie side by side: the largest power of two
/// <= 16 that divides the innermost extent's bytes.
int natural_alignment(const TensorSpec& spec);

/// What kernels of a form take a tensor's rows to be aligned to, in bytes.
int kernel_alignment(const TensorSpec& spec, CallForm form);

/// Prints, from a problem:
///   Element kElement (of q, k, v), kOutput (forward: of o)   backward: kO, kGradO, kGradQ, kGradK,
///   kGradV (elements of o, d_o, dq, dk, dv)
///   int kHeadDim, kHeadDimV (exact)
///   bool kBoundedRight (causal or a right bound), kBoundedLeft
///   MaskTensor kMask, Element kMaskElement (additive masks), bool kMaskDense (the mask has an
///   element for every key, side by side, not one for all), kMaskPairs (and two at an even place
///   of a row can be read at once); both false in the general form
///   bool kLseGradient, kAccumulate (backward)
///   int kAlignQ, kAlignK, kAlignV, kAlignO ... : kernel_alignment() of each tensor
void print_call(ConfigPrinter& config, const Problem& problem, const internal::Geometry& geometry,
                CallForm form);
inline void print_call(ConfigPrinter& config, const Problem& problem,
                       const internal::Geometry& geometry) {
  print_call(config, problem, geometry, call_form(problem));
}

/// `Element name`, of a tensor's type.
void print_element(ConfigPrinter& config, std::string_view name, DType dtype);

/// Largest power of two <= 16 that divides every row's address: the base's alignment and the
/// strides that are used.
int row_alignment_bytes(const TensorSpec& spec);

/// Whether two elements of a mask at an even place of a row can be read at once.
bool mask_has_pairs(const TensorSpec& mask);

/// Whether kernels of a form copy rows element by element: cp.async copies at least 4 bytes.
bool copied_by_element(const TensorSpec& spec, CallForm form);

/// "1 stage", "2 stages": how many tiles are under way.
std::string stage_words(int stages);

/// Adds to a plan's reasons why a tensor's rows are not copied 16 bytes at a time, if they are not.
void explain_copies(std::vector<std::string>& reasons, const char* name, const TensorSpec& spec,
                    CallForm form);

}  // namespace flashlab::cuda
