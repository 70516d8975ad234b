// A gallery of attention: who attends to whom in a line of text, as fourteen pictures in one SVG. A row of a picture is
// a token that reads, a column a token that is read; both are the letters of `text`. Every picture is drawn from the
// library's own weights: with the unit matrix as values, an attention returns its matrix of weights, A·I = A.
//
//   gallery [--out FILE] [--smoke]
#include "support/options.h"

#include <sluice/sluice.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>

using namespace sluice;
using namespace sluice::examples;

namespace {

const std::string text = "a gate decides what a token reads, and a gate decides what stays";
const int64_t n = static_cast<int64_t>(text.size()), width = 32;

/// A row for each letter, [1, 1, n, width]: a random vector of the letter plus half of those of the two letters before,
/// so that equal words are alike. Serves as queries and as keys.
Tensor letters() {
  Rng rng(3);
  const Tensor table = normal({128, width}, 0, 0.8, rng);
  std::vector<int64_t> codes;
  for (char c : "  " + text) codes.push_back(c);
  const Tensor each = embedding(table, Tensor::from(codes));
  return reshape(narrow(each, 0, 2, n) + 0.5 * narrow(each, 0, 1, n) + 0.5 * narrow(each, 0, 0, n), {1, 1, n, width});
}
/// −rate at the blanks between words, and −rate/40 at letters, [1, 1, n]: how much a token makes the past fade.
Tensor fading(double rate) {
  std::vector<float> log_decay;
  for (char c : text) log_decay.push_back(static_cast<float>(c == ' ' ? -rate : -rate / 40));
  return reshape(Tensor::from(log_decay), {1, 1, n});
}

struct Picture {
  std::string title, source;
  std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& unit)> weights;
};
std::vector<Picture> pictures() {
  const AttentionMask causal{.causal = true};
  auto masked = [](AttentionMask mask) {
    return
        [mask](const Tensor& q, const Tensor& k, const Tensor& unit) { return attention(q, k, unit, {.mask = mask}); };
  };
  auto gau = [causal](GauKind kind, int64_t top_k = 0) {
    return [=](const Tensor& q, const Tensor& k, const Tensor& unit) {
      return gau_attention(q, k, unit, {.kind = kind, .mask = causal, .top_k = top_k});
    };
  };
  auto linear = [](const Tensor& log_decay) {
    return [=](const Tensor& q, const Tensor& k, const Tensor& unit) {
      return linear_attention(
          elu1(q), elu1(k), unit,
          {.direction = LinearDirection::causal, .normalize = LinearNormalize::none, .log_decay = log_decay});
    };
  };
  auto delta = [](const Tensor& log_decay) {  // keys of length 1, as the rule wants them
    return [=](const Tensor& q, const Tensor& k, const Tensor& unit) {
      const Tensor key = k / sqrt(sum(square(k), {-1}, true));
      return delta_rule(q, key, unit, full({1, 1, n}, 0.5), log_decay).out;
    };
  };
  return {
      {"softmax", "causal", masked(causal)},
      {"window", "9 keys", masked({.causal = true, .window = 9})},
      {"dilated, global", "Longformer", masked({.window = 9, .dilation = 3, .global = {0, 31}})},
      {"blocks", "BigBird", masked(bigbird_mask(n, {.block = 8, .random = 1}))},
      {"relu²", "GAU", gau(GauKind::su)},
      {"top-k", "5 of a row", gau(GauKind::softmax, 5)},
      {"mixed chunks", "FLASH",
       [](const Tensor& q, const Tensor& k, const Tensor& unit) {
         return mixed_chunk_attention(q, k, q, k, unit, {.chunk = 16, .causal = true});
       }},
      {"Sinkhorn", "doubly stochastic",
       [](const Tensor& q, const Tensor& k, const Tensor& unit) { return sinkhorn_attention(q, k, unit, {}); }},
      {"linear", "elu + 1", linear({})},
      {"retention", "fades evenly", linear(full({1, 1, n}, -0.1))},
      {"gated linear", "fades at blanks", linear(fading(1.2))},
      {"delta rule", "β = ½", delta({})},
      {"gated delta", "fades at blanks", delta(fading(1.2))},
      {"forgetting", "fades at blanks",
       [](const Tensor& q, const Tensor& k, const Tensor& unit) {
         const Tensor c = cumsum(fading(1.2), -1);
         return attention(q, k, unit, {.mask = {.causal = true}, .bias = unsqueeze(c, -1) - unsqueeze(c, -2)});
       }},
  };
}

const int shades = 6, cell = 2, side = 64 * cell, step_x = side + 12, step_y = side + 44, columns = 7;

/// The squares of A [n, n] as lines one wide, one path a shade: 1 … shades for positive weights, the same with a minus
/// for negative ones. A shade is proportional to the root of a weight's share of the largest in its row.
void draw(std::ostream& svg, const Tensor& a) {
  const std::vector<double> weight = a.to_vector<double>();
  std::vector<std::string> path(2 * shades + 1);
  for (int64_t i = 0; i < n; ++i) {
    double largest = 1e-30;
    for (int64_t j = 0; j < n; ++j) largest = std::max(largest, std::abs(weight[i * n + j]));
    auto shade = [&](int64_t j) {
      if (j == n) return 2 * shades + 1;
      const double w = weight[i * n + j];
      return shades + static_cast<int>(std::lround(std::copysign(shades * std::sqrt(std::abs(w) / largest), w)));
    };
    for (int64_t j = 0, end = 0; j < n; j = end) {
      while (end < n && shade(end) == shade(j)) ++end;
      if (shade(j) == shades) continue;  // 0: the ground shows
      std::ostringstream run;
      run << "M" << j << " " << i << "h" << end - j;
      path[static_cast<std::size_t>(shade(j))] += run.str();
    }
  }
  for (int s = 0; s <= 2 * shades; ++s)
    if (const std::string& p = path[static_cast<std::size_t>(s)]; !p.empty())
      svg << "<path class='" << (s < shades ? "n" : "p") << "' opacity='" << std::abs(s - shades) / double(shades)
          << "' d='" << p << "'/>\n";
}

int program(int argc, char** argv) {
  std::string out = "gallery.svg";
  bool smoke = false;
  OptionList o;
  o("out", out, "the picture");
  o("smoke", smoke, "as without: it takes no time");
  parse_flags("gallery", "draws who attends to whom, for fourteen kinds of attention", o, argc, argv);

  const std::vector<Picture> all = pictures();
  const int rows = static_cast<int>(all.size() + columns - 1) / columns;
  const Tensor x = letters(), unit = reshape(eye(n), {1, 1, n, n});
  std::ostringstream svg;
  svg << "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 " << columns * step_x + 12 << " " << rows * step_y + 8
      << "' role='img' font-family='system-ui, sans-serif'>\n<title>Who attends to whom: fourteen kinds of attention "
         "over the "
         "line “"
      << text
      << "”</title>\n<desc>Fourteen squares of weights. A row is a letter that reads, a column a letter that is "
         "read.</desc>\n"
         "<style>.g{fill:#eef1f5}.p{stroke:#0b5394}.n{stroke:#c2410c}.t{fill:#1f2328;font-size:13px}"
         ".s{fill:#656d76;font-size:11px}@media(prefers-color-scheme:dark){.g{fill:#161b22}.p{stroke:#79c0ff}"
         ".n{stroke:#ffa657}.t{fill:#e6edf3}.s{fill:#8d96a0}}</style>\n";
  for (int p = 0; p < static_cast<int>(all.size()); ++p) {
    const Picture& picture = all[static_cast<std::size_t>(p)];
    const int left = 12 + p % columns * step_x, top = 8 + p / columns * step_y;
    svg << "<g transform='translate(" << left << " " << top << ")'><rect class='g' width='" << side << "' height='"
        << side << "'/>\n<g transform='translate(0 " << cell / 2.0 << ") scale(" << cell
        << ")' shape-rendering='crispEdges'>\n";
    draw(svg, picture.weights(x, x, unit));
    svg << "</g><text class='t' y='" << side + 15 << "'>" << picture.title << "</text><text class='s' y='" << side + 29
        << "'>" << picture.source << "</text></g>\n";
  }
  svg << "</svg>\n";
  std::ofstream file(out);
  file << svg.str();
  if (!file.flush()) throw std::runtime_error("cannot write " + out);
  std::cout << all.size() << " pictures in " << out << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }
