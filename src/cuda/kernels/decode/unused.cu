// Results of queries that no sequence has, in calls with lengths of queries: 0, and -inf. It may
// run beside the decode kernel, which writes those of all others.
//
// Config: Element kOutput, int kHeadDimV.

#include "decode/launch_arguments.h"
#include "ptx/dependency.h"
#include "tile/sequence.h"

namespace flashlab::device {

inline constexpr int kUnusedThreads = 256;

/// Rows behind a sequence's queries; `sequence` -1 and count: those before the first and behind the
/// last.
template <class Config>
__device__ inline void clear_unused_rows(const DecodeArguments& args, int sequence) {
  const SequenceSide& side = args.sequences.q;
  const SequenceRows own = rows_of(side, sequence, args.sequences.count);
  Rows o = args.call.o;
  RowScalars lse = args.call.lse;
  shift_rows<Config::kOutput>(o, side, own);
  shift_rows(lse, side, own);
  for (int head = 0; head < args.call.shape.heads_q; ++head) {
    fill_rows<Config::kOutput, Config::kHeadDimV>(o, sequence, head, {own.length, own.room}, 0.0f);
    fill_rows(lse, sequence, head, {own.length, own.room}, kMinusInfinity);
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kUnusedThreads)
    flash_fwd_decode_unused(const __grid_constant__ flashlab::device::DecodeArguments args) {
  flashlab::ptx::launch_dependents();
  for (int n = static_cast<int>(blockIdx.x) - 1; n <= args.sequences.count;
       n += static_cast<int>(gridDim.x)) {
    flashlab::device::clear_unused_rows<Config>(args, n);
  }
}
