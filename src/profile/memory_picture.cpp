// The picture of a memory timeline.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lab/report/numbers.h"
#include "lab/report/svg.h"
#include "profile/memory_timeline.h"

namespace flashlab::profile {
namespace {

using lab::report::Anchor;
using lab::report::format_bytes;
using lab::report::Svg;
using train::Role;

constexpr double kWidth = 1160, kLeft = 84, kRight = 12;
constexpr double kLeastHeight = 0.5;  // less is nothing that a pointer finds
constexpr double kTop = 64, kRolesHeight = 220, kGap = 44, kMapHeight = 300, kFoot = 34;

// Roles from the bottom up: what stays below what comes and goes.
constexpr std::array<Role, 8> kStack = {
    Role::kParameter, Role::kOptimizerState,  Role::kBatch,         Role::kResult,
    Role::kGradient,  Role::kSavedActivation, Role::kCommunication, Role::kTemporary};

int style_of(Role role) {
  switch (role) {
    case Role::kParameter:
      return 1;
    case Role::kGradient:
      return 2;
    case Role::kOptimizerState:
      return 3;
    case Role::kSavedActivation:
      return 5;
    case Role::kTemporary:
      return 4;
    default:
      return 0;
  }
}

class Picture {
 public:
  Picture(const MemoryTimeline& timeline, const TimelinePicture& options)
      : timeline_(timeline),
        options_(options),
        count_(std::max<std::size_t>(1, timeline.operations.size())) {}

  std::string draw() {
    svg_.text(0, 16, fmt::format("{} · peak {}", timeline_.title, format_bytes(peak())),
              "fl-title");
    draw_legend();
    draw_phases();
    draw_roles();
    draw_map();
    const double height = kTop + kRolesHeight + kGap + kMapHeight + kFoot;
    svg_.text((kLeft + kWidth - kRight) / 2, height - 10, "operations of the step, in order",
              "fl-muted", Anchor::kMiddle);
    return svg_.finish(
        height, "memory", "Memory over one step",
        "Live bytes by role, and the place of every activation in the arena, over "
        "the operations of the step.",
        options_.inline_in_page ? lab::report::SvgUse::kInline : lab::report::SvgUse::kFile);
  }

 private:
  double peak() const { return static_cast<double>(timeline_.peak_bytes()); }
  double x(std::size_t operation) const {
    return kLeft +
           (kWidth - kLeft - kRight) * static_cast<double>(operation) / static_cast<double>(count_);
  }

  void draw_legend() {
    double at = kLeft;
    for (const Role role : kStack) {
      if (role == Role::kResult || role == Role::kBatch) continue;
      svg_.begin_group(lab::report::colour_class(style_of(role)));
      svg_.rect(at, 28, 12, 12, "fl-fill fl-band");
      svg_.end_group();
      const std::string name = train::to_string(role);
      svg_.text(at + 17, 39, name, "fl-small");
      at += 34 + lab::report::text_width(name, 12);
    }
  }

  void draw_phases() {
    for (std::size_t first = 0; first < timeline_.phases.size();) {
      std::size_t end = first;
      while (end < timeline_.phases.size() && timeline_.phases[end] == timeline_.phases[first]) {
        ++end;
      }
      // Every second band has a ground, so that neighbours are told apart.
      if (static_cast<int>(timeline_.phases[first]) % 2 == 1) {
        svg_.rect(x(first), kTop - 16, x(end) - x(first), kRolesHeight + kGap + kMapHeight + 16,
                  "fl-track");
      }
      const std::string name = train::to_string(timeline_.phases[first]);
      if (x(end) - x(first) > lab::report::text_width(name, 12) + 8) {
        svg_.text(x(first) + 4, kTop - 4, name, "fl-muted");
      }
      first = end;
    }
  }

  void axis(double bottom, double height, double full, const char* what) {
    for (int i = 0; i <= 4; ++i) {
      const double y = bottom - height * i / 4;
      svg_.line(kLeft, y, kWidth - kRight, y, "fl-grid");
      svg_.text(kLeft - 6, y + 4, format_bytes(full * i / 4), "fl-muted", Anchor::kEnd);
    }
    svg_.text(kLeft + 4, bottom - height - 6, what, "fl-small");
  }

  void draw_roles() {
    const double bottom = kTop + kRolesHeight, full = std::max(1.0, peak());
    axis(bottom, kRolesHeight, full, "");
    std::vector<double> below(timeline_.live_bytes.size(), 0);
    for (const Role role : kStack) {
      const double base = below.empty() ? 0 : below[0];
      std::string top, back;
      bool any = false;
      for (std::size_t i = 0; i < below.size(); ++i) {
        const auto bytes =
            static_cast<double>(timeline_.live_bytes[i][static_cast<std::size_t>(role)]);
        any = any || bytes > 0;
        const double low = bottom - below[i] / full * kRolesHeight;
        below[i] += bytes;
        const double high = bottom - below[i] / full * kRolesHeight;
        top += fmt::format("{}{:.2f} {:.2f}H{:.2f}", i == 0 ? "M" : "L", x(i), high, x(i + 1));
        back = fmt::format("L{:.2f} {:.2f}H{:.2f}", x(i + 1), low, x(i)) + back;
      }
      if (!any) continue;
      svg_.begin_group(lab::report::colour_class(style_of(role)));
      svg_.path(top + back + "Z", "fl-fill fl-band");
      draw_tensors(role, bottom - base / full * kRolesHeight, full);
      svg_.end_group();
    }
  }

  // What is there from the first operation to the last, tensor by tensor: a pointer names each.
  void draw_tensors(Role role, double bottom, double full) {
    double below = 0;
    for (const Allocation& a : timeline_.persistent) {
      if (a.role != role) continue;
      const double height = static_cast<double>(a.bytes) / full * kRolesHeight;
      const double low = bottom - below / full * kRolesHeight;
      below += static_cast<double>(a.bytes);
      if (a.bytes < options_.detail_bytes || height < kLeastHeight) continue;
      svg_.rect(kLeft, low - height, kWidth - kLeft - kRight, height, "fl-cell",
                fmt::format("{} · {} · {} · {}, there before the step", a.name, a.shape,
                            format_bytes(static_cast<double>(a.bytes)), train::to_string(role)));
    }
  }

  void draw_map() {
    const double bottom = kTop + kRolesHeight + kGap + kMapHeight;
    const double full = std::max<double>(1, static_cast<double>(timeline_.arena_bytes));
    axis(bottom, kMapHeight, full, "activations where they lie in the arena");
    std::size_t hidden = 0;
    for (const Allocation& a : timeline_.activations) {
      if (a.bytes < options_.detail_bytes) {
        ++hidden;
        continue;
      }
      const double height = static_cast<double>(a.bytes) / full * kMapHeight;
      const double low =
          static_cast<double>(a.address - timeline_.persistent_bytes) / full * kMapHeight;
      const double left = x(static_cast<std::size_t>(a.first));
      const double right = x(static_cast<std::size_t>(a.last) + 1);
      svg_.begin_group(lab::report::colour_class(style_of(a.role)));
      svg_.rect(left, bottom - low - height, std::max(0.5, right - left), std::max(0.3, height),
                "fl-fill fl-band",
                fmt::format("{} · {} · {} · {} to {}", a.name, a.shape,
                            format_bytes(static_cast<double>(a.bytes)), a.allocated_by,
                            timeline_.operations[static_cast<std::size_t>(a.last)]));
      svg_.end_group();
    }
    if (hidden > 0) {
      svg_.text(kWidth - kRight, bottom - kMapHeight - 6,
                fmt::format("{} tensors below {} are not drawn", hidden,
                            format_bytes(static_cast<double>(options_.detail_bytes))),
                "fl-small", Anchor::kEnd);
    }
  }

  const MemoryTimeline& timeline_;
  const TimelinePicture& options_;
  std::size_t count_;
  Svg svg_{kWidth};
};

}  // namespace

std::string timeline_picture(const MemoryTimeline& timeline, const TimelinePicture& options) {
  return Picture(timeline, options).draw();
}

}  // namespace flashlab::profile
