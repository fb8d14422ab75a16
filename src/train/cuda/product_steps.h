#pragma once

// Products of a step by cuBLASLt, and what they take in of the operations beside them.

#include <vector>

#include "runtime/products/cublas_lt.h"
#include "runtime/program/program.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

class ProductSteps {
 public:
  /// Without `library` every epilogue is taken to be there: a GPU that is only described.
  /// `scratch`: a region of each stream, since products of several run at the same time.
  ProductSteps(const StepPlan& plan, const std::vector<runtime::Place>& places,
               std::vector<int> scratch, const cuda::CublasLt* library);

  /// Whether a product does this operation's work.
  bool takes_in(std::size_t operation) const { return taken_[operation]; }
  /// The products of an operation: one, or one a sequence with all of its heads.
  std::vector<runtime::ProductWork> of(std::size_t operation) const;

 private:
  void take_in(std::size_t product);
  runtime::ProductWork work_of(const Operation& operation, std::int64_t sequence) const;
  bool serves(const runtime::Product& product) const;
  bool is_gelu_of(std::size_t operation, TensorId id) const;
  void matrix(TensorId id, const ProductAttributes::Matrix& from, std::int64_t sequence,
              runtime::Matrix& out, runtime::Place& place) const;
  runtime::Place place(TensorId id) const { return places_[static_cast<std::size_t>(id)]; }

  const StepPlan& plan_;
  const std::vector<runtime::Place>& places_;
  std::vector<int> scratch_;
  const cuda::CublasLt* library_;
  std::vector<bool> taken_;
  std::vector<std::vector<runtime::ProductWork>> works_;  ///< per operation
};

}  // namespace flashlab::train
