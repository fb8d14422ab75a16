#include "cli/peers.h"

#include <algorithm>

#include "cli/execution.h"

namespace flashlab::cli {
namespace {

bool contains(const std::vector<std::string>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

void add(std::vector<std::string>& list, const std::string& name) {
  if (!contains(list, name)) list.push_back(name);
}

}  // namespace

const std::vector<std::string>& python_peers() {
  static const std::vector<std::string> kNames = {"torch.cudnn", "torch.flash", "torch.efficient",
                                                  "torch.math",  "torch.flex",  "flash-attn",
                                                  "xformers"};
  return kNames;
}

bool runs_in_python(std::string_view name) {
  return contains(python_peers(), name);
}

Contestants contestants_of(const Arguments& arguments, Device device,
                           std::vector<std::string> fallback) {
  Contestants out;
  for (const std::string& name : implementation_names(arguments, std::move(fallback))) {
    add(runs_in_python(name) ? out.python : out.ours, name);
  }
  const std::vector<std::string> here = implementations(device);
  const std::vector<std::string> peers = arguments.list("--peers");
  for (const std::string& peer : peers) {
    if (peer == "torch") {
      for (const std::string& name : python_peers()) {
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
