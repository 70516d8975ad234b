// What the programs of claims.sh share: figures with their spread, rules that make a verdict of them, and the file that
// the page is made of.
//
//   static void c2(const Run& run, Result& r) {
//     const Measured ratio = mean_of(ratios);                     // ± half of a 95 % interval
//     r.add("A_ii/A_ij, s = 128", ratio, "", 69);                 // measured, and as printed
//     r.verdict = equals(ratio, 69, 0.02);
//     r.why = "the ratio is " + text(ratio) + " at s = 128";
//   }
//   int main(int argc, char** argv) { return run_claims("claim_initial", {{"C2", c2}}, argc, argv); }
//
// claim_NAME --only C2 --out FOLDER [--seconds S] [--seed N] [--smoke] writes FOLDER/C2.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice::examples {

/// A figure and its spread: half of the 95 % interval of a mean or median by Student's t, so that two or three seeds
/// have the wide interval that they leave; 0 of a count.
struct Measured {
  double value = 0, spread = 0;
};

/// A standard error as half of a 95 % interval: times Student's t of `freedom` ≥ 1 degrees.
double interval(double standard_error, std::size_t freedom);
/// The mean; spread 0 for one value. Throws ValueError for none.
Measured mean_of(const std::vector<double>& values);
/// The median, for times, which are skewed; its standard error is 1.2533 · 1.4826 · MAD/√n. Values that follow each
/// other may be alike, so from 8 values on the spread is at least that of the medians of four stretches. Spread 0 for
/// one value, ValueError for none.
Measured median_of(const std::vector<double>& values);
/// The mean of a[i] − b[i]: runs of one seed are paired. ValueError unless equally many.
Measured paired_difference(const std::vector<double>& a, const std::vector<double>& b);
/// a − b and a/b of independent figures, to first order.
Measured difference(Measured a, Measured b);
Measured ratio(Measured a, Measured b);

/// "45.6 ± 0.7": as many digits as the spread leaves a meaning. Without a spread, or with one that rounding makes:
/// five.
std::string text(Measured m);
std::string text(double value);

// -- verdicts ----------------------------------------------------------------------------------------------

/// not_visible: the spread covers what the claim says and its opposite. paper_only: nothing was measured.
enum class Verdict { shown, contradicted, not_visible, paper_only };
const char* name_of(Verdict v);

/// The claim: the figure is `said`, up to `tolerance` · |said|. shown: the measured figure differs by at most that and
/// its spread. contradicted: by more. not_visible: the spread is wider than half of |said| or than the tolerance,
/// whichever is more.
Verdict equals(Measured m, double said, double tolerance = 0);
/// The claim: the figure is greater than `bound`. Decided when the spread does not reach it.
Verdict exceeds(Measured m, double bound = 0);
/// The claim: the figure is less than `bound`.
Verdict below(Measured m, double bound = 0);
/// The claim holds in all its parts: contradicted if one part is, else not_visible if one part is, else shown.
Verdict all(const std::vector<Verdict>& parts);
/// The verdict of a claim about accelerators, or about models a thousand times as large: what is measured here can show
/// it, but not contradict it, so that `contradicted` becomes `not_visible`.
Verdict can_only_show(Verdict here);

// -- a run -------------------------------------------------------------------------------------------------

struct Figure {
  std::string name;
  Measured measured;
  std::string unit = {};
  std::optional<double> said = {};  // as printed in the source
};

/// What a claim's function fills in.
struct Result {
  std::vector<Figure> figures = {};
  Verdict verdict = Verdict::paper_only;
  std::string why = {};      // a sentence made of the figures
  std::string size = {};     // what size would show it; of not_visible
  std::string picture = {};  // a file in the folder of results, or empty

  void add(std::string name, Measured m, std::string unit = {}, std::optional<double> said = {}) {
    figures.push_back({std::move(name), m, std::move(unit), said});
  }
  void add(std::string name, double value, std::string unit = {}, std::optional<double> said = {}) {
    add(std::move(name), Measured{value}, std::move(unit), said);
  }
};

/// How to measure. `seconds`: the time that a claim may take. `seed`: of the first random draw; a second run of
/// claims.sh has another. `text`: a file to learn from, empty for a few built-in sentences (support/corpus.h).
struct Run {
  std::string claim, out = "build/claims", text = {};
  double seconds = 60;
  int64_t seed = 1;
  bool smoke = false;

  /// The path of a file beside the results; what Result::picture names is such a file.
  std::string file(const std::string& name) const { return out + "/" + name; }
  /// Seconds since the claim began.
  double elapsed() const;
  /// True while less than `share` of `seconds` is over.
  bool has_time(double share = 1) const { return elapsed() < share * seconds; }

  double begun = 0;  // by the clock of elapsed()
};

struct Claim {
  const char* id;
  void (*measure)(const Run&, Result&);
};
/// All that main() does: parses the options, measures the claims that --only names (all without it) and writes their
/// files. With --smoke the verdict is "smoke". Returns the status of main(): 1, with the error printed, for an option
/// or a claim that is not known, for a result without a figure or a reason, and for a figure that is not finite.
int run_claims(const char* program, const std::vector<Claim>& claims, int argc, char** argv);

}  // namespace sluice::examples
