// A memory timeline as PyTorch's pickled snapshot.

#include <cstdint>
#include <string>
#include <string_view>

#include "profile/memory_timeline.h"

namespace flashlab::profile {
namespace {

/// The few opcodes of the pickle protocol 2 that dictionaries, lists, texts and whole numbers need
/// (CPython, Lib/pickletools.py).
class Pickle {
 public:
  Pickle() : out_("\x80\x02", 2) {}

  void begin_dict() { out_ += "}("; }  // EMPTY_DICT MARK
  void end_dict() { out_ += 'u'; }     // SETITEMS
  void begin_list() { out_ += "]("; }  // EMPTY_LIST MARK
  void end_list() { out_ += 'e'; }     // APPENDS
  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void text(std::string_view value) {
    out_ += 'X';  // BINUNICODE
    little_endian(value.size(), 4);
    out_ += value;
  }
  void number(std::int64_t value) {
    out_ += '\x8a';  // LONG1: length, then the two's complement
    out_ += '\x08';
    little_endian(static_cast<std::uint64_t>(value), 8);
  }
  void key(std::string_view name) { text(name); }
  std::string take() { return std::move(out_) + '.'; }

 private:
  void little_endian(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  std::string out_;
};

// Addresses that look like a device's: the viewer only compares them.
constexpr std::int64_t kBase = std::int64_t{0x7f} << 32;

void put(Pickle& p, std::string_view key, std::int64_t value) {
  p.key(key);
  p.number(value);
}
void put(Pickle& p, std::string_view key, std::string_view value) {
  p.key(key);
  p.text(value);
}

void put_frames(Pickle& p, const std::string& operation, const std::string& tensor) {
  p.key("frames");
  p.begin_list();
  for (const std::string* name : {&tensor, &operation}) {
    if (name->empty()) continue;
    p.begin_dict();
    put(p, "name", *name);
    put(p, "filename", "step");
    put(p, "line", 0);
    p.end_dict();
  }
  p.end_list();
}

struct Arena {
  std::int64_t address, bytes;
  std::vector<const Allocation*> blocks;  ///< that live after the step
};

void put_segment(Pickle& p, const Arena& arena) {
  std::int64_t active = 0;
  for (const Allocation* block : arena.blocks) active += block->bytes;
  p.begin_dict();
  put(p, "device", 0);
  put(p, "address", kBase + arena.address);
  put(p, "total_size", arena.bytes);
  put(p, "allocated_size", active);
  put(p, "active_size", active);
  put(p, "requested_size", active);
  put(p, "stream", 0);
  put(p, "segment_type", "large");
  p.key("segment_pool_id");
  p.begin_list();
  p.number(0);
  p.number(0);
  p.end_list();
  p.key("is_expandable");
  p.boolean(false);
  put_frames(p, "", "arena");
  p.key("blocks");
  p.begin_list();
  const auto block = [&](std::int64_t address, std::int64_t bytes, const char* state,
                         const std::string& name) {
    p.begin_dict();
    put(p, "address", kBase + address);
    put(p, "size", bytes);
    put(p, "requested_size", bytes);
    put(p, "state", state);
    put_frames(p, "", name);
    p.end_dict();
  };
  for (const Allocation* a : arena.blocks) {
    block(a->address, a->bytes, "active_allocated", a->name);
  }
  if (arena.blocks.empty()) block(arena.address, arena.bytes, "inactive", "");
  p.end_list();
  p.end_dict();
}

class Trace {
 public:
  explicit Trace(Pickle& p) : p_(p) {}
  void entry(const char* action, std::int64_t address, std::int64_t bytes,
             const std::string& operation, const std::string& tensor) {
    p_.begin_dict();
    put(p_, "action", action);
    put(p_, "addr", kBase + address);
    put(p_, "size", bytes);
    put(p_, "stream", 0);
    put(p_, "time_us", ++time_us_);
    put_frames(p_, operation, tensor);
    p_.end_dict();
  }

 private:
  Pickle& p_;
  std::int64_t time_us_ = 0;
};

void put_trace(Pickle& p, const MemoryTimeline& timeline, const std::vector<Arena>& arenas) {
  Trace trace(p);
  for (const Arena& arena : arenas) {
    trace.entry("segment_alloc", arena.address, arena.bytes, "", "arena");
  }
  for (const Allocation& a : timeline.persistent) {
    trace.entry("alloc", a.address, a.bytes, "before the step", a.name + " " + a.shape);
  }
  std::vector<std::vector<const Allocation*>> ends(timeline.operations.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < timeline.operations.size(); ++i) {
    for (; next < timeline.activations.size() &&
           timeline.activations[next].first == static_cast<int>(i);
         ++next) {
      const Allocation& a = timeline.activations[next];
      trace.entry("alloc", a.address, a.bytes, timeline.operations[i], a.name + " " + a.shape);
      ends[static_cast<std::size_t>(a.last)].push_back(&a);
    }
    for (const Allocation* a : ends[i]) {
      trace.entry("free_requested", a->address, a->bytes, timeline.operations[i], a->name);
      trace.entry("free_completed", a->address, a->bytes, timeline.operations[i], a->name);
    }
  }
}

}  // namespace

std::string memory_snapshot(const MemoryTimeline& timeline) {
  std::vector<Arena> arenas;
  for (const Allocation& arena : timeline.arenas) {
    Arena& one = arenas.emplace_back(Arena{arena.address, arena.bytes, {}});
    for (const Allocation& a : timeline.persistent) {
      if (a.role == arena.role) one.blocks.push_back(&a);
    }
  }
  if (timeline.arena_bytes > 0) {
    arenas.push_back({timeline.persistent_bytes, timeline.arena_bytes, {}});
  }
  Pickle p;
  p.begin_dict();
  p.key("segments");
  p.begin_list();
  for (const Arena& arena : arenas) put_segment(p, arena);
  p.end_list();
  p.key("device_traces");
  p.begin_list();
  p.begin_list();
  put_trace(p, timeline, arenas);
  p.end_list();
  p.end_list();
  p.key("external_annotations");
  p.begin_list();
  p.end_list();
  p.key("allocator_settings");
  p.begin_dict();
  put(p, "PYTORCH_CUDA_ALLOC_CONF", "");
  put(p, "max_split_size", -1);
  p.key("expandable_segments");
  p.boolean(false);
  p.end_dict();
  p.end_dict();
  return p.take();
}

}  // namespace flashlab::profile
