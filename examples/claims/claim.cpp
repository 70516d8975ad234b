#include "claims/claim.h"

#include "support/options.h"

#include <sluice/core/error.h>
#include <sluice/core/text/file.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <sstream>

namespace sluice::examples {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> x) {
  const auto middle = x.begin() + static_cast<long>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  if (x.size() % 2) return *middle;
  return (*middle + *std::max_element(x.begin(), middle)) / 2;
}
void check_some(const char* function, const std::vector<double>& values) {
  if (values.empty()) fail<ValueError>(function, ": no values");
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) items.push_back(item);
  return items;
}

Json json_of(const std::string& claim, const Result& r, bool smoke) {
  Json::List figures;
  for (const Figure& f : r.figures) {
    Json j;
    j["name"] = f.name, j["value"] = f.measured.value, j["spread"] = f.measured.spread;
    j["text"] = text(f.measured), j["unit"] = f.unit;
    if (f.said) j["said"] = *f.said;
    figures.push_back(j);
  }
  Json j;
  j["claim"] = claim, j["figures"] = figures;
  j["verdict"] = smoke ? "smoke" : name_of(r.verdict);
  j["why"] = r.why, j["size"] = r.size, j["picture"] = r.picture;
  return j;
}
/// Throws ValueError for a result that a page could not show.
void check(const std::string& claim, const Result& r, const Run& run) {
  if (r.figures.empty()) fail<ValueError>(claim, ": no figure");
  if (r.why.empty()) fail<ValueError>(claim, ": no reason");
  for (const Figure& f : r.figures)
    if (!std::isfinite(f.measured.value) || !std::isfinite(f.measured.spread) || f.measured.spread < 0)
      fail<ValueError>(claim, ": the figure \"", f.name, "\" is ", f.measured.value, " with spread ",
                       f.measured.spread);
  if (r.verdict == Verdict::not_visible && r.size.empty() && !run.smoke)
    fail<ValueError>(claim, ": not visible, and no word on the size that would show it");
  if (!r.picture.empty() && !std::filesystem::exists(run.file(r.picture)))
    fail<ValueError>(claim, ": there is no picture ", run.file(r.picture));
}

}  // namespace

double interval(double standard_error, std::size_t freedom) {
  // The expansion in 1/freedom (Abramowitz and Stegun 26.7.5, z = 1.96) is within 0.3 % from 4 degrees on.
  constexpr double exact[] = {12.706, 4.3027, 3.1824};
  if (freedom < 4) return exact[freedom - 1] * standard_error;
  const double f = 1 / double(freedom);
  return (1.96 + f * (2.372 + f * (2.823 + f * 2.556))) * standard_error;
}
Measured mean_of(const std::vector<double>& values) {
  check_some("mean_of", values);
  const auto n = double(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double x : values) squares += (x - mean) * (x - mean);
  return {mean, n > 1 ? interval(std::sqrt(squares / (n - 1) / n), values.size() - 1) : 0};
}
Measured median_of(const std::vector<double>& values) {
  check_some("median_of", values);
  const double middle = median(values);
  std::vector<double> deviations;
  for (const double x : values) deviations.push_back(std::abs(x - middle));
  if (values.size() < 2) return {middle, 0};
  const double error = 1.2533 * 1.4826 * median(deviations) / std::sqrt(double(values.size()));
  const double independent = interval(error, values.size() - 1);
  constexpr std::size_t stretches = 4;
  if (values.size() < 2 * stretches) return {middle, independent};
  std::vector<double> medians;
  for (std::size_t i = 0; i < stretches; ++i) {
    const auto at = [&](std::size_t k) { return values.begin() + static_cast<long>(k * values.size() / stretches); };
    medians.push_back(median({at(i), at(i + 1)}));
  }
  return {middle, std::max(independent, mean_of(medians).spread)};
}
Measured paired_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) fail<ValueError>("paired_difference: ", a.size(), " values and ", b.size());
  std::vector<double> d;
  for (std::size_t i = 0; i < a.size(); ++i) d.push_back(a[i] - b[i]);
  return mean_of(d);
}
Measured difference(Measured a, Measured b) { return {a.value - b.value, std::hypot(a.spread, b.spread)}; }
Measured ratio(Measured a, Measured b) {
  const double r = a.value / b.value;
  return {r, std::hypot(a.spread / b.value, r * b.spread / b.value)};
}

std::string text(double value) {
  if (std::isnan(value)) return "nan";  // whatever its sign
  char s[64];
  std::snprintf(s, sizeof s, "%.5g", value);
  return s;
}
std::string text(Measured m) {
  if (m.spread <= 1e-9 * std::abs(m.value) || std::isnan(m.value)) return text(m.value);
  if (!std::isfinite(m.spread)) return text(m.value) + " ± ∞";  // of one run
  // Two digits of a spread that begins with 1, one of another; the value to the same place.
  const double order = std::floor(std::log10(m.spread));
  const int place = static_cast<int>(order) - (m.spread / std::pow(10, order) < 1.95 ? 1 : 0);
  char s[96];
  if (std::abs(m.value) < 1e-3 || std::abs(m.value) >= 1e6)
    std::snprintf(s, sizeof s, "%.3g ± %.1g", m.value, m.spread);
  else {
    const int digits = std::max(0, -place);
    std::snprintf(s, sizeof s, "%.*f ± %.*f", digits, m.value, digits, m.spread);
  }
  return s;
}

const char* name_of(Verdict v) {
  constexpr const char* names[] = {"shown", "contradicted", "not visible", "paper only"};
  return names[static_cast<int>(v)];
}
Verdict equals(Measured m, double said, double tolerance) {
  const double allowed = tolerance * std::abs(said);
  if (std::abs(m.value - said) > allowed + m.spread) return Verdict::contradicted;
  return m.spread > std::max(allowed, 0.5 * std::abs(said)) ? Verdict::not_visible : Verdict::shown;
}
Verdict exceeds(Measured m, double bound) {
  if (m.value - m.spread > bound) return Verdict::shown;
  return m.value + m.spread < bound ? Verdict::contradicted : Verdict::not_visible;
}
Verdict below(Measured m, double bound) { return exceeds({-m.value, m.spread}, -bound); }
Verdict all(const std::vector<Verdict>& parts) {
  const auto has = [&](Verdict v) { return std::find(parts.begin(), parts.end(), v) != parts.end(); };
  for (const Verdict v : {Verdict::contradicted, Verdict::not_visible, Verdict::paper_only})
    if (has(v)) return v;
  return Verdict::shown;
}
Verdict can_only_show(Verdict here) { return here == Verdict::contradicted ? Verdict::not_visible : here; }

double Run::elapsed() const { return now() - begun; }

int run_claims(const char* program, const std::vector<Claim>& claims, int argc, char** argv) try {
  Run run;
  std::string only, known;
  for (const Claim& c : claims) known += (known.empty() ? "" : ",") + std::string(c.id);
  OptionList flags;
  flags("only", only, "claims to measure, separated by commas; all without it");
  flags("out", run.out, "folder of the results");
  flags("text", run.text, "a text to learn from; a few built-in sentences without it");
  flags("seconds", run.seconds, above(0), "time of each claim");
  flags("seed", run.seed, at_least(0), "of the random draws");
  flags("smoke", run.smoke, "tiny sizes, no verdict");
  parse_flags(program, "measures " + known, flags, argc, argv);
  const std::vector<std::string> wanted = split(only.empty() ? known : only);
  std::filesystem::create_directories(run.out);
  for (const std::string& id : wanted) {
    const auto claim = std::find_if(claims.begin(), claims.end(), [&](const Claim& c) { return id == c.id; });
    if (claim == claims.end()) fail<ValueError>(program, ": no claim ", id, "; there are ", known);
    Result result;
    run.claim = id, run.begun = now();
    claim->measure(run, result);
    check(id, result, run);
    Json j = json_of(id, result, run.smoke);
    j["command"] = str(program, " --only ", id, " --seed ", run.seed, " --seconds ", text(run.seconds),
                       run.text.empty() ? "" : " --text FILE");
    j["seconds"] = run.elapsed();
    write_file_atomically(run.file(id + ".json"), [&](FileWriter& w) { w.write(to_text(j, 1) + "\n"); });
    for (const Figure& f : result.figures)
      std::printf("%s  %s: %s %s\n", id.c_str(), f.name.c_str(), text(f.measured).c_str(), f.unit.c_str());
    std::printf("%s  %s: %s\n", id.c_str(), run.smoke ? "smoke" : name_of(result.verdict), result.why.c_str());
  }
  return 0;
} catch (...) {
  return run_program([](int, char**) -> int { throw; }, argc, argv);
}

}  // namespace sluice::examples
