// Barriers that count arrivals and bytes, and copies that are under way.

#include <algorithm>
#include <cstring>

#include "state.h"
#include "tensor_map.h"

namespace emulated {
namespace {

PhaseBarrier& barrier_at(unsigned address) {
  const auto found = block.barriers.find(address);
  if (found == block.barriers.end()) {
    stop("there is no barrier at " + std::to_string(address) + " of shared memory");
  }
  return found->second;
}

// A phase ends when all have arrived and all bytes have landed.
void look_at(unsigned address, PhaseBarrier& barrier) {
  if (barrier.left > 0 || barrier.bytes != 0) return;
  barrier.left = barrier.expected;
  ++barrier.phase;
  for (std::size_t i = 0; i < block.threads.size(); ++i) {
    if (block.threads[i].phase_of != address) continue;
    block.threads[i].phase_of = -1;
    wake(i);
  }
}

void arrive(unsigned address, int bytes) {
  PhaseBarrier& barrier = barrier_at(address);
  barrier.bytes += bytes;
  if (--barrier.left < 0) {
    stop("more arrivals than the barrier at " + std::to_string(address) + " was told of");
  }
  look_at(address, barrier);
}

void land(const ThreadCopy& copy) {
  if (copy.to == nullptr) return arrive(copy.barrier, 0);
  std::memset(copy.to, 0, static_cast<std::size_t>(copy.bytes));
  std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.valid));
}

// One that may land: an arrival only behind the copies before it.
bool land_one(Thread& thread, std::size_t index) {
  if (thread.copies[index].to == nullptr) {
    for (std::size_t i = 0; i < index; ++i) {
      if (thread.copies[i].to != nullptr) return false;
    }
  }
  const ThreadCopy copy = thread.copies[index];
  thread.copies.erase(thread.copies.begin() + static_cast<std::ptrdiff_t>(index));
  --block.thread_copies;
  land(copy);
  return true;
}

unsigned box_bytes(const TensorMap& map) {
  unsigned bytes = map.element_bytes;
  for (int i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}

// The copy engine exchanges chunks of 16 bytes by bits of the address in shared memory: bit 7 and
// above with bit 4 and above.
unsigned swizzled(unsigned address, unsigned bits) {
  return address ^ (address >> 7 & ((1u << bits) - 1)) << 4;
}

void land(const BoxCopy& copy) {
  const auto& map = *static_cast<const TensorMap*>(copy.map);
  unsigned to = copy.to;
  std::uint32_t at[5] = {};
  for (bool more = true; more;) {
    auto from = reinterpret_cast<std::uint64_t>(map.address);  // addresses wrap
    bool inside = true;
    for (int i = 1; i < map.rank; ++i) {
      const std::int64_t place = std::int64_t{copy.at[i]} + at[i];
      inside = inside && place >= 0 && place < map.extents[i];
      from += static_cast<std::uint64_t>(place) * map.strides_bytes[i - 1];
    }
    for (std::uint32_t x = 0; x < map.box[0]; ++x, to += map.element_bytes) {
      const std::int64_t place = std::int64_t{copy.at[0]} + x;
      char* element = block.shared + swizzled(to, map.swizzle_bits);
      if (inside && place >= 0 && place < map.extents[0]) {
        std::memcpy(element, reinterpret_cast<const char*>(from) + place * map.element_bytes,
                    map.element_bytes);
      } else {
        std::memset(element, 0, map.element_bytes);
      }
    }
    more = false;
    for (int i = 1; i < map.rank && !more; ++i) {
      more = ++at[i] < map.box[i];
      if (!more) at[i] = 0;
    }
  }
  PhaseBarrier& barrier = barrier_at(copy.barrier);
  barrier.bytes -= static_cast<int>(box_bytes(map));
  look_at(copy.barrier, barrier);
}

bool land_a_box(bool anything) {
  if (block.boxes.empty()) return false;
  const std::size_t index = draw(static_cast<unsigned>(block.boxes.size()));
  if (block.boxes[index].late && !anything) return false;
  const BoxCopy copy = block.boxes[index];
  block.boxes.erase(block.boxes.begin() + static_cast<std::ptrdiff_t>(index));
  land(copy);
  return true;
}

void land(const Delivery& delivery) {
  const void* from = delivery.from != nullptr ? delivery.from : delivery.sent;
  std::memcpy(shared_at(delivery.to, delivery.bytes), from, delivery.bytes);
  PhaseBarrier& barrier = barrier_at(delivery.barrier);
  barrier.bytes -= static_cast<int>(delivery.bytes);
  look_at(delivery.barrier, barrier);
}

bool land_a_delivery(bool anything) {
  if (block.deliveries.empty()) return false;
  const std::size_t index = draw(static_cast<unsigned>(block.deliveries.size()));
  if (block.deliveries[index].late && !anything) return false;
  const Delivery delivery = block.deliveries[index];
  block.deliveries.erase(block.deliveries.begin() + static_cast<std::ptrdiff_t>(index));
  land(delivery);
  return true;
}

bool land_a_threads_copy(bool anything) {
  if (block.thread_copies == 0) return false;
  const std::size_t threads = block.threads.size(), first = draw(static_cast<unsigned>(threads));
  for (std::size_t i = 0; i < (anything ? threads : 8); ++i) {
    Thread& thread = block.threads[(first + i) % threads];
    if (thread.copies.empty()) continue;
    return land_one(thread, anything ? 0 : draw(static_cast<unsigned>(thread.copies.size())));
  }
  return false;
}

}  // namespace

bool happen(bool anything) {
  switch (draw(3)) {
    case 0:
      if (land_a_box(anything) || land_a_delivery(anything)) return true;
      break;
    case 1:
      if (land_a_threads_copy(anything)) return true;
      break;
    default:
      if (advance_products(anything)) return true;
  }
  return anything && (land_a_box(true) || land_a_delivery(true) || land_a_threads_copy(true) ||
                      advance_products(true));
}

void barrier_init(unsigned barrier, int arrivals) {
  shared_at(barrier, 8);
  block.barriers[barrier] = {arrivals, arrivals, 0, 0};
}

void barrier_arrive(unsigned barrier, int bytes) {
  arrive(barrier, bytes);
  perhaps_give_way();
}

void barrier_arrive_after_copies(unsigned barrier) {
  self().copies.push_back({nullptr, nullptr, 0, 0, 0, barrier});
  ++block.thread_copies;
}

bool barrier_passed(unsigned barrier, unsigned parity) {
  if (barrier_at(barrier).phase % 2 != parity % 2) return true;
  self().phase_of = barrier;
  self().waits_for = "phase " + std::to_string(barrier_at(barrier).phase) + " of the barrier at " +
                     std::to_string(barrier) + " of shared memory";
  sleep();
  return barrier_at(barrier).phase % 2 != parity % 2;
}

void copy_async(unsigned to, const void* from, int bytes, int valid) {
  char* memory = shared_at(to, static_cast<unsigned>(bytes));
  if (to % static_cast<unsigned>(bytes) != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % static_cast<unsigned>(bytes) != 0) {
    stop("an address of cp.async is no multiple of its " + std::to_string(bytes) + " bytes");
  }
  self().copies.push_back({memory, from, bytes, valid, self().copy_groups, 0});
  ++block.thread_copies;
  // Until it lands nobody can know what is there.
  std::memset(memory, 0xff, static_cast<std::size_t>(bytes));
  if (draw(4) == 0) land_one(self(), self().copies.size() - 1);
}

void copy_async_commit() {
  ++self().copy_groups;
}

void copy_async_wait(int pending) {
  Thread& thread = self();
  for (std::size_t i = 0; i < thread.copies.size();) {
    const ThreadCopy& copy = thread.copies[i];
    const bool arrival = copy.to == nullptr && block.prompt;
    const bool waited_for = copy.to != nullptr && copy.group < thread.copy_groups - pending;
    if ((!waited_for && !arrival) || !land_one(thread, i)) ++i;
  }
}

void copy_bytes(unsigned to, const void* from, int bytes, unsigned barrier) {
  if (to % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0 || bytes % 16 != 0) {
    stop("an address or the bytes of cp.async.bulk are no multiple of 16");
  }
  const auto count = static_cast<unsigned>(bytes);
  std::memset(shared_at(to, count), 0xff, count);
  barrier_at(barrier);
  block.deliveries.push_back({to, barrier, from, count, {}, draw(2) == 0});
}

void send_in_cluster(unsigned to, int rank, float x, float y, unsigned barrier) {
  const unsigned own = cluster.rank;
  turn_to(static_cast<unsigned>(rank));
  const bool lives = block.live > 0;
  if (lives) block.deliveries.push_back({to, barrier, nullptr, 8, {x, y}, draw(2) == 0});
  turn_to(own);
  if (!lives) stop("something was sent to a block of the cluster that has ended");
  perhaps_give_way();
}

void copy_box(unsigned to, const void* map, const int* at, int rank, unsigned barrier) {
  const auto& tensor = *static_cast<const TensorMap*>(map);
  if (tensor.rank != rank) stop("a copy of a box has other dimensions than its tensor map");
  const unsigned bytes = box_bytes(tensor), alignment = tensor.swizzle_bits == 0 ? 16 : 128;
  if (to % alignment != 0) stop("a box's place in shared memory is not aligned");
  std::memset(shared_at(to, bytes), 0xff, bytes);
  barrier_at(barrier);
  BoxCopy copy{to, barrier, map, {}, draw(2) == 0};
  std::copy(at, at + rank, copy.at);
  if (draw(4) == 0) return land(copy);
  block.boxes.push_back(copy);
}

}  // namespace emulated
