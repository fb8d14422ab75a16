#include "lab/subjects/attention/attention_subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "lab/subjects/attention/case_names.h"

namespace flashlab::lab {
namespace {

using base::clean;
using base::file_name_part;
using base::join;

/// What a problem has that most have not, in words.
std::vector<std::string> extras(const cases::Case& p) {
  std::vector<std::string> out;
  if (p.scale) out.push_back(fmt::format("scale {}", *p.scale));
  if (!p.lengths.empty()) out.push_back("lengths " + p.lengths);
  if (!p.lengths_k.empty()) out.push_back("keys " + p.lengths_k);
  if (p.cache) {
    const std::int64_t size = p.cache->page_size;
    out.push_back(size > 0 ? fmt::format("pages of {}", size) : "a cache");
  }
  if (p.chunk) out.push_back(fmt::format("chunks of {}", *p.chunk));
  if (p.softcap) out.push_back(fmt::format("softcap {}", *p.softcap));
  if (p.alibi) out.push_back("ALiBi");
  if (p.dropout > 0) out.push_back(fmt::format("dropout {}", p.dropout));
  if (p.sinks) out.push_back("sinks");
  if (p.precision == Precision::kTf32) out.push_back("tf32");
  if (p.fp32_outputs) out.push_back("fp32 outputs");
  if (p.lse_gradient) out.push_back("LSE gradient");
  if (p.gradient_mode == GradientMode::kAccumulate) out.push_back("accumulating gradients");
  if (p.deterministic) out.push_back("deterministic");
  if (p.layout != cases::Layout::kContiguous) out.push_back(layout_words(p.layout));
  if (p.fill != cases::Fill::kNormal) out.push_back(fill_words(p.fill));
  return out;
}

std::vector<std::string> family_parts(const cases::Case& p) {
  std::vector<std::string> parts = {to_string(p.dtype), fmt::format("batch {}", p.batch)};
  parts.push_back(p.heads_k == p.heads_q ? fmt::format("heads {}", p.heads_q)
                                         : fmt::format("heads {} over {}", p.heads_q, p.heads_k));
  parts.push_back(p.head_dim_v == p.head_dim
                      ? fmt::format("d {}", p.head_dim)
                      : fmt::format("d {}, values {}", p.head_dim, p.head_dim_v));
  return parts;
}

bool accepts_dtype(std::string_view name) {
  cases::Case ignored;
  return parse_dtype_name(name, ignored);
}
bool accepts_mask(std::string_view name) {
  cases::Case ignored;
  return parse_mask_name(name, ignored);
}

constexpr LabelSpec kLabels[] = {
    {.name = "dtype",
     .kind = LabelKind::kText,
     .heading = "dtype",
     .width = -5,
     .accepts = accepts_dtype,
     .expected = "one of fp64, fp32, tf32, fp16, bf16, e4m3, e5m2"},
    {.name = "batch", .heading = "B", .width = 4},
    {.name = "heads_q", .heading = "Hq", .width = 4},
    {.name = "heads_k", .heading = "Hk", .width = 4},
    {.name = "seqlen_q", .heading = "Sq", .width = 7},
    {.name = "seqlen_k", .heading = "Sk", .width = 7},
    {.name = "head_dim", .heading = "D", .width = 4},
    {.name = "head_dim_v", .heading = "Dv", .width = 4},
    {.name = "mask",
     .kind = LabelKind::kText,
     .heading = "mask",
     .width = -20,
     .accepts = accepts_mask,
     .expected =
         "none, causal-top-left or causal-bottom-right, with +bool or +additive for a mask tensor"},
    {.name = "window",
     .kind = LabelKind::kText,
     .required = false,
     .accepts = [](std::string_view name) { return cases::parse_window(name).has_value(); },
     .expected = "LEFT,RIGHT as in 128,0 or 128,0,bottom-right"},
    {.name = "softcap", .kind = LabelKind::kReal, .required = false},
    {.name = "alibi", .kind = LabelKind::kFlag, .required = false, .fallback = "no"},
    {.name = "dropout", .kind = LabelKind::kReal, .required = false},
    {.name = "chunk", .kind = LabelKind::kReal, .required = false},
    {.name = "sinks", .kind = LabelKind::kFlag, .required = false, .fallback = "no"},
    {.name = "lengths", .kind = LabelKind::kText, .required = false},
    {.name = "lengths_k", .kind = LabelKind::kText, .required = false},
    {.name = "page_size", .kind = LabelKind::kReal, .required = false},
    {.name = "cache_length", .kind = LabelKind::kReal, .required = false},
    {.name = "seed", .identifies = false},
    {.name = "case", .kind = LabelKind::kText, .required = false, .identifies = false},
    {.name = "scale", .kind = LabelKind::kReal, .required = false},
    {.name = "lse_gradient", .kind = LabelKind::kFlag, .required = false, .fallback = "no"},
    {.name = "fp32_outputs", .kind = LabelKind::kFlag, .required = false, .fallback = "no"},
    {.name = "accumulate", .kind = LabelKind::kFlag, .required = false, .fallback = "no"},
    {.name = "deterministic", .kind = LabelKind::kFlag, .required = false, .fallback = "no"},
    {.name = "layout",
     .kind = LabelKind::kText,
     .required = false,
     .fallback = "contiguous",
     .accepts = [](std::string_view name) { return parse_layout(name).has_value(); },
     .expected = "a layout's name, e.g. contiguous"},
    {.name = "fill",
     .kind = LabelKind::kText,
     .required = false,
     .fallback = "normal",
     .accepts = [](std::string_view name) { return parse_fill(name).has_value(); },
     .expected = "a fill's name, e.g. normal"},
};

constexpr ShownColumn kColumns[] = {
    {kMedianMs, Place::kEachPass, 10},
    {kTflops, Place::kEachPass, 8},
    {kRoofShare, Place::kEachPass, 5},
    {kPeakBytes, Place::kRow, 9},
    {kError, Place::kRow, 8},
    {kMinMs},
    {kMeanMs},
    {kMaxMs},
    {kStdMs},
    {.column = kQ1Ms, .required = false},
    {.column = kQ3Ms, .required = false},
    {.column = kLowMs, .required = false},
    {.column = kHighMs, .required = false},
    {.column = kRoofTflops, .required = false},
    {kTflopsPeak},
    {kGbPerS},
    {kWorkspaceBytes},
    {kSavedBytes},
    {kProcessPeakBytes},
    {kNaiveError},
};

// declared here: variant words are public
}  // namespace

std::string mask_words(const cases::Case& p) {
  std::string words;
  switch (p.causal) {
    case Causal::kNone:
      break;
    case Causal::kCausal:
      words = "causal";
      break;
    case Causal::kTopLeft:
      words = p.seqlen_q == p.seqlen_k ? "causal" : "causal, top-left";
      break;
    case Causal::kBottomRight:
      words = "causal, bottom-right";
      break;
  }
  if (p.window) {
    const auto side = [](const std::optional<std::int64_t>& keys) {
      return keys ? fmt::format("{}", *keys) : std::string("all");
    };
    if (!words.empty()) words += " + ";
    words += fmt::format("window {} left, {} right", side(p.window->left), side(p.window->right));
    if (p.window->alignment == Alignment::kTopLeft) words += ", top-left";
    if (p.window->alignment == Alignment::kBottomRight) words += ", bottom-right";
  }
  if (p.mask != cases::MaskKind::kNone) {
    if (!words.empty()) words += " + ";
    words += p.mask == cases::MaskKind::kBool ? "boolean mask" : "additive mask";
  }
  return words;
}

std::string variant_words(const cases::Case& p) {
  std::vector<std::string> parts = extras(p);
  if (std::string mask = mask_words(p); !mask.empty()) parts.insert(parts.begin(), std::move(mask));
  return join(parts, ", ");
}

namespace {

std::string case_title(const cases::Case& p, std::string_view separator) {
  std::vector<std::string> parts = family_parts(p);
  parts.insert(parts.begin() + 3, p.seqlen_q == p.seqlen_k
                                      ? fmt::format("S {}", p.seqlen_q)
                                      : fmt::format("S {} x {}", p.seqlen_q, p.seqlen_k));
  // Generated names only repeat the shape; a preset's name says something.
  if (cases::find_preset(p.name)) parts.insert(parts.begin(), clean(p.name));
  if (const std::string mask = mask_words(p); !mask.empty()) parts.push_back(mask);
  for (std::string& extra : extras(p)) parts.push_back(std::move(extra));
  return join(parts, separator);
}

std::string case_family(const cases::Case& p) {
  std::vector<std::string> parts = family_parts(p);
  if (p.seqlen_q != p.seqlen_k) parts.push_back(fmt::format("Sq {}", p.seqlen_q));
  if (const std::string mask = mask_words(p); !mask.empty()) parts.push_back(mask);
  for (std::string& extra : extras(p)) parts.push_back(std::move(extra));
  return join(parts, " · ");
}

std::string case_slug(const cases::Case& p) {
  std::string slug = fmt::format("B{}_H{}", p.batch, p.heads_q);
  if (p.heads_k != p.heads_q) slug += fmt::format("kv{}", p.heads_k);
  slug += fmt::format("_d{}", p.head_dim);
  if (p.head_dim_v != p.head_dim) slug += fmt::format("v{}", p.head_dim_v);
  slug += std::string("_") + to_string(p.dtype);
  if (p.seqlen_q != p.seqlen_k) slug += fmt::format("_Sq{}", p.seqlen_q);
  if (const std::string mask = p.mask_name(); mask != "none") slug += "_" + mask;
  if (p.window) slug += "_window" + cases::to_string(*p.window);
  for (const std::string& extra : extras(p)) {
    std::string word = extra;
    word.erase(std::remove(word.begin(), word.end(), ' '), word.end());
    slug += "_" + word;
  }
  return file_name_part(slug);
}

}  // namespace

const Subject& attention_subject() {
  static constexpr Subject kSubject{
      .name = "attention",
      .heading = "Attention",
      .labels = kLabels,
      .columns = kColumns,
      .work =
          "Forward: 2 B H pairs (D + Dv); backward: 2 B H pairs (3 D + 2 Dv); pairs are the "
          "(query, key) pairs that the mask leaves visible.",
      .names =
          "S, d, B, H: sequence length, head dimension, batch, heads. \"heads 16 over 4\": "
          "sixteen query heads share four key heads. \"causal\": a query sees no later key.",
      .title = [](const Labels& labels,
                  std::string_view separator) { return case_title(case_of(labels), separator); },
      .family = [](const Labels& labels) { return case_family(case_of(labels)); },
      .family_slug = [](const Labels& labels) { return case_slug(case_of(labels)); },
      .axis = "seqlen_k",
      .axis_words = "sequence length S",
      .axis_short = "S",
  };
  return kSubject;
}

namespace {

// The labels that are members of a case as they stand: written and read by one list.
template <class Case, class Visit>
void for_each_member(Case& c, Visit visit) {
  visit("batch", c.batch);
  visit("heads_q", c.heads_q);
  visit("heads_k", c.heads_k);
  visit("head_dim", c.head_dim);
  visit("head_dim_v", c.head_dim_v);
  visit("seqlen_q", c.seqlen_q);
  visit("seqlen_k", c.seqlen_k);
  visit("scale", c.scale);
  visit("softcap", c.softcap);
  visit("alibi", c.alibi);
  visit("sinks", c.sinks);
  visit("lse_gradient", c.lse_gradient);
  visit("fp32_outputs", c.fp32_outputs);
  visit("deterministic", c.deterministic);
}

struct MemberWriter {
  Labels& out;
  void operator()(std::string_view name, std::int64_t value) {
    out.set(name, static_cast<std::uint64_t>(value));
  }
  void operator()(std::string_view name, const std::optional<float>& value) {
    if (value) out.set(name, static_cast<double>(*value));
  }
  void operator()(std::string_view name, bool value) { out.set(name, value); }
};

struct MemberReader {
  const Labels& labels;
  void operator()(std::string_view name, std::int64_t& value) {
    if (labels.find(name) == nullptr) return;
    value = static_cast<std::int64_t>(
        std::min<std::uint64_t>(labels.whole(name), std::numeric_limits<std::int64_t>::max()));
  }
  void operator()(std::string_view name, std::optional<float>& value) {
    const LabelValue* label = labels.find(name);
    const double* number = label == nullptr ? nullptr : std::get_if<double>(label);
    value = number == nullptr ? std::nullopt : std::optional(static_cast<float>(*number));
  }
  void operator()(std::string_view name, bool& value) { value = labels.flag(name); }
};

// Of a label that is a real number because it may be absent.
std::optional<std::int64_t> count_of(const Labels& labels, std::string_view name) {
  const LabelValue* label = labels.find(name);
  const double* number = label == nullptr ? nullptr : std::get_if<double>(label);
  constexpr double kMost = 9007199254740992;  // 2^53: beyond it doubles skip numbers
  if (number == nullptr || !(*number >= 0 && *number <= kMost)) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

}  // namespace

Labels labels_of(const cases::Case& c) {
  Labels out;
  for_each_member(c, MemberWriter{out});
  out.set("dtype", dtype_name(c));
  out.set("mask", mask_name(c));
  if (c.window) out.set("window", cases::to_string(*c.window));
  if (c.dropout > 0) out.set("dropout", static_cast<double>(c.dropout));
  if (c.chunk) out.set("chunk", static_cast<double>(*c.chunk));
  if (!c.lengths.empty()) out.set("lengths", c.lengths);
  if (!c.lengths_k.empty()) out.set("lengths_k", c.lengths_k);
  if (c.cache) out.set("page_size", static_cast<double>(c.cache->page_size));
  if (c.cache && c.cache->capacity != c.seqlen_k) {
    out.set("cache_length", static_cast<double>(c.cache->capacity));
  }
  out.set("seed", c.seed);
  if (!c.name.empty()) out.set("case", c.name);
  out.set("accumulate", c.gradient_mode == GradientMode::kAccumulate);
  out.set("layout", std::string(layout_name(c.layout)));
  out.set("fill", std::string(fill_name(c.fill)));
  return out;
}

cases::Case case_of(const Labels& labels) {
  cases::Case c;
  for_each_member(c, MemberReader{labels});
  parse_dtype_name(labels.text("dtype"), c);
  parse_mask_name(labels.text("mask"), c);
  c.window = cases::parse_window(labels.text("window"));
  std::optional<float> dropout;
  MemberReader{labels}("dropout", dropout);
  c.dropout = dropout.value_or(0.0f);
  c.chunk = count_of(labels, "chunk");
  c.seed = labels.find("seed") != nullptr ? labels.whole("seed") : c.seed;
  cases::set_lengths(c, labels.text("lengths"));  // by the seed
  cases::set_key_lengths(c, labels.text("lengths_k"));
  if (const auto page_size = count_of(labels, "page_size")) {
    c.set_cache(*page_size, count_of(labels, "cache_length").value_or(0));
  }
  c.name = labels.text("case");
  c.gradient_mode =
      labels.flag("accumulate") ? GradientMode::kAccumulate : GradientMode::kOverwrite;
  c.layout = parse_layout(labels.text("layout")).value_or(c.layout);
  c.fill = parse_fill(labels.text("fill")).value_or(c.fill);
  return c;
}

std::optional<cases::Case> attention_case(const Measurement& measurement) {
  if (measurement.subject != attention_subject().name) return std::nullopt;
  return case_of(measurement.labels);
}

Measurement attention_measurement(std::string implementation, Device device, Pass pass,
                                  const cases::Case& problem) {
  Measurement out;
  out.subject = attention_subject().name;
  out.implementation = std::move(implementation);
  out.device = to_string(device);
  out.pass = to_string(pass);
  out.labels = labels_of(problem);
  return out;
}

}  // namespace flashlab::lab
