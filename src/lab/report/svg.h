#pragma once

// The few SVG elements that charts are made of, and the one style sheet they share.

#include <string>
#include <string_view>

namespace flashlab::lab::report {

/// Colours and fonts of every chart, by class: light, dark where the reader prefers it. Colours are
/// apart for colour-blind eyes too, and each comes with a marker and a dash of its own.
std::string chart_styles();

/// Implementations that get a colour of their own; further ones repeat colours with dashes.
inline constexpr int kChartColours = 8;

/// Where a picture will live. Inline pictures take the page's styles and carry no namespace; files
/// carry both, and a background, so that they are legible on any ground.
enum class SvgUse { kInline, kFile };

enum class Anchor { kStart, kMiddle, kEnd };

/// Rough width of `text` in pixels: without a font there is nothing exact, and a little too wide
/// does no harm.
double text_width(std::string_view text, double font_px);

/// `text`, cut in its middle with an ellipsis where it would be wider than `pixels`.
std::string fitted(std::string_view text, double font_px, double pixels);

/// Builds one picture. Text is escaped here, once.
class Svg {
 public:
  explicit Svg(double width) : width_(width) {}

  void line(double x1, double y1, double x2, double y2, std::string_view css);
  /// `hover`: what a pointer shows; empty for none.
  void rect(double x, double y, double width, double height, std::string_view css,
            std::string_view hover = {});
  void path(std::string_view data, std::string_view css);
  void text(double x, double y, std::string_view text, std::string_view css,
            Anchor anchor = Anchor::kStart);
  /// The marker of a style: circle, square, triangle, diamond, ...
  void marker(double x, double y, int style, std::string_view hover = {});
  /// Elements until `end_group` share a class.
  void begin_group(std::string_view css);
  void end_group();

  /// The whole picture. `id` is unique in its page; `title` and `description` are what a screen
  /// reader says.
  std::string finish(double height, std::string_view id, std::string_view title,
                     std::string_view description, SvgUse use) const;

 private:
  double width_;
  std::string body_;
};

/// Class of a style's colour, and of its line with its dash.
std::string colour_class(int style);
std::string stroke_class(int style);

}  // namespace flashlab::lab::report
