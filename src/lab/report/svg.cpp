#include "lab/report/svg.h"

#include <fmt/format.h>

#include <array>

#include "base/text.h"

namespace flashlab::lab::report {
namespace {

struct Colour {
  const char *light, *dark;
};

// Okabe and Ito's set, its light members darkened until they reach 3:1 on white; grey is naive's.
constexpr std::array<Colour, kChartColours> kColours = {{{"#6b7280", "#a1a8b3"},
                                                         {"#0072b2", "#4da6e0"},
                                                         {"#d55e00", "#ff8a3d"},
                                                         {"#008f68", "#3cc9a0"},
                                                         {"#aa4499", "#e08cd0"},
                                                         {"#a87600", "#e6b540"},
                                                         {"#2b8ab8", "#7fd0f5"},
                                                         {"#882255", "#e07098"}}};
constexpr std::array<const char*, 4> kDashes = {"", "7 4", "2 3", "9 3 2 3"};

/// Two decimals are finer than any screen, and the same on every machine.
std::string px(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string hover_title(std::string_view hover) {
  return hover.empty() ? "" : "<title>" + base::escape_xml(hover) + "</title>";
}

std::string element(std::string_view open, std::string_view name, std::string_view hover) {
  if (hover.empty()) return fmt::format("{}/>\n", open);
  return fmt::format("{}>{}</{}>\n", open, hover_title(hover), name);
}

}  // namespace

std::string chart_styles() {
  std::string light =
      ".fl-chart text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',"
      "sans-serif;fill:#1f2937;font-size:13px}"
      ".fl-chart .fl-title{font-size:15px;font-weight:600}"
      ".fl-chart .fl-muted{fill:#5b6472}"
      ".fl-chart .fl-strong{font-weight:600}"
      ".fl-grid{stroke:#e3e6ea;stroke-width:1}.fl-axis{stroke:#8b94a1;stroke-width:1}"
      ".fl-back{fill:#ffffff}.fl-track{fill:#eef0f3}"
      ".fl-line{fill:none;stroke:currentColor;stroke-width:2.25;stroke-linejoin:round;"
      "stroke-linecap:round}"
      ".fl-thin{fill:none;stroke:currentColor;stroke-width:1;stroke-opacity:.35}"
      ".fl-rate{fill:none;stroke:#8b94a1;stroke-width:1.25;stroke-dasharray:5 4}"
      ".fl-fill{fill:currentColor}.fl-mark{fill:currentColor;stroke:none}"
      ".fl-whisker{stroke:#1f2937;stroke-width:1.5}"
      ".fl-chart .fl-small{font-size:12px}.fl-flame{fill-opacity:.35}.fl-band{fill-opacity:.6}"
      ".fl-hover{fill:transparent}.fl-cell{fill:transparent;stroke:currentColor;stroke-width:.5;"
      "stroke-opacity:.4}";
  std::string dark =
      ".fl-chart text{fill:#e6e9ee}.fl-chart .fl-muted{fill:#a4adba}"
      ".fl-grid{stroke:#2c333d}.fl-axis{stroke:#6d7684}.fl-back{fill:#14181e}"
      ".fl-track{fill:#252b34}.fl-whisker{stroke:#e6e9ee}";
  for (int i = 0; i < kChartColours; ++i) {
    light += fmt::format(".fl-c{}{{color:{}}}", i, kColours[i].light);
    dark += fmt::format(".fl-c{}{{color:{}}}", i, kColours[i].dark);
  }
  for (std::size_t i = 1; i < kDashes.size(); ++i) {
    light += fmt::format(".fl-d{}{{stroke-dasharray:{}}}", i, kDashes[i]);
  }
  return light + "@media screen and (prefers-color-scheme:dark){" + dark + "}";
}

double text_width(std::string_view text, double font_px) {
  return 0.56 * font_px * base::display_width(text);
}

std::string fitted(std::string_view text, double font_px, double pixels) {
  const std::string whole = base::clean(text);
  if (text_width(whole, font_px) <= pixels) return whole;
  // Names differ at their ends as often as at their starts: the middle goes.
  const int columns = std::max(3, static_cast<int>(pixels / (0.56 * font_px)));
  const std::vector<std::string> cells =
      base::wrap(whole, 1);  // one character each, spaces dropped
  std::string head, tail;
  int width = 1;
  std::size_t front = 0, back = cells.size();
  while (front < back) {
    const bool take_front = front <= cells.size() - back;
    const std::string& cell = take_front ? cells[front] : cells[back - 1];
    width += base::display_width(cell);
    if (width > columns) break;
    if (take_front) {
      head += cell;
      ++front;
    } else {
      tail = cell + tail;
      --back;
    }
  }
  return head + "…" + tail;
}

std::string colour_class(int style) {
  return fmt::format("fl-c{}", style % kChartColours);
}

std::string stroke_class(int style) {
  const int dash = style / kChartColours % static_cast<int>(kDashes.size());
  return dash == 0 ? "fl-line" : fmt::format("fl-line fl-d{}", dash);
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css) {
  body_ += fmt::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", css,
                       px(x1), px(y1), px(x2), px(y2));
}

void Svg::rect(double x, double y, double width, double height, std::string_view css,
               std::string_view hover) {
  body_ += element(
      fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\"", css,
                  px(x), px(y), px(width), px(height)),
      "rect", hover);
}

void Svg::path(std::string_view data, std::string_view css) {
  body_ += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", css, data);
}

void Svg::text(double x, double y, std::string_view text, std::string_view css, Anchor anchor) {
  const char* where = anchor == Anchor::kStart    ? ""
                      : anchor == Anchor::kMiddle ? " text-anchor=\"middle\""
                                                  : " text-anchor=\"end\"";
  body_ += fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\"{}>{}</text>\n", css, px(x), px(y),
                       where, base::escape_xml(text));
}

void Svg::marker(double x, double y, int style, std::string_view hover) {
  constexpr double r = 4.2;
  std::string data;
  switch (style % kChartColours) {
    case 0:
    case 4:  // circle
      body_ += element(fmt::format("<circle class=\"fl-mark\" cx=\"{}\" cy=\"{}\" r=\"{}\"", px(x),
                                   px(y), style % kChartColours == 0 ? "4.2" : "3.2"),
                       "circle", hover);
      return;
    case 1:
    case 6:  // square, flat bar
      data = style % kChartColours == 1
                 ? fmt::format("M{} {}h7.4v7.4h-7.4z", px(x - 3.7), px(y - 3.7))
                 : fmt::format("M{} {}h9v4h-9z", px(x - 4.5), px(y - 2));
      break;
    case 2:  // triangle
      data = fmt::format("M{} {}l5 8.6h-10z", px(x), px(y - r - 1));
      break;
    case 3:  // diamond
      data = fmt::format("M{} {}l5 5l-5 5l-5 -5z", px(x), px(y - 5));
      break;
    case 5:  // triangle, point down
      data = fmt::format("M{} {}l-5 -8.6h10z", px(x), px(y + r + 1));
      break;
    default:  // plus
      data =
          fmt::format("M{} {}h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z", px(x - 1.5), px(y - 5));
  }
  body_ += element(fmt::format("<path class=\"fl-mark\" d=\"{}\"", data), "path", hover);
}

void Svg::begin_group(std::string_view css) {
  body_ += fmt::format("<g class=\"{}\">\n", css);
}
void Svg::end_group() {
  body_ += "</g>\n";
}

std::string Svg::finish(double height, std::string_view id, std::string_view title,
                        std::string_view description, SvgUse use) const {
  std::string out;
  const bool file = use == SvgUse::kFile;
  if (file) out += "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  // A page gives the width; a file needs one of its own.
  const std::string size =
      file ? fmt::format(" xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\"",
                         px(width_), px(height))
           : "";
  out += fmt::format(
      "<svg class=\"fl-chart\"{} viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{}-t "
      "{}-d\">\n"
      "<title id=\"{}-t\">{}</title>\n<desc id=\"{}-d\">{}</desc>\n",
      size, px(width_), px(height), id, id, id, base::escape_xml(title), id,
      base::escape_xml(description));
  if (file) {
    out += "<style>" + chart_styles() + "</style>\n";
    out += fmt::format("<rect class=\"fl-back\" width=\"{}\" height=\"{}\"/>\n", px(width_),
                       px(height));
  }
  return out + body_ + "</svg>\n";
}

}  // namespace flashlab::lab::report
