#include "profile/roofline.h"

#include <fmt/format.h>

#include "lab/report/numbers.h"
#include "lab/report/roofline.h"
#include "profile/ledger.h"

namespace flashlab::profile {
namespace {

// Long names of libraries' kernels would lie across other dots; a pointer shows the whole.
std::string short_name(const std::string& kernel) {
  constexpr std::size_t kMost = 24;
  return kernel.size() <= kMost ? kernel : kernel.substr(0, kMost - 1) + "…";
}

}  // namespace

std::string roofline_picture(const Recording& recording, bool inline_in_page) {
  using lab::report::format_significant;
  if (!recording.roofs.gflops || !recording.roofs.gb_per_s) return {};
  lab::report::Roofline out;
  out.description = "Rate of every kernel over its FLOPs per byte, below the machine's roofs.";
  out.gflops = *recording.roofs.gflops;
  out.gb_per_s = *recording.roofs.gb_per_s;
  int style = 1;
  for (const LedgerRow& row : make_ledger(recording, {.key = LedgerKey::kKernel})) {
    if (row.flops <= 0 || row.bytes <= 0 || !row.gflops_per_s) continue;
    // Rows come with the longest first: the first seven have a colour of their own and a name.
    const bool named = style < lab::report::kChartColours;
    lab::report::RooflineDot dot{named ? short_name(row.key) : "", named ? style++ : 0,
                                 row.flops / row.bytes, *row.gflops_per_s, ""};
    dot.hover = fmt::format("{}: {} GFLOP/s at {} FLOPs per byte, {:.1f}% of the time", row.key,
                            format_significant(dot.gflops, 3), format_significant(dot.intensity, 3),
                            100 * row.share);
    out.dots.push_back(std::move(dot));
  }
  return render(out, inline_in_page ? lab::report::SvgUse::kInline : lab::report::SvgUse::kFile);
}

}  // namespace flashlab::profile
