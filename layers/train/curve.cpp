#include <sluice/layers/train/curve.h>

#include <sluice/core/error.h>
#include <sluice/core/number/number.h>
#include <sluice/core/text/file.h>
#include <sluice/core/text/utf8.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string_view>

namespace sluice {
namespace {

using detail::format;

/// Text as XML. Titles often contain a file name, and a file name may contain any bytes. An XML reader rejects the
/// whole file for a character that XML does not allow.
std::string escape(std::string_view s) {
  std::string valid, out;
  detail::take_utf8(valid, s);
  for (const char *p = valid.data(), *const end = p + valid.size(), *from = p; p != end; from = p) {
    const char32_t c = detail::next_char(p);
    if (c < 0x20 || c == 0xfffe || c == 0xffff) out += '?';
    else if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else out.append(from, p);
  }
  return out;
}

constexpr double kWidth = 800, kHeight = 480, kLeft = 62, kTop = 78, kBottom = 54;
constexpr double kGlyph = 6.4;  // mean width of a character at font size 12, to place labels
constexpr const char* kColours[] = {"#2563eb", "#ea580c", "#059669", "#9333ea", "#be123c"};
/// What takes the place of each colour where the reader's screen is dark.
constexpr const char* kDark[][2] = {{"#ffffff", "#0d1117"}, {"#111827", "#e6edf3"}, {"#374151", "#b1bac4"},
                                    {"#4b5563", "#9ea7b3"}, {"#6b7280", "#8b949e"}, {"#9ca3af", "#6e7681"},
                                    {"#e5e7eb", "#30363d"}, {"#f3f4f6", "#21262d"}, {"#2563eb", "#79c0ff"},
                                    {"#ea580c", "#ffa657"}, {"#059669", "#56d364"}, {"#9333ea", "#d2a8ff"},
                                    {"#be123c", "#ff7b9c"}};

/// True for values that the chart can place. Larger values (a diverged run) would overflow the axis arithmetic.
bool plottable(double v) { return std::abs(v) < 1e15; }  // false for NaN too

/// The smallest and the largest plottable value.
struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double v) {
    if (plottable(v)) low = std::min(low, v), high = std::max(high, v);
  }
};

/// An axis over a range. The distance of ticks is 1, 2 or 5 times a power of ten. `whole` extends the axis to ticks.
struct Axis {
  double low, high, tick;
  double from, to;  // positions of low and high on the page

  Axis(Range r, int ticks, bool whole, double from_, double to_) : from(from_), to(to_) {
    if (!(r.low <= r.high)) r = {0, 1};  // no points
    // Ticks that are closer than numbers of this size can tell apart would fall together.
    const double size = std::max(std::abs(r.low), std::abs(r.high));
    if (!(r.high - r.low > std::max(1e-300, 1e-12 * size))) r.high = r.low + std::max(1.0, std::abs(r.low));
    const double raw = (r.high - r.low) / ticks, power = std::pow(10, std::floor(std::log10(raw)));
    const double lead = raw / power;
    tick = power * (lead <= 1.001 ? 1 : lead <= 2.001 ? 2 : lead <= 5.001 ? 5 : 10);
    low = whole ? tick * std::floor(r.low / tick + 1e-9) : r.low;
    high = whole ? tick * std::ceil(r.high / tick - 1e-9) : r.high;
  }
  double at(double v) const { return from + (v - low) / (high - low) * (to - from); }
  std::vector<double> ticks() const {
    std::vector<double> out;
    const double first = std::ceil(low / tick - 1e-9);
    for (int i = 0; i < 50 && (first + i) * tick <= high + 1e-9 * tick; ++i) out.push_back((first + i) * tick);
    return out;
  }
  std::string label(double v) const {
    if (std::abs(v) < tick / 2) return "0";
    if (tick >= 1e5) return format("%gM", v / 1e6);
    if (tick >= 1e3) return format("%gk", v / 1e3);
    return format("%.*f", std::max(0, static_cast<int>(std::ceil(-std::log10(tick) - 1e-9))), v);
  }
};

/// At most 800 points, each the mean of neighbouring points, but for those that cannot be drawn: more points are not
/// visible and need more bytes.
Series thinned(const Series& s) {
  const std::size_t stride = (s.x.size() + 799) / 800;
  if (stride <= 1) return s;
  Series out{s.name, {}, {}, s.noisy};
  for (std::size_t i = 0; i < s.x.size(); i += stride) {
    const std::size_t end = std::min(i + stride, s.x.size());
    double x = 0, y = 0, count = 0;
    for (std::size_t k = i; k < end; ++k)
      if (plottable(s.x[k]) && plottable(s.y[k])) x += s.x[k], y += s.y[k], ++count;
    out.x.push_back(x / count);  // NaN if there are none
    out.y.push_back(y / count);
  }
  return out;
}

/// Moving average. The window grows from one point, so that the steep first drop is not blurred. At the end the window
/// is one-sided, so that the last value is also a mean.
std::vector<double> smooth(const std::vector<double>& y) {
  const std::size_t half = y.size() / 40;
  std::vector<double> out(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t left = std::min(i / 4, half), right = std::min(left, y.size() - 1 - i);
    double sum = 0;
    for (std::size_t k = i - left; k <= i + right; ++k) sum += y[k];
    out[i] = sum / static_cast<double>(left + right + 1);
    if (!plottable(out[i])) out[i] = y[i];  // a bad point must not leave a gap as wide as the window
  }
  return out;
}

std::string path_data(const Axis& xs, const Axis& ys, const std::vector<double>& x, const std::vector<double>& y) {
  std::string d;
  bool pen_down = false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool drawn = plottable(x[i]) && plottable(y[i]);
    if (drawn) d += format("%c%.1f %.1f", pen_down ? 'L' : 'M', xs.at(x[i]), ys.at(y[i]));
    pen_down = drawn;
  }
  return d;
}

double last_plottable(const std::vector<double>& y) {
  const auto it = std::find_if(y.rbegin(), y.rend(), plottable);
  return it == y.rend() ? std::nan("") : *it;
}

void write_series(std::ostream& svg, const Series& s, const char* colour, const Axis& xs, const Axis& ys) {
  const auto draw = [&](const std::vector<double>& y, double width, double opacity) {
    svg << format(
               "<path fill=\"none\" stroke=\"%s\" stroke-width=\"%g\" stroke-opacity=\"%g\" "
               "stroke-linejoin=\"round\" d=\"",
               colour, width, opacity)
        << path_data(xs, ys, s.x, y) << "\"/>\n";
  };
  if (s.noisy) draw(s.y, 1, 0.3);
  draw(s.noisy ? smooth(s.y) : s.y, 2, 1);
  if (s.x.size() > 40) return;
  for (std::size_t i = 0; i < s.x.size(); ++i) {  // a curve of few points gets a circle at each
    if (!plottable(s.x[i]) || !plottable(s.y[i])) continue;
    svg << format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", xs.at(s.x[i]), ys.at(s.y[i]), colour);
  }
}

void write_references(std::ostream& svg, std::vector<ReferenceLine> refs, const Axis& ys, double right) {
  std::erase_if(refs, [](const ReferenceLine& r) { return !plottable(r.y); });
  std::sort(refs.begin(), refs.end(), [](auto& a, auto& b) { return a.y > b.y; });
  // Labels are beside their lines, from top to bottom. Labels of close lines move apart.
  std::vector<double> label_at;
  for (const ReferenceLine& r : refs) {
    const double wish = ys.at(r.y);
    label_at.push_back(label_at.empty() ? wish : std::max(wish, label_at.back() + 14));
  }
  double limit = ys.from;
  for (std::size_t i = refs.size(); i-- > 0; limit = label_at[i] - 14) label_at[i] = std::min(label_at[i], limit);
  for (std::size_t i = 0; i < refs.size(); ++i) {
    const double y = ys.at(refs[i].y);
    svg << format("<path d=\"M%g %.1fH%.1f\" stroke=\"#6b7280\" stroke-dasharray=\"5 4\"/>\n", kLeft, y, right)
        << format("<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"#9ca3af\"/>\n", right, y, right + 10, label_at[i])
        << format("<text x=\"%.1f\" y=\"%.1f\" fill=\"#4b5563\">", right + 14, label_at[i] + 4) << escape(refs[i].name)
        << format(" %.2f</text>\n", refs[i].y);
  }
}

/// The beginning of the file: what it shows, in words, colours for dark screens, the area of the curves, the title.
void write_head(std::ostream& svg, const CurveOptions& options, const std::vector<Series>& series,
                const std::vector<ReferenceLine>& references, double bottom, double right) {
  svg << format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
             "role=\"img\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\">\n",
             kWidth, kHeight, kWidth, kHeight)
      << "<title>" << escape(options.title) << "</title>\n<desc>" << escape(options.y_label) << " over "
      << escape(options.x_label);
  for (std::size_t i = 0; i < series.size(); ++i) svg << (i ? ", " : ": ") << escape(series[i].name);
  for (const ReferenceLine& r : references) svg << ", beside " << escape(r.name);
  svg << "</desc>\n<style>@media(prefers-color-scheme:dark){";
  for (const auto& [light, dark] : kDark)
    svg << format("[fill=\"%s\"]{fill:%s}[stroke=\"%s\"]{stroke:%s}", light, dark, light, dark);
  svg << "}</style>\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      << format("<clipPath id=\"plot\"><rect x=\"%g\" y=\"%g\" width=\"%.1f\" height=\"%g\"/></clipPath>\n", kLeft,
                kTop - 3, right - kLeft + 3, bottom - kTop + 6);
  // A long title gets smaller letters; 0.6 em is about the mean width of a bold letter.
  const double title_size =
      std::clamp((kWidth - kLeft - 24) / (0.6 * static_cast<double>(options.title.size() + 1)), 7.0, 16.0);
  svg << format("<text x=\"%g\" y=\"30\" font-size=\"%.1f\" font-weight=\"600\" fill=\"#111827\">", kLeft, title_size)
      << escape(options.title) << "</text>\n";
}

void write_axes(std::ostream& svg, const CurveOptions& options, const Axis& xs, const Axis& ys, double right) {
  const double x_middle = (kLeft + right) / 2, y_middle = (ys.from + ys.to) / 2;
  for (const double v : ys.ticks()) {
    svg << format("<path d=\"M%g %.1fH%.1f\" stroke=\"#e5e7eb\"/>\n", kLeft, ys.at(v), right)
        << format("<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\" fill=\"#374151\">%s</text>\n", kLeft - 9, ys.at(v) + 4,
                  ys.label(v).c_str());
  }
  for (const double v : xs.ticks()) {
    svg << format("<path d=\"M%.1f %gV%g\" stroke=\"#f3f4f6\"/>\n", xs.at(v), kTop, ys.from)
        << format("<path d=\"M%.1f %gv5\" stroke=\"#374151\"/>\n", xs.at(v), ys.from)
        << format("<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\" fill=\"#374151\">%s</text>\n", xs.at(v),
                  ys.from + 19, xs.label(v).c_str());
  }
  svg << format("<path d=\"M%g %gV%gH%.1f\" fill=\"none\" stroke=\"#374151\"/>\n", kLeft, kTop, ys.from, right)
      << format("<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\" fill=\"#111827\">", x_middle, kHeight - 14)
      << escape(options.x_label) << "</text>\n"
      << format("<text transform=\"translate(17 %.1f) rotate(-90)\" text-anchor=\"middle\" fill=\"#111827\">", y_middle)
      << escape(options.y_label) << "</text>\n";
}

/// One row under the title: each name with the curve's last value.
void write_legend(std::ostream& svg, const std::vector<Series>& series, const std::vector<Series>& curves) {
  double at = kLeft;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const double last = last_plottable(series[i].noisy ? smooth(curves[i].y) : series[i].y);
    const std::string name = series[i].name + (plottable(last) ? format(" %.3f", last) : "");
    svg << format("<path d=\"M%.1f 54h22\" stroke=\"%s\" stroke-width=\"3\"/>\n", at, kColours[i % std::size(kColours)])
        << format("<text x=\"%.1f\" y=\"58\" fill=\"#111827\">", at + 28) << escape(name) << "</text>\n";
    at += 28 + kGlyph * static_cast<double>(name.size()) + 26;
  }
}

}  // namespace

void write_svg_curve(const std::string& path, const CurveOptions& options, const std::vector<Series>& series,
                     const std::vector<ReferenceLine>& references) {
  Range x, y, y_refs, y_end;
  std::vector<Series> curves;
  for (const Series& s : series) {
    if (s.x.size() != s.y.size())
      fail<ValueError>("write_svg_curve: series '", s.name, "' has ", s.x.size(), " x but ", s.y.size(), " y values");
    curves.push_back(thinned(s));
    for (const double v : curves.back().x) x.add(v);
    const std::vector<double>& values = curves.back().y;
    for (std::size_t i = 0; i < values.size(); ++i) {
      y.add(values[i]);
      if (10 * (i + 1) > 9 * values.size()) y_end.add(values[i]);
    }
  }
  double label_width = 0;
  for (const ReferenceLine& r : references) {
    y_refs.add(r.y);
    label_width = std::max(label_width, kGlyph * static_cast<double>(r.name.size() + 5));
  }
  if (plottable(y_refs.high)) {
    // Cut the top, but not the last tenth of a curve: the chart must show that a run diverged.
    y.high = std::max({y_refs.high, y_end.high, std::min(y.high, y_refs.high + 0.25 * std::abs(y_refs.high))});
    y.add(y_refs.low);
  }
  if (x.low > 0 && x.low < 0.2 * x.high) x.low = 0;

  const double right = kWidth - 24 - (label_width > 0 ? std::min(label_width + 14, 260.0) : 0);
  const Axis xs(x, 7, false, kLeft, right), ys(y, 6, true, kHeight - kBottom, kTop);

  std::ostringstream svg;
  write_head(svg, options, series, references, ys.from, right);
  write_axes(svg, options, xs, ys, right);
  write_references(svg, references, ys, right);
  svg << "<g clip-path=\"url(#plot)\">\n";
  for (std::size_t i = 0; i < curves.size(); ++i)
    write_series(svg, curves[i], kColours[i % std::size(kColours)], xs, ys);
  svg << "</g>\n";
  write_legend(svg, series, curves);
  svg << "</svg>\n";
  write_file_atomically(
      path, [&](FileWriter& out) { out.write(svg.str()); }, "write_svg_curve");
}

}  // namespace sluice
