// Curves of a training run, as an SVG picture that opens in any browser.
//
//   write_svg_curve("loss.svg", {.title = "Digits", .y_label = "loss"}, {{"training", steps, losses}});
#pragma once

#include <string>
#include <vector>

namespace sluice {

/// One curve. Points are drawn in the given order. A point that is not finite, or is ±1e15 or beyond, leaves a gap.
struct Series {
  std::string name;                    // shown in the legend
  std::vector<double> x = {}, y = {};  // must be equally long
  bool noisy = false;                  // true: drawn faint, with a bold moving average on top
};

/// A dashed horizontal line for comparison.
struct ReferenceLine {
  std::string name;  // shown beside the line
  double y = 0;      // height of the line
};

struct CurveOptions {
  std::string title = {};        // above the chart
  std::string x_label = "step";  // below the x axis
  std::string y_label = "loss";  // beside the y axis
};

/// Writes a self-contained SVG line chart (800 × 480 units, a white background or, on a dark screen, a dark one, no
/// script, no font file). The file is replaced atomically: neither a reader nor a crash leaves half a chart. With
/// references, parts of a curve above the highest one (an untrained model) by more than a quarter of its size are cut
/// off, so that the interesting range fills the chart. The last tenth of a curve is never cut. The legend shows the
/// last value of each curve (noisy: of the average). Without any points the axes are empty. Throws ValueError when x
/// and y of a series differ in length, IOError when the file cannot be written.
void write_svg_curve(const std::string& path, const CurveOptions& options, const std::vector<Series>& series,
                     const std::vector<ReferenceLine>& references = {});

}  // namespace sluice
