#pragma once

// What machine.cpp, transactions.cpp and products.cpp know of the block that runs.

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "machine.h"

namespace emulated {

/// A copy of a thread (cp.async), or an arrival that waits for those before it.
struct ThreadCopy {
  char* to;  ///< null: an arrival
  const void* from;
  int bytes, valid, group;
  unsigned barrier;
};

/// A copy of a box.
struct BoxCopy {
  unsigned to, barrier;
  const void* map;
  int at[5];
  bool late;  ///< lands only when nothing else can happen
};

/// Bytes that the copy engine or another block of the cluster brings.
struct Delivery {
  unsigned to, barrier;
  const void* from;  ///< null: what was sent
  unsigned bytes;
  float sent[2];
  bool late;  ///< lands only when nothing else can happen
};

/// Accumulators of a warp while products with them are under way: [16, columns].
struct Accumulator {
  float* lanes[32] = {};
  std::vector<float> values;
  int products = 0;
};

struct PendingProduct {
  WarpgroupProduct what;
  const unsigned* a_registers[32];
  Accumulator* d;
  int group;
};

struct Thread {
  ucontext_t first{};  ///< where it begins
  jmp_buf context;
  std::unique_ptr<char[]> stack;
  bool begun = false, ended = false, condition = false;
  std::string waits_for;       ///< in words
  int barrier = -1;            ///< that it waits at
  std::int64_t phase_of = -1;  ///< the shared address of a barrier whose phase it waits for
  std::vector<ThreadCopy> copies;
  int copy_groups = 0, product_groups = 0;  ///< that were closed
  bool fenced = false;                      ///< since it last waited for products
};

struct Warp {
  unsigned ready = 0;  ///< a bit for each lane that can run
  unsigned came = 0;   ///< of those that wait for the others
  unsigned lives = 0;
  unsigned stalled = 0;  ///< for so many turns others go first
  WarpWork work = nullptr;
  void* brought[32] = {};
  std::deque<PendingProduct> products;
  std::map<float*, Accumulator> accumulators;  ///< by lane 0's first register
};

struct Meeting {
  int arrived = 0, expected = 0;
};

/// An mbarrier.
struct PhaseBarrier {
  int expected, left, bytes;
  unsigned phase;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<int> order;                     ///< of the warps
  Meeting meetings[17];                       ///< the last one is the cluster's
  std::map<unsigned, PhaseBarrier> barriers;  ///< by shared address
  std::vector<BoxCopy> boxes;
  std::vector<Delivery> deliveries;
  std::size_t thread_copies = 0;  ///< of all threads
  bool prompt = false;            ///< arrivals do not lag behind the copies that they are for
  jmp_buf scheduler;
  int current = -1, live = 0;  ///< current: the thread that runs
  bool any = false;            ///< of conditions at a meeting of all
  int idle_turns = 0;
  char* shared = nullptr;
  unsigned shared_bytes = 0;
  std::string error;
  void (*kernel)(const void*) = nullptr;
  const void* arguments = nullptr;
};
extern Block block;

/// Blocks of the cluster, but for the one that runs: that is `block`.
struct Cluster {
  std::vector<Block> others;  ///< by rank; the place of the one that runs is empty
  unsigned rank = 0;          ///< of the one that runs
  Dimensions first;           ///< the place of rank 0 in the grid
  int arrived = 0;            ///< at the meeting of the cluster
};
extern Cluster cluster;

/// `rank` becomes the block that runs.
void turn_to(unsigned rank);

inline Thread& self() {
  return block.threads[static_cast<std::size_t>(block.current)];
}
inline Warp& own_warp() {
  return block.warps[static_cast<std::size_t>(block.current) / 32];
}

/// The current thread runs again when `wake` has been called for it.
void sleep();
void wake(std::size_t thread);
/// The warp may stall: where this thread has told others something, or is about to wait.
void perhaps_give_way();
/// As sleep, but it never runs again.
[[noreturn]] void stop(std::string message);

/// Something that is under way happens. `anything`: also what comes as late as it can. False:
/// nothing has.
bool happen(bool anything);
/// The products of a warp, from the oldest, that are of a group below `group`.
void finish_products(std::size_t warp, int group);
bool advance_products(bool anything);

}  // namespace emulated
