#include "profile/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "lab/report/numbers.h"
#include "lab/report/svg.h"

namespace flashlab::profile {
namespace {

using Json = nlohmann::ordered_json;

// Phase, then the parts of the operation's name.
std::vector<std::string> stack_of(const Event& event) {
  std::vector<std::string> out = {event.phase};
  for (std::string& part : path_of(event.name)) out.push_back(std::move(part));
  if (event.again) out.back() += " (again)";
  return out;
}

double microseconds(double ms) {
  return std::round(ms * 1e6) * 1e-3;
}

Json complete_event(const std::string& name, const std::string& category, double start_ms,
                    double end_ms) {
  // Both ends are rounded, not the duration: what is nested stays nested.
  const double start = microseconds(start_ms), end = microseconds(end_ms);
  Json out;
  out["name"] = name;
  out["cat"] = category;
  out["ph"] = "X";
  out["ts"] = start;
  out["dur"] = std::max(0.0, end - start);
  out["pid"] = 1;
  out["tid"] = 1;
  return out;
}

Json thread_name(int tid, const std::string& name) {
  return {
      {"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", tid}, {"args", {{"name", name}}}};
}

Json leaf(const Event& event, double start_ms, double end_ms) {
  Json out = complete_event(path_of(event.name).back(), event.event_class, start_ms, end_ms);
  Json& args = out["args"];
  args["operation"] = event.name;
  args["kernel"] = event.kernel;
  args["phase"] = event.phase;
  if (event.layer >= 0) args["layer"] = event.layer;
  if (event.again) args["again"] = true;
  args["flops"] = event.flops;
  args["bytes"] = event.bytes;
  if (event.stream != 0) out["tid"] = 1 + event.stream;
  return out;
}

// Ranges that are open while the events of one step pass by.
class OpenRanges {
 public:
  explicit OpenRanges(Json& out) : out_(out) {}

  void move_to(const std::vector<std::string>& stack, double start_ms) {
    std::size_t same = 0;
    while (same < open_.size() && same < stack.size() && open_[same].name == stack[same]) ++same;
    close_to(same);
    for (std::size_t i = same; i < stack.size(); ++i) open_.push_back({stack[i], start_ms});
  }
  void advance(double end_ms) { end_ms_ = end_ms; }
  void close_to(std::size_t depth) {
    while (open_.size() > depth) {
      out_.push_back(complete_event(open_.back().name, "range", open_.back().start_ms, end_ms_));
      open_.pop_back();
    }
  }

 private:
  struct Range {
    std::string name;
    double start_ms;
  };
  Json& out_;
  std::vector<Range> open_;
  double end_ms_ = 0;
};

struct FlameNode {
  double ms = 0;
  std::string event_class;
  std::map<std::string, FlameNode> children;
};

FlameNode flame_tree(const Recording& recording) {
  FlameNode root;
  const double scale = 1.0 / std::max(1, recording.steps());
  for (const Event& event : recording.events) {
    FlameNode* node = &root;
    node->ms += event.duration_ms * scale;
    for (const std::string& part : stack_of(event)) {
      node = &node->children[part];
      node->ms += event.duration_ms * scale;
    }
    node->event_class = event.event_class;
  }
  return root;
}

int depth_of(const FlameNode& node) {
  int depth = 0;
  for (const auto& [name, child] : node.children) depth = std::max(depth, 1 + depth_of(child));
  return depth;
}

// Names in the order of a person's reading: forward, backward, optimizer; layers by number.
int rank_of(const std::string& name) {
  static constexpr const char* kPhases[] = {"forward", "backward", "optimizer"};
  for (int i = 0; i < 3; ++i) {
    if (name == kPhases[i]) return i;
  }
  if (name.starts_with("layer ")) return 100 + std::atoi(name.c_str() + 6);
  return 50;
}

int style_of(const std::string& event_class) {
  static constexpr const char* kClasses[] = {"",     "product",   "attention", "elementwise",
                                             "norm", "optimizer", "softmax",   "loss"};
  for (int i = 1; i < 8; ++i) {
    if (event_class == kClasses[i]) return i;
  }
  return 0;
}

constexpr double kFlameWidth = 1160, kRow = 20;

void draw_flame(lab::report::Svg& svg, const FlameNode& node, const FlameNode& root, double x,
                double bottom) {
  std::vector<std::pair<std::string, const FlameNode*>> children;
  for (const auto& [name, child] : node.children) children.emplace_back(name, &child);
  std::ranges::stable_sort(
      children, [](const auto& a, const auto& b) { return rank_of(a.first) < rank_of(b.first); });
  for (const auto& [name, child] : children) {
    const double width = child->ms / root.ms * kFlameWidth;
    // Narrower than a third of a pixel is not to be seen, and makes large pictures slow.
    if (width >= 0.33) {
      svg.begin_group(lab::report::colour_class(style_of(child->event_class)));
      svg.rect(
          x, bottom - kRow, std::max(width - 0.5, 0.3), kRow - 1,
          child->children.empty() ? "fl-fill fl-flame" : "fl-track",
          fmt::format("{}: {} ms, {:.1f}%", name, lab::report::format_significant(child->ms, 3),
                      100 * child->ms / root.ms));
      svg.end_group();
      if (width > 44) {
        svg.text(x + 4, bottom - 6, lab::report::fitted(name, 12, width - 14), "fl-small");
      }
      draw_flame(svg, *child, root, x, bottom - kRow);
    }
    x += width;
  }
}

}  // namespace

std::string chrome_trace(const Recording& recording, const std::vector<double>& memory_bytes) {
  Json events = Json::array();
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", 1},
                    {"args", {{"name", "flashlab: " + recording.title}}}});
  events.push_back(thread_name(1, recording.device));
  std::set<int> streams;
  for (const Event& event : recording.events) streams.insert(event.stream);
  streams.erase(0);
  for (const int stream : streams) {
    events.push_back(thread_name(1 + stream, fmt::format("stream {}", stream)));
  }
  std::size_t at = 0;
  int step = 0;
  // Events that were timed by another clock than their step's can end after it: what follows them
  // moves back, since a track's ranges may not cross.
  double reached = 0;
  for (const StepSpan& span : recording.spans) {
    const double late = std::max(0.0, reached - span.start_ms);
    const double begin = span.start_ms + late;
    reached = begin + span.duration_ms;
    const auto step_range = [&] {
      events.push_back(complete_event(span.name, span.warmup ? "warm-up" : "step", begin, reached));
    };
    if (span.warmup) {
      step_range();
      continue;
    }
    OpenRanges ranges(events);
    double end = begin;
    std::map<int, double> ends;  // of the other streams' tracks
    int operation = -1;
    for (; at < recording.events.size() && recording.events[at].step == step; ++at) {
      const Event& event = recording.events[at];
      std::vector<std::string> stack = stack_of(event);
      stack.pop_back();
      // A kernel may begin a moment before the one before it ends. Ranges are around the first
      // stream's; each of the others has a track of its own.
      double& there = event.stream == 0 ? end : ends.try_emplace(event.stream, begin).first->second;
      const double start = std::max(event.start_ms + late, there);
      there = std::max(start, event.start_ms + late + event.duration_ms);
      if (event.stream == 0) {
        ranges.move_to(stack, start);
        ranges.advance(end);
      }
      events.push_back(leaf(event, start, there));
      const int now = event.operation >= 0 ? event.operation : static_cast<int>(at);
      if (step == 0 && now != operation && static_cast<std::size_t>(now) < memory_bytes.size()) {
        events.push_back({{"name", "memory"},
                          {"ph", "C"},
                          {"ts", microseconds(start)},
                          {"pid", 1},
                          {"args", {{"bytes", memory_bytes[static_cast<std::size_t>(now)]}}}});
      }
      operation = now;
    }
    ranges.close_to(0);
    reached = std::max(reached, end);
    for (const auto& [stream, last] : ends) reached = std::max(reached, last);
    step_range();
    ++step;
  }
  const Json out = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return base::json_text(out) + "\n";
}

std::string folded_stacks(const Recording& recording) {
  std::map<std::string, double> sums;
  const double scale = 1.0 / std::max(1, recording.steps());
  for (const Event& event : recording.events) {
    std::string stack;
    for (std::string part : stack_of(event)) {
      std::replace(part.begin(), part.end(), ';', ',');
      stack += (stack.empty() ? "" : ";") + part;
    }
    sums[stack] += event.duration_ms * scale;
  }
  std::string out;
  for (const auto& [stack, ms] : sums) {
    out += fmt::format("{} {}\n", stack, static_cast<long long>(std::llround(ms * 1e3)));
  }
  return out;
}

std::string flame_graph(const Recording& recording, bool inline_in_page) {
  const FlameNode root = flame_tree(recording);
  const double height = 34 + kRow * depth_of(root);
  lab::report::Svg svg(kFlameWidth);
  svg.text(0, 16,
           fmt::format("{} · {} ms a step", recording.title,
                       lab::report::format_significant(root.ms, 3)),
           "fl-title");
  if (root.ms > 0) draw_flame(svg, root, root, 0, height - 4);
  return svg.finish(height, "flame", "Flame graph of one step",
                    "Phases, layers, blocks and operations as nested bars; the width is time.",
                    inline_in_page ? lab::report::SvgUse::kInline : lab::report::SvgUse::kFile);
}

}  // namespace flashlab::profile
