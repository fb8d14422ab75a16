#pragma once

// How a tool attaches to the NVTX of a program, as strictly as CUPTI does: it asks for the version
// and for five modules, and refuses a program that lacks one of them.

#include <cstddef>
#include <cstdint>

namespace nvtx_tool {

using Slots = void***;  // addresses of a module's functions, by number
using Tables = const void* (*)(std::uint32_t);

struct Callbacks {
  std::size_t size;
  int (*module)(int, Slots*, unsigned*);
};
struct Version {
  std::size_t size;
  std::uint32_t version, reserved;
  void (*set)(std::uint32_t);
};
struct Module {
  int number;
  unsigned functions;
};

constexpr Module kCore = {1, 16}, kModules[] = {kCore, {5, 16}, {6, 7}, {2, 9}, {4, 7}};
constexpr unsigned kPush = 9, kPop = 11;  // of the core module

/// Where the core module's functions go, or null: the program is refused.
inline Slots core_of(Tables tables) {
  const auto* version = static_cast<const Version*>(tables(3));
  if (version == nullptr || version->size != sizeof(Version) || version->version != 3)
    return nullptr;
  version->set(3);
  const auto* callbacks = static_cast<const Callbacks*>(tables(1));
  if (callbacks == nullptr || callbacks->size != sizeof(Callbacks)) return nullptr;
  Slots core = nullptr;
  for (const Module& each : kModules) {
    Slots slots = nullptr;
    unsigned count = 0;
    if (callbacks->module(each.number, &slots, &count) == 0 || count < each.functions) {
      return nullptr;
    }
    if (slots[0] != nullptr || slots[count] != nullptr) return nullptr;
    for (unsigned i = 1; i < each.functions; ++i) {
      if (slots[i] == nullptr) return nullptr;
    }
    if (each.number == kCore.number) core = slots;
  }
  return core;
}

}  // namespace nvtx_tool
