#pragma once

// What every rank does when a collective is measured, and the processes that are ranks where nobody
// has started any.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "lab/measure/measure.h"
#include "runtime/communicator/communicator.h"

namespace flashlab::lab {

struct CollectiveProblem {
  runtime::Collective kind = runtime::Collective::kAllReduce;
  std::size_t bytes = 0;  ///< of the whole: what a rank gives or gets, whichever is more
  int ranks = 2;
  DType dtype = DType::kFp32;

  std::size_t part_elements() const;  ///< of one rank's part: CollectiveCall::bytes, in elements
  std::size_t moved_bytes() const;    ///< `bytes`, to whole elements of whole parts
  std::size_t memory_bytes() const;   ///< of a rank
  std::size_t from_elements() const;  ///< that a call reads
  std::size_t to_elements() const;    ///< that a call writes
  /// What a rank gives lies where its result will.
  bool in_place() const;
  /// Repeated calls add up: zeros are timed, and a call over values is judged behind them.
  bool changes_its_input() const;
  /// Of the time's bytes a second: what each link carries beside what the caller sees, by the
  /// convention of NCCL's tests. Nothing for one rank: it sends nothing.
  double bus_factor() const;
};

struct CollectiveTimes {
  std::vector<std::vector<double>> ms;  ///< of a call: by rank, then by sample
  std::string wrong;                    ///< the first element that is not what it should be
  int calls_per_sample = 1;
  bool cancelled = false;
};

/// Products and calls without pause, each alone and both together: milliseconds of one, of the
/// slowest rank.
struct BesideTimes {
  double product = 0, product_beside = 0, call = 0, call_beside = 0;
  /// Of a product's time.
  double lost() const { return product_beside / product - 1; }
  /// Milliseconds that products lose while a GiB is exchanged.
  double lost_per_gib(std::size_t bytes) const {
    const double gib = static_cast<double>(bytes) / static_cast<double>(1 << 30);
    return (1 - product / product_beside) * call_beside / gib;
  }
};

/// What one rank puts under the clock: its memory with values in it, and the call over them.
class CollectiveWork {
 public:
  virtual ~CollectiveWork() = default;
  /// Its memory and values. Errors: kOutOfMemory and what the transport refuses.
  virtual Status make() = 0;
  /// So many calls at most stand in one sample.
  virtual int most_calls() const { return 100'000; }
  /// Milliseconds of a call, of `calls` that follow one another; every rank is here.
  virtual Result<double> sample(int calls) = 0;
  /// The first element that is not what it should be; empty: none.
  virtual Result<std::string> first_wrong() = 0;
  /// Every rank calls it, behind samples. Errors: kUnsupported where there are no products.
  virtual Result<BesideTimes> beside_products();
};

/// Over processors, by `transport`.
std::unique_ptr<CollectiveWork> processor_work(runtime::Communicator& transport,
                                               const CollectiveProblem& problem);

/// All ranks of the group call it; rank 0 gets everything. Every rank enters a sample when all
/// have come; every element of the result is compared with what it must be.
/// Errors: those of the group and of the work.
Result<CollectiveTimes> time_collective(runtime::Communicator& group, CollectiveWork& work,
                                        const MeasureOptions& options);

/// "element 5 of rank 0 is wrong: it must be 2".
std::string words_of_wrong(const CollectiveProblem& problem, int rank, std::size_t index);

/// Runs `body` as rank 0 beside ranks - 1 processes that are forked for it and end with it.
Status with_forked_ranks(int ranks, double timeout_s,
                         const std::function<Status(runtime::Communicator&)>& body);

}  // namespace flashlab::lab
