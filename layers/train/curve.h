// Curves of a training run, as an SVG picture that opens in any browser.
//
//   write_svg_curve("loss.svg", {.title = "Digits", .y_label = "loss"}, {{"training", steps, losses}});
#pragma once

#include <string>
#include <vector>

namespace sluice {

/// One curve. Points are drawn in the order given; those not finite, or of 1e15 and more, leave a gap.
struct Series {
  std::string name;                // in the legend
  std::vector<double> x = {}, y = {};  // equally long
  bool noisy = false;        // drawn faint, with a moving average in bold above it
};

/// A dashed horizontal line to compare with.
struct ReferenceLine {
  std::string name;  // beside it
  double y = 0;      // its height
};

struct CurveOptions {
  std::string title = {};        // above the picture
  std::string x_label = "step";  // below the axis
  std::string y_label = "loss";  // beside it
};

/// Writes a self-contained SVG line chart (800 × 480 units, white ground, no script, no font file).
/// The file is replaced atomically: a reader, or a crash, never sees half a chart. When references
/// are given, the parts of a curve far above them (an untrained model) are cut off, so that the
/// interesting range fills the chart; the last tenth of a curve is never cut. The legend gives each
/// curve's last value (noisy: of the average). No points at all gives empty axes.
/// ValueError when x and y of a series differ in length, IOError when the file cannot be written.
void write_svg_curve(const std::string& path, const CurveOptions& options,
                     const std::vector<Series>& series,
                     const std::vector<ReferenceLine>& references = {});

}  // namespace sluice
