#pragma once

// A block of CUDA threads on a CPU: what the stand-ins of instructions (ptx/) call. A kernel's text
// is compiled by the host's compiler (block.h) and its threads are fibers. Whatever CUDA leaves
// open is drawn at random: which warps run ahead, when a copy lands, when a product of a warpgroup
// reads its operands. What a kernel may not read yet is NaN. So a barrier or a wait that is
// missing, a place that is freed too early or a wrong phase give wrong numbers, or threads that
// wait for ever, which is said.
//
// How a test uses it (tests/attention_emulated_test.cpp): EmulatedKernels (kernels.h) compiles the
// kernel of a KernelSpec, and run_step runs a step of a program over the host's memory. What a new
// instruction needs is a function of the same name in ptx/, which calls one of these.
//
// Blocks of a cluster run at the same time, in turns; their kernel has no variables in shared
// memory but what the launch asks for. Not shown: what weak memory order permits (fences do
// nothing), other blocks that run at the same time (they run one after the other, in any order),
// bank conflicts and times.

#include <cstdint>

struct Dimensions {
  unsigned x = 0, y = 0, z = 0;
};

#pragma GCC visibility push(default)

extern Dimensions threadIdx, blockIdx, gridDim, blockDim;

namespace emulated {

// Threads (machine.cpp)

/// Gives up: the launch ends with this message.
void fail(const char* message);
/// A number below `end` that is the same in every run.
unsigned draw(unsigned end);
/// The other threads run; for loops that wait for another block.
void give_way();
/// Waits until `threads` threads have come to the barrier 0 to 15 ("bar.sync").
void meet(int barrier, int threads);
/// Comes to it without waiting ("bar.arrive").
void meet_later(int barrier, int threads);
/// Waits for all threads of the block that have not ended; whether `condition` held in any.
bool meet_all(bool condition);
/// Waits for the other lanes of the warp; the last one calls `work` with what each has brought,
/// null for lanes that have ended. All lanes bring the same work, or the launch fails.
using WarpWork = void (*)(void* const* lanes);
void together(WarpWork work, void* brought);

/// The block's number in its cluster.
int cluster_rank();
/// Waits for all threads of the cluster.
void meet_cluster();

/// From an address that instructions take to the memory, of which it says that it is the block's.
char* shared_at(unsigned address, unsigned bytes);
unsigned shared_address(const void* pointer);

// Barriers that count and copies that take their time (transactions.cpp)

void barrier_init(unsigned barrier, int arrivals);
/// Arrives, and announces bytes.
void barrier_arrive(unsigned barrier, int bytes);
void barrier_arrive_after_copies(unsigned barrier);
/// Whether the phase of that parity has ended. If not, the thread waits before it says so.
bool barrier_passed(unsigned barrier, unsigned parity);

/// cp.async: `valid` bytes of `bytes`, the rest zeros.
void copy_async(unsigned to, const void* from, int bytes, int valid);
void copy_async_commit();
void copy_async_wait(int pending);

/// cp.async.bulk: bytes to shared memory.
void copy_bytes(unsigned to, const void* from, int bytes, unsigned barrier);
/// st.async: eight bytes to a block of the cluster.
void send_in_cluster(unsigned to, int rank, float x, float y, unsigned barrier);

/// A box of a tensor that tensor_map.h describes, at coordinates, innermost first.
void copy_box(unsigned to, const void* map, const int* at, int rank, unsigned barrier);

// Products (products.cpp)

/// Element types of products.
enum class Number { kBf16, kFp16, kTf32 };

void load_matrices(unsigned* out, int count, unsigned address, bool transposed);
void store_matrices(const unsigned* matrices, int count, unsigned address);
/// D [16, 8] += A [16, depth] B [depth, 8] of a warp; registers as ptx/mma.h says.
void multiply_warp(Number number, int depth, float* d, const unsigned* a, const unsigned* b);

/// D [64, columns] += A [64, 16] B [16, columns] of a warpgroup, as ptx/wgmma.h says. It is under
/// way until it is waited for: registers and tiles are read, and D is written, at any moment
/// between.
struct WarpgroupProduct {
  Number number;
  int columns;
  float* d;
  const unsigned* a_registers;  ///< null: A is in shared memory
  unsigned long long a, b;      ///< descriptors
  bool a_by_rows, b_by_rows;    ///< MN-major
  bool accumulate;
};
void multiply_warpgroup(const WarpgroupProduct& product);
void warpgroup_fence();
void warpgroup_commit();
void warpgroup_wait(int pending);

}  // namespace emulated

#pragma GCC visibility pop
