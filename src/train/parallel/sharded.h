#pragma once

// Arenas dealt out layer by layer, as rewrites of a finished list: who owns what, and how it comes
// together.

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "train/parallel/stretches.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

Operation all_gather(std::string name, std::vector<Operand> operands,
                     const CollectiveAttributes& attributes);
/// The norm in two: of what the rank owns, to a tensor of `count` sums that it returns, and from
/// the sums of all ranks. What brings these together is the caller's.
Operand split_norm(StepPlan& plan, std::int64_t count);
/// AdamW of what the rank owns.
void step_owned(StepPlan& plan, double weight_decay);

/// Of what is learned in one layer (and of what lies before all layers, and behind them) each rank
/// has an equal part; padding makes it so.
class Units {
 public:
  /// Lays out the arenas anew.
  Units(StepPlan& plan, int ranks, int rank);

  /// Gradients stay in their arena, in which a rank then has the sums of its parts.
  void scatter_in_place();
  /// Gradients of a unit are a tensor of their own until ranks have added them: each keeps its
  /// part.
  void scatter_gradients(bool bf16_wire);
  /// Values of which each rank has its part alone: a unit is gathered, in the type that is computed
  /// with, at most two units before it is read, is dropped after its last reader, and is gathered
  /// again where another one comes.
  void gather_values();
  /// Norm and AdamW of one's own parts. Where values are whole they come together before the next
  /// step reads them, unit by unit.
  void split_optimizer(double weight_decay);

 private:
  struct Unit {
    std::string name;
    std::size_t first = 0, last = 0;  ///< parameters
    std::int64_t begin = 0;           ///< in the arenas of everything
    std::int64_t elements = 0;        ///< without the padding
    std::int64_t part = 0;            ///< of each rank
    bool frozen = false;
  };
  std::size_t learned_units() const;
  struct Sum;
  using Views = std::unordered_map<TensorId, TensorId>;  ///< of parameters' values
  void lay_out();
  TensorId add_tensor(PlanTensor tensor);
  TensorId part_tensor(const Unit& unit, const char* what, Element element, Role role);
  Sum begin_sum(const Unit& unit, std::size_t stretch);
  Operation reduce_scatter(const Unit& unit, std::size_t stretch) const;
  void end_sum(const Sum& sum, std::size_t stretch, std::vector<Operation>& list);
  Operation copy_of_part(std::string name, int layer, TensorId from, TensorId to) const;
  void add_pending(std::vector<Operation>& list);
  Operation gather_new(const Unit& unit, bool copies) const;
  void gather_new_values();
  void gather_one(const Unit& unit, std::size_t episode, const Operation& before,
                  std::vector<Operation>& list, Views& views);

  StepPlan& plan_;
  int ranks_, rank_;
  bool bf16_wire_ = false;
  std::vector<Unit> units_;
  std::vector<Operation> pending_;  ///< additions of what is still on its way
};

}  // namespace flashlab::train
