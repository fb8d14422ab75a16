#include "cli/peers.h"

#include <algorithm>

#include "cli/execution.h"

namespace flashlab::cli {
namespace {

bool contains(const std::vector<std::string>& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

void add(std::vector<std::string>& list, const std::string& name) {
  if (!contains(list, name)) list.push_back(name);
}

// Flags that choose what runs, or that what runs in Python does not know.
bool leaves_python_out(const Arguments& arguments) {
  for (const char* flag : {"--implementation", "--peers", "--ladder"}) {
    if (arguments.has(flag)) return true;
  }
  return std::any_of(flags_unknown_to_python().begin(), flags_unknown_to_python().end(),
                     [&](const FlagRemedy& each) { return arguments.has(each.flag); });
}

// What the problem's sequences are: peers differ in which of them they take.
Sequences sequences_of(const Arguments& arguments) {
  const std::string sweep = arguments.value("--sweep").value_or("");
  if (arguments.has("--cache-length") || sweep == "decode" || sweep == "mixed") {
    return Sequences::kCached;
  }
  const bool ragged = arguments.has("--lengths") || arguments.has("--lengths-k") ||
                      sweep == "ragged" || sweep == "equal";
  return ragged ? Sequences::kRagged : Sequences::kDense;
}

// What a default comparison looks for in Python. FlexAttention is left out: it is compiled anew for
// every problem.
void add_found_in_python(Device device, Sequences sequences, Contestants& out) {
  if (device.kind == DeviceKind::kCpu) {
    out.python_if_there = sequences == Sequences::kDense;
    if (out.python_if_there) out.python = {"torch.flash", "torch.math"};
    return;
  }
  out.python_if_there = true;
  for (const std::string& name : python_peers_for(sequences)) {
    if (name == "torch.flex") continue;
    out.python.push_back(name);
    if (!name.starts_with("torch")) out.optional.push_back(name);
  }
}

}  // namespace

const std::vector<std::string>& python_peers() {
  static const std::vector<std::string> kNames = {
      "torch.cudnn", "torch.flash",  "torch.efficient", "torch.math", "torch.flex", "torch.varlen",
      "flash-attn",  "flash-attn-3", "flash-attn-4",    "flashinfer", "xformers"};
  return kNames;
}

std::vector<std::string> python_peers_for(Sequences sequences) {
  switch (sequences) {
    case Sequences::kRagged:
      return {"torch.varlen", "torch.flex", "flash-attn", "flash-attn-3", "flash-attn-4"};
    case Sequences::kCached:
      return {"torch.cudnn",  "torch.flash",  "flash-attn",
              "flash-attn-3", "flash-attn-4", "flashinfer"};
    case Sequences::kDense:
      break;
  }
  std::vector<std::string> out = python_peers();
  std::erase(out, "torch.varlen");
  std::erase(out, "flashinfer");
  return out;
}

bool runs_in_python(std::string_view name) {
  return contains(python_peers(), name);
}

const std::vector<FlagRemedy>& flags_unknown_to_python() {
  static const std::vector<FlagRemedy> kFlags = {{"--input", "give the shape by flags"},
                                                 {"--tile-q", "leave it out"},
                                                 {"--tile-k", "leave it out"},
                                                 {"--window", "leave it out"},
                                                 {"--softcap", "leave it out"},
                                                 {"--alibi", "leave it out"},
                                                 {"--dropout", "leave it out"},
                                                 {"--attention-chunk", "leave it out"},
                                                 {"--sinks", "leave it out"}};
  return kFlags;
}

Contestants contestants_of(const Arguments& arguments, Device device,
                           std::vector<std::string> fallback) {
  Contestants out;
  for (const std::string& name : implementation_names(arguments, std::move(fallback))) {
    add(runs_in_python(name) ? out.python : out.ours, name);
  }
  const std::vector<std::string> here = implementations(device);
  const std::vector<std::string> peers = arguments.list("--peers");
  const Sequences sequences = sequences_of(arguments);
  if (!leaves_python_out(arguments)) add_found_in_python(device, sequences, out);
  for (const std::string& peer : peers) {
    if (peer == "none") {
      if (arguments.has("--implementation")) continue;  // what is named runs
      std::erase(out.ours, "cublas");
      std::erase(out.ours, "cudnn");
    } else if (peer == "torch") {
      for (const std::string& name : python_peers_for(sequences)) {
        // Named one by one they are asked for; as a part of the group they may be missing.
        const bool asked = contains(peers, name) || contains(out.python, name);
        if (!asked && !name.starts_with("torch")) out.optional.push_back(name);
        add(out.python, name);
      }
    } else if (runs_in_python(peer)) {
      add(out.python, peer);
    } else if (contains(here, peer)) {
      add(out.ours, peer);
    } else {
      add(out.absent, peer);
    }
  }
  return out;
}

}  // namespace flashlab::cli
