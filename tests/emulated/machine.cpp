// Threads as fibers, and where they wait for each other.

#undef _FORTIFY_SOURCE  // longjmp goes from stack to stack here

#include "machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "launch.h"
#include "state.h"

Dimensions threadIdx, blockIdx, gridDim, blockDim;

namespace emulated {

Block block;
Cluster cluster;

namespace {

unsigned randomness = 1;

constexpr std::size_t kStackBytes = 64 * 1024;
// What stops a block while none of its threads runs.
struct Stopped {
  std::string message;
};

constexpr int kClusterBarrier = 16;
constexpr int kPatience = 100000;  // turns of a thread that waits for another block
constexpr int kLate = 1000;        // of these, until a copy that is late lands all the same

unsigned lanes_of(std::size_t warp) {
  const std::size_t count = std::min<std::size_t>(32, block.threads.size() - 32 * warp);
  return count == 32 ? ~0u : (1u << count) - 1;
}

void switch_to_scheduler() {
  if (_setjmp(self().context) == 0) _longjmp(block.scheduler, 1);
}

void release(int barrier) {
  Meeting& meeting = block.meetings[barrier];
  meeting = {};
  for (std::size_t i = 0; i < block.threads.size(); ++i) {
    if (block.threads[i].barrier != barrier) continue;
    block.threads[i].barrier = -1;
    block.threads[i].condition = block.any;  // of a meeting of all
    wake(i);
  }
}

void come(int barrier, int threads) {
  Meeting& meeting = block.meetings[barrier];
  if (meeting.arrived > 0 && meeting.expected != threads) {
    stop("threads come to barrier " + std::to_string(barrier) + " as one of " +
         std::to_string(meeting.expected) + " and as one of " + std::to_string(threads));
  }
  meeting.expected = threads;
  ++meeting.arrived;
}

// All lanes that live have come: the work is done, and they go on.
void finish_warp(Warp& warp, std::size_t index) {
  if (warp.came == 0 || warp.came != warp.lives) return;
  if (warp.work != nullptr) warp.work(warp.brought);
  const unsigned came = warp.came;
  warp.came = 0;
  std::fill(std::begin(warp.brought), std::end(warp.brought), nullptr);
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((came >> lane & 1) != 0) wake(32 * index + lane);
  }
}

void end_thread() {
  const auto index = static_cast<std::size_t>(block.current) / 32;
  Warp& warp = own_warp();
  self().ended = true;
  --block.live;
  warp.lives &= ~(1u << block.current % 32);
  warp.ready &= ~(1u << block.current % 32);
  finish_warp(warp, index);
  Meeting& all = block.meetings[0];
  if (all.arrived > 0 && all.expected == block.live + 1) {
    all.expected = block.live;
    if (all.arrived == all.expected) release(0);
  }
}

void enter() {
  for (;;) {
    block.kernel(block.arguments);
    end_thread();
    switch_to_scheduler();
  }
}

void stall(Warp& warp) {
  warp.stalled = 1u << draw(8);
}

void run(std::size_t thread) {
  Thread& each = block.threads[thread];
  block.current = static_cast<int>(thread);
  blockIdx = cluster.first;
  blockIdx.x += cluster.rank;
  threadIdx.x = static_cast<unsigned>(thread);
  if (_setjmp(block.scheduler) != 0) {
    block.current = -1;
    return;
  }
  if (each.begun) _longjmp(each.context, 1);
  each.begun = true;
  setcontext(&each.first);
}

void draw_order() {
  for (std::size_t i = block.order.size(); i > 1; --i) {
    std::swap(block.order[i - 1], block.order[draw(static_cast<unsigned>(i))]);
  }
}

// The threads of the first warp that can run, in an order that is drawn anew now and then: it goes
// ahead of the others as far as barriers let it. False: nothing can happen any more.
bool step() {
  if (draw(64) == 0) draw_order();
  if (draw(8) == 0) happen(false);
  for (const bool stalled : {false, true}) {
    for (const int index : block.order) {
      Warp& warp = block.warps[static_cast<std::size_t>(index)];
      if (warp.ready == 0 || (!stalled && warp.stalled > 0 && --warp.stalled > 0)) continue;
      warp.stalled = 0;
      // Now and then some of the lanes run alone, and the others much later.
      const bool apart = draw(8) == 0;
      const unsigned first = draw(32), lanes = apart ? draw(1u << 16) * 0x10001u : ~0u;
      for (unsigned i = 0; i < 32 && block.error.empty() && warp.stalled == 0; ++i) {
        const unsigned lane = (first + i) % 32;
        if ((warp.ready & lanes) >> lane & 1) run(static_cast<std::size_t>(index) * 32 + lane);
      }
      if (apart) stall(warp);
      return true;
    }
  }
  return happen(true);
}

void begin_block() {
  const std::size_t threads = block.threads.size();
  block.warps.clear();
  block.warps.resize((threads + 31) / 32);
  block.order.resize(block.warps.size());
  for (std::size_t i = 0; i < block.warps.size(); ++i) {
    block.order[i] = static_cast<int>(i);
    block.warps[i].ready = block.warps[i].lives = lanes_of(i);
  }
  draw_order();
  for (Meeting& each : block.meetings) each = {};
  block.barriers.clear();
  block.boxes.clear();
  block.deliveries.clear();
  block.thread_copies = 0;
  block.prompt = draw(2) == 0;
  block.live = static_cast<int>(threads);
  block.idle_turns = 0;
  // What a block before has left in shared memory is none of this one's.
  std::memset(block.shared, 0xff, kSharedMemoryBytes);
  for (Thread& each : block.threads) {
    each.ended = each.fenced = false;
    each.barrier = -1;
    each.phase_of = -1;
    each.copies.clear();
    each.copy_groups = each.product_groups = 0;
    if (each.begun) continue;  // it waits in enter()
    if (each.stack == nullptr) each.stack.reset(new char[kStackBytes]);
    getcontext(&each.first);
    each.first.uc_stack.ss_sp = each.stack.get();
    each.first.uc_stack.ss_size = kStackBytes;
    each.first.uc_link = nullptr;
    makecontext(&each.first, enter, 0);
  }
}

unsigned blocks_of_cluster() {
  return static_cast<unsigned>(cluster.others.size());
}

// Threads of the cluster that have not ended.
int live_threads() {
  int live = block.live;
  for (const Block& each : cluster.others) live += each.live;
  return live;
}

void describe_waiting() {
  std::map<std::string, int> reasons;
  for (unsigned rank = 0; rank < blocks_of_cluster(); ++rank) {
    turn_to(rank);
    for (const Thread& each : block.threads) {
      if (!each.ended) ++reasons[each.waits_for];
    }
  }
  block.error = "threads wait for ever:";
  for (const auto& [reason, count] : reasons) {
    block.error += " " + std::to_string(count) + " for " + reason + ";";
  }
}

// A block of the cluster does something. False: nothing can happen any more.
bool step_cluster() {
  if (blocks_of_cluster() > 1 && draw(4) == 0) turn_to(draw(blocks_of_cluster()));
  for (unsigned i = 0; i < blocks_of_cluster(); ++i) {
    if (step()) return true;
    turn_to((cluster.rank + 1) % blocks_of_cluster());
  }
  return false;
}

void look_at_end() {
  if (!block.boxes.empty() || !block.deliveries.empty()) {
    block.error = "the block ended before a copy to its shared memory had landed";
  }
  for (unsigned i = block.shared_bytes; block.error.empty() && i < kSharedMemoryBytes; ++i) {
    if (block.shared[i] != '\xff') {
      block.error = "byte " + std::to_string(i) + " of shared memory was written, beyond the " +
                    std::to_string(block.shared_bytes) + " of the launch";
    }
  }
}

void run_cluster() {
  cluster.arrived = 0;
  for (unsigned rank = 0; rank < blocks_of_cluster(); ++rank) {
    turn_to(rank);
    begin_block();
  }
  try {
    while (block.error.empty() && live_threads() > 0) {
      if (!step_cluster()) describe_waiting();
    }
  } catch (const Stopped& stopped) {
    block.error = stopped.message;
  }
  for (unsigned i = 0; i < blocks_of_cluster() && block.error.empty(); ++i) {
    turn_to(i);
    look_at_end();
  }
}

void prepare_cluster(const Launch& what) {
  turn_to(0);
  cluster.others.resize(what.cluster);
  for (unsigned rank = 0; rank < what.cluster; ++rank) {
    turn_to(rank);
    block.kernel = what.kernel;
    block.arguments = what.arguments;
    block.shared = what.shared + rank * kSharedMemoryBytes;
    block.shared_bytes = what.shared_bytes;
    block.error.clear();
    block.threads.resize(what.threads);
  }
}

}  // namespace

void fail(const char* message) {
  stop(message);
}

void begin_draws() {
  randomness = 1;
}

unsigned draw(unsigned end) {
  randomness = randomness * 1664525u + 1013904223u;
  return (randomness >> 8) % end;
}

void sleep() {
  own_warp().ready &= ~(1u << block.current % 32);
  switch_to_scheduler();
}

void wake(std::size_t thread) {
  block.warps[thread / 32].ready |= 1u << thread % 32;
  block.idle_turns = 0;
}

void stop(std::string message) {
  if (block.current < 0) throw Stopped{std::move(message)};
  if (block.error.empty()) block.error = std::move(message);
  for (;;) switch_to_scheduler();
}

void give_way() {
  if (++block.idle_turns > kPatience) stop("a thread waits for another block that never comes");
  if (block.idle_turns % kLate == 0) happen(true);
  switch_to_scheduler();
}

void perhaps_give_way() {
  if (draw(64) != 0) return;
  stall(own_warp());
  switch_to_scheduler();
}

void meet(int barrier, int threads) {
  come(barrier, threads);
  if (block.meetings[barrier].arrived == threads) return release(barrier);
  self().barrier = barrier;
  self().waits_for = "barrier " + std::to_string(barrier);
  sleep();
}

void meet_later(int barrier, int threads) {
  come(barrier, threads);
  if (block.meetings[barrier].arrived == threads) release(barrier);
  perhaps_give_way();
}

bool meet_all(bool condition) {
  if (block.meetings[0].arrived == 0) block.any = false;
  block.any = self().condition = block.any || condition;
  meet(0, block.live);
  return self().condition;
}

void together(WarpWork work, void* brought) {
  Warp& warp = own_warp();
  if (warp.came != 0 && warp.work != work) {
    stop("lanes of a warp are at different instructions that all of them take part in");
  }
  const auto lane = static_cast<unsigned>(block.current) % 32;
  warp.work = work;
  warp.brought[lane] = brought;
  warp.came |= 1u << lane;
  if (warp.came == warp.lives) {
    finish_warp(warp, static_cast<std::size_t>(block.current) / 32);
    return;
  }
  self().waits_for = "the other lanes of its warp";
  sleep();
}

char* shared_at(unsigned address, unsigned bytes) {
  // Variables in shared memory lie beside what a launch asks for: they have no bounds here.
  if (address < kSharedMemoryBytes && address + bytes > block.shared_bytes) {
    stop("address " + std::to_string(address) + " is beyond the " +
         std::to_string(block.shared_bytes) + " bytes of shared memory of the launch");
  }
  return block.shared + static_cast<int>(address);
}

unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(static_cast<const char*>(pointer) - block.shared);
}

void turn_to(unsigned rank) {
  if (rank == cluster.rank) return;
  std::swap(block, cluster.others[cluster.rank]);
  std::swap(block, cluster.others[rank]);
  cluster.rank = rank;
}

int cluster_rank() {
  return static_cast<int>(cluster.rank);
}

void meet_cluster() {
  if (++cluster.arrived < live_threads()) {
    self().barrier = kClusterBarrier;
    self().waits_for = "its cluster";
    return sleep();
  }
  const unsigned own = cluster.rank;
  cluster.arrived = 0;
  for (unsigned rank = 0; rank < blocks_of_cluster(); ++rank) {
    turn_to(rank);
    release(kClusterBarrier);
  }
  turn_to(own);
}

std::string launch(const Launch& what) {
  if (what.cluster > kLargestCluster || what.grid.x % what.cluster != 0) {
    return "a grid of " + std::to_string(what.grid.x) + " is not cut into clusters of " +
           std::to_string(what.cluster);
  }
  const unsigned clusters = what.grid.x / what.cluster * what.grid.y * what.grid.z;
  gridDim = what.grid;
  blockDim = {what.threads, 1, 1};
  prepare_cluster(what);
  std::vector<unsigned> order(clusters);
  for (unsigned i = 0; i < clusters; ++i) order[i] = i;
  for (unsigned i = clusters; i > 1; --i) std::swap(order[i - 1], order[draw(i)]);
  for (const unsigned i : order) {
    const unsigned at = i * what.cluster;
    cluster.first = {at % what.grid.x, at / what.grid.x % what.grid.y,
                     at / what.grid.x / what.grid.y};
    run_cluster();
    if (block.error.empty()) continue;
    const std::string error = "block " + std::to_string(at + cluster.rank) + ": " + block.error;
    // The threads stand where they were.
    turn_to(0);
    block.threads.clear();
    for (Block& each : cluster.others) each.threads.clear();
    return error;
  }
  return "";
}

}  // namespace emulated
